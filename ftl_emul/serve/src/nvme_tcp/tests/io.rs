//! The NVM Command Set on namespaces that are served over NBD as well.

use std::io::Write;

use ftl_core::Op;

use super::*;
use crate::namespace::Flags;

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
fn capsules_are_the_same_whole_and_in_parts() {
    let served = served();
    let (_admin, id) = served.admin(false, false);
    for (queue, data_digest) in [(1, false), (2, true)] {
        let mut io = served.io(id, queue, false, data_digest);
        // More than is read at once, so that some are cut; the second time, all of them are.
        for (round, piece) in [usize::MAX, 1000].into_iter().enumerate() {
            let seed = queue as u8 * 2 + round as u8;
            let data = pattern(40 * 4096, seed);
            let mut capsules = Vec::new();
            for (number, part) in data.chunks(4096).enumerate() {
                io.damages_data = data_digest && number == 7;
                capsules.extend(io.capsule(blocks(1, 1, number as u64 * 8, 8), part));
            }
            let before = served.data(0, 7 * 4096, 4096);
            for part in capsules.chunks(piece) {
                io.stream.write_all(part).unwrap();
            }
            let failed = (0..40).map(|_| io.answer(&[]).status).filter(|&status| status != 0).collect::<Vec<_>>();
            let found = served.data(0, 0, data.len());
            if data_digest {
                assert_eq!(failed, [0x22], "transient transport error");
                assert_eq!(found[7 * 4096..8 * 4096], before);
            } else {
                assert!(failed.is_empty());
                assert_eq!(found[7 * 4096..8 * 4096], data[7 * 4096..8 * 4096]);
            }
            assert!(found[..7 * 4096] == data[..7 * 4096] && found[8 * 4096..] == data[8 * 4096..]);
        }
    }
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
fn small_requests_sent_at_once_are_each_answered_with_their_own_data() {
    let served = served();
    for (seed, digests) in [(1, false), (2, true)] {
        let (_admin, id) = served.admin(digests, digests);
        let mut io = served.io(id, 1, digests, digests);
        let page = |number: u64| pattern(PAGE as usize, seed ^ (number as u8) << 3);
        let written: Vec<u16> = (0..8).map(|number| io.submit(blocks(1, 1, number * 8, 8), &page(number))).collect();
        for id in written {
            let answer = io.answer(&[]);
            assert_eq!((answer.id, answer.status), (id, 0));
        }
        // Before the first answer is taken. After those: a hole, a range beyond the end, and one of a missing
        // namespace.
        let reads = [(1, 7), (1, 0), (1, 3), (1, 300), (1, PAGES), (1, 5), (9, 0), (1, 6)];
        let submitted = reads.map(|(namespace, number)| {
            let read = with_host_data(blocks(2, namespace, number * 8, 8), PAGE as usize);
            (io.submit(read, &[]), number)
        });
        let mut answers: Vec<_> = reads.iter().map(|_| io.answer(&[])).collect();
        answers.sort_by_key(|answer| answer.id);
        for (((id, number), answer), (namespace, _)) in submitted.iter().zip(answers).zip(reads) {
            let (status, data) = match (namespace, *number) {
                (1, PAGES) => (0x80, Vec::new()),
                (1, 300) => (0, vec![0; PAGE as usize]),
                (1, number) => (0, page(number)),
                _ => (0x02, Vec::new()),
            };
            assert_eq!((answer.id, answer.status), (*id, status), "page {number}");
            assert_eq!(answer.data, data, "page {number}");
        }
    }
}
