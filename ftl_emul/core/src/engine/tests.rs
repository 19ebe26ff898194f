use super::moves::DEFAULT_MOVE_BUDGET;
use super::*;
use crate::address::DieId;
use crate::geometry::{NandTiming, preset};
use crate::mapping::Placement;
use crate::mapping::page::{PageMapping, PageMappingOptions};
use crate::op::Op;
use crate::victim::below;
use rand_core::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

const FOREVER: Until = Until { time_ns: u64::MAX, host_page_writes: u64::MAX };

fn device(dies: u32, model: TimingModel, policy: SchedulerPolicy) -> (PageMapping, Engine) {
    device_with(preset("fast15").unwrap().timing, dies, model, policy)
}

fn device_with(timing: NandTiming, dies: u32, model: TimingModel, policy: SchedulerPolicy) -> (PageMapping, Engine) {
    let geometry = Geometry {
        page_bytes: 4096,
        pages_per_block: 128,
        blocks_per_die: 800,
        channels: dies,
        dies_per_channel: 1,
        planes: 1,
    };
    let mapping = PageMapping::new(geometry, PageMappingOptions::default()).unwrap();
    let costs = PageCosts::new(&geometry, &timing, model);
    (mapping, Engine::new(&geometry, costs, policy, None))
}

fn random_writes(engine: &mut Engine, mapping: &PageMapping, tenant: TenantId, n: usize, seed: u64) {
    let pages = mapping.pages(tenant);
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let offsets: Vec<u64> = (0..n).map(|_| below(&mut rng, pages) * 4096).collect();
    engine.feed(mapping, tenant, &vec![0; n], &vec![1; n], &offsets, &vec![4096; n]).unwrap();
}

#[test]
fn a_lone_write_takes_transfer_and_program() {
    let (mut mapping, mut engine) = device(4, TimingModel::Paper, SchedulerPolicy::Fifo);
    let tenant = mapping.create_tenant(1000, Placement::Isolated, 40).unwrap();
    engine.open_queue(tenant, Arrival::Closed { queue_depth: 1 }).unwrap();
    engine.feed(&mapping, tenant, &[0, 0], &[1, 0], &[0, 0], &[4096, 4096]).unwrap();
    engine.end_input(tenant).unwrap();
    assert_eq!(engine.run(&mut mapping, FOREVER), Stopped::Idle);
    // 902 us for the write, 162 us for the read of the same page.
    assert_eq!(engine.now_ns(), 902_000 + 162_000);
    let counters = engine.counters(tenant).unwrap();
    assert_eq!((counters.completed[0], counters.completed[1]), (1, 1));
    assert_eq!((counters.read_bytes, counters.write_bytes), (4096, 4096));
}

#[test]
fn requests_of_length_0_touch_no_page() {
    let (mut mapping, mut engine) = device(1, TimingModel::Paper, SchedulerPolicy::Fifo);
    // A whole segment of the name space, so that the page after the last one does not exist.
    let tenant = mapping.create_tenant(1024, Placement::Isolated, 40).unwrap();
    engine.open_queue(tenant, Arrival::Closed { queue_depth: 1 }).unwrap();
    let (all, end) = (1024 * 4096, 1024 * 4096);
    engine.feed(&mapping, tenant, &[0; 5], &[1, 3, 2, 3, 2], &[0, 0, 0, end, end], &[all, 0, 0, 0, 0]).unwrap();
    engine.end_input(tenant).unwrap();
    assert_eq!(engine.run(&mut mapping, FOREVER), Stopped::Idle);
    assert_eq!(mapping.space(tenant).unwrap().mapped_pages, 1024);
}

#[test]
fn one_outstanding_write_gives_the_iops_of_equation_1() {
    for (model, copy_us, erase_us) in
        [(TimingModel::Paper, 800.0, 0.0), (TimingModel::Full { copyback: true }, 860.0, 1500.0)]
    {
        let (mut mapping, mut engine) = device(2, model, SchedulerPolicy::Fifo);
        let tenant = mapping.create_tenant(128 * 1200, Placement::Isolated, 300).unwrap();
        crate::preconditioning::precondition(&mut mapping, 3, |_| true);
        engine.open_queue(tenant, Arrival::Closed { queue_depth: 1 }).unwrap();
        let before = mapping.counters(tenant).unwrap().clone();
        random_writes(&mut engine, &mapping, tenant, 300_000, 4);
        engine.end_input(tenant).unwrap();
        assert_eq!(engine.run(&mut mapping, FOREVER), Stopped::Idle);
        let after = mapping.counters(tenant).unwrap();
        let victims = (after.victims - before.victims) as f64;
        let u = (after.victim_valid_pages - before.victim_valid_pages) as f64 / (victims * 128.0);
        let us_per_write = 102.0 + 800.0 + u / (1.0 - u) * copy_us + erase_us / (128.0 * (1.0 - u));
        let measured = engine.now_ns() as f64 / 1000.0 / 300_000.0;
        assert!((measured / us_per_write - 1.0).abs() < 0.01, "{measured} us, equation {us_per_write} us");
    }
}

