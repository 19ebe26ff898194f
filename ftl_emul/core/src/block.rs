//! Erase blocks and the lists they stand in.

use bytemuck::Zeroable;
use serde::{Deserialize, Serialize};

use crate::pool::SPARE;

/// No block: the end of a list, or a frontier not yet opened.
pub(crate) const NO_BLOCK: u32 = u32::MAX;

/// What a block is doing. A block is in exactly one place: a free heap, a frontier, or a victim index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Zeroable, Serialize, Deserialize)]
#[repr(u8)]
pub(crate) enum BlockState {
    /// Erased, in the free heap of its pool or of the spare.
    Free = 0,
    /// Being written.
    Open,
    /// Fully written, a candidate for GC.
    Full,
}

/// One erase block. `prev` and `next` belong to the victim index that holds it.
#[derive(Debug, Clone, Copy, Zeroable, Serialize, Deserialize)]
pub(crate) struct Block {
    pub valid: u32,
    pub prev: u32,
    pub next: u32,
    pub erases: u32,
    /// The pool that owns it; [`SPARE`] when no tenant does.
    pub pool: u32,
    pub state: BlockState,
}

impl Block {
    /// Erased, and nobody's.
    pub const SPARE: Self =
        Self { valid: 0, prev: NO_BLOCK, next: NO_BLOCK, erases: 0, pool: SPARE, state: BlockState::Free };
}

/// A first-in-first-out list threaded through the blocks.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct BlockList {
    head: u32,
    tail: u32,
}

impl BlockList {
    pub const EMPTY: Self = Self { head: NO_BLOCK, tail: NO_BLOCK };

    #[inline]
    pub fn head(&self) -> Option<u32> {
        (self.head != NO_BLOCK).then_some(self.head)
    }

    #[inline]
    pub fn tail(&self) -> Option<u32> {
        (self.tail != NO_BLOCK).then_some(self.tail)
    }

    #[inline]
    pub fn push_back(&mut self, blocks: &mut [Block], block: u32) {
        let entry = &mut blocks[block as usize];
        entry.prev = self.tail;
        entry.next = NO_BLOCK;
        if self.tail == NO_BLOCK {
            self.head = block;
        } else {
            blocks[self.tail as usize].next = block;
        }
        self.tail = block;
    }

    #[inline]
    pub fn remove(&mut self, blocks: &mut [Block], block: u32) {
        let Block { prev, next, .. } = blocks[block as usize];
        if prev == NO_BLOCK {
            self.head = next;
        } else {
            blocks[prev as usize].next = next;
        }
        if next == NO_BLOCK {
            self.tail = prev;
        } else {
            blocks[next as usize].prev = prev;
        }
    }

    /// Verifies the links both ways, and that every member is as it should be; returns how many there are.
    pub fn check(&self, blocks: &[Block], belongs: impl Fn(&Block) -> bool) -> Result<usize, String> {
        let (mut members, mut last, mut at) = (0, NO_BLOCK, self.head);
        while at != NO_BLOCK {
            let linked = blocks.get(at as usize).filter(|b| b.prev == last && belongs(b));
            // A circle would end here too: its first block has the wrong predecessor.
            let Some(block) = linked else { return Err(format!("block {at} stands wrongly in its list")) };
            members += 1;
            (last, at) = (at, block.next);
        }
        if last == self.tail { Ok(members) } else { Err(format!("a list ends at {last}, not at {}", self.tail)) }
    }

    pub fn iter<'a>(&self, blocks: &'a [Block]) -> impl Iterator<Item = u32> + 'a {
        std::iter::successors(self.head(), |&b| {
            let next = blocks[b as usize].next;
            (next != NO_BLOCK).then_some(next)
        })
    }
}
