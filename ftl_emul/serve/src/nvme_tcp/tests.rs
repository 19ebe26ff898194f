//! A device on a port of this machine, and hosts that use and abuse it.

mod host;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use ftl_core::{Op, TenantId};
use proptest::prelude::*;

use super::*;
use crate::namespace::Flags;
use crate::server::tests::{PAGE, PAGES, make, open};
use host::{Host, blocks, entry, with_host_data};

const ENABLE: u32 = 6 << 16 | 4 << 20 | 1;
const SIZE: u64 = PAGE * PAGES;
const BLOCKS: u64 = SIZE / 512;

/// A device that is served. The server is never ended, as its threads are not.
struct Served {
    address: SocketAddr,
    subsystem: Arc<Subsystem>,
    _folder: tempfile::TempDir,
}

fn served() -> Served {
    served_with(Permissions { namespaces: true, ops: true })
}

fn served_with(permissions: Permissions) -> Served {
    let folder = tempfile::tempdir().unwrap();
    make(folder.path(), "page", true, 8);
    let server: &'static Server = Box::leak(Box::new(open(folder.path())));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    server.descriptors.add([Owner::NvmeTcp]).unwrap();
    let subsystem = Arc::new(Subsystem::new(server, Vec::new(), permissions));
    let (listening, looking) = (Arc::clone(&subsystem), Arc::clone(&subsystem));
    thread::spawn(move || listen(&listening, &listener, Port::All));
    thread::spawn(move || looking.look_after());
    Served { address, subsystem, _folder: folder }
}

impl Served {
    fn admin(&self, header_digest: bool, data_digest: bool) -> (Host, u16) {
        let mut admin = Host::dial(self.address, header_digest, data_digest);
        let connected = admin.connect(0, 0xffff, &self.subsystem.nqn, 0);
        assert_eq!(connected.status, 0);
        assert_eq!(admin.configure(ENABLE).status, 0);
        (admin, connected.result as u16)
    }

    fn io(&self, controller: u16, queue: u16, header_digest: bool, data_digest: bool) -> Host {
        let mut io = Host::dial(self.address, header_digest, data_digest);
        assert_eq!(io.connect(queue, controller, &self.subsystem.nqn, 0).status, 0);
        io
    }

    /// What NBD clients would read.
    fn data(&self, namespace: usize, offset: u64, length: usize) -> Vec<u8> {
        let mut found = vec![0; length];
        let server = self.subsystem.server;
        server.namespaces()[namespace].read(&server.model, &mut found, offset, || false).unwrap();
        found
    }

    fn still_serves(&self) {
        let (_admin, id) = self.admin(false, false);
        assert_eq!(self.io(id, 1, false, false).run(blocks(2, 1, 0, 1)).status, 0);
    }
}

fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|n| (n / 512) as u8 ^ (n % 251) as u8 ^ seed).collect()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn u32_at(data: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(data[at..at + 4].try_into().unwrap())
}

fn u64_at(data: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(data[at..at + 8].try_into().unwrap())
}

#[test]
fn host_connects_and_identifies_namespaces() {
    let served = served();
    let mut admin = Host::dial(served.address, false, false);
    let connected = admin.connect(0, 0xffff, &served.subsystem.nqn, 0);
    assert_eq!(connected.status, 0);
    assert_eq!(admin.property(8, false), 0x2_0000);
    assert_eq!(admin.property(0, true) & 0x1_ffff, 0x1_007f, "127 entries beside the free one, contiguous");
    assert_eq!(admin.property(0x1c, false), 0);
    assert_eq!(admin.identify(1, 0).status, 0x0c, "not enabled yet");
    assert_eq!(admin.configure(ENABLE).status, 0);
    assert_eq!(admin.property(0x1c, false), 1);

    let controller = admin.identify(1, 0).data;
    assert_eq!(u16::from_le_bytes([controller[78], controller[79]]), connected.result as u16);
    assert_eq!(&controller[24..44], b"slo-ctl emulated SSD");
    assert_eq!(u32_at(&controller, 516), 1024);
    assert_eq!(u32_at(&controller, 1792), (64 + 8192) / 16);
    let list = admin.identify(2, 0).data;
    assert_eq!([0, 4, 8, 12].map(|at| u32_at(&list, at)), [1, 2, 3, 0]);
    assert_eq!(u32_at(&admin.identify(2, 2).data, 0), 3);
    assert_eq!(admin.identify(2, u32::MAX).status, 0x0b);
    let namespace = admin.identify(0, 1).data;
    assert_eq!((u64_at(&namespace, 0), namespace[130]), (BLOCKS, 9));
    assert_eq!(admin.identify(0, 4).data, [0; 4096], "not there, but possible");
    assert_eq!(admin.identify(0, 1025).status, 0x0b);
    assert_eq!(admin.identify(3, 4).status, 0x0b);
    let uuids: Vec<_> = (1..=3).map(|id| admin.identify(3, id).data[..24].to_vec()).collect();
    assert!(uuids.iter().all(|descriptors| descriptors[..4] == [3, 16, 0, 0] && descriptors[20..] == [4, 1, 0, 0]));
    assert!(uuids[0] != uuids[1] && uuids[1] != uuids[2]);
    assert_eq!(admin.identify(8, 1).data[14], 1);
    assert_eq!(admin.identify(0x7f, 1).status, 0x02);

    // Number of queues, whatever is asked for.
    assert_eq!(admin.run(entry(9, 0, &[(10, 7), (11, 0x0003_0003)])).result, 0x000f_000f);
    assert_eq!(admin.run(entry(0x0a, 0, &[(10, 0x81), (11, 1)])).data, [7; 16]);
    assert_eq!(admin.run(entry(9, 0, &[(10, 0x8000_000f)])).status, 0x10d, "nothing is saved");
    assert_eq!(admin.run(entry(0x18, 0, &[])).status, 0);
    assert_eq!(admin.run(entry(0x80, 0, &[])).status, 1, "Format NVM is not there");
    let errors = admin.log(1, 64).data;
    assert_eq!((u64_at(&errors, 0), u16::from_le_bytes([errors[12], errors[13]]) >> 1 & 0x7ff), (7, 1));
    // Shutdown.
    assert_eq!(admin.configure(ENABLE | 1 << 14).status, 0);
    assert_eq!(admin.property(0x1c, false) >> 2 & 3, 2);
}

