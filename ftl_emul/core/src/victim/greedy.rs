//! Greedy victim choice in O(1) with hardly any work for each invalidated page.
//!
//! Only blocks near the minimum are in lists by valid count ("near"); the rest ("far") are in an array, where losing a
//! page costs one decrement. Moving every block from list to list at every overwrite, as in textbook bucket queues,
//! costs two or three cache misses each and took two thirds of the total time.

use serde::{Deserialize, Serialize};

use crate::address::BlockId;
use crate::block::{Block, BlockList};
use crate::convert::exact;
use crate::victim::check_places;

/// Once no block is near, about this share of all blocks is brought near: small enough that most overwrites hit far
/// blocks, large enough that looking through the far ones is rare.
const NEAR_SHARE: usize = 16;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct GreedyIndex {
    /// Near blocks, by valid count.
    lists: Vec<BlockList>,
    /// No list below this one has members.
    lowest: u32,
    /// Blocks with at most this many valid pages are near.
    threshold: u32,
    near: usize,
    /// Far blocks; each stores its index.
    far: Vec<BlockId>,
}

impl GreedyIndex {
    pub fn new(pages_per_block: u32) -> Self {
        let lists = vec![BlockList::EMPTY; pages_per_block as usize + 1];
        Self { lists, lowest: pages_per_block, threshold: 0, near: 0, far: Vec::new() }
    }

    pub fn insert(&mut self, blocks: &mut [Block], block: BlockId) {
        if blocks[block].valid <= self.threshold {
            self.insert_near(blocks, block);
        } else {
            blocks[block].set_place(self.far.len());
            self.far.push(block);
        }
    }

    pub fn remove(&mut self, blocks: &mut [Block], block: BlockId) {
        let valid = blocks[block].valid;
        if valid <= self.threshold {
            self.lists[valid as usize].remove(blocks, block);
            self.near -= 1;
        } else {
            self.remove_far(blocks, block);
        }
    }

    #[inline(always)]
    pub fn invalidate_page(&mut self, blocks: &mut [Block], block: BlockId) {
        let valid = blocks[block].valid;
        if valid > self.threshold + 1 {
            blocks[block].valid = valid - 1;
        } else {
            self.invalidate_near(blocks, block);
        }
    }

    #[inline(never)]
    fn invalidate_near(&mut self, blocks: &mut [Block], block: BlockId) {
        self.remove(blocks, block);
        blocks[block].valid -= 1;
        self.insert_near(blocks, block);
    }

    /// The block with the fewest valid pages.
    pub fn choose(&mut self, blocks: &mut [Block]) -> Option<BlockId> {
        if self.near == 0 {
            self.raise_threshold(blocks);
        }
        while self.lists[self.lowest as usize].head().is_none() && (self.lowest as usize) < self.lists.len() - 1 {
            self.lowest += 1;
        }
        let victim = self.lists[self.lowest as usize].head();
        // The victim stays near.
        if self.near > self.far.len() && self.threshold > self.lowest {
            self.lower_threshold(blocks);
        }
        victim
    }

    /// The block that will be chosen next unless another one loses pages; None when that would take a search.
    #[inline]
    pub fn likely_next(&self) -> Option<BlockId> {
        self.lists[self.lowest as usize].head()
    }

    /// Brings about a sixteenth of the blocks near, those with the fewest valid pages.
    #[cold]
    fn raise_threshold(&mut self, blocks: &mut [Block]) {
        let mut of_count = vec![0usize; self.lists.len()];
        for &block in &self.far {
            of_count[blocks[block].valid as usize] += 1;
        }
        let wanted = self.far.len().div_ceil(NEAR_SHARE);
        let mut reached = 0;
        let enough = of_count.iter().position(|n| {
            reached += n;
            reached >= wanted
        });
        self.threshold = exact::<u32>(enough.unwrap_or(self.lists.len() - 1));
        for block in std::mem::take(&mut self.far) {
            self.insert(blocks, block);
        }
    }

    /// Makes the near blocks with the highest count far, one count at a time, when more blocks are near than far.
    #[cold]
    fn lower_threshold(&mut self, blocks: &mut [Block]) {
        let top = self.threshold as usize;
        while let Some(block) = self.lists[top].head() {
            self.lists[top].remove(blocks, block);
            self.near -= 1;
            blocks[block].set_place(self.far.len());
            self.far.push(block);
        }
        self.threshold -= 1;
    }

    fn insert_near(&mut self, blocks: &mut [Block], block: BlockId) {
        let valid = blocks[block].valid;
        self.lists[valid as usize].push_back(blocks, block);
        self.lowest = self.lowest.min(valid);
        self.near += 1;
    }

    fn remove_far(&mut self, blocks: &mut [Block], block: BlockId) {
        let place = blocks[block].place();
        self.far.swap_remove(place);
        if let Some(&moved) = self.far.get(place) {
            blocks[moved].set_place(place);
        }
    }

    /// Whether there are `lists` lists and every count has one of them.
    pub fn fits(&self, lists: usize) -> bool {
        self.lists.len() == lists && (self.lowest.max(self.threshold) as usize) < lists
    }

    /// Verifies that near blocks are listed by their valid count, far ones are far, and the counts agree.
    pub fn check(&self, blocks: &[Block]) -> Result<(), String> {
        let mut near = 0;
        for (valid, list) in (0..).zip(&self.lists) {
            near += list.check(blocks, |b| b.valid == valid && (self.lowest..=self.threshold).contains(&valid))?;
        }
        if near != self.near {
            return Err(format!("{near} blocks are near, counted {}", self.near));
        }
        check_places(&self.far, blocks, |b| b.valid > self.threshold)
    }

    pub fn lists(&self) -> &[BlockList] {
        &self.lists
    }

    pub fn far(&self) -> &[BlockId] {
        &self.far
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All near blocks were made far, and no victim was found, where the only block with fewer pages had just gone.
    #[test]
    fn a_victim_is_found_among_equals_after_the_lowest_is_gone() {
        let mut blocks = vec![Block { valid: 10, ..Block::SPARE }; 100];
        blocks[0].valid = 3;
        let mut index = GreedyIndex::new(16);
        for block in (0..100).map(BlockId) {
            index.insert(&mut blocks, block);
        }
        for left in (1..=100).rev() {
            assert_eq!(index.near + index.far.len(), left);
            let Some(victim) = index.choose(&mut blocks) else { panic!("no victim among {left} blocks") };
            assert_eq!(blocks[victim.index()].valid, if left == 100 { 3 } else { 10 });
            index.remove(&mut blocks, victim);
            index.check(&blocks).unwrap();
        }
        assert_eq!(index.choose(&mut blocks), None);
    }
}
