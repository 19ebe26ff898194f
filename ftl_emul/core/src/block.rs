//! Erase blocks and the lists that contain them.

use bytemuck::Zeroable;
use serde::{Deserialize, Serialize};

use crate::address::BlockId;
use crate::convert::exact;
use crate::pool::SPARE;

/// State of a block. A block is in exactly one place: a free heap, a frontier, or a victim index.
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

/// One erase block, within one cache line. `prev` and `next` belong to the list that contains it.
#[derive(Debug, Clone, Copy, Zeroable, Serialize, Deserialize)]
#[repr(align(32))]
pub(crate) struct Block {
    pub valid: u32,
    pub prev: BlockId,
    pub next: BlockId,
    pub erases: u32,
    /// The pool that owns it; [`SPARE`] when no tenant does.
    pub pool: u32,
    pub state: BlockState,
}

impl Block {
    /// Erased, without an owner.
    pub const SPARE: Self =
        Self { valid: 0, prev: BlockId::NONE, next: BlockId::NONE, erases: 0, pool: SPARE, state: BlockState::Free };

    /// Its position in the array of blocks that contains it, if no list does.
    #[inline]
    pub fn place(&self) -> usize {
        self.prev.index()
    }

    #[inline]
    pub fn set_place(&mut self, place: usize) {
        self.prev = BlockId(exact::<u32>(place));
    }
}

/// A first-in-first-out list threaded through the blocks.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct BlockList {
    head: BlockId,
    tail: BlockId,
}

impl BlockList {
    pub const EMPTY: Self = Self { head: BlockId::NONE, tail: BlockId::NONE };

    #[inline]
    pub fn head(&self) -> Option<BlockId> {
        (self.head != BlockId::NONE).then_some(self.head)
    }

    #[inline]
    pub fn tail(&self) -> Option<BlockId> {
        (self.tail != BlockId::NONE).then_some(self.tail)
    }

    #[inline]
    pub fn push_back(&mut self, blocks: &mut [Block], block: BlockId) {
        let entry = &mut blocks[block];
        entry.prev = self.tail;
        entry.next = BlockId::NONE;
        if self.tail == BlockId::NONE {
            self.head = block;
        } else {
            blocks[self.tail].next = block;
        }
        self.tail = block;
    }

    #[inline]
    pub fn remove(&mut self, blocks: &mut [Block], block: BlockId) {
        let Block { prev, next, .. } = blocks[block];
        if prev == BlockId::NONE {
            self.head = next;
        } else {
            blocks[prev].next = next;
        }
        if next == BlockId::NONE {
            self.tail = prev;
        } else {
            blocks[next].prev = prev;
        }
    }

    /// Verifies the links in both directions, and every member; returns the number of members.
    pub fn check(&self, blocks: &[Block], belongs: impl Fn(&Block) -> bool) -> Result<usize, String> {
        let (mut members, mut last, mut at) = (0, BlockId::NONE, self.head);
        while at != BlockId::NONE {
            let linked = blocks.get(at.index()).filter(|b| b.prev == last && belongs(b));
            // A cycle also ends here: its first block has the wrong predecessor.
            let Some(block) = linked else { return Err(format!("block {at} has the wrong place in its list")) };
            members += 1;
            (last, at) = (at, block.next);
        }
        if last == self.tail { Ok(members) } else { Err(format!("a list ends at {last}, not at {}", self.tail)) }
    }

    pub fn iter<'a>(&self, blocks: &'a [Block]) -> impl Iterator<Item = BlockId> + 'a {
        std::iter::successors(self.head(), |&b| {
            let next = blocks[b].next;
            (next != BlockId::NONE).then_some(next)
        })
    }
}
