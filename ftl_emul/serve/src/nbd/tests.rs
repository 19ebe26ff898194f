//! A device behind a socket, and clients that use and abuse it.

use std::io::{Read, Write};
use std::os::fd::IntoRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::protocol::{Fields, GREETING_MAGIC, MAX_PAYLOAD_BYTES, OPTION_MAGIC, OPTION_REPLY_MAGIC, Request};
use super::protocol::{command, flag, info, option, reply, transmission};
use super::*;
use crate::descriptors::owners_of;
use crate::server::tests::{PAGE, PAGES, make, open};

const SIZE: u64 = PAGE * PAGES;

/// A device that is served until this is dropped, through the socket of namespace `a` and one for all.
struct Served {
    server: &'static Server,
    folder: tempfile::TempDir,
    stop: Option<UnixStream>,
    thread: Option<thread::JoinHandle<()>>,
}

fn served() -> Served {
    let folder = tempfile::tempdir().unwrap();
    make(folder.path(), "page", true, 8);
    let server: &'static Server = Box::leak(Box::new(open(folder.path())));
    let mut parameters = Parameters::default();
    for (name, only) in [("all.sock", None), ("a.sock", Some("a".to_owned()))] {
        let listener = UnixListener::bind(folder.path().join(name)).unwrap();
        parameters.nbd_fds.push((listener.into_raw_fd(), only));
    }
    server.descriptors.add(owners_of(&parameters)).unwrap();
    let mut nbd = Nbd::new(server, &parameters).unwrap();
    let (stop, stopped) = UnixStream::pair().unwrap();
    let thread = thread::spawn(move || {
        nbd.listen(&[stopped.as_fd()]).unwrap();
        nbd.stop();
    });
    Served { server, folder, stop: Some(stop), thread: Some(thread) }
}

impl Served {
    fn socket(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn still_serves(&self) {
        let mut client = Client::go(&self.socket("all.sock"), "b");
        client.request(command::READ, 0, 0, 512, &[]);
        assert_eq!(client.simple(), (0, 0));
        assert_eq!(client.bytes(512).len(), 512);
    }

    /// Ends it in good order.
    fn stop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Client {
    stream: UnixStream,
}

impl Client {
    fn dial(socket: &Path, flags: u32) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut client = Self { stream };
        let greeting = client.bytes(18);
        let mut fields = Fields(&greeting);
        assert_eq!((fields.u64(), fields.u64(), fields.u16()), (Some(GREETING_MAGIC), Some(OPTION_MAGIC), Some(3)));
        client.stream.write_all(&flags.to_be_bytes()).unwrap();
        client
    }

    /// In the transmission phase, with simple replies.
    fn go(socket: &Path, name: &str) -> Self {
        let mut client = Self::dial(socket, 3);
        client.option(option::GO, &about(name, &[]));
        assert_eq!(client.replies(option::GO).last().unwrap().0, reply::ACK);
        client
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn option(&mut self, kind: u32, data: &[u8]) {
        let head = [&OPTION_MAGIC.to_be_bytes()[..], &kind.to_be_bytes(), &(data.len() as u32).to_be_bytes()].concat();
        self.stream.write_all(&[&head, data].concat()).unwrap();
    }

    /// Up to the last one: kinds and data.
    fn replies(&mut self, option: u32) -> Vec<(u32, Vec<u8>)> {
        let mut replies = Vec::new();
        loop {
            let head = self.bytes(20);
            let mut fields = Fields(&head);
            assert_eq!((fields.u64(), fields.u32()), (Some(OPTION_REPLY_MAGIC), Some(option)));
            let (kind, length) = (fields.u32().unwrap(), fields.u32().unwrap());
            let data = self.bytes(length as usize);
            replies.push((kind, data));
            if kind == reply::ACK || kind >> 31 == 1 {
                return replies;
            }
        }
    }

    fn answer(&mut self, kind: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.option(kind, data);
        self.replies(kind)
    }

    /// The cookie is the offset.
    fn request(&mut self, command: u16, flags: u16, offset: u64, length: u32, data: &[u8]) {
        let head = [&0x2560_9513u32.to_be_bytes()[..], &flags.to_be_bytes(), &command.to_be_bytes()].concat();
        let place = [&offset.to_be_bytes()[..], &offset.to_be_bytes(), &length.to_be_bytes()].concat();
        self.stream.write_all(&[&head, &place, data].concat()).unwrap();
    }

    /// Error and cookie.
    fn simple(&mut self) -> (u32, u64) {
        let reply = self.bytes(16);
        let mut fields = Fields(&reply);
        assert_eq!(fields.u32(), Some(0x6744_6698));
        (fields.u32().unwrap(), fields.u64().unwrap())
    }

    /// Type and payload of the only chunk of a reply.
    fn chunk(&mut self) -> (u16, Vec<u8>) {
        let head = self.bytes(20);
        let mut fields = Fields(&head);
        assert_eq!((fields.u32(), fields.u16()), (Some(0x668e_33ef), Some(1)));
        let kind = fields.u16().unwrap();
        fields.u64().unwrap();
        let length = fields.u32().unwrap() as usize;
        (kind, self.bytes(length))
    }

    fn is_closed(&mut self) -> bool {
        matches!(self.stream.read(&mut [0]), Ok(0) | Err(_))
    }
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat()
}

/// Data of INFO and GO.
fn about(name: &str, wanted: &[u16]) -> Vec<u8> {
    let wanted: Vec<u8> = wanted.iter().flat_map(|each| each.to_be_bytes()).collect();
    [string(name), ((wanted.len() / 2) as u16).to_be_bytes().to_vec(), wanted].concat()
}

/// Data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
fn contexts(name: &str, queries: &[&str]) -> Vec<u8> {
    let count = (queries.len() as u32).to_be_bytes().to_vec();
    [string(name), count, queries.iter().flat_map(|query| string(query)).collect()].concat()
}

fn until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline);
        thread::sleep(Duration::from_millis(5));
    }
}

