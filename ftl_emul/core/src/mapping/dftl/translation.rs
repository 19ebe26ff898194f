//! Translation pages: the map on flash, read and programmed a page of entries at a time, and the blocks it is given.

use crate::address::{DieId, LogicalPage};
use crate::convert::exact;
use crate::error::FtlError;
use crate::geometry::Geometry;
use crate::mapping::dftl::{DftlMapping, ENTRY_BYTES};
use crate::mapping::page::PageMapping;
use crate::mapping::{Mapping, Placement};
use crate::namespace::Namespaces;
use crate::nand::{Nand, Untimed};
use crate::op::TenantId;

/// Blocks of translation pages for which there is one more OPS block, beyond the minimum.
const TRANSLATION_BLOCKS_PER_OPS: u64 = 8;

/// Pages of a translation block's die and how many blocks: as many as the longest map could ever need, with room for
/// GC. Blocks that the map of the tenants there are does not need stay unused.
pub(super) fn translation_geometry(geometry: &Geometry) -> Geometry {
    let entries = u64::from(geometry.page_bytes / ENTRY_BYTES);
    let pages = Namespaces::page_numbers(geometry.pages()).div_ceil(entries);
    let blocks = geometry.blocks_for(pages);
    let dies = u64::from(geometry.dies());
    let blocks = blocks + blocks.div_ceil(TRANSLATION_BLOCKS_PER_OPS) + 4 * dies;
    Geometry { blocks_per_die: exact::<u32>(blocks.div_ceil(dies)), ..*geometry }
}

impl DftlMapping {
    /// Reads a translation page, unless it was never written according to the GTD.
    pub(super) fn read_translation<N: Nand>(&mut self, cause: TenantId, translation_page: u64, nand: &mut N) {
        let Some(tenant) = self.translation_tenant else { return };
        let before = nand.overhead_ns();
        if self.translation.read_page(tenant, translation_page, &mut MapNand(nand)).is_some() {
            let counters = &mut self.data.tenancy_mut().tenant(cause).mapping_counters;
            counters.map_reads += 1;
            counters.map_ns += nand.overhead_ns() - before;
        }
    }

    /// Updates a translation page on flash.
    pub(super) fn write_back<N: Nand>(&mut self, cause: TenantId, translation_page: u64, nand: &mut N) {
        self.read_translation(cause, translation_page, nand);
        let Some(tenant) = self.translation_tenant else { return };
        let before = nand.overhead_ns();
        let copied = |mapping: &PageMapping| mapping.counters(tenant).map_or(0, |c| c.gc_page_writes);
        let copied_before = copied(&self.translation);
        self.translation.write_page(tenant, translation_page, &mut MapNand(nand));
        let counters = &mut self.data.tenancy_mut().tenant(cause).mapping_counters;
        counters.map_writes += 1 + copied(&self.translation) - copied_before;
        counters.map_ns += nand.overhead_ns() - before;
    }

    /// Updates the entries of the pages that GC has moved: in the CMT if they are cached, else on flash, once for each
    /// translation page. `cause` pays for it; None: the owner of the pages.
    #[inline]
    pub(super) fn follow_moves<N: Nand>(&mut self, cause: Option<TenantId>, nand: &mut N) {
        let mut moved = std::mem::take(&mut self.moved);
        self.data.take_moved(&mut moved);
        for &page in &moved {
            self.cache.prefetch(page);
        }
        for &page in &moved {
            if !self.cache.mark_dirty(page) {
                self.outdated.add(exact::<u32>(self.cache.translation_page(page)));
            }
        }
        while let Some(translation_page) = self.outdated.take_least() {
            let translation_page = u64::from(translation_page);
            let payer = cause.unwrap_or_else(|| self.owner_of_first(&moved, translation_page));
            self.cache.clean(translation_page);
            self.write_back(payer, translation_page, nand);
        }
        self.moved = moved;
    }

    /// Owner of the first moved page whose entries are on a translation page and are not cached.
    fn owner_of_first(&self, moved: &[LogicalPage], translation_page: u64) -> TenantId {
        let on_it = |page: &&LogicalPage| {
            self.cache.translation_page(**page) == translation_page && !self.cache.contains(**page)
        };
        match moved.iter().filter(on_it).min() {
            Some(&page) => self.data.namespaces().owner(page),
            None => unreachable!("a translation page is outdated because of a page moved"),
        }
    }

    /// Makes the GTD as long as the map: a translation page for each that tenants' pages need.
    pub(super) fn fit_translation(&mut self) -> Result<(), FtlError> {
        let pages = self.data.namespaces().used_page_numbers().div_ceil(self.entries_per_page);
        let geometry = *self.translation.geometry();
        let ops =
            self.translation.tenancy().min_ops_blocks + geometry.blocks_for(pages).div_ceil(TRANSLATION_BLOCKS_PER_OPS);
        let Some(tenant) = self.translation_tenant else {
            self.translation_tenant = Some(self.translation.create_tenant(pages, Placement::Isolated, ops)?);
            return Ok(());
        };
        if pages > self.translation.pages(tenant) {
            self.translation.resize_tenant(tenant, pages)?;
            let missing = exact::<i64>(ops) - self.translation.space(tenant)?.ops_blocks;
            self.translation.request_move(None, Some(tenant), u64::try_from(missing).unwrap_or(0))?;
            self.translation.advance_moves(0, &mut Untimed);
        }
        Ok(())
    }

    /// Drops translation pages whose pages do not belong to any tenant.
    pub(super) fn drop_unused_translation(&mut self) {
        let Some(tenant) = self.translation_tenant else { return };
        for translation_page in 0..self.translation.pages(tenant) {
            let mut pages = translation_page * self.entries_per_page..(translation_page + 1) * self.entries_per_page;
            if pages.all(|page| self.data.namespaces().is_unowned(LogicalPage(exact::<u32>(page)))) {
                self.translation.trim_page(tenant, translation_page, &mut Untimed);
            }
        }
    }
}

/// Flash as translation pages see it: all that is done to it is done for the map.
struct MapNand<'a, N>(&'a mut N);

impl<N: Nand> Nand for MapNand<'_, N> {
    const TIMED: bool = N::TIMED;

    fn is_idle(&self, die: DieId) -> bool {
        self.0.is_idle(die)
    }

    fn busy_until(&self, die: DieId) -> u64 {
        self.0.busy_until(die)
    }

    fn program(&mut self, die: DieId) {
        self.0.map_program(die);
    }

    fn read(&mut self, die: DieId) {
        self.0.map_read(die);
    }

    fn read_for_rewrite(&mut self, die: DieId) {
        self.0.map_read(die);
    }

    fn copy(&mut self, die: DieId, pages: u32) {
        self.0.copy(die, pages);
    }

    fn copy_across(&mut self, from: DieId, to: DieId, pages: u32) {
        self.0.copy_across(from, to, pages);
    }

    fn erase(&mut self, die: DieId) {
        self.0.erase(die);
    }

    fn map_read(&mut self, die: DieId) {
        self.0.map_read(die);
    }

    fn map_program(&mut self, die: DieId) {
        self.0.map_program(die);
    }

    fn overhead_ns(&self) -> u64 {
        self.0.overhead_ns()
    }
}
