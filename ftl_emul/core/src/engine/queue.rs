//! Requests of one tenant on their way to the flash.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use crate::engine::account::Account;
use crate::engine::latency::LatencyRecord;
use crate::engine::scheduler::{SchedulingEntity, VirtualTime};
use crate::engine::slots::Slots;
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
    /// Closed loop: this many requests are outstanding at any time; timestamps are ignored.
    Closed {
        /// Requests outstanding.
        queue_depth: u32,
    },
    /// At their timestamps.
    Open,
    /// One by one, when [`Engine::submit`](crate::engine::Engine::submit) is called.
    Live,
}

/// A submitted request whose end is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// Identifier given by the caller.
    pub token: u64,
    /// When it is done, nanoseconds since the start.
    pub at_ns: u64,
}

/// A request that has arrived and is not complete.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outstanding {
    pub arrival_ns: u64,
    /// The scheduler's virtual time of its arrival.
    pub arrival_tag: u64,
    pub pages_left: u64,
    /// Pages whose end is unknown, and the latest known end of the others.
    pub pages_unscheduled: u64,
    pub done_ns: u64,
    pub op: Op,
    pub bytes: u32,
    pub token: u64,
}

/// Pages by number, some more than once.
#[derive(Debug, Default)]
pub(crate) struct WaitingPages {
    times: BTreeMap<u64, u32>,
    total: usize,
}

impl WaitingPages {
    pub fn add(&mut self, page: u64) {
        *self.times.entry(page).or_default() += 1;
        self.total += 1;
    }

    pub fn remove(&mut self, page: u64) {
        if let Entry::Occupied(mut times) = self.times.entry(page) {
            *times.get_mut() -= 1;
            self.total -= 1;
            if *times.get() == 0 {
                times.remove();
            }
        }
    }

    pub fn len(&self) -> usize {
        self.total
    }

    pub fn any_in(&self, pages: Range<u64>) -> bool {
        !pages.is_empty() && self.times.range(pages).next().is_some()
    }
}

#[derive(Debug)]
pub(crate) struct TenantQueue {
    /// Requests fed and not yet arrived.
    pub input: VecDeque<Request>,
    /// Whether the input is complete.
    pub input_ended: bool,
    pub arrival: Arrival,
    /// While paused, no requests arrive.
    pub paused: bool,
    /// Added to timestamps in open loop, so that a tenant that starts late starts at its first request.
    pub time_offset_ns: u64,
    /// Arrived requests, whose pages are issued in this order; the slots of `outstanding`.
    pub arrived: VecDeque<(Request, u32)>,
    /// Next page of the first of them.
    pub next_page: u64,
    pub outstanding: Slots<Outstanding>,
    /// Pages that had their turn and wait for their dies.
    pub waiting_pages: WaitingPages,
    pub throttle: Throttle,
    /// When the budget of moves will have made up for the delays of its requests by them.
    pub moves_repaid_ns: u64,
    /// An event will wake the tenant at its next arrival.
    pub arrival_scheduled: bool,
    pub entity: SchedulingEntity,
    pub account: Account,
    pub latency: LatencyRecord,
    /// The same since it was last read, if it is read at all.
    pub recent: Option<LatencyRecord>,
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
            outstanding: Slots::default(),
            waiting_pages: WaitingPages::default(),
            throttle: Throttle::default(),
            moves_repaid_ns: 0,
            arrival_scheduled: false,
            entity: SchedulingEntity::new(1.0),
            account: Account::default(),
            latency: LatencyRecord::new(),
            recent: None,
        }
    }

    /// Lets the next fed request arrive at `now`, in the scheduler's virtual time too.
    pub fn arrive(&mut self, now: u64, virtual_time: VirtualTime) {
        let Some(request) = self.input.pop_front() else { return };
        let arrival_tag = virtual_time.least_tag(self.account.outstanding() > 0);
        self.account.arrived(now);
        let slot = self.outstanding.put(Outstanding {
            arrival_ns: now,
            arrival_tag,
            pages_left: (request.end - request.first).max(1),
            pages_unscheduled: (request.end - request.first).max(1),
            done_ns: 0,
            op: request.op,
            bytes: request.bytes,
            token: request.token,
        });
        if self.arrived.is_empty() {
            self.next_page = request.first;
        }
        self.arrived.push_back((request, slot));
    }

    /// Takes the first arrived request off the line, all its pages having been issued.
    pub fn pop_issued(&mut self) {
        self.arrived.pop_front();
        if let Some((next, _)) = self.arrived.front() {
            self.next_page = next.first;
        }
    }

    /// Requests that only the device delays.
    pub fn in_service(&self, now: u64) -> usize {
        let held = if self.throttle.is_open(now) { 0 } else { self.arrived.len() };
        self.account.outstanding() as usize - held
    }

    /// Records the end of a page of a request; returns the end of the request with its last page.
    pub fn page_scheduled(&mut self, slot: u32, at_ns: u64) -> Option<Completion> {
        let entry = &mut self.outstanding[slot];
        entry.pages_unscheduled -= 1;
        entry.done_ns = entry.done_ns.max(at_ns);
        (entry.pages_unscheduled == 0).then_some(Completion { token: entry.token, at_ns: entry.done_ns })
    }

    /// Completes one page of a request; counts the request if it was the last.
    pub fn page_done(&mut self, slot: u32, now: u64) -> bool {
        let entry = &mut self.outstanding[slot];
        entry.pages_left -= 1;
        if entry.pages_left > 0 {
            return false;
        }
        let Outstanding { arrival_ns, op, bytes, .. } = *entry;
        for record in std::iter::once(&mut self.latency).chain(&mut self.recent) {
            match op {
                Op::Read => record.read(now - arrival_ns),
                Op::Write | Op::WriteZeroes => record.write(now - arrival_ns),
                Op::Trim | Op::Flush => {}
            }
        }
        self.account.completed(now, arrival_ns, op, u64::from(bytes));
        self.outstanding.release(slot);
        true
    }
}
