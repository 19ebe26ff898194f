//! Disks side by side as RAID-0 (or one alone), divided among tenants: queues, scheduler, limits, virtual time.
//!
//! Each tenant has a range of the addresses. Its requests wait in its line; the scheduler passes a limited number of
//! them to the disks. The disks reorder the requests that they hold regardless of the tenant: shares are exact if they
//! hold few.

mod dispatch;
mod tenants;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::convert::exact;
use crate::disk::drive::{Disk, Output};
use crate::disk::mechanics::Mechanics;
use crate::disk::parameters::DiskParameters;
use crate::disk::stripe::Stripe;
use crate::engine::agenda::Agenda;
use crate::engine::slots::Slots;
use crate::engine::{Completion, Scheduler, SchedulerPolicy};
use crate::error::{FtlError, invalid};
use crate::op::{Op, TenantId};
use tenants::Tenant;

/// Maximum number of disks of one array.
pub const MAX_DISKS: u32 = 64;

/// Arrangement of the disks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ArrayOptions {
    /// Number of disks; a single disk is not an array.
    pub disks: u32,
    /// Bytes of one disk before those of the next one.
    pub stripe_bytes: u64,
    /// Chooses the tenant whose request goes to the disks next.
    pub scheduler: SchedulerPolicy,
    /// Requests that the disks hold at once; by default as many as their queues have places, or, where shares are to
    /// be kept, one for each disk.
    pub queue_depth: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The arm of a disk is free.
    Arm { disk: usize },
    /// A request is done.
    Done { slot: u32 },
    /// The limit of a tenant lets it continue.
    Unthrottle { tenant: u16 },
}

/// A request that has arrived and is not done.
#[derive(Debug, Clone, Copy)]
struct Request {
    tenant: u16,
    op: Op,
    offset: u64,
    length: u64,
    token: u64,
    arrival_ns: u64,
    /// Parts whose end is unknown, and the latest known end.
    parts_left: u32,
    done_ns: u64,
}

/// One or more disks with a clock.
#[derive(Debug)]
pub struct Array {
    stripe: Stripe,
    disks: Vec<Disk>,
    /// Ends of operations that an event was made for.
    armed: Vec<Option<u64>>,
    scheduler: Scheduler,
    queue_depth: u32,
    given_depth: Option<u32>,
    in_flight: u32,
    tenants: Vec<Tenant>,
    requests: Slots<Request>,
    agenda: Agenda<Event>,
    now_ns: u64,
    completions: Vec<Completion>,
    outputs: Vec<Output>,
}

impl Array {
    /// Idle disks without tenants.
    pub fn new(parameters: DiskParameters, options: ArrayOptions) -> Result<Self, FtlError> {
        let ArrayOptions { disks, stripe_bytes, scheduler, queue_depth } = options;
        if !(1..=MAX_DISKS).contains(&disks) {
            return invalid("disks", format!("{disks} is not between 1 and {MAX_DISKS}"));
        }
        if stripe_bytes % 512 != 0 || !(512..=1 << 30).contains(&stripe_bytes) {
            return invalid("stripe_bytes", format!("{stripe_bytes} is not a multiple of 512 from 512 to 1 GiB"));
        }
        if let Some(depth) = queue_depth.filter(|depth| !(1..=16_384).contains(depth)) {
            return invalid("queue_depth", format!("{depth} is not between 1 and 16384"));
        }
        Ok(Self {
            stripe: Stripe { disks: u64::from(disks), unit_bytes: stripe_bytes },
            disks: vec![Disk::new(parameters)?; disks as usize],
            armed: vec![None; disks as usize],
            scheduler: Scheduler::new(scheduler),
            queue_depth: queue_depth.unwrap_or_else(|| default_depth(&parameters, disks, scheduler)),
            given_depth: queue_depth,
            in_flight: 0,
            tenants: Vec::new(),
            requests: Slots::default(),
            agenda: Agenda::new(),
            now_ns: 0,
            completions: Vec::new(),
            outputs: Vec::new(),
        })
    }

