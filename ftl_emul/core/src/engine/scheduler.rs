//! Choice of the tenant whose page goes to the flash next.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde::{Deserialize, Serialize};

use crate::convert::whole;
use crate::error::{FtlError, invalid};

/// How the device is divided among waiting tenants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SchedulerPolicy {
    /// In order of arrival.
    Fifo,
    /// One page of each tenant in turn.
    RoundRobin,
    /// Start-time fair queueing (Goyal, Vin and Cheng 1996) over die and channel time, GC included.
    WeightedFair,
}

/// The schedulers by name: name, policy, description.
pub const SCHEDULERS: &[(&str, SchedulerPolicy, &str)] = &[
    ("fifo", SchedulerPolicy::Fifo, "requests in the order of arrival"),
    ("rr", SchedulerPolicy::RoundRobin, "one page of each waiting tenant in turn"),
    ("wfq", SchedulerPolicy::WeightedFair, "device time in proportion to weight, GC included"),
];

/// Fractional bits of virtual service tags.
const TAG_SHIFT: u32 = 10;

/// Virtual time from which the scheduler has to start anew, while tags still have as much room again: with weights of
/// 1, a hundred days of one busy die for each waiting tenant.
const LAST_TAG: u64 = 1 << 63;

/// How far a tenant that always has requests outstanding may fall behind virtual time and catch up. Dies do not wait
/// for each other, so virtual time runs ahead of a tenant that momentarily has no request for one of them, for as long
/// as this die needs for the others' pages. With 20 ms, weights had little effect next to two readers of 16 KiB.
const MOST_LAG_NS: u64 = 60_000_000;

/// How much service before a change of its weight counts against a tenant, at the new weight. More than that of any
/// page, so that small changes only count for service after them.
const MOST_LEAD_NS: u64 = 100_000_000;

/// Virtual time, for a request that arrives.
#[derive(Debug, Clone, Copy)]
pub struct VirtualTime {
    now: u64,
    /// [`MOST_LAG_NS`] ago or somewhat more.
    before: u64,
}

impl VirtualTime {
    /// The least tag of a request, of a tenant that has others outstanding or none.
    #[inline]
    #[must_use]
    pub fn least_tag(self, has_others: bool) -> u64 {
        if has_others { self.before } else { self.now }
    }
}

/// Tenants that have a page to issue, ordered by tag, the smallest first.
#[derive(Debug)]
pub struct Scheduler {
    policy: SchedulerPolicy,
    waiting: BinaryHeap<Reverse<(u64, u16)>>,
    turn: u64,
    virtual_time: u64,
    /// It as it was at a time, and before that.
    past: (u64, VirtualTime),
}

/// A tenant, as the scheduler sees it.
#[derive(Debug, Clone)]
pub struct SchedulingEntity {
    weight: f64,
    /// Tag with which it is in line, or was at its last turn.
    tag: u64,
    /// Virtual time at which its service so far ends.
    finish_tag: u64,
    /// Turn of its last service.
    last_turn: u64,
    queued: bool,
}

impl SchedulingEntity {
    /// A newcomer with a positive, finite weight.
    #[must_use]
    pub fn new(weight: f64) -> Self {
        Self { weight, tag: 0, finish_tag: 0, last_turn: 0, queued: false }
    }

    /// The same tenant at a scheduler that has served no one yet.
    #[must_use]
    pub fn restarted(&self) -> Self {
        Self::new(self.weight)
    }

    /// The tag of its last turn.
    #[must_use]
    pub fn tag(&self) -> u64 {
        self.tag
    }
}

impl Scheduler {
    /// One with which no tenant waits yet.
    #[must_use]
    pub fn new(policy: SchedulerPolicy) -> Self {
        let past = (0, VirtualTime { now: 0, before: 0 });
        Self { policy, waiting: BinaryHeap::new(), turn: 0, virtual_time: 0, past }
    }

    /// Changes the weight of a tenant for service from now on; finite and above 0. Service before it counts as at
    /// most [`MOST_LEAD_NS`] at the new weight: else a tenant would wait for as long as a very low weight said before.
    pub fn set_weight(&mut self, tenant: u16, entity: &mut SchedulingEntity, weight: f64) -> Result<(), FtlError> {
        if !(weight.is_finite() && weight > 0.0) {
            return invalid("weight", format!("{weight} is not a positive number"));
        }
        entity.weight = weight;
        let latest_tag = self.virtual_time.saturating_add(virtual_service(MOST_LEAD_NS, weight));
        if entity.finish_tag > latest_tag {
            entity.finish_tag = latest_tag;
            entity.tag = entity.tag.min(latest_tag);
            let waiting = std::mem::take(&mut self.waiting).into_iter();
            self.waiting = waiting
                .map(|Reverse((tag, other))| Reverse((if other == tenant { tag.min(latest_tag) } else { tag }, other)))
                .collect();
        }
        Ok(())
    }

