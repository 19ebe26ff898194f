//! Requests of a virtio block device (Virtual I/O Device specification 1.2, section 5.2.6) on a namespace, through the
//! same calls as requests over NBD and NVMe/TCP. Everything read from a descriptor is the guest's and checked here.

use std::io;
use std::sync::Arc;

use ftl_core::Op;
use ftl_core::convert::exact;
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_ID_BYTES, VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP, VIRTIO_BLK_T_DISCARD,
    VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT, VIRTIO_BLK_T_WRITE_ZEROES,
    VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP,
};
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, VolatileSlice};

use crate::model::Model;
use crate::namespace::{Awaited, Flags, Namespace};
use crate::occasional_log::OccasionalLog;

/// Sectors are of 512 bytes, whatever the block size (5.2.6).
pub const SECTOR_SHIFT: u32 = 9;
/// `seg_max` and `size_max` of the configuration: descriptors of data in a request, and bytes of each.
pub const MAX_SEGMENTS: u32 = 126;
/// See [`MAX_SEGMENTS`].
pub const MAX_SEGMENT_BYTES: u32 = 64 << 10;
/// `max_discard_seg` and `max_write_zeroes_seg`.
pub const MAX_RANGES: u32 = 32;
/// `max_discard_sectors` and `max_write_zeroes_sectors`: 1 GiB.
pub const MAX_RANGE_SECTORS: u32 = 1 << 21;

const MAX_DATA_BYTES: u64 = MAX_SEGMENTS as u64 * MAX_SEGMENT_BYTES as u64;
/// `struct virtio_blk_req` up to its data: type, reserved, sector.
const HEADER_BYTES: usize = 16;
/// `struct virtio_blk_discard_write_zeroes`: sector, number of sectors, flags.
const RANGE_BYTES: usize = 16;

/// A part of a buffer in the guest's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Segment {
    address: GuestAddress,
    length: u32,
}

/// Type of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Flush,
    GetId,
    Discard,
    WriteZeroes,
    Unknown,
    /// Not as the specification has it: fails.
    Malformed,
}

/// A request, not carried out yet.
#[derive(Debug)]
pub struct BlockRequest {
    kind: Kind,
    sector: u64,
    data: Vec<Segment>,
    data_bytes: u64,
    /// Where the last byte that the device writes goes (5.2.6).
    status: GuestAddress,
}

