//! The model beside the data, of flash or of disks: every request is passed to it, and it says when a request is done.
//!
//! It never holds guest data, so its faults affect statistics and timing, but not data: after a panic in the model,
//! requests are served without it.

mod counted;
mod modelled;
mod punctuality;
mod release;
mod timed;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ftl_core::disk::Array;
use ftl_core::engine::{Limit, QueueCounters, SchedulerPolicy};
use ftl_core::{Drive, Op, TenantId};

pub use counted::Counted;
pub use timed::{Clock, Ticking, Timed};

use crate::config::NO_FLASH;
use crate::error::{ServeError, refuse};

/// See [`Model::piece_bytes`]. Reads and writes are measured by what is moved, the others by the work on the map.
const MOVED_BYTES: u64 = 1 << 20;
const TRIMMED_PAGES: u64 = 1024;
/// A page of zeroes is a separate command to the flash model.
const ZEROED_PAGES: u64 = 64;
const DISK_PAGE_BYTES: u64 = 4096;

/// A request, or a piece of one, as the model sees it.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// Its namespace.
    pub tenant: TenantId,
    /// Kind.
    pub op: Op,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// One of several pieces: how soon it follows the one before does not tell how far away the client is.
    pub is_piece: bool,
}

/// Either way of modelling.
pub enum Model {
    /// Placement only; requests are done when their data is.
    Counted(Box<Counted>),
    /// Placement and time.
    Timed(Arc<Timed<Drive>>),
    /// Disks, with time; they have no placement.
    Disks(Arc<Timed<Array>>),
    /// Disks without time: no model.
    Still,
}

/// What to wait for before a request may be answered.
#[derive(Debug)]
#[must_use]
pub struct Ticket(Option<timed::Waiting>);

impl Ticket {
    /// True if there is a time to wait for.
    pub fn waits(&self) -> bool {
        self.0.is_some()
    }

    /// Abandons a request whose client no longer waits.
    pub fn given_up() -> Self {
        Self(None)
    }
}

impl Model {
    /// Bytes of a request that are served at once. A larger one is served in pieces of this size, one after the other,
    /// each of which is scheduled like a request.
    #[inline]
    pub fn piece_bytes(&self, op: Op) -> u64 {
        let page_bytes = match self {
            Self::Counted(counted) => counted.page_bytes(),
            Self::Timed(timed) => timed.page_bytes(),
            Self::Disks(_) | Self::Still if op == Op::WriteZeroes => return MOVED_BYTES,
            Self::Disks(timed) => timed.page_bytes(),
            Self::Still => DISK_PAGE_BYTES,
        };
        match op {
            Op::Read | Op::Write => MOVED_BYTES,
            Op::Trim => TRIMMED_PAGES * page_bytes,
            Op::WriteZeroes => ZEROED_PAGES * page_bytes,
            Op::Flush => u64::MAX,
        }
    }

    /// Adds a request to the model.
    pub fn begin(&self, request: Request, arrived: Instant) -> Ticket {
        match self {
            Self::Counted(_) | Self::Still => Ticket(None),
            Self::Timed(timed) => Ticket(timed.submit(request, arrived)),
            Self::Disks(timed) => Ticket(timed.submit(request, arrived)),
        }
    }

    /// Additional latency that the client sees, by which requests end earlier.
    pub fn on_top(&self) -> Duration {
        match self {
            Self::Counted(_) | Self::Still => Duration::ZERO,
            Self::Timed(timed) => timed.round_trip(),
            Self::Disks(timed) => timed.round_trip(),
        }
    }

    /// The duration in modelled time; unchanged without a clock.
    pub fn modelled(&self, took: Duration) -> Duration {
        match self {
            Self::Counted(_) | Self::Still => took,
            Self::Timed(timed) => timed.modelled(took),
            Self::Disks(timed) => timed.modelled(took),
        }
    }

