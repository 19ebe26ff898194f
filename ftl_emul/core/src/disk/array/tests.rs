//! The behaviour of disks, compared with theory.

use rand_core::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256StarStar;

use super::*;
use crate::disk::parameters::{DISK_PRESETS, disk_preset};
use crate::engine::Limit;

const MIB: u64 = 1 << 20;
const FOREVER: u64 = u64::MAX;

fn disks(count: u32, scheduler: SchedulerPolicy, change: impl Fn(&mut DiskParameters)) -> Array {
    let mut parameters = disk_preset("cheetah-15k7").unwrap().parameters;
    change(&mut parameters);
    let options = ArrayOptions { disks: count, stripe_bytes: 64 << 10, scheduler, queue_depth: None };
    Array::new(parameters, options).unwrap()
}

/// A single tenant that has everything.
fn whole(count: u32, change: impl Fn(&mut DiskParameters)) -> (Array, TenantId) {
    let mut array = disks(count, SchedulerPolicy::Fifo, change);
    let tenant = array.create_tenant(array.capacity_bytes()).unwrap();
    (array, tenant)
}

fn random_offsets(count: usize, below: u64, align: u64) -> Vec<u64> {
    let mut draw = Xoshiro256StarStar::seed_from_u64(7);
    (0..count).map(|_| draw.next_u64() % (below / align) * align).collect()
}

fn sequential_offsets(from: u64, count: u64, length: u64) -> Vec<u64> {
    (0..count).map(|n| from + n * length).collect()
}

fn iops(array: &mut Array, tenant: TenantId, op: Op, offsets: &[u64], queue_depth: usize) -> f64 {
    let (ended, ns) = array.play(tenant, op, offsets, 4096, queue_depth, FOREVER).unwrap();
    assert_eq!(ended, offsets.len() as u64);
    ended as f64 * 1e9 / ns as f64
}

#[test]
fn a_stream_runs_at_the_rate_of_its_zone() {
    for (preset, op) in DISK_PRESETS.iter().flat_map(|preset| [(preset, Op::Read), (preset, Op::Write)]) {
        for from in [0, preset.parameters.capacity_bytes / 5 * 3 / MIB * MIB] {
            let options =
                ArrayOptions { disks: 1, stripe_bytes: 512, scheduler: SchedulerPolicy::Fifo, queue_depth: None };
            let mut array = Array::new(preset.parameters, options).unwrap();
            let tenant = array.create_tenant(array.capacity_bytes()).unwrap();
            let offsets = sequential_offsets(from, 8000, MIB);
            let (_, ns) = array.play(tenant, op, &offsets, MIB, 1, FOREVER).unwrap();
            let rate = array.mechanics().rate_bytes_ns(from);
            assert_eq!(rate, array.mechanics().rate_bytes_ns(from + 8000 * MIB), "all in one zone");
            let seen = (8000 * MIB) as f64 / ns as f64;
            assert!((seen / rate - 1.0).abs() < 0.01, "{} {op:?} at {from}: {seen} of {rate}", preset.name);
        }
    }
}

#[test]
fn small_sequential_requests_cost_only_command_overhead() {
    let (mut array, tenant) = whole(1, |_| {});
    for op in [Op::Read, Op::Write] {
        let seen = iops(&mut array, tenant, op, &sequential_offsets(0, 20_000, 4096), 1);
        assert!((seen * (100e-6 + 4096.0 / 600e6) - 1.0).abs() < 0.02, "{op:?} {seen}");
    }
}

#[test]
fn long_stream_evicts_its_data_from_the_buffer() {
    let (mut array, tenant) = whole(1, |_| {});
    iops(&mut array, tenant, Op::Read, &sequential_offsets(0, 100_000, 4096), 1);
    let seen = iops(&mut array, tenant, Op::Read, &random_offsets(1000, 100_000 * 4096, 4096), 1);
    assert!(seen < 500.0, "{seen} random reads in 400 MB");
}

