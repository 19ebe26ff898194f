//! The engine: requests of many tenants, in virtual time, over any mapping.
//!
//! A discrete-event loop. Requests *arrive* (by timestamp, or to keep a queue depth), wait in their tenant's line,
//! are *issued* page by page as the device has room and the scheduler decides, and *complete* with their last page.

pub(crate) mod account;
pub(crate) mod agenda;
mod arrivals;
mod die_lines;
mod die_times;
mod dispatch;
mod latency;
mod moves;
mod queue;
mod scheduler;
pub(crate) mod slots;
mod tenants;
pub(crate) mod throttle;
mod timeline;

pub use account::QueueCounters;
pub use latency::{Histogram, LatencyRecord};
pub use moves::{DEFAULT_MOVE_BUDGET, MoveStatus};
pub use queue::{Arrival, Completion};
pub use scheduler::{SCHEDULERS, Scheduler, SchedulerPolicy, SchedulingEntity};
pub use throttle::Limit;
pub use timeline::{PageCosts, Timeline, TimingModel};

use crate::address::DieId;
use crate::convert::exact;
use crate::geometry::Geometry;
use crate::mapping::Mapping;
use crate::nand::Untimed;
use crate::op::TenantId;
use agenda::Agenda;
use die_lines::DieLines;
use moves::MoveBudget;
use queue::TenantQueue;

/// Page operations in flight for each of the device's queue depth, those included that wait for background work of their
/// die: they must not keep the other dies idle.
const MOST_PER_DIE: u32 = 4;

/// Why [`Engine::run`] returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stopped {
    /// The requested time was reached.
    Time,
    /// The requested number of host page writes was issued.
    Writes,
    /// These tenants need more input before time can continue.
    Starved(Vec<TenantId>),
    /// There is no work left, and no time was requested.
    Idle,
}

/// Conditions for the return of [`Engine::run`]; the first one applies.
#[derive(Debug, Clone, Copy)]
pub struct Until {
    /// Virtual time since the start.
    pub time_ns: u64,
    /// Host page writes issued since the start.
    pub host_page_writes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A page operation of an outstanding request is done.
    PageDone { tenant: u16, slot: u32, behind_background: bool },
    /// A page that was read is in the register of its die.
    PageRead { tenant: u16, slot: u32, die: DieId, behind_background: bool },
    /// The next request of an open-loop tenant arrives.
    Arrival { tenant: u16 },
    /// The limit of a tenant lets it continue.
    Unthrottle { tenant: u16 },
    /// The next step of moves of blocks.
    MoveStep,
    /// A die is free that pages wait for.
    DieFree,
}

/// Tenant queues, scheduler, clock.
#[derive(Debug)]
pub struct Engine {
    timeline: Timeline,
    scheduler: Scheduler,
    die_lines: DieLines,
    /// Tags and tenants whose turn it was, but whose writes cannot go to any free die.
    passed_over: Vec<(u64, u16)>,
    queues: Vec<Option<TenantQueue>>,
    agenda: Agenda<Event>,
    /// Page operations issued and not complete.
    in_flight: u32,
    /// Of these, those whose die did background work when they were issued.
    behind_background: u32,
    /// How many others there may be, and how many in total.
    device_queue_depth: u32,
    depth_is_given: bool,
    most_in_flight: u32,
    host_page_writes: u64,
    page_shift: u32,
    starved: Vec<TenantId>,
    completions: Vec<Completion>,
    move_budget: MoveBudget,
}

impl Engine {
    /// An idle device. `device_queue_depth` page operations may be in flight; one for each die unless given.
    #[must_use]
    pub fn new(
        geometry: &Geometry,
        costs: PageCosts,
        policy: SchedulerPolicy,
        device_queue_depth: Option<u32>,
    ) -> Self {
        Self {
            timeline: Timeline::new(geometry, costs),
            scheduler: Scheduler::new(policy),
            die_lines: DieLines::new(geometry.dies()),
            passed_over: Vec::new(),
            queues: Vec::new(),
            agenda: Agenda::new(),
            in_flight: 0,
            behind_background: 0,
            device_queue_depth: device_queue_depth.unwrap_or(geometry.dies()).max(1),
            depth_is_given: device_queue_depth.is_some(),
            most_in_flight: MOST_PER_DIE * device_queue_depth.unwrap_or(geometry.dies()).max(1),
            host_page_writes: 0,
            page_shift: geometry.page_bytes.trailing_zeros(),
            starved: Vec::new(),
            completions: Vec::new(),
            move_budget: MoveBudget::new(geometry, costs),
        }
    }

