use proptest::prelude::*;
use rand_core::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::*;
use crate::engine::{PageCosts, Timeline, TimingModel};
use crate::geometry::NandTiming;
use crate::mapping::bast::{Bast, BastMapping};
use crate::mapping::changes::{Change, Contents, changes, pick, three_tenants};
use crate::mapping::fast::{Fast, FastMapping};
use crate::mapping::snapshot_file::{head_bytes, sum_anew};
use crate::nand::Untimed;
use crate::victim::below;

/// A logical block, and a page of it.
type Content = (LogicalBlockId, u32);

/// Contents of the flash, and its rule: pages of a block are programmed in ascending order, once.
#[derive(Debug)]
pub(super) struct Flash {
    /// By physical page: which page of which logical block, and which write of all writes it was.
    pages: Vec<Option<(Content, u64)>>,
    /// By block: the first page that can still be programmed, and pages programmed.
    used: Vec<(u32, u32)>,
    block_pages: u32,
    writes: u64,
}

impl Flash {
    pub fn new(blocks: usize, block_pages: u32) -> Self {
        let pages = vec![None; blocks * block_pages as usize];
        Self { pages, used: vec![(0, 0); blocks], block_pages, writes: 0 }
    }

    fn set(&mut self, block: BlockId, page: u32, content: (Content, u64)) {
        let (next, programmed) = &mut self.used[block.index()];
        assert!(page >= *next && page < self.block_pages, "page {page} of block {block} programmed after {next}");
        (*next, *programmed) = (page + 1, *programmed + 1);
        self.pages[(block.0 * self.block_pages + page) as usize] = Some(content);
    }

    pub fn program(&mut self, block: BlockId, page: u32, what: Content) {
        self.writes += 1;
        self.set(block, page, (what, self.writes));
    }

    pub fn erase(&mut self, block: BlockId, programmed: u32) {
        assert_eq!(self.used[block.index()].1, programmed, "pages programmed in block {block}");
        self.wipe(block);
    }

    pub fn wipe(&mut self, block: BlockId) {
        self.used[block.index()] = (0, 0);
        let first = (block.0 * self.block_pages) as usize;
        self.pages[first..first + self.block_pages as usize].fill(None);
    }
}

impl<S: LogScheme> Store<S> {
    /// The page operations of the next [`Store::copy_logical`].
    pub(super) fn copy_on_flash(&mut self, logical: LogicalBlockId, target: BlockId) {
        for offset in 0..self.block_pages {
            let Some(physical) = self.physical(logical, offset) else { continue };
            if self.division.block(physical) != target {
                let content = self.flash.pages[physical.index()].expect("copied pages were programmed");
                self.flash.set(target, offset, content);
            }
        }
    }

    /// The number of the write that a read would return.
    fn version(&self, tenant: TenantId, page: u64) -> Option<u64> {
        let (logical, offset) = self.locate(tenant, page);
        let physical = self.physical(logical, offset)?;
        let (what, version) = self.flash.pages[physical.index()].expect("what is read was programmed");
        assert_eq!(what, (logical, offset), "page {page} of tenant {} reads another page", tenant.0);
        Some(version)
    }

    fn write(&mut self, tenant: TenantId, pages: impl IntoIterator<Item = u64>) {
        pages.into_iter().for_each(|page| self.write_page(tenant, page, &mut Untimed));
        self.check().unwrap();
    }

    /// Switch, partial, full merges; copies; erases.
    fn merges(&self, tenant: TenantId) -> [u64; 5] {
        let (m, c) = (self.mapping_counters(tenant).unwrap(), self.counters(tenant).unwrap());
        [m.switch_merges, m.partial_merges, m.full_merges, c.gc_page_writes, c.erases]
    }
}

fn drive<S: LogScheme>(blocks_per_die: u32, dies: u32, pages_per_block: u32, cluster_dies: u32) -> Store<S> {
    let geometry =
        Geometry { page_bytes: 4096, pages_per_block, blocks_per_die, channels: dies, dies_per_channel: 1, planes: 1 };
    Store::new(geometry, LogBlockOptions { cluster_dies, free_floor: 1 }).unwrap()
}

