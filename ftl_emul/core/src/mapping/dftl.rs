//! DFTL: page mapping with its map on flash and a part of it in memory.
//!
//! A. Gupta, Y. Kim, B. Urgaonkar, "DFTL: a flash translation layer employing demand-based selective caching of
//! page-level address mappings", ASPLOS 2009. The map fills *translation pages*, each with the entries of as many
//! consecutive logical pages as fit; they live in *translation blocks* of their own. In memory are the global
//! translation directory (GTD: where each translation page is) and the cached mapping table (CMT).
//!
//! Data is placed by the unmodified [`PageMapping`], so GC of data is the same; translation pages are the data of a
//! second page mapping, whose map is the GTD. Translation blocks are in addition to the drive's blocks, and all tenants
//! share them and the CMT. Costs are charged to the tenant that caused them, in [`MappingCounters`]: `gc_page_writes`
//! and `erases` of [`TenantCounters`] count data only.
//!
//! Whoever touches a page loads its entry first. An entry that goes dirty out of the CMT costs reading and programming
//! its translation page, with all other dirty entries of that page. GC that moves pages whose entries are not cached
//! does the same, once for each translation page concerned.
//!
//! [`MappingCounters`]: crate::mapping::MappingCounters
//! [`TenantCounters`]: crate::mapping::TenantCounters

mod cache;
mod number_set;
mod snapshot;
#[cfg(test)]
mod tests;
mod translation;

use serde::{Deserialize, Serialize};

use crate::address::{DieId, LogicalPage};
use crate::convert::exact;
use crate::error::{FtlError, invalid};
use crate::geometry::Geometry;
use crate::mapping::page::{PageMapping, PageMappingOptions};
use crate::mapping::tenancy::Tenancy;
use crate::mapping::{Mapping, MoveProgress, Placement, TenantSpace};
use crate::namespace::Namespaces;
use crate::nand::Nand;
use crate::op::TenantId;
use cache::Cache;
use number_set::NumberSet;
use translation::translation_geometry;

/// Bytes of a map entry on flash.
const ENTRY_BYTES: u32 = 4;
/// By default the CMT has this part of the map.
const DEFAULT_CACHED_PART: u64 = 32;
/// Options of DFTL beyond the shape of the drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DftlOptions {
    /// Placement of data.
    pub page: PageMappingOptions,
    /// Entries of the CMT; None: a thirty-second of the drive's pages.
    pub cached_entries: Option<u64>,
}

/// The page mapping with its map on flash.
pub struct DftlMapping {
    options: DftlOptions,
    data: PageMapping,
    /// Translation pages are the pages of its only tenant.
    translation: PageMapping,
    translation_tenant: Option<TenantId>,
    entries_per_page: u64,
    cache: Cache,
    /// Pages that GC has just moved; a reused buffer.
    moved: Vec<LogicalPage>,
    /// Translation pages that those pages have made out of date.
    outdated: NumberSet,
}

impl DftlMapping {
    /// An empty drive: every block erased and spare.
    pub fn new(geometry: Geometry, options: DftlOptions) -> Result<Self, FtlError> {
        let mut data = PageMapping::new(geometry, options.page)?;
        data.keep_moved();
        let translation = PageMapping::new(translation_geometry(&geometry), PageMappingOptions::default())?;
        let (cache, entries_per_page) = cache(&geometry, &options)?;
        let pages = Namespaces::page_numbers(geometry.pages()).div_ceil(entries_per_page);
        Ok(Self {
            options,
            data,
            translation,
            translation_tenant: None,
            entries_per_page,
            cache,
            moved: Vec::new(),
            outdated: NumberSet::below(exact::<usize>(pages)),
        })
    }

    /// The present options.
    #[must_use]
    pub fn options(&self) -> &DftlOptions {
        &self.options
    }

    #[inline(always)]
    fn global(&self, tenant: TenantId, page: u64) -> LogicalPage {
        self.data.namespaces().global(tenant, page)
    }

    /// Has the map entry of a page in the CMT; returns the page in the device-wide space.
    #[inline]
    fn load<N: Nand>(&mut self, tenant: TenantId, page: u64, nand: &mut N) -> LogicalPage {
        let global = self.global(tenant, page);
        if !self.cache.touch(global) {
            self.miss(tenant, global, nand);
        }
        global
    }

    #[cold]
    #[inline(never)]
    fn miss<N: Nand>(&mut self, cause: TenantId, global: LogicalPage, nand: &mut N) {
        if let Some(evicted) = self.cache.make_room() {
            self.write_back(cause, evicted, nand);
        }
        self.read_translation(cause, self.cache.translation_page(global), nand);
        self.cache.insert(global);
    }

    /// Drops the map entries of pages that will no longer belong to a tenant.
    fn forget(&mut self, tenant: TenantId, pages: std::ops::Range<u64>) {
        for page in pages {
            let global = self.global(tenant, page);
            self.cache.remove(global);
        }
    }
}

