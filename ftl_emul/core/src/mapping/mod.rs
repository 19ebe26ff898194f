//! Mappings: placement of logical pages on flash. The engine, preconditioning and the Python API use a mapping only
//! through [`Mapping`], so that block and hybrid mappings can replace the page mapping.

pub mod bast;
mod block_division;
#[cfg(test)]
mod changes;
pub mod choice;
pub mod dftl;
mod ensure;
pub mod fast;
pub mod log_block;
pub mod move_pace;
mod ownership;
pub mod page;
pub(crate) mod snapshot_file;
mod tenancy;
mod wear;

use serde::{Deserialize, Serialize};

use crate::address::DieId;
use crate::error::FtlError;
use crate::geometry::Geometry;
use crate::nand::Nand;
use crate::op::TenantId;
pub use tenancy::Tenancy;

/// Blocks in which a tenant's pages may be placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Placement {
    /// In one pool with all other sharing tenants: GC for one copies pages of others.
    Shared,
    /// In separate blocks, with separate frontiers, OPS and GC.
    Isolated,
}

/// Counters of a tenant since its creation, in pages unless the name says otherwise.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantCounters {
    /// Pages written by the host.
    pub host_page_writes: u64,
    /// Pages read by the host from flash.
    pub host_page_reads: u64,
    /// Pages read by the host that were never written, or were trimmed: answered without flash.
    pub unmapped_page_reads: u64,
    /// Pages read because the host wrote a part of them.
    pub rmw_page_reads: u64,
    /// Pages that TRIM or write-zeroes unmapped.
    pub trimmed_pages: u64,
    /// Pages of any owner that were copied for this tenant; includes the next.
    pub gc_page_writes: u64,
    /// Part of those: pages copied to hand blocks to another tenant.
    pub reclaim_page_writes: u64,
    /// Blocks collected while serving this tenant.
    pub victims: u64,
    /// Valid pages in those blocks; over `victims` x pages per block this is u.
    pub victim_valid_pages: u64,
    /// Blocks erased while serving this tenant.
    pub erases: u64,
    /// Victims by their count of valid pages.
    pub victim_histogram: Vec<u64>,
    /// Pages copied while serving this tenant, by owner (index: tenant number).
    pub moved_pages_of: Vec<u64>,
}

/// Additional work of mappings other than the page mapping, since the tenant was created. Times are those of dies and
/// channels; 0 without a clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MappingCounters {
    /// Log blocks that became data blocks as they were.
    pub switch_merges: u64,
    /// Log blocks that became data blocks once the rest was copied to them.
    pub partial_merges: u64,
    /// Log blocks emptied by copying every logical block that had pages in them to a free block.
    pub full_merges: u64,
    /// Logical blocks copied in those full merges: as many as full merges (BAST), or more (FAST).
    pub merged_blocks: u64,
    /// Time of the switch merges: erases.
    pub switch_merge_ns: u64,
    /// Time of the partial merges.
    pub partial_merge_ns: u64,
    /// Time of the full merges.
    pub full_merge_ns: u64,
    /// Translation pages read.
    pub map_reads: u64,
    /// Translation pages programmed.
    pub map_writes: u64,
    /// Time of both, and of GC in translation blocks.
    pub map_ns: u64,
}

/// Present space of a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TenantSpace {
    /// Placement of its pages.
    pub placement: Placement,
    /// Size of the namespace.
    pub logical_pages: u64,
    /// Pages that hold data.
    pub mapped_pages: u64,
    /// Blocks the logical size fills; of all sharing tenants together when placement is shared.
    pub logical_blocks: u64,
    /// Blocks owned beyond that; likewise.
    pub ops_blocks: i64,
    /// The fewest OPS blocks with which GC makes progress.
    pub min_ops_blocks: u64,
    /// Erased blocks waiting to be written.
    pub free_blocks: u64,
    /// Pages left in the open blocks that host writes go to; 0 where a mapping has none.
    pub open_pages: u64,
    /// Least and most worn of the blocks owned, in erases.
    pub erases_min_max: (u32, u32),
    /// OPS blocks that pending moves will take away.
    pub pending_out_blocks: u64,
}

/// Result of a move of OPS blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MoveProgress {
    /// Blocks that changed owners in this call.
    pub moved_blocks: u64,
    /// Victims collected to free them.
    pub gc_passes: u64,
    /// Blocks still to be moved, over all pending moves.
    pub pending_blocks: u64,
}

/// A flash translation layer with tenants. Pages given to the page functions must lie inside the namespace
/// ([`Mapping::pages`]); they panic otherwise.
pub trait Mapping {
    /// The drive below.
    fn geometry(&self) -> &Geometry;

    /// Tenants, their blocks, and pending moves.
    fn tenancy(&self) -> &Tenancy;

    /// The same, to be changed.
    fn tenancy_mut(&mut self) -> &mut Tenancy;

