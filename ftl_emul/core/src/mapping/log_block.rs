//! Mappings with log blocks: every logical block has a data block in which pages are at their own offsets, and
//! overwritten pages go to *log blocks* until a *merge* combines both again.
//!
//! This module has the common parts of such mappings: blocks and their owners, data blocks, log blocks, the three kinds
//! of merge. A [`LogScheme`] decides which log block a write goes to, and which one is merged when:
//! [`crate::mapping::bast`] and [`crate::mapping::fast`].
//!
//! A block is an erase block or, with `cluster_dies`, a *clustered* one: the same-numbered blocks of several dies, with
//! their pages interleaved (C. Hyun et al., "A Performance Model and File System Space Allocation Scheme for SSDs",
//! section II). All counts of blocks are counts of these.
//!
//! Over-provisioning consists of log blocks, except for the free floor that merges copy to. An isolated tenant has its
//! own log blocks, sharing tenants have common ones.

mod blocks;
mod check;
mod merge;
mod ownership;
mod pages;
mod scheme;
mod snapshot;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::address::{BlockId, DieId, LogicalBlockId, LogicalPage, MapEntry};
use crate::block::{Block, BlockList};
use crate::convert::exact;
use crate::error::{FtlError, invalid};
use crate::geometry::Geometry;
use crate::mapping::block_division::BlockDivision;
use crate::mapping::ownership::Ownership;
use crate::mapping::tenancy::{SHARED_DOMAIN, Tenancy, Tenant};
use crate::mapping::{Mapping, MoveProgress, Placement, TenantSpace};
use crate::namespace::Namespaces;
use crate::nand::Nand;
use crate::op::TenantId;
use crate::pool::FreeBlocks;
use crate::table::{Table, prefetch_line};
pub(super) use merge::Purpose;
pub(super) use pages::{LogUse, LogicalBlock};
pub use scheme::{LogScheme, Write};

/// Options of a mapping with log blocks, beyond the shape of the drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogBlockOptions {
    /// Dies that a block spans, page after page; 1: blocks are erase blocks of one die.
    pub cluster_dies: u32,
    /// Erased blocks that each domain reserves as targets of merges.
    pub free_floor: u32,
}

impl Default for LogBlockOptions {
    fn default() -> Self {
        Self { cluster_dies: 1, free_floor: 1 }
    }
}

/// Blocks of a domain.
#[derive(Debug, Clone)]
pub(super) struct LogDomain {
    data_blocks: u64,
    /// Log blocks in `logs`.
    pub log_blocks: u64,
    /// Erased blocks of each cluster of dies.
    free: Vec<FreeBlocks>,
    /// Log blocks in the order of merging.
    pub logs: BlockList,
    /// The log block that takes sequential writes only, if open.
    pub sequential_log: BlockId,
    /// Where the next block is opened if its dies are idle.
    next_cluster: u32,
}

/// A mapping with log blocks.
pub type LogBlockMapping<S> = Store<S>;

/// Blocks, logical blocks and tenants; the scheme `S` determines where writes go.
pub struct Store<S> {
    geometry: Geometry,
    options: LogBlockOptions,
    division: BlockDivision,
    block_pages: u32,
    pub(super) logical: Table<LogicalBlock>,
    /// For each logical block, one bit a page: in the data block; then as many: in a log block.
    bits: Table<u64>,
    /// Logical page to physical page in a log block, where that holds it.
    log_page: Table<MapEntry>,
    /// Physical page of a log block to logical page; meaningful where `log_page` agrees.
    reverse: Table<LogicalPage>,
    /// Data blocks are `Full`, log blocks `Open`; only log blocks are in lists.
    pub(super) blocks: Table<Block>,
    pub(super) log_use: Table<LogUse>,
    /// Spare blocks in it are by cluster of dies; segments of namespaces are logical blocks.
    tenancy: Tenancy,
    pub(super) domains: Vec<LogDomain>,
    /// By tenant: written pages of erased blocks that do not make up a whole victim yet.
    victim_remainder_pages: Vec<u64>,
    /// Copies of the present merge by (source die, die of the target's cluster); a reused buffer.
    copies: Vec<u32>,
    /// Content of the flash, with which tests compare the tables.
    #[cfg(test)]
    flash: tests::Flash,
    scheme: std::marker::PhantomData<S>,
}

