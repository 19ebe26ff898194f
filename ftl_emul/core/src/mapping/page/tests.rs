use super::*;
use crate::mapping::changes::{Change, Contents, changes, pick, three_tenants};
use crate::mapping::snapshot_file::{PROLOGUE_BYTES, head_bytes, sum_anew};
use crate::nand::Untimed;
use crate::pool::SPARE;
use proptest::prelude::*;

fn drive(blocks_per_die: u32, dies: u32, pages_per_block: u32, options: PageMappingOptions) -> PageMapping {
    let geometry =
        Geometry { page_bytes: 4096, pages_per_block, blocks_per_die, channels: dies, dies_per_channel: 1, planes: 1 };
    PageMapping::new(geometry, options).unwrap()
}

fn uniform_waf(np: u32, alpha: f64, victim: VictimPolicy) -> f64 {
    let blocks = (4_000_000 / np).max(1200);
    let options = PageMappingOptions { victim, ..PageMappingOptions::default() };
    let mut ftl = drive(blocks + 1, 1, np, options);
    let pages = (f64::from(blocks) * f64::from(np) / alpha) as u64;
    let logical = ftl.geometry.blocks_for(pages);
    let tenant = ftl.create(pages, Placement::Isolated, u64::from(blocks) + 1 - logical).unwrap();
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(7);
    for p in 0..pages {
        ftl.write_page(tenant, p, &mut Untimed);
    }
    let mut write = |ftl: &mut PageMapping, n: u64| {
        for _ in 0..n {
            let page = crate::victim::below(&mut rng, pages);
            ftl.write_page(tenant, page, &mut Untimed);
        }
    };
    write(&mut ftl, pages * 8);
    let before = ftl.counters(tenant).unwrap().clone();
    write(&mut ftl, pages * 8);
    let after = ftl.counters(tenant).unwrap();
    let host = (after.host_page_writes - before.host_page_writes) as f64;
    (host + (after.gc_page_writes - before.gc_page_writes) as f64) / host
}

#[test]
fn greedy_reproduces_the_formula_at_one_point() {
    let waf = uniform_waf(128, 1.2, VictimPolicy::Greedy);
    assert!((waf / 3.119 - 1.0).abs() < 0.005, "{waf}");
}

#[test]
fn fifo_reproduces_the_formula_at_one_point() {
    let waf = uniform_waf(128, 1.2, VictimPolicy::Fifo);
    assert!((waf / 3.188 - 1.0).abs() < 0.005, "{waf}");
}

#[derive(Debug, Clone)]
enum Step {
    Write(u8, u32, u32),
    Trim(u8, u32, u32),
    Change(Change),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (any::<u8>(), any::<u32>(), 1..200u32).prop_map(|(t, p, n)| Step::Write(t, p, n)),
        2 => (any::<u8>(), any::<u32>(), 1..100u32).prop_map(|(t, p, n)| Step::Trim(t, p, n)),
        7 => changes(2000, 2500, 40).prop_map(Step::Change),
    ]
}

