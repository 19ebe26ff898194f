//! Pace at which blocks change owners while the drive serves requests.

use crate::mapping::Mapping;
use crate::nand::Nand;

/// 64 victims free a block even where 98 % of their pages are valid.
const MOST_GC_PASSES: u64 = 64;

/// Steps of pending moves without a clock, between host writes. The maximum victims of a step double with every step
/// that moves no block: otherwise a busy giver with few free pages uses up the pages that each step frees.
#[derive(Debug, Clone)]
pub struct MovePace {
    gc_passes: u64,
}

impl Default for MovePace {
    fn default() -> Self {
        Self { gc_passes: 1 }
    }
}

impl MovePace {
    /// Does one step.
    pub fn step<M: Mapping, N: Nand>(&mut self, mapping: &mut M, nand: &mut N) {
        let progress = mapping.advance_moves(self.gc_passes, nand);
        if progress.moved_blocks > 0 || progress.pending_blocks == 0 {
            self.gc_passes = 1;
        } else if progress.gc_passes == self.gc_passes {
            self.gc_passes = (2 * self.gc_passes).min(MOST_GC_PASSES);
        }
    }
}
