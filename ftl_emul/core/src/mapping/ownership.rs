//! Who owns how many blocks, whatever the mapping, and how OPS blocks change hands while the drive runs.
//!
//! Blocks are owned by *domains*: one for each isolated tenant, one for all sharing tenants. A move is first requested,
//! which checks that the giver can live without the blocks, and then handed over block by block. A block is handed over
//! erased; where the giver has none to spare, its own GC or merges free one, a bounded number of times a call, so that
//! no call takes long and the floor of free blocks always stands.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::address::BlockId;
use crate::convert::signed;
use crate::error::FtlError;
use crate::mapping::{Mapping, MoveProgress, Placement};
use crate::nand::{Nand, Untimed};
use crate::op::TenantId;
use crate::pool::FreeBlocks;

/// Domain of the sharing tenants.
pub(in crate::mapping) const SHARED_DOMAIN: u32 = 0;

/// Blocks that a move has not handed over yet; None as an end is the spare.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::mapping) struct Transfer {
    pub from: Option<TenantId>,
    pub to: Option<TenantId>,
    pub blocks: u64,
}

/// Counts of a domain's blocks.
#[derive(Debug, Clone, Copy)]
pub(in crate::mapping) struct DomainBlocks {
    /// Blocks owned, in whatever state.
    pub owned: u64,
    /// Sum of the tenants' logical sizes in blocks, each rounded up.
    pub logical: u64,
    /// Blocks that moves have not handed over to others yet.
    pub pending_out: u64,
}

/// What became of one attempt to hand over one block.
pub(in crate::mapping) enum Step<P> {
    HandedOver,
    /// The giver has to free a block there first.
    NeedsRoom(P),
    /// There is nothing to give at the moment.
    Waits,
}

/// A mapping whose blocks belong to domains.
pub(in crate::mapping) trait Ownership: Mapping {
    /// Where a giver frees a block.
    type Place;

    /// Domains there are, in use or not.
    fn domains(&self) -> u32;

    /// The domain of a tenant.
    fn domain_of(&self, tenant: TenantId) -> Result<u32, FtlError>;

    /// What a domain has.
    fn blocks_of(&self, domain: u32) -> DomainBlocks;

    /// A domain's count of blocks not handed over yet.
    fn pending_out_of(&mut self, domain: u32) -> &mut u64;

    /// The fewest OPS blocks with which a domain works.
    fn min_ops_blocks(&self) -> u64;

    /// Erased blocks that nobody owns, by die or cluster of dies.
    fn spare(&mut self) -> &mut [FreeBlocks];

    /// Changes the owner of an erased block that stands in no list; None makes it spare.
    fn assign(&mut self, block: BlockId, domain: Option<u32>);

    /// Moves under way.
    fn transfers(&self) -> &[Transfer];

    /// The same, to be changed.
    fn transfers_mut(&mut self) -> &mut Vec<Transfer>;

    /// Hands over one block from domain to domain, if there is one to give; None is the spare.
    fn hand_over_one(&mut self, giver: Option<u32>, taker: Option<u32>) -> Step<Self::Place>;

    /// Frees a block for a move; false when nothing there can be freed.
    fn make_room_at<N: Nand>(&mut self, place: Self::Place, cause: TenantId, nand: &mut N) -> bool;

    /// Blocks that so many pages fill.
    fn blocks_for(&self, pages: u64) -> u64 {
        pages.div_ceil(u64::from(self.block_pages()))
    }

    /// Blocks that a domain owns beyond what its tenants' sizes fill.
    fn ops_blocks(&self, domain: u32) -> i64 {
        let DomainBlocks { owned, logical, .. } = self.blocks_of(domain);
        signed(owned) - signed(logical)
    }

    /// Refuses what would leave a domain fewer OPS blocks than it needs.
    fn require_ops(&self, would_keep: i64) -> Result<(), FtlError> {
        let minimum = self.min_ops_blocks();
        if would_keep < signed(minimum) {
            return Err(FtlError::BelowMinimumOps { would_keep, minimum });
        }
        Ok(())
    }

    /// The blocks that a new tenant's size fills, and those that it needs with its OPS blocks. Refuses a tenant that
    /// the spare cannot provide for.
    fn require_blocks_to_create(
        &self,
        pages: u64,
        placement: Placement,
        ops_blocks: u64,
    ) -> Result<(u64, u64), FtlError> {
        require_pages(pages)?;
        let logical = self.blocks_for(pages);
        let needed = logical.saturating_add(ops_blocks);
        let available = self.available_spare();
        if needed > available {
            return Err(FtlError::NotEnoughBlocks { needed, available, what: "logical size and over-provisioning" });
        }
        let joined = if placement == Placement::Shared { self.ops_blocks(SHARED_DOMAIN) } else { 0 };
        self.require_ops(joined + signed(ops_blocks))?;
        Ok((logical, needed))
    }

    /// Spare blocks that a new size of a tenant takes; OPS blocks provide the rest. Refuses a size that they cannot
    /// provide for.
    fn require_blocks_to_resize(&self, domain: u32, old_pages: u64, pages: u64) -> Result<u64, FtlError> {
        require_pages(pages)?;
        let extra = self.blocks_for(pages).saturating_sub(self.blocks_for(old_pages));
        let from_spare = extra.min(self.available_spare());
        let pending = signed(self.blocks_of(domain).pending_out);
        self.require_ops(self.ops_blocks(domain) - pending - signed(extra - from_spare))?;
        Ok(from_spare)
    }