#[test]
fn data_written_by_several_queues_is_read_over_nbd() {
    let served = served();
    for (seed, digests) in [(false, false), (true, false), (false, true), (true, true)].into_iter().enumerate() {
        let (_admin, id) = served.admin(digests.0, digests.1);
        thread::scope(|scope| {
            for namespace in 1..=3u32 {
                let served = &served;
                scope.spawn(move || {
                    let mut io = served.io(id, namespace as u16, digests.0, digests.1);
                    let seed = seed as u8 * 16 + namespace as u8;
                    let (small, large) = (pattern(4096, seed), pattern(1 << 20, seed ^ 0x55));
                    assert_eq!(io.run_with_capsule(blocks(1, namespace, 3, 8), &small).status, 0);
                    assert_eq!(io.run_with(blocks(1, namespace, 16, 2048), &large).status, 0);
                    let number = namespace as usize - 1;
                    assert_eq!(served.data(number, 3 * 512, 4096), small);
                    assert_eq!(served.data(number, 16 * 512, 1 << 20), large);
                    assert_eq!(io.run(blocks(2, namespace, 16, 2048)).data, large);
                    assert_eq!(io.run(blocks(0x0c, namespace, 0, BLOCKS as u32)).status, 0, "verify, beyond MDTS");
                });
            }
        });
    }
    // And the other way.
    let server = served.subsystem.server;
    let written = pattern(8192, 99);
    server.namespaces()[1].write(&server.model, &written, 65536, Flags::default(), || false).unwrap();
    let (_admin, id) = served.admin(true, true);
    assert_eq!(served.io(id, 1, true, true).run(blocks(2, 2, 128, 16)).data, written);
}

#[test]
fn other_io_commands_take_effect() {
    let served = served();
    let (mut admin, id) = served.admin(false, false);
    let mut io = served.io(id, 1, false, false);
    let data = pattern(64 << 10, 5);
    let mut durable = blocks(1, 1, 0, 128);
    durable[51] |= 1 << 6;
    assert_eq!(io.run_with(durable, &data).status, 0);
    assert_eq!(io.run(entry(0, 1, &[])).status, 0);
    assert_eq!(io.run(entry(0, u32::MAX, &[])).status, 0, "flush of all");
    assert_eq!(io.run_with(blocks(5, 1, 0, 128), &data).status, 0);
    let mut other = data.clone();
    other[40_000] ^= 1;
    assert_eq!(io.run_with(blocks(5, 1, 0, 128), &other).status, 0x285);
    assert_eq!(io.run(blocks(8, 1, 8, 8)).status, 0);
    assert_eq!(served.data(0, 4096, 4096), vec![0; 4096]);
    assert_eq!(served.data(0, 8192, 4096), data[8192..12288]);

    let range = |start: u64, count: u32| [&[0; 4], &count.to_le_bytes()[..], &start.to_le_bytes()].concat();
    let manage = |ranges: u32, attributes: u32| entry(9, 1, &[(10, ranges - 1), (11, attributes)]);
    let trimmed = || served.subsystem.server.namespaces()[0].answered.bytes(Op::Trim);
    assert_eq!(io.run_with_capsule(manage(2, 4), &[range(16, 8), range(48, 16)].concat()).status, 0);
    assert_eq!(trimmed(), 24 * 512);
    assert_eq!(io.run_with_capsule(manage(1, 0), &range(16, 8)).status, 0, "a hint");
    assert_eq!(io.run_with_capsule(manage(2, 4), &[range(0, 8), range(BLOCKS, 1)].concat()).status, 0x80);
    assert_eq!(trimmed(), 24 * 512, "all ranges or none");

    let beyond = [(BLOCKS - 1, 2), (BLOCKS, 1), (u64::MAX, 1), (u64::MAX / 512, 1)];
    for (start, count) in beyond {
        for opcode in [2, 5, 8, 0x0c] {
            let answer = match opcode {
                5 => io.run_with(blocks(opcode, 1, start, count), &vec![0; count as usize * 512]),
                _ => io.run(blocks(opcode, 1, start, count)),
            };
            assert_eq!(answer.status, 0x80, "opcode {opcode} at {start}");
        }
    }
    assert_eq!(io.run(blocks(2, 1, 0, 2049)).status, 0x02, "beyond MDTS");
    assert_eq!(io.run(blocks(2, 9, 0, 1)).status, 0x02, "not there, but possible");
    assert_eq!(io.run(blocks(2, 1025, 0, 1)).status, 0x0b);
    assert_eq!(io.run(entry(0x7e, 1, &[])).status, 0x01);
    // Without the write cache, writes are durable by themselves; the host may have it back.
    assert_eq!(admin.run(entry(0x0a, 0, &[(10, 6)])).result, 1);
    assert_eq!(admin.run(entry(9, 0, &[(10, 6)])).status, 0);
    assert_eq!(admin.run(entry(0x0a, 0, &[(10, 6)])).result, 0);
    assert_eq!(io.run_with_capsule(blocks(1, 1, 0, 1), &data[..512]).status, 0);
}

