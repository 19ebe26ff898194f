//! One tenant's requests on their way to the flash.

use std::collections::VecDeque;

use crate::engine::latency::LatencyRecord;
use crate::engine::scheduler::Standing;
use crate::engine::throttle::Throttle;
use crate::op::Op;

/// A request in pages, as queued.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    pub time_ns: u64,
    pub first: u64,
    pub end: u64,
    pub bytes: u32,
    pub op: Op,
    pub partial_first: bool,
    pub partial_last: bool,
    /// The caller's name for it, where requests are submitted one by one.
    pub token: u64,
}

/// How a tenant's requests arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// So many are outstanding at any time; timestamps are ignored.
    Closed {
        /// Requests outstanding.
        queue_depth: u32,
    },
    /// By their timestamps.
    Open,
    /// One by one, at the moment of [`Engine::submit`](crate::engine::Engine::submit).
    Live,
}

/// A submitted request whose end is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// What the caller named it.
    pub token: u64,
    /// When it is done, nanoseconds since the start.
    pub at_ns: u64,
}

/// A request that has arrived and is not complete.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outstanding {
    pub arrival_ns: u64,
    pub pages_left: u64,
    /// Pages of which it is not known when they will be done, and when the last of the others will be.
    pub pages_unscheduled: u64,
    pub done_ns: u64,
    pub op: Op,
    pub bytes: u32,
    pub token: u64,
}

/// What a tenant's requests have seen.
#[derive(Debug, Clone, Default)]
pub struct QueueCounters {
    /// Requests completed, by kind of operation.
    pub completed: [u64; 5],
    /// Bytes that reads asked for.
    pub read_bytes: u64,
    /// Bytes that writes brought.
    pub write_bytes: u64,
    /// Die and channel time spent.
    pub device_ns: u64,
    /// The part of it that GC took.
    pub gc_ns: u64,
    /// Time that requests waited for the rate limit.
    pub throttled_ns: u64,
    /// Time from arrival to completion, summed over completed requests; over a window's length, less the throttled
    /// time, this is the mean number of requests on the device (Little).
    pub latency_ns: u64,
    /// Time during which at least one request was outstanding.
    pub backlog_ns: u64,
}

#[derive(Debug)]
pub(crate) struct TenantQueue {
    /// Requests fed and not yet arrived.
    pub input: VecDeque<Request>,
    /// No more will be fed.
    pub input_ended: bool,
    pub arrival: Arrival,
    /// Nothing arrives while paused.
    pub paused: bool,
    /// Added to timestamps in open loop, so that a tenant that starts late starts at its first request.
    pub time_offset_ns: u64,
    /// Arrived requests, whose pages are issued in this order; the slots of `outstanding`.
    pub arrived: VecDeque<(Request, u32)>,
    /// Next page of the first of them.
    pub next_page: u64,
    pub outstanding: Vec<Outstanding>,
    pub free_slots: Vec<u32>,
    pub outstanding_count: u32,
    pub throttle: Throttle,
    /// An event will wake the tenant at its next arrival.
    pub arrival_scheduled: bool,
    /// Backlog is accounted up to this moment.
    pub accounted_ns: u64,
    pub standing: Standing,
    pub counters: QueueCounters,
    pub latency: LatencyRecord,
}

impl TenantQueue {
    pub fn new(arrival: Arrival) -> Self {
        Self {
            input: VecDeque::new(),
            input_ended: false,
            arrival,
            paused: false,
            time_offset_ns: 0,
            arrived: VecDeque::new(),
            next_page: 0,
            outstanding: Vec::new(),
            free_slots: Vec::new(),
            outstanding_count: 0,
            throttle: Throttle::default(),
            arrival_scheduled: false,
            accounted_ns: 0,
            standing: Standing::new(1.0),
            counters: QueueCounters::default(),
            latency: LatencyRecord::new(),
        }
    }

    /// Lets the next fed request arrive at `now`.
    pub fn arrive(&mut self, now: u64) {
        let Some(request) = self.input.pop_front() else { return };
        self.account_backlog(now);
        let entry = Outstanding {
            arrival_ns: now,
            pages_left: (request.end - request.first).max(1),
            pages_unscheduled: (request.end - request.first).max(1),
            done_ns: 0,
            op: request.op,
            bytes: request.bytes,
            token: request.token,
        };
        let slot = match self.free_slots.pop() {
            Some(slot) => {
                self.outstanding[slot as usize] = entry;
                slot
            }
            None => {
                self.outstanding.push(entry);
                self.outstanding.len() as u32 - 1
            }
        };
        if self.arrived.is_empty() {
            self.next_page = request.first;
        }
        self.arrived.push_back((request, slot));
        self.outstanding_count += 1;
    }

    /// Takes the first arrived request off the line, all its pages having been issued.
    pub fn all_issued(&mut self) {
        self.arrived.pop_front();
        if let Some((next, _)) = self.arrived.front() {
            self.next_page = next.first;
        }
    }

    /// It is known when one more page of a request will be done; says so of the request when it was the last.
    pub fn page_scheduled(&mut self, slot: u32, at_ns: u64) -> Option<Completion> {
        let entry = &mut self.outstanding[slot as usize];
        entry.pages_unscheduled -= 1;
        entry.done_ns = entry.done_ns.max(at_ns);
        (entry.pages_unscheduled == 0).then_some(Completion { token: entry.token, at_ns: entry.done_ns })
    }

    /// One page of a request is done; counts the request when it was the last.
    pub fn page_done(&mut self, slot: u32, now: u64) -> bool {
        let entry = &mut self.outstanding[slot as usize];
        entry.pages_left -= 1;
        if entry.pages_left > 0 {
            return false;
        }
        let Outstanding { arrival_ns, op, bytes, .. } = *entry;
        self.counters.completed[op as usize] += 1;
        match op {
            Op::Read => {
                self.counters.read_bytes += u64::from(bytes);
                self.latency.read(now - arrival_ns);
            }
            Op::Write | Op::WriteZeroes => {
                self.counters.write_bytes += u64::from(bytes);
                self.latency.write(now - arrival_ns);
            }
            Op::Trim | Op::Flush => {}
        }
        self.account_backlog(now);
        self.counters.latency_ns += now - arrival_ns;
        self.free_slots.push(slot);
        self.outstanding_count -= 1;
        true
    }

    /// Brings the time with a backlog up to date; call it before the number outstanding changes.
    pub fn account_backlog(&mut self, now: u64) {
        if self.outstanding_count > 0 {
            self.counters.backlog_ns += now - self.accounted_ns;
        }
        self.accounted_ns = now;
    }
}
