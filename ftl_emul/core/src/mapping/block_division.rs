//! Pages as block and page of it.

use crate::address::{BlockId, LogicalBlockId, LogicalPage, PhysicalPage};

/// Splits page numbers into block and page by multiplication, which is several times as fast as dividing.
#[derive(Debug, Clone, Copy)]
pub(in crate::mapping) struct BlockDivision {
    /// In 64 bits, as all arithmetic here: with 32 the compiler runs out of registers where a page is written.
    pub pages_per_block: u64,
    reciprocal: u64,
    pub words_per_block: usize,
}

impl BlockDivision {
    pub fn new(pages_per_block: u32) -> Self {
        // ceil(2^64 / n): exact for all page numbers below 2^64 / n, far more than 32 bits hold.
        let reciprocal = (u64::MAX / u64::from(pages_per_block)).wrapping_add(1);
        Self {
            pages_per_block: u64::from(pages_per_block),
            reciprocal,
            words_per_block: (pages_per_block as usize).div_ceil(64),
        }
    }

    /// The block of a page of a namespace, counted from its first; anything for pages that no drive has.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "blocks of pages that there are have 32 bits")]
    pub fn quotient(self, page: u64) -> u32 {
        ((u128::from(page) * u128::from(self.reciprocal)) >> 64) as u32
    }

    /// The block of a physical page.
    #[inline(always)]
    pub fn block(self, page: PhysicalPage) -> BlockId {
        BlockId(self.quotient(u64::from(page.0)))
    }

    /// The page of its block that a physical page is; `block` is that block.
    #[inline(always)]
    pub fn page_of_block(self, block: BlockId, page: PhysicalPage) -> u32 {
        exact_page(u64::from(page.0) - u64::from(block.0) * self.pages_per_block)
    }

    /// A page of a block.
    #[inline(always)]
    pub fn physical(self, block: BlockId, page: u32) -> PhysicalPage {
        PhysicalPage(exact_page(u64::from(block.0) * self.pages_per_block + u64::from(page)))
    }

    /// The logical block of a logical page.
    #[inline(always)]
    pub fn logical_block(self, page: LogicalPage) -> LogicalBlockId {
        LogicalBlockId(self.quotient(u64::from(page.0)))
    }

    /// A page of a logical block.
    #[inline(always)]
    pub fn logical(self, block: LogicalBlockId, page: u32) -> LogicalPage {
        LogicalPage(exact_page(u64::from(block.0) * self.pages_per_block + u64::from(page)))
    }
}

/// A page number, which has 32 bits on every drive that is not refused.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "larger drives are refused")]
fn exact_page(page: u64) -> u32 {
    debug_assert!(u32::try_from(page).is_ok(), "page {page} of a drive that is too large");
    page as u32
}