impl BlockRequest {
    /// Reads the header of a request. None if there is no place for its status: then it cannot be answered.
    pub fn parse(memory: &GuestMemoryMmap, descriptors: impl Iterator<Item = Descriptor>) -> Option<Self> {
        let (mut readable, mut writable): (Vec<Segment>, Vec<Segment>) = (Vec::new(), Vec::new());
        let mut in_order = true;
        for descriptor in descriptors {
            let segment = Segment { address: descriptor.addr(), length: descriptor.len() };
            if descriptor.is_write_only() {
                writable.push(segment);
            } else {
                // Data for the device comes first (2.7.4.2).
                in_order &= writable.is_empty();
                readable.push(segment);
            }
        }
        let last = writable.iter_mut().rev().find(|segment| segment.length > 0)?;
        last.length -= 1;
        let status = last.address.0.checked_add(u64::from(last.length)).map(GuestAddress)?;
        let mut header = [0; HEADER_BYTES];
        let malformed = Self { kind: Kind::Malformed, sector: 0, data: Vec::new(), data_bytes: 0, status };
        // One more each for the header and the status.
        let are_too_many = readable.len() + writable.len() > exact::<usize>(MAX_SEGMENTS) + 2;
        // No assumption about how a request is divided among descriptors (2.7.4).
        if !in_order || are_too_many || !take_header(memory, &mut readable, &mut header) {
            return Some(malformed);
        }
        let of = |from: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| header[from + byte]));
        let kind = match of(0) {
            VIRTIO_BLK_T_IN => Kind::Read,
            VIRTIO_BLK_T_OUT => Kind::Write,
            VIRTIO_BLK_T_FLUSH => Kind::Flush,
            VIRTIO_BLK_T_GET_ID => Kind::GetId,
            VIRTIO_BLK_T_DISCARD => Kind::Discard,
            VIRTIO_BLK_T_WRITE_ZEROES => Kind::WriteZeroes,
            _ => Kind::Unknown,
        };
        let data = match kind {
            Kind::Read | Kind::GetId => writable,
            _ => readable,
        };
        let data_bytes = data.iter().map(|segment| u64::from(segment.length)).sum();
        if data_bytes > MAX_DATA_BYTES {
            return Some(malformed);
        }
        Some(Self { kind, sector: u64::from(of(8)) | u64::from(of(12)) << 32, data, data_bytes, status })
    }

    /// Reads and writes of up to this many bytes, which wait only for the page cache.
    pub fn is_quick(&self, most_bytes: u64) -> bool {
        matches!(self.kind, Kind::Read | Kind::Write) && self.data_bytes <= most_bytes
    }

    /// Bytes of memory that it takes while it is in work.
    pub fn data_bytes(&self) -> usize {
        exact(self.data_bytes)
    }

    /// Carries it out and writes its status. `durable`: writes are on stable storage before they are answered. Returns
    /// the bytes that the device has written, for the used ring (2.7.8).
    pub fn carry_out(
        &self,
        disk: &Disk,
        memory: &GuestMemoryMmap,
        durable: bool,
        awaited: &dyn Fn() -> Awaited,
    ) -> u32 {
        let done = match self.kind {
            Kind::Read => self.read(disk, memory, awaited),
            Kind::Write => self.write(disk, memory, durable, awaited),
            Kind::Flush => disk.namespace.flush(disk.model, awaited).map_err(|e| failed(&e)),
            Kind::GetId => self.identify(disk, memory),
            Kind::Discard | Kind::WriteZeroes => self.release(disk, memory, durable, awaited),
            Kind::Unknown => Err(VIRTIO_BLK_S_UNSUPP),
            Kind::Malformed => Err(VIRTIO_BLK_S_IOERR),
        };
        self.finish(memory, done)
    }

    /// Carries out a read or write that [`Self::is_quick`] between the file and the guest's memory. None where the disk
    /// or a file system without room would have to be waited for, and where the memory is not in one piece for each
    /// descriptor: nothing has been done then that [`Self::carry_out`] does not do again.
    pub fn carry_out_now(&self, disk: &Disk, memory: &GuestMemoryMmap) -> Option<u32> {
        let (namespace, model) = (&disk.namespace, disk.model);
        let (Ok(()), Ok(offset)) = (self.whole_sectors(), self.offset()) else { return Some(self.fail(memory)) };
        let of = |segment: &Segment| memory.get_slice(segment.address, exact::<usize>(segment.length)).ok();
        let parts: Vec<VolatileSlice<'_>> = self.data.iter().map(of).collect::<Option<_>>()?;
        let done = match self.kind {
            Kind::Read => {
                namespace.move_now(model, Op::Read, offset, self.data_bytes, |file| file.read_guest(&parts, offset))
            }
            Kind::Write => {
                namespace.move_now(model, Op::Write, offset, self.data_bytes, |file| file.write_guest(&parts, offset))
            }
            _ => return None,
        };
        match done {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => None,
            done => Some(self.finish(memory, done.map_err(|e| failed(&e)))),
        }
    }

    /// Fails it without having carried it out.
    pub fn fail(&self, memory: &GuestMemoryMmap) -> u32 {
        self.finish(memory, Err(VIRTIO_BLK_S_IOERR))
    }

    fn finish(&self, memory: &GuestMemoryMmap, done: Result<(), u32>) -> u32 {
        let written = if done.is_ok() && matches!(self.kind, Kind::Read | Kind::GetId) { self.data_bytes } else { 0 };
        let status = exact::<u8>(done.err().unwrap_or(VIRTIO_BLK_S_OK));
        // Without such memory, the guest has no use for the status.
        let _no_such_memory = memory.write_obj(status, self.status);
        exact::<u32>(written) + 1
    }

    fn offset(&self) -> Result<u64, u32> {
        // What is beyond the end of the namespace is refused there.
        self.sector.checked_mul(1 << SECTOR_SHIFT).ok_or(VIRTIO_BLK_S_IOERR)
    }

    fn whole_sectors(&self) -> Result<(), u32> {
        let sector_bytes = 1 << SECTOR_SHIFT;
        if self.data_bytes > 0 && self.data_bytes % sector_bytes == 0 { Ok(()) } else { Err(VIRTIO_BLK_S_IOERR) }
    }

    fn read(&self, disk: &Disk, memory: &GuestMemoryMmap, awaited: &dyn Fn() -> Awaited) -> Result<(), u32> {
        self.whole_sectors()?;
        let mut data = vec![0; exact::<usize>(self.data_bytes)];
        disk.namespace.read(disk.model, &mut data, self.offset()?, awaited).map_err(|e| failed(&e))?;
        self.scatter(memory, &data)
    }

    fn write(
        &self,
        disk: &Disk,
        memory: &GuestMemoryMmap,
        durable: bool,
        awaited: &dyn Fn() -> Awaited,
    ) -> Result<(), u32> {
        self.whole_sectors()?;
        let data = self.gather(memory)?;
        let flags = Flags { fua: durable, may_trim: false };
        disk.namespace.write(disk.model, &data, self.offset()?, flags, awaited).map_err(|e| failed(&e))
    }

    /// `GET_ID` (5.2.6): up to 20 bytes, NUL after a shorter one.
    fn identify(&self, disk: &Disk, memory: &GuestMemoryMmap) -> Result<(), u32> {
        let mut id = disk.id.as_bytes().to_vec();
        id.resize(exact::<usize>(VIRTIO_BLK_ID_BYTES.max(1)), 0);
        id.resize(exact::<usize>(self.data_bytes), 0);
        self.scatter(memory, &id)
    }

    /// Discard and write zeroes (5.2.6.2): all ranges are checked before anything is done.
    fn release(
        &self,
        disk: &Disk,
        memory: &GuestMemoryMmap,
        durable: bool,
        awaited: &dyn Fn() -> Awaited,
    ) -> Result<(), u32> {
        let most_bytes = u64::from(MAX_RANGES) * RANGE_BYTES as u64;
        if self.data_bytes == 0 || self.data_bytes % RANGE_BYTES as u64 != 0 || self.data_bytes > most_bytes {
            return Err(VIRTIO_BLK_S_IOERR);
        }
        let data = self.gather(memory)?;
        let ranges =
            data.chunks_exact(RANGE_BYTES).map(|range| self.range(disk, range)).collect::<Result<Vec<_>, _>>()?;
        for (offset, length, unmap) in ranges.into_iter().filter(|&(_, length, _)| length > 0) {
            let flags = Flags { fua: durable, may_trim: unmap };
            let done = if self.kind == Kind::Discard {
                disk.namespace.trim(disk.model, offset, length, flags, awaited)
            } else {
                disk.namespace.zero_or_write(disk.model, offset, length, flags, awaited)
            };
            done.map_err(|e| failed(&e))?;
        }
        Ok(())
    }

    /// Offset, bytes, and whether the range may be unmapped.
    fn range(&self, disk: &Disk, range: &[u8]) -> Result<(u64, u64, bool), u32> {
        let word = |from: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| range[from + byte]));
        let (sector, sectors, flags) = (u64::from(word(0)) | u64::from(word(4)) << 32, word(8), word(12));
        let unmap = flags & VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP != 0;
        // Other flags, and this one with a discard, are answered so (5.2.6.2).
        if flags & !VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP != 0 || (unmap && self.kind == Kind::Discard) {
            return Err(VIRTIO_BLK_S_UNSUPP);
        }
        let offset = sector.checked_mul(1 << SECTOR_SHIFT).ok_or(VIRTIO_BLK_S_IOERR)?;
        let length = u64::from(sectors) << SECTOR_SHIFT;
        let is_inside = offset.checked_add(length).is_some_and(|end| end <= disk.namespace.size_bytes());
        if sectors <= MAX_RANGE_SECTORS && is_inside { Ok((offset, length, unmap)) } else { Err(VIRTIO_BLK_S_IOERR) }
    }

    /// The data in the guest's memory, as it is now: the guest may change it at any time.
    fn gather(&self, memory: &GuestMemoryMmap) -> Result<Vec<u8>, u32> {
        let mut data = vec![0; exact::<usize>(self.data_bytes)];
        let mut rest = &mut data[..];
        for segment in &self.data {
            let (part, after) = rest.split_at_mut(exact::<usize>(segment.length));
            memory.read_slice(part, segment.address).map_err(|_| VIRTIO_BLK_S_IOERR)?;
            rest = after;
        }
        Ok(data)
    }

    fn scatter(&self, memory: &GuestMemoryMmap, data: &[u8]) -> Result<(), u32> {
        let mut rest = data;
        for segment in &self.data {
            let (part, after) = rest.split_at(exact::<usize>(segment.length));
            memory.write_slice(part, segment.address).map_err(|_| VIRTIO_BLK_S_IOERR)?;
            rest = after;
        }
        Ok(())
    }
}

