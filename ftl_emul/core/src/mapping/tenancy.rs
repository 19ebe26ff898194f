//! Tenants, the domains of blocks that they own, spare blocks, and pending moves of blocks, for all mappings.
//!
//! Blocks are owned by *domains*: one for each isolated tenant, one for all sharing tenants. Only
//! [`crate::mapping::ownership`] changes the counts kept here, except for counters.

use serde::{Deserialize, Serialize};

use crate::convert::{exact, signed};
use crate::error::FtlError;
use crate::mapping::ensure::ensure;
use crate::mapping::wear::Wear;
use crate::mapping::{MappingCounters, Placement, TenantCounters};
use crate::namespace::Namespaces;
use crate::op::TenantId;
use crate::pool::FreeBlocks;

/// Domain of the sharing tenants.
pub(in crate::mapping) const SHARED_DOMAIN: u32 = 0;

/// A pending move of blocks; None represents the spare blocks.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::mapping) struct Transfer {
    pub from: Option<TenantId>,
    pub to: Option<TenantId>,
    pub blocks: u64,
}

/// The blocks of one isolated tenant, or of all sharing tenants. Mappings keep further state of it.
#[derive(Debug, Clone, Default)]
pub(in crate::mapping) struct Domain {
    pub in_use: bool,
    /// Number of owned blocks in any state.
    pub blocks: u64,
    /// Sum of the tenants' logical sizes in blocks, each rounded up.
    pub logical_blocks: u64,
    pub wear: Wear,
}

/// State of one tenant, in addition to its namespace.
#[derive(Debug, Clone)]
pub(in crate::mapping) struct Tenant {
    pub domain: u32,
    pub mapped_pages: u64,
    pub counters: TenantCounters,
    pub mapping_counters: MappingCounters,
}

/// Tenants, domains, spare blocks and moves of one drive.
#[derive(Debug)]
pub struct Tenancy {
    block_pages: u32,
    /// The fewest OPS blocks with which a domain works.
    pub(crate) min_ops_blocks: u64,
    pub(in crate::mapping) namespaces: Namespaces,
    pub(in crate::mapping) tenants: Vec<Option<Tenant>>,
    pub(in crate::mapping) domains: Vec<Domain>,
    /// Erased blocks without an owner, by die or cluster of dies.
    pub(in crate::mapping) spare: Vec<FreeBlocks>,
    pub(in crate::mapping) transfers: Vec<Transfer>,
}

impl Tenancy {
    /// No tenants yet.
    pub(in crate::mapping) fn new(
        block_pages: u32,
        min_ops_blocks: u64,
        namespaces: Namespaces,
        spare: Vec<FreeBlocks>,
    ) -> Self {
        let shared = Domain { in_use: true, ..Domain::default() };
        let (tenants, transfers) = (Vec::new(), Vec::new());
        Self { block_pages, min_ops_blocks, namespaces, tenants, domains: vec![shared], spare, transfers }
    }

    /// Pages of a block.
    pub(in crate::mapping) fn block_pages(&self) -> u32 {
        self.block_pages
    }

    /// A tenant that there is.
    #[inline(always)]
    pub(in crate::mapping) fn tenant(&mut self, tenant: TenantId) -> &mut Tenant {
        match &mut self.tenants[tenant.0 as usize] {
            Some(t) => t,
            None => unreachable!("pages were checked against the namespace, which is empty without a tenant"),
        }
    }

    /// A tenant, if there is one of that number.
    pub(in crate::mapping) fn known(&self, tenant: TenantId) -> Result<&Tenant, FtlError> {
        self.tenants.get(tenant.0 as usize).and_then(Option::as_ref).ok_or(FtlError::UnknownTenant(tenant.0))
    }

    /// The domain of a tenant.
    pub(in crate::mapping) fn domain_of(&self, tenant: TenantId) -> Result<u32, FtlError> {
        Ok(self.known(tenant)?.domain)
    }

    /// The domain of an end of a move; None is the spare.
    pub(in crate::mapping) fn domain_of_end(&self, end: Option<TenantId>) -> Result<Option<u32>, FtlError> {
        end.map(|tenant| self.domain_of(tenant)).transpose()
    }

    /// Number of blocks that this many pages fill.
    pub(in crate::mapping) fn blocks_for(&self, pages: u64) -> u64 {
        pages.div_ceil(u64::from(self.block_pages))
    }

