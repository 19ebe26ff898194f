//! What is left of a move of OPS blocks, whatever the mapping.

use serde::{Deserialize, Serialize};

use crate::error::FtlError;
use crate::op::TenantId;

/// Blocks promised and not yet handed over; None as an end is the spare.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::mapping) struct Transfer {
    pub from: Option<TenantId>,
    pub to: Option<TenantId>,
    pub blocks: u64,
}

/// Refuses what the spare cannot give, as `transfers` have been promised already.
pub(in crate::mapping) fn require_spare(
    transfers: &[Transfer],
    spare_blocks: u64,
    needed: u64,
) -> Result<(), FtlError> {
    let promised: u64 = transfers.iter().filter(|t| t.from.is_none()).map(|t| t.blocks).sum();
    let available = spare_blocks.saturating_sub(promised);
    if needed > available {
        return Err(FtlError::NotEnoughBlocks { needed, available, what: "a move from the spare" });
    }
    Ok(())
}