fn options() -> impl Strategy<Value = PageMappingOptions> {
    let victims = prop_oneof![
        Just(VictimPolicy::Greedy),
        Just(VictimPolicy::Fifo),
        Just(VictimPolicy::CostBenefit),
        Just(VictimPolicy::DChoices(3)),
        Just(VictimPolicy::Random),
    ];
    (victims, any::<bool>(), 1..3u32).prop_map(|(victim, separate_gc_frontier, free_floor)| PageMappingOptions {
        victim,
        separate_gc_frontier,
        free_floor,
        seed: 1,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    /// For any operations of tenants, the invariants hold and exactly the written pages are mapped.
    #[test]
    fn invariants_hold_under_any_requests(
        options in options(),
        dies in 1..5u32,
        np in prop_oneof![Just(4u32), Just(7), Just(16), Just(64), Just(100)],
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut ftl = drive(160, dies, np, options);
        let mut model: Contents<bool> = three_tenants(&mut ftl, 700, u64::from(dies) * 6);
        for step in steps {
            match step {
                Step::Write(t, p, n) => if let Some(t) = pick(&model, t) {
                    let written = model.get_mut(&t.0).unwrap();
                    for i in 0..n {
                        let page = (u64::from(p) * 7919 + u64::from(i * i)) % written.len() as u64;
                        ftl.write_page(t, page, &mut Untimed);
                        written[page as usize] = true;
                    }
                },
                Step::Trim(t, p, n) => if let Some(t) = pick(&model, t) {
                    let written = model.get_mut(&t.0).unwrap();
                    for i in 0..n {
                        let page = (u64::from(p) + u64::from(i)) % written.len() as u64;
                        ftl.trim_page(t, page, &mut Untimed);
                        written[page as usize] = false;
                    }
                },
                Step::Change(change) => change.make(&mut ftl, &mut model, &mut Untimed)?,
            }
            ftl.check().map_err(TestCaseError::fail)?;
            for t in ftl.tenants() {
                let domain = ftl.tenancy.known(t).unwrap().domain;
                let owned = ftl.blocks.iter().filter(|b| b.pool != SPARE && b.pool / dies == domain).map(|b| b.erases);
                let scanned = (owned.clone().min().unwrap(), owned.max().unwrap());
                prop_assert_eq!(ftl.space(t).unwrap().erases_min_max, scanned);
            }
        }
        for (t, written) in &model {
            for (page, &was_written) in written.iter().enumerate() {
                let mapped = ftl.read_page(TenantId(*t), page as u64, &mut Untimed).is_some();
                prop_assert_eq!(mapped, was_written, "tenant {} page {}", t, page);
            }
        }
    }
}

fn preconditioned() -> PageMapping {
    let mut ftl = drive(300, 2, 32, PageMappingOptions::default());
    for placement in [Placement::Isolated, Placement::Isolated, Placement::Shared] {
        ftl.create(32 * 150, placement, 30).unwrap();
    }
    let report = crate::preconditioning::precondition(&mut ftl, 9, |_| true);
    assert!(report.settled, "{report:?}");
    ftl
}

#[test]
fn a_snapshot_restores_the_same_future() {
    let mut ftl = preconditioned();
    ftl.request_move(Some(TenantId(0)), Some(TenantId(1)), 5).unwrap();
    let mut file = Vec::new();
    ftl.save("three tenants", &mut file).unwrap();
    let (mut restored, label) = PageMapping::restore(&mut &file[..]).unwrap();
    assert_eq!(label, "three tenants");
    for ftl in [&mut ftl, &mut restored] {
        ftl.advance_moves(100, &mut Untimed);
        for i in 0..50_000u64 {
            ftl.write_page(TenantId((i % 3) as u16), i * i % 4800, &mut Untimed);
        }
    }
    for t in 0..3 {
        assert_eq!(ftl.counters(TenantId(t)).unwrap(), restored.counters(TenantId(t)).unwrap());
        assert_eq!(ftl.space(TenantId(t)).unwrap(), restored.space(TenantId(t)).unwrap());
    }
    assert_eq!(*ftl.map, *restored.map);
}

#[test]
fn a_damaged_snapshot_is_refused() {
    let mut file = Vec::new();
    preconditioned().save("", &mut file).unwrap();
    let refused = |bytes: &[u8]| match PageMapping::restore(&mut &bytes[..]) {
        Err(FtlError::Snapshot(_) | FtlError::Invalid { .. }) => true,
        Err(_) | Ok(_) => false,
    };
    assert!(!refused(&file));
    assert!(refused(b"") && refused(b"not a snapshot at all") && refused(&file[..file.len() - 1]));
    let step = (file.len() / 400).max(1);
    for at in (0..file.len()).step_by(step).chain(0..64) {
        let mut damaged = file.clone();
        damaged[at] ^= 0x41;
        assert!(refused(&damaged), "byte {at} of {} was changed and nobody noticed", file.len());
    }
}

#[test]
fn no_memory_is_allocated_as_a_damaged_head_says() {
    let mut file = Vec::new();
    preconditioned().save("", &mut file).unwrap();
    // Geometry and options come first.
    for at in PROLOGUE_BYTES + 8..PROLOGUE_BYTES + 24 {
        let mut damaged = file.clone();
        damaged[at] ^= 0x41;
        let Err(refusal) = PageMapping::restore(&mut &damaged[..]) else { panic!("byte {at} was changed") };
        assert!(refusal.to_string().contains("the checksum does not match"), "byte {at}: {refusal}");
    }
}

#[test]
fn forged_snapshot_with_valid_checksum_is_refused_or_consistent() {
    let mut file = Vec::new();
    preconditioned().save("", &mut file).unwrap();
    let body = file.len() - 4;
    // The head is what names things; forge it byte by byte, and sum anew.
    for at in (21..body.min(30_000)).step_by(23) {
        for flip in [0x01, 0x80, 0xff] {
            let mut forged = file.clone();
            forged[at] ^= flip;
            sum_anew(&mut forged, head_bytes(&file));
            if let Ok((mut ftl, _)) = PageMapping::restore(&mut &forged[..]) {
                ftl.check().unwrap();
                (0..200).for_each(|page| ftl.write_page(TenantId(0), page, &mut Untimed));
            }
        }
    }
}

fn of_pages(pages: u64) -> Result<PageMapping, FtlError> {
    let pages_per_block = 1024;
    let blocks_per_die = u32::try_from(pages / u64::from(pages_per_block)).unwrap();
    let geometry =
        Geometry { page_bytes: 4096, pages_per_block, blocks_per_die, channels: 1, dies_per_channel: 1, planes: 1 };
    PageMapping::new(geometry, PageMappingOptions::default())
}

#[test]
fn the_largest_drive_works_within_9_bytes_a_page_and_a_larger_one_is_refused() {
    let most = Namespaces::most_physical_pages(u64::from(u32::MAX));
    let mut ftl = of_pages(most).unwrap();
    let pages = most - 1024 * 1000;
    let tenant = ftl.create(pages, Placement::Isolated, 1000).unwrap();
    for page in [0, pages / 2, pages - 1, pages - 1] {
        ftl.write_page(tenant, page, &mut Untimed);
    }
    assert_eq!(ftl.space(tenant).unwrap().mapped_pages, 3);
    let tables =
        ftl.map.len() * 4 + ftl.reverse.len() * 4 + ftl.valid.len() * 8 + ftl.blocks.len() * size_of::<Block>();
    assert!(tables as f64 / most as f64 <= 9.0, "{tables} bytes of tables");

    let Err(FtlError::Invalid { field: "size", reason }) = of_pages(most + 1024) else { panic!("not refused") };
    assert!(reason.contains(&most.to_string()), "{reason}");
}

#[test]
fn moves_complete_while_the_donors_write() {
    let mut ftl = drive(400, 1, 32, PageMappingOptions::default());
    let pages = 32 * 86;
    let (tight, ample, taker) = (TenantId(0), TenantId(1), TenantId(2));
    for ops_blocks in [7, 22, 5] {
        ftl.create(pages, Placement::Isolated, ops_blocks).unwrap();
    }
    crate::preconditioning::precondition(&mut ftl, 3, |_| true);
    ftl.request_move(Some(tight), Some(taker), 4).unwrap();
    ftl.request_move(Some(ample), Some(taker), 19).unwrap();
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(3);
    let mut pace = crate::mapping::move_pace::MovePace::default();
    // Between two steps the first writes more than a pass of GC frees for it.
    for _ in 0..400 {
        for tenant in [tight, ample] {
            (0..7).for_each(|_| ftl.write_page(tenant, crate::victim::below(&mut rng, pages), &mut Untimed));
        }
        pace.step(&mut ftl, &mut Untimed);
    }
    ftl.check().unwrap();
    assert_eq!([tight, ample, taker].map(|t| ftl.space(t).unwrap().ops_blocks), [3, 3, 28]);
}

#[test]
fn impossible_requests_are_refused_with_the_reason() {
    let mut ftl = drive(100, 2, 32, PageMappingOptions::default());
    assert!(matches!(ftl.create(0, Placement::Isolated, 50), Err(FtlError::Invalid { .. })));
    assert!(matches!(ftl.create(3200, Placement::Isolated, 5), Err(FtlError::BelowMinimumOps { minimum: 6, .. })));
    assert!(matches!(ftl.create(6400, Placement::Isolated, 50), Err(FtlError::NotEnoughBlocks { .. })));
    let tenant = ftl.create(3200, Placement::Isolated, 20).unwrap();
    assert!(matches!(ftl.request_move(Some(tenant), None, 15), Err(FtlError::BelowMinimumOps { would_keep: 5, .. })));
    assert!(matches!(ftl.request_move(None, Some(tenant), 81), Err(FtlError::NotEnoughBlocks { .. })));
    assert!(matches!(ftl.request_move(Some(TenantId(7)), None, 1), Err(FtlError::UnknownTenant(7))));
    assert!(matches!(ftl.resize(tenant, 32 * 200), Err(FtlError::BelowMinimumOps { .. })));
    assert!(matches!(ftl.delete(TenantId(3)), Err(FtlError::UnknownTenant(3))));
    ftl.check().unwrap();
}