/// Takes the header from the front of the device-readable data; false if there is less, or no such memory.
fn take_header(memory: &GuestMemoryMmap, readable: &mut Vec<Segment>, header: &mut [u8; HEADER_BYTES]) -> bool {
    let mut rest = &mut header[..];
    for segment in readable.iter_mut() {
        let taken = rest.len().min(exact::<usize>(segment.length));
        let (part, after) = rest.split_at_mut(taken);
        if memory.read_slice(part, segment.address).is_err() {
            return false;
        }
        rest = after;
        // It was read from there, so that the sum is an address.
        segment.address = GuestAddress(segment.address.0 + taken as u64);
        segment.length -= exact::<u32>(taken);
        if rest.is_empty() {
            break;
        }
    }
    readable.retain(|segment| segment.length > 0);
    rest.is_empty()
}

/// The status for an error of the backing file: there is only one.
fn failed(_error: &io::Error) -> u32 {
    VIRTIO_BLK_S_IOERR
}

/// The namespace that requests are for.
pub struct Disk {
    /// Its data.
    pub namespace: Arc<Namespace>,
    /// The device that it is on.
    pub model: &'static Model,
    /// Serial number that a guest sees.
    pub id: String,
    pub(super) log: Arc<OccasionalLog>,
}

impl Disk {
    /// The namespace of a device. Its serial number is `DEVICE-NAMESPACE`, shortened to what `GET_ID` has room for.
    pub fn new(namespace: Arc<Namespace>, model: &'static Model, device: &str, log: Arc<OccasionalLog>) -> Self {
        let most = exact::<usize>(VIRTIO_BLK_ID_BYTES);
        let mut id = format!("{device}-{}", namespace.name);
        if id.len() > most {
            // Still another one for each namespace: FNV-1a of the whole.
            let hash = id.bytes().fold(0x811c_9dc5_u32, |hash, b| (hash ^ u32::from(b)).wrapping_mul(0x0100_0193));
            id = format!("{}-{hash:08x}", &id[..most - 9]);
        }
        Self { namespace, model, id, log }
    }

    /// Logs what a guest has done, at a limited rate, however often it connects.
    pub fn say(&self, what: &str) {
        self.log.say(|| format!("vhost-user: namespace {}: {what}", self.namespace.name));
    }
}
