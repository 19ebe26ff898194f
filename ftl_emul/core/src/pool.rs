//! A pool: the blocks that one domain (a tenant in isolation, or all sharing tenants) owns on one die.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde::{Deserialize, Serialize};

use crate::address::{BlockId, DieId};
use crate::convert::exact;
use crate::victim::{VictimIndex, VictimPolicy};

/// The pool number of blocks that no domain owns.
pub(crate) const SPARE: u32 = u32::MAX;

/// Erased blocks, the least worn first (dynamic wear levelling).
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct FreeBlocks(BinaryHeap<Reverse<(u32, BlockId)>>);

impl FreeBlocks {
    /// The blocks of a new drive by place: so many places with so many blocks each, numbered one after the other.
    pub fn of_new_drive(places: u32, blocks_per_place: u32) -> Vec<Self> {
        let of = |place: u32| {
            (place * blocks_per_place..(place + 1) * blocks_per_place).map(|block| Reverse((0, BlockId(block))))
        };
        (0..places).map(|place| Self(of(place).collect())).collect()
    }

    #[inline]
    pub fn len(&self) -> u32 {
        exact::<u32>(self.0.len())
    }

    pub fn push(&mut self, erases: u32, block: BlockId) {
        self.0.push(Reverse((erases, block)));
    }

    pub fn pop(&mut self) -> Option<BlockId> {
        self.0.pop().map(|Reverse((_, block))| block)
    }

    pub fn iter(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.0.iter().map(|Reverse((_, block))| *block)
    }
}

/// A block being written, page after page.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Frontier {
    pub block: BlockId,
    pub next_page: u32,
}

impl Frontier {
    /// No block is open.
    pub const CLOSED: Self = Self { block: BlockId::NONE, next_page: u32::MAX };
}

/// Host writes go to the first frontier; GC copies to the second, or to the first too when they share one.
pub(crate) const HOST: usize = 0;
pub(crate) const GC: usize = 1;

/// The blocks of one domain on one die: free ones, open ones, full ones.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Pool {
    pub die: DieId,
    /// Number of owned blocks in any state.
    pub blocks: u32,
    /// Valid pages in them.
    pub valid: u64,
    pub free: FreeBlocks,
    pub frontiers: [Frontier; 2],
    pub victims: VictimIndex,
}

impl Pool {
    pub fn new(die: DieId, policy: VictimPolicy, pages_per_block: u32) -> Self {
        Self {
            die,
            blocks: 0,
            valid: 0,
            free: FreeBlocks::default(),
            frontiers: [Frontier::CLOSED; 2],
            victims: VictimIndex::new(policy, pages_per_block),
        }
    }
}
