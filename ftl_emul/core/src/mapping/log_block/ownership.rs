//! Blocks of mappings with log blocks and who owns them. A giver that uses all the log blocks it may have merges one
//! for each block that it gives away.

use crate::address::BlockId;
use crate::convert::exact;
use crate::error::FtlError;
use crate::mapping::log_block::{Domain, LogScheme, Purpose, Store};
use crate::mapping::ownership::{DomainBlocks, Ownership, Step, Transfer};
use crate::nand::Nand;
use crate::op::TenantId;
use crate::pool::{FreeBlocks, SPARE};

impl<S: LogScheme> Ownership for Store<S> {
    /// A domain.
    type Place = u32;

    fn domains(&self) -> u32 {
        exact::<u32>(self.domains.len())
    }

    fn domain_of(&self, tenant: TenantId) -> Result<u32, FtlError> {
        Ok(self.known(tenant)?.domain)
    }

    fn blocks_of(&self, domain: u32) -> DomainBlocks {
        let Domain { blocks, logical_blocks, pending_out_blocks, .. } = self.domains[domain as usize];
        DomainBlocks { owned: blocks, logical: logical_blocks, pending_out: pending_out_blocks }
    }

    fn pending_out_of(&mut self, domain: u32) -> &mut u64 {
        &mut self.domains[domain as usize].pending_out_blocks
    }

    /// The fewest OPS blocks of a domain: the free floor, one log block, and the sequential one.
    fn min_ops_blocks(&self) -> u64 {
        u64::from(self.options.free_floor) + 1 + S::SEQUENTIAL_LOG_BLOCKS
    }

    fn spare(&mut self) -> &mut [FreeBlocks] {
        &mut self.spare
    }

    fn assign(&mut self, block: BlockId, domain: Option<u32>) {
        let cluster = self.cluster_of(block) as usize;
        let erases = self.blocks[block].erases;
        self.blocks[block].pool = domain.unwrap_or(SPARE);
        self.free_of_mut(domain)[cluster].push(erases, block);
        if let Some(domain) = domain {
            let owner = &mut self.domains[domain as usize];
            owner.blocks += 1;
            owner.wear.add(erases);
        }
    }

    fn transfers(&self) -> &[Transfer] {
        &self.transfers
    }

    fn transfers_mut(&mut self) -> &mut Vec<Transfer> {
        &mut self.transfers
    }

    fn hand_over_one(&mut self, giver: Option<u32>, taker: Option<u32>) -> Step<u32> {
        if let Some(domain) = giver {
            if self.domains[domain as usize].log_blocks >= self.log_limit(domain) {
                return Step::NeedsRoom(domain);
            }
        }
        let given = self.free_of(giver);
        let fullest = (0..given.len()).max_by_key(|&cluster| given[cluster].len());
        let Some(block) = fullest.and_then(|cluster| self.free_of_mut(giver)[cluster].pop()) else {
            return Step::Waits;
        };
        if let Some(domain) = giver {
            let erases = self.blocks[block].erases;
            let owner = &mut self.domains[domain as usize];
            owner.blocks -= 1;
            owner.wear.remove(erases);
        }
        self.assign(block, taker);
        Step::HandedOver
    }

    fn make_room_at<N: Nand>(&mut self, domain: u32, cause: TenantId, nand: &mut N) -> bool {
        S::evict(self, domain, cause, Purpose::Reclaim, nand)
    }
}

impl<S: LogScheme> Store<S> {
    /// Erased blocks of a domain, or of the spare (None), by cluster of dies.
    fn free_of(&self, domain: Option<u32>) -> &[FreeBlocks] {
        domain.map_or(&self.spare, |d| &self.domains[d as usize].free)
    }

    fn free_of_mut(&mut self, domain: Option<u32>) -> &mut [FreeBlocks] {
        match domain {
            None => &mut self.spare,
            Some(d) => &mut self.domains[d as usize].free,
        }
    }
}
