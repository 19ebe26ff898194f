//! Ownership of blocks in the page mapping: a domain has a pool on each die. GC of the giver frees the blocks that are
//! to change owners.

use crate::address::{BlockId, DieId};
use crate::block::Block;
use crate::mapping::ownership::{Offer, Ownership};
use crate::mapping::page::gc::Purpose;
use crate::mapping::page::{PageDomain, PageMapping};
use crate::nand::Nand;
use crate::op::TenantId;
use crate::pool::{HOST, Pool, SPARE};

impl PageMapping {
    /// The pools of a domain.
    fn pools_of(&self, domain: u32) -> &[Pool] {
        let dies = self.geometry.dies() as usize;
        &self.pools[domain as usize * dies..(domain as usize + 1) * dies]
    }
}

impl Ownership for PageMapping {
    /// A pool.
    type Place = usize;

    fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    fn blocks_mut(&mut self) -> &mut [Block] {
        &mut self.blocks
    }

    fn domain_of_block(&self, block: &Block) -> Option<u32> {
        (block.pool != SPARE).then(|| block.pool / self.geometry.dies())
    }

    fn place_of(&self, block: BlockId) -> usize {
        self.die_of_block(block).index()
    }

    fn reset_domain(&mut self, domain: u32) {
        let dies = self.geometry.dies();
        let held_pages = self.options.held_blocks() * self.geometry.pages_per_block;
        let empty = PageDomain { next_die: 0, slack_pages: -i64::from(dies) * i64::from(held_pages) };
        let pools =
            (0..dies).map(|die| Pool::new(DieId(die), self.options.victim, self.geometry.pages_per_block)).collect();
        let first = (domain * dies) as usize;
        replace_or_append(&mut self.domains, domain as usize, vec![empty]);
        replace_or_append(&mut self.pools, first, pools);
    }

    fn put_in_domain(&mut self, block: BlockId, domain: u32) {
        let pool = domain * self.geometry.dies() + self.die_of_block(block).0;
        let erases = self.blocks[block].erases;
        self.blocks[block].pool = pool;
        self.pools[pool as usize].blocks += 1;
        self.pools[pool as usize].free.push(erases, block);
        self.domains[domain as usize].slack_pages += i64::from(self.geometry.pages_per_block);
    }

    fn offer(&mut self, giver: Option<u32>, taker: Option<u32>) -> Offer<usize> {
        let dies = self.geometry.dies();
        let pages = i64::from(self.geometry.pages_per_block);
        let spare = &self.tenancy.spare;
        let blocks_on = |domain: Option<u32>, die: u32| match domain {
            Some(domain) => i64::from(self.pools[(domain * dies + die) as usize].blocks),
            None => i64::from(spare[die as usize].len()),
        };
        let can_give = |die: u32| match giver {
            Some(domain) => self.slack(&self.pools[(domain * dies + die) as usize]) > pages,
            None => spare[die as usize].len() > 0,
        };
        // Evens out both parties: from the die where the giver has most compared with the taker.
        let best = (0..dies).filter(|&d| can_give(d)).max_by_key(|&d| blocks_on(giver, d) - blocks_on(taker, d));
        let Some(die) = best else { return Offer::Nothing };
        let Some(domain) = giver else {
            return self.tenancy.spare[die as usize].pop().map_or(Offer::Nothing, Offer::Block);
        };
        let index = (domain * dies + die) as usize;
        let pool = &mut self.pools[index];
        if pool.free.len() <= self.options.free_floor {
            return Offer::NeedsRoom(index);
        }
        let Some(block) = pool.free.pop() else { return Offer::Nothing };
        pool.blocks -= 1;
        self.domains[domain as usize].slack_pages -= pages;
        Offer::Block(block)
    }

    fn make_room_at<N: Nand>(&mut self, pool: usize, cause: TenantId, nand: &mut N) -> bool {
        nand.begin_deferring();
        let collected = self.collect(pool, cause, Purpose::Reclaim, nand);
        nand.defer_to_background(self.pools[pool].die);
        collected
    }

    fn free_blocks(&self, domain: u32) -> u64 {
        self.pools_of(domain).iter().map(|pool| u64::from(pool.free.len())).sum()
    }

    fn open_pages(&self, domain: u32) -> u64 {
        let open =
            |pool: &Pool| u64::from(self.geometry.pages_per_block.saturating_sub(pool.frontiers[HOST].next_page));
        self.pools_of(domain).iter().map(open).sum()
    }
}

/// Replaces entries from `first` on, or appends them if there are none yet.
fn replace_or_append<T>(entries: &mut Vec<T>, first: usize, new: Vec<T>) {
    let end = (first + new.len()).min(entries.len());
    drop(entries.splice(first..end, new));
}
