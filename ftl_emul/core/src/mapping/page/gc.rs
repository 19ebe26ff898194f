//! Garbage collection: frees blocks by copying their valid pages, within one pool.

use crate::address::{BlockId, LogicalPage, MapEntry, PhysicalPage};
use crate::block::BlockState;
use crate::convert::exact;
use crate::mapping::page::PageMapping;
use crate::nand::Nand;
use crate::op::TenantId;
use crate::pool::{Frontier, HOST};

/// Logical pages in a cache line.
const PAGES_PER_LINE: usize = 64 / size_of::<LogicalPage>();

/// Why a block is emptied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A host write needs room.
    Collect,
    /// A move takes a block from its owner.
    Reclaim,
}

impl PageMapping {
    /// Opens a host frontier with room, collecting victims until the free-block floor allows it.
    #[cold]
    #[inline(never)]
    pub(super) fn make_room<N: Nand>(&mut self, pool: usize, cause: TenantId, nand: &mut N) {
        nand.begin_deferring();
        while self.pools[pool].frontiers[HOST].next_page >= self.geometry.pages_per_block {
            self.close(pool, HOST);
            if self.pools[pool].free.len() > self.options.free_floor {
                self.open(pool, HOST);
            } else {
                self.collect(pool, cause, Purpose::Collect, nand);
                self.prefetch_next_victim(pool);
            }
        }
        nand.defer_to_writes(pool, self.geometry.pages_per_block - self.pools[pool].frontiers[HOST].next_page);
    }

    /// Copies the valid pages of the victim that the policy chooses to the GC frontier, erases it, and frees it; false
    /// when the pool has no full block.
    ///
    /// Needs at least one free block: the copies fill at most one.
    pub(super) fn collect<N: Nand>(&mut self, pool: usize, cause: TenantId, purpose: Purpose, nand: &mut N) -> bool {
        let victim = self.pools[pool].victims.choose(
            self.options.victim,
            &mut self.blocks,
            &self.stamps,
            self.write_clock,
            &mut self.rng,
        );
        let Some(victim) = victim else { return false };
        let valid = self.blocks[victim].valid;
        let die = self.pools[pool].die;
        self.pools[pool].victims.remove(&mut self.blocks, victim);
        if valid > 0 {
            self.gather_valid(victim);
            nand.copy(die, valid);
            self.copy_gathered(pool, cause);
        }
        let block = &mut self.blocks[victim];
        block.valid = 0;
        block.state = BlockState::Free;
        block.erases += 1;
        nand.erase(die);
        let erases = block.erases;
        self.pools[pool].free.push(erases, victim);
        self.tenancy.domains[pool / self.geometry.dies() as usize].wear.erased(erases);

        let counters = &mut self.tenancy.tenant(cause).counters;
        counters.gc_page_writes += u64::from(valid);
        counters.erases += 1;
        if purpose == Purpose::Reclaim {
            counters.reclaim_page_writes += u64::from(valid);
        }
        counters.victims += 1;
        counters.victim_valid_pages += u64::from(valid);
        counters.victim_histogram[valid as usize] += 1;
        true
    }

    /// Lists the valid logical pages of a block, prefetching their map entries, and clears its bits.
    fn gather_valid(&mut self, victim: BlockId) {
        self.scratch.clear();
        let words = self.division.words_per_block;
        let first = self.division.physical(victim, 0).index();
        for word in 0..words {
            let index = victim.index() * words + word;
            let mut bits = std::mem::take(&mut self.valid[index]);
            while bits != 0 {
                let page = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let logical = self.reverse[first + page];
                self.map.prefetch(logical.index());
                self.scratch.push(logical);
            }
        }
    }

    /// Prefetches the pages of the next victim, if known; its map entries are fetched when it is collected.
    fn prefetch_next_victim(&self, pool: usize) {
        let Some(victim) = self.pools[pool].victims.likely_next() else { return };
        let first = self.division.physical(victim, 0).index();
        for page in (0..self.geometry.pages_per_block as usize).step_by(PAGES_PER_LINE) {
            self.reverse.prefetch(first + page);
        }
    }

