//! Requests as guests write them, also those that should not: the answer is in the guest's memory, or nowhere.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use rustix::event::{EventfdFlags, eventfd};
use virtio_bindings::virtio_blk::{VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT};
use virtio_queue::desc::split::Descriptor;
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::request::{BlockRequest, Disk};
use super::virtqueue::{Chain, Setup, Virtqueue};
use super::workers::Workers;
use crate::namespace::Awaited;
use crate::server::tests::{PAGE, PAGES, make, open};

const MEMORY_BYTES: usize = 1 << 20;
const WRITABLE: u16 = 2;
const STATUS: u64 = 4000;

fn memory() -> GuestMemoryMmap {
    GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY_BYTES)]).unwrap()
}

/// A namespace of 320 pages; its server is never ended.
fn disk(folder: &std::path::Path) -> Disk {
    make(folder, "page", true, 8);
    let server = Box::leak(Box::new(open(folder)));
    Disk::new(Arc::clone(&server.namespaces()[0]), &server.model, "a-device-with-a-long-name", Arc::default())
}

/// Carries out the request of the parts (address, bytes, flags); returns its status and the bytes written.
fn ask(disk: &Disk, memory: &GuestMemoryMmap, parts: &[(u64, u32, u16)]) -> Option<(u32, u32)> {
    answered(memory, parts, |request| Some(request.carry_out(disk, memory, false, &|| Awaited::Yes)))
}

/// The same for what is carried out by the thread of the queue; None as well where that leaves it to others.
fn ask_now(disk: &Disk, memory: &GuestMemoryMmap, parts: &[(u64, u32, u16)]) -> Option<(u32, u32)> {
    answered(memory, parts, |request| request.is_quick(4096).then(|| request.carry_out_now(disk, memory)).flatten())
}

fn answered(
    memory: &GuestMemoryMmap,
    parts: &[(u64, u32, u16)],
    carry_out: impl FnOnce(&BlockRequest) -> Option<u32>,
) -> Option<(u32, u32)> {
    memory.write_obj(0xff_u8, GuestAddress(STATUS)).unwrap();
    let descriptors = parts.iter().map(|&(address, length, flags)| Descriptor::new(address, length, flags, 0));
    let written = carry_out(&BlockRequest::parse(memory, descriptors)?)?;
    Some((memory.read_obj::<u8>(GuestAddress(STATUS)).unwrap().into(), written))
}

fn put_header(memory: &GuestMemoryMmap, kind: u32, sector: u64) {
    memory.write_obj(kind, GuestAddress(0)).unwrap();
    memory.write_obj(sector, GuestAddress(8)).unwrap();
}

#[test]
fn request_may_be_split_over_descriptors_in_any_way() {
    let folder = tempfile::tempdir().unwrap();
    let (disk, memory) = (disk(folder.path()), memory());
    for (round, ask) in [ask, ask_now].into_iter().enumerate() {
        let data: Vec<u8> = (0..1024_usize).map(|n| (n + round) as u8).collect();
        memory.write_slice(&data, GuestAddress(16)).unwrap();
        put_header(&memory, VIRTIO_BLK_T_OUT, 3);
        // The header in two, the second with data behind it; an empty one between.
        let parts = [(0, 5, 0), (5, 500, 0), (9999, 0, 0), (505, 535, 0), (STATUS, 1, WRITABLE)];
        assert_eq!(ask(&disk, &memory, &parts), Some((VIRTIO_BLK_S_OK, 1)));
        put_header(&memory, VIRTIO_BLK_T_IN, 3);
        // The status at the end of the data.
        let at = STATUS - 100;
        let parts = [(0, 16, 0), (2048, 924, WRITABLE), (at, 101, WRITABLE)];
        assert_eq!(ask(&disk, &memory, &parts), Some((VIRTIO_BLK_S_OK, 1025)));
        let mut found = vec![0; 1024];
        memory.read_slice(&mut found[..924], GuestAddress(2048)).unwrap();
        memory.read_slice(&mut found[924..], GuestAddress(at)).unwrap();
        assert_eq!(found, data);
    }
}

