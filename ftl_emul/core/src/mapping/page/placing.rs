//! Placement of pages: choice of the pool and the page for a host write, and invalidation of the old page.

use crate::address::{DieId, LogicalPage, MapEntry, PhysicalPage};
use crate::block::BlockState;
use crate::convert::exact;
use crate::mapping::page::{PageDomain, PageMapping};
use crate::nand::Nand;
use crate::pool::{Frontier, GC, HOST, Pool};

impl PageMapping {
    /// Frontier that GC copies go to.
    #[inline(always)]
    pub(super) fn gc_frontier(&self) -> usize {
        if self.options.separate_gc_frontier { GC } else { HOST }
    }

    #[inline(always)]
    pub(super) fn slack(&self, pool: &Pool) -> i64 {
        (i64::from(pool.blocks) - i64::from(self.options.held_blocks())) * exact::<i64>(self.division.pages_per_block)
            - exact::<i64>(pool.valid)
    }

    /// Pool for the next host write of a domain: of the next two idle dies in rotation, the one with more slack.
    ///
    /// WAF is convex in slack, so uneven dies cost more than even ones of the same mean. Rotation alone leaves dies
    /// uneven that have a block more or less, and skipping busy dies leaves them uneven by chance; two choices mend
    /// both (Mitzenmacher 2001). Dies that lag the mean by a quarter of a block are passed over until they recover, but
    /// not so that a write would wait while one that has at least seven eighths of the mean is idle (with half of the
    /// mean, small drives lose 5 % of IOPS). Some die always has the mean, so one is always found.
    #[inline(always)]
    pub(super) fn next_pool<N: Nand>(&self, domain: u32, nand: &N) -> usize {
        let dies = self.geometry.dies();
        let first_pool = (domain * dies) as usize;
        let PageDomain { next_die, slack_pages } = self.domains[domain as usize];
        let lag = i64::from(self.geometry.pages_per_block / 4);
        // slack >= mean - lag, without dividing.
        let keeps_up = |slack: i64| slack > 0 && (slack + lag) * i64::from(dies) >= slack_pages;
        let following = |die: u32| if die + 1 == dies { 0 } else { die + 1 };
        let mut idle: Option<(i64, u32)> = None;
        let mut lagging: Option<(i64, u32)> = None;
        let mut busy: Option<(u64, u32)> = None;
        let mut die = next_die;
        for _ in 0..dies {
            let slack = self.slack(&self.pools[first_pool + die as usize]);
            if keeps_up(slack) {
                if nand.is_idle(DieId(die)) {
                    match idle {
                        None => idle = Some((slack, die)),
                        Some((other, _)) => {
                            if slack > other {
                                idle = Some((slack, die));
                            }
                            break;
                        }
                    }
                } else {
                    let until = nand.busy_until(DieId(die));
                    if busy.is_none_or(|(earliest, _)| until < earliest) {
                        busy = Some((until, die));
                    }
                }
            } else if nand.is_idle(DieId(die))
                && slack > 0
                && 8 * slack * i64::from(dies) >= 7 * slack_pages
                && lagging.is_none_or(|(most, _)| slack > most)
            {
                lagging = Some((slack, die));
            }
            die = following(die);
        }
        let die = |(_, die): (i64, u32)| die;
        let Some(die) = idle.map(die).or(lagging.map(die)).or(busy.map(|(_, die)| die)) else {
            unreachable!("admission keeps the slack of a domain positive, so some die has it")
        };
        first_pool + die as usize
    }

    /// Takes the pool for a host write, and turns the rotation.
    #[inline(always)]
    pub(super) fn take_next_pool<N: Nand>(&mut self, domain: u32, nand: &N) -> usize {
        let pool = self.next_pool(domain, nand);
        let next_die = &mut self.domains[domain as usize].next_die;
        *next_die = if *next_die + 1 == self.geometry.dies() { 0 } else { *next_die + 1 };
        pool
    }

    /// Takes the next page of a frontier that has room, for a logical page.
    #[inline(always)]
    pub(super) fn append(&mut self, pool: usize, frontier: usize, logical: LogicalPage) {
        let Frontier { block, next_page } = self.pools[pool].frontiers[frontier];
        self.pools[pool].frontiers[frontier].next_page = next_page + 1;
        let physical = self.division.physical(block, next_page);
        self.reverse[physical] = logical;
        self.map[logical] = MapEntry::of(physical);
        self.valid[block.index() * self.division.words_per_block + next_page as usize / 64] |= 1 << (next_page % 64);
        self.blocks[block].valid += 1;
    }

    /// Marks a physical page, which lies in a block of a domain, as no longer holding data.
    #[inline(always)]
    pub(super) fn invalidate(&mut self, domain: u32, physical: PhysicalPage) {
        let block = self.division.block(physical);
        let page = self.division.page_of_block(block, physical) as usize;
        self.valid[block.index() * self.division.words_per_block + page / 64] &= !(1 << (page % 64));
        let entry = &mut self.blocks[block];
        let pool = &mut self.pools[entry.pool as usize];
        pool.valid -= 1;
        if entry.state == BlockState::Full {
            pool.victims.invalidate_page(&mut self.blocks, block);
            if !self.stamps.is_empty() {
                self.stamps[block.index()] = self.write_clock;
            }
        } else {
            entry.valid -= 1;
        }
        self.domains[domain as usize].slack_pages += 1;
    }
}