#[test]
fn weighted_fair_queueing_divides_device_time_by_weight() {
    let (mut mapping, mut engine) = device(4, TimingModel::Full { copyback: true }, SchedulerPolicy::WeightedFair);
    let tenants: Vec<TenantId> =
        (0..3).map(|_| mapping.create_tenant(128 * 500, Placement::Isolated, 150).unwrap()).collect();
    crate::preconditioning::precondition(&mut mapping, 3, |_| true);
    for (i, &tenant) in tenants.iter().enumerate() {
        engine.open_queue(tenant, Arrival::Closed { queue_depth: 16 }).unwrap();
        engine.set_weight(tenant, [1.0, 3.0, 6.0][i]).unwrap();
        random_writes(&mut engine, &mapping, tenant, 400_000, i as u64);
    }
    let stopped = engine.run(&mut mapping, Until { time_ns: 60_000_000_000, host_page_writes: u64::MAX });
    assert_eq!(stopped, Stopped::Time);
    let time: Vec<f64> = tenants.iter().map(|&t| engine.counters(t).unwrap().device_ns as f64).collect();
    let total: f64 = time.iter().sum();
    for (share, wanted) in time.iter().map(|t| t / total).zip([0.1, 0.3, 0.6]) {
        assert!((share / wanted - 1.0).abs() < 0.03, "{share} of the device, wanted {wanted}");
    }
}

#[test]
fn weights_hold_after_more_service_than_tags_have_room_for() {
    let (mut mapping, mut engine) = device(4, TimingModel::Full { copyback: true }, SchedulerPolicy::WeightedFair);
    let tenants: Vec<TenantId> =
        (0..2).map(|_| mapping.create_tenant(128 * 500, Placement::Isolated, 150).unwrap()).collect();
    for (i, &tenant) in tenants.iter().enumerate() {
        engine.open_queue(tenant, Arrival::Closed { queue_depth: 16 }).unwrap();
        // As with weights of 1 and 3 after a million times as long.
        engine.set_weight(tenant, [1e-6, 3e-6][i]).unwrap();
        random_writes(&mut engine, &mapping, tenant, 200_000, i as u64);
    }
    let mut served = |seconds: u64| {
        let until = Until { time_ns: seconds * 1_000_000_000, host_page_writes: u64::MAX };
        assert_eq!(engine.run(&mut mapping, until), Stopped::Time);
        [0, 1].map(|i| engine.counters(tenants[i]).unwrap().device_ns as f64)
    };
    let (before, after) = (served(25), served(35));
    let got = [0, 1].map(|i| after[i] - before[i]);
    let share = got[1] / (got[0] + got[1]);
    assert!((share - 0.75).abs() < 0.03, "{share}");
}

#[test]
fn new_scheduler_serves_requests_already_waiting() {
    let (mut mapping, mut engine) = device(4, TimingModel::Full { copyback: true }, SchedulerPolicy::Fifo);
    let weights = [1.0, 3.0];
    let tenants: Vec<TenantId> =
        weights.iter().map(|_| mapping.create_tenant(128 * 500, Placement::Isolated, 150).unwrap()).collect();
    for (i, &tenant) in tenants.iter().enumerate() {
        engine.open_queue(tenant, Arrival::Closed { queue_depth: 16 }).unwrap();
        engine.set_weight(tenant, weights[i]).unwrap();
        random_writes(&mut engine, &mapping, tenant, 60_000, i as u64);
        engine.end_input(tenant).unwrap();
    }
    let mut shares = Vec::new();
    let mut before = [0, 0];
    for (second, policy) in
        [SchedulerPolicy::Fifo, SchedulerPolicy::WeightedFair, SchedulerPolicy::RoundRobin].into_iter().enumerate()
    {
        engine.set_scheduler(policy);
        assert_eq!(engine.scheduler(), policy);
        let until = Until { time_ns: (second as u64 + 1) * 2_000_000_000, host_page_writes: u64::MAX };
        assert_eq!(engine.run(&mut mapping, until), Stopped::Time);
        let now = [0, 1].map(|i| engine.counters(tenants[i]).unwrap().device_ns);
        let got = [0, 1].map(|i| (now[i] - before[i]) as f64);
        shares.push(got[1] / (got[0] + got[1]));
        before = now;
    }
    for (share, wanted) in shares.iter().zip([0.5, 0.75, 0.5]) {
        assert!((share - wanted).abs() < 0.03, "{shares:?}");
    }
    // No waiting request was lost.
    assert_eq!(engine.run(&mut mapping, FOREVER), Stopped::Idle);
    for &tenant in &tenants {
        assert_eq!(engine.counters(tenant).unwrap().completed[1], 60_000);
    }
}

