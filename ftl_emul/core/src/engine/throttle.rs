//! Upper bounds on what a tenant may do, on flash and on disks.

use crate::convert::whole;
use crate::error::{FtlError, invalid};

/// How far a rate-limited tenant may catch up after it was held up by something other than its limit.
const LIMIT_BURST_NS: u64 = 1_000_000_000;

/// An upper bound on what a tenant may do.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Limit {
    /// Requests per second.
    pub iops: Option<f64>,
    /// Bytes per second.
    pub bytes_s: Option<f64>,
}

impl Limit {
    /// Refuses what is not finite and above 0, where given.
    pub fn validate(&self) -> Result<(), FtlError> {
        for value in [self.iops, self.bytes_s].into_iter().flatten() {
            if !(value.is_finite() && value > 0.0) {
                return invalid("limit", format!("{value} is not a positive number"));
            }
        }
        Ok(())
    }
}

/// Whether a limit lets a tenant's next request start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gate {
    /// It may start now.
    Open,
    /// It waits, and a timer is already set that calls [`Throttle::timer_fired`] in time.
    Shut,
    /// It waits: the caller sets a timer that calls [`Throttle::timer_fired`] at this moment, and looks again.
    ShutUntil(u64),
}

/// A limit, and when it lets the next request start.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Throttle {
    limit: Limit,
    /// When the limit lets the next request start.
    eligible_ns: u64,
    /// A timer is set for that moment.
    timer_set: bool,
}

impl Throttle {
    /// Changes the limit from now on.
    pub fn set(&mut self, limit: Limit, now: u64) -> Result<(), FtlError> {
        limit.validate()?;
        self.limit = limit;
        self.eligible_ns = self.eligible_ns.min(now);
        Ok(())
    }

    /// True when the limit lets a request start.
    #[inline]
    pub fn is_open(&self, now: u64) -> bool {
        self.eligible_ns <= now
    }

    /// Whether a request may start, and when to look again if not.
    #[inline]
    pub fn gate(&mut self, now: u64) -> Gate {
        if self.is_open(now) {
            Gate::Open
        } else if std::mem::replace(&mut self.timer_set, true) {
            Gate::Shut
        } else {
            Gate::ShutUntil(self.eligible_ns)
        }
    }

    /// The timer of [`Gate::ShutUntil`] has fired.
    pub fn timer_fired(&mut self) {
        self.timer_set = false;
    }

    /// Counts a request that arrived at a moment against the limit as it starts; returns for how long the limit has
    /// held it up.
    #[inline]
    pub fn start(&mut self, now: u64, arrived: u64, bytes: u64) -> u64 {
        let held_ns = self.eligible_ns.min(now).saturating_sub(arrived);
        if self.limit != Limit::default() {
            let per_request = self.limit.iops.map_or(0.0, |iops| 1e9 / iops);
            let per_bytes = self.limit.bytes_s.map_or(0.0, |rate| bytes as f64 * 1e9 / rate);
            let cost_ns = whole(per_request.max(per_bytes));
            self.eligible_ns = self.eligible_ns.max(now.saturating_sub(LIMIT_BURST_NS)) + cost_ns;
        }
        held_ns
    }
}
