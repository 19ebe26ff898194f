//! Namespaces: each tenant's logical pages as segments of one device-wide page number space, so that the mapping
//! tables stay flat while tenants come, go and change size. The page mapping has segments of one size on every drive;
//! to mappings with log blocks, a segment is a logical block.

use serde::{Deserialize, Serialize};

use crate::address::LogicalPage;
use crate::convert::exact;
use crate::error::FtlError;
use crate::op::TenantId;

/// log2 of the pages of a segment.
const SEGMENT_SHIFT: u32 = 10;
const SEGMENT_PAGES: u64 = 1 << SEGMENT_SHIFT;
/// Most tenants of one device.
pub const MAX_TENANTS: usize = 4096;

/// Owner number of a segment without an owner.
const NOBODY: u16 = u16::MAX;

/// The logical side of one tenant.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Namespace {
    pages: u64,
    segments: Vec<u32>,
}

/// Logical pages by tenant.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Namespaces {
    tenants: Vec<Option<Namespace>>,
    owners: Vec<u16>,
    free_segments: Vec<u32>,
    #[serde(skip, default = "segment_pages")]
    segment_pages: u64,
}

fn segment_pages() -> u64 {
    SEGMENT_PAGES
}

impl Default for Namespaces {
    /// No tenants; as many segments as they will need.
    fn default() -> Self {
        Self { tenants: Vec::new(), owners: Vec::new(), free_segments: Vec::new(), segment_pages: SEGMENT_PAGES }
    }
}

impl Namespaces {
    /// No tenants, and so many segments of `segment_pages`, which tenants never need more than.
    pub fn with_segments(segments: u32, segment_pages: u32) -> Self {
        Self {
            owners: vec![NOBODY; segments as usize],
            free_segments: (0..segments).rev().collect(),
            segment_pages: u64::from(segment_pages),
            ..Self::default()
        }
    }

    /// The same segments divided among tenants: pages and segments of each. What does not fit [`Self::check`] finds.
    pub fn divided(&self, tenants: Vec<Option<(u64, Vec<u32>)>>, free_segments: Vec<u32>) -> Self {
        let mut owners = vec![NOBODY; self.owners.len()];
        for (tenant, (_, segments)) in (0..NOBODY).zip(&tenants).filter_map(|(n, t)| Some((n, t.as_ref()?))) {
            for &segment in segments {
                if let Some(owner) = owners.get_mut(segment as usize) {
                    *owner = tenant;
                }
            }
        }
        let namespace = |(pages, segments)| Namespace { pages, segments };
        let tenants = tenants.into_iter().map(|tenant| tenant.map(namespace)).collect();
        Self { tenants, owners, free_segments, ..*self }
    }

    /// Device-wide page numbers needed for drives of `physical_pages`, for any tenants.
    pub fn page_numbers(physical_pages: u64) -> u64 {
        (physical_pages.div_ceil(SEGMENT_PAGES) + MAX_TENANTS as u64) * SEGMENT_PAGES
    }

    /// The most physical pages of a drive that needs fewer page numbers than `page_numbers`.
    pub fn most_physical_pages(page_numbers: u64) -> u64 {
        ((page_numbers - 1) / SEGMENT_PAGES - MAX_TENANTS as u64) * SEGMENT_PAGES
    }

    /// Device-wide page numbers in use or once used.
    pub fn used_page_numbers(&self) -> u64 {
        self.owners.len() as u64 * SEGMENT_PAGES
    }

    pub fn create(&mut self, pages: u64) -> Result<TenantId, FtlError> {
        let slot = match self.tenants.iter().position(Option::is_none) {
            Some(slot) => slot,
            None if self.tenants.len() < MAX_TENANTS => {
                self.tenants.push(None);
                self.tenants.len() - 1
            }
            None => return Err(FtlError::TooManyTenants(MAX_TENANTS)),
        };
        self.tenants[slot] = Some(Namespace::default());
        let tenant = TenantId(exact::<u16>(slot));
        self.set_pages(tenant, pages);
        Ok(tenant)
    }

