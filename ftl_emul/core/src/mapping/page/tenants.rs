//! Tenants of the page mapping: creation, deletion, resizing, and what each has.

use crate::block::{BlockState, NO_BLOCK};
use crate::error::FtlError;
use crate::mapping::page::{Domain, PageMapping, SHARED_DOMAIN, Tenant};
use crate::mapping::{Mapping, Placement, TenantCounters, TenantSpace};
use crate::nand::Untimed;
use crate::op::TenantId;
use crate::page_number::PageNumber;
use crate::pool::{Pool, SPARE};

impl<P: PageNumber> PageMapping<P> {
    /// The fewest OPS blocks of a domain: on each die what is held, and a block's worth of slack.
    pub(super) fn min_ops_blocks(&self) -> u64 {
        u64::from(self.geometry.dies()) * (u64::from(self.held_blocks()) + 1)
    }

    pub(super) fn ops_blocks(&self, domain: u32) -> i64 {
        let domain = &self.domains[domain as usize];
        domain.blocks as i64 - domain.logical_blocks as i64
    }

    fn require_ops(&self, would_keep: i64) -> Result<(), FtlError> {
        let minimum = self.min_ops_blocks();
        if would_keep < minimum as i64 {
            return Err(FtlError::BelowMinimumOps { would_keep, minimum });
        }
        Ok(())
    }

    pub(super) fn add_domain(&mut self) -> u32 {
        if let Some(unused) = self.domains.iter().position(|d| !d.in_use) {
            return unused as u32;
        }
        for die in 0..self.geometry.dies() {
            self.pools.push(Pool::new(die, self.options.victim, self.geometry.pages_per_block));
        }
        let held = i64::from(self.geometry.dies()) * i64::from(self.held_blocks());
        let slack_pages = -held * i64::from(self.geometry.pages_per_block);
        self.domains.push(Domain { slack_pages, ..Domain::default() });
        self.domains.len() as u32 - 1
    }

    pub(super) fn domain_of(&self, tenant: TenantId) -> Result<u32, FtlError> {
        Ok(self.known(tenant)?.domain)
    }

    pub(super) fn create(&mut self, pages: u64, placement: Placement, ops_blocks: u64) -> Result<TenantId, FtlError> {
        if pages == 0 {
            return Err(FtlError::Invalid { field: "size", reason: "a namespace needs at least one page".into() });
        }
        let logical_blocks = self.geometry.blocks_for(pages);
        let needed = logical_blocks.saturating_add(ops_blocks);
        let available = self.spare_blocks();
        if needed > available {
            return Err(FtlError::NotEnoughBlocks { needed, available, what: "logical size and over-provisioning" });
        }
        let joined = if placement == Placement::Shared { self.ops_blocks(SHARED_DOMAIN) } else { 0 };
        self.require_ops(joined + ops_blocks as i64)?;

        let tenant = self.namespaces.create(pages)?;
        let domain = if placement == Placement::Shared { SHARED_DOMAIN } else { self.add_domain() };
        self.domains[domain as usize].in_use = true;
        self.domains[domain as usize].logical_blocks += logical_blocks;
        self.take_spare(domain, needed);
        let counters = TenantCounters {
            victim_histogram: vec![0; self.geometry.pages_per_block as usize + 1],
            ..TenantCounters::default()
        };
        self.tenants.resize(self.namespaces.slots(), None);
        self.tenants[tenant.0 as usize] = Some(Tenant { domain, mapped_pages: 0, counters });
        for t in self.tenants.iter_mut().flatten() {
            t.counters.moved_pages_of.resize(self.namespaces.slots(), 0);
        }
        Ok(tenant)
    }

    pub(super) fn delete(&mut self, tenant: TenantId) -> Result<(), FtlError> {
        let domain = self.domain_of(tenant)?;
        let pages = self.namespaces.pages(tenant);
        self.transfers.retain(|t| t.from != Some(tenant) && t.to != Some(tenant));
        self.recount_promises();
        for page in 0..pages {
            self.trim_page(tenant, page, &mut Untimed);
        }
        let logical_blocks = self.geometry.blocks_for(pages);
        if domain == SHARED_DOMAIN {
            // The others keep their data and OPS; what the deleted size filled goes back, as GC frees it.
            self.domains[domain as usize].logical_blocks -= logical_blocks;
            let others = self.tenants.iter().flatten().filter(|t| t.domain == SHARED_DOMAIN).count() > 1;
            if others {
                self.tenants[tenant.0 as usize] = None;
                self.namespaces.delete(tenant);
                return self.promise_shared_to_spare(logical_blocks);
            }
        }
        self.dissolve(domain);
        self.tenants[tenant.0 as usize] = None;
        self.namespaces.delete(tenant);
        Ok(())
    }