    /// Gives spare blocks to a domain, from where most of them are.
    fn take_spare(&mut self, domain: u32, count: u64) {
        for _ in 0..count {
            let spare = self.spare();
            let fullest = (0..spare.len()).rev().max_by_key(|&place| spare[place].len());
            let Some(block) = fullest.and_then(|place| spare[place].pop()) else { return };
            self.assign(block, Some(domain));
        }
    }

    /// Unmaps pages of a tenant, in no time.
    fn trim_pages(&mut self, tenant: TenantId, pages: Range<u64>) {
        for page in pages {
            self.trim_page(tenant, page, &mut Untimed);
        }
    }

    /// Cancels the moves from and to a tenant.
    fn cancel_moves_of(&mut self, tenant: TenantId) {
        self.transfers_mut().retain(|t| t.from != Some(tenant) && t.to != Some(tenant));
        self.recount_pending_out();
    }

    /// Cancels all moves.
    fn cancel_all_moves(&mut self) {
        self.transfers_mut().clear();
        self.recount_pending_out();
    }

    /// Moves that have blocks to hand over.
    fn unfinished_moves(&self) -> Vec<(Option<TenantId>, Option<TenantId>, u64)> {
        self.transfers().iter().filter(|t| t.blocks > 0).map(|t| (t.from, t.to, t.blocks)).collect()
    }

    /// Starts a move, if the giver can live without the blocks.
    fn start_move(&mut self, from: Option<TenantId>, to: Option<TenantId>, blocks: u64) -> Result<(), FtlError> {
        let (giver, taker) = (self.domain_of_end(from)?, self.domain_of_end(to)?);
        if giver == taker || blocks == 0 {
            return Ok(());
        }
        match giver {
            Some(domain) => {
                let leaves = self.blocks_of(domain).pending_out.saturating_add(blocks);
                let leaves = i64::try_from(leaves).unwrap_or(i64::MAX);
                self.require_ops(self.ops_blocks(domain).saturating_sub(leaves))?;
            }
            None => self.require_spare(blocks)?,
        }
        self.transfers_mut().push(Transfer { from, to, blocks });
        self.recount_pending_out();
        Ok(())
    }

    /// Spare blocks that no move takes.
    fn available_spare(&self) -> u64 {
        let taken: u64 = self.transfers().iter().filter(|t| t.from.is_none()).map(|t| t.blocks).sum();
        self.spare_blocks().saturating_sub(taken)
    }

    /// Refuses what the spare cannot give beyond what moves take already.
    fn require_spare(&self, needed: u64) -> Result<(), FtlError> {
        let available = self.available_spare();
        if needed > available {
            return Err(FtlError::NotEnoughBlocks { needed, available, what: "a move from the spare" });
        }
        Ok(())
    }

    /// After a sharing tenant is gone, what its logical size filled goes back to the spare.
    fn return_shared_to_spare(&mut self, blocks: u64) -> Result<(), FtlError> {
        let remaining = self.tenants().into_iter().find(|&t| self.domain_of(t).is_ok_and(|d| d == SHARED_DOMAIN));
        self.start_move(remaining, None, blocks)
    }

    /// Hands over the blocks of moves, freeing at most `max_gc_passes` of them by GC or merges.
    fn hand_over<N: Nand>(&mut self, max_gc_passes: u64, nand: &mut N) -> MoveProgress {
        let mut progress = MoveProgress::default();
        let mut index = 0;
        while let Some(&Transfer { from, to, blocks }) = self.transfers().get(index) {
            if blocks == 0 {
                self.transfers_mut().remove(index);
                continue;
            }
            let step = match (self.domain_of_end(from), self.domain_of_end(to)) {
                (Ok(giver), Ok(taker)) => self.hand_over_one(giver, taker),
                _ => Step::Waits,
            };
            match step {
                Step::HandedOver => {
                    progress.moved_blocks += 1;
                    self.transfers_mut()[index].blocks -= 1;
                    self.recount_pending_out();
                }
                Step::NeedsRoom(place) => {
                    if progress.gc_passes == max_gc_passes {
                        break;
                    }
                    progress.gc_passes += 1;
                    if !self.make_room_at(place, from.unwrap_or(TenantId(0)), nand) {
                        index += 1;
                    }
                }
                Step::Waits => index += 1,
            }
        }
        progress.pending_blocks = self.transfers().iter().map(|t| t.blocks).sum();
        progress
    }

    /// The domain of an end of a move; None is the spare.
    fn domain_of_end(&self, end: Option<TenantId>) -> Result<Option<u32>, FtlError> {
        end.map(|tenant| self.domain_of(tenant)).transpose()
    }

    /// Has every domain's `pending_out_blocks` agree with the moves under way.
    fn recount_pending_out(&mut self) {
        for domain in 0..self.domains() {
            *self.pending_out_of(domain) = 0;
        }
        for index in 0..self.transfers().len() {
            let Transfer { from, blocks, .. } = self.transfers()[index];
            if let Ok(Some(domain)) = self.domain_of_end(from) {
                *self.pending_out_of(domain) += blocks;
            }
        }
    }
}

fn require_pages(pages: u64) -> Result<(), FtlError> {
    if pages == 0 {
        return Err(FtlError::Invalid { field: "size", reason: "a namespace needs at least one page".into() });
    }
    Ok(())
}
