//! Saving and restoring a mapping with log blocks, bit for bit, as a [`crate::mapping::snapshot_file`]. Its code is
//! [`LogScheme::SNAPSHOT_CODE`].

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

use crate::address::BlockId;
use crate::block::{Block, BlockList};
use crate::convert::exact;
use crate::error::FtlError;
use crate::geometry::Geometry;
use crate::mapping::log_block::{LogBlockOptions, LogDomain, LogScheme, Store};
use crate::mapping::ownership::Ownership;
use crate::mapping::snapshot_file::{read_snapshot, refuse, write_snapshot};
use crate::mapping::tenancy::{Domain, Tenant, Transfer};
use crate::mapping::wear::Wear;
use crate::mapping::{MappingCounters, TenantCounters};
use crate::op::TenantId;
use crate::pool::FreeBlocks;

#[derive(Serialize, Deserialize)]
struct Head {
    geometry: Geometry,
    options: LogBlockOptions,
    blocks: Vec<Block>,
    domains: Vec<DomainRecord>,
    tenants: Vec<Option<TenantRecord>>,
    spare: Vec<FreeBlocks>,
    free_logical: Vec<u32>,
    transfers: Vec<Transfer>,
    /// Free-form words of the caller, such as the names of tenants.
    label: String,
}

#[derive(Serialize, Deserialize)]
struct DomainRecord {
    in_use: bool,
    blocks: u64,
    logical_blocks: u64,
    data_blocks: u64,
    log_blocks: u64,
    pending_out_blocks: u64,
    free: Vec<FreeBlocks>,
    logs: BlockList,
    sequential_log: BlockId,
    next_cluster: u32,
}

#[derive(Serialize, Deserialize)]
struct TenantRecord {
    domain: u32,
    pages: u64,
    /// Logical blocks.
    logical: Vec<u32>,
    mapped_pages: u64,
    counters: TenantCounters,
    merges: MappingCounters,
    victim_remainder_pages: u64,
}

impl<S: LogScheme> Store<S> {
    /// Writes the whole state, and `label` with it.
    pub fn save(&mut self, label: &str, to: &mut impl Write) -> io::Result<()> {
        let tenancy = &self.tenancy;
        let head = Head {
            geometry: self.geometry,
            options: self.options,
            blocks: self.blocks.to_vec(),
            domains: (0..exact::<u32>(self.domains.len())).map(|domain| self.domain_record(domain)).collect(),
            tenants: (0..exact::<u16>(tenancy.tenants.len())).map(|t| self.tenant_record(TenantId(t))).collect(),
            spare: tenancy.spare.clone(),
            free_logical: tenancy.namespaces.free_segments().to_vec(),
            transfers: tenancy.transfers.clone(),
            label: label.to_owned(),
        };
        let tables: Vec<&[u8]> = self.tables().into_iter().map(|table| &*table).collect();
        write_snapshot(S::SNAPSHOT_CODE, &head, &tables, to)
    }

    /// Reads a state written by [`Store::save`], and its label. Rejects any other data.
    pub fn restore(from: &mut impl Read) -> Result<(Self, String), FtlError> {
        let (mut mapping, head) = read_snapshot(S::SNAPSHOT_CODE, from, Self::fitting, |m, _| m.tables())?;
        mapping.blocks.copy_from_slice(&head.blocks);
        let tenancy = &mut mapping.tenancy;
        tenancy.spare = head.spare;
        tenancy.transfers = head.transfers;
        let namespace = |t: &TenantRecord| (t.pages, t.logical.clone());
        let namespaces = head.tenants.iter().map(|t| t.as_ref().map(namespace)).collect();
        tenancy.namespaces = tenancy.namespaces.divided(namespaces, head.free_logical);
        mapping.victim_remainder_pages =
            head.tenants.iter().map(|t| t.as_ref().map_or(0, |t| t.victim_remainder_pages)).collect();
        tenancy.tenants = head.tenants.into_iter().map(|t| t.map(Tenant::from)).collect();
        (tenancy.domains, mapping.domains) = head.domains.into_iter().map(DomainRecord::parts).unzip();
        let wear = mapping.count_wear();
        mapping.tenancy.domains.iter_mut().zip(wear).for_each(|(domain, wear)| domain.wear = wear);
        mapping.check_invariants().or_else(|e| refuse(format!("damaged: {e}")))?;
        Ok((mapping, head.label))
    }

    fn domain_record(&self, number: u32) -> DomainRecord {
        let (domain, own) = (&self.tenancy.domains[number as usize], &self.domains[number as usize]);
        DomainRecord {
            in_use: domain.in_use,
            blocks: domain.blocks,
            logical_blocks: domain.logical_blocks,
            data_blocks: own.data_blocks,
            log_blocks: own.log_blocks,
            pending_out_blocks: self.tenancy.pending_out_blocks(number),
            free: own.free.clone(),
            logs: own.logs.clone(),
            sequential_log: own.sequential_log,
            next_cluster: own.next_cluster,
        }
    }

    fn tenant_record(&self, tenant: TenantId) -> Option<TenantRecord> {
        let known = self.tenancy.known(tenant).ok()?;
        Some(TenantRecord {
            domain: known.domain,
            pages: self.tenancy.namespaces.pages(tenant),
            logical: self.tenancy.namespaces.segments(tenant).to_vec(),
            mapped_pages: known.mapped_pages,
            counters: known.counters.clone(),
            merges: known.mapping_counters,
            victim_remainder_pages: self.victim_remainder_pages[tenant.0 as usize],
        })
    }

    /// An empty mapping with tables of the size given by `head`.
    fn fitting(head: &Head) -> Result<Self, FtlError> {
        let mapping = Self::new(head.geometry, head.options)?;
        let tables_fit = head.blocks.len() == mapping.blocks.len() && head.spare.len() == mapping.tenancy.spare.len();
        if tables_fit { Ok(mapping) } else { refuse("damaged: tables do not fit the geometry") }
    }

    fn tables(&mut self) -> Vec<&mut [u8]> {
        vec![
            self.logical.as_bytes_mut(),
            self.bits.as_bytes_mut(),
            self.log_page.as_bytes_mut(),
            self.reverse.as_bytes_mut(),
            self.log_use.as_bytes_mut(),
        ]
    }
}

impl DomainRecord {
    fn parts(self) -> (Domain, LogDomain) {
        let Self {
            in_use,
            blocks,
            logical_blocks,
            data_blocks,
            log_blocks,
            free,
            logs,
            sequential_log,
            next_cluster,
            ..
        } = self;
        let own = LogDomain { data_blocks, log_blocks, free, logs, sequential_log, next_cluster };
        (Domain { in_use, blocks, logical_blocks, wear: Wear::default() }, own)
    }
}

impl From<TenantRecord> for Tenant {
    fn from(record: TenantRecord) -> Self {
        let TenantRecord { domain, mapped_pages, counters, merges, .. } = record;
        Self { domain, mapped_pages, counters, mapping_counters: merges }
    }
}