#[test]
fn results_do_not_depend_on_how_input_is_split() {
    let run = |chunk: usize| {
        let (mut mapping, mut engine) = device(3, TimingModel::Full { copyback: true }, SchedulerPolicy::RoundRobin);
        let tenants: Vec<TenantId> =
            (0..2).map(|_| mapping.create_tenant(128 * 300, Placement::Shared, 60).unwrap()).collect();
        let mut left = [0usize; 2];
        for &t in &tenants {
            engine.open_queue(t, Arrival::Closed { queue_depth: 3 }).unwrap();
        }
        let offsets: Vec<u64> = {
            let mut rng = Xoshiro256PlusPlus::seed_from_u64(5);
            (0..40_000).map(|_| below(&mut rng, 128 * 300 - 4) * 4096 + 512).collect()
        };
        loop {
            match engine.run(&mut mapping, FOREVER) {
                Stopped::Starved(hungry) => {
                    for t in hungry {
                        let from = left[t.0 as usize];
                        let to = (from + chunk).min(offsets.len());
                        let n = to - from;
                        engine.feed(&mapping, t, &vec![0; n], &vec![1; n], &offsets[from..to], &vec![9000; n]).unwrap();
                        left[t.0 as usize] = to;
                        if to == offsets.len() {
                            engine.end_input(t).unwrap();
                        }
                    }
                }
                Stopped::Idle => break,
                other => panic!("{other:?}"),
            }
        }
        let counters: Vec<_> = tenants.iter().map(|&t| mapping.counters(t).unwrap().clone()).collect();
        (engine.now_ns(), counters)
    };
    assert_eq!(run(40_000), run(777));
}

#[test]
fn a_limit_is_delivered_exactly_and_lifted() {
    let (mut mapping, mut engine) = device(4, TimingModel::Paper, SchedulerPolicy::Fifo);
    let tenant = mapping.create_tenant(128 * 500, Placement::Isolated, 150).unwrap();
    engine.open_queue(tenant, Arrival::Closed { queue_depth: 4 }).unwrap();
    engine.set_limit(tenant, Limit { iops: Some(200.0), bytes_s: None }).unwrap();
    random_writes(&mut engine, &mapping, tenant, 100_000, 1);
    engine.run(&mut mapping, Until { time_ns: 10_000_000_000, host_page_writes: u64::MAX });
    let done = engine.counters(tenant).unwrap().completed[1];
    assert!((1990..=2010).contains(&done), "{done} of 2000");
    engine.set_limit(tenant, Limit::default()).unwrap();
    engine.run(&mut mapping, Until { time_ns: 11_000_000_000, host_page_writes: u64::MAX });
    let unlimited = engine.counters(tenant).unwrap().completed[1] - done;
    assert!(unlimited > 4000, "{unlimited} in a second without a limit");
}

/// A tenant with a thousand requests outstanding that has been at a limit for a time, and another without one.
fn after_a_limit(policy: SchedulerPolicy, iops: f64, queue_depth: u32) -> (PageMapping, Engine, [TenantId; 2]) {
    let (mut mapping, mut engine, tenants) = two_tenants(policy, 150);
    for (tenant, queue_depth) in tenants.into_iter().zip([1000, queue_depth]) {
        engine.open_queue(tenant, Arrival::Closed { queue_depth }).unwrap();
        random_writes(&mut engine, &mapping, tenant, 100_000, u64::from(tenant.0));
    }
    engine.set_limit(tenants[0], Limit { iops: Some(iops), bytes_s: None }).unwrap();
    engine.run(&mut mapping, Until { time_ns: 20_000_000_000, host_page_writes: u64::MAX });
    (mapping, engine, tenants)
}

#[test]
fn backlog_of_a_lifted_limit_does_not_starve_others() {
    // With many requests of the other, the limit is lifted while a request that it has let go waits for its turn.
    for queue_depth in [8, 500] {
        let (mut mapping, mut engine, tenants) = after_a_limit(SchedulerPolicy::WeightedFair, 10.0, queue_depth);
        engine.set_limit(tenants[0], Limit::default()).unwrap();
        let share = share_of_half_a_second(&mut mapping, &mut engine, tenants);
        assert!((share - 0.5).abs() < 0.05, "{share} of the device after the limit");
    }
}

#[test]
fn requests_that_a_limit_lets_go_stand_behind_those_that_wait() {
    let (mut mapping, mut engine, tenants) = after_a_limit(SchedulerPolicy::Fifo, 10.0, 500);
    engine.set_limit(tenants[0], Limit::default()).unwrap();
    let share = share_of_half_a_second(&mut mapping, &mut engine, tenants);
    assert!(share > 0.8, "{share} of the device for the 500 that had waited");

    let (_, engine, tenants) = after_a_limit(SchedulerPolicy::Fifo, 200.0, 64);
    let waits = tenants.map(|tenant| {
        let counters = engine.counters(tenant).unwrap();
        (counters.latency_ns - counters.throttled_ns) as f64 / counters.completed[1] as f64
    });
    assert!((waits[0] / waits[1] - 1.0).abs() < 0.2, "{waits:?} ns");
}

/// Share of device time of the second of two tenants in half a second from now on.
fn share_of_half_a_second(mapping: &mut PageMapping, engine: &mut Engine, tenants: [TenantId; 2]) -> f64 {
    let before = tenants.map(|tenant| engine.counters(tenant).unwrap().device_ns);
    engine.run(mapping, Until { time_ns: engine.now_ns() + 500_000_000, host_page_writes: u64::MAX });
    let got = [0, 1].map(|i| (engine.counters(tenants[i]).unwrap().device_ns - before[i]) as f64);
    got[1] / (got[0] + got[1])
}