/// Four pages a block; `logical` logical blocks, filled in order; `ops` OPS blocks, one of them the free floor.
fn small<S: LogScheme>(logical: u64, ops: u64) -> (Store<S>, TenantId) {
    let mut ftl = drive::<S>(logical as u32 + ops as u32, 1, 4, 1);
    let tenant = ftl.create_tenant(4 * logical, Placement::Isolated, ops).unwrap();
    ftl.write(tenant, 0..4 * logical);
    // The fill goes into data blocks in place.
    assert_eq!(ftl.merges(tenant), [0; 5]);
    (ftl, tenant)
}

#[test]
fn bast_merges_match_calculation_by_hand() {
    // Logical blocks A = pages 0..4, B = 4..8, C = 8..12. OPS 3: two log blocks and the free floor.
    let (mut ftl, t) = small::<Bast>(3, 3);

    // A in order: the log block fills (0 1 2 3). The next write to A finds it full: switch merge, no copies, the old
    // data block of A is erased. That write opens a new log block: [1].
    ftl.write(t, [0, 1, 2, 3]);
    assert_eq!(ftl.merges(t), [0, 0, 0, 0, 0]);
    ftl.write(t, [1]);
    assert_eq!(ftl.merges(t), [1, 0, 0, 0, 1]);

    // B: 4 5, in order, not full. Both log blocks are taken: A [1], B [4 5].
    ftl.write(t, [4, 5]);
    assert_eq!(ftl.merges(t), [1, 0, 0, 0, 1]);

    // C needs a log block. The least recently written is A's, [1]: page 1 is not at offset 0, so a full merge: the
    // four pages of A (three of its data block, one of the log block) are copied, two blocks are erased.
    ftl.write(t, [10]);
    assert_eq!(ftl.merges(t), [1, 0, 1, 4, 3]);

    // A needs a log block again. B's, [4 5], is the oldest and in order: partial merge, pages 6 and 7 are copied
    // behind, the old data block of B is erased.
    ftl.write(t, [0]);
    assert_eq!(ftl.merges(t), [1, 1, 1, 6, 4]);

    // C's log block fills up with the same page over and over: [10 10 10 10]. The next write to C finds it full and
    // out of order: full merge, four copies (8 9 11 of the data block, the newest 10), two erases.
    ftl.write(t, [10, 10, 10]);
    assert_eq!(ftl.merges(t), [1, 1, 1, 6, 4]);
    ftl.write(t, [10]);
    assert_eq!(ftl.merges(t), [1, 1, 2, 10, 6]);

    // u: 6 erased blocks had 4 + (4 + 1) + 4 + (4 + 4) = 21 written pages, of which 10 were copied: 5 whole blocks.
    let counters = ftl.counters(t).unwrap();
    assert_eq!((counters.victims, counters.victim_valid_pages), (5, 10));
    assert_eq!(ftl.mapping_counters(t).unwrap().merged_blocks, 2);
    // Log blocks merged had 4, 1, 2 and 1 valid pages.
    assert_eq!(counters.victim_histogram, [0, 2, 1, 0, 1]);
}

#[test]
fn bast_trims_leave_less_to_copy() {
    let (mut ftl, t) = small::<Bast>(2, 2);
    // A's log block [0]; page 2 of A is trimmed; B needs the only log block: partial merge with copies of 1 and 3.
    ftl.write(t, [0]);
    ftl.trim_page(t, 2, &mut Untimed);
    ftl.write(t, [5]);
    assert_eq!(ftl.merges(t), [0, 1, 0, 2, 1]);
    // All of B is trimmed: its data block and its log block are erased at once, nothing is copied.
    (4..8).for_each(|page| ftl.trim_page(t, page, &mut Untimed));
    assert_eq!(ftl.merges(t), [0, 1, 0, 2, 3]);
    ftl.check().unwrap();
    assert_eq!(ftl.space(t).unwrap().mapped_pages, 3);
}

