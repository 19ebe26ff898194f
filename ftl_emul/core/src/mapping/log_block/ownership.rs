//! Ownership of blocks in mappings with log blocks. A giver that uses all of its permitted log blocks merges one for
//! each block that it gives away.

use crate::address::BlockId;
use crate::block::{Block, BlockList};
use crate::mapping::log_block::{LogDomain, LogScheme, LogUse, Purpose, Store};
use crate::mapping::ownership::{Offer, Ownership};
use crate::nand::{Nand, Untimed};
use crate::op::TenantId;
use crate::pool::{FreeBlocks, SPARE};

impl<S: LogScheme> Ownership for Store<S> {
    /// A domain.
    type Place = u32;

    fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    fn blocks_mut(&mut self) -> &mut [Block] {
        &mut self.blocks
    }

    fn domain_of_block(&self, block: &Block) -> Option<u32> {
        (block.pool != SPARE).then_some(block.pool)
    }

    fn place_of(&self, block: BlockId) -> usize {
        self.cluster_of(block) as usize
    }

    fn reset_domain(&mut self, domain: u32) {
        let empty = LogDomain {
            data_blocks: 0,
            log_blocks: 0,
            free: vec![FreeBlocks::default(); self.tenancy.spare.len()],
            logs: BlockList::EMPTY,
            sequential_log: BlockId::NONE,
            next_cluster: 0,
        };
        let Some(before) = self.domains.get_mut(domain as usize) else { return self.domains.push(empty) };
        let LogDomain { logs, sequential_log, .. } = std::mem::replace(before, empty);
        let sequential_log = (sequential_log != BlockId::NONE).then_some(sequential_log);
        for log in logs.iter(&self.blocks).chain(sequential_log) {
            self.log_use[log] = LogUse::NONE;
            #[cfg(test)]
            self.flash.wipe(log);
        }
    }

    fn put_in_domain(&mut self, block: BlockId, domain: u32) {
        let cluster = self.cluster_of(block) as usize;
        let entry = &mut self.blocks[block];
        entry.pool = domain;
        self.domains[domain as usize].free[cluster].push(entry.erases, block);
    }

    fn offer(&mut self, giver: Option<u32>, _taker: Option<u32>) -> Offer<u32> {
        if let Some(domain) = giver {
            if self.domains[domain as usize].log_blocks >= self.log_limit(domain) {
                return Offer::NeedsRoom(domain);
            }
        }
        let given = match giver {
            None => &mut self.tenancy.spare,
            Some(domain) => &mut self.domains[domain as usize].free,
        };
        let fullest = (0..given.len()).max_by_key(|&cluster| given[cluster].len());
        fullest.and_then(|cluster| given[cluster].pop()).map_or(Offer::Nothing, Offer::Block)
    }

    fn make_room_at<N: Nand>(&mut self, domain: u32, cause: TenantId, nand: &mut N) -> bool {
        S::evict(self, domain, cause, Purpose::Reclaim, nand)
    }

    fn free_blocks(&self, domain: u32) -> u64 {
        self.domains[domain as usize].free.iter().map(|cluster| u64::from(cluster.len())).sum()
    }

    /// Log blocks that became room for data are emptied now.
    fn fit_ops(&mut self, domain: u32, cause: TenantId) {
        while self.domains[domain as usize].log_blocks > self.log_limit(domain) {
            if !S::evict(self, domain, cause, Purpose::Collect, &mut Untimed) {
                break;
            }
        }
    }
}