    /// Gives a tenant exactly the segments that `pages` need. Pages cut off must have been unmapped before.
    pub fn set_pages(&mut self, tenant: TenantId, pages: u64) {
        let Some(Some(namespace)) = self.tenants.get_mut(tenant.0 as usize) else { return };
        namespace.pages = pages;
        let needed = exact::<usize>(pages.div_ceil(self.segment_pages));
        while namespace.segments.len() > needed {
            if let Some(segment) = namespace.segments.pop() {
                self.owners[segment as usize] = NOBODY;
                self.free_segments.push(segment);
            }
        }
        while namespace.segments.len() < needed {
            let segment = self.free_segments.pop().unwrap_or_else(|| {
                self.owners.push(NOBODY);
                exact::<u32>(self.owners.len()) - 1
            });
            self.owners[segment as usize] = tenant.0;
            namespace.segments.push(segment);
        }
    }

    pub fn delete(&mut self, tenant: TenantId) {
        self.set_pages(tenant, 0);
        if let Some(slot) = self.tenants.get_mut(tenant.0 as usize) {
            *slot = None;
        }
    }

    pub fn contains(&self, tenant: TenantId) -> bool {
        self.tenants.get(tenant.0 as usize).is_some_and(Option::is_some)
    }

    /// Pages of the namespace; 0 when there is no such tenant.
    #[inline]
    pub fn pages(&self, tenant: TenantId) -> u64 {
        self.tenants.get(tenant.0 as usize).and_then(Option::as_ref).map_or(0, |n| n.pages)
    }

    /// The segments of a tenant, in the order of its pages.
    #[inline(always)]
    pub fn segments(&self, tenant: TenantId) -> &[u32] {
        match &self.tenants[tenant.0 as usize] {
            Some(namespace) => &namespace.segments,
            None => &[],
        }
    }

    /// Segments without an owner; the last one is assigned next.
    pub fn free_segments(&self) -> &[u32] {
        &self.free_segments
    }

    /// The device-wide page that is a tenant's page, which must exist.
    #[inline(always)]
    pub fn global(&self, tenant: TenantId, page: u64) -> LogicalPage {
        let segment = self.segments(tenant)[(page >> SEGMENT_SHIFT) as usize];
        LogicalPage((segment << SEGMENT_SHIFT) | ((page & (SEGMENT_PAGES - 1)) as u32))
    }

    /// The tenant that has the device-wide page.
    #[inline(always)]
    pub fn owner(&self, page: LogicalPage) -> TenantId {
        self.owner_of_segment(page.0 >> SEGMENT_SHIFT)
    }

    /// The tenant that has a segment.
    #[inline(always)]
    pub fn owner_of_segment(&self, segment: u32) -> TenantId {
        TenantId(self.owners[segment as usize])
    }

    /// True when no tenant has the device-wide page.
    pub fn is_unowned(&self, page: LogicalPage) -> bool {
        self.is_free(page.0 >> SEGMENT_SHIFT)
    }

    /// True when no tenant has the segment.
    pub fn is_free(&self, segment: u32) -> bool {
        self.owners.get(segment as usize).is_none_or(|&owner| owner == NOBODY)
    }

    /// Tenants in the order of their numbers.
    pub fn tenants(&self) -> impl Iterator<Item = TenantId> + '_ {
        (0..exact::<u16>(self.tenants.len())).map(TenantId).filter(|&t| self.contains(t))
    }

    /// Verifies that every segment has one owner, or none and is free, and that sizes and segments agree.
    pub fn check(&self) -> Result<(), String> {
        if self.tenants.len() > MAX_TENANTS {
            return Err(format!("{} tenants, at most {MAX_TENANTS}", self.tenants.len()));
        }
        let mut seen = vec![false; self.owners.len()];
        let mut claim = |segment: u32, owner: u16| match self.owners.get(segment as usize) {
            Some(&o) if o == owner && !std::mem::replace(&mut seen[segment as usize], true) => Ok(()),
            _ => Err(format!("segment {segment} does not belong to {owner} alone")),
        };
        for (number, namespace) in self.tenants.iter().enumerate() {
            let Some(namespace) = namespace else { continue };
            if namespace.pages.div_ceil(self.segment_pages) != namespace.segments.len() as u64 {
                return Err(format!("tenant {number} has {} segments for its pages", namespace.segments.len()));
            }
            namespace.segments.iter().try_for_each(|&segment| claim(segment, exact::<u16>(number)))?;
        }
        self.free_segments.iter().try_for_each(|&segment| claim(segment, NOBODY))?;
        if seen.contains(&false) {
            return Err("a segment belongs to nobody and is not free".into());
        }
        Ok(())
    }

    /// One more than the largest tenant number that was ever assigned.
    pub fn slots(&self) -> usize {
        self.tenants.len()
    }
}