#[test]
fn fast_merges_match_calculation_by_hand() {
    // Logical blocks A = 0..4, B = 4..8, C = 8..12. OPS 4: the free floor, the sequential log block (SW) and two
    // random ones (RW).
    let (mut ftl, t) = small::<Fast>(3, 4);

    // A in order from page 0: SW = [0 1 2 3], nothing is merged yet.
    ftl.write(t, [0, 1, 2, 3]);
    assert_eq!(ftl.merges(t), [0; 5]);

    // Page 4 begins B: SW is full of A, switch merge (one erase); SW = B [4 5].
    ftl.write(t, [4, 5]);
    assert_eq!(ftl.merges(t), [1, 0, 0, 0, 1]);

    // Page 7 belongs to the owner of SW but is out of order: partial merge, 6 and 7 are copied behind, one erase.
    // Then 7 goes to RW1 = [7].
    ftl.write(t, [7]);
    assert_eq!(ftl.merges(t), [1, 1, 0, 2, 2]);

    // RW1 = [7 1 9 1], RW2 = [2 2 10 11]: pages of A, B, C. No merge.
    ftl.write(t, [1, 9, 1, 2, 2, 10, 11]);
    assert_eq!(ftl.merges(t), [1, 1, 0, 2, 2]);

    // No room: RW1, the first opened, is the victim. Valid in it: 7 (B), 9 (C), the second 1 (A). One full merge of
    // three logical blocks, four copies each: 12; erased are three data blocks and RW1: 4. As A and C take their
    // pages of RW2 along, nothing valid is left there. The new log block is RW3 = [5].
    ftl.write(t, [5]);
    assert_eq!(ftl.merges(t), [1, 1, 1, 14, 6]);
    assert_eq!(ftl.mapping_counters(t).unwrap().merged_blocks, 3);

    // RW3 fills, [5 5 5 5]; the next write needs room: RW2 holds nothing valid and is erased without a merge.
    ftl.write(t, [5, 5, 5, 6]);
    assert_eq!(ftl.merges(t), [1, 1, 1, 14, 7]);

    // u: written pages of the 7 erased blocks: 4 (A) + 4 (B) + 3 x 4 + 4 (RW1) + 4 (RW2) = 28, of them 14 copied.
    let counters = ftl.counters(t).unwrap();
    assert_eq!((counters.victims, counters.victim_valid_pages), (7, 14));
    // Valid pages of SW, SW, RW1, RW2 when their turn came.
    assert_eq!(counters.victim_histogram, [1, 0, 1, 1, 1]);
}

#[test]
fn fast_merges_the_owner_of_the_sequential_log_block_into_it() {
    // OPS 3: the free floor, SW, one RW.
    let (mut ftl, t) = small::<Fast>(3, 3);
    // RW = [3 9 9 9] with page 3 of A; then SW = A [0 1].
    ftl.write(t, [3, 9, 9, 9, 0, 1]);
    assert_eq!(ftl.merges(t), [0; 5]);
    // Page 5 needs room in RW. Its victim holds 3 (A, the owner of SW) and 9 (C). A is merged into SW: partial, pages
    // 2 and 3 are copied, one erase. C is merged in full: 4 copies, its data block erased. Then RW is erased.
    ftl.write(t, [5]);
    assert_eq!(ftl.merges(t), [0, 1, 1, 6, 3]);
    assert_eq!(ftl.mapping_counters(t).unwrap().merged_blocks, 1);
}

#[test]
fn merges_take_the_time_of_their_copies_and_erases() {
    // Reads 10, programs 100, erases 1000, transfers 1; one die, copies stay inside it.
    let timing = NandTiming { read_ns: 10, program_ns: 100, erase_ns: 1000, transfer_ns: 1, suspend_ns: 0 };
    let (mut ftl, t) = small::<Bast>(3, 3);
    let costs = PageCosts::new(ftl.geometry(), &timing, TimingModel::Full { copyback: true });
    let mut timeline = Timeline::new(ftl.geometry(), costs);
    // The sequence of `bast_merges_match_calculation_by_hand` up to its partial merge.
    for page in [0, 1, 2, 3, 1, 4, 5, 10, 0] {
        timeline.begin();
        ftl.write_page(t, page, &mut timeline);
    }
    let merges = ftl.mapping_counters(t).unwrap();
    assert_eq!((merges.switch_merges, merges.switch_merge_ns), (1, 1000));
    assert_eq!((merges.full_merges, merges.full_merge_ns), (1, 4 * 110 + 2 * 1000));
    assert_eq!((merges.partial_merges, merges.partial_merge_ns), (1, 2 * 110 + 1000));
}

