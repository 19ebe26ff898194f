//! Log blocks changing hands while the drive runs: promised first, handed over block by block, erased.
//!
//! A giver that uses all the log blocks it may have merges one for each block that it gives away.

use crate::error::FtlError;
use crate::mapping::log_block::{LogScheme, Purpose, SHARED_DOMAIN, Store};
use crate::mapping::transfer::{Transfer, require_spare};
use crate::mapping::{Mapping, MoveProgress};
use crate::nand::Nand;
use crate::op::TenantId;

/// What became of one attempt to hand over one block.
enum Step {
    HandedOver,
    NeedsMerge(u32),
    /// There is nothing to give at the moment.
    Waits,
}

impl<S: LogScheme> Store<S> {
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
            let promised = self.domains[domain as usize].promised_blocks;
            let leaves = i64::try_from(promised.saturating_add(blocks)).unwrap_or(i64::MAX);
            self.require_ops(self.ops_blocks(domain).saturating_sub(leaves))?;
        } else {
            require_spare(&self.transfers, self.spare_blocks(), blocks)?;
        }
        self.transfers.push(Transfer { from, to, blocks });
        self.recount_promises();
        Ok(())
    }

    /// After a sharing tenant is gone, what its logical size filled goes back to the spare.
    pub(super) fn promise_shared_to_spare(&mut self, blocks: u64) -> Result<(), FtlError> {
        let remaining = self.tenants().into_iter().find(|&t| self.domain_of(t).is_ok_and(|d| d == SHARED_DOMAIN));
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
                Step::NeedsMerge(domain) => {
                    if progress.gc_passes == max_gc_passes {
                        break;
                    }
                    progress.gc_passes += 1;
                    let cause = transfer.from.unwrap_or(TenantId(0));
                    if !S::evict(self, domain, cause, Purpose::Reclaim, nand) {
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
        if let Some(domain) = giver {
            if self.domains[domain as usize].log_blocks >= self.log_limit(domain) {
                return Step::NeedsMerge(domain);
            }
        }
        let given = self.free_of(giver);
        let fullest = (0..given.len()).max_by_key(|&cluster| given[cluster].len());
        let Some(block) = fullest.and_then(|cluster| self.free_of_mut(giver)[cluster].pop()) else {
            return Step::Waits;
        };
        if let Some(domain) = giver {
            self.domains[domain as usize].blocks -= 1;
        }
        self.assign(block, taker);
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