    /// Virtual time, nanoseconds.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.timeline.now()
    }

    /// Host page writes issued so far.
    #[must_use]
    pub fn host_page_writes(&self) -> u64 {
        self.host_page_writes
    }

    /// Requests of live queues whose end became known since the last call. It may be in the future: an operation on a
    /// die ends at a fixed time, independent of later arrivals.
    pub fn completions(&mut self) -> std::vec::Drain<'_, Completion> {
        self.completions.drain(..)
    }

    /// Time of the next event; None when idle.
    #[must_use]
    pub fn next_event_ns(&self) -> Option<u64> {
        self.agenda.next_ns()
    }

    /// True when that is the end of a read on its die, which decides when its request will be done.
    #[must_use]
    pub fn next_event_is_read(&self) -> bool {
        matches!(self.agenda.next_event(), Some(Event::PageRead { .. }))
    }

    /// Changes the scheduler. Waiting requests keep their order within each tenant; earlier service of tenants is
    /// forgotten.
    pub fn set_scheduler(&mut self, policy: SchedulerPolicy) {
        if self.scheduler.policy() != policy {
            self.restart_scheduler(policy);
        }
    }

    fn restart_scheduler(&mut self, policy: SchedulerPolicy) {
        self.scheduler = Scheduler::new(policy);
        self.die_lines.forget_tags();
        self.passed_over.clear();
        for queue in self.queues.iter_mut().flatten() {
            queue.entity = queue.entity.restarted();
            queue.arrived.iter().for_each(|&(_, slot)| queue.outstanding[slot].arrival_tag = 0);
        }
        for tenant in 0..self.queues.len() {
            self.wake(exact::<u16>(tenant));
        }
    }

    /// The present scheduler.
    #[must_use]
    pub fn scheduler(&self) -> SchedulerPolicy {
        self.scheduler.policy()
    }

    /// Whether no request is in flight, so that the state of the mapping is complete.
    #[must_use]
    pub fn is_quiescent(&self) -> bool {
        self.queues.iter().flatten().all(|q| q.account.outstanding() == 0)
    }

    /// Lets time pass until a condition is met or a tenant needs input. An idle device lets time pass too.
    pub fn run<M: Mapping>(&mut self, mapping: &mut M, until: Until) -> Stopped {
        let stopped = self.run_events(mapping, until);
        let now = self.timeline.now();
        self.queues.iter_mut().flatten().for_each(|queue| queue.account.advance_to(now));
        stopped
    }

    fn run_events<M: Mapping>(&mut self, mapping: &mut M, until: Until) -> Stopped {
        for tenant in 0..exact::<u16>(self.queues.len()) {
            self.admit(mapping, tenant);
        }
        if !self.move_budget.step_scheduled {
            self.step_moves(mapping);
        }
        loop {
            if !self.starved.is_empty() {
                self.starved.sort_unstable();
                self.starved.dedup();
                return Stopped::Starved(std::mem::take(&mut self.starved));
            }
            if !self.issue(mapping, until.host_page_writes) {
                return Stopped::Writes;
            }
            match self.agenda.take_by(until.time_ns) {
                Some((time, event)) => {
                    self.timeline.advance_to(time);
                    self.handle(mapping, event);
                }
                None if until.time_ns == u64::MAX => return Stopped::Idle,
                None => {
                    self.timeline.advance_to(self.timeline.now().max(until.time_ns));
                    return Stopped::Time;
                }
            }
        }
    }

    /// Completes moves of OPS blocks without taking time, as before a run.
    pub fn advance_moves<M: Mapping>(&mut self, mapping: &mut M, max_gc_passes: u64) -> crate::MoveProgress {
        let progress = mapping.advance_moves(max_gc_passes, &mut Untimed);
        self.move_budget.moved_blocks += progress.moved_blocks;
        progress
    }

    fn handle<M: Mapping>(&mut self, mapping: &mut M, event: Event) {
        match event {
            Event::PageDone { tenant, slot, behind_background } => {
                self.in_flight -= 1;
                self.behind_background -= u32::from(behind_background);
                let now = self.timeline.now();
                let Some(queue) = self.slot_mut(tenant) else { return };
                if queue.page_done(slot, now) {
                    self.admit(mapping, tenant);
                    // A flush may have waited for this request.
                    self.wake(tenant);
                }
            }
            Event::PageRead { tenant, slot, die, behind_background } => {
                let arrived = self.timeline.transfer_out(die);
                self.schedule_page_done(arrived, tenant, slot, behind_background);
            }
            Event::Arrival { tenant } => {
                let now = self.timeline.now();
                let virtual_time = self.scheduler.virtual_time(now);
                let Some(queue) = self.slot_mut(tenant) else { return };
                queue.arrival_scheduled = false;
                if !queue.paused {
                    queue.arrive(now, virtual_time);
                }
                self.admit(mapping, tenant);
                self.wake(tenant);
            }
            Event::Unthrottle { tenant } => {
                let now = self.timeline.now();
                if let Some(queue) = self.slot_mut(tenant) {
                    queue.throttle.timer_fired(now);
                }
                self.wake(tenant);
            }
            Event::DieFree => {}
            Event::MoveStep => {
                self.move_budget.step_scheduled = false;
                self.step_moves(mapping);
            }
        }
    }
}

#[cfg(test)]
mod tests;