#[test]
fn logs_report_host_and_flash_writes() {
    let served = served();
    let (mut admin, id) = served.admin(false, false);
    let mut io = served.io(id, 1, false, false);
    // All of it, and then here and there until garbage is collected.
    let mut random = 1u64;
    let anywhere = std::iter::repeat_with(|| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % PAGES
    });
    for page in (0..PAGES).chain(anywhere.take(1500)) {
        assert_eq!(io.run_with_capsule(blocks(1, 1, page * 8, 8), &[9; 4096]).status, 0);
    }
    let server = served.subsystem.server;
    let (host, collected) = server
        .model
        .with(|drive| drive.counters(TenantId(0)).map(|c| (c.host_page_writes, c.gc_page_writes)))
        .unwrap()
        .unwrap();
    assert!(collected > 0);
    let smart = admin.log(2, 512).data;
    assert_eq!(u64_at(&smart, 48), (host * PAGE).div_ceil(512_000));
    assert_eq!(u64_at(&smart, 80), host, "a command for each page");
    let extended = admin.log(0xc0, 512).data;
    assert_eq!(u64_at(&extended, 0), (host + collected) * PAGE);
    let guid = [0xc5, 0xaf, 0x10, 0x28, 0xea, 0xbf, 0xf2, 0xa4, 0x9c, 0x4f, 0x6f, 0x7c, 0xc9, 0x14, 0xd5, 0xaf];
    assert_eq!(extended[496..], guid);
    let statistics = admin.log_of(0x22, 1, 64).data;
    let erased = server.totals().unwrap().erased_bytes;
    assert_eq!([0, 16, 32].map(|at| u64_at(&statistics, at)), [host * PAGE, (host + collected) * PAGE, erased]);
    assert!(erased > collected * PAGE);
    let group = admin.log_of(9, 1, 512).data;
    assert_eq!([64, 80].map(|at| u64_at(&group, at)), [1, 1], "units of 10^9, rounded up");
    assert_eq!([160, 176].map(|at| u64_at(&group, at)), [3 * SIZE, 0]);
    assert_eq!(admin.log_of(9, 2, 512).status, 0x02, "another endurance group");
    let commands = admin.log(5, 4096).data;
    assert_eq!((u32_at(&commands, 0x06 * 4), u32_at(&commands, 1024 + 4), u32_at(&commands, 0x80 * 4)), (1, 3, 0));
    assert_eq!(admin.log(0x0d, 64).status, 0x109);
    // From an offset on, and beyond the end.
    let mut part = entry(2, u32::MAX, &[(10, 0xc0 | 3 << 16), (12, 496)]);
    assert_eq!(admin.run(part).data, guid);
    part[48..52].copy_from_slice(&516u32.to_le_bytes());
    assert_eq!(admin.run(part).status, 0x02);
}

#[test]
fn discovery_names_the_subsystem() {
    let served = served();
    let mut admin = Host::dial(served.address, false, false);
    assert_eq!(admin.connect(0, 0xffff, subsystem::DISCOVERY_NQN, 0).status, 0);
    assert_eq!(admin.configure(1).status, 0);
    assert_eq!(admin.identify(1, 0).data[111], 2);
    assert_eq!(admin.identify(2, 0).status, 0x02);
    let page = admin.log(0x70, 2048).data;
    assert_eq!(u64_at(&page, 8), 1);
    let field = |at: usize, length: usize| {
        String::from_utf8_lossy(&page[1024 + at..1024 + at + length]).trim_end_matches(['\0', ' ']).to_owned()
    };
    assert_eq!(page[1024..1027], [3, 1, 2]);
    assert_eq!(field(256, 256), served.subsystem.nqn);
    assert_eq!((field(512, 256), field(32, 32)), ("127.0.0.1".into(), served.address.port().to_string()));
}