/// Whether any process has a socket of that name; to connect would wake the server.
fn is_open(socket: &Path) -> bool {
    std::fs::read_to_string("/proc/net/unix").unwrap().contains(&*socket.to_string_lossy())
}

#[test]
fn a_deleted_namespace_has_no_listener() {
    let served = served();
    let path = served.socket("a.sock");
    let client = Client::go(&path, "a");
    assert!(is_open(&path));
    served.server.delete_namespace(&served.server.namespace("a").unwrap()).unwrap();
    // The client that it has is served to its end, as before a stop.
    drop(client);
    until(|| !is_open(&path));
    served.still_serves();
}

#[test]
fn a_namespace_deleted_without_clients_has_no_listener() {
    let served = served();
    served.server.delete_namespace(&served.server.namespace("a").unwrap()).unwrap();
    until(|| !is_open(&served.socket("a.sock")));
    served.still_serves();
}

#[test]
fn options_are_answered_as_specified() {
    let served = served();
    let mut client = Client::dial(&served.socket("all.sock"), 3);
    let names: Vec<_> = client.answer(option::LIST, &[]).into_iter().map(|(_, data)| data).collect();
    assert_eq!(names, [string("a"), string("b"), string("c"), vec![]]);
    assert_eq!(client.answer(option::LIST, &[0])[0].0, reply::ERR_INVALID);
    assert_eq!(client.answer(99, &[1, 2, 3])[0].0, reply::ERR_UNSUP);
    assert_eq!(client.answer(99, &[0; 20 << 10])[0].0, reply::ERR_TOO_BIG);
    assert_eq!(client.answer(option::STARTTLS, &[])[0].0, reply::ERR_UNSUP);
    assert_eq!(client.answer(option::INFO, &about("nosuch", &[]))[0].0, reply::ERR_UNKNOWN);
    assert_eq!(client.answer(option::INFO, &about("", &[]))[0].0, reply::ERR_UNKNOWN, "which of them?");
    for wrong in [&b""[..], &[0, 0, 0, 9], &[0, 0, 0, 0, 0, 5], &[255, 255, 255, 255, 0, 0]] {
        assert_eq!(client.answer(option::GO, wrong)[0].0, reply::ERR_INVALID);
        assert_eq!(client.answer(option::LIST_META_CONTEXT, wrong)[0].0, reply::ERR_INVALID);
    }
    let answers = client.answer(option::INFO, &about("b", &[info::BLOCK_SIZE, info::DESCRIPTION, 77, info::NAME]));
    let mut export = Fields(&answers[0].1);
    assert_eq!((export.u16(), export.u64()), (Some(info::EXPORT), Some(SIZE)));
    let flags = export.u16().unwrap();
    assert_eq!(flags & transmission::SEND_DF, 0, "structured replies first");
    assert_eq!(answers[1].1, [&[0, 1][..], b"b"].concat());
    assert!(String::from_utf8_lossy(&answers[2].1).contains("EMULATED device d, namespace b"));
    let mut sizes = Fields(&answers[3].1);
    assert_eq!(sizes.u16(), Some(info::BLOCK_SIZE));
    assert_eq!([sizes.u32(), sizes.u32(), sizes.u32()], [Some(1), Some(4096), Some(MAX_PAYLOAD_BYTES)]);
    assert_eq!((answers[4].0, answers.len()), (reply::ACK, 5));

    assert_eq!(client.answer(option::SET_META_CONTEXT, &contexts("b", &["base:allocation"]))[0].0, reply::ERR_INVALID);
    assert_eq!(client.answer(option::STRUCTURED_REPLY, &[0])[0].0, reply::ERR_INVALID);
    assert_eq!(client.answer(option::STRUCTURED_REPLY, &[])[0].0, reply::ACK);
    for (queries, found) in
        [(&[][..], true), (&["base:"], true), (&["qemu:x", "base:allocation"], true), (&["x"], false)]
    {
        let listed = client.answer(option::LIST_META_CONTEXT, &contexts("b", queries));
        assert_eq!(listed[0].0 == reply::META_CONTEXT, found, "{queries:?}");
    }
    let set = client.answer(option::SET_META_CONTEXT, &contexts("b", &["base:"]));
    assert_eq!(set[0].0, reply::ACK, "a wildcard selects nothing");
    client.option(option::ABORT, &[]);
    assert_eq!(client.replies(option::ABORT)[0].0, reply::ACK);
    assert!(client.is_closed());
}

