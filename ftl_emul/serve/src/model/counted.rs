//! Placement without time: requests are gathered and applied some at a time, off the path of most of them.

use std::sync::Mutex;

use ftl_core::Drive;
use ftl_core::count::Requests;

use crate::model::{Request, survived};

/// Requests gathered before someone applies them.
const BATCH: usize = 64;
/// Requests gathered at most, while another thread holds the drive.
const CAPACITY: usize = 4096;
/// Gathered pages are applied from this number on, however few requests they belong to.
const BATCH_PAGES: u64 = 8 << 10;
/// Maximum number of gathered pages; only a thread that submits several requests at once waits for that.
const CAPACITY_PAGES: u64 = 16 << 10;

/// Columns of requests, allocated once.
#[derive(Debug)]
struct Batch {
    tenant: Vec<u16>,
    op: Vec<u8>,
    offset: Vec<u64>,
    length: Vec<u64>,
    /// Approximate number of pages that they touch.
    pages: u64,
}

impl Batch {
    fn new() -> Self {
        Self {
            tenant: Vec::with_capacity(CAPACITY),
            op: Vec::with_capacity(CAPACITY),
            offset: Vec::with_capacity(CAPACITY),
            length: Vec::with_capacity(CAPACITY),
            pages: 0,
        }
    }

    fn push(&mut self, request: Request, pages: u64) {
        self.pages += pages;
        self.tenant.push(request.tenant.0);
        self.op.push(request.op as u8);
        self.offset.push(request.offset);
        self.length.push(request.length);
    }

    fn clear(&mut self) {
        self.tenant.clear();
        self.op.clear();
        self.offset.clear();
        self.length.clear();
        self.pages = 0;
    }

    fn requests(&self, from: usize, to: usize) -> Requests<'_> {
        Requests {
            tenant: &self.tenant[from..to],
            op: &self.op[from..to],
            offset_bytes: &self.offset[from..to],
            length_bytes: &self.length[from..to],
        }
    }
}

struct Applied {
    drive: Drive,
    /// The batch being applied.
    batch: Batch,
}

impl Applied {
    fn apply_batch(&mut self) {
        let Self { drive, batch } = self;
        let n = batch.tenant.len();
        if drive.apply(batch.requests(0, n)).is_err() {
            // One of them exceeds the end of a namespace that was shrunk in the meantime; the others still count.
            for i in 0..n {
                let _beyond_the_end = drive.apply(batch.requests(i, i + 1));
            }
        }
        batch.clear();
    }
}

/// A drive without a clock.
pub struct Counted {
    applied: Mutex<Applied>,
    gathered: Mutex<Batch>,
    page_bytes: u64,
}

impl Counted {
    /// Around a drive.
    #[must_use]
    pub fn new(drive: Drive) -> Self {
        Self {
            page_bytes: u64::from(drive.geometry().page_bytes),
            applied: Mutex::new(Applied { drive, batch: Batch::new() }),
            gathered: Mutex::new(Batch::new()),
        }
    }

    /// Page size of the flash.
    #[must_use]
    pub fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// Takes note of a request.
    #[inline]
    pub fn note(&self, request: Request) {
        let pages = request.length.div_ceil(self.page_bytes);
        let (is_full, gathered, gathered_pages) = {
            let Ok(mut gathered) = self.gathered.lock() else { return };
            let is_full = gathered.tenant.len() >= CAPACITY;
            if !is_full {
                gathered.push(request, pages);
            }
            (is_full, gathered.tenant.len(), gathered.pages)
        };
        if gathered < BATCH && gathered_pages < BATCH_PAGES {
            return;
        }
        let too_many_pages = pages >= BATCH as u64 && gathered_pages >= CAPACITY_PAGES;
        if gathered < CAPACITY && !too_many_pages {
            let _failed = survived(|| self.applied.try_lock().map(|mut applied| self.apply(&mut applied)).ok());
        } else {
            let _failed = survived(|| {
                let Ok(mut applied) = self.applied.lock() else { return };
                self.apply(&mut applied);
                if is_full {
                    applied.batch.push(request, pages);
                    applied.apply_batch();
                }
            });
        }
    }

    /// Access to the drive after applying all noted requests; None after a panic in it.
    pub fn with<R>(&self, work: impl FnOnce(&mut Drive) -> R) -> Option<R> {
        let done = survived(|| {
            let mut applied = self.applied.lock().ok()?;
            self.apply(&mut applied);
            Some(work(&mut applied.drive))
        });
        done.flatten()
    }

    fn apply(&self, applied: &mut Applied) {
        if let Ok(mut gathered) = self.gathered.lock() {
            std::mem::swap(&mut *gathered, &mut applied.batch);
        }
        applied.apply_batch();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use ftl_core::{Op, Placement, TenantId};

    use super::*;
    use crate::config::DeviceConfig;
    use crate::server::tests::{PAGE, make};

    fn counted() -> (Counted, TenantId) {
        let folder = tempfile::tempdir().unwrap();
        make(folder.path(), "page", true, 8);
        let config = DeviceConfig::read(folder.path()).unwrap();
        let flash = config.flash().unwrap();
        let options = (flash.mapping_options().unwrap(), flash.drive_options().unwrap());
        let mut drive = Drive::new(flash.geometry, options.0, options.1).unwrap();
        let tenant = drive.create_tenant(16, Placement::Isolated, 20).unwrap();
        (Counted::new(drive), tenant)
    }

    fn write(tenant: TenantId) -> Request {
        Request { tenant, op: Op::Write, offset: 0, length: PAGE, is_piece: false }
    }

    #[test]
    fn requests_count_that_come_while_the_drive_is_held_and_no_more_can_be_gathered() {
        const THREADS: u64 = 4;
        let (counted, tenant) = counted();
        thread::scope(|scope| {
            let held = counted.applied.lock().unwrap();
            for _ in 0..CAPACITY - 1 {
                counted.note(write(tenant));
            }
            for _ in 0..THREADS {
                scope.spawn(|| counted.note(write(tenant)));
            }
            while counted.gathered.lock().unwrap().tenant.len() < CAPACITY {
                thread::yield_now();
            }
            thread::sleep(Duration::from_millis(100));
            drop(held);
        });
        let written = counted.with(|drive| drive.counters(tenant).unwrap().host_page_writes);
        assert_eq!(written, Some(CAPACITY as u64 - 1 + THREADS));
    }

    #[test]
    fn requests_go_on_without_a_drive_that_has_failed() {
        let (counted, tenant) = counted();
        assert!(counted.with(|_| panic!("a fault of the model")).is_none());
        for _ in 0..2 * CAPACITY {
            counted.note(write(tenant));
        }
        assert!(counted.with(|_| ()).is_none());
    }
}
