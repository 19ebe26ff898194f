//! Log pages, held against the counters of the model.

use ftl_core::TenantId;

use super::*;

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

#[test]
fn smart_counts_by_namespace_what_the_device_counts_in_all() {
    let served = served();
    let (mut admin, id) = served.admin(false, false);
    let mut io = served.io(id, 1, false, false);
    // 512,000 bytes are a unit.
    for page in 0..200 {
        assert_eq!(io.run_with_capsule(blocks(1, 2, page * 8, 8), &[1; 4096]).status, 0);
    }
    assert_eq!(io.run(blocks(2, 2, 0, 8)).status, 0);
    let smart = |admin: &mut Host, namespace: u32| {
        let data = admin.run(entry(2, namespace, &[(10, 2 | 127 << 16)])).data;
        // Units read and written, read and write commands.
        [32, 48, 64, 80].map(|at| u64_at(&data, at))
    };
    assert_eq!(smart(&mut admin, 1), [0, 0, 0, 0]);
    assert_eq!(smart(&mut admin, 2), [1, (200 * PAGE).div_ceil(512_000), 1, 200]);
    assert_eq!(smart(&mut admin, 3), [0, 0, 0, 0]);
    assert_eq!(smart(&mut admin, u32::MAX), [1, (200 * PAGE).div_ceil(512_000), 1, 200]);
    assert_eq!(admin.run(entry(2, 4, &[(10, 2 | 127 << 16)])).status, 0x0b);
}
