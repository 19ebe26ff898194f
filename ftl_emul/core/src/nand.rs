//! Interface between mapping and time: a mapping reports its operations on dies, a [`Nand`] calculates their time.

use crate::address::DieId;

/// Receiver of the flash operations of a mapping.
pub trait Nand {
    /// False if operations take no time, so that mappings need not pass the dies between which they copy.
    const TIMED: bool = true;

    /// Whether a die could start an operation at once; mappings place host writes on idle dies first.
    fn is_idle(&self, die: DieId) -> bool;

    /// When the die will have finished everything given to it, in nanoseconds; compared, never added up.
    fn busy_until(&self, die: DieId) -> u64;

    /// One page of host data is transferred to the die and programmed.
    fn program(&mut self, die: DieId);

    /// One page is read for the host and transferred out.
    fn read(&mut self, die: DieId);

    /// A page is read because the host rewrites a part of it; its program follows.
    fn read_for_rewrite(&mut self, die: DieId);

    /// GC or reclaim copies `pages` pages within the die.
    fn copy(&mut self, die: DieId, pages: u32);

    /// A merge copies `pages` pages from one die to another, or within one when both are the same.
    fn copy_across(&mut self, from: DieId, to: DieId, pages: u32);

    /// One block of the die is erased.
    fn erase(&mut self, die: DieId);

    /// The mapping reads a page of its map, for which the host's request waits.
    fn map_read(&mut self, die: DieId);

    /// The mapping programs a page of its map, for which the host's request waits.
    fn map_program(&mut self, die: DieId);

    /// Nanoseconds that copies, erases and work on the map have taken in the host's operation so far.
    fn overhead_ns(&self) -> u64;

    /// The time of the copies and erases that follow is deferred, until [`Nand::defer_to_writes`] or [`Nand::defer_to_background`].
    #[inline(always)]
    fn begin_deferring(&mut self) {}

    /// Deferred work is done in equal steps with the next `writes` host pages of a pool: GC alternates with requests
    /// instead of blocking its die for a whole pass.
    #[inline(always)]
    fn defer_to_writes(&mut self, _pool: usize, _writes: u32) {}

    /// The die does the deferred work at some later time.
    #[inline(always)]
    fn defer_to_background(&mut self, _die: DieId) {}

    /// Does the deferred step of GC that is due before the next host page of a pool is programmed on its die.
    #[inline(always)]
    fn run_deferred_step(&mut self, _pool: usize, _die: DieId) {}
}

/// Flash without a clock: for count-only runs, preconditioning and validation.
#[derive(Debug, Clone, Copy, Default)]
pub struct Untimed;

impl Nand for Untimed {
    const TIMED: bool = false;

    #[inline(always)]
    fn is_idle(&self, _die: DieId) -> bool {
        true
    }

    #[inline(always)]
    fn busy_until(&self, _die: DieId) -> u64 {
        0
    }

    #[inline(always)]
    fn program(&mut self, _die: DieId) {}

    #[inline(always)]
    fn read(&mut self, _die: DieId) {}

    #[inline(always)]
    fn read_for_rewrite(&mut self, _die: DieId) {}

    #[inline(always)]
    fn copy(&mut self, _die: DieId, _pages: u32) {}

    #[inline(always)]
    fn copy_across(&mut self, _from: DieId, _to: DieId, _pages: u32) {}

    #[inline(always)]
    fn erase(&mut self, _die: DieId) {}

    #[inline(always)]
    fn map_read(&mut self, _die: DieId) {}

    #[inline(always)]
    fn map_program(&mut self, _die: DieId) {}

    #[inline(always)]
    fn overhead_ns(&self) -> u64 {
        0
    }
}