#[test]
fn only_listed_or_local_hosts_may_connect() {
    let served = served();
    let subsystem =
        Subsystem::new(served.subsystem.server, vec!["nqn.2026-11.org.example:a".into()], Permissions::default());
    let (near, far) = ("::ffff:127.0.0.1".parse().unwrap(), "192.0.2.1".parse().unwrap());
    assert!(subsystem.permits("nqn.2026-11.org.example:b", near));
    assert!(!subsystem.permits("nqn.2026-11.org.example:b", far));
    assert!(subsystem.permits("nqn.2026-11.org.example:a", far));

    let connect = |queue, controller, nqn: &str| {
        let answer = Host::dial(served.address, false, false).connect(queue, controller, nqn, 0);
        (answer.status, answer.result)
    };
    let (_admin, id) = served.admin(false, false);
    assert_eq!(connect(0, 0xffff, "nqn.2026-11.org.example:none"), (0x182, 0x1_0100), "SUBNQN");
    assert_eq!(connect(0, 5, &served.subsystem.nqn), (0x182, 0x1_0010), "no static controllers");
    assert_eq!(connect(1, 0x7777, &served.subsystem.nqn), (0x182, 0x1_0010));
    assert_eq!(connect(17, id, &served.subsystem.nqn), (0x182, 42), "QID");
    let _first = served.io(id, 1, false, false);
    assert_eq!(connect(1, id, &served.subsystem.nqn).0, 0x0c, "the queue is there already");
}

#[test]
fn size_change_is_reported_once_until_its_log_is_read() {
    let served = served();
    let (mut admin, _) = served.admin(false, false);
    assert_eq!(admin.run(entry(9, 0, &[(10, 0x0b), (11, 1 << 8)])).status, 0);
    let requests: Vec<u16> = (0..4).map(|_| admin.submit(entry(0x0c, 0, &[]), &[])).collect();
    assert_eq!(admin.run(entry(0x0c, 0, &[])).status, 0x105, "one too many");
    let namespace = &served.subsystem.server.namespaces()[1];
    namespace.set_size_bytes(SIZE - PAGE);
    let notice = admin.answer(&[]);
    assert_eq!((notice.id, notice.status, notice.result), (requests[0], 0, 0x0004_0002));
    assert_eq!(admin.log(4, 4096).data[..8], [2, 0, 0, 0, 0, 0, 0, 0]);
    namespace.set_size_bytes(SIZE);
    assert_eq!(admin.answer(&[]).id, requests[1]);
    assert_eq!(admin.identify(0, 2).data[..8], BLOCKS.to_le_bytes());
    // An outstanding request can be aborted; another command that is done cannot.
    let abort = |id: u16| entry(8, 0, &[(10, u32::from(id) << 16)]);
    admin.submit(abort(requests[2]), &[]);
    assert_eq!(admin.answer(&[]).status, 0x07);
    assert_eq!(admin.answer(&[]).result, 0);
    assert_eq!(admin.run(abort(requests[2])).result, 1);
}

#[test]
fn mandatory_features_keep_values_until_a_reset() {
    let served = served();
    let (mut admin, _) = served.admin(false, false);
    let get = |admin: &mut Host, cdw10: u32, cdw11: u32| {
        let answer = admin.run(entry(0x0a, 0, &[(10, cdw10), (11, cdw11)]));
        (answer.status, answer.result)
    };
    let set = |admin: &mut Host, cdw10: u32, cdw11: u32| admin.run(entry(0x09, 0, &[(10, cdw10), (11, cdw11)])).status;
    let over_and_under = [0, 1 << 20];
    assert_eq!([0x01, 0x02, 0x05, 0x0a].map(|id| get(&mut admin, id, 0)), [(0, 0); 4]);
    assert_eq!(over_and_under.map(|which| get(&mut admin, 0x04, which)), [(0, 0xffff), (0, 0)]);
    let settings = [(0x01, 0x0302_0104), (0x02, 0x20), (0x05, 100), (0x0a, 1), (0x04, 0x015e), (0x04, 0x0010_010e)];
    for (id, value) in settings {
        assert_eq!(set(&mut admin, id, value), 0, "{id:#x}");
        assert_eq!(get(&mut admin, id, value & 1 << 20), (0, u64::from(value & !(1 << 20))), "{id:#x}");
    }
    // A second power state, an error for deallocated blocks, the threshold of a sensor, no such feature.
    for (id, value) in [(0x02, 1), (0x05, 1 << 16), (0x04, 1 << 16), (0x08, 0)] {
        assert_eq!(set(&mut admin, id, value), 0x02, "{id:#x}");
    }
    assert_eq!(admin.configure(0).status, 0);
    assert_eq!(admin.configure(ENABLE).status, 0);
    assert_eq!(get(&mut admin, 0x05, 0), (0, 0));
    served.still_serves();
}

