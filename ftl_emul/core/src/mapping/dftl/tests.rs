use proptest::prelude::*;
use rand_core::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::*;
use crate::engine::{PageCosts, Timeline, TimingModel};
use crate::geometry::NandTiming;
use crate::mapping::MappingCounters;
use crate::nand::Untimed;
use crate::victim::below;

fn geometry(blocks_per_die: u32, dies: u32, pages_per_block: u32, page_bytes: u32) -> Geometry {
    Geometry { page_bytes, pages_per_block, blocks_per_die, channels: dies, dies_per_channel: 1, planes: 1 }
}

fn drive(geometry: Geometry, cached_entries: u64) -> DftlMapping {
    let options = DftlOptions { page: PageMappingOptions::default(), cached_entries: Some(cached_entries) };
    DftlMapping::new(geometry, options).unwrap()
}

/// Three tenants, filled, then written, read and trimmed at random.
fn work<M: Mapping>(ftl: &mut M, requests: u64) {
    for placement in [Placement::Isolated, Placement::Isolated, Placement::Shared] {
        ftl.create_tenant(32 * 100, placement, 30).unwrap();
    }
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(4);
    for page in 0..3 * 32 * 100 {
        ftl.write_page(TenantId((page % 3) as u16), page / 3, &mut Untimed);
    }
    for i in 0..requests {
        let (tenant, page) = (TenantId((i % 3) as u16), below(&mut rng, 32 * 100));
        match below(&mut rng, 10) {
            0 => ftl.trim_page(tenant, page, &mut Untimed),
            1 => drop(ftl.read_page(tenant, page, &mut Untimed)),
            _ => ftl.write_page(tenant, page, &mut Untimed),
        }
    }
    ftl.check().unwrap();
}

#[test]
fn fully_cached_dftl_equals_the_page_mapping() {
    let shape = geometry(240, 2, 32, 4096);
    let mut page = PageMapping::new(shape, PageMappingOptions::default()).unwrap();
    let mut dftl = drive(shape, shape.pages());
    work(&mut page, 100_000);
    work(&mut dftl, 100_000);
    for tenant in page.tenants() {
        assert_eq!(page.counters(tenant).unwrap(), dftl.counters(tenant).unwrap());
        assert!(page.counters(tenant).unwrap().gc_page_writes > 0);
        assert_eq!(dftl.mapping_counters(tenant).unwrap(), MappingCounters::default());
    }
}

#[test]
fn smaller_cache_adds_map_traffic_but_no_data_gc() {
    let shape = geometry(240, 2, 32, 512);
    let run = |cached| {
        let mut ftl = drive(shape, cached);
        work(&mut ftl, 60_000);
        let sum = |count: fn(&MappingCounters) -> u64| -> u64 {
            ftl.tenants().into_iter().map(|t| count(&ftl.mapping_counters(t).unwrap())).sum()
        };
        let gc: u64 = ftl.tenants().into_iter().map(|t| ftl.counters(t).unwrap().gc_page_writes).sum();
        (sum(|c| c.map_reads), sum(|c| c.map_writes), gc)
    };
    let results = [9600, 4800, 2400, 1200, 600, 300].map(run);
    assert_eq!((results[0].0, results[0].1), (0, 0), "{results:?}");
    assert!(results.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1 && a.2 == b.2), "{results:?}");
}

#[test]
fn misses_and_evictions_match_calculation_by_hand() {
    // 128 entries of 4 bytes fit a page of 512 bytes; the CMT has two entries.
    let mut ftl = drive(geometry(40, 1, 8, 512), 2);
    let t = ftl.create_tenant(256, Placement::Isolated, 6).unwrap();
    let write = |ftl: &mut DftlMapping, page| {
        ftl.write_page(t, page, &mut Untimed);
        let counters = ftl.mapping_counters(t).unwrap();
        (counters.map_reads, counters.map_writes)
    };
    // No translation page is on flash, so none is read. The CMT holds 0 and 1, both dirty.
    assert_eq!(write(&mut ftl, 0), (0, 0));
    assert_eq!(write(&mut ftl, 1), (0, 0));
    // 0 goes, dirty: translation page 0 is written, with 1, which is clean then.
    assert_eq!(write(&mut ftl, 200), (0, 1));
    // 1 goes, clean: free. The entry of 2 is on flash: one read.
    assert_eq!(write(&mut ftl, 2), (1, 1));
    // 200 goes, dirty: translation page 1 is written. 3 is read.
    assert_eq!(write(&mut ftl, 3), (2, 2));
    // A hit is free.
    assert_eq!(write(&mut ftl, 2), (2, 2));
    // 3 goes, dirty, is read and written with 2; then the entry of 201 is read.
    assert_eq!(write(&mut ftl, 201), (4, 3));
    ftl.check().unwrap();
}

#[test]
fn host_requests_wait_for_map_reads() {
    let timing = NandTiming { read_ns: 10, program_ns: 100, erase_ns: 1000, transfer_ns: 1, suspend_ns: 0 };
    let mut ftl = drive(geometry(40, 1, 8, 512), 1);
    let t = ftl.create_tenant(256, Placement::Isolated, 6).unwrap();
    let costs = PageCosts::new(ftl.geometry(), &timing, TimingModel::Full { copyback: true });
    let mut timeline = Timeline::new(ftl.geometry(), costs);
    let mut last = 0;
    let mut took = |ftl: &mut DftlMapping, page| {
        timeline.advance_to(last);
        timeline.begin();
        ftl.write_page(t, page, &mut timeline);
        let took = timeline.finish - last;
        last = timeline.finish;
        took
    };
    // Transfer and program of the page itself.
    assert_eq!(took(&mut ftl, 0), 101);
    // Before it, the translation page of the entry that goes is programmed.
    assert_eq!(took(&mut ftl, 200), 202);
    // Before it, that of 200 is programmed (never written so far, so not read), and that of 1 is read and comes over.
    assert_eq!(took(&mut ftl, 1), 101 + 11 + 101);
    assert_eq!(ftl.mapping_counters(t).unwrap().map_ns, 101 + 101 + 11);
}