    /// The present policy.
    #[must_use]
    pub fn policy(&self) -> SchedulerPolicy {
        self.policy
    }

    /// True when no tenant waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether tags are about to run out: the caller then restarts with a new scheduler, as for another policy.
    #[inline]
    #[must_use]
    pub fn is_spent(&self) -> bool {
        self.virtual_time >= LAST_TAG
    }

    /// Virtual time, of which arriving requests take note.
    #[inline]
    #[must_use]
    pub fn virtual_time(&mut self, now_ns: u64) -> VirtualTime {
        let (at_ns, past) = self.past;
        if now_ns >= at_ns + MOST_LAG_NS {
            self.past = (now_ns, VirtualTime { now: self.virtual_time, before: past.now });
        }
        VirtualTime { now: self.virtual_time, before: self.past.1.before }
    }

    /// Puts a tenant in line, unless it is already; the arrival is that of its oldest waiting request, in time and in
    /// virtual time.
    #[inline]
    pub fn enqueue(&mut self, tenant: u16, entity: &mut SchedulingEntity, arrival_ns: u64, arrival_tag: u64) {
        if entity.queued {
            return;
        }
        entity.queued = true;
        entity.tag = match self.policy {
            // Pages of a request that a limit held up go on with the tag of its first.
            SchedulerPolicy::Fifo => entity.tag.max(arrival_ns),
            SchedulerPolicy::RoundRobin => entity.last_turn,
            SchedulerPolicy::WeightedFair => entity.finish_tag.max(arrival_tag),
        };
        self.waiting.push(Reverse((entity.tag, tenant)));
    }

    /// Puts a tenant that was removed back into the queue with its tag.
    pub fn requeue(&mut self, tag: u64, tenant: u16) {
        self.waiting.push(Reverse((tag, tenant)));
    }

    /// All tenants in the line, in no order.
    pub fn waiting(&self) -> impl Iterator<Item = u16> {
        self.waiting.iter().map(|&Reverse((_, tenant))| tenant)
    }

    /// Tag of the next tenant.
    #[inline]
    #[must_use]
    pub fn next_tag(&self) -> Option<u64> {
        self.waiting.peek().map(|&Reverse((tag, _))| tag)
    }

    /// The next tenant, which stays in the line.
    #[inline]
    #[must_use]
    pub fn next_tenant(&self) -> Option<u16> {
        self.waiting.peek().map(|&Reverse((_, tenant))| tenant)
    }

    /// Takes the next tenant out of the line. The caller must report it for its entity by [`Scheduler::serve`].
    #[inline]
    pub fn take_next(&mut self) -> Option<u16> {
        self.waiting.pop().map(|Reverse((_, tenant))| tenant)
    }

    /// Charges a tenant that was taken out of the line with the device time it got; 0 when it had nothing to issue.
    #[inline]
    pub fn serve(&mut self, entity: &mut SchedulingEntity, device_ns: u64) {
        self.begin(entity.tag);
        self.defer(entity, device_ns);
    }

    /// The same for a page that continues to wait for its die, with its expected device time.
    #[inline]
    pub fn defer(&mut self, entity: &mut SchedulingEntity, device_ns: u64) {
        entity.queued = false;
        self.turn += 1;
        entity.last_turn = self.turn;
        self.charge_from(entity.tag, entity, device_ns);
    }

    /// A page is served that had its turn with a tag: virtual time is the latest of these.
    #[inline]
    pub fn begin(&mut self, tag: u64) {
        self.virtual_time = self.virtual_time.max(tag);
    }

    /// Charges a tenant with device time that it got, whether it is in the line or not.
    #[inline]
    pub fn charge(&self, entity: &mut SchedulingEntity, device_ns: u64) {
        self.charge_from(self.virtual_time, entity, device_ns);
    }

    /// The same for service that started with this tag.
    #[inline]
    pub fn charge_from(&self, start_tag: u64, entity: &mut SchedulingEntity, device_ns: u64) {
        if self.policy == SchedulerPolicy::WeightedFair {
            let service = virtual_service(device_ns, entity.weight);
            entity.finish_tag = entity.finish_tag.max(start_tag).saturating_add(service);
        }
    }
}

/// Device time as virtual service at a weight.
#[inline]
fn virtual_service(device_ns: u64, weight: f64) -> u64 {
    whole((device_ns << TAG_SHIFT) as f64 / weight)
}
