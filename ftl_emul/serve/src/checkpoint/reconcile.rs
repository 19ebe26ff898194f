//! Bringing the placement of a drive in line with the data in the files.

use ftl_core::count::Requests;
use ftl_core::{Drive, Op, TenantId};

use crate::error::ServeError;
use crate::namespace::Namespace;

/// Requests passed to the drive at once while it is filled from the files.
const FILL_BATCH: usize = 4096;

/// Maps pages with data and, unless `keep_mapped`, unmaps those without; returns the pages changed.
pub(super) fn reconcile(drive: &mut Drive, namespaces: &[Namespace], keep_mapped: bool) -> Result<u64, ServeError> {
    let page = u64::from(drive.geometry().page_bytes);
    let mut fill = Fill::new(page);
    for namespace in namespaces {
        let size = namespace.size_bytes();
        // Up to here pages are dealt with: a page may be data in part and hole in part, and counts as data.
        let mut next_page = 0;
        let mut offset = 0;
        while offset < size {
            let extent = namespace
                .backing
                .extent_at(offset, size)
                .map_err(|e| ServeError::File(format!("namespace {}: cannot find its data: {e}", namespace.name)))?;
            let end = offset + extent.length;
            let (first, last) = if extent.hole {
                (offset.div_ceil(page), if end == size { end.div_ceil(page) } else { end / page })
            } else {
                (offset / page, end.div_ceil(page))
            };
            let from = if extent.hole && keep_mapped { last } else { first.max(next_page) };
            for number in from..last {
                if drive.is_mapped(namespace.tenant, number) == extent.hole {
                    fill.add(drive, namespace.tenant, if extent.hole { Op::Trim } else { Op::Write }, number)?;
                }
            }
            next_page = next_page.max(last);
            offset = end;
        }
    }
    fill.apply(drive)?;
    Ok(fill.pages)
}

/// Single-page requests on their way to a drive.
struct Fill {
    page_bytes: u64,
    tenant: Vec<u16>,
    op: Vec<u8>,
    offset: Vec<u64>,
    length: Vec<u64>,
    pages: u64,
}

impl Fill {
    fn new(page_bytes: u64) -> Self {
        let (tenant, op, offset) = (Vec::new(), Vec::new(), Vec::new());
        Self { page_bytes, tenant, op, offset, length: vec![page_bytes; FILL_BATCH], pages: 0 }
    }

    fn add(&mut self, drive: &mut Drive, tenant: TenantId, op: Op, page: u64) -> Result<(), ServeError> {
        self.tenant.push(tenant.0);
        self.op.push(op as u8);
        self.offset.push(page * self.page_bytes);
        if self.tenant.len() == FILL_BATCH { self.apply(drive) } else { Ok(()) }
    }

    fn apply(&mut self, drive: &mut Drive) -> Result<(), ServeError> {
        drive.apply(Requests {
            tenant: &self.tenant,
            op: &self.op,
            offset_bytes: &self.offset,
            length_bytes: &self.length[..self.tenant.len()],
        })?;
        self.pages += self.tenant.len() as u64;
        self.tenant.clear();
        self.op.clear();
        self.offset.clear();
        Ok(())
    }
}