    pub(super) fn resize(&mut self, tenant: TenantId, pages: u64) -> Result<(), FtlError> {
        let domain = self.domain_of(tenant)?;
        if pages == 0 {
            return Err(FtlError::Invalid { field: "size", reason: "a namespace needs at least one page".into() });
        }
        let old_pages = self.namespaces.pages(tenant);
        let (old_blocks, new_blocks) = (self.geometry.blocks_for(old_pages), self.geometry.blocks_for(pages));
        let extra = new_blocks.saturating_sub(old_blocks);
        let from_spare = extra.min(self.spare_blocks());
        let promised = self.domains[domain as usize].promised_blocks as i64;
        self.require_ops(self.ops_blocks(domain) - promised - (extra - from_spare) as i64)?;
        for page in pages..old_pages {
            self.trim_page(tenant, page, &mut Untimed);
        }
        self.namespaces.set_pages(tenant, pages);
        self.take_spare(domain, from_spare);
        let d = &mut self.domains[domain as usize];
        d.logical_blocks = d.logical_blocks + new_blocks - old_blocks;
        Ok(())
    }

    pub(super) fn space_of(&self, tenant: TenantId) -> Result<TenantSpace, FtlError> {
        let known = self.known(tenant)?;
        let domain = &self.domains[known.domain as usize];
        let first = known.domain * self.geometry.dies();
        let pools = first..first + self.geometry.dies();
        let wear = self.blocks.iter().filter(|b| pools.contains(&b.pool)).map(|b| b.erases);
        let erases_min_max = wear.fold((u32::MAX, 0), |(low, high), e| (low.min(e), high.max(e)));
        Ok(TenantSpace {
            placement: if known.domain == SHARED_DOMAIN { Placement::Shared } else { Placement::Isolated },
            logical_pages: self.namespaces.pages(tenant),
            mapped_pages: known.mapped_pages,
            logical_blocks: domain.logical_blocks,
            ops_blocks: self.ops_blocks(known.domain),
            min_ops_blocks: self.min_ops_blocks(),
            free_blocks: pools.map(|p| u64::from(self.pools[p as usize].free.len())).sum(),
            erases_min_max,
            pending_out_blocks: domain.promised_blocks,
        })
    }

    /// Gives spare blocks to a domain, from the dies that have most of them.
    fn take_spare(&mut self, domain: u32, count: u64) {
        for _ in 0..count {
            let fullest = (0..self.geometry.dies()).rev().max_by_key(|&die| self.spare[die as usize].len());
            let Some(die) = fullest else { return };
            if let Some(block) = self.spare[die as usize].pop() {
                self.assign(block, Some(domain));
            }
        }
    }

    /// Changes the owner of an erased block that stands in no list; None makes it spare.
    pub(super) fn assign(&mut self, block: u32, domain: Option<u32>) {
        let die = block / self.geometry.blocks_per_die;
        let erases = self.blocks[block as usize].erases;
        match domain {
            None => {
                self.blocks[block as usize].pool = SPARE;
                self.spare[die as usize].push(erases, block);
            }
            Some(domain) => {
                let pool = domain * self.geometry.dies() + die;
                self.blocks[block as usize].pool = pool;
                self.pools[pool as usize].blocks += 1;
                self.pools[pool as usize].free.push(erases, block);
                self.domains[domain as usize].blocks += 1;
                self.domains[domain as usize].slack_pages += i64::from(self.geometry.pages_per_block);
            }
        }
    }

    /// Takes note that a domain lost one block of a pool.
    pub(super) fn forget(&mut self, pool: u32) {
        self.pools[pool as usize].blocks -= 1;
        let domain = &mut self.domains[(pool / self.geometry.dies()) as usize];
        domain.blocks -= 1;
        domain.slack_pages -= i64::from(self.geometry.pages_per_block);
    }

    /// Returns every block of a domain without valid pages to the spare, erasing what was written.
    fn dissolve(&mut self, domain: u32) {
        let dies = self.geometry.dies();
        let pools = domain * dies..(domain + 1) * dies;
        for pool in pools.clone() {
            let die = self.pools[pool as usize].die;
            self.pools[pool as usize] = Pool::new(die, self.options.victim, self.geometry.pages_per_block);
        }
        for index in 0..self.blocks.len() {
            let block = &mut self.blocks[index];
            if pools.contains(&block.pool) {
                block.erases += u32::from(block.state != BlockState::Free);
                block.state = BlockState::Free;
                (block.prev, block.next) = (NO_BLOCK, NO_BLOCK);
                self.assign(index as u32, None);
            }
        }
        let held = i64::from(dies) * i64::from(self.held_blocks());
        self.domains[domain as usize] = Domain {
            in_use: domain == SHARED_DOMAIN,
            slack_pages: -held * i64::from(self.geometry.pages_per_block),
            ..Domain::default()
        };
    }
}
