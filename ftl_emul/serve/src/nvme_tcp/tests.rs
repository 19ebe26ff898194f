//! A device on a port of this machine, and hosts that use and abuse it.

mod host;
mod io;
mod logs;
mod management;
mod violations;

use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::*;
use crate::nvme_tcp::command::{Command, Transfer};
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
        self.enabled(Host::dial(self.address, header_digest, data_digest))
    }

    /// The Admin Queue of another host.
    fn admin_of(&self, nqn: &'static str) -> (Host, u16) {
        let mut admin = Host::dial(self.address, false, false);
        admin.nqn = nqn;
        self.enabled(admin)
    }

    fn enabled(&self, mut admin: Host) -> (Host, u16) {
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

    /// Contents as NBD clients would read them.
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

    // Number of queues, for any request.
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
fn identify_describes_namespaces_controllers_and_what_is_supported() {
    let served = served();
    let (mut admin, id) = served.admin(false, false);
    let of_set = |admin: &mut Host, structure: u32, namespace: u32, set: u32| {
        admin.run(entry(0x06, namespace, &[(10, structure), (11, set << 24)]))
    };
    let list = |data: &[u8]| [0, 4, 8, 12].map(|at| u32_at(data, at));
    // Namespaces of the NVM Command Set, attached and allocated; there is no other set.
    for structure in [0x07, 0x1a] {
        assert_eq!(list(&of_set(&mut admin, structure, 0, 0).data), [1, 2, 3, 0], "{structure:#x}");
        assert_eq!(list(&of_set(&mut admin, structure, 1, 0).data), [2, 3, 0, 0], "{structure:#x}");
    }
    for structure in [0x05, 0x06, 0x07, 0x1a, 0x1b] {
        assert_eq!(of_set(&mut admin, structure, 1, 2).status, 0x02, "zoned: {structure:#x}");
        assert_eq!(of_set(&mut admin, structure, 1, 0).status, 0, "{structure:#x}");
    }
    assert_eq!(of_set(&mut admin, 0x1b, 4, 0).status, 0x0b);
    assert_eq!(admin.identify(0x11, 4).status, 0x0b);

    // Sizes of writes: a page is best, and a page on each of two dies at once. They are of every namespace.
    let namespace = admin.identify(0, 2).data;
    assert_eq!(namespace[24] >> 4 & 1, 1, "NPWG, NPWA, NPDG, NPDA and NOWS count");
    let blocks_at = |at: usize| u64::from(u16::from_le_bytes([namespace[at], namespace[at + 1]])) + 1;
    assert_eq!([64, 66, 68, 70, 72].map(|at| blocks_at(at) * 512), [PAGE, PAGE, PAGE, PAGE, 2 * PAGE]);
    let common = admin.identify(0, u32::MAX).data;
    assert_eq!((u64_at(&common, 0), &common[64..74]), (0, &namespace[64..74]));
    let granularity = admin.identify(0x16, 0).data;
    assert_eq!((u64_at(&granularity, 32), u64_at(&granularity, 40)), (PAGE, PAGE));

    let controllers = |admin: &mut Host, structure: u32, from: u32| {
        let data = admin.run(entry(0x06, 1, &[(10, structure | from << 16)])).data;
        (data[0], data[2])
    };
    for structure in [0x12, 0x13] {
        assert_eq!(controllers(&mut admin, structure, 0), (1, id as u8), "{structure:#x}");
        assert_eq!(controllers(&mut admin, structure, u32::from(id) + 1), (0, 0), "{structure:#x}");
    }
    let uuids = admin.identify(0x17, 0).data;
    assert_eq!(uuids[48..52], [0xc1, 0x94, 0xd5, 0x5b], "OCP");
    assert_ne!(uuids[80..96], [0; 16]);
    assert_eq!(uuids[112..128], [0; 16], "two");
    assert_eq!(admin.identify(0x19, 0).data[..4], [1, 0, 1, 0], "one endurance group");
    assert_eq!(admin.run(entry(0x06, 0, &[(10, 0x19), (11, 2)])).data[..4], [0; 4]);
    let command_sets = |admin: &mut Host, of: u32| admin.run(entry(0x06, 0, &[(10, 0x1c | of << 16)]));
    assert_eq!(command_sets(&mut admin, 0xffff).data[..8], [1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(command_sets(&mut admin, u32::from(id)).data[0], 1);
    assert_eq!(command_sets(&mut admin, u32::from(id) + 1).status, 0x02);
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
    let mut forger = Host::dial(served.address, false, false);
    forger.nqn = "nqn.2026-11.org.example:a\nslo-ctl: another line of the log";
    let forged = forger.connect(0, 0xffff, &served.subsystem.nqn, 0);
    assert_eq!((forged.status, forged.result), (0x182, 0x1_0200), "HOSTNQN");
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
    for _ in 0..3 {
        let mut silent = Host::dial(served.address, false, false);
        assert_eq!(silent.connect(0, 0xffff, &served.subsystem.nqn, 200).status, 0);
        assert_eq!(silent.stream.read(&mut [0]).unwrap(), 0);
        until("the controller is gone", || served.subsystem.controller_count() == 0);
    }
    assert_eq!(served.subsystem.not_heard.left_out(), 2, "hosts that come again and again do not fill the log");

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
    // Without its Admin Queue the controller is gone.
    let mut last = served.io(id, 3, false, false);
    drop(admin);
    assert_eq!(last.stream.read(&mut [0]).unwrap(), 0);
    until("the controller is gone", || served.subsystem.controller_count() == 0);
}

#[test]
fn host_whose_command_takes_long_keeps_its_controller() {
    let served = served();
    let mut admin = Host::dial(served.address, false, false);
    let connected = admin.connect(0, 0xffff, &served.subsystem.nqn, 300);
    assert_eq!((connected.status, admin.configure(ENABLE).status), (0, 0));
    let smart = served.subsystem.server.model.with(|_| {
        let smart = admin.submit(with_host_data(entry(0x02, u32::MAX, &[(10, 2 | 127 << 16)]), 512), &[]);
        for _ in 0..15 {
            thread::sleep(Duration::from_millis(100));
            admin.submit(entry(0x18, 0, &[]), &[]);
        }
        smart
    });
    let answer = admin.answer(&[]);
    assert_eq!((answer.id, answer.status), (smart.unwrap(), 0));
    assert!((0..15).all(|_| admin.answer(&[]).status == 0));
}

#[test]
fn expired_keep_alive_timeout_is_noticed_until_its_connections_are_ended_only() {
    let served = served();
    let mut silent = Host::dial(served.address, false, false);
    assert_eq!(silent.connect(0, 0xffff, &served.subsystem.nqn, 3_600_000).status, 0);
    let (controller, now) = (served.subsystem.controller(1).unwrap(), Instant::now());
    let later = now + Duration::from_secs(7200);
    assert!(!controller.is_forsaken(now));
    assert!(controller.is_forsaken(later));
    controller.end();
    assert!(!controller.is_forsaken(later));
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
    let mut late = TcpStream::connect(served.address).unwrap();
    assert_eq!(late.read(&mut [0]).unwrap(), 0);
    assert_eq!(served.data(0, 0, 256 << 10), data);
}

#[test]
fn commands_not_begun_can_be_aborted_unless_their_data_is_on_its_way() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut host = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let queue = queue::Queue::new(listener.accept().unwrap().0, &Arc::default()).unwrap();
    queue.set(1, 32, false);
    let submit = |id: u16, from_host: usize| {
        let mut command = blocks(if from_host > 0 { 1 } else { 2 }, 1, 0, 1);
        command[2..4].copy_from_slice(&id.to_le_bytes());
        let command = Command(command);
        assert!(queue.take(&command).is_ok());
        let transfer = Transfer { from_host, to_host: 0 };
        queue.admit(queue::Work::new(command, transfer, Vec::new(), None)).unwrap();
    };
    let mut received = |bytes: usize| {
        let mut pdu = vec![0; bytes];
        host.read_exact(&mut pdu).unwrap();
        pdu
    };
    // No thread takes this one. These are asked for their data, as much as there is memory for; the last one waits for that.
    submit(1, 0);
    for id in [2, 3, 4] {
        submit(id, 1 << 20);
    }
    for id in [2, 3] {
        let asked = received(24);
        assert_eq!((asked[0], asked[8]), (9, id));
    }
    for (id, is_aborted) in [(1, true), (2, false), (3, false), (4, true), (1, false), (5, false)] {
        assert_eq!(queue.abort(id).unwrap(), is_aborted, "{id}");
        if is_aborted {
            let answer = received(24);
            assert_eq!((answer[0], answer[20], answer[22]), (5, id as u8, 0x07 << 1), "{id}");
        }
    }
    submit(1, 0);
    assert!(queue.ready_now(|_| true).is_some(), "its identifier is free again");
}