#[test]
fn pages_of_clustered_blocks_are_striped_over_the_dies() {
    let mut ftl = drive::<Bast>(12, 4, 8, 2);
    assert_eq!(ftl.block_pages(), 16);
    assert_eq!(ftl.spare_blocks(), 24);
    let t = ftl.create_tenant(64, Placement::Isolated, 3).unwrap();
    ftl.write(t, 0..64);
    let dies: Vec<u32> = (0..16).map(|page| ftl.read_page(t, page, &mut Untimed).unwrap().0).collect();
    assert!(dies.iter().enumerate().all(|(page, &die)| die == dies[0] + page as u32 % 2), "{dies:?}");
    // A write of all 16 pages in order ends in a switch merge, as for any block.
    ftl.write(t, (16..32).chain([16]));
    assert_eq!(ftl.merges(t), [1, 0, 0, 0, 1]);
}

#[test]
fn isolated_tenants_do_not_merge_each_others_blocks() {
    fn check<S: LogScheme>(placement: Placement) -> (u64, u64) {
        let mut ftl = drive::<S>(80, 2, 16, 1);
        let tenants = [0, 1].map(|_| ftl.create_tenant(16 * 40, placement, 10).unwrap());
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(5);
        for i in 0..20_000u64 {
            ftl.write_page(tenants[usize::from(i % 5 == 0)], below(&mut rng, 640), &mut Untimed);
        }
        ftl.check().unwrap();
        let moved = |t: usize, of: usize| ftl.counters(tenants[t]).unwrap().moved_pages_of[of];
        assert!(moved(0, 0) > 0 && moved(1, 1) > 0);
        (moved(0, 1), moved(1, 0))
    }
    for (isolated, shared) in [
        (check::<Bast>(Placement::Isolated), check::<Bast>(Placement::Shared)),
        (check::<Fast>(Placement::Isolated), check::<Fast>(Placement::Shared)),
    ] {
        assert_eq!(isolated, (0, 0));
        assert!(shared.0 > 0 && shared.1 > 0);
    }
}

#[test]
fn more_log_blocks_mean_fewer_copies() {
    fn waf<S: LogScheme>(ops: u64) -> f64 {
        let mut ftl = drive::<S>(400, 1, 32, 1);
        let t = ftl.create_tenant(32 * 300, Placement::Isolated, ops).unwrap();
        ftl.write(t, 0..32 * 300);
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(6);
        ftl.write(t, (0..40_000).map(|_| below(&mut rng, 32 * 300)));
        let before = ftl.counters(t).unwrap().clone();
        ftl.write(t, (0..200_000).map(|_| below(&mut rng, 32 * 300)));
        let after = ftl.counters(t).unwrap();
        let copies = (after.gc_page_writes - before.gc_page_writes) as f64;
        let u = (after.victim_valid_pages - before.victim_valid_pages) as f64
            / ((after.victims - before.victims) * 32) as f64;
        let waf = 1.0 + copies / (after.host_page_writes - before.host_page_writes) as f64;
        // u is defined so that it has the same meaning for merges as for GC.
        assert!((waf * (1.0 - u) - 1.0).abs() < 0.02, "WAF {waf}, u {u}");
        waf
    }
    let bast = [10, 40, 90].map(waf::<Bast>);
    let fast = [10, 40, 90].map(waf::<Fast>);
    assert!(bast.is_sorted_by(|a, b| a > b) && fast.is_sorted_by(|a, b| a > b), "{bast:?} {fast:?}");
    assert!(fast.iter().zip(&bast).all(|(f, b)| f < b), "{bast:?} {fast:?}");
}

#[test]
fn log_blocks_move_between_tenants() {
    let mut ftl = drive::<Fast>(100, 1, 8, 1);
    let [a, b] = [0, 1].map(|_| ftl.create_tenant(8 * 40, Placement::Isolated, 10).unwrap());
    for i in 0..5_000u64 {
        ftl.write_page([a, b][(i % 2) as usize], i * i * 7 % 320, &mut Untimed);
    }
    assert!(matches!(ftl.request_move(Some(a), Some(b), 8), Err(FtlError::BelowMinimumOps { minimum: 3, .. })));
    ftl.request_move(Some(a), Some(b), 7).unwrap();
    assert_eq!(ftl.space(a).unwrap().pending_out_blocks, 7);
    let progress = ftl.advance_moves(2, &mut Untimed);
    assert_eq!((progress.moved_blocks, progress.gc_passes, progress.pending_blocks), (2, 2, 5));
    while ftl.advance_moves(1, &mut Untimed).pending_blocks > 0 {
        ftl.check().unwrap();
    }
    assert_eq!((ftl.space(a).unwrap().ops_blocks, ftl.space(b).unwrap().ops_blocks), (3, 17));
    assert!(ftl.counters(a).unwrap().reclaim_page_writes > 0);
    assert!(ftl.request_move(None, Some(a), 1).is_err());
    ftl.write(a, 0..320);
}

