//! Tenants of mappings with log blocks: creation, deletion, resizing, and what each has.

use crate::address::BlockId;
use crate::block::{BlockList, BlockState};
use crate::convert::exact;
use crate::error::FtlError;
use crate::mapping::log_block::{Domain, LogScheme, LogUse, LogicalBlock, Purpose, Store, Tenant};
use crate::mapping::ownership::{Ownership, SHARED_DOMAIN};
use crate::mapping::wear::Wear;
use crate::mapping::{Mapping, MappingCounters, Placement, TenantCounters, TenantSpace};
use crate::namespace::MAX_TENANTS;
use crate::nand::Untimed;
use crate::op::TenantId;
use crate::pool::FreeBlocks;

impl<S: LogScheme> Store<S> {
    pub(super) fn add_domain(&mut self) -> u32 {
        if let Some(unused) = self.domains.iter().position(|d| !d.in_use) {
            return exact::<u32>(unused);
        }
        self.domains.push(self.empty_domain());
        exact::<u32>(self.domains.len()) - 1
    }

    fn empty_domain(&self) -> Domain {
        Domain {
            in_use: false,
            blocks: 0,
            logical_blocks: 0,
            data_blocks: 0,
            log_blocks: 0,
            pending_out_blocks: 0,
            free: vec![FreeBlocks::default(); self.spare.len()],
            logs: BlockList::EMPTY,
            sequential_log: BlockId::NONE,
            next_cluster: 0,
            wear: Wear::default(),
        }
    }

    pub(super) fn create(&mut self, pages: u64, placement: Placement, ops_blocks: u64) -> Result<TenantId, FtlError> {
        let (logical_blocks, needed) = self.require_blocks_to_create(pages, placement, ops_blocks)?;
        let slot = match self.tenants.iter().position(Option::is_none) {
            Some(slot) => slot,
            None if self.tenants.len() < MAX_TENANTS => {
                self.tenants.push(None);
                self.tenants.len() - 1
            }
            None => return Err(FtlError::TooManyTenants(MAX_TENANTS)),
        };
        let domain = if placement == Placement::Shared { SHARED_DOMAIN } else { self.add_domain() };
        self.domains[domain as usize].in_use = true;
        self.domains[domain as usize].logical_blocks += logical_blocks;
        self.take_spare(domain, needed);
        let counters =
            TenantCounters { victim_histogram: vec![0; self.block_pages as usize + 1], ..TenantCounters::default() };
        self.tenants[slot] = Some(Tenant {
            domain,
            pages: 0,
            logical: Vec::new(),
            mapped_pages: 0,
            counters,
            merges: MappingCounters::default(),
            victim_remainder_pages: 0,
        });
        let slots = self.tenants.len();
        for t in self.tenants.iter_mut().flatten() {
            t.counters.moved_pages_of.resize(slots, 0);
        }
        let tenant = TenantId(exact::<u16>(slot));
        self.set_pages(tenant, pages);
        Ok(tenant)
    }

    /// Gives a tenant exactly the logical blocks that `pages` need. Pages cut off must have been unmapped before.
    fn set_pages(&mut self, tenant: TenantId, pages: u64) {
        let needed = exact::<usize>(self.blocks_for(pages));
        let Some(owner) = &mut self.tenants[tenant.0 as usize] else { return };
        owner.pages = pages;
        while owner.logical.len() > needed {
            if let Some(logical) = owner.logical.pop() {
                self.logical[logical] = LogicalBlock::NONE;
                self.free_logical.push(logical);
            }
        }
        while owner.logical.len() < needed {
            let Some(logical) = self.free_logical.pop() else {
                unreachable!("there are as many logical blocks as blocks, and every one in use is covered by a block")
            };
            self.logical[logical] = LogicalBlock::of(tenant.0);
            owner.logical.push(logical);
        }
    }

    pub(super) fn delete(&mut self, tenant: TenantId) -> Result<(), FtlError> {
        let domain = self.domain_of(tenant)?;
        let pages = self.pages(tenant);
        self.cancel_moves_of(tenant);
        self.trim_pages(tenant, 0..pages);
        self.set_pages(tenant, 0);
        self.tenants[tenant.0 as usize] = None;
        let logical_blocks = self.blocks_for(pages);
        let others = self.tenants.iter().flatten().any(|t| t.domain == domain);
        if others {
            // They keep their data and log blocks; what the deleted size filled goes back.
            self.domains[domain as usize].logical_blocks -= logical_blocks;
            return self.return_shared_to_spare(logical_blocks);
        }
        self.dissolve(domain);
        Ok(())
    }

    pub(super) fn resize(&mut self, tenant: TenantId, pages: u64) -> Result<(), FtlError> {
        let domain = self.domain_of(tenant)?;
        let old_pages = self.pages(tenant);
        let from_spare = self.require_blocks_to_resize(domain, old_pages, pages)?;
        self.trim_pages(tenant, pages..old_pages);
        self.take_spare(domain, from_spare);
        let (old_blocks, new_blocks) = (self.blocks_for(old_pages), self.blocks_for(pages));
        let owner = &mut self.domains[domain as usize];
        owner.logical_blocks = owner.logical_blocks + new_blocks - old_blocks;
        self.set_pages(tenant, pages);
        // Log blocks that became room for data are emptied now.
        while self.domains[domain as usize].log_blocks > self.log_limit(domain) {
            if !S::evict(self, domain, tenant, Purpose::Collect, &mut Untimed) {
                break;
            }
        }
        Ok(())
    }

    pub(super) fn space_of(&self, tenant: TenantId) -> Result<TenantSpace, FtlError> {
        let known = self.known(tenant)?;
        let domain = &self.domains[known.domain as usize];
        Ok(TenantSpace {
            placement: if known.domain == SHARED_DOMAIN { Placement::Shared } else { Placement::Isolated },
            logical_pages: known.pages,
            mapped_pages: known.mapped_pages,
            logical_blocks: domain.logical_blocks,
            ops_blocks: self.ops_blocks(known.domain),
            min_ops_blocks: self.min_ops_blocks(),
            open_pages: 0,
            free_blocks: domain.free.iter().map(|cluster| u64::from(cluster.len())).sum(),
            erases_min_max: domain.wear.min_max(),
            pending_out_blocks: domain.pending_out_blocks,
        })
    }

    /// Returns every block of a domain without data to the spare, erasing what was written.
    fn dissolve(&mut self, domain: u32) {
        for block in (0..exact::<u32>(self.blocks.len())).map(BlockId) {
            let entry = &mut self.blocks[block];
            if entry.pool == domain {
                entry.erases += u32::from(entry.state != BlockState::Free);
                entry.state = BlockState::Free;
                (entry.valid, entry.prev, entry.next) = (0, BlockId::NONE, BlockId::NONE);
                self.log_use[block] = LogUse::NONE;
                #[cfg(test)]
                self.flash.wipe(block);
                self.assign(block, None);
            }
        }
        self.domains[domain as usize] = Domain { in_use: domain == SHARED_DOMAIN, ..self.empty_domain() };
    }
}