    /// Pages of a block as tenants own and move them: an erase block, or a clustered block of several dies.
    fn block_pages(&self) -> u32 {
        self.tenancy().block_pages()
    }

    /// Pages of a tenant's namespace; 0 when there is no such tenant.
    #[inline]
    fn pages(&self, tenant: TenantId) -> u64 {
        self.tenancy().namespaces.pages(tenant)
    }

    /// Tenants in the order of their numbers.
    fn tenants(&self) -> Vec<TenantId> {
        self.tenancy().namespaces.tenants().collect()
    }

    /// Writes one page, after GC if there is no free page.
    fn write_page<N: Nand>(&mut self, tenant: TenantId, page: u64, nand: &mut N);

    /// Reads the part of a page that a host write leaves standing, then writes the page.
    fn rewrite_page_in_part<N: Nand>(&mut self, tenant: TenantId, page: u64, nand: &mut N);

    /// Reads one page; returns its die, or None when it is unmapped and no flash is read.
    fn read_page<N: Nand>(&mut self, tenant: TenantId, page: u64, nand: &mut N) -> Option<DieId>;

    /// The die of the page, if it has data. Not counted.
    fn die_to_read(&self, tenant: TenantId, page: u64) -> Option<DieId>;

    /// The die that a host write would go to now; None where that depends on the page written.
    fn die_to_write<N: Nand>(&self, _tenant: TenantId, _nand: &N) -> Option<DieId> {
        None
    }

    /// Whether the page has data. Not counted.
    fn is_mapped(&self, tenant: TenantId, page: u64) -> bool {
        self.die_to_read(tenant, page).is_some()
    }

    /// Unmaps one page.
    fn trim_page<N: Nand>(&mut self, tenant: TenantId, page: u64, nand: &mut N);

    /// Fetches the map entry that a coming access to the page will read.
    fn prefetch(&self, tenant: TenantId, page: u64);

    /// Prefetches further data for overwriting the page; reads the map entry, so call it some requests after
    /// [`Mapping::prefetch`] and some before the write.
    fn prefetch_overwrite(&self, tenant: TenantId, page: u64);

    /// Creates a namespace of `pages`, with `ops_blocks` in addition to those they fill.
    fn create_tenant(&mut self, pages: u64, placement: Placement, ops_blocks: u64) -> Result<TenantId, FtlError>;

    /// Deletes a namespace and its data; its blocks become spare.
    fn delete_tenant(&mut self, tenant: TenantId) -> Result<(), FtlError>;

    /// Changes the size of a namespace. Shrinking drops the pages beyond the end and leaves their blocks as OPS;
    /// growing takes spare blocks first, OPS after.
    fn resize_tenant(&mut self, tenant: TenantId, pages: u64) -> Result<(), FtlError>;

    /// Starts a move of OPS blocks of `from` to `to` (None: the device's spare). Rejected if `from` could not work
    /// without them. They change owners in [`Mapping::advance_moves`].
    fn request_move(&mut self, from: Option<TenantId>, to: Option<TenantId>, blocks: u64) -> Result<(), FtlError> {
        self.tenancy_mut().request_move(from, to, blocks)
    }

    /// Moves blocks of pending moves, collecting at most `max_gc_passes` victims to free them.
    fn advance_moves<N: Nand>(&mut self, max_gc_passes: u64, nand: &mut N) -> MoveProgress;

    /// True when moves are pending.
    #[inline]
    fn moves_pending(&self) -> bool {
        !self.tenancy().transfers.is_empty()
    }

    /// Pending moves: from, to (None: spare blocks), blocks still to be moved.
    fn pending_moves(&self) -> Vec<(Option<TenantId>, Option<TenantId>, u64)> {
        let transfers = self.tenancy().transfers.iter();
        transfers.filter(|t| t.blocks > 0).map(|t| (t.from, t.to, t.blocks)).collect()
    }

    /// Cancels the blocks that were not moved yet.
    fn cancel_moves(&mut self) {
        self.tenancy_mut().transfers.clear();
    }

    /// Blocks that no tenant owns.
    fn spare_blocks(&self) -> u64 {
        self.tenancy().spare_blocks()
    }

    /// Counters of a tenant since its creation.
    fn counters(&self, tenant: TenantId) -> Result<&TenantCounters, FtlError> {
        Ok(&self.tenancy().known(tenant)?.counters)
    }

    /// A tenant's merges and accesses to the map on flash; all 0 if a mapping has neither.
    fn mapping_counters(&self, tenant: TenantId) -> Result<MappingCounters, FtlError> {
        Ok(self.tenancy().known(tenant)?.mapping_counters)
    }

    /// Space of a tenant.
    fn space(&self, tenant: TenantId) -> Result<TenantSpace, FtlError>;

    /// Verifies every invariant of the mapping's state; the error names the first that is broken.
    fn check(&self) -> Result<(), String>;
}
