//! Count-only runs: requests of many tenants in the order given, without a clock.

use crate::error::{FtlError, invalid};
use crate::mapping::Mapping;
use crate::mapping::move_pace::MovePace;
use crate::nand::Untimed;
use crate::op::{Op, PageSpan, TenantId};

/// Distance, in requests, at which map entries are prefetched.
const PREFETCH_AHEAD: usize = 40;
const PREFETCH_OVERWRITE_AHEAD: usize = 20;

/// Requests between two steps of moves of blocks.
const REQUESTS_PER_MOVE_STEP: usize = 16;

/// Columns of requests, of equal length.
#[derive(Debug, Clone, Copy)]
pub struct Requests<'a> {
    /// Tenant numbers.
    pub tenant: &'a [u16],
    /// Operation codes, see [`Op`].
    pub op: &'a [u8],
    /// First byte.
    pub offset_bytes: &'a [u64],
    /// Bytes.
    pub length_bytes: &'a [u64],
}

/// Applies requests in order, after checking all of them.
pub fn apply<M: Mapping>(mapping: &mut M, requests: Requests<'_>) -> Result<(), FtlError> {
    let shift = mapping.geometry().page_bytes.trailing_zeros();
    check(mapping, &requests, shift)?;
    let Requests { tenant, op, offset_bytes, length_bytes } = requests;
    let place = |i: usize| (TenantId(tenant[i]), offset_bytes[i] >> shift);
    let n = tenant.len();
    let mut move_pace = MovePace::default();
    for i in 0..n {
        if i + PREFETCH_AHEAD < n && length_bytes[i + PREFETCH_AHEAD] > 0 {
            let (tenant, page) = place(i + PREFETCH_AHEAD);
            mapping.prefetch(tenant, page);
        }
        if i + PREFETCH_OVERWRITE_AHEAD < n && length_bytes[i + PREFETCH_OVERWRITE_AHEAD] > 0 {
            let (tenant, page) = place(i + PREFETCH_OVERWRITE_AHEAD);
            mapping.prefetch_overwrite(tenant, page);
        }
        let span = PageSpan::of(offset_bytes[i], length_bytes[i], shift);
        // Checked above.
        let Ok(op) = Op::try_from(op[i]) else { continue };
        apply_one(mapping, TenantId(tenant[i]), op, &span);
        if mapping.moves_pending() && i % REQUESTS_PER_MOVE_STEP == 0 {
            move_pace.step(mapping, &mut Untimed);
        }
    }
    Ok(())
}

fn check<M: Mapping>(mapping: &M, requests: &Requests<'_>, shift: u32) -> Result<(), FtlError> {
    let Requests { tenant, op, offset_bytes, length_bytes } = *requests;
    let n = tenant.len();
    if op.len() != n || offset_bytes.len() != n || length_bytes.len() != n {
        return invalid("requests", "columns differ in length");
    }
    for i in 0..n {
        Op::try_from(op[i])?;
        let pages = mapping.pages(TenantId(tenant[i]));
        if pages == 0 {
            return Err(FtlError::UnknownTenant(tenant[i]));
        }
        PageSpan::within(offset_bytes[i], length_bytes[i], shift, pages)?;
    }
    Ok(())
}

#[inline(always)]
fn apply_one<M: Mapping>(mapping: &mut M, tenant: TenantId, op: Op, span: &PageSpan) {
    match op {
        Op::Write if span.end - span.first == 1 && !span.partial_first => {
            mapping.write_page(tenant, span.first, &mut Untimed);
        }
        Op::Write => {
            let whole = span.whole();
            for page in span.first..span.end {
                if whole.contains(&page) {
                    mapping.write_page(tenant, page, &mut Untimed);
                } else {
                    mapping.rewrite_page_in_part(tenant, page, &mut Untimed);
                }
            }
        }
        Op::Read => (span.first..span.end).for_each(|p| {
            mapping.read_page(tenant, p, &mut Untimed);
        }),
        Op::Trim => span.whole().for_each(|p| mapping.trim_page(tenant, p, &mut Untimed)),
        Op::WriteZeroes => {
            let whole = span.whole();
            for page in span.first..span.end {
                if whole.contains(&page) {
                    mapping.trim_page(tenant, page, &mut Untimed);
                } else {
                    mapping.rewrite_page_in_part(tenant, page, &mut Untimed);
                }
            }
        }
        Op::Flush => {}
    }
}