#[test]
fn correction_of_a_very_low_weight_counts_within_half_a_second() {
    let (mut mapping, mut engine, tenants) = two_tenants(SchedulerPolicy::WeightedFair, 150);
    for tenant in tenants {
        engine.open_queue(tenant, Arrival::Closed { queue_depth: 64 }).unwrap();
        random_writes(&mut engine, &mapping, tenant, 100_000, u64::from(tenant.0));
    }
    engine.set_weight(tenants[1], 1e-6).unwrap();
    assert!(share_of_half_a_second(&mut mapping, &mut engine, tenants) < 0.02);
    engine.set_weight(tenants[1], 1.0).unwrap();
    share_of_half_a_second(&mut mapping, &mut engine, tenants);
    let share = share_of_half_a_second(&mut mapping, &mut engine, tenants);
    assert!((share - 0.5).abs() < 0.05, "{share} of the device");
}

#[test]
fn open_loop_keeps_timestamps_and_flush_waits_for_writes() {
    let (mut mapping, mut engine) = device(4, TimingModel::Paper, SchedulerPolicy::Fifo);
    let tenant = mapping.create_tenant(1000, Placement::Isolated, 40).unwrap();
    engine.open_queue(tenant, Arrival::Open).unwrap();
    let times = [5_000_000, 5_000_000, 9_000_000];
    engine.feed(&mapping, tenant, &times, &[1, 4, 2], &[0, 0, 0], &[4096, 0, 4096]).unwrap();
    engine.end_input(tenant).unwrap();
    engine.run(&mut mapping, Until { time_ns: 5_950_000, host_page_writes: u64::MAX });
    assert_eq!(engine.counters(tenant).unwrap().completed[4], 0, "the write ends at 5.902 ms, the flush after it");
    engine.run(&mut mapping, FOREVER);
    assert_eq!(engine.counters(tenant).unwrap().completed, [0, 1, 1, 0, 1]);
    assert_eq!(mapping.space(tenant).unwrap().mapped_pages, 0);
    assert_eq!(engine.now_ns(), 9_000_000 + 102_000);
}

#[test]
fn requests_beyond_the_namespace_are_refused_whole() {
    let (mut mapping, mut engine) = device(4, TimingModel::Paper, SchedulerPolicy::Fifo);
    let tenant = mapping.create_tenant(1000, Placement::Isolated, 40).unwrap();
    engine.open_queue(tenant, Arrival::Open).unwrap();
    for (op, offset, length) in
        [(1, 4096 * 1000, 1), (1, 4096 * 999, 4097), (1, u64::MAX, 2), (1, 0, 0), (9, 0, 4096), (0, 4096, u64::MAX)]
    {
        let refused = engine.feed(&mapping, tenant, &[0, 0], &[1, op], &[0, offset], &[4096, length]);
        assert!(refused.is_err(), "{op} {offset} {length}");
    }
    engine.end_input(tenant).unwrap();
    assert_eq!(engine.run(&mut mapping, FOREVER), Stopped::Idle);
    assert_eq!(engine.counters(tenant).unwrap().completed, [0; 5]);
}

#[test]
fn completion_time_is_reported_as_soon_as_it_is_known() {
    let (mut mapping, mut engine) = device(4, TimingModel::Paper, SchedulerPolicy::Fifo);
    let tenant = mapping.create_tenant(1000, Placement::Isolated, 40).unwrap();
    engine.open_queue(tenant, Arrival::Live).unwrap();
    let run = |engine: &mut Engine, mapping: &mut PageMapping, time_ns| {
        engine.run(mapping, Until { time_ns, host_page_writes: u64::MAX });
        engine.completions().map(|c| (c.token, c.at_ns)).collect::<Vec<_>>()
    };
    assert_eq!(run(&mut engine, &mut mapping, 1_000_000), []);
    engine.submit(&mapping, tenant, Op::Write, 0, 8192, 71).unwrap();
    engine.submit(&mapping, tenant, Op::Read, 4096 * 500, 4096, 72).unwrap();
    assert!(engine.submit(&mapping, tenant, Op::Write, 4096 * 1000, 1, 73).is_err());
    // The read is of an unmapped page: one transfer. The two pages of the write go to different dies.
    assert_eq!(run(&mut engine, &mut mapping, 1_000_000), [(71, 1_902_000), (72, 1_102_000)]);
    assert_eq!(run(&mut engine, &mut mapping, 1_500_000), []);
    assert_eq!(engine.outstanding(tenant).unwrap(), 1);
    assert_eq!(engine.next_event_ns(), Some(1_902_000));
    assert_eq!(run(&mut engine, &mut mapping, 1_902_000), []);
    assert_eq!(engine.next_event_ns(), None);
    // A read first uses its die, and then a channel that others may use in the meantime.
    engine.submit(&mapping, tenant, Op::Read, 0, 4096, 74).unwrap();
    assert_eq!(run(&mut engine, &mut mapping, 1_902_000), []);
    assert!(engine.next_event_is_read());
    let read_ns = engine.next_event_ns().unwrap();
    let [(74, done_ns)] = run(&mut engine, &mut mapping, read_ns)[..] else { panic!("it is known by now") };
    assert!(done_ns > read_ns);
    assert_eq!(engine.next_event_ns(), Some(done_ns));
}

