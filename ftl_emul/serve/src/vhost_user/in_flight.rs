//! Requests in flight, in memory that outlives this process: the client keeps it and passes it to the next server,
//! which carries them out again (vhost-user protocol, "Inflight I/O tracking", split virtqueues).

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

/// `struct QueueRegionSplit`: features, version, `desc_num`, `last_batch_head`, `used_idx`; then the descriptors.
const VERSION: usize = 8;
const DESCRIPTORS: usize = 10;
const LAST_BATCH_HEAD: usize = 12;
const USED_INDEX: usize = 14;
const HEADER_BYTES: usize = 16;
/// `struct DescStateSplit`: inflight, padding, next, counter.
const NEXT: usize = 6;
const COUNTER: usize = 8;
const DESCRIPTOR_BYTES: usize = 16;
/// Regions of queues begin at multiples of this.
const ALIGNMENT: usize = 64;

/// Bytes of the region of one queue.
fn region_bytes(queue_size: u16) -> usize {
    (HEADER_BYTES + usize::from(queue_size) * DESCRIPTOR_BYTES).next_multiple_of(ALIGNMENT)
}

/// Memory for so many queues, which nobody can make shorter, and its length.
///
/// `queue_size` is that of the largest queue: a client may ask for less than the size of its queues (QEMU 10 asks for
/// 128 entries and has 1024).
pub fn create(queues: u16, queue_size: u16) -> io::Result<(File, u64)> {
    let length = (usize::from(queues) * region_bytes(queue_size)) as u64;
    let file = File::from(memfd_create("slo-ctl in flight", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    file.set_len(length)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok((file, length))
}

/// The memory of all queues.
#[derive(Debug)]
pub struct InFlight {
    region: MmapRegion,
    queue_bytes: usize,
    queues: u16,
}

impl InFlight {
    /// Maps it, in this many parts of equal length.
    pub fn map(file: File, offset: u64, length: u64, queues: u16) -> io::Result<Self> {
        let most = u64::from(queues) * region_bytes(u16::MAX) as u64;
        let length = usize::try_from(length.min(most)).map_err(io::Error::other)?;
        let queue_bytes = length / usize::from(queues.max(1)) / ALIGNMENT * ALIGNMENT;
        if queue_bytes == 0 {
            return Err(io::Error::other("too little memory for requests in flight"));
        }
        let region = MmapRegion::from_file(FileOffset::new(file, offset), length).map_err(io::Error::other)?;
        Ok(Self { region, queue_bytes, queues })
    }

    /// The part of one queue; None where that has none, or too little.
    pub fn queue(this: &Arc<Self>, index: u16, size: u16) -> Option<Tracker> {
        let has_part = index < this.queues && region_bytes(size) <= this.queue_bytes;
        let at = usize::from(index) * this.queue_bytes;
        has_part.then(|| Tracker { memory: Arc::clone(this), at, size, counter: 0 })
    }
}

/// The part of one queue.
#[derive(Debug)]
pub struct Tracker {
    memory: Arc<InFlight>,
    at: usize,
    size: u16,
    counter: u64,
}

impl Tracker {
    // All of these are inside the region, whose size was checked, and aligned.
    fn load16(&self, offset: usize) -> u16 {
        u16::from_le(self.memory.region.as_volatile_slice().load(self.at + offset, Ordering::Acquire).unwrap_or(0))
    }

    fn store16(&self, offset: usize, value: u16) {
        let _inside = self.memory.region.as_volatile_slice().store(value.to_le(), self.at + offset, Ordering::Release);
    }

    fn descriptor(head: u16) -> usize {
        HEADER_BYTES + usize::from(head) * DESCRIPTOR_BYTES
    }

    fn is_in_flight(&self, head: u16) -> bool {
        let at = self.at + Self::descriptor(head);
        self.memory.region.as_volatile_slice().load::<u8>(at, Ordering::Acquire).unwrap_or(0) == 1
    }

    fn set_in_flight(&self, head: u16, is: bool) {
        let at = self.at + Self::descriptor(head);
        let _inside = self.memory.region.as_volatile_slice().store(u8::from(is), at, Ordering::Release);
    }

    fn counter_of(&self, head: u16) -> u64 {
        let at = self.at + Self::descriptor(head) + COUNTER;
        u64::from_le(self.memory.region.as_volatile_slice().load(at, Ordering::Acquire).unwrap_or(0))
    }

    /// Heads of the requests that the last server had not finished, in the order in which they came; `used_index` is that
    /// of the used ring.
    pub fn resume(&mut self, used_index: u16) -> Vec<u16> {
        if self.load16(VERSION) == 0 {
            self.store16(VERSION, 1);
            self.store16(DESCRIPTORS, self.size);
            self.store16(USED_INDEX, used_index);
        }
        // The last server may have ended between the used ring and this memory.
        let finished = used_index.wrapping_sub(self.load16(USED_INDEX));
        let mut head = self.load16(LAST_BATCH_HEAD);
        for _ in 0..finished.min(self.size) {
            if head >= self.size {
                break;
            }
            self.set_in_flight(head, false);
            head = self.load16(Self::descriptor(head) + NEXT);
        }
        self.store16(USED_INDEX, used_index);
        let mut heads: Vec<u16> = (0..self.size).filter(|&head| self.is_in_flight(head)).collect();
        heads.sort_by_key(|&head| self.counter_of(head));
        self.counter = heads.last().map_or(0, |&head| self.counter_of(head).wrapping_add(1));
        heads
    }

    /// Records a request that was taken from the available ring.
    pub fn begin(&mut self, head: u16) {
        if head < self.size {
            let at = self.at + Self::descriptor(head) + COUNTER;
            let _inside = self.memory.region.as_volatile_slice().store(self.counter.to_le(), at, Ordering::Release);
            self.counter = self.counter.wrapping_add(1);
            self.set_in_flight(head, true);
        }
    }

    /// A request is about to be put into the used ring.
    pub fn finish(&self, head: u16) {
        if head < self.size {
            self.store16(Self::descriptor(head) + NEXT, self.load16(LAST_BATCH_HEAD));
            self.store16(LAST_BATCH_HEAD, head);
        }
    }

    /// It has been.
    pub fn finished(&self, head: u16, used_index: u16) {
        if head < self.size {
            self.set_in_flight(head, false);
            self.store16(USED_INDEX, used_index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ftl_core::convert::exact;

    fn tracker(file: &File) -> Tracker {
        let memory = InFlight::map(file.try_clone().unwrap(), 0, exact::<u64>(2 * region_bytes(8)), 2).unwrap();
        InFlight::queue(&Arc::new(memory), 1, 8).unwrap()
    }

    #[test]
    fn unfinished_requests_are_resumed_in_their_order() {
        let (file, _) = create(2, 8).unwrap();
        let mut first = tracker(&file);
        assert!(first.resume(0).is_empty());
        for head in [5, 2, 7, 0] {
            first.begin(head);
        }
        first.finish(2);
        first.finished(2, 1);
        // Killed after the used ring had it.
        first.finish(7);
        let mut second = tracker(&file);
        assert_eq!(second.resume(2), [5, 0]);
        second.begin(3);
        assert_eq!(tracker(&file).resume(2), [5, 0, 3]);
    }

    #[test]
    fn corrupted_in_flight_memory_is_survived() {
        let (file, length) = create(2, 8).unwrap();
        let random = vec![0xff; exact::<usize>(length)];
        std::os::unix::fs::FileExt::write_all_at(&file, &random, 0).unwrap();
        let mut resumed = tracker(&file);
        assert!(resumed.resume(3).is_empty());
        resumed.begin(9);
        resumed.finished(9, 4);
        assert!(InFlight::map(file.try_clone().unwrap(), 0, 64, 2).is_err());
        let memory = Arc::new(InFlight::map(file, 0, length, 2).unwrap());
        assert!(InFlight::queue(&memory, 1, 16).is_none() && InFlight::queue(&memory, 2, 8).is_none());
    }
}
