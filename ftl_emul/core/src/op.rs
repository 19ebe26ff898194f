//! Requests of a host.

use serde::{Deserialize, Serialize};

use crate::error::{FtlError, invalid};

/// The number of a tenant (a VM's stream as the flash sees it).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TenantId(pub u16);

/// Kinds of request. The numbers are those of the Python arrays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum Op {
    /// Read pages.
    Read = 0,
    /// Write pages; a page written in part is read first.
    Write = 1,
    /// Deallocate the pages that are completely inside the range.
    Trim = 2,
    /// Make the range read as zeroes: whole pages are deallocated, edges are written.
    WriteZeroes = 3,
    /// Complete when every earlier request of the tenant has.
    Flush = 4,
}

impl TryFrom<u8> for Op {
    type Error = FtlError;

    fn try_from(code: u8) -> Result<Self, FtlError> {
        Ok(match code {
            0 => Op::Read,
            1 => Op::Write,
            2 => Op::Trim,
            3 => Op::WriteZeroes,
            4 => Op::Flush,
            _ => {
                return invalid(
                    "op",
                    format!("{code} is not 0 (read), 1 (write), 2 (trim), 3 (write-zeroes) or 4 (flush)"),
                );
            }
        })
    }
}

/// A byte range resolved to pages of one namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageSpan {
    /// First page touched.
    pub first: u64,
    /// Index after the last page touched.
    pub end: u64,
    /// The first page is covered in part only.
    pub partial_first: bool,
    /// The last page is covered in part only (equal to `partial_first` for a span inside one page).
    pub partial_last: bool,
}

impl PageSpan {
    /// The pages that `length` bytes at `offset` touch: floor(offset / page) ..= floor((offset + length - 1) / page).
    ///
    /// `page_shift` is log2 of the page size. A length of 0 gives an empty span.
    #[inline]
    #[must_use]
    pub fn of(offset_bytes: u64, length_bytes: u64, page_shift: u32) -> Self {
        let mask = (1u64 << page_shift) - 1;
        let first = offset_bytes >> page_shift;
        if length_bytes == 0 {
            return Self { first, end: first, partial_first: false, partial_last: false };
        }
        let stop = offset_bytes + length_bytes;
        let end = ((stop - 1) >> page_shift) + 1;
        let (head, tail) = (offset_bytes & mask != 0, stop & mask != 0);
        let one = end - first == 1;
        Self { first, end, partial_first: head || (one && tail), partial_last: tail || (one && head) }
    }

    /// The pages of a byte range of a namespace, when all of them exist.
    pub(crate) fn within(offset_bytes: u64, length_bytes: u64, page_shift: u32, pages: u64) -> Result<Self, FtlError> {
        if offset_bytes.checked_add(length_bytes).is_none() {
            return Err(FtlError::OutOfRange { page: u64::MAX >> page_shift, pages });
        }
        let span = Self::of(offset_bytes, length_bytes, page_shift);
        if span.end > pages {
            return Err(FtlError::OutOfRange { page: span.end.saturating_sub(1).max(pages), pages });
        }
        Ok(span)
    }

    /// The pages covered wholly.
    #[inline]
    #[must_use]
    pub fn whole(&self) -> std::ops::Range<u64> {
        let first = self.first + u64::from(self.partial_first);
        let end = self.end - u64::from(self.partial_last);
        first..end.max(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_use_floor_arithmetic() {
        let span = |o, l| PageSpan::of(o, l, 12);
        assert_eq!((span(0, 4096).first, span(0, 4096).end), (0, 1));
        assert_eq!((span(4095, 2).first, span(4095, 2).end), (0, 2));
        assert_eq!(span(4095, 2).whole(), 1..1);
        assert_eq!(span(512, 512).whole().count(), 0);
        assert!(span(512, 512).partial_first && span(512, 512).partial_last);
        assert_eq!(span(1, 3 * 4096).whole(), 1..3);
        assert_eq!(span(8192, 0).end, 2);
    }
}
