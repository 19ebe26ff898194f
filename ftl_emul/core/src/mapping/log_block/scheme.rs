//! Differences between mappings with log blocks.

use crate::address::LogicalBlockId;
use crate::mapping::log_block::{Purpose, Store};
use crate::nand::Nand;
use crate::op::TenantId;

/// Choice of the log block for a write, and of the log block to merge.
pub trait LogScheme: 'static {
    /// The name of the mapping.
    const NAME: &'static str;

    /// Log blocks reserved for sequential writes.
    const SEQUENTIAL_LOG_BLOCKS: u64;

    /// Identifies its snapshots.
    const SNAPSHOT_CODE: u8;

    /// Writes a page whose place in the data block is already programmed.
    #[doc(hidden)]
    fn write_to_log<N: Nand>(store: &mut Store<Self>, write: Write, nand: &mut N)
    where
        Self: Sized;

    /// Merges and frees one log block; false when there is none.
    #[doc(hidden)]
    fn evict<N: Nand>(store: &mut Store<Self>, domain: u32, cause: TenantId, purpose: Purpose, nand: &mut N) -> bool
    where
        Self: Sized;

    /// Erases the log block that belongs to a logical block alone, whose last page was unmapped.
    #[doc(hidden)]
    fn release<N: Nand>(store: &mut Store<Self>, logical: LogicalBlockId, cause: TenantId, nand: &mut N)
    where
        Self: Sized;

    /// Verifies the state of this scheme.
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
    /// Page within the logical block.
    pub(in crate::mapping) offset: u32,
    /// Tenant of the write.
    pub(in crate::mapping) cause: TenantId,
}