#[test]
fn keep_alive_timeout_ends_the_controller_and_reset_its_queues() {
    let served = served();
    let mut silent = Host::dial(served.address, false, false);
    assert_eq!(silent.connect(0, 0xffff, &served.subsystem.nqn, 200).status, 0);
    assert_eq!(silent.stream.read(&mut [0]).unwrap(), 0);
    until("the controller is gone", || served.subsystem.controller_count() == 0);

    let (mut admin, id) = served.admin(false, false);
    let mut io = served.io(id, 1, false, false);
    let waiting = admin.submit(entry(0x0c, 0, &[]), &[]);
    assert_eq!(admin.configure(0).status, 0);
    assert_eq!(io.stream.read(&mut [0]).unwrap(), 0, "reset");
    assert_eq!(admin.property(0x1c, false), 0);
    assert_eq!(admin.configure(ENABLE).status, 0);
    admin.next_id = waiting - 1;
    assert_eq!(admin.run(entry(0x18, 0, &[])).status, 0, "the request before the reset is forgotten");
    let mut io = served.io(id, 1, false, false);
    assert_eq!(io.run(blocks(2, 1, 0, 1)).status, 0);
    assert_eq!(io.run(entry(0x7f, 8, &[])).status, 0, "Disconnect");
    assert_eq!(io.stream.read(&mut [0]).unwrap(), 0);
    drop(served.io(id, 2, false, false));
    // Without its Admin Queue nothing is left.
    let mut last = served.io(id, 3, false, false);
    drop(admin);
    assert_eq!(last.stream.read(&mut [0]).unwrap(), 0);
    until("the controller is gone", || served.subsystem.controller_count() == 0);
}

#[test]
fn incomplete_write_writes_nothing() {
    let served = served();
    let (_admin, id) = served.admin(true, true);
    let mut io = served.io(id, 1, true, true);
    io.submit(with_host_data(blocks(1, 1, 0, 512), 512 * 512), &[]);
    let asked = io.receive();
    assert_eq!((asked.kind, asked.u32(12), asked.u32(16)), (9, 0, 512 * 512));
    io.send_data(&asked, 0, &[1; 65536], false);
    drop(io);
    let mut io = served.io(id, 2, true, true);
    io.damages_data = true;
    assert_eq!(io.run_with(blocks(1, 1, 0, 512), &[2; 512 * 512]).status, 0x22, "its digest was wrong");
    io.damages_data = true;
    assert_eq!(io.run_with_capsule(blocks(1, 1, 0, 8), &[3; 4096]).status, 0x22);
    assert_eq!(io.run(blocks(2, 1, 0, 512)).data, vec![0; 512 * 512]);
}

#[test]
fn protocol_violation_is_reported_and_others_are_served() {
    let served = served();
    let (_admin, id) = served.admin(false, false);
    let term = |host: &mut Host, status: u16, field: u32, why: &str| {
        let pdu = host.receive();
        assert_eq!((pdu.kind, pdu.u16(8), pdu.u32(10)), (3, status, field), "{why}");
        assert_eq!(host.stream.read(&mut [0]).unwrap(), 0, "{why}: and the end");
        pdu
    };
    let asked_for_data = || {
        let mut io = served.io(id, 1, false, false);
        io.submit(with_host_data(blocks(1, 1, 0, 64), 64 * 512), &[]);
        let asked = io.receive();
        (io, asked)
    };
    let mut host = Host::dial(served.address, false, false);
    host.stream.write_all(&[9, 0, 24, 0, 24, 0, 0, 0]).unwrap();
    let ended = term(&mut host, 1, 0, "a PDU of controllers");
    assert_eq!(ended.data[..8], [9, 0, 24, 0, 24, 0, 0, 0]);
    let mut host = Host::dial(served.address, false, false);
    host.stream.write_all(&[[0, 0, 128, 0, 128, 0, 0, 0].as_slice(), &[0; 120]].concat()).unwrap();
    term(&mut host, 2, 0, "ICReq again");
    let mut host = Host::dial(served.address, true, false);
    host.stream.write_all(&[[4, 1, 72, 0, 76, 0, 0, 0].as_slice(), &[0; 68]].concat()).unwrap();
    term(&mut host, 3, 0, "a digest of zeroes");
    let free =
        |name: u16| until("the queue is free", || served.subsystem.controller(id).unwrap().queue(name).is_none());
    for (why, offset, length, last, status, field) in [
        ("from the middle on", 512, 512, false, 4, 0),
        ("beyond the end", 0, 65 * 512, true, 4, 0),
        ("the last that is not", 0, 512, true, 4, 0),
        ("not the last that is", 0, 64 * 512, false, 4, 0),
        ("more than MAXH2CDATA", 0, (128 << 10) + 4, false, 5, 0),
    ] {
        let (mut io, asked) = asked_for_data();
        io.send_data(&asked, offset, &vec![1; length], last);
        term(&mut io, status, field, why);
        free(1);
    }
    let (mut io, mut asked) = asked_for_data();
    asked.head[10] ^= 0x40;
    io.send_data(&asked, 0, &[1; 512], false);
    term(&mut io, 1, 10, "an unknown tag");
    free(1);
    let mut io = served.io(id, 1, false, false);
    for _ in 0..32 {
        io.submit(with_host_data(blocks(1, 1, 0, 64), 64 * 512), &[]);
    }
    let pdu = std::iter::repeat_with(|| io.receive()).find(|each| each.kind != 9).unwrap();
    assert_eq!((pdu.kind, pdu.u16(8)), (3, 2), "more commands than the queue has entries");
    assert_eq!(served.data(0, 0, 64 * 512), vec![0; 64 * 512], "none of it was written");
    served.still_serves();
}