#[test]
fn socket_gives_access_to_its_namespace_only() {
    let served = served();
    let mut client = Client::dial(&served.socket("a.sock"), 3);
    let names: Vec<_> = client.answer(option::LIST, &[]).into_iter().map(|(_, data)| data).collect();
    assert_eq!(names, [string("a"), vec![]]);
    for other in ["b", "../a", "a\0", "A"] {
        assert_eq!(client.answer(option::GO, &about(other, &[]))[0].0, reply::ERR_UNKNOWN);
    }
    assert_eq!(client.answer(option::INFO, &about("", &[])).last().unwrap().0, reply::ACK, "the only one");
    client.option(option::EXPORT_NAME, b"b");
    assert!(client.is_closed());
}

#[test]
fn export_name_reply_has_optional_zeroes() {
    let served = served();
    for (flags, length) in [(1, 134), (3, 10)] {
        let mut client = Client::dial(&served.socket("all.sock"), flags);
        client.option(option::EXPORT_NAME, b"c");
        assert_eq!(client.bytes(length)[..8], SIZE.to_be_bytes());
        client.request(command::FLUSH, 0, 0, 0, &[]);
        assert_eq!(client.simple(), (0, 0));
        client.request(command::DISC, 0, 0, 0, &[]);
        assert!(client.is_closed());
    }
    assert!(Client::dial(&served.socket("all.sock"), 7).is_closed(), "a flag that was not offered");
}

#[test]
fn structured_replies_have_data_states_and_errors() {
    let served = served();
    let mut client = Client::dial(&served.socket("all.sock"), 3);
    client.answer(option::STRUCTURED_REPLY, &[]);
    client.answer(option::SET_META_CONTEXT, &contexts("a", &["base:allocation"]));
    let answers = client.answer(option::GO, &about("a", &[]));
    let flags = u16::from_be_bytes(answers[0].1[10..12].try_into().unwrap());
    assert_ne!(flags & transmission::SEND_DF, 0);
    let page = PAGE as u32;
    client.request(command::WRITE, flag::FUA, PAGE, page, &[7; PAGE as usize]);
    assert_eq!(client.simple(), (0, PAGE));
    client.request(command::READ, flag::DF, PAGE - 2, 4, &[]);
    assert_eq!(client.chunk(), (1, [&(PAGE - 2).to_be_bytes()[..], &[0, 0, 7, 7]].concat()));
    client.request(command::READ, 0, SIZE, 1, &[]);
    assert_eq!(client.chunk(), (1 << 15 | 1, [&22u32.to_be_bytes()[..], &[0, 0]].concat()));
    let status = |extents: &[(u32, u32)]| {
        let words = extents.iter().flat_map(|(length, state)| [*length, *state]);
        (5, [1].into_iter().chain(words).flat_map(u32::to_be_bytes).collect::<Vec<u8>>())
    };
    client.request(command::BLOCK_STATUS, 0, 0, 4 * page, &[]);
    assert_eq!(client.chunk(), status(&[(page, 3), (page, 0), (2 * page, 3)]));
    client.request(command::BLOCK_STATUS, flag::REQ_ONE, PAGE + 5, page, &[]);
    assert_eq!(client.chunk(), status(&[(page - 5, 0)]));
}

