//! Upper bounds on what a tenant may do.

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

/// A limit, and when it lets the next request start.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Throttle {
    limit: Limit,
    /// When the limit lets the next request start.
    pub eligible_ns: u64,
}

impl Throttle {
    /// Changes the limit from now on.
    pub fn set(&mut self, limit: Limit, now: u64) {
        self.limit = limit;
        self.eligible_ns = self.eligible_ns.min(now);
    }

    /// Counts a request against the limit as it starts.
    pub fn start(&mut self, now: u64, bytes: u64) {
        if self.limit == Limit::default() {
            return;
        }
        let per_request = self.limit.iops.map_or(0.0, |iops| 1e9 / iops);
        let per_bytes = self.limit.bytes_s.map_or(0.0, |rate| bytes as f64 * 1e9 / rate);
        let cost_ns = per_request.max(per_bytes) as u64;
        self.eligible_ns = self.eligible_ns.max(now.saturating_sub(LIMIT_BURST_NS)) + cost_ns;
    }

    /// For how long a request that arrived at a moment and starts now was held up by the limit.
    pub fn held_ns(&self, arrived: u64, now: u64) -> u64 {
        self.eligible_ns.min(now).saturating_sub(arrived)
    }
}