#[test]
fn any_bytes_leave_other_hosts_served() {
    let served = served();
    let (_admin, id) = served.admin(false, false);
    let commands = prop::collection::vec((any::<[u8; 64]>(), 0u8..16, 0u8..4), 1..8);
    let noise = prop::collection::vec(any::<u8>(), 0..300);
    proptest!(ProptestConfig::with_cases(40), |(commands in commands, noise in noise, queue in 0u16..2)| {
        let (mut host, _admin) = if queue == 0 {
            (served.admin(false, false).0, None)
        } else {
            let (admin, own) = served.admin(false, false);
            (served.io(own, 1, false, false), Some(admin))
        };
        for (mut entry, opcode, kind) in commands {
            // Near to commands that there are; identifiers and descriptors as they come.
            entry[0] = if entry[0] < 8 { 0x7f } else { opcode };
            entry[1] = 0x40;
            entry[39] = [0x01, 0x5a, 0x5a, entry[39]][usize::from(kind)];
            entry[4..8].copy_from_slice(&u32::from(kind).to_le_bytes());
            let pdu = [&[4, 0, 72, 0, 72, 0, 0, 0], &entry[..]].concat();
            // The server may have hung up.
            let _sent = host.stream.write_all(&pdu);
        }
        let _sent = host.stream.write_all(&noise);
    });
    assert!(served.subsystem.controller(id).is_some());
    served.still_serves();
    until("all others are gone", || served.subsystem.controller_count() == 1);
}

#[test]
fn stop_answers_commands_in_progress_and_accepts_no_more() {
    let served = served();
    let (_admin, id) = served.admin(false, false);
    let mut io = served.io(id, 1, false, false);
    let data = pattern(256 << 10, 3);
    assert_eq!(io.run_with(blocks(1, 1, 0, 512), &data).status, 0);
    served.subsystem.stop(Duration::from_secs(30));
    assert_eq!(io.stream.read(&mut [0]).unwrap(), 0);
    let mut late = std::net::TcpStream::connect(served.address).unwrap();
    assert_eq!(late.read(&mut [0]).unwrap(), 0);
    assert_eq!(served.data(0, 0, 256 << 10), data);
}

/// What a host says of a new namespace of so many blocks.
fn wanted(blocks: u64, handle: Option<u16>) -> Vec<u8> {
    let mut data = vec![0; 4096];
    data[..8].copy_from_slice(&blocks.to_le_bytes());
    data[8..16].copy_from_slice(&blocks.to_le_bytes());
    data[30] = 1;
    if let Some(handle) = handle {
        data[392] = 1;
        data[512..514].copy_from_slice(&handle.to_le_bytes());
    }
    data
}

fn controllers(ids: &[u16]) -> Vec<u8> {
    let mut data = vec![0; 4096];
    data[0] = ids.len() as u8;
    for (place, id) in data[2..].chunks_exact_mut(2).zip(ids) {
        place.copy_from_slice(&id.to_le_bytes());
    }
    data
}

/// Runs a command after which a notice comes, or before its answer; returns its status.
fn with_notice(admin: &mut Host, notice: u16, command: [u8; 64], data: &[u8]) -> u16 {
    admin.submit(with_host_data(command, data.len()), &[]);
    let answers = [admin.answer(data), admin.answer(data)];
    let (notices, done): (Vec<_>, Vec<_>) = answers.into_iter().partition(|answer| answer.id == notice);
    assert_eq!((notices.len(), notices[0].result), (1, 0x0004_0002));
    done[0].status
}

