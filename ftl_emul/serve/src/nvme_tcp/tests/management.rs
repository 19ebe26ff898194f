//! Namespaces that hosts create, attach and delete, and their visibility to several hosts.

use super::*;

/// The host's data for a new namespace of this many blocks.
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
    assert_eq!((made.status, made.result), (0, 4), "not the number of the namespace that was deleted");

    // Allocated, but not attached.
    assert_eq!(u32_at(&admin.identify(0x10, 3).data, 0), 4);
    assert_eq!(u32_at(&admin.identify(2, 3).data, 0), 0);
    assert_eq!(u64_at(&admin.identify(0x11, 4).data, 0), BLOCKS / 2);
    assert_eq!(admin.identify(0, 4).data, [0; 4096]);
    assert_eq!(admin.identify(0x12, 4).data[..2], [0, 0]);
    assert_eq!(io.run(blocks(2, 4, 0, 1)).status, 0x02);
    assert_eq!(attach(&mut admin, 4, 1, &[id]), 0x11a);
    assert_eq!(attach(&mut admin, 4, 0, &[]), 0x11c);
    assert_eq!(attach(&mut admin, 4, 0, &[id + 1]), 0x11c);
    let notice = admin.submit(entry(0x0c, 0, &[]), &[]);
    assert_eq!(with_notice(&mut admin, notice, entry(0x15, 4, &[]), &controllers(&[id])), 0);
    assert_eq!(admin.log(4, 4096).data[0], 4);
    assert_eq!(attach(&mut admin, 4, 0, &[id]), 0x118);
    assert_eq!(admin.identify(0x12, 4).data[..4], [1, 0, id as u8, 0]);
    assert_eq!(io.run_with(blocks(1, 4, 0, 8), &[5; 4096]).status, 0);
    assert_eq!(io.run(blocks(2, 4, 0, 8)).data, [5; 4096]);
    assert_eq!(io.run_with(blocks(1, 2, 0, 8), &[6; 4096]).status, 0x02, "a host that has not noticed the deletion");

    // A connection of the same host finds it attached; so does the next start.
    let (mut again, other) = served.admin(false, false);
    assert_eq!(u64_at(&again.identify(0, 4).data, 0), BLOCKS / 2);
    assert_eq!(attach(&mut admin, 4, 1, &[id, other]), 0);
    assert_eq!(again.identify(0, 4).data, [0; 4096]);
    assert_eq!(io.run(blocks(2, 4, 0, 8)).status, 0x02);
    assert_eq!(attach(&mut admin, 1, 1, &[id]), 0, "one of device.toml");
    assert_eq!(u32_at(&admin.identify(2, 0).data, 0), 3);

    let commands = |admin: &mut Host| [64, 80].map(|at| u64_at(&admin.log(2, 512).data, at));
    let before = commands(&mut admin);
    assert_eq!(admin.run(entry(0x0d, u32::MAX, &[(10, 1)])).status, 0);
    assert_eq!((before, commands(&mut admin)), ([1, 1], before), "read and write commands of namespaces that are gone");
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
fn hosts_have_namespaces_and_notices_of_their_own() {
    let served = served();
    let (mut first, one) = served.admin(false, false);
    let (mut second, other) = served.admin_of("nqn.2026-11.org.example:second");
    let mut io = served.io(one, 1, false, false);
    let mut its_io = Host::dial(served.address, false, false);
    its_io.nqn = "nqn.2026-11.org.example:second";
    assert_eq!(its_io.connect(1, one, &served.subsystem.nqn, 0).status, 0x184, "the controller of another host");
    let mut its_io = Host::dial(served.address, false, false);
    its_io.nqn = "nqn.2026-11.org.example:second";
    assert_eq!(its_io.connect(1, other, &served.subsystem.nqn, 0).status, 0);
    let [notice, its_notice] = [&mut first, &mut second].map(|admin| {
        assert_eq!(admin.run(entry(9, 0, &[(10, 0x0b), (11, 1 << 8)])).status, 0);
        admin.submit(entry(0x0c, 0, &[]), &[])
    });

    // Detached from one host: only that one is notified.
    let detach = entry(0x15, 2, &[(10, 1)]);
    assert_eq!(with_notice(&mut first, notice, detach, &controllers(&[one])), 0);
    let attached = |admin: &mut Host| {
        let data = admin.identify(2, 0).data;
        [0, 4, 8].map(|at| u32_at(&data, at))
    };
    assert_eq!((attached(&mut first), attached(&mut second)), ([1, 3, 0], [1, 2, 3]));
    assert_eq!(first.log(4, 4096).data[..8], [2, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(second.log(4, 4096).data[..8], [0; 8]);
    assert_eq!(first.identify(0x12, 2).data[..4], [1, 0, other as u8, 0]);
    assert_eq!(first.identify(0x13, 0).data[..6], [2, 0, one as u8, 0, other as u8, 0]);
    assert_eq!(io.run(blocks(2, 2, 0, 8)).status, 0x02);
    assert_eq!(its_io.run_with_capsule(blocks(1, 2, 0, 8), &[6; 4096]).status, 0);
    // Settings of the shared namespace apply to both.
    assert_eq!(its_io.run_with_capsule(blocks(1, 1, 0, 8), &[7; 4096]).status, 0);
    assert_eq!(io.run(blocks(2, 1, 0, 8)).data, [7; 4096]);

    // Deleted for all: both are notified.
    let again = first.submit(entry(0x0c, 0, &[]), &[]);
    assert_eq!(with_notice(&mut first, again, entry(0x0d, 3, &[(10, 1)]), &[]), 0);
    let told = second.answer(&[]);
    assert_eq!((told.id, told.result), (its_notice, 0x0004_0002));
    assert_eq!(second.log(4, 4096).data[..8], [3, 0, 0, 0, 0, 0, 0, 0]);

    // A host that disconnects does not affect others.
    drop((first, io));
    until("its controller is gone", || served.subsystem.controller(one).is_none());
    assert_eq!(its_io.run(blocks(2, 2, 0, 8)).data, [6; 4096]);
}

#[test]
fn host_that_does_not_read_delays_no_notice_to_others() {
    let served = served();
    let (mut first, _) = served.admin(false, false);
    let (mut second, _) = served.admin_of("nqn.2026-11.org.example:second");
    let [_, its_notice] = [&mut first, &mut second].map(|admin| {
        assert_eq!(admin.run(entry(9, 0, &[(10, 0x0b), (11, 1 << 8)])).status, 0);
        admin.submit(entry(0x0c, 0, &[]), &[])
    });
    // More answers than the buffers of the connection have room for.
    for _ in 0..4096 {
        first.submit(with_host_data(entry(0x06, 0, &[(10, 1)]), 4096), &[]);
    }

    second.stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    assert_eq!(with_notice(&mut second, its_notice, entry(0x0d, 3, &[(10, 1)]), &[]), 0);
}