/// Two isolated tenants of equal size on four dies, preconditioned.
fn two_tenants(policy: SchedulerPolicy, ops_blocks: u64) -> (PageMapping, Engine, [TenantId; 2]) {
    let (mut mapping, engine) = device(4, TimingModel::Full { copyback: true }, policy);
    let tenants = [0; 2].map(|_| mapping.create_tenant(128 * 1000, Placement::Isolated, ops_blocks).unwrap());
    crate::preconditioning::precondition(&mut mapping, 3, |_| true);
    (mapping, engine, tenants)
}

#[test]
fn read_waits_for_one_step_of_a_neighbours_gc_only() {
    let (mut mapping, mut engine, [writer, reader]) = two_tenants(SchedulerPolicy::WeightedFair, 150);
    engine.open_queue(writer, Arrival::Closed { queue_depth: 8 }).unwrap();
    engine.open_queue(reader, Arrival::Closed { queue_depth: 1 }).unwrap();
    random_writes(&mut engine, &mapping, writer, 100_000, 1);
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(2);
    let offsets: Vec<u64> = (0..20_000).map(|_| below(&mut rng, mapping.pages(reader)) * 4096).collect();
    engine.feed(&mapping, reader, &[0; 20_000], &[0; 20_000], &offsets, &[4096; 20_000]).unwrap();
    engine.run(&mut mapping, Until { time_ns: 20_000_000_000, host_page_writes: u64::MAX });
    let counters = mapping.counters(writer).unwrap();
    let copied_of_a_pass = counters.gc_page_writes as f64 / counters.victims as f64;
    let pass_ms = copied_of_a_pass * 0.86;
    let p99_ms = engine.latency(reader).unwrap().reads().value_at_percentile(99.0) as f64 / 1e6;
    assert!(pass_ms > 50.0, "a pass takes {pass_ms} ms");
    assert!(p99_ms < 0.2 * pass_ms, "p99 of reads {p99_ms} ms, a pass takes {pass_ms} ms");
}

#[test]
fn moves_take_at_most_their_budget() {
    for budget in [0.02, 0.1] {
        let (mut mapping, mut engine, tenants) = two_tenants(SchedulerPolicy::WeightedFair, 300);
        engine.set_move_budget(budget).unwrap();
        for (seed, &tenant) in tenants.iter().enumerate() {
            engine.open_queue(tenant, Arrival::Closed { queue_depth: 8 }).unwrap();
            random_writes(&mut engine, &mapping, tenant, 200_000, seed as u64);
        }
        mapping.request_move(Some(tenants[0]), Some(tenants[1]), 100).unwrap();
        let mut before = 0;
        for second in 1..=40u64 {
            engine.run(&mut mapping, Until { time_ns: second * 1_000_000_000, host_page_writes: u64::MAX });
            if second % 10 == 0 {
                let done_ns = engine.move_status().done_ns;
                let share = (done_ns - before) as f64 / (4.0 * 10e9);
                assert!(share <= budget * 1.001, "{share} of the device in 10 s, budget {budget}");
                before = done_ns;
            }
        }
        assert!(before > 0, "nothing was moved");
        mapping.check().unwrap();
    }
}

#[test]
fn moves_cost_readers_at_most_their_budget() {
    for queue_depth in [1, 4, 32] {
        let pages_read = |moved_blocks: u64| {
            let (mut mapping, mut engine, [idle, reader]) = two_tenants(SchedulerPolicy::WeightedFair, 300);
            engine.open_queue(reader, Arrival::Closed { queue_depth }).unwrap();
            let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
            let pages: Vec<u64> = (0..800_000).map(|_| below(&mut rng, mapping.pages(reader))).collect();
            repeat(&mut engine, &mapping, reader, Op::Read, &pages, 1);
            if moved_blocks > 0 {
                mapping.request_move(Some(idle), Some(reader), moved_blocks).unwrap();
            }
            engine.run(&mut mapping, Until { time_ns: 10_000_000_000, host_page_writes: u64::MAX });
            assert_eq!(mapping.moves_pending(), moved_blocks > 0, "blocks are moved all the time, or never");
            engine.latency(reader).unwrap().reads().len()
        };
        let (with_moves, without) = (pages_read(200), pages_read(0));
        let kept = with_moves as f64 / without as f64;
        assert!(kept >= 1.0 - DEFAULT_MOVE_BUDGET - 0.02, "{with_moves} of {without} pages at depth {queue_depth}");
        assert!(kept < 1.0, "moves cost something");
    }
}

#[test]
fn moves_between_the_requests_of_a_tenant_cost_it_at_most_their_budget() {
    let reads = |moved_blocks: u64| {
        let (mut mapping, mut engine, [idle, reader]) = two_tenants(SchedulerPolicy::WeightedFair, 300);
        engine.open_queue(reader, Arrival::Live).unwrap();
        if moved_blocks > 0 {
            mapping.request_move(Some(idle), Some(reader), moved_blocks).unwrap();
        }
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
        for token in 0.. {
            if engine.now_ns() >= 2_000_000_000 {
                return token;
            }
            let page = below(&mut rng, mapping.pages(reader));
            engine.submit(&mapping, reader, Op::Read, page * 4096, 4096, token).unwrap();
            let done_ns = loop {
                let soon_ns = engine.now_ns() + 10_000;
                engine.run(&mut mapping, Until { time_ns: soon_ns, host_page_writes: u64::MAX });
                if let Some(read) = engine.completions().next() {
                    break read.at_ns;
                }
            };
            // The client thinks for a time, in which it has no request outstanding.
            engine.run(&mut mapping, Until { time_ns: done_ns + 500_000, host_page_writes: u64::MAX });
        }
        0
    };
    let (with_moves, without) = (reads(280), reads(0));
    let kept = with_moves as f64 / without as f64;
    assert!(kept >= 1.0 - DEFAULT_MOVE_BUDGET - 0.03, "{with_moves} of {without} reads");
    assert!(kept < 1.0, "moves cost something");
}

