//! Saving and restoring a drive of DFTL, bit for bit: a [`crate::mapping::snapshot_file`] of its own without tables, then
//! those of its two page mappings.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

use crate::address::LogicalPage;
use crate::error::FtlError;
use crate::geometry::Geometry;
use crate::mapping::dftl::{DftlMapping, DftlOptions};
use crate::mapping::page::PageMapping;
use crate::mapping::snapshot_file::{read_snapshot, refuse, write_snapshot};
use crate::mapping::{Mapping, MappingCounters};
use crate::op::TenantId;

#[derive(Serialize, Deserialize)]
struct Head {
    geometry: Geometry,
    options: DftlOptions,
    translation_tenant: Option<TenantId>,
    /// Cached pages and whether they are dirty, the least recently used first.
    cached: Vec<(LogicalPage, bool)>,
    /// By tenant number.
    counters: Vec<MappingCounters>,
}

impl DftlMapping {
    /// Identifies snapshots of this mapping.
    pub const SNAPSHOT_CODE: u8 = 0xD4;

    /// Writes the whole state, and `label` with it.
    pub fn save(&mut self, label: &str, to: &mut impl Write) -> io::Result<()> {
        let tenants = self.data.tenancy().tenants.iter();
        let head = Head {
            geometry: *self.data.geometry(),
            options: self.options,
            translation_tenant: self.translation_tenant,
            cached: self.cache.oldest_first().collect(),
            counters: tenants.map(|t| t.as_ref().map(|t| t.mapping_counters).unwrap_or_default()).collect(),
        };
        write_snapshot(Self::SNAPSHOT_CODE, &head, &[], to)?;
        self.data.save(label, to)?;
        self.translation.save("", to)
    }

    /// Reads a state written by [`DftlMapping::save`], and its label. Rejects any other data.
    pub fn restore(from: &mut impl Read) -> Result<(Self, String), FtlError> {
        let (mut mapping, head) = read_snapshot(
            Self::SNAPSHOT_CODE,
            from,
            |head: &Head| Self::new(head.geometry, head.options),
            |_, _| Vec::new(),
        )?;
        let (data, label) = PageMapping::restore(from)?;
        let (translation, _) = PageMapping::restore(from)?;
        let fits = data.geometry() == &head.geometry
            && data.options() == &head.options.page
            && translation.geometry() == mapping.translation.geometry();
        if !fits {
            return refuse("damaged: its parts do not fit together");
        }
        (mapping.data, mapping.translation) = (data, translation);
        mapping.data.keep_moved();
        mapping.translation_tenant = head.translation_tenant;
        for (number, tenant) in mapping.data.tenancy_mut().tenants.iter_mut().enumerate() {
            let Some(tenant) = tenant else { continue };
            let Some(&counters) = head.counters.get(number) else {
                return refuse("damaged: a tenant has no counters of its map");
            };
            tenant.mapping_counters = counters;
        }
        for (page, dirty) in head.cached {
            if mapping.data.namespaces().is_unowned(page) || mapping.cache.contains(page) {
                return refuse(format!("damaged: the cached map entry of page {page}"));
            }
            mapping.cache.insert(page);
            if dirty {
                mapping.cache.mark_dirty(page);
            }
        }
        mapping.check().or_else(|e| refuse(format!("damaged: {e}")))?;
        Ok((mapping, label))
    }
}