#[test]
fn namespace_is_created_attached_used_detached_and_deleted() {
    let served = served();
    let (mut admin, id) = served.admin(false, false);
    let mut io = served.io(id, 1, false, false);
    let create = |admin: &mut Host, blocks, handle| admin.run_with(entry(0x0d, 0, &[]), &wanted(blocks, handle));
    let attach = |admin: &mut Host, nsid, select, ids: &[u16]| {
        admin.run_with(entry(0x15, nsid, &[(10, select)]), &controllers(ids)).status
    };
    let controller = admin.identify(1, 0).data;
    assert_eq!((controller[256] & 8, u64_at(&controller, 280), u64_at(&controller, 296)), (8, 3 * SIZE, 0));
    assert_eq!(create(&mut admin, BLOCKS, None).status, 0x115, "all is allocated");
    assert_eq!(admin.run(entry(9, 0, &[(10, 0x0b), (11, 1 << 8)])).status, 0);
    let notice = admin.submit(entry(0x0c, 0, &[]), &[]);

    assert_eq!(with_notice(&mut admin, notice, entry(0x0d, 2, &[(10, 1)]), &[]), 0);
    assert_eq!(admin.log(4, 4096).data[..5], [2, 0, 0, 0, 0]);
    assert_eq!(io.run(blocks(2, 2, 0, 1)).status, 0x02);
    assert_eq!(admin.run(entry(0x0d, 2, &[(10, 1)])).status, 0x0b, "it is gone");
    assert_eq!(u64_at(&admin.identify(1, 0).data, 296), SIZE);

    let mut thin = wanted(BLOCKS, None);
    thin[8] ^= 8;
    assert_eq!(admin.run_with(entry(0x0d, 0, &[]), &thin).status, 0x11b);
    assert_eq!(create(&mut admin, BLOCKS - 1, None).status, 0x02, "no whole pages");
    assert_eq!(create(&mut admin, BLOCKS + 8, None).status, 0x115);
    assert_eq!(create(&mut admin, BLOCKS, Some(2)).status, 0x2a, "the handle of another");
    let made = create(&mut admin, BLOCKS / 2, Some(7));
    assert_eq!((made.status, made.result), (0, 2));

    // Allocated, and attached to nobody.
    assert_eq!(u32_at(&admin.identify(0x10, 1).data, 0), 2);
    assert_eq!(u32_at(&admin.identify(2, 1).data, 0), 3);
    assert_eq!(u64_at(&admin.identify(0x11, 2).data, 0), BLOCKS / 2);
    assert_eq!(admin.identify(0, 2).data, [0; 4096]);
    assert_eq!(admin.identify(0x12, 2).data[..2], [0, 0]);
    assert_eq!(io.run(blocks(2, 2, 0, 1)).status, 0x02);
    assert_eq!(attach(&mut admin, 2, 1, &[id]), 0x11a);
    assert_eq!(attach(&mut admin, 2, 0, &[]), 0x11c);
    assert_eq!(attach(&mut admin, 2, 0, &[id + 1]), 0x11c);
    let notice = admin.submit(entry(0x0c, 0, &[]), &[]);
    assert_eq!(with_notice(&mut admin, notice, entry(0x15, 2, &[]), &controllers(&[id])), 0);
    assert_eq!(admin.log(4, 4096).data[0], 2);
    assert_eq!(attach(&mut admin, 2, 0, &[id]), 0x118);
    assert_eq!(admin.identify(0x12, 2).data[..4], [1, 0, id as u8, 0]);
    assert_eq!(io.run_with(blocks(1, 2, 0, 8), &[5; 4096]).status, 0);
    assert_eq!(io.run(blocks(2, 2, 0, 8)).data, [5; 4096]);

    // A connection of the same host finds it attached; so does the next start.
    let (mut again, other) = served.admin(false, false);
    assert_eq!(u64_at(&again.identify(0, 2).data, 0), BLOCKS / 2);
    assert_eq!(attach(&mut admin, 2, 1, &[id, other]), 0);
    assert_eq!(again.identify(0, 2).data, [0; 4096]);
    assert_eq!(io.run(blocks(2, 2, 0, 8)).status, 0x02);
    assert_eq!(attach(&mut admin, 1, 1, &[id]), 0, "one of device.toml");
    assert_eq!(u32_at(&admin.identify(2, 0).data, 0), 3);

    assert_eq!(admin.run(entry(0x0d, u32::MAX, &[(10, 1)])).status, 0);
    assert_eq!(u64_at(&admin.identify(1, 0).data, 296), 3 * SIZE);
    assert_eq!(admin.identify(0x10, 0).data, [0; 4096]);
}

#[test]
fn commands_not_allowed_by_the_operator_are_refused() {
    let served = served_with(Permissions::default());
    let (mut admin, id) = served.admin(false, false);
    assert_eq!(admin.identify(1, 0).data[256] & 8, 0);
    assert_eq!(admin.run(entry(0x0d, 1, &[(10, 1)])).status, 0x01);
    assert_eq!(admin.run_with(entry(0x15, 1, &[(10, 1)]), &controllers(&[id])).status, 0x01);
    assert_eq!(admin.run(entry(0xc0, 1, &[(10, 2), (11, 1)])).status, 0x01);
    let commands = admin.log(5, 4096).data;
    assert_eq!([0x0d, 0x15, 0xc0].map(|opcode| u32_at(&commands, opcode * 4)), [0; 3]);
    assert_eq!(served.subsystem.server.namespaces().len(), 3);
}