#[test]
fn weights_hold_while_blocks_move() {
    let (mut mapping, mut engine, [deep, heavy]) = two_tenants(SchedulerPolicy::WeightedFair, 300);
    for (tenant, queue_depth, weight) in [(deep, 32, 1.0), (heavy, 8, 4.0)] {
        engine.open_queue(tenant, Arrival::Closed { queue_depth }).unwrap();
        engine.set_weight(tenant, weight).unwrap();
        random_writes(&mut engine, &mapping, tenant, 200_000, u64::from(queue_depth));
    }
    mapping.request_move(Some(deep), Some(heavy), 200).unwrap();
    engine.run(&mut mapping, Until { time_ns: 20_000_000_000, host_page_writes: u64::MAX });
    assert!(mapping.moves_pending());
    let [deep, heavy] = [deep, heavy].map(|tenant| engine.counters(tenant).unwrap().clone());
    let share = heavy.device_ns as f64 / (deep.device_ns + heavy.device_ns) as f64;
    assert!((share - 0.8).abs() < 0.03, "{share} of the device time, by weight 0.8");
    assert!(heavy.queued_ns > 19_000_000_000, "requests waited for {} ns of 20 s", heavy.queued_ns);
}

#[test]
fn moves_on_an_idle_device_need_no_budget() {
    let (mut mapping, mut engine, [from, to]) = two_tenants(SchedulerPolicy::WeightedFair, 300);
    engine.set_move_budget(0.0).unwrap();
    mapping.request_move(Some(from), Some(to), 100).unwrap();
    engine.run(&mut mapping, Until { time_ns: 60_000_000_000, host_page_writes: u64::MAX });
    assert_eq!(mapping.space(to).unwrap().ops_blocks, 400);
    assert_eq!(engine.move_status().moved_blocks, 100);
    assert!(!mapping.moves_pending());
    mapping.request_move(Some(to), Some(from), 30).unwrap();
    engine.advance_moves(&mut mapping, u64::MAX);
    assert_eq!(engine.move_status().moved_blocks, 130);
}

#[test]
fn cancelled_moves_leave_blocks_in_place() {
    let (mut mapping, mut engine, [from, to]) = two_tenants(SchedulerPolicy::WeightedFair, 300);
    mapping.request_move(Some(from), Some(to), 100).unwrap();
    engine.run(&mut mapping, Until { time_ns: 2_000_000_000, host_page_writes: u64::MAX });
    mapping.cancel_moves();
    let blocks = mapping.space(to).unwrap().ops_blocks;
    assert!((300..400).contains(&blocks), "{blocks}");
    engine.run(&mut mapping, Until { time_ns: 60_000_000_000, host_page_writes: u64::MAX });
    assert_eq!(mapping.space(to).unwrap().ops_blocks, blocks);
    assert_eq!(mapping.space(from).unwrap().pending_out_blocks, 0);
    mapping.check().unwrap();
}

#[test]
fn tenant_counts_as_queued_only_if_weight_would_help() {
    let (mut mapping, mut engine, [deep, shallow]) = two_tenants(SchedulerPolicy::WeightedFair, 150);
    engine.open_queue(deep, Arrival::Closed { queue_depth: 64 }).unwrap();
    engine.open_queue(shallow, Arrival::Closed { queue_depth: 1 }).unwrap();
    random_writes(&mut engine, &mapping, deep, 100_000, 1);
    random_writes(&mut engine, &mapping, shallow, 100_000, 2);
    let second = 1_000_000_000;
    engine.run(&mut mapping, Until { time_ns: 10 * second, host_page_writes: u64::MAX });
    let queued = |tenant| engine.counters(tenant).unwrap().queued_ns as f64 / (10 * second) as f64;
    assert!(queued(deep) > 0.95, "{}", queued(deep));
    assert!(queued(shallow) < 0.3, "{}", queued(shallow));
}

#[test]
fn a_flood_of_trims_does_not_starve_a_writer_of_the_same_weight() {
    let (mut mapping, mut engine, [writer, trimmer]) = two_tenants(SchedulerPolicy::WeightedFair, 150);
    engine.open_queue(writer, Arrival::Closed { queue_depth: 4 }).unwrap();
    engine.open_queue(trimmer, Arrival::Closed { queue_depth: 64 }).unwrap();
    random_writes(&mut engine, &mapping, writer, 20_000, 1);
    let trims = 500_000;
    let columns = (vec![0; trims], vec![2; trims], vec![0; trims], vec![4096; trims]);
    engine.feed(&mapping, trimmer, &columns.0, &columns.1, &columns.2, &columns.3).unwrap();
    engine.run(&mut mapping, Until { time_ns: 5_000_000_000, host_page_writes: u64::MAX });
    let written = engine.counters(writer).unwrap().completed[1];
    assert!(written > 1500, "{written} writes in 5 s");
}