fn cache(geometry: &Geometry, options: &DftlOptions) -> Result<(Cache, u64), FtlError> {
    let entries_per_page = u64::from(geometry.page_bytes / ENTRY_BYTES);
    let capacity = options.cached_entries.unwrap_or(geometry.pages().div_ceil(DEFAULT_CACHED_PART));
    if !(1..u64::from(u32::MAX)).contains(&capacity) {
        return invalid("cached_entries", format!("{capacity} is not between 1 and {}", u32::MAX - 1));
    }
    let cache = Cache::new(exact::<usize>(capacity), Namespaces::page_numbers(geometry.pages()), entries_per_page)?;
    Ok((cache, entries_per_page))
}

impl Mapping for DftlMapping {
    fn geometry(&self) -> &Geometry {
        self.data.geometry()
    }

    #[inline(always)]
    fn tenancy(&self) -> &Tenancy {
        self.data.tenancy()
    }

    #[inline(always)]
    fn tenancy_mut(&mut self) -> &mut Tenancy {
        self.data.tenancy_mut()
    }

    #[inline]
    fn write_page<N: Nand>(&mut self, tenant: TenantId, page: u64, nand: &mut N) {
        let global = self.load(tenant, page, nand);
        self.data.write_page(tenant, page, nand);
        self.cache.mark_dirty(global);
        self.follow_moves(Some(tenant), nand);
    }

    fn rewrite_page_in_part<N: Nand>(&mut self, tenant: TenantId, page: u64, nand: &mut N) {
        let global = self.load(tenant, page, nand);
        self.data.rewrite_page_in_part(tenant, page, nand);
        self.cache.mark_dirty(global);
        self.follow_moves(Some(tenant), nand);
    }

    #[inline]
    fn read_page<N: Nand>(&mut self, tenant: TenantId, page: u64, nand: &mut N) -> Option<DieId> {
        self.load(tenant, page, nand);
        self.data.read_page(tenant, page, nand)
    }

    #[inline]
    fn die_to_write<N: Nand>(&self, tenant: TenantId, nand: &N) -> Option<DieId> {
        self.data.die_to_write(tenant, nand)
    }

    #[inline]
    fn die_to_read(&self, tenant: TenantId, page: u64) -> Option<DieId> {
        self.data.die_to_read(tenant, page)
    }

    fn trim_page<N: Nand>(&mut self, tenant: TenantId, page: u64, nand: &mut N) {
        let global = self.load(tenant, page, nand);
        if self.data.is_mapped(tenant, page) {
            self.data.trim_page(tenant, page, nand);
            self.cache.mark_dirty(global);
        }
    }

    #[inline(always)]
    fn prefetch(&self, tenant: TenantId, page: u64) {
        self.cache.prefetch(self.global(tenant, page));
        self.data.prefetch(tenant, page);
    }

    #[inline(always)]
    fn prefetch_overwrite(&self, tenant: TenantId, page: u64) {
        self.data.prefetch_overwrite(tenant, page);
    }

    fn create_tenant(&mut self, pages: u64, placement: Placement, ops_blocks: u64) -> Result<TenantId, FtlError> {
        let tenant = self.data.create_tenant(pages, placement, ops_blocks)?;
        if let Err(refusal) = self.fit_translation() {
            self.data.delete_tenant(tenant)?;
            return Err(refusal);
        }
        Ok(tenant)
    }

    fn delete_tenant(&mut self, tenant: TenantId) -> Result<(), FtlError> {
        self.forget(tenant, 0..self.data.pages(tenant));
        self.data.delete_tenant(tenant)?;
        self.drop_unused_translation();
        Ok(())
    }

    fn resize_tenant(&mut self, tenant: TenantId, pages: u64) -> Result<(), FtlError> {
        let before = self.data.pages(tenant);
        let cut: Vec<LogicalPage> = (pages.max(1)..before).map(|page| self.global(tenant, page)).collect();
        self.data.resize_tenant(tenant, pages)?;
        for global in cut {
            self.cache.remove(global);
        }
        self.drop_unused_translation();
        self.fit_translation()
    }

    fn advance_moves<N: Nand>(&mut self, max_gc_passes: u64, nand: &mut N) -> MoveProgress {
        let progress = self.data.advance_moves(max_gc_passes, nand);
        self.follow_moves(None, nand);
        progress
    }

    fn space(&self, tenant: TenantId) -> Result<TenantSpace, FtlError> {
        self.data.space(tenant)
    }

    fn check(&self) -> Result<(), String> {
        self.data.check()?;
        self.translation.check().map_err(|e| format!("translation blocks: {e}"))?;
        self.cache.check()?;
        let needed = self.data.namespaces().used_page_numbers().div_ceil(self.entries_per_page);
        let there = self.translation_tenant.map_or(0, |t| self.translation.pages(t));
        if there < needed {
            return Err(format!("{there} translation pages for a map of {needed}"));
        }
        if let Some((page, _)) = self.cache.oldest_first().find(|&(page, _)| self.data.namespaces().is_unowned(page)) {
            return Err(format!("the map entry of page {page} is cached, but no tenant has the page"));
        }
        Ok(())
    }
}