#[test]
fn impossible_requests_are_refused_with_the_reason() {
    let geometry = Geometry {
        page_bytes: 4096,
        pages_per_block: 32,
        blocks_per_die: 50,
        channels: 3,
        dies_per_channel: 2,
        planes: 1,
    };
    let refused = |options| matches!(BastMapping::new(geometry, options), Err(FtlError::Invalid { .. }));
    assert!(refused(LogBlockOptions { cluster_dies: 4, free_floor: 1 }));
    assert!(refused(LogBlockOptions { cluster_dies: 0, free_floor: 1 }));
    assert!(refused(LogBlockOptions { cluster_dies: 1, free_floor: 0 }));
    let mut ftl = FastMapping::new(geometry, LogBlockOptions { cluster_dies: 3, free_floor: 1 }).unwrap();
    assert!(matches!(ftl.create_tenant(0, Placement::Isolated, 5), Err(FtlError::Invalid { .. })));
    assert!(matches!(
        ftl.create_tenant(960, Placement::Isolated, 2),
        Err(FtlError::BelowMinimumOps { minimum: 3, .. })
    ));
    assert!(matches!(
        ftl.create_tenant(96 * 99, Placement::Isolated, 3),
        Err(FtlError::NotEnoughBlocks { needed: 102, available: 100, .. })
    ));
    assert!(matches!(ftl.delete_tenant(TenantId(0)), Err(FtlError::UnknownTenant(0))));
    ftl.check().unwrap();
}

fn preconditioned<S: LogScheme>() -> Store<S> {
    let mut ftl = drive::<S>(300, 2, 16, 2);
    for placement in [Placement::Isolated, Placement::Isolated, Placement::Shared] {
        ftl.create_tenant(32 * 50, placement, 10).unwrap();
    }
    crate::preconditioning::precondition(&mut ftl, 9, |_| true);
    ftl
}

#[test]
fn a_snapshot_restores_the_same_future_and_damage_is_refused() {
    fn check<S: LogScheme>() {
        let mut ftl = preconditioned::<S>();
        ftl.request_move(Some(TenantId(0)), Some(TenantId(1)), 3).unwrap();
        let mut file = Vec::new();
        ftl.save("three tenants", &mut file).unwrap();
        let (mut restored, label) = Store::<S>::restore(&mut &file[..]).unwrap();
        assert_eq!(label, "three tenants");
        restored.flash = std::mem::replace(&mut ftl.flash, Flash::new(0, 0));
        ftl = Store::<S>::restore(&mut &file[..]).unwrap().0;
        ftl.flash = Flash { pages: restored.flash.pages.clone(), used: restored.flash.used.clone(), ..restored.flash };
        for ftl in [&mut ftl, &mut restored] {
            ftl.advance_moves(100, &mut Untimed);
            (0..20_000u64).for_each(|i| ftl.write_page(TenantId((i % 3) as u16), i * i % 1600, &mut Untimed));
            ftl.check().unwrap();
        }
        for t in ftl.tenants() {
            assert_eq!(ftl.counters(t).unwrap(), restored.counters(t).unwrap());
            assert_eq!(ftl.mapping_counters(t).unwrap(), restored.mapping_counters(t).unwrap());
        }
        for at in (0..file.len()).step_by(file.len() / 200).chain(0..24) {
            let mut damaged = file.clone();
            damaged[at] ^= 0x41;
            assert!(Store::<S>::restore(&mut &damaged[..]).is_err(), "byte {at} was changed and nobody noticed");
        }
    }
    check::<Bast>();
    check::<Fast>();
    let mut file = Vec::new();
    preconditioned::<Bast>().save("", &mut file).unwrap();
    assert!(matches!(FastMapping::restore(&mut &file[..]), Err(FtlError::Snapshot(_))));
}

