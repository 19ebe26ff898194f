//! Saving and restoring a page mapping, bit for bit, as a [`crate::mapping::snapshot_file`]. The map is
//! written up to its last used entry. Restoring verifies every invariant last.

use std::io::{self, Read, Write};

use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

use crate::block::Block;
use crate::convert::exact;
use crate::error::FtlError;
use crate::geometry::Geometry;
use crate::mapping::ownership::Ownership;
use crate::mapping::page::{PageDomain, PageMapping, PageMappingOptions};
use crate::mapping::snapshot_file::{read_snapshot, refuse, write_snapshot};
use crate::mapping::tenancy::{Domain, Tenant, Transfer};
use crate::mapping::wear::Wear;
use crate::mapping::{MappingCounters, TenantCounters};
use crate::namespace::Namespaces;
use crate::pool::{FreeBlocks, Pool};

/// Identifies snapshots of this mapping.
const SNAPSHOT_CODE: u8 = 4;

#[derive(Serialize, Deserialize)]
struct Head {
    geometry: Geometry,
    options: PageMappingOptions,
    blocks: Vec<Block>,
    stamps: Vec<u64>,
    pools: Vec<Pool>,
    domains: Vec<DomainRecord>,
    namespaces: Namespaces,
    tenants: Vec<Option<TenantRecord>>,
    spare: Vec<FreeBlocks>,
    transfers: Vec<Transfer>,
    write_clock: u64,
    rng: Xoshiro256PlusPlus,
    /// Free-form words of the caller, such as the names of tenants.
    label: String,
}

#[derive(Serialize, Deserialize)]
struct DomainRecord {
    in_use: bool,
    next_die: u32,
    slack_pages: i64,
    logical_blocks: u64,
    blocks: u64,
    pending_out_blocks: u64,
}

#[derive(Serialize, Deserialize)]
struct TenantRecord {
    domain: u32,
    mapped_pages: u64,
    counters: TenantCounters,
}

impl PageMapping {
    /// Writes the whole state, and `label` with it.
    pub fn save(&mut self, label: &str, to: &mut impl Write) -> io::Result<()> {
        let tenancy = &self.tenancy;
        let domain = |((number, domain), own): ((u32, &Domain), &PageDomain)| DomainRecord {
            in_use: domain.in_use,
            next_die: own.next_die,
            slack_pages: own.slack_pages,
            logical_blocks: domain.logical_blocks,
            blocks: domain.blocks,
            pending_out_blocks: tenancy.pending_out_blocks(number),
        };
        let tenant = |tenant: &Tenant| TenantRecord {
            domain: tenant.domain,
            mapped_pages: tenant.mapped_pages,
            counters: tenant.counters.clone(),
        };
        let head = Head {
            geometry: self.geometry,
            options: self.options,
            blocks: self.blocks.to_vec(),
            stamps: self.stamps.clone(),
            pools: self.pools.clone(),
            domains: (0..).zip(&tenancy.domains).zip(&self.domains).map(domain).collect(),
            namespaces: tenancy.namespaces.clone(),
            tenants: tenancy.tenants.iter().map(|t| t.as_ref().map(tenant)).collect(),
            spare: tenancy.spare.clone(),
            transfers: tenancy.transfers.clone(),
            write_clock: self.write_clock,
            rng: self.rng.clone(),
            label: label.to_owned(),
        };
        let mapped_bytes = exact::<usize>(tenancy.namespaces.used_page_numbers()) * size_of::<u32>();
        let tables = [&self.map.as_bytes_mut()[..mapped_bytes], self.reverse.as_bytes_mut(), self.valid.as_bytes_mut()];
        write_snapshot(SNAPSHOT_CODE, &head, &tables, to)
    }

    /// Reads a state written by [`PageMapping::save`], and its label. Rejects any other data.
    pub fn restore(from: &mut impl Read) -> Result<(Self, String), FtlError> {
        let (mut mapping, head) = read_snapshot(SNAPSHOT_CODE, from, Self::fitting, Self::tables)?;
        mapping.blocks.copy_from_slice(&head.blocks);
        mapping.stamps = head.stamps;
        mapping.pools = head.pools;
        mapping.domains =
            head.domains.iter().map(|d| PageDomain { next_die: d.next_die, slack_pages: d.slack_pages }).collect();
        let tenancy = &mut mapping.tenancy;
        let domain = |d: &DomainRecord| Domain {
            in_use: d.in_use,
            blocks: d.blocks,
            logical_blocks: d.logical_blocks,
            wear: Wear::default(),
        };
        tenancy.domains = head.domains.iter().map(domain).collect();
        tenancy.namespaces = head.namespaces;
        let tenant = |TenantRecord { domain, mapped_pages, counters }| Tenant {
            domain,
            mapped_pages,
            counters,
            mapping_counters: MappingCounters::default(),
        };
        tenancy.tenants = head.tenants.into_iter().map(|t| t.map(tenant)).collect();
        tenancy.spare = head.spare;
        tenancy.transfers = head.transfers;
        mapping.write_clock = head.write_clock;
        mapping.rng = head.rng;
        let wear = mapping.count_wear();
        mapping.tenancy.domains.iter_mut().zip(wear).for_each(|(domain, wear)| domain.wear = wear);
        mapping.check_invariants().or_else(|e| refuse(format!("damaged: {e}")))?;
        Ok((mapping, head.label))
    }

    /// An empty mapping with tables of the size given by `head`.
    fn fitting(head: &Head) -> Result<Self, FtlError> {
        let mapping = Self::new(head.geometry, head.options)?;
        let tables_fit = head.blocks.len() == mapping.blocks.len()
            && head.stamps.len() == mapping.stamps.len()
            && head.spare.len() == mapping.tenancy.spare.len()
            && head.pools.len() == head.domains.len() * head.geometry.dies() as usize
            && exact::<usize>(head.namespaces.used_page_numbers()) <= mapping.map.len();
        if tables_fit { Ok(mapping) } else { refuse("damaged: tables do not fit the geometry") }
    }

    fn tables<'a>(&'a mut self, head: &Head) -> Vec<&'a mut [u8]> {
        let mapped_bytes = exact::<usize>(head.namespaces.used_page_numbers()) * size_of::<u32>();
        vec![&mut self.map.as_bytes_mut()[..mapped_bytes], self.reverse.as_bytes_mut(), self.valid.as_bytes_mut()]
    }
}