#[test]
fn context_set_for_another_export_is_not_used() {
    let served = served();
    let mut client = Client::dial(&served.socket("all.sock"), 3);
    client.answer(option::STRUCTURED_REPLY, &[]);
    client.answer(option::SET_META_CONTEXT, &contexts("a", &["base:allocation"]));
    client.answer(option::GO, &about("b", &[]));
    client.request(command::BLOCK_STATUS, 0, 0, 4096, &[]);
    assert_eq!(client.chunk().0, 1 << 15 | 1);
}

#[test]
fn invalid_request_is_refused_and_the_next_served() {
    let (invalid, no_space, too_much) = (22, 28, MAX_PAYLOAD_BYTES + 1);
    let served = served();
    let mut client = Client::go(&served.socket("a.sock"), "");
    for (command, flags, offset, length, error) in [
        (command::READ, 0, SIZE - 1, 2, invalid),
        (command::READ, 0, u64::MAX, 2, invalid),
        (command::READ, 0, 0, 0, invalid),
        (command::READ, 0, 0, too_much, invalid),
        (command::READ, flag::DF, 0, 1, invalid),
        (command::WRITE, 0, SIZE - 1, 2, no_space),
        (command::WRITE, 0, SIZE, 100 << 10, no_space),
        (command::WRITE, flag::NO_HOLE, 0, 1, invalid),
        (command::WRITE_ZEROES, 0, SIZE, 4096, no_space),
        (command::TRIM, 0, SIZE, 4096, invalid),
        (command::FLUSH, 0, 0, 1, invalid),
        (command::BLOCK_STATUS, 0, 0, 1, invalid),
        (5, 0, 0, 1, invalid),
        (999, 0, 0, 1, invalid),
    ] {
        let data = vec![1; if command == command::WRITE { length as usize } else { 0 }];
        client.request(command, flags, offset, length, &data);
        assert_eq!(client.simple(), (error, offset), "{command} {flags} {offset} {length}");
    }
    client.request(command::READ, 0, SIZE - 4, 4, &[]);
    assert_eq!((client.simple(), client.bytes(4)), ((0, SIZE - 4), vec![0; 4]));
    client.request(command::WRITE, 0, 0, too_much, &[]);
    assert!(client.is_closed());
    served.still_serves();
}

#[test]
fn data_is_stored_by_every_kind_of_write() {
    let served = served();
    let mut client = Client::go(&served.socket("a.sock"), "a");
    let mut expected = vec![0; SIZE as usize];
    let lengths = [1usize, 4096, 65_536, 65_537, 200_000];
    for (number, length) in lengths.into_iter().enumerate() {
        let offset = 1000 + number * 210_000;
        let data: Vec<u8> = (0..length).map(|at| (at % 251) as u8 ^ number as u8).collect();
        client.request(command::WRITE, 0, offset as u64, length as u32, &data);
        expected[offset..offset + length].copy_from_slice(&data);
    }
    for _ in lengths {
        assert_eq!(client.simple().0, 0);
    }
    for (command, offset, length) in [(command::WRITE_ZEROES, 1001, 5000), (command::TRIM, 220_000, 8192)] {
        client.request(command, 0, offset as u64, length as u32, &[]);
        assert_eq!(client.simple().0, 0);
        expected[offset..offset + length].fill(0);
    }
    client.request(command::READ, 0, 0, SIZE as u32, &[]);
    assert_eq!(client.simple(), (0, 0));
    assert!(client.bytes(SIZE as usize) == expected);
}