#[test]
fn a_random_read_is_a_seek_and_half_a_revolution() {
    let (mut array, tenant) = whole(1, |_| {});
    let capacity = array.capacity_bytes();
    let seen = iops(&mut array, tenant, Op::Read, &random_offsets(20_000, capacity, 4096), 1);
    // Offsets are spread evenly over bytes, so a little more over outer cylinders, where seeks are shorter.
    let expected = 1.0 / (3.4e-3 + 2e-3 + 100e-6 + 4096.0 / 163e6);
    assert!((seen / expected - 1.0).abs() < 0.03, "{seen} of {expected}");
}

#[test]
fn uncached_random_writes_include_write_settle_time() {
    let (mut array, tenant) = whole(1, |p| p.write_cache_bytes = 0);
    let capacity = array.capacity_bytes();
    let seen = iops(&mut array, tenant, Op::Write, &random_offsets(20_000, capacity, 4096), 1);
    let expected = 1.0 / (3.9e-3 + 2e-3 + 100e-6 + 4096.0 / 163e6);
    assert!((seen / expected - 1.0).abs() < 0.03, "{seen} of {expected}");
}

#[test]
fn deeper_queue_raises_throughput_without_starvation() {
    let offsets = random_offsets(20_000, 290_000_000_000, 4096);
    let mut before = 0.0;
    for queue_depth in [1, 2, 4, 8, 16, 32] {
        let (mut array, tenant) = whole(1, |_| {});
        let seen = iops(&mut array, tenant, Op::Read, &offsets, queue_depth);
        assert!(seen > before * 1.01, "{seen} at {queue_depth}, {before} before");
        before = seen;
    }
    // A distant request among many near ones.
    let (mut array, tenant) = whole(1, |_| {});
    let mut near = random_offsets(3000, MIB * 100, 4096);
    near.insert(40, 290_000_000_000);
    for &offset in &near[..41] {
        array.submit(tenant, Op::Read, offset, 4096, offset).unwrap();
    }
    let mut ended = Vec::new();
    for &offset in &near[41..] {
        while array.in_flight >= 32 {
            let next_ns = array.next_event_ns().unwrap();
            array.run(next_ns);
        }
        array.submit(tenant, Op::Read, offset, 4096, offset).unwrap();
        ended.extend(array.completions().map(|completion| completion.token));
    }
    let at = ended.iter().position(|&token| token == 290_000_000_000).unwrap();
    assert!(at < 300, "the far one came {at}th");
}

#[test]
fn the_write_cache_sorts_and_a_flush_waits_for_it() {
    let offsets = random_offsets(5000, 290_000_000_000, 4096);
    let (mut cached, tenant) = whole(1, |_| {});
    let with = iops(&mut cached, tenant, Op::Write, &offsets, 1);
    let (mut direct, tenant_direct) = whole(1, |p| p.write_cache_bytes = 0);
    let without = iops(&mut direct, tenant_direct, Op::Write, &offsets, 1);
    assert!(with > 1.5 * without, "{with} {without}");
    cached.run(cached.now_ns() + 10_000_000_000);
    let (_, idle_ns) = cached.play(tenant, Op::Write, &offsets[..20], 4096, 1, FOREVER).unwrap();
    assert!(idle_ns < 20 * 110_000, "20 writes fit in the cache: {idle_ns}");
    cached.submit(tenant, Op::Flush, 0, 0, 1).unwrap();
    let begun_ns = cached.now_ns();
    while cached.completions().next().is_none() {
        let next_ns = cached.next_event_ns().unwrap();
        cached.run(next_ns);
    }
    assert!(cached.now_ns() - begun_ns > 10_000_000, "the flush waited for 20 places");
}