#[test]
fn a_snapshot_restores_the_same_future_and_damage_is_refused() {
    let mut ftl = drive(geometry(240, 2, 32, 512), 500);
    work(&mut ftl, 20_000);
    let mut file = Vec::new();
    ftl.save("three tenants", &mut file).unwrap();
    let (mut restored, label) = DftlMapping::restore(&mut &file[..]).unwrap();
    assert_eq!(label, "three tenants");
    for ftl in [&mut ftl, &mut restored] {
        (0..20_000u64).for_each(|i| ftl.write_page(TenantId((i % 3) as u16), i * i % 3200, &mut Untimed));
        ftl.check().unwrap();
    }
    for t in ftl.tenants() {
        assert_eq!(ftl.counters(t).unwrap(), restored.counters(t).unwrap());
        assert_eq!(ftl.mapping_counters(t).unwrap(), restored.mapping_counters(t).unwrap());
    }
    for at in (0..file.len()).step_by(file.len() / 100).chain(0..24) {
        let mut damaged = file.clone();
        damaged[at] ^= 0x41;
        assert!(DftlMapping::restore(&mut &damaged[..]).is_err(), "byte {at} was changed and nobody noticed");
    }
}

#[derive(Debug, Clone)]
enum Step {
    Write(u8, u32, u32),
    Trim(u8, u32, u32),
    Move(u8, u8, u8),
    Create(u32, bool),
    Delete(u8),
    Resize(u8, u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (any::<u8>(), any::<u32>(), 1..200u32).prop_map(|(t, p, n)| Step::Write(t, p, n)),
        2 => (any::<u8>(), any::<u32>(), 1..100u32).prop_map(|(t, p, n)| Step::Trim(t, p, n)),
        4 => (any::<u8>(), any::<u8>(), 1..20u8).prop_map(|(a, b, n)| Step::Move(a, b, n)),
        1 => (1..2000u32, any::<bool>()).prop_map(|(p, s)| Step::Create(p, s)),
        1 => any::<u8>().prop_map(Step::Delete),
        1 => (any::<u8>(), 1..2500u32).prop_map(|(t, p)| Step::Resize(t, p)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Compared with a page mapping that gets the same requests: mapped pages and counters are equal, and the
    /// invariants hold after every step.
    #[test]
    fn dftl_places_data_like_the_page_mapping(
        dies in 1..4u32,
        np in prop_oneof![Just(4u32), Just(7), Just(64)],
        page_bytes in prop_oneof![Just(512u32), Just(4096), Just(16384)],
        cached in 1..3000u64,
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let shape = geometry(160, dies, np, page_bytes);
        let mut page = PageMapping::new(shape, PageMappingOptions::default()).unwrap();
        let mut dftl = drive(shape, cached);
        let ops = u64::from(dies) * 6;
        for step in [Step::Create(700, false), Step::Create(700, true)].into_iter().chain(steps) {
            let tenants = page.tenants();
            let pick = |n: u8| tenants.get(n as usize % tenants.len().max(1)).copied();
            match step {
                Step::Write(t, p, n) => if let Some(t) = pick(t) {
                    for i in 0..n {
                        let at = (u64::from(p) * 7919 + u64::from(i * i)) % page.pages(t);
                        page.write_page(t, at, &mut Untimed);
                        dftl.write_page(t, at, &mut Untimed);
                    }
                },
                Step::Trim(t, p, n) => if let Some(t) = pick(t) {
                    for i in 0..n {
                        let at = (u64::from(p) + u64::from(i)) % page.pages(t);
                        page.trim_page(t, at, &mut Untimed);
                        dftl.trim_page(t, at, &mut Untimed);
                    }
                },
                Step::Move(a, b, n) => {
                    let end = |x: u8| if x % 5 == 4 { None } else { pick(x) };
                    let asked = page.request_move(end(a), end(b), u64::from(n));
                    prop_assert_eq!(asked, dftl.request_move(end(a), end(b), u64::from(n)));
                    prop_assert_eq!(page.advance_moves(3, &mut Untimed), dftl.advance_moves(3, &mut Untimed));
                },
                Step::Create(pages, shared) => {
                    let placement = if shared { Placement::Shared } else { Placement::Isolated };
                    let created = page.create_tenant(u64::from(pages), placement, ops);
                    prop_assert_eq!(created, dftl.create_tenant(u64::from(pages), placement, ops));
                },
                Step::Delete(t) => if let Some(t) = pick(t) {
                    prop_assert_eq!(page.delete_tenant(t), dftl.delete_tenant(t));
                },
                Step::Resize(t, pages) => if let Some(t) = pick(t) {
                    prop_assert_eq!(
                        page.resize_tenant(t, u64::from(pages)),
                        dftl.resize_tenant(t, u64::from(pages))
                    );
                },
            }
            dftl.check().map_err(TestCaseError::fail)?;
        }
        for t in page.tenants() {
            prop_assert_eq!(page.counters(t).unwrap(), dftl.counters(t).unwrap());
            prop_assert_eq!(page.space(t).unwrap().mapped_pages, dftl.space(t).unwrap().mapped_pages);
            for at in 0..page.pages(t) {
                let there = page.read_page(t, at, &mut Untimed);
                prop_assert_eq!(there, dftl.read_page(t, at, &mut Untimed));
            }
        }
    }
}
