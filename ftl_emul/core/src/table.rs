//! Flat tables in anonymous memory: zeroed, committed page by page when they are accessed, on huge pages if the kernel
//! has them. A drive of many TiB thus needs memory only for the part that has data.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use bytemuck::{Pod, Zeroable};
use memmap2::{MmapMut, MmapOptions};

use crate::error::FtlError;

/// Below this size huge pages waste more than they save.
const HUGE_PAGE_THRESHOLD_BYTES: usize = 1 << 20;

/// A fixed-length array of plain values that starts out zeroed.
pub struct Table<T> {
    memory: MmapMut,
    len: usize,
    _values: PhantomData<T>,
}

impl<T: Zeroable + Copy> Table<T> {
    /// A zeroed table of `len` values. Fails if the address space cannot be reserved.
    pub fn zeroed(len: usize) -> Result<Self, FtlError> {
        let out_of_memory = || FtlError::OutOfMemory { bytes: (len as u64).saturating_mul(size_of::<T>() as u64) };
        let bytes = len.checked_mul(size_of::<T>()).ok_or_else(out_of_memory)?.max(1);
        let memory = MmapOptions::new().len(bytes).no_reserve_swap().map_anon().map_err(|_| out_of_memory())?;
        if bytes >= HUGE_PAGE_THRESHOLD_BYTES {
            // A hint only: random map updates are bound by TLB misses without it. Kernels may refuse it.
            let _ = memory.advise(memmap2::Advice::HugePage);
        }
        Ok(Self { memory, len, _values: PhantomData })
    }

    /// Prefetches the cache line of entry `index`; out-of-range indices are harmless.
    #[inline(always)]
    pub fn prefetch(&self, index: usize) {
        prefetch_line(self.memory.as_ptr().cast::<T>().wrapping_add(index));
    }
}

/// Prefetches the cache line at an arbitrary address.
#[inline(always)]
pub(crate) fn prefetch_line<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, for any address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

impl<T: Pod> Table<T> {
    /// The whole table as bytes, for snapshots.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[..self.len * size_of::<T>()]
    }
}

impl<T: Zeroable + Copy> Deref for Table<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: the mapping is page-aligned, holds at least len * size_of::<T>() initialised (zeroed) bytes, lives
        // as long as self, and only valid values of T were ever stored in it.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().cast(), self.len) }
    }
}

impl<T: Zeroable + Copy> DerefMut for Table<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in deref; &mut self makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_mut_ptr().cast(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_starts_zeroed_and_keeps_written_values() {
        let mut table = Table::<u32>::zeroed(5_000_000).expect("20 MB");
        assert_eq!((table[0], table[4_999_999]), (0, 0));
        table[4_999_999] = 7;
        assert_eq!(table[4_999_999], 7);
    }

    #[test]
    fn large_table_uses_memory_only_for_touched_pages() {
        let mut table = Table::<u32>::zeroed(1 << 34).expect("64 GiB of address space");
        table[(1 << 34) - 1] = 1;
        assert_eq!(table[(1 << 34) - 1], 1);
    }

    #[test]
    fn impossible_table_size_is_refused() {
        assert!(matches!(Table::<u64>::zeroed(usize::MAX / 4), Err(FtlError::OutOfMemory { .. })));
    }
}