#[test]
fn placement_logs_match_the_tenants() {
    let served = served();
    let (mut admin, id) = served.admin(false, false);
    let mut io = served.io(id, 1, false, false);
    let attributes = u32_at(&admin.identify(1, 0).data, 96);
    assert_eq!(attributes & (1 << 19 | 1 << 4), 1 << 19 | 1 << 4);
    let configurations = admin.log_of(0x20, 1, 96).data;
    assert_eq!((configurations[18], configurations[80]), (0x80, 1), "valid; initially isolated");
    assert_eq!(u64_at(&configurations, 32), 2 * 16 * PAGE, "a block on each of two dies");
    let usage = admin.log_of(0x21, 1, 40).data;
    assert_eq!([8, 16, 24, 32].map(|at| usage[at]), [1, 1, 1, 0]);
    assert_eq!(admin.run(entry(0x0a, 0, &[(10, 0x1d), (11, 1)])).result, 1);
    let directives = admin.run(entry(0x1a, 1, &[(10, 1023), (11, 1)])).data;
    assert_eq!((directives[0], directives[32]), (5, 5));

    // Three pages, one of them through a placement identifier that there is not.
    let write = |page: u64, kind: u32, specific: u32| {
        let mut command = blocks(1, 2, page * 8, 8);
        command[50] |= (kind as u8) << 4;
        command[54..56].copy_from_slice(&(specific as u16).to_le_bytes());
        command
    };
    let enable = entry(9, 2, &[(10, 0x1e), (11, 1 << 16), (12, 1)]);
    assert_eq!(admin.run_with(enable, &[3]).status, 0);
    assert_eq!(admin.run(entry(0x0a, 2, &[(10, 0x1e)])).data[..2], [3, 1]);
    assert_eq!(io.run_with(write(0, 2, 0), &[1; 4096]).status, 0);
    assert_eq!(io.run_with(write(1, 2, 9), &[1; 4096]).status, 0);
    assert_eq!(io.run_with(write(2, 1, 0), &[1; 4096]).status, 0x02, "streams");
    let mut host_events = entry(2, 0, &[(10, 0x23 | 1 << 8 | 31 << 16), (11, 1 << 16)]);
    let events = admin.run(host_events).data;
    assert_eq!((u32_at(&events, 0), events[64], events[66], u32_at(&events, 76), events[98]), (1, 3, 9, 2, 1));
    host_events[41] = 0;
    assert_eq!(u32_at(&admin.run(host_events).data, 0), 0, "of the controller");
    let status = io.run(entry(0x12, 2, &[(10, 1), (11, 11)])).data;
    let open = served.subsystem.server.model.with(|drive| drive.space(TenantId(1)).unwrap().open_pages).unwrap();
    assert_eq!((status[14], status[16], status[18], u64_at(&status, 24)), (1, 0, 1, open * 8));
    assert_eq!(open, 30, "two of 32 pages are written");
    assert_eq!(io.run_with(entry(0x1d, 2, &[(10, 1)]), &[0, 0]).status, 0);
    assert_eq!(io.run_with(entry(0x1d, 2, &[(10, 1)]), &[1, 0]).status, 0x02);
}

#[test]
fn ops_are_reported_by_namespace_and_moved() {
    let served = served();
    let (mut admin, _) = served.admin(false, false);
    let server = served.subsystem.server;
    let page = |admin: &mut Host| admin.log(0xe0, 256).data;
    let before = page(&mut admin);
    assert_eq!((before[0], before[2], u32_at(&before, 4)), (1, 64, 3));
    assert_eq!((u64_at(&before, 8), u64_at(&before, 32)), (16 * PAGE, PAGE));
    let ops = |page: &[u8]| [72, 136, 200].map(|at| u64_at(page, at));
    assert_eq!(ops(&before), [20; 3]);
    assert_eq!(admin.run(entry(0xc0, 1, &[(10, 3), (11, 4)])).status, 0);
    assert_eq!(u64_at(&page(&mut admin), 24), 4, "under way");
    server.model.with(|drive| drive.advance_moves(u64::MAX)).unwrap();
    assert_eq!(ops(&page(&mut admin)), [16, 20, 24]);
    assert_eq!(admin.run(entry(0xc0, 1, &[(10, 0), (11, 2)])).status, 0, "to the spare");
    assert_eq!(admin.run(entry(0xc0, 1, &[(10, 3), (11, 999)])).status, 0x02);
    assert_eq!(admin.run(entry(0xc0, 9, &[(10, 3), (11, 1)])).status, 0x0b);
}