/// A queue of reads or writes of 4 KiB at pages of a tenant, over and over.
fn repeat(engine: &mut Engine, mapping: &PageMapping, tenant: TenantId, op: Op, pages: &[u64], times: usize) {
    let offsets: Vec<u64> = pages.iter().map(|page| page * 4096).cycle().take(pages.len() * times).collect();
    let n = offsets.len();
    engine.feed(mapping, tenant, &vec![0; n], &vec![op as u8; n], &offsets, &vec![4096; n]).unwrap();
}

#[test]
fn reads_for_a_busy_die_do_not_keep_another_idle() {
    let (mut mapping, mut engine) = device(2, TimingModel::Paper, SchedulerPolicy::WeightedFair);
    let [writer, reader] = [0; 2].map(|_| mapping.create_tenant(128 * 300, Placement::Isolated, 200).unwrap());
    crate::preconditioning::precondition(&mut mapping, 3, |_| true);
    engine.open_queue(writer, Arrival::Closed { queue_depth: 8 }).unwrap();
    engine.open_queue(reader, Arrival::Closed { queue_depth: 8 }).unwrap();
    random_writes(&mut engine, &mapping, writer, 20_000, 1);
    let on_die_0: Vec<u64> = (0..1000).filter(|&page| mapping.die_to_read(reader, page) == Some(DieId(0))).collect();
    repeat(&mut engine, &mapping, reader, Op::Read, &on_die_0, 100);
    let second = 1_000_000_000;
    engine.run(&mut mapping, Until { time_ns: second, host_page_writes: u64::MAX });
    let [read, written] = [reader, writer].map(|tenant| engine.counters(tenant).unwrap().clone());
    assert!(read.completed[0] > 1000, "{} reads", read.completed[0]);
    let busy_ns = read.device_ns + written.device_ns;
    assert!(busy_ns > 2 * second * 98 / 100, "dies and their channels were busy for {busy_ns} ns of 2 s");
}

#[test]
fn reads_of_one_deep_queue_keep_every_die_busy() {
    let (mut mapping, mut engine) = device(8, TimingModel::Paper, SchedulerPolicy::Fifo);
    let tenant = mapping.create_tenant(128 * 1000, Placement::Isolated, 200).unwrap();
    crate::preconditioning::precondition(&mut mapping, 3, |_| true);
    engine.open_queue(tenant, Arrival::Closed { queue_depth: 64 }).unwrap();
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(2);
    let pages: Vec<u64> = (0..100_000).map(|_| below(&mut rng, mapping.pages(tenant))).collect();
    repeat(&mut engine, &mapping, tenant, Op::Read, &pages, 1);
    engine.run(&mut mapping, Until { time_ns: 1_000_000_000, host_page_writes: u64::MAX });
    let done = engine.counters(tenant).unwrap().completed[0];
    let most = 8 * 1_000_000 / 162;
    assert!(done * 100 > most * 93, "{done} reads of {most} that eight dies can do");
}

#[test]
fn readers_and_writers_get_device_time_by_weight() {
    for weights in [[1.0, 1.0], [1.0, 5.0], [5.0, 1.0]] {
        let (mut mapping, mut engine, [writer, reader]) = two_tenants(SchedulerPolicy::WeightedFair, 150);
        for (tenant, weight) in [writer, reader].into_iter().zip(weights) {
            engine.open_queue(tenant, Arrival::Closed { queue_depth: 256 }).unwrap();
            engine.set_weight(tenant, weight).unwrap();
        }
        random_writes(&mut engine, &mapping, writer, 200_000, 1);
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(2);
        let pages: Vec<u64> = (0..500_000).map(|_| below(&mut rng, mapping.pages(reader))).collect();
        repeat(&mut engine, &mapping, reader, Op::Read, &pages, 1);
        engine.run(&mut mapping, Until { time_ns: 10_000_000_000, host_page_writes: u64::MAX });
        let [written, read] = [writer, reader].map(|tenant| engine.counters(tenant).unwrap().clone());
        let share = written.device_ns as f64 / (written.device_ns + read.device_ns) as f64;
        let due = weights[0] / (weights[0] + weights[1]);
        assert!((share / due - 1.0).abs() < 0.03, "the writer has {share} of the device time, by weight {due}");
        assert!(read.queued_ns > 9_500_000_000, "reads were held up for {} ns of 10 s", read.queued_ns);
    }
}

