//! Page mapping: any logical page may live in any page of its domain's blocks.
//!
//! Blocks are owned by domains (see [`crate::mapping::tenancy`]), and inside a domain by a *pool* for each die. GC,
//! frontiers and the free-block floor belong to the pool; a host write picks the pool, by preference on an idle die, in
//! rotation, and never on a die that is running out of reclaimable space.

mod check;
mod gc;
mod ownership;
mod placing;
mod snapshot;
#[cfg(test)]
mod tests;

use rand_core::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

use crate::address::{BlockId, DieId, LogicalPage, MapEntry, PhysicalPage};
use crate::block::Block;
use crate::convert::exact;
use crate::error::{FtlError, invalid};
use crate::geometry::Geometry;
use crate::mapping::block_division::BlockDivision;
use crate::mapping::ownership::Ownership;
use crate::mapping::tenancy::{SHARED_DOMAIN, Tenancy};
use crate::mapping::{Mapping, MoveProgress, Placement, TenantSpace};
use crate::namespace::Namespaces;
use crate::nand::Nand;
use crate::op::TenantId;
use crate::pool::{FreeBlocks, HOST, Pool};
use crate::table::{Table, prefetch_line};
use crate::victim::VictimPolicy;

/// Options of a page mapping, beyond the shape of the drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageMappingOptions {
    /// Which block GC collects.
    pub victim: VictimPolicy,
    /// GC copies to separate frontiers instead of the host's.
    pub separate_gc_frontier: bool,
    /// Erased blocks that each pool reserves.
    pub free_floor: u32,
    /// Seed of the random victim policies.
    pub seed: u64,
}

impl PageMappingOptions {
    /// Blocks of a pool that hold no reclaimable space: the free floor and the open blocks.
    #[inline(always)]
    fn held_blocks(&self) -> u32 {
        self.free_floor + 1 + u32::from(self.separate_gc_frontier)
    }
}

impl Default for PageMappingOptions {
    fn default() -> Self {
        Self { victim: VictimPolicy::Greedy, separate_gc_frontier: false, free_floor: 1, seed: 0 }
    }
}

/// State of a domain, whose pools are `dies` consecutive ones.
#[derive(Debug, Clone, Copy)]
struct PageDomain {
    /// Where the next host write goes if that die is idle and has slack.
    next_die: u32,
    /// Pages that may still become valid: over all pools, (blocks - held) x pages per block - valid.
    slack_pages: i64,
}

/// The page mapping.
pub struct PageMapping {
    geometry: Geometry,
    options: PageMappingOptions,
    division: BlockDivision,
    map: Table<MapEntry>,
    /// Physical page to logical page; meaningful where `valid` says so.
    reverse: Table<LogicalPage>,
    /// One bit a physical page, each block's padded to whole words.
    valid: Table<u64>,
    blocks: Table<Block>,
    /// Last invalidation of each block; kept for cost-benefit only, else empty.
    stamps: Vec<u64>,
    /// Spare blocks in it are by die.
    tenancy: Tenancy,
    domains: Vec<PageDomain>,
    pools: Vec<Pool>,
    /// Host page writes so far: the clock of block ages.
    write_clock: u64,
    rng: Xoshiro256PlusPlus,
    /// Pages of the present victim; a reused buffer.
    scratch: Vec<LogicalPage>,
    /// Pages that GC has moved since they were last taken, where the map is on flash and has to be updated.
    moved: Option<Vec<LogicalPage>>,
}

impl PageMapping {
    /// An empty drive: every block erased and spare.
    pub fn new(geometry: Geometry, options: PageMappingOptions) -> Result<Self, FtlError> {
        geometry.validate()?;
        if !(1..=64).contains(&options.free_floor) {
            return invalid("free_floor", format!("{} is not between 1 and 64", options.free_floor));
        }
        let page_numbers = Namespaces::page_numbers(geometry.pages());
        if page_numbers >= u64::from(u32::MAX) {
            let most = Namespaces::most_physical_pages(u64::from(u32::MAX));
            return invalid(
                "size",
                format!("{} pages are more than the {most} that can be emulated", geometry.pages()),
            );
        }
        let division = BlockDivision::new(geometry.pages_per_block);
        let block_count = exact::<usize>(geometry.blocks());
        let mut mapping = Self {
            geometry,
            options,
            division,
            map: Table::zeroed(exact::<usize>(page_numbers))?,
            reverse: Table::zeroed(exact::<usize>(geometry.pages()))?,
            valid: Table::zeroed(block_count * division.words_per_block)?,
            blocks: Table::zeroed(block_count)?,
            stamps: Vec::new(),
            tenancy: Tenancy::new(
                geometry.pages_per_block,
                // On each die what is held, and a block's worth of slack.
                u64::from(geometry.dies()) * (u64::from(options.held_blocks()) + 1),
                Namespaces::default(),
                FreeBlocks::of_new_drive(geometry.dies(), geometry.blocks_per_die),
            ),
            domains: Vec::new(),
            pools: Vec::new(),
            write_clock: 0,
            rng: Xoshiro256PlusPlus::seed_from_u64(options.seed),
            scratch: Vec::with_capacity(geometry.pages_per_block as usize),
            moved: None,
        };
        mapping.blocks.fill(Block::SPARE);
        if options.victim == VictimPolicy::CostBenefit {
            mapping.stamps = vec![0; block_count];
        }
        mapping.reset_domain(SHARED_DOMAIN);
        Ok(mapping)
    }

    /// The present options.
    #[must_use]
    pub fn options(&self) -> &PageMappingOptions {
        &self.options
    }

    /// Keeps the pages that GC moves, for [`Self::take_moved`].
    pub(in crate::mapping) fn keep_moved(&mut self) {
        self.moved = Some(Vec::new());
    }

