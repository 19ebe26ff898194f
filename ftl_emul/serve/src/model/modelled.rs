//! Interface of models of time, and its implementations for flash and disks.

use ftl_core::disk::Array;
use ftl_core::engine::{Arrival, Completion, Until};
use ftl_core::{Drive, FtlError, Op, TenantId};

use crate::model::DISK_PAGE_BYTES;

/// A model of time that requests are submitted to one by one.
pub trait Modelled: Send {
    /// Has every tenant ready to be submitted for.
    fn open(&mut self) -> Result<(), FtlError>;
    /// Lets a request arrive now.
    fn submit(&mut self, tenant: TenantId, op: Op, offset: u64, length: u64, token: u64) -> Result<(), FtlError>;
    /// Lets time pass.
    fn run_to(&mut self, time_ns: u64);
    /// Requests whose end became known.
    fn completions(&mut self) -> std::vec::Drain<'_, Completion>;
    /// When something will happen next.
    fn next_event_ns(&self) -> Option<u64>;
    /// True when that decides which request will be done a moment later.
    fn next_event_is_read(&self) -> bool;
    /// Modelled time.
    fn now_ns(&self) -> u64;
    /// Unit in which space is released.
    fn page_bytes(&self) -> u64;
}

impl Modelled for Drive {
    fn open(&mut self) -> Result<(), FtlError> {
        for tenant in self.tenants() {
            self.open_queue(tenant, Arrival::Live)?;
        }
        Ok(())
    }

    fn submit(&mut self, tenant: TenantId, op: Op, offset: u64, length: u64, token: u64) -> Result<(), FtlError> {
        Drive::submit(self, tenant, op, offset, length, token)
    }

    fn run_to(&mut self, time_ns: u64) {
        self.run(Until { time_ns, host_page_writes: u64::MAX });
    }

    fn completions(&mut self) -> std::vec::Drain<'_, Completion> {
        Drive::completions(self)
    }

    fn next_event_ns(&self) -> Option<u64> {
        Drive::next_event_ns(self)
    }

    fn next_event_is_read(&self) -> bool {
        Drive::next_event_is_read(self)
    }

    fn now_ns(&self) -> u64 {
        Drive::now_ns(self)
    }

    fn page_bytes(&self) -> u64 {
        u64::from(self.geometry().page_bytes)
    }
}

impl Modelled for Array {
    fn open(&mut self) -> Result<(), FtlError> {
        Ok(())
    }

    fn submit(&mut self, tenant: TenantId, op: Op, offset: u64, length: u64, token: u64) -> Result<(), FtlError> {
        Array::submit(self, tenant, op, offset, length, token)
    }

    fn run_to(&mut self, time_ns: u64) {
        self.run(time_ns);
    }

    fn completions(&mut self) -> std::vec::Drain<'_, Completion> {
        Array::completions(self)
    }

    fn next_event_ns(&self) -> Option<u64> {
        Array::next_event_ns(self)
    }

    fn next_event_is_read(&self) -> bool {
        // The next operation is chosen when the arm is free, milliseconds before it ends.
        false
    }

    fn now_ns(&self) -> u64 {
        Array::now_ns(self)
    }

    fn page_bytes(&self) -> u64 {
        DISK_PAGE_BYTES
    }
}