#[test]
fn forged_snapshot_with_valid_checksum_is_refused_or_consistent() {
    let mut file = Vec::new();
    preconditioned::<Fast>().save("", &mut file).unwrap();
    let body = file.len() - 4;
    for at in (21..body).step_by(body / 700) {
        for flip in [0x01, 0x80, 0xff] {
            let mut forged = file.clone();
            forged[at] ^= flip;
            sum_anew(&mut forged, head_bytes(&file));
            if let Ok((ftl, _)) = FastMapping::restore(&mut &forged[..]) {
                ftl.check().unwrap();
            }
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Write(u8, u32, u32, bool),
    Trim(u8, u32, u32),
    Change(Change),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (any::<u8>(), any::<u32>(), 1..120u32, any::<bool>()).prop_map(|(t, p, n, s)| Step::Write(t, p, n, s)),
        3 => (any::<u8>(), any::<u32>(), 1..60u32).prop_map(|(t, p, n)| Step::Trim(t, p, n)),
        7 => changes(900, 1200, 20).prop_map(Step::Change),
    ]
}

/// For any operations of tenants in any order: the invariants hold after every step, every read returns the newest
/// write, no page is programmed twice or out of order, and the counters are consistent.
fn any_requests<S: LogScheme>(width: u32, clusters: u32, np: u32, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let mut ftl = drive::<S>(300 / clusters, width * clusters, np, width);
    let timing = NandTiming { read_ns: 10, program_ns: 100, erase_ns: 1000, transfer_ns: 1, suspend_ns: 0 };
    let costs = PageCosts::new(ftl.geometry(), &timing, TimingModel::Full { copyback: false });
    let mut timeline = Timeline::new(ftl.geometry(), costs);
    let mut model: Contents<Option<u64>> = three_tenants(&mut ftl, 300, 4);
    for step in steps {
        timeline.begin();
        match step {
            Step::Write(t, p, n, sequential) => {
                if let Some(t) = pick(&model, t) {
                    let versions = model.get_mut(&t.0).unwrap();
                    for i in 0..n {
                        let further = if sequential { i } else { i * i * 7 };
                        let page = (u64::from(p) + u64::from(further)) % versions.len() as u64;
                        ftl.write_page(t, page, &mut timeline);
                        versions[page as usize] = Some(ftl.flash.writes);
                    }
                }
            }
            Step::Trim(t, p, n) => {
                if let Some(t) = pick(&model, t) {
                    let versions = model.get_mut(&t.0).unwrap();
                    for i in 0..n {
                        let page = (u64::from(p) + u64::from(i)) % versions.len() as u64;
                        ftl.trim_page(t, page, &mut timeline);
                        versions[page as usize] = None;
                    }
                }
            }
            Step::Change(change) => change.make(&mut ftl, &mut model, &mut timeline)?,
        }
        ftl.check().map_err(TestCaseError::fail)?;
        for (&t, versions) in &model {
            let tenant = TenantId(t);
            for (page, &newest) in versions.iter().enumerate() {
                prop_assert_eq!(ftl.version(tenant, page as u64), newest, "tenant {} page {}", t, page);
            }
            let (c, m) = (ftl.counters(tenant).unwrap(), ftl.mapping_counters(tenant).unwrap());
            prop_assert_eq!(c.moved_pages_of.iter().sum::<u64>(), c.gc_page_writes);
            prop_assert_eq!(c.victim_valid_pages, c.gc_page_writes);
            prop_assert!(c.reclaim_page_writes <= c.gc_page_writes && m.full_merges <= m.merged_blocks);
            prop_assert!(c.victims <= c.erases);
            let domain = ftl.tenancy.known(tenant).unwrap().domain;
            let owned = ftl.blocks.iter().filter(|b| b.pool == domain).map(|b| b.erases);
            let scanned = (owned.clone().min().unwrap(), owned.max().unwrap());
            prop_assert_eq!(ftl.space(tenant).unwrap().erases_min_max, scanned);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn bast_returns_the_newest_write_under_any_requests(
        width in 1..4u32,
        clusters in 1..4u32,
        np in prop_oneof![Just(4u32), Just(7), Just(16), Just(33), Just(100)],
        steps in prop::collection::vec(step(), 1..60),
    ) {
        any_requests::<Bast>(width, clusters, np, steps)?;
    }

    #[test]
    fn fast_returns_the_newest_write_under_any_requests(
        width in 1..4u32,
        clusters in 1..4u32,
        np in prop_oneof![Just(4u32), Just(7), Just(16), Just(33), Just(100)],
        steps in prop::collection::vec(step(), 1..60),
    ) {
        any_requests::<Fast>(width, clusters, np, steps)?;
    }
}