    /// Blocks of a domain in addition to those that its tenants' sizes fill.
    pub(in crate::mapping) fn ops_blocks(&self, domain: u32) -> i64 {
        let Domain { blocks, logical_blocks, .. } = self.domains[domain as usize];
        signed(blocks) - signed(logical_blocks)
    }

    /// Blocks of a domain that pending moves will take away.
    pub(in crate::mapping) fn pending_out_blocks(&self, domain: u32) -> u64 {
        let leaving = self.transfers.iter().filter(|t| self.domain_of_end(t.from) == Ok(Some(domain)));
        leaving.map(|t| t.blocks).sum()
    }

    /// Blocks without an owner.
    pub(in crate::mapping) fn spare_blocks(&self) -> u64 {
        self.spare.iter().map(|place| u64::from(place.len())).sum()
    }

    /// Spare blocks that no move takes.
    fn available_spare(&self) -> u64 {
        let taken: u64 = self.transfers.iter().filter(|t| t.from.is_none()).map(|t| t.blocks).sum();
        self.spare_blocks().saturating_sub(taken)
    }

    /// Rejects changes that would leave a domain fewer OPS blocks than it needs.
    fn require_ops(&self, would_keep: i64) -> Result<(), FtlError> {
        let minimum = self.min_ops_blocks;
        if would_keep < signed(minimum) {
            return Err(FtlError::BelowMinimumOps { would_keep, minimum });
        }
        Ok(())
    }

    /// Refuses more blocks than the spare has besides those that pending moves take.
    fn require_spare(&self, needed: u64, what: &'static str) -> Result<(), FtlError> {
        let available = self.available_spare();
        if needed > available {
            return Err(FtlError::NotEnoughBlocks { needed, available, what });
        }
        Ok(())
    }

    /// Adds a tenant whose domain, which may be new, gets this many blocks of the spare. Rejects a tenant for which the
    /// spare does not suffice.
    pub(in crate::mapping) fn add_tenant(
        &mut self,
        pages: u64,
        placement: Placement,
        ops_blocks: u64,
    ) -> Result<(TenantId, u64), FtlError> {
        require_pages(pages)?;
        let logical_blocks = self.blocks_for(pages);
        let needed = logical_blocks.saturating_add(ops_blocks);
        self.require_spare(needed, "logical size and over-provisioning")?;
        let joined = if placement == Placement::Shared { self.ops_blocks(SHARED_DOMAIN) } else { 0 };
        self.require_ops(joined + signed(ops_blocks))?;
        let tenant = self.namespaces.create(pages)?;
        let domain = if placement == Placement::Shared { SHARED_DOMAIN } else { self.unused_domain() };
        self.domains[domain as usize].in_use = true;
        self.domains[domain as usize].logical_blocks += logical_blocks;
        let counters =
            TenantCounters { victim_histogram: vec![0; self.block_pages as usize + 1], ..TenantCounters::default() };
        let slots = self.namespaces.slots();
        self.tenants.resize(slots, None);
        self.tenants[tenant.0 as usize] =
            Some(Tenant { domain, mapped_pages: 0, counters, mapping_counters: MappingCounters::default() });
        for t in self.tenants.iter_mut().flatten() {
            t.counters.moved_pages_of.resize(slots, 0);
        }
        Ok((tenant, needed))
    }

    fn unused_domain(&mut self) -> u32 {
        let unused = self.domains.iter().position(|d| !d.in_use).unwrap_or_else(|| {
            self.domains.push(Domain::default());
            self.domains.len() - 1
        });
        exact::<u32>(unused)
    }

    /// Removes a tenant without mapped pages and moves. False if its domain is left without tenants; otherwise the
    /// blocks that its size filled become spare, as they are freed.
    pub(in crate::mapping) fn remove_tenant(&mut self, tenant: TenantId) -> Result<bool, FtlError> {
        let domain = self.domain_of(tenant)?;
        let logical_blocks = self.blocks_for(self.namespaces.pages(tenant));
        self.domains[domain as usize].logical_blocks -= logical_blocks;
        self.tenants[tenant.0 as usize] = None;
        self.namespaces.delete(tenant);
        let other = self.namespaces.tenants().find(|&t| self.domain_of(t) == Ok(domain));
        if other.is_some() {
            self.request_move(other, None, logical_blocks)?;
        }
        Ok(other.is_some())
    }