    /// Appends the gathered pages to the pool's GC frontier and counts their owners.
    fn copy_gathered(&mut self, pool: usize, cause: TenantId) {
        let gathered = std::mem::take(&mut self.scratch);
        let frontier = self.gc_frontier();
        let mut left = &gathered[..];
        while !left.is_empty() {
            let next_page = self.pools[pool].frontiers[frontier].next_page;
            if next_page >= self.geometry.pages_per_block {
                self.close(pool, frontier);
                self.open(pool, frontier);
                continue;
            }
            let room = (self.geometry.pages_per_block - next_page) as usize;
            let (now, later) = left.split_at(room.min(left.len()));
            self.append_all(pool, frontier, now);
            left = later;
        }
        let isolated = pool >= self.geometry.dies() as usize;
        if isolated {
            self.tenancy.tenant(cause).counters.moved_pages_of[cause.0 as usize] += gathered.len() as u64;
        } else {
            for &logical in &gathered {
                let owner = self.tenancy.namespaces.owner(logical).0 as usize;
                self.tenancy.tenant(cause).counters.moved_pages_of[owner] += 1;
            }
        }
        if let Some(moved) = &mut self.moved {
            moved.extend_from_slice(&gathered);
        }
        self.scratch = gathered;
    }

    /// Takes the next pages of a frontier that has room for all of `logical`.
    fn append_all(&mut self, pool: usize, frontier: usize, logical: &[LogicalPage]) {
        let Frontier { block, next_page } = self.pools[pool].frontiers[frontier];
        let pages = exact::<u32>(logical.len());
        let first = self.division.physical(block, next_page);
        self.reverse[first.index()..first.index() + logical.len()].copy_from_slice(logical);
        for (physical, &logical) in (first.0..first.0 + pages).map(PhysicalPage).zip(logical) {
            self.map[logical] = MapEntry::of(physical);
        }
        let words = self.division.words_per_block;
        set_bits(&mut self.valid[block.index() * words..(block.index() + 1) * words], next_page, pages);
        self.blocks[block].valid += pages;
        self.pools[pool].frontiers[frontier].next_page += pages;
    }

    /// Adds the block of a frontier to the candidates for GC, if one is open.
    fn close(&mut self, pool: usize, frontier: usize) {
        let open = std::mem::replace(&mut self.pools[pool].frontiers[frontier], Frontier::CLOSED);
        if let Some(block) = self.blocks.get_mut(open.block.index()) {
            block.state = BlockState::Full;
            if !self.stamps.is_empty() {
                self.stamps[open.block.index()] = self.write_clock;
            }
            self.pools[pool].victims.insert(&mut self.blocks, open.block);
        }
    }

    /// Starts a frontier on the least worn free block.
    fn open(&mut self, pool: usize, frontier: usize) {
        let Some(block) = self.pools[pool].free.pop() else {
            unreachable!("the free-block floor is kept before GC and host writes take a block")
        };
        self.blocks[block].state = BlockState::Open;
        self.pools[pool].frontiers[frontier] = Frontier { block, next_page: 0 };
    }
}

/// Sets `count` bits from bit `first` on.
fn set_bits(words: &mut [u64], first: u32, count: u32) {
    let end = first + count;
    let mut bit = first;
    while bit < end {
        let next = (bit / 64 * 64 + 64).min(end);
        words[bit as usize / 64] |= (u64::MAX >> (64 - (next - bit))) << (bit % 64);
        bit = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_set_across_words() {
        for (first, count) in [(0, 64), (0, 1), (63, 1), (63, 2), (5, 59), (60, 70), (64, 64), (0, 192), (10, 0)] {
            let mut words = [0; 3];
            set_bits(&mut words, first, count);
            let set = (0..192_u32).filter(|&bit| words[bit as usize / 64] >> (bit % 64) & 1 == 1);
            assert!(set.eq(first..first + count), "{first} {count}");
        }
    }
}
