//! Tenants of the page mapping: creation, deletion, resizing, and what each has.

use crate::address::{BlockId, DieId};
use crate::block::BlockState;
use crate::convert::exact;
use crate::error::FtlError;
use crate::mapping::ownership::{Ownership, SHARED_DOMAIN};
use crate::mapping::page::{Domain, PageMapping, Tenant};
use crate::mapping::{Placement, TenantCounters, TenantSpace};
use crate::op::TenantId;
use crate::pool::{HOST, Pool, SPARE};

impl PageMapping {
    pub(super) fn add_domain(&mut self) -> u32 {
        if let Some(unused) = self.domains.iter().position(|d| !d.in_use) {
            return exact::<u32>(unused);
        }
        for die in 0..self.geometry.dies() {
            self.pools.push(Pool::new(DieId(die), self.options.victim, self.geometry.pages_per_block));
        }
        let held = i64::from(self.geometry.dies()) * i64::from(self.held_blocks());
        let slack_pages = -held * i64::from(self.geometry.pages_per_block);
        self.domains.push(Domain { slack_pages, ..Domain::default() });
        exact::<u32>(self.domains.len()) - 1
    }

    pub(super) fn create(&mut self, pages: u64, placement: Placement, ops_blocks: u64) -> Result<TenantId, FtlError> {
        let (logical_blocks, needed) = self.require_blocks_to_create(pages, placement, ops_blocks)?;
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
        self.cancel_moves_of(tenant);
        self.trim_pages(tenant, 0..pages);
        let logical_blocks = self.blocks_for(pages);
        if domain == SHARED_DOMAIN {
            // The others keep their data and OPS; what the deleted size filled goes back, as GC frees it.
            self.domains[domain as usize].logical_blocks -= logical_blocks;
            let others = self.tenants.iter().flatten().filter(|t| t.domain == SHARED_DOMAIN).count() > 1;
            if others {
                self.tenants[tenant.0 as usize] = None;
                self.namespaces.delete(tenant);
                return self.return_shared_to_spare(logical_blocks);
            }
        }
        self.dissolve(domain);
        self.tenants[tenant.0 as usize] = None;
        self.namespaces.delete(tenant);
        Ok(())
    }

    pub(super) fn resize(&mut self, tenant: TenantId, pages: u64) -> Result<(), FtlError> {
        let domain = self.domain_of(tenant)?;
        let old_pages = self.namespaces.pages(tenant);
        let from_spare = self.require_blocks_to_resize(domain, old_pages, pages)?;
        self.trim_pages(tenant, pages..old_pages);
        self.namespaces.set_pages(tenant, pages);
        self.take_spare(domain, from_spare);
        let (old_blocks, new_blocks) = (self.blocks_for(old_pages), self.blocks_for(pages));
        let owner = &mut self.domains[domain as usize];
        owner.logical_blocks = owner.logical_blocks + new_blocks - old_blocks;
        Ok(())
    }

    pub(super) fn space_of(&self, tenant: TenantId) -> Result<TenantSpace, FtlError> {
        let known = self.known(tenant)?;
        let domain = &self.domains[known.domain as usize];
        let first = known.domain * self.geometry.dies();
        let pools = first..first + self.geometry.dies();
        Ok(TenantSpace {
            placement: if known.domain == SHARED_DOMAIN { Placement::Shared } else { Placement::Isolated },
            logical_pages: self.namespaces.pages(tenant),
            mapped_pages: known.mapped_pages,
            logical_blocks: domain.logical_blocks,
            ops_blocks: self.ops_blocks(known.domain),
            min_ops_blocks: self.min_ops_blocks(),
            open_pages: pools.clone().map(|p| self.open_pages(&self.pools[p as usize])).sum(),
            free_blocks: pools.map(|p| u64::from(self.pools[p as usize].free.len())).sum(),
            erases_min_max: domain.wear.min_max(),
            pending_out_blocks: domain.pending_out_blocks,
        })
    }

    fn open_pages(&self, pool: &Pool) -> u64 {
        u64::from(self.geometry.pages_per_block.saturating_sub(pool.frontiers[HOST].next_page))
    }

    /// Takes an erased block, which stands in no list, from the domain that owns it.
    pub(super) fn forget(&mut self, block: BlockId) {
        let entry = &mut self.blocks[block];
        let (pool, erases) = (std::mem::replace(&mut entry.pool, SPARE), entry.erases);
        self.pools[pool as usize].blocks -= 1;
        let domain = &mut self.domains[(pool / self.geometry.dies()) as usize];
        domain.blocks -= 1;
        domain.slack_pages -= i64::from(self.geometry.pages_per_block);
        domain.wear.remove(erases);
    }

    /// Returns every block of a domain without valid pages to the spare, erasing what was written.
    fn dissolve(&mut self, domain: u32) {
        let dies = self.geometry.dies();
        let pools = domain * dies..(domain + 1) * dies;
        for pool in pools.clone() {
            let die = self.pools[pool as usize].die;
            self.pools[pool as usize] = Pool::new(die, self.options.victim, self.geometry.pages_per_block);
        }
        for block in (0..exact::<u32>(self.blocks.len())).map(BlockId) {
            let entry = &mut self.blocks[block];
            if pools.contains(&entry.pool) {
                entry.erases += u32::from(entry.state != BlockState::Free);
                entry.state = BlockState::Free;
                (entry.prev, entry.next) = (BlockId::NONE, BlockId::NONE);
                self.assign(block, None);
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