    /// Spare blocks that a new size of a tenant takes; OPS blocks provide the rest. Refuses a size that they cannot
    /// provide for.
    pub(in crate::mapping) fn blocks_to_resize(&self, tenant: TenantId, pages: u64) -> Result<u64, FtlError> {
        let domain = self.domain_of(tenant)?;
        require_pages(pages)?;
        let extra = self.blocks_for(pages).saturating_sub(self.blocks_for(self.namespaces.pages(tenant)));
        let from_spare = extra.min(self.available_spare());
        let pending = signed(self.pending_out_blocks(domain));
        self.require_ops(self.ops_blocks(domain) - pending - signed(extra - from_spare))?;
        Ok(from_spare)
    }

    /// Changes the size of a tenant, whose pages beyond the end must have been unmapped before.
    pub(in crate::mapping) fn set_pages(&mut self, tenant: TenantId, pages: u64) -> Result<(), FtlError> {
        let (before, after) = (self.blocks_for(self.namespaces.pages(tenant)), self.blocks_for(pages));
        let domain = self.domain_of(tenant)?;
        let domain = &mut self.domains[domain as usize];
        domain.logical_blocks = domain.logical_blocks + after - before;
        self.namespaces.set_pages(tenant, pages);
        Ok(())
    }

    /// Starts a move if the giver keeps the blocks that it needs.
    pub(in crate::mapping) fn request_move(
        &mut self,
        from: Option<TenantId>,
        to: Option<TenantId>,
        blocks: u64,
    ) -> Result<(), FtlError> {
        let (giver, taker) = (self.domain_of_end(from)?, self.domain_of_end(to)?);
        if giver == taker || blocks == 0 {
            return Ok(());
        }
        match giver {
            Some(domain) => {
                let leaves = signed(self.pending_out_blocks(domain).saturating_add(blocks));
                self.require_ops(self.ops_blocks(domain).saturating_sub(leaves))?;
            }
            None => self.require_spare(blocks, "a move from the spare")?,
        }
        self.transfers.push(Transfer { from, to, blocks });
        Ok(())
    }

    /// Cancels the moves from and to a tenant.
    pub(in crate::mapping) fn cancel_moves_of(&mut self, tenant: TenantId) {
        self.transfers.retain(|t| t.from != Some(tenant) && t.to != Some(tenant));
    }

    /// Every number that names something names something there is.
    pub(in crate::mapping) fn check_references(&self) -> Result<(), String> {
        self.namespaces.check()?;
        ensure!(self.tenants.len() == self.namespaces.slots(), "tenants and namespaces differ in number");
        for (number, tenant) in self.tenants.iter().enumerate() {
            let id = TenantId(exact::<u16>(number));
            ensure!(tenant.is_some() == self.namespaces.contains(id), "tenant {number} has no namespace, or no tenant");
            let Some(tenant) = tenant else { continue };
            let in_use = self.domains.get(tenant.domain as usize).is_some_and(|d| d.in_use);
            ensure!(in_use, "tenant {number} is in domain {}, which does not exist", tenant.domain);
            let counters = &tenant.counters;
            ensure!(
                counters.moved_pages_of.len() == self.tenants.len()
                    && counters.victim_histogram.len() == self.block_pages as usize + 1,
                "counters of tenant {number} have the wrong shape"
            );
        }
        Ok(())
    }

    /// Counts kept along the way against counts taken now; `wear` is that of each domain's blocks, of the drive's
    /// `blocks`.
    pub(in crate::mapping) fn check_counts(&self, wear: &[Wear], blocks: u64) -> Result<(), String> {
        for ((number, domain), wear) in (0..).zip(&self.domains).zip(wear) {
            ensure!(domain.wear == *wear, "domain {number} counts {:?}, has {wear:?}", domain.wear);
            let owned = wear.blocks();
            ensure!(owned == domain.blocks, "domain {number} counts {} blocks, owns {owned}", domain.blocks);
            let tenants = self.namespaces.tenants().filter(|&t| self.domain_of(t) == Ok(number));
            let logical: u64 = tenants.map(|t| self.blocks_for(self.namespaces.pages(t))).sum();
            let counted = domain.logical_blocks;
            ensure!(logical == counted, "domain {number} counts {counted} logical blocks, has {logical}");
        }
        let owned: u64 = self.domains.iter().map(|d| d.blocks).sum();
        ensure!(self.spare_blocks() + owned == blocks, "blocks were lost");
        Ok(())
    }
}

fn require_pages(pages: u64) -> Result<(), FtlError> {
    if pages == 0 {
        return Err(FtlError::Invalid { field: "size", reason: "a namespace needs at least one page".into() });
    }
    Ok(())
}
