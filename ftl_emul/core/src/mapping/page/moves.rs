//! OPS blocks changing hands while the drive runs.
//!
//! A move is first promised, which checks that the giver can live without the blocks, and then handed over block by
//! block. A block is handed over erased; where the giver has none above its floor, its own GC compacts it, a bounded
//! number of victims at a time, so that no call takes long and the free-block floor always stands.

use crate::error::FtlError;
use crate::mapping::MoveProgress;
use crate::mapping::page::gc::Purpose;
use crate::mapping::page::{PageMapping, SHARED_DOMAIN};
use crate::mapping::transfer::{Transfer, require_spare};
use crate::nand::Nand;
use crate::op::TenantId;
use crate::page_number::PageNumber;
use crate::pool::SPARE;

/// What became of one attempt to hand over one block.
enum Step {
    HandedOver,
    NeedsGc(usize),
    /// No die of the giver has a block's worth of slack at the moment.
    Waits,
}

impl<P: PageNumber> PageMapping<P> {
    pub(super) fn promise(
        &mut self,
        from: Option<TenantId>,
        to: Option<TenantId>,
        blocks: u64,
    ) -> Result<(), FtlError> {
        let (giver, taker) = (self.domain_of_end(from)?, self.domain_of_end(to)?);
        if giver == taker || blocks == 0 {
            return Ok(());
        }
        if let Some(domain) = giver {
            let minimum = self.min_ops_blocks();
            let promised = self.domains[domain as usize].promised_blocks;
            let would_keep = self.ops_blocks(domain) - promised as i64 - i64::try_from(blocks).unwrap_or(i64::MAX);
            if would_keep < minimum as i64 {
                return Err(FtlError::BelowMinimumOps { would_keep, minimum });
            }
        } else {
            require_spare(&self.transfers, crate::mapping::Mapping::spare_blocks(self), blocks)?;
        }
        self.transfers.push(Transfer { from, to, blocks });
        self.recount_promises();
        Ok(())
    }

    /// After a sharing tenant is gone, what its logical size filled goes back to the spare.
    pub(super) fn promise_shared_to_spare(&mut self, blocks: u64) -> Result<(), FtlError> {
        let remaining =
            (0..self.tenants.len() as u16).map(TenantId).find(|t| self.domain_of(*t).is_ok_and(|d| d == SHARED_DOMAIN));
        self.promise(remaining, None, blocks)
    }

    pub(super) fn hand_over<N: Nand>(&mut self, max_gc_passes: u64, nand: &mut N) -> MoveProgress {
        let mut progress = MoveProgress::default();
        let mut index = 0;
        while let Some(transfer) = self.transfers.get(index).cloned() {
            if transfer.blocks == 0 {
                self.transfers.remove(index);
                continue;
            }
            match self.hand_over_one(&transfer) {
                Step::HandedOver => {
                    progress.moved_blocks += 1;
                    self.transfers[index].blocks -= 1;
                    self.recount_promises();
                }
                Step::NeedsGc(pool) => {
                    if progress.gc_passes == max_gc_passes {
                        break;
                    }
                    progress.gc_passes += 1;
                    let cause = transfer.from.unwrap_or(TenantId(0));
                    if !self.collect(pool, cause, Purpose::Reclaim, nand) {
                        index += 1;
                    }
                }
                Step::Waits => index += 1,
            }
        }
        progress.pending_blocks = self.transfers.iter().map(|t| t.blocks).sum();
        progress
    }

    fn hand_over_one(&mut self, transfer: &Transfer) -> Step {
        let (Ok(giver), Ok(taker)) = (self.domain_of_end(transfer.from), self.domain_of_end(transfer.to)) else {
            return Step::Waits;
        };
        let dies = self.geometry.dies();
        let pages = i64::from(self.geometry.pages_per_block);
        let blocks_on = |domain: Option<u32>, die: u32| match domain {
            Some(domain) => i64::from(self.pools[(domain * dies + die) as usize].blocks),
            None => i64::from(self.spare[die as usize].len()),
        };
        let can_give = |die: u32| match giver {
            Some(domain) => self.slack(&self.pools[(domain * dies + die) as usize]) > pages,
            None => self.spare[die as usize].len() > 0,
        };
        // Evens out both parties: from the die where the giver has most compared with the taker.
        let best = (0..dies).filter(|&d| can_give(d)).max_by_key(|&d| blocks_on(giver, d) - blocks_on(taker, d));
        let Some(die) = best else { return Step::Waits };
        let Some(domain) = giver else {
            if let Some(block) = self.spare[die as usize].pop() {
                self.assign(block, taker);
            }
            return Step::HandedOver;
        };
        let pool = domain * dies + die;
        if self.pools[pool as usize].free.len() <= self.options.free_floor {
            return Step::NeedsGc(pool as usize);
        }
        if let Some(block) = self.pools[pool as usize].free.pop() {
            self.blocks[block as usize].pool = SPARE;
            self.forget(pool);
            self.assign(block, taker);
        }
        Step::HandedOver
    }

    fn domain_of_end(&self, end: Option<TenantId>) -> Result<Option<u32>, FtlError> {
        end.map(|tenant| self.domain_of(tenant)).transpose()
    }

    pub(super) fn recount_promises(&mut self) {
        for domain in &mut self.domains {
            domain.promised_blocks = 0;
        }
        for index in 0..self.transfers.len() {
            let Transfer { from, blocks, .. } = self.transfers[index];
            if let Ok(Some(domain)) = self.domain_of_end(from) {
                self.domains[domain as usize].promised_blocks += blocks;
            }
        }
    }
}