impl<S: LogScheme> Store<S> {
    /// An empty drive: every block erased and spare.
    pub fn new(geometry: Geometry, options: LogBlockOptions) -> Result<Self, FtlError> {
        geometry.validate()?;
        let width = options.cluster_dies;
        if width == 0 || geometry.dies() % width != 0 {
            return invalid("cluster_dies", format!("{width} does not divide the {} dies", geometry.dies()));
        }
        if !(1..=64).contains(&options.free_floor) {
            return invalid("free_floor", format!("{} is not between 1 and 64", options.free_floor));
        }
        let Some(block_pages) = geometry.pages_per_block.checked_mul(width).filter(|&pages| pages <= 1 << 20) else {
            return invalid("cluster_dies", format!("{width}: a block would have more than 2^20 pages"));
        };
        if geometry.pages() >= u64::from(u32::MAX) {
            return invalid(
                "size",
                format!("{} pages; {} can address at most {}", geometry.pages(), S::NAME, u32::MAX),
            );
        }
        let division = BlockDivision::new(block_pages);
        let clusters = geometry.dies() / width;
        let blocks = clusters as usize * geometry.blocks_per_die as usize;
        let mut mapping = Self {
            geometry,
            options,
            division,
            block_pages,
            logical: Table::zeroed(blocks)?,
            bits: Table::zeroed(2 * blocks * division.words_per_block)?,
            log_page: Table::zeroed(exact::<usize>(geometry.pages()))?,
            reverse: Table::zeroed(exact::<usize>(geometry.pages()))?,
            blocks: Table::zeroed(blocks)?,
            log_use: Table::zeroed(blocks)?,
            tenancy: Tenancy::new(
                block_pages,
                // The free floor, one log block, and the sequential one.
                u64::from(options.free_floor) + 1 + S::SEQUENTIAL_LOG_BLOCKS,
                Namespaces::with_segments(exact::<u32>(blocks), block_pages),
                FreeBlocks::of_new_drive(clusters, geometry.blocks_per_die),
            ),
            domains: Vec::new(),
            victim_remainder_pages: Vec::new(),
            copies: vec![0; (geometry.dies() * width) as usize],
            #[cfg(test)]
            flash: tests::Flash::new(blocks, block_pages),
            scheme: std::marker::PhantomData,
        };
        mapping.logical.fill(LogicalBlock::NONE);
        mapping.log_use.fill(LogUse::NONE);
        mapping.blocks.fill(Block::SPARE);
        mapping.reset_domain(SHARED_DOMAIN);
        Ok(mapping)
    }

    /// The present options.
    #[must_use]
    pub fn options(&self) -> &LogBlockOptions {
        &self.options
    }

    /// Logical block on the device, and page of it.
    #[inline(always)]
    fn locate(&self, tenant: TenantId, page: u64) -> (LogicalBlockId, u32) {
        let number = self.division.quotient(page);
        let offset = exact::<u32>(page - u64::from(number) * u64::from(self.block_pages));
        (LogicalBlockId(self.tenancy.namespaces.segments(tenant)[number as usize]), offset)
    }

    #[inline(always)]
    pub(super) fn tenant(&mut self, tenant: TenantId) -> &mut Tenant {
        self.tenancy.tenant(tenant)
    }

    /// The tenant that has a logical block.
    pub(super) fn owner_of_logical(&self, logical: LogicalBlockId) -> TenantId {
        self.tenancy.namespaces.owner_of_segment(logical.0)
    }
}

impl<S: LogScheme> Mapping for Store<S> {
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
        let (logical, offset) = self.locate(tenant, page);
        let held = self.holds(logical, offset);
        let owner = self.tenant(tenant);
        owner.counters.host_page_writes += 1;
        owner.mapped_pages += u64::from(!held);
        self.place(Write { logical, offset, cause: tenant }, nand);
    }

    fn rewrite_page_in_part<N: Nand>(&mut self, tenant: TenantId, page: u64, nand: &mut N) {
        let (logical, offset) = self.locate(tenant, page);
        if let Some(physical) = self.physical(logical, offset) {
            nand.read_for_rewrite(self.die_of(physical));
            self.tenant(tenant).counters.rmw_page_reads += 1;
        }
        self.write_page(tenant, page, nand);
    }

    fn read_page<N: Nand>(&mut self, tenant: TenantId, page: u64, nand: &mut N) -> Option<DieId> {
        let (logical, offset) = self.locate(tenant, page);
        let physical = self.physical(logical, offset);
        let counters = &mut self.tenant(tenant).counters;
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
    fn die_to_read(&self, tenant: TenantId, page: u64) -> Option<DieId> {
        let (logical, offset) = self.locate(tenant, page);
        self.physical(logical, offset).map(|physical| self.die_of(physical))
    }

    fn trim_page<N: Nand>(&mut self, tenant: TenantId, page: u64, nand: &mut N) {
        let (logical, offset) = self.locate(tenant, page);
        if self.holds(logical, offset) {
            self.supersede(logical, offset);
            let owner = self.tenant(tenant);
            owner.mapped_pages -= 1;
            owner.counters.trimmed_pages += 1;
            self.close_if_empty(logical, tenant, nand);
        }
    }

    #[inline(always)]
    fn prefetch(&self, tenant: TenantId, page: u64) {
        let (logical, offset) = self.locate(tenant, page);
        prefetch_line(self.logical.as_ptr().wrapping_add(logical.index()));
        self.bits.prefetch(self.bit(logical, offset).0);
        self.log_page.prefetch(self.division.logical(logical, offset).index());
    }

    #[inline(always)]
    fn prefetch_overwrite(&self, tenant: TenantId, page: u64) {
        let (logical, _) = self.locate(tenant, page);
        let LogicalBlock { data, log, .. } = self.logical[logical];
        prefetch_line(self.blocks.as_ptr().wrapping_add(data.index()));
        prefetch_line(self.blocks.as_ptr().wrapping_add(log.index()));
    }

    fn create_tenant(&mut self, pages: u64, placement: Placement, ops_blocks: u64) -> Result<TenantId, FtlError> {
        let tenant = self.create(pages, placement, ops_blocks)?;
        self.victim_remainder_pages.resize(self.tenancy.tenants.len(), 0);
        self.victim_remainder_pages[tenant.0 as usize] = 0;
        Ok(tenant)
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
