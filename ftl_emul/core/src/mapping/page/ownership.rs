//! Blocks of the page mapping and who owns them: a domain has a pool on each die. GC of the giver compacts what is to
//! change hands.

use crate::address::BlockId;
use crate::convert::exact;
use crate::error::FtlError;
use crate::mapping::ownership::{DomainBlocks, Ownership, Step, Transfer};
use crate::mapping::page::gc::Purpose;
use crate::mapping::page::{Domain, PageMapping};
use crate::nand::Nand;
use crate::op::TenantId;
use crate::pool::{FreeBlocks, SPARE};

impl Ownership for PageMapping {
    /// A pool.
    type Place = usize;

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

    /// The fewest OPS blocks of a domain: on each die what is held, and a block's worth of slack.
    fn min_ops_blocks(&self) -> u64 {
        u64::from(self.geometry.dies()) * (u64::from(self.held_blocks()) + 1)
    }

    fn spare(&mut self) -> &mut [FreeBlocks] {
        &mut self.spare
    }

    fn assign(&mut self, block: BlockId, domain: Option<u32>) {
        let die = self.die_of_block(block);
        let erases = self.blocks[block].erases;
        match domain {
            None => {
                self.blocks[block].pool = SPARE;
                self.spare[die.index()].push(erases, block);
            }
            Some(domain) => {
                let pool = domain * self.geometry.dies() + die.0;
                self.blocks[block].pool = pool;
                self.pools[pool as usize].blocks += 1;
                self.pools[pool as usize].free.push(erases, block);
                let owner = &mut self.domains[domain as usize];
                owner.blocks += 1;
                owner.slack_pages += i64::from(self.geometry.pages_per_block);
                owner.wear.add(erases);
            }
        }
    }

    fn transfers(&self) -> &[Transfer] {
        &self.transfers
    }

    fn transfers_mut(&mut self) -> &mut Vec<Transfer> {
        &mut self.transfers
    }

    fn hand_over_one(&mut self, giver: Option<u32>, taker: Option<u32>) -> Step<usize> {
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
            return Step::NeedsRoom(pool as usize);
        }
        if let Some(block) = self.pools[pool as usize].free.pop() {
            self.forget(block);
            self.assign(block, taker);
        }
        Step::HandedOver
    }

    fn make_room_at<N: Nand>(&mut self, pool: usize, cause: TenantId, nand: &mut N) -> bool {
        nand.set_aside();
        let collected = self.collect(pool, cause, Purpose::Reclaim, nand);
        nand.owe_in_background(self.pools[pool].die);
        collected
    }
}
