//! What tells mappings with log blocks from each other.

use crate::address::LogicalBlockId;
use crate::mapping::log_block::{Purpose, Store};
use crate::nand::Nand;
use crate::op::TenantId;

/// Which log block a write goes to, and which log block is merged to make room.
pub trait LogScheme: 'static {
    /// The name of the mapping.
    const NAME: &'static str;

    /// Log blocks kept for sequential writes, used or not.
    const SEQUENTIAL_LOG_BLOCKS: u64;

    /// What tells its snapshots from those of others.
    const SNAPSHOT_CODE: u8;

    /// Writes a page whose place in the data block is taken.
    #[doc(hidden)]
    fn write_to_log<N: Nand>(store: &mut Store<Self>, write: Write, nand: &mut N)
    where
        Self: Sized;

    /// Merges one log block, so that there is one fewer; false when there is none.
    #[doc(hidden)]
    fn evict<N: Nand>(store: &mut Store<Self>, domain: u32, cause: TenantId, purpose: Purpose, nand: &mut N) -> bool
    where
        Self: Sized;

    /// Erases the log block that belongs to a logical block alone, whose last page was unmapped.
    #[doc(hidden)]
    fn release<N: Nand>(store: &mut Store<Self>, logical: LogicalBlockId, cause: TenantId, nand: &mut N)
    where
        Self: Sized;

    /// Verifies what only this scheme keeps.
    #[doc(hidden)]
    fn check(store: &Store<Self>) -> Result<(), String>
    where
        Self: Sized;
}

/// One page to be written.
#[derive(Debug, Clone, Copy)]
pub struct Write {
    /// The logical block.
    pub(in crate::mapping) logical: LogicalBlockId,
    /// Page of it.
    pub(in crate::mapping) offset: u32,
    /// Whose write it is.
    pub(in crate::mapping) cause: TenantId,
}