    /// Returns when the request is done by the model. `moved`: its data has been transferred; `gone` is called from
    /// time to time and returns whether the time no longer matters: the server is stopping, or the client is gone.
    pub fn end(&self, request: Request, ticket: Ticket, moved: bool, gone: impl FnMut() -> bool) {
        match (self, ticket.0) {
            (Self::Timed(timed), Some(waiting)) => timed.wait(waiting, gone),
            (Self::Disks(timed), Some(waiting)) => timed.wait(waiting, gone),
            (Self::Counted(counted), _) if moved => counted.note(request),
            _ => {}
        }
    }

    /// Access to the flash at the present time. Err after a panic in the model, and without flash.
    pub fn with<R>(&self, work: impl FnOnce(&mut Drive) -> R) -> Result<R, ServeError> {
        let done = match self {
            Self::Counted(counted) => counted.with(work),
            Self::Timed(timed) => timed.with(work),
            Self::Disks(_) | Self::Still => return refuse(NO_FLASH),
        };
        alive(done)
    }

    /// Access to disks with a clock at the present time; None if there are none.
    pub fn with_disks<R>(&self, work: impl FnOnce(&mut Array) -> R) -> Result<Option<R>, ServeError> {
        match self {
            Self::Disks(timed) => alive(timed.with(work)).map(Some),
            Self::Counted(_) | Self::Timed(_) | Self::Still => Ok(None),
        }
    }

    /// The timed model, if there is one.
    #[must_use]
    pub fn timed(&self) -> Option<Arc<dyn Ticking>> {
        match self {
            Self::Counted(_) | Self::Still => None,
            Self::Timed(timed) => Some(Arc::clone(timed) as Arc<dyn Ticking>),
            Self::Disks(timed) => Some(Arc::clone(timed) as Arc<dyn Ticking>),
        }
    }

    /// Sets the weight of a namespace.
    pub fn set_weight(&self, tenant: TenantId, weight: f64) -> Result<(), ServeError> {
        self.clocked("a weight")?;
        match self.with_disks(|disks| disks.set_weight(tenant, weight))? {
            Some(set) => Ok(set?),
            None => Ok(self.with(|drive| drive.set_weight(tenant, weight))??),
        }
    }

    /// Sets the limits of a namespace.
    pub fn set_limit(&self, tenant: TenantId, limit: Limit) -> Result<(), ServeError> {
        self.clocked("a limit")?;
        match self.with_disks(|disks| disks.set_limit(tenant, limit))? {
            Some(set) => set?,
            None => self.with(|drive| drive.set_limit(tenant, limit))??,
        }
        if let Some(timed) = self.timed() {
            timed.wake_clock();
        }
        Ok(())
    }

    /// Chooses how the device divides itself among its namespaces.
    pub fn set_scheduler(&self, policy: SchedulerPolicy) -> Result<(), ServeError> {
        self.clocked("a scheduler")?;
        if self.with_disks(|disks| disks.set_scheduler(policy))?.is_none() {
            self.with(|drive| drive.set_scheduler(policy))?;
        }
        if let Some(timed) = self.timed() {
            timed.wake_clock();
        }
        Ok(())
    }

    /// Queue counters, if there is a clock.
    pub fn queue_counters(&self, drive: &Drive, tenant: TenantId) -> Option<QueueCounters> {
        self.timed().and_then(|_| drive.queue_counters(tenant).ok().cloned())
    }

    fn clocked(&self, what: &str) -> Result<(), ServeError> {
        if self.timed().is_some() {
            return Ok(());
        }
        refuse(format!("{what} has no effect without latency; serve the device with --latency real"))
    }
}

/// Runs work that locks a model. None if it panics, which poisons the lock: requests then go on without the model, and no
/// thread ends that others wait for.
fn survived<R>(work: impl FnOnce() -> R) -> Option<R> {
    catch_unwind(AssertUnwindSafe(work)).ok()
}

fn alive<R>(done: Option<R>) -> Result<R, ServeError> {
    match done {
        Some(done) => Ok(done),
        None => refuse("the model has failed; data is served without it until the next start"),
    }
}