#[test]
fn client_that_reads_no_replies_does_not_block_others() {
    let mut served = served();
    let mut slow = Client::go(&served.socket("a.sock"), "a");
    for _ in 0..100 {
        slow.request(command::READ, 0, 0, 1 << 20, &[]);
    }
    for _ in 0..20 {
        served.still_serves();
    }
    let mut same = Client::go(&served.socket("a.sock"), "a");
    same.request(command::READ, 0, 0, 512, &[]);
    assert_eq!(same.simple(), (0, 0));
    drop(slow);
    served.stop();
}

#[test]
fn stop_answers_outstanding_requests() {
    let mut served = served();
    let mut client = Client::go(&served.socket("a.sock"), "a");
    for number in 0..50 {
        client.request(command::WRITE, flag::FUA, number * PAGE, PAGE as u32, &[9; PAGE as usize]);
    }
    served.stop();
    let answered: Vec<_> = (0..50).map(|_| client.simple()).collect();
    assert!(answered.iter().all(|(error, _)| *error == 0));
    assert!(client.is_closed());
}

#[test]
fn connections_per_socket_are_bounded_and_released() {
    let served = served();
    let crowd: Vec<_> = (0..MAX_CONNECTIONS).map(|_| Client::go(&served.socket("a.sock"), "a")).collect();
    let mut refused = UnixStream::connect(served.socket("a.sock")).unwrap();
    assert_eq!(refused.read(&mut [0]).unwrap(), 0);
    served.still_serves();
    drop(crowd);
    Client::go(&served.socket("a.sock"), "a");
}

/// Bytes that are right as far as they go.
fn plausible() -> impl Strategy<Value = Vec<u8>> {
    let option =
        (0..12u32, 0..70_000u32, proptest::collection::vec(any::<u8>(), 0..100)).prop_map(|(kind, length, data)| {
            [&OPTION_MAGIC.to_be_bytes()[..], &kind.to_be_bytes(), &length.to_be_bytes(), &data].concat()
        });
    let request = (any::<u16>(), 0..9u16, any::<u64>(), any::<u32>(), any::<bool>());
    let request = request.prop_map(|(flags, command, offset, length, is_within)| {
        let offset = if is_within { offset % SIZE } else { offset };
        let head = [&0x2560_9513u32.to_be_bytes()[..], &(flags & 31).to_be_bytes(), &command.to_be_bytes()].concat();
        [&head[..], &[0; 8], &offset.to_be_bytes(), &length.to_be_bytes()].concat()
    });
    proptest::collection::vec(prop_oneof![option, request, proptest::collection::vec(any::<u8>(), 0..60)], 0..20)
        .prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_leave_other_clients_served(early in plausible(), late in plausible()) {
        let served = served();
        let mut stranger = Client::dial(&served.socket("a.sock"), 3);
        // It may have been hung up on.
        let _refused = stranger.stream.write_all(&early);
        drop(stranger);
        let mut client = Client::go(&served.socket("a.sock"), "a");
        let _refused = client.stream.write_all(&late);
        drop(client);
        served.still_serves();
    }
}

#[test]
fn truncated_request_is_not_executed() {
    let served = served();
    let mut client = Client::go(&served.socket("a.sock"), "a");
    client.request(command::WRITE, 0, 0, 4096, &[1; 4095]);
    drop(client);
    let mut client = Client::go(&served.socket("a.sock"), "a");
    client.stream.write_all(&[0x25; Request::BYTES - 1]).unwrap();
    drop(client);
    let mut client = Client::go(&served.socket("a.sock"), "a");
    client.request(command::READ, 0, 0, 4096, &[]);
    assert_eq!((client.simple(), client.bytes(4096)), ((0, 0), vec![0; 4096]));
}

#[test]
fn memory_of_exports_without_connections_is_not_kept() {
    let folder = tempfile::tempdir().unwrap();
    make(folder.path(), "page", true, 8);
    let server: &'static Server = Box::leak(Box::new(open(folder.path())));
    let front = Nbd::new(server, &Parameters::default()).unwrap().front();
    let held = front.rooms_of("a");
    for number in 0..10 {
        drop(front.rooms_of(&format!("deleted{number}")));
    }
    assert!(Arc::ptr_eq(&held, &front.rooms_of("a")), "connections of one export share it");
    assert_eq!(front.rooms.lock().unwrap().len(), 1);
}