#[test]
fn request_beyond_the_end_or_memory_fails() {
    let folder = tempfile::tempdir().unwrap();
    let (disk, memory) = (disk(folder.path()), memory());
    let last = PAGES * PAGE / 512 - 1;
    for (sector, address, length, status) in [
        (last, 8192, 512, VIRTIO_BLK_S_OK),
        (last, 8192, 1024, VIRTIO_BLK_S_IOERR),
        (u64::MAX / 512 + 1, 8192, 512, VIRTIO_BLK_S_IOERR),
        (0, MEMORY_BYTES as u64 - 256, 512, VIRTIO_BLK_S_IOERR),
        (0, u64::MAX - 8, 512, VIRTIO_BLK_S_IOERR),
        (0, 8192, 500, VIRTIO_BLK_S_IOERR),
        (0, 8192, 0, VIRTIO_BLK_S_IOERR),
        (0, 8192, u32::MAX, VIRTIO_BLK_S_IOERR),
    ] {
        put_header(&memory, VIRTIO_BLK_T_IN, sector);
        let parts = [(0, 16, 0), (address, length, WRITABLE), (STATUS, 1, WRITABLE)];
        let found = ask(&disk, &memory, &parts);
        assert_eq!(found.map(|(found, _)| found), Some(status), "{sector} {address} {length}");
        // Memory that is not there is left to the other way.
        let now = ask_now(&disk, &memory, &parts);
        assert!(now == found || (now.is_none() && address > 8192 || length > 4096), "{sector} {address} {length}");
    }
    // Without a status, a header, or in the wrong order.
    assert_eq!(ask(&disk, &memory, &[(0, 16, 0)]), None);
    assert_eq!(ask(&disk, &memory, &[(STATUS, 1, WRITABLE)]), Some((VIRTIO_BLK_S_IOERR, 1)));
    let parts = [(8192, 512, WRITABLE), (0, 16, 0), (STATUS, 1, WRITABLE)];
    assert_eq!(ask(&disk, &memory, &parts), Some((VIRTIO_BLK_S_IOERR, 1)));
    assert_eq!(disk.id.len(), 20);
}

#[test]
fn request_of_more_descriptors_than_there_may_be_fails() {
    let folder = tempfile::tempdir().unwrap();
    let (disk, memory) = (disk(folder.path()), memory());
    for (kind, data) in [(VIRTIO_BLK_T_IN, WRITABLE), (VIRTIO_BLK_T_OUT, 0)] {
        put_header(&memory, kind, 0);
        for (segments, status) in [(126, VIRTIO_BLK_S_OK), (127, VIRTIO_BLK_S_IOERR), (1000, VIRTIO_BLK_S_IOERR)] {
            let parts: Vec<_> = [(0, 16, 0)]
                .into_iter()
                .chain((0..segments).map(|_| (8192, 512, data)))
                .chain([(STATUS, 1, WRITABLE)])
                .collect();
            assert_eq!(ask(&disk, &memory, &parts).map(|(found, _)| found), Some(status), "{segments}");
        }
    }
}

#[test]
fn guest_that_breaks_its_queue_again_and_again_does_not_fill_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Arc::new(disk(folder.path()));
    for _ in 0..3 {
        let memory = memory();
        let mut ring = Queue::new(16).unwrap();
        ring.try_set_size(16).unwrap();
        ring.try_set_desc_table_address(GuestAddress(0x1000)).unwrap();
        ring.try_set_avail_ring_address(GuestAddress(0x2000)).unwrap();
        ring.try_set_used_ring_address(GuestAddress(0x3000)).unwrap();
        ring.set_ready(true);
        // More requests than the ring has entries.
        memory.write_obj(100_u16, GuestAddress(0x2002)).unwrap();
        let setup = Setup {
            ring,
            memory: Arc::new(memory),
            kick: File::from(eventfd(0, EventfdFlags::CLOEXEC).unwrap()),
            call: None,
            tracker: None,
            resumed: Vec::new(),
            durable: false,
            is_untimed: true,
            max_poll: Duration::ZERO,
        };
        let (_queue, thread) = Virtqueue::start(setup, Arc::clone(&disk), Workers::new(&Arc::default(), 1)).unwrap();
        thread.join().unwrap();
    }
    assert_eq!(disk.log.left_out(), 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn any_descriptor_tables_are_survived(
        bytes in prop::collection::vec(any::<u8>(), 4096),
        small in prop::collection::vec((0..4096_u64, 0..5000_u32, 0..8_u16, 0..70_u16), 64),
        heads in prop::collection::vec(any::<u16>(), 16),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let (disk, memory) = (disk(folder.path()), memory());
        memory.write_slice(&bytes, GuestAddress(0)).unwrap();
        for (number, &(address, length, flags, next)) in small.iter().enumerate() {
            memory.write_obj(Descriptor::new(address, length, flags, next), GuestAddress(8192 + number as u64 * 16)).unwrap();
        }
        for (table, size) in [(0, 256), (8192, 64)] {
            for &head in &heads {
                for head in [head, head % size] {
                    let chain = || Chain::new(&memory, GuestAddress(table), size, head);
                    prop_assert!(u16::try_from(chain().count()).is_ok());
                    if let Some(request) = BlockRequest::parse(&memory, chain()) {
                        if request.is_quick(4096) {
                            prop_assert_ne!(request.carry_out_now(&disk, &memory), Some(0));
                        }
                        prop_assert!(request.carry_out(&disk, &memory, false, &|| Awaited::Yes) > 0);
                    }
                }
            }
        }
    }
}