    /// Pages moved by GC since they were last taken, in place of what `into` held.
    #[inline]
    pub(in crate::mapping) fn take_moved(&mut self, into: &mut Vec<LogicalPage>) {
        into.clear();
        if let Some(moved) = self.moved.as_mut().filter(|moved| !moved.is_empty()) {
            std::mem::swap(moved, into);
        }
    }

    /// Owners of device-wide logical pages.
    #[inline(always)]
    pub(in crate::mapping) fn namespaces(&self) -> &Namespaces {
        &self.tenancy.namespaces
    }

    /// A tenant's page as a page of the device.
    #[inline(always)]
    fn global(&self, tenant: TenantId, page: u64) -> LogicalPage {
        self.tenancy.namespaces.global(tenant, page)
    }
}

impl Mapping for PageMapping {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    #[inline(always)]
    fn tenancy(&self) -> &Tenancy {
        &self.tenancy
    }

    #[inline(always)]
    fn tenancy_mut(&mut self) -> &mut Tenancy {
        &mut self.tenancy
    }

    #[inline]
    fn write_page<N: Nand>(&mut self, tenant: TenantId, page: u64, nand: &mut N) {
        let logical = self.global(tenant, page);
        let old = self.map[logical];
        let owner = self.tenancy.tenant(tenant);
        owner.mapped_pages += u64::from(!old.is_some());
        owner.counters.host_page_writes += 1;
        let domain = owner.domain;
        // The old copy dies before GC can run for the new one; otherwise GC would move a dead page.
        if let Some(physical) = old.get() {
            self.invalidate(domain, physical);
        }
        self.write_clock += 1;
        let pool = self.take_next_pool(domain, nand);
        if self.pools[pool].frontiers[HOST].next_page >= self.geometry.pages_per_block {
            self.make_room(pool, tenant, nand);
        }
        nand.run_deferred_step(pool, self.pools[pool].die);
        nand.program(self.pools[pool].die);
        self.append(pool, HOST, logical);
        self.pools[pool].valid += 1;
        self.domains[domain as usize].slack_pages -= 1;
    }

    fn rewrite_page_in_part<N: Nand>(&mut self, tenant: TenantId, page: u64, nand: &mut N) {
        if let Some(physical) = self.map[self.global(tenant, page)].get() {
            nand.read_for_rewrite(self.die_of(physical));
            self.tenancy.tenant(tenant).counters.rmw_page_reads += 1;
        }
        self.write_page(tenant, page, nand);
    }

    #[inline]
    fn read_page<N: Nand>(&mut self, tenant: TenantId, page: u64, nand: &mut N) -> Option<DieId> {
        let physical = self.map[self.global(tenant, page)].get();
        let counters = &mut self.tenancy.tenant(tenant).counters;
        let Some(physical) = physical else {
            counters.unmapped_page_reads += 1;
            return None;
        };
        counters.host_page_reads += 1;
        let die = self.die_of(physical);
        nand.read(die);
        Some(die)
    }

    #[inline]
    fn die_to_write<N: Nand>(&self, tenant: TenantId, nand: &N) -> Option<DieId> {
        let domain = self.tenancy.domain_of(tenant).ok()?;
        Some(self.pools[self.next_pool(domain, nand)].die)
    }

    #[inline]
    fn die_to_read(&self, tenant: TenantId, page: u64) -> Option<DieId> {
        self.map[self.global(tenant, page)].get().map(|physical| self.die_of(physical))
    }

    fn trim_page<N: Nand>(&mut self, tenant: TenantId, page: u64, _nand: &mut N) {
        let logical = self.global(tenant, page);
        if let Some(physical) = self.map[logical].get() {
            let owner = self.tenancy.tenant(tenant);
            owner.mapped_pages -= 1;
            owner.counters.trimmed_pages += 1;
            let domain = owner.domain;
            self.invalidate(domain, physical);
            self.map[logical] = MapEntry::NONE;
        }
    }

    #[inline(always)]
    fn prefetch(&self, tenant: TenantId, page: u64) {
        self.map.prefetch(self.global(tenant, page).index());
    }

    #[inline(always)]
    fn prefetch_overwrite(&self, tenant: TenantId, page: u64) {
        let physical = self.map[self.global(tenant, page)].page_or_last();
        let block = self.division.block(physical);
        let page_of_block = self.division.page_of_block(block, physical) as usize;
        self.valid.prefetch(block.index() * self.division.words_per_block + page_of_block / 64);
        prefetch_line(self.blocks.as_ptr().wrapping_add(block.index()));
    }

    fn create_tenant(&mut self, pages: u64, placement: Placement, ops_blocks: u64) -> Result<TenantId, FtlError> {
        self.create(pages, placement, ops_blocks)
    }

    fn delete_tenant(&mut self, tenant: TenantId) -> Result<(), FtlError> {
        self.delete(tenant)
    }

    fn resize_tenant(&mut self, tenant: TenantId, pages: u64) -> Result<(), FtlError> {
        self.resize(tenant, pages)
    }

    fn advance_moves<N: Nand>(&mut self, max_gc_passes: u64, nand: &mut N) -> MoveProgress {
        self.hand_over(max_gc_passes, nand)
    }

    fn space(&self, tenant: TenantId) -> Result<TenantSpace, FtlError> {
        self.space_of(tenant)
    }

    fn check(&self) -> Result<(), String> {
        self.check_invariants()
    }
}

impl PageMapping {
    #[inline(always)]
    fn die_of(&self, physical: PhysicalPage) -> DieId {
        self.die_of_block(self.division.block(physical))
    }

    #[inline(always)]
    fn die_of_block(&self, block: BlockId) -> DieId {
        DieId(block.0 / self.geometry.blocks_per_die)
    }
}