#[test]
fn striped_disks_stream_in_parallel() {
    for count in [2, 4] {
        let (mut array, tenant) = whole(count, |_| {});
        let offsets = sequential_offsets(0, 1000, 4 * MIB);
        let (_, ns) = array.play(tenant, Op::Read, &offsets, 4 * MIB, 1, FOREVER).unwrap();
        let seen = (4000 * MIB) as f64 / ns as f64 / 0.204;
        assert!((seen / f64::from(count) - 1.0).abs() < 0.02, "{count} disks stream as {seen}");
        let capacity = array.capacity_bytes();
        let offsets = random_offsets(20_000, capacity, 4096);
        let many = iops(&mut array, tenant, Op::Read, &offsets, 32);
        let (mut one, tenant) = whole(1, |_| {});
        let alone = iops(&mut one, tenant, Op::Read, &random_offsets(20_000, capacity / u64::from(count), 4096), 32);
        assert!(many > 0.6 * f64::from(count) * alone, "{many} {alone}");
    }
}

#[test]
fn weights_divide_the_time_of_the_arm() {
    // The least ones use up the scheduler's tags again and again.
    for scale in [1.0, 1e-7] {
        let mut array = disks(1, SchedulerPolicy::WeightedFair, |_| {});
        let tenants: Vec<TenantId> = (0..3).map(|_| array.create_tenant(10_000 * MIB).unwrap()).collect();
        let offsets = random_offsets(60_000, 10_000 * MIB, 4096);
        for (tenant, weight) in tenants.iter().zip([1.0, 3.0, 6.0]) {
            array.set_weight(*tenant, weight * scale).unwrap();
        }
        let mut next = offsets.iter();
        for n in 0..24 {
            array.submit(tenants[n % 3], Op::Read, *next.next().unwrap(), 4096, n as u64 % 3).unwrap();
        }
        while array.now_ns() < 60_000_000_000 {
            let ended: Vec<u64> = array.completions().map(|completion| completion.token).collect();
            for token in ended {
                array.submit(tenants[token as usize], Op::Read, *next.next().unwrap(), 4096, token).unwrap();
            }
            let next_ns = array.next_event_ns().unwrap();
            array.run(next_ns);
        }
        let done: Vec<f64> = tenants.iter().map(|&t| array.queue_counters(t).unwrap().completed[0] as f64).collect();
        let total: f64 = done.iter().sum();
        for (count, due) in done.iter().zip([0.1, 0.3, 0.6]) {
            assert!((count / total - due).abs() < 0.02, "{scale} {done:?}");
        }
    }
}

#[test]
fn limits_are_enforced() {
    let mut array = disks(1, SchedulerPolicy::Fifo, |_| {});
    let tenant = array.create_tenant(1000 * MIB).unwrap();
    array.set_limit(tenant, Limit { iops: Some(50.0), bytes_s: None }).unwrap();
    let seen = iops(&mut array, tenant, Op::Read, &random_offsets(500, 1000 * MIB, 4096), 4);
    assert!((seen - 50.0).abs() < 1.0, "{seen}");
    assert!(array.queue_counters(tenant).unwrap().throttled_ns > 0);
    assert!(array.set_limit(tenant, Limit { iops: Some(0.0), bytes_s: None }).is_err());
}

#[test]
fn impossible_disk_is_refused() {
    let good = DISK_PRESETS[0].parameters;
    let changes: [fn(&mut DiskParameters); 5] = [
        |p| p.capacity_bytes = 0,
        |p| p.heads = 0,
        |p| p.seek_max_ns = p.seek_average_ns,
        |p| p.inner_bytes_s = p.outer_bytes_s + 1,
        |p| p.queue_depth = 0,
    ];
    let options = ArrayOptions { disks: 1, stripe_bytes: 512, scheduler: SchedulerPolicy::Fifo, queue_depth: None };
    for change in changes {
        let mut bad = good;
        change(&mut bad);
        assert!(Array::new(bad, options).is_err(), "{bad:?}");
    }
    for options in [
        ArrayOptions { disks: 0, ..options },
        ArrayOptions { disks: 65, ..options },
        ArrayOptions { stripe_bytes: 1000, ..options },
        ArrayOptions { queue_depth: Some(0), ..options },
    ] {
        assert!(Array::new(good, options).is_err(), "{options:?}");
    }
    let mut array = Array::new(good, options).unwrap();
    assert!(array.create_tenant(array.capacity_bytes() + 1).is_err());
    let tenant = array.create_tenant(MIB).unwrap();
    assert!(array.submit(tenant, Op::Read, MIB, 1, 0).is_err());
    assert!(array.submit(tenant, Op::Read, u64::MAX, 2, 0).is_err());
    assert!(array.submit(TenantId(1), Op::Read, 0, 1, 0).is_err());
    assert!(array.set_weight(tenant, f64::NAN).is_err());
}