    /// What all disks hold together, in whole rows of stripes.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        let each = self.mechanics().parameters().capacity_bytes;
        if self.disks.len() == 1 {
            each
        } else {
            each / self.stripe.unit_bytes * self.stripe.unit_bytes * self.stripe.disks
        }
    }

    /// The mechanics, the same of every disk.
    #[must_use]
    pub fn mechanics(&self) -> &Mechanics {
        self.disks[0].mechanics()
    }

    /// Busy time of each arm, including the present operation, in nanoseconds.
    pub fn busy_ns(&self) -> impl Iterator<Item = u64> + '_ {
        self.disks.iter().map(Disk::busy_ns)
    }

    /// Changes the scheduler; the service that tenants received before is forgotten.
    pub fn set_scheduler(&mut self, policy: SchedulerPolicy) {
        if self.scheduler.policy() == policy {
            return;
        }
        let (parameters, disks) = (*self.mechanics().parameters(), exact::<u32>(self.disks.len()));
        self.queue_depth = self.given_depth.unwrap_or_else(|| default_depth(&parameters, disks, policy));
        self.restart_scheduler(policy);
        self.issue();
    }

    fn restart_scheduler(&mut self, policy: SchedulerPolicy) {
        self.scheduler = Scheduler::new(policy);
        for tenant in &mut self.tenants {
            tenant.entity = tenant.entity.restarted();
        }
        for number in 0..exact::<u16>(self.tenants.len()) {
            self.wake(number);
        }
    }

    /// Requests that the disks hold at once.
    #[must_use]
    pub fn queue_depth(&self) -> u32 {
        self.queue_depth
    }

    /// Virtual time, nanoseconds.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Time of the next event; None when idle.
    #[must_use]
    pub fn next_event_ns(&self) -> Option<u64> {
        self.agenda.next_ns()
    }

    /// Requests whose end became known since the last call; it may be in the future.
    pub fn completions(&mut self) -> std::vec::Drain<'_, Completion> {
        self.completions.drain(..)
    }

    /// Submits one request that arrives now; call [`Array::run`] up to the present first.
    pub fn submit(
        &mut self,
        tenant: TenantId,
        op: Op,
        offset_bytes: u64,
        length_bytes: u64,
        token: u64,
    ) -> Result<(), FtlError> {
        let now_ns = self.now_ns;
        let of = self.tenant_mut(tenant)?;
        if offset_bytes.checked_add(length_bytes).is_none_or(|end| end > of.size_bytes) {
            return invalid("offset", format!("the request ends beyond the {} bytes of the tenant", of.size_bytes));
        }
        if length_bytes == 0 && op != Op::Flush {
            return invalid("length", "a request has at least one byte");
        }
        of.account.arrived(now_ns);
        let offset = of.first_byte + offset_bytes;
        let slot = self.requests.put(Request {
            tenant: tenant.0,
            op,
            offset,
            length: length_bytes,
            token,
            arrival_ns: now_ns,
            parts_left: 0,
            done_ns: now_ns,
        });
        self.tenants[usize::from(tenant.0)].line.push_back(slot);
        self.wake(tenant.0);
        self.issue();
        Ok(())
    }

    /// Lets time pass.
    pub fn run(&mut self, until_ns: u64) {
        while let Some((time_ns, event)) = self.agenda.take_by(until_ns) {
            self.now_ns = time_ns;
            match event {
                Event::Arm { disk } => {
                    self.armed[disk] = None;
                    self.disks[disk].step(time_ns, &mut self.outputs);
                    self.forward_outputs(disk);
                }
                Event::Done { slot } => self.done(slot),
                Event::Unthrottle { tenant } => {
                    self.tenants[usize::from(tenant)].throttle.timer_fired(time_ns);
                    self.wake(tenant);
                }
            }
            self.issue();
        }
        if until_ns != u64::MAX {
            self.now_ns = self.now_ns.max(until_ns);
        }
        let now_ns = self.now_ns;
        self.tenants.iter_mut().for_each(|tenant| tenant.account.advance_to(now_ns));
    }

    /// Plays requests of one kind and size, `queue_depth` of them at a time, until the first that ends after
    /// `limit_ns` from now. Returns how many have ended, and the time it took.
    pub fn play(
        &mut self,
        tenant: TenantId,
        op: Op,
        offsets_bytes: &[u64],
        length_bytes: u64,
        queue_depth: usize,
        limit_ns: u64,
    ) -> Result<(u64, u64), FtlError> {
        let begun_ns = self.now_ns;
        let limit_ns = begun_ns.saturating_add(limit_ns);
        let (mut left, mut ended, mut under_way) = (offsets_bytes.iter(), 0, 0);
        let mut ends: BinaryHeap<Reverse<u64>> = BinaryHeap::new();
        loop {
            while under_way < queue_depth.max(1) && self.now_ns < limit_ns {
                let Some(&offset) = left.next() else { break };
                self.submit(tenant, op, offset, length_bytes, 0)?;
                under_way += 1;
            }
            ends.extend(self.completions.drain(..).map(|completion| Reverse(completion.at_ns)));
            let Some(next_ns) = ends.peek().map(|end| end.0).into_iter().chain(self.next_event_ns()).min() else {
                break;
            };
            self.run(next_ns);
            while ends.peek().is_some_and(|end| end.0 <= next_ns) {
                ends.pop();
                ended += 1;
                under_way -= 1;
            }
            if under_way == 0 && (self.now_ns >= limit_ns || left.len() == 0) {
                break;
            }
        }
        Ok((ended, self.now_ns - begun_ns))
    }
}

/// If shares are to be enforced, the disks hold no more than they can work on, as they sort requests by position.
fn default_depth(parameters: &DiskParameters, disks: u32, policy: SchedulerPolicy) -> u32 {
    disks * if policy == SchedulerPolicy::WeightedFair { 1 } else { parameters.queue_depth }
}
