//! How a page number is stored in the mapping tables.

use bytemuck::{Pod, Zeroable};

/// A page number as stored in a flat table: four bytes where they suffice, five on larger drives.
///
/// All-zero bytes must decode to 0, because tables start out zeroed and 0 means "unmapped" in the map.
pub trait PageNumber: Pod + Send + Sync + 'static {
    /// The largest number that can be stored.
    const MAX: u64;

    /// Stores `n`, which must not exceed [`Self::MAX`].
    fn pack(n: u64) -> Self;

    /// The number stored.
    fn unpack(self) -> u64;
}

impl PageNumber for u32 {
    const MAX: u64 = u32::MAX as u64;

    #[inline(always)]
    fn pack(n: u64) -> Self {
        debug_assert!(n <= <Self as PageNumber>::MAX);
        n as u32
    }

    #[inline(always)]
    fn unpack(self) -> u64 {
        u64::from(self)
    }
}

/// A 40-bit page number: 4 PiB of 4 KiB pages, in five bytes so that 16 TiB drives stay below 12 bytes a page.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(transparent)]
pub struct U40([u8; 5]);

impl PageNumber for U40 {
    const MAX: u64 = (1 << 40) - 1;

    #[inline(always)]
    fn pack(n: u64) -> Self {
        debug_assert!(n <= Self::MAX);
        let [a, b, c, d, e, ..] = n.to_le_bytes();
        Self([a, b, c, d, e])
    }

    #[inline(always)]
    fn unpack(self) -> u64 {
        let [a, b, c, d, e] = self.0;
        u64::from_le_bytes([a, b, c, d, e, 0, 0, 0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_widths_hold_their_extremes() {
        for n in [0, 1, 0xffff, u64::from(u32::MAX)] {
            assert_eq!(u32::pack(n).unpack(), n);
            assert_eq!(U40::pack(n).unpack(), n);
        }
        assert_eq!(U40::pack(U40::MAX).unpack(), U40::MAX);
    }
}