mod properties {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// For any requests at any times: every request ends once, not before it arrived, and the disks become idle.
        #[test]
        fn every_request_completes_once(
            count in 1..4u32,
            cached in any::<bool>(),
            requests in proptest::collection::vec(
                (0..2usize, 0..5u8, 0..64u64, 1..40u64, 0..20_000_000u64), 1..120),
        ) {
            let mut array = disks(count, SchedulerPolicy::RoundRobin, |p| {
                p.write_cache_bytes = if cached { 1 << 20 } else { 0 };
                p.write_cache_places = 4;
            });
            let tenants = [array.create_tenant(64 * MIB).unwrap(), array.create_tenant(64 * MIB).unwrap()];
            let mut arrived = Vec::new();
            let mut ended = vec![0; requests.len()];
            let mut note = |array: &mut Array, arrived: &[u64]| {
                for completion in array.completions() {
                    ended[completion.token as usize] += 1;
                    assert!(completion.at_ns >= arrived[completion.token as usize]);
                }
            };
            for (token, &(who, code, place, pages, pause_ns)) in requests.iter().enumerate() {
                let (offset, length) = (place * MIB, pages * 4096);
                array.run(array.now_ns() + pause_ns);
                arrived.push(array.now_ns());
                let op = Op::try_from(code).unwrap();
                array.submit(tenants[who], op, offset, if op == Op::Flush { 0 } else { length }, token as u64).unwrap();
                note(&mut array, &arrived);
            }
            array.run(array.now_ns() + 60_000_000_000);
            note(&mut array, &arrived);
            prop_assert!(ended.iter().all(|&times| times == 1), "{:?}", ended);
            prop_assert_eq!(array.next_event_ns(), None);
            let busy: u64 = array.busy_ns().max().unwrap_or(0);
            prop_assert!(busy <= array.now_ns());
        }
    }
}

#[test]
fn requests_that_a_limit_lets_go_stand_behind_those_that_wait() {
    let mut array = disks(1, SchedulerPolicy::Fifo, |_| {});
    let [limited, other] = [0; 2].map(|_| array.create_tenant(10_000 * MIB).unwrap());
    array.set_limit(limited, Limit { iops: Some(5.0), bytes_s: None }).unwrap();
    let offsets = random_offsets(10_000, 10_000 * MIB, 4096);
    let mut next = offsets.iter().cycle();
    for n in 0..600 {
        let tenant = if n < 400 { limited } else { other };
        array.submit(tenant, Op::Read, *next.next().unwrap(), 4096, u64::from(tenant.0)).unwrap();
    }
    let done = |array: &Array| [limited, other].map(|tenant| array.queue_counters(tenant).unwrap().completed[0]);
    while array.now_ns() < 10_000_000_000 {
        for completion in array.completions().collect::<Vec<_>>() {
            if completion.token == u64::from(other.0) {
                array.submit(other, Op::Read, *next.next().unwrap(), 4096, completion.token).unwrap();
            }
        }
        let next_ns = array.next_event_ns().unwrap();
        array.run(next_ns);
    }
    let before = done(&array);
    array.set_limit(limited, Limit::default()).unwrap();
    while done(&array)[1] < before[1] + 150 {
        let next_ns = array.next_event_ns().unwrap();
        array.run(next_ns);
    }
    assert!(done(&array)[0] < before[0] + 20, "{:?} after {before:?}", done(&array));
}
