//! Physical page numbers as block and page.

/// Splits physical page numbers into block and page by multiplication, which is several times as fast as dividing.
#[derive(Debug, Clone, Copy)]
pub(in crate::mapping) struct BlockDivision {
    pub pages_per_block: u64,
    reciprocal: u64,
    pub words_per_block: usize,
}

impl BlockDivision {
    pub fn new(pages_per_block: u32) -> Self {
        let n = u64::from(pages_per_block);
        // ceil(2^64 / n): exact for all page numbers below 2^64 / n, far more than 32 bits hold.
        let reciprocal = (u64::MAX / n).wrapping_add(1);
        Self { pages_per_block: n, reciprocal, words_per_block: (pages_per_block as usize).div_ceil(64) }
    }

    /// The block of a page; anything for pages that no drive has.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "blocks of pages that there are have 32 bits")]
    pub fn block(self, physical: u64) -> u32 {
        ((u128::from(physical) * u128::from(self.reciprocal)) >> 64) as u32
    }

    #[inline(always)]
    pub fn physical(self, block: u32, page: u32) -> u64 {
        u64::from(block) * self.pages_per_block + u64::from(page)
    }
}
