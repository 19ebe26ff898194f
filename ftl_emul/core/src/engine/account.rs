//! Counters of a tenant's requests, on flash and on disks.

use crate::op::Op;

/// Counters of a tenant's requests.
#[derive(Debug, Clone, Default)]
pub struct QueueCounters {
    /// Requests completed, by kind of operation.
    pub completed: [u64; 5],
    /// Bytes of reads.
    pub read_bytes: u64,
    /// Bytes that writes brought.
    pub write_bytes: u64,
    /// Die and channel time spent.
    pub device_ns: u64,
    /// Part of `device_ns` for GC.
    pub gc_ns: u64,
    /// Time that requests waited for the rate limit.
    pub throttled_ns: u64,
    /// Time from arrival to completion, summed over completed requests; over a window's length, less the throttled
    /// time, this is the mean number of requests on the device (Little).
    pub latency_ns: u64,
    /// Time during which at least one request was outstanding.
    pub backlog_ns: u64,
    /// Time during which a page waited for its turn, held up by nothing but the device's queue: with it, more weight
    /// would mean more service.
    pub queued_ns: u64,
}

/// The counters of a tenant, and the requests that have arrived and are not complete.
#[derive(Debug, Clone, Default)]
pub(crate) struct Account {
    pub counters: QueueCounters,
    outstanding: u32,
    /// Backlog is counted up to this moment.
    counted_ns: u64,
    /// The tenant stands in the scheduler's line.
    in_line: bool,
    /// Waiting pages whose die has served other tenants meanwhile.
    overtaken_pages: u32,
    /// Waiting is counted up to this moment.
    queued_counted_ns: u64,
}

impl Account {
    /// Requests that have arrived and are not complete.
    #[inline]
    pub fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// A request arrives.
    #[inline]
    pub fn arrived(&mut self, now: u64) {
        self.count_backlog(now);
        self.outstanding += 1;
    }

    /// A request that arrived at a moment is complete.
    #[inline]
    pub fn completed(&mut self, now: u64, arrived: u64, op: Op, bytes: u64) {
        self.count_backlog(now);
        self.outstanding -= 1;
        self.counters.completed[op as usize] += 1;
        self.counters.latency_ns += now - arrived;
        match op {
            Op::Read => self.counters.read_bytes += bytes,
            Op::Write | Op::WriteZeroes => self.counters.write_bytes += bytes,
            Op::Trim | Op::Flush => {}
        }
    }

    /// A page waits for its turn.
    #[inline]
    pub fn enter_line(&mut self, now: u64) {
        self.count_queued(now);
        self.in_line = true;
    }

    /// The page has its turn.
    #[inline]
    pub fn leave_line(&mut self, now: u64) {
        self.count_queued(now);
        self.in_line = false;
    }

    /// The die that a page waits for starts to serve another tenant.
    pub fn add_overtaken_page(&mut self, now: u64) {
        self.count_queued(now);
        self.overtaken_pages += 1;
    }

    /// Such a page has its die.
    pub fn remove_overtaken_page(&mut self, now: u64) {
        self.count_queued(now);
        self.overtaken_pages -= 1;
    }

    /// Brings all times up to date.
    pub fn advance_to(&mut self, now: u64) {
        self.count_backlog(now);
        self.count_queued(now);
    }

    /// Brings the time with pages waiting up to date.
    #[inline]
    fn count_queued(&mut self, now: u64) {
        if self.in_line || self.overtaken_pages > 0 {
            self.counters.queued_ns += now - self.queued_counted_ns;
        }
        self.queued_counted_ns = now;
    }

    /// Brings the time with a backlog up to date.
    #[inline]
    fn count_backlog(&mut self, now: u64) {
        if self.outstanding > 0 {
            self.counters.backlog_ns += now - self.counted_ns;
        }
        self.counted_ns = now;
    }
}