#[test]
fn readers_on_several_dies_get_device_time_by_weight() {
    let (mut mapping, mut engine) = device(4, TimingModel::Paper, SchedulerPolicy::WeightedFair);
    let weights = [1.0, 2.0, 5.0];
    let readers = weights.map(|_| mapping.create_tenant(128 * 300, Placement::Isolated, 200).unwrap());
    crate::preconditioning::precondition(&mut mapping, 3, |_| true);
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(2);
    for (reader, weight) in readers.into_iter().zip(weights) {
        engine.open_queue(reader, Arrival::Closed { queue_depth: 16 }).unwrap();
        engine.set_weight(reader, weight).unwrap();
        let pages: Vec<u64> = (0..200_000).map(|_| below(&mut rng, mapping.pages(reader))).collect();
        repeat(&mut engine, &mapping, reader, Op::Read, &pages, 1);
    }
    engine.run(&mut mapping, Until { time_ns: 5_000_000_000, host_page_writes: u64::MAX });
    let read = readers.map(|reader| engine.counters(reader).unwrap().completed[0] as f64);
    let total: f64 = read.iter().sum();
    for (reads, weight) in read.into_iter().zip(weights) {
        let (share, due) = (reads / total, weight / 8.0);
        assert!((share / due - 1.0).abs() < 0.1, "weight {weight} of 8 has {share} of the reads, by weight {due}");
    }
}

#[test]
fn single_read_waits_only_for_its_die() {
    let (mut mapping, mut engine, [writer, reader]) = two_tenants(SchedulerPolicy::WeightedFair, 150);
    engine.open_queue(writer, Arrival::Closed { queue_depth: 64 }).unwrap();
    engine.open_queue(reader, Arrival::Closed { queue_depth: 1 }).unwrap();
    random_writes(&mut engine, &mapping, writer, 100_000, 1);
    repeat(&mut engine, &mapping, reader, Op::Read, &(0..1000).collect::<Vec<u64>>(), 20);
    engine.run(&mut mapping, Until { time_ns: 10_000_000_000, host_page_writes: u64::MAX });
    let queued = engine.counters(reader).unwrap().queued_ns as f64 / 10e9;
    assert!(queued < 0.05, "{queued} of the time");
}

const SUSPEND_NS: u64 = 20_000;

/// One tenant of half of a die's pages, with all of them written.
fn die_with_suspend() -> (PageMapping, Engine, TenantId) {
    let timing = NandTiming { suspend_ns: SUSPEND_NS, ..preset("fast15").unwrap().timing };
    let (mut mapping, engine) = device_with(timing, 1, TimingModel::Paper, SchedulerPolicy::WeightedFair);
    let tenant = mapping.create_tenant(128 * 300, Placement::Isolated, 200).unwrap();
    crate::preconditioning::precondition(&mut mapping, 3, |_| true);
    (mapping, engine, tenant)
}

#[test]
fn read_suspends_a_program_that_resumes_after_it() {
    let (mut mapping, mut engine, tenant) = die_with_suspend();
    engine.open_queue(tenant, Arrival::Live).unwrap();
    engine.submit(&mapping, tenant, Op::Write, 0, 4096, 1).unwrap();
    engine.run(&mut mapping, Until { time_ns: 200_000, host_page_writes: u64::MAX });
    let [written] = engine.completions().collect::<Vec<_>>()[..] else { panic!("the end of a write is known") };
    engine.submit(&mapping, tenant, Op::Read, 4096, 4096, 2).unwrap();
    engine.run(&mut mapping, Until { time_ns: 500_000, host_page_writes: u64::MAX });
    let [read] = engine.completions().collect::<Vec<_>>()[..] else { panic!("the read is done in time") };
    assert_eq!(read.at_ns, 200_000 + SUSPEND_NS + 60_000 + 102_000);
    // The die has to finish the program before the next one.
    engine.submit(&mapping, tenant, Op::Write, 8192, 4096, 3).unwrap();
    engine.run(&mut mapping, FOREVER);
    let [next] = engine.completions().collect::<Vec<_>>()[..] else { panic!("the end of a write is known") };
    assert_eq!(next.at_ns, written.at_ns + SUSPEND_NS + 60_000 + 102_000 + 800_000);
}

#[test]
fn suspending_reads_take_at_most_their_share() {
    for weights in [[1.0, 1.0], [5.0, 1.0], [1.0, 5.0]] {
        let timing = NandTiming { suspend_ns: SUSPEND_NS, ..preset("fast15").unwrap().timing };
        let model = TimingModel::Full { copyback: true };
        let (mut mapping, mut engine) = device_with(timing, 4, model, SchedulerPolicy::WeightedFair);
        let tenants = [0; 2].map(|_| mapping.create_tenant(128 * 1000, Placement::Isolated, 150).unwrap());
        crate::preconditioning::precondition(&mut mapping, 3, |_| true);
        for (tenant, weight) in tenants.into_iter().zip(weights) {
            engine.open_queue(tenant, Arrival::Closed { queue_depth: 64 }).unwrap();
            engine.set_weight(tenant, weight).unwrap();
        }
        let [writer, reader] = tenants;
        random_writes(&mut engine, &mapping, writer, 200_000, 1);
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(2);
        let pages: Vec<u64> = (0..500_000).map(|_| below(&mut rng, mapping.pages(reader))).collect();
        repeat(&mut engine, &mapping, reader, Op::Read, &pages, 1);
        engine.run(&mut mapping, Until { time_ns: 10_000_000_000, host_page_writes: u64::MAX });
        let [written, read] = tenants.map(|tenant| engine.counters(tenant).unwrap().device_ns as f64);
        let (share, due) = (written / (written + read), weights[0] / (weights[0] + weights[1]));
        assert!((share / due - 1.0).abs() < 0.03, "the writer has {share} of the device time, by weight {due}");
    }
}
