//! Hosts that break the protocol, or send anything.

use std::io::Write;

use proptest::prelude::*;

use super::*;

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
    // Any host could delete the namespace that is read, if the operator allowed it.
    let served = served_with(Permissions { namespaces: false, ops: true });
    let (_admin, id) = served.admin(false, false);
    send_anything(&served);
    assert!(served.subsystem.controller(id).is_some());
    served.still_serves();
    until("all others are gone", || served.subsystem.controller_count() == 1);
}

#[test]
fn any_bytes_leave_other_hosts_connected_where_namespaces_may_be_deleted() {
    let served = served();
    let (mut admin, _id) = served.admin(false, false);
    send_anything(&served);
    assert_eq!(admin.identify(1, 0).status, 0);
    until("all others are gone", || served.subsystem.controller_count() == 1);
}

/// Hosts that send almost valid commands, then noise, and disconnect.
fn send_anything(served: &Served) {
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
}

#[test]
fn connections_that_nobody_has_connected_do_not_keep_hosts_out() {
    let served = served();
    let (mut admin, id) = served.admin(false, false);
    let crowd: Vec<TcpStream> =
        (0..2 * NVME_CONNECTIONS).map(|_| TcpStream::connect(served.address).unwrap()).collect();
    served.still_serves();
    assert_eq!(served.io(id, 1, false, false).run(blocks(2, 1, 0, 1)).status, 0);
    drop(crowd);

    // A host that continues to send is disconnected as well.
    let mut slow = TcpStream::connect(served.address).unwrap();
    let began = Instant::now();
    let initialize = [0, 0, 128, 0, 128, 0, 0, 0].into_iter().chain([0; 120]);
    let ended = initialize.into_iter().find(|&byte| {
        thread::sleep(Duration::from_millis(250));
        slow.write_all(&[byte]).is_err()
    });
    assert!(ended.is_some(), "it is still connected");
    assert!(began.elapsed() > connection::STALLED / 2);
    assert_eq!(admin.identify(1, 0).status, 0);
}
