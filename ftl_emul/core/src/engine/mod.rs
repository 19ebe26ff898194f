//! The engine: requests of many tenants, in virtual time, over any mapping.
//!
//! A discrete-event loop. Requests *arrive* (by timestamp, or to keep a queue depth), wait in their tenant's line,
//! are *issued* page by page as the device has room and the scheduler decides, and *complete* with their last page.

pub(crate) mod account;
pub(crate) mod agenda;
mod latency;
mod queue;
mod scheduler;
pub(crate) mod slots;
pub(crate) mod throttle;
mod timeline;

pub use account::QueueCounters;
pub use latency::{Histogram, LatencyRecord};
pub use queue::{Arrival, Completion};
pub use scheduler::{SCHEDULERS, Scheduler, SchedulerPolicy, Standing};
pub use throttle::Limit;
pub use timeline::{PageCosts, Timeline, TimingModel};

use crate::error::{FtlError, invalid};
use crate::geometry::Geometry;
use crate::mapping::Mapping;
use crate::mapping::move_pace::MovePace;
use crate::op::{Op, PageSpan, TenantId};
use agenda::Agenda;
use queue::{Request, TenantQueue};
use throttle::Gate;

/// Requests ahead of the one arriving whose map entries are fetched.
const PREFETCH_AHEAD: usize = 8;
const PREFETCH_OVERWRITE_AHEAD: usize = 3;

/// Host pages written between two victims collected to hand over promised blocks.
const WRITES_PER_MOVE_STEP: u64 = 16;

/// Why [`Engine::run`] returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stopped {
    /// The time asked for has come.
    Time,
    /// The host page writes asked for have been issued.
    Writes,
    /// These tenants need more input before time can go on.
    Starved(Vec<TenantId>),
    /// Nothing is left to do, and no time was asked for.
    Idle,
}

/// When [`Engine::run`] shall return; whichever comes first.
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
    PageDone { tenant: u16, slot: u32 },
    /// A page that was read is in the register of its die.
    PageRead { tenant: u16, slot: u32, die: u32 },
    /// The next request of an open-loop tenant arrives.
    Arrival { tenant: u16 },
    /// The limit of a tenant lets it go on.
    Unthrottle { tenant: u16 },
}

/// Tenant queues, scheduler, clock.
#[derive(Debug)]
pub struct Engine {
    timeline: Timeline,
    scheduler: Scheduler,
    queues: Vec<Option<TenantQueue>>,
    agenda: Agenda<Event>,
    /// Page operations issued and not complete, and the most there may be.
    in_flight: u32,
    device_queue_depth: u32,
    host_page_writes: u64,
    page_shift: u32,
    starved: Vec<TenantId>,
    completions: Vec<Completion>,
    move_pace: MovePace,
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
            queues: Vec::new(),
            agenda: Agenda::new(),
            in_flight: 0,
            device_queue_depth: device_queue_depth.unwrap_or(geometry.dies()).max(1),
            host_page_writes: 0,
            page_shift: geometry.page_bytes.trailing_zeros(),
            starved: Vec::new(),
            completions: Vec::new(),
            move_pace: MovePace::default(),
        }
    }

    /// Virtual time, nanoseconds.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.timeline.now
    }

    /// Host page writes issued so far.
    #[must_use]
    pub fn host_page_writes(&self) -> u64 {
        self.host_page_writes
    }

    /// Gives a tenant an empty queue, in place of any it had.
    pub fn open_queue(&mut self, tenant: TenantId, arrival: Arrival) -> Result<(), FtlError> {
        if arrival == (Arrival::Closed { queue_depth: 0 }) {
            return invalid("queue_depth", "must be at least 1");
        }
        let index = tenant.0 as usize;
        if self.queues.len() <= index {
            self.queues.resize_with(index + 1, || None);
        }
        self.close_queue(tenant)?;
        self.queues[index] = Some(TenantQueue::new(arrival));
        Ok(())
    }

    /// Drops the queue of a tenant, if it has one.
    pub fn close_queue(&mut self, tenant: TenantId) -> Result<(), FtlError> {
        let Some(slot) = self.queues.get_mut(tenant.0 as usize) else { return Ok(()) };
        if slot.as_ref().is_some_and(|q| q.account.outstanding() > 0) {
            return Err(FtlError::State(format!("tenant {} still has requests outstanding", tenant.0)));
        }
        if slot.take().is_some() {
            // Alarms of the old queue must not ring for a later one of the same number.
            self.agenda.retain(|event| {
                !matches!(event, Event::Arrival { tenant: t } | Event::Unthrottle { tenant: t } if t == tenant.0)
            });
        }
        Ok(())
    }

    /// True when a request of the tenant, fed but not complete, touches a page from `pages` on.
    #[must_use]
    pub fn reaches_beyond(&self, tenant: TenantId, pages: u64) -> bool {
        let Ok(queue) = self.queue(tenant) else { return false };
        let arrived = queue.arrived.iter().map(|(request, _)| request);
        arrived.chain(&queue.input).any(|request| request.end > pages)
    }

    /// Appends requests to a tenant's input: columns of equal length. All are checked before any is taken.
    pub fn feed<M: Mapping>(
        &mut self,
        mapping: &M,
        tenant: TenantId,
        time_ns: &[i64],
        op: &[u8],
        offset_bytes: &[u64],
        length_bytes: &[u64],
    ) -> Result<(), FtlError> {
        let requests = self.parse(mapping, tenant, time_ns, op, offset_bytes, length_bytes)?;
        self.queue_mut(tenant)?.input.extend(requests);
        Ok(())
    }

    /// Lets one request of a live queue arrive now. Let time pass with [`Engine::run`] up to the moment of the call
    /// first, and after it; [`Engine::completions`] then has those whose end is known.
    pub fn submit<M: Mapping>(
        &mut self,
        mapping: &M,
        tenant: TenantId,
        op: Op,
        offset_bytes: u64,
        length_bytes: u64,
        token: u64,
    ) -> Result<(), FtlError> {
        let pages = mapping.pages(tenant);
        let now = self.timeline.now;
        let request = request(now, op, offset_bytes, length_bytes, self.page_shift, pages, token)?;
        let queue = self.queue_mut(tenant)?;
        if queue.arrival != Arrival::Live {
            return Err(FtlError::State(format!("tenant {} has no live queue", tenant.0)));
        }
        queue.input.push_back(request);
        queue.arrive(now);
        self.wake(tenant.0);
        Ok(())
    }

    /// Requests of live queues whose end became known since they were last taken. It may lie in the future: what is on
    /// a die ends when it ends, whatever else arrives.
    pub fn completions(&mut self) -> std::vec::Drain<'_, Completion> {
        self.completions.drain(..)
    }

    /// When something will happen next; None when nothing is under way.
    #[must_use]
    pub fn next_event_ns(&self) -> Option<u64> {
        self.agenda.next_ns()
    }

    /// True when that is the end of a read on its die, which decides when its request will be done.
    #[must_use]
    pub fn next_event_is_read(&self) -> bool {
        matches!(self.agenda.next_event(), Some(Event::PageRead { .. }))
    }

    /// Says that a tenant's input is complete: it falls idle when it is used up.
    pub fn end_input(&mut self, tenant: TenantId) -> Result<(), FtlError> {
        self.queue_mut(tenant)?.input_ended = true;
        Ok(())
    }

    /// Stops or resumes arrivals of a tenant. Open-loop timestamps are shifted by the length of the pause.
    pub fn pause(&mut self, tenant: TenantId, paused: bool) -> Result<(), FtlError> {
        let now = self.timeline.now;
        let queue = self.queue_mut(tenant)?;
        if queue.paused && !paused {
            if let Some(next) = queue.input.front() {
                queue.time_offset_ns = now.saturating_sub(next.time_ns);
            }
        }
        queue.paused = paused;
        Ok(())
    }

    /// Sets the weight of a tenant's device time; finite and above 0.
    pub fn set_weight(&mut self, tenant: TenantId, weight: f64) -> Result<(), FtlError> {
        self.queue_mut(tenant)?.standing.set_weight(weight)
    }

    /// Divides the device in another way from now on. Requests that wait keep their order within each tenant; what
    /// tenants were served before is forgotten.
    pub fn set_scheduler(&mut self, policy: SchedulerPolicy) {
        if self.scheduler.policy() == policy {
            return;
        }
        self.scheduler = Scheduler::new(policy);
        for queue in self.queues.iter_mut().flatten() {
            queue.standing = queue.standing.anew();
        }
        for tenant in 0..self.queues.len() {
            self.wake(tenant as u16);
        }
    }

    /// How the device is divided.
    #[must_use]
    pub fn scheduler(&self) -> SchedulerPolicy {
        self.scheduler.policy()
    }

    /// Sets the limits of a tenant; finite and above 0 where given.
    pub fn set_limit(&mut self, tenant: TenantId, limit: Limit) -> Result<(), FtlError> {
        let now = self.timeline.now;
        self.queue_mut(tenant)?.throttle.set(limit, now)?;
        self.wake(tenant.0);
        Ok(())
    }

    /// What a tenant's requests have seen.
    pub fn counters(&self, tenant: TenantId) -> Result<&QueueCounters, FtlError> {
        Ok(&self.queue(tenant)?.account.counters)
    }

    /// Requests of a tenant that have arrived and are not complete.
    pub fn outstanding(&self, tenant: TenantId) -> Result<u32, FtlError> {
        Ok(self.queue(tenant)?.account.outstanding())
    }

    /// Latencies of a tenant since they were last cleared.
    pub fn latency(&self, tenant: TenantId) -> Result<&LatencyRecord, FtlError> {
        Ok(&self.queue(tenant)?.latency)
    }

    /// Clears the latencies of every tenant, for a new window.
    pub fn clear_latencies(&mut self) {
        for queue in self.queues.iter_mut().flatten() {
            queue.latency.clear();
        }
    }

    /// True when nothing is in flight, so that the mapping's state stands by itself.
    #[must_use]
    pub fn is_quiescent(&self) -> bool {
        self.queues.iter().flatten().all(|q| q.account.outstanding() == 0)
    }

    /// Lets time pass until a condition is met or a tenant needs input. An idle device lets time pass too.
    pub fn run<M: Mapping>(&mut self, mapping: &mut M, until: Until) -> Stopped {
        let stopped = self.run_events(mapping, until);
        let now = self.timeline.now;
        self.queues.iter_mut().flatten().for_each(|queue| queue.account.count_backlog(now));
        stopped
    }

    fn run_events<M: Mapping>(&mut self, mapping: &mut M, until: Until) -> Stopped {
        for tenant in 0..self.queues.len() as u16 {
            self.admit(mapping, tenant);
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
                    self.timeline.now = time;
                    self.handle(mapping, event);
                }
                None if until.time_ns == u64::MAX => return Stopped::Idle,
                None => {
                    self.timeline.now = self.timeline.now.max(until.time_ns);
                    return Stopped::Time;
                }
            }
        }
    }

    /// Hands over promised OPS blocks outside of any write, as an idle device would.
    pub fn advance_moves<M: Mapping>(&mut self, mapping: &mut M, max_gc_passes: u64) -> crate::MoveProgress {
        self.timeline.begin();
        mapping.advance_moves(max_gc_passes, &mut self.timeline)
    }

    fn handle<M: Mapping>(&mut self, mapping: &M, event: Event) {
        match event {
            Event::PageDone { tenant, slot } => {
                self.in_flight -= 1;
                let now = self.timeline.now;
                let Some(queue) = self.slot_mut(tenant) else { return };
                if queue.page_done(slot, now) {
                    self.admit(mapping, tenant);
                    // A flush may have waited for this request.
                    self.wake(tenant);
                }
            }
            Event::PageRead { tenant, slot, die } => {
                let arrived = self.timeline.transfer_out(die);
                self.schedule_page_done(arrived, tenant, slot);
            }
            Event::Arrival { tenant } => {
                let now = self.timeline.now;
                let Some(queue) = self.slot_mut(tenant) else { return };
                queue.arrival_scheduled = false;
                if !queue.paused {
                    queue.arrive(now);
                }
                self.admit(mapping, tenant);
                self.wake(tenant);
            }
            Event::Unthrottle { tenant } => {
                if let Some(queue) = self.slot_mut(tenant) {
                    queue.throttle.rang();
                }
                self.wake(tenant);
            }
        }
    }

    /// Lets requests arrive as far as the tenant's way of arriving allows at this moment.
    fn admit<M: Mapping>(&mut self, mapping: &M, tenant: u16) {
        let now = self.timeline.now;
        let Some(Some(queue)) = self.queues.get_mut(tenant as usize) else { return };
        if queue.paused {
            return;
        }
        match queue.arrival {
            Arrival::Closed { queue_depth } => {
                let before = queue.account.outstanding();
                while queue.account.outstanding() < queue_depth && !queue.input.is_empty() {
                    prefetch(mapping, TenantId(tenant), queue);
                    queue.arrive(now);
                }
                if queue.account.outstanding() < queue_depth && !queue.input_ended {
                    self.starved.push(TenantId(tenant));
                }
                if self.slot_mut(tenant).is_some_and(|q| q.account.outstanding() > before) {
                    self.wake(tenant);
                }
            }
            Arrival::Live => {}
            Arrival::Open => {
                if queue.arrival_scheduled {
                    return;
                }
                match queue.input.front() {
                    Some(next) => {
                        let at = (next.time_ns + queue.time_offset_ns).max(now);
                        queue.arrival_scheduled = true;
                        prefetch(mapping, TenantId(tenant), queue);
                        self.agenda.add(at, Event::Arrival { tenant });
                    }
                    None if !queue.input_ended => self.starved.push(TenantId(tenant)),
                    None => {}
                }
            }
        }
    }

    /// Puts a tenant that has a page to issue in the scheduler's line, or sets its alarm where a limit holds it.
    fn wake(&mut self, tenant: u16) {
        let now = self.timeline.now;
        let Some(Some(queue)) = self.queues.get_mut(tenant as usize) else { return };
        let Some(&(request, slot)) = queue.arrived.front() else { return };
        let starting = queue.next_page == request.first;
        if request.op == Op::Flush && queue.account.outstanding() as usize > queue.arrived.len() {
            return;
        }
        if starting {
            match queue.throttle.gate(now) {
                Gate::Open => {}
                Gate::Shut => return,
                Gate::ShutUntil(at) => return self.agenda.add(at, Event::Unthrottle { tenant }),
            }
        }
        let arrival_ns = queue.outstanding[slot].arrival_ns;
        self.scheduler.enqueue(tenant, &mut queue.standing, arrival_ns);
    }

    /// Issues pages while the device has room; false when the host page writes asked for are reached.
    fn issue<M: Mapping>(&mut self, mapping: &mut M, host_page_writes: u64) -> bool {
        while self.in_flight < self.device_queue_depth {
            if self.host_page_writes >= host_page_writes {
                return false;
            }
            let Some(tenant) = self.scheduler.take_next() else { return true };
            self.timeline.begin();
            self.issue_page(mapping, tenant);
            let (device_ns, gc_ns) = (self.timeline.device_ns, self.timeline.gc_ns);
            if let Some(Some(queue)) = self.queues.get_mut(tenant as usize) {
                queue.account.counters.device_ns += device_ns;
                queue.account.counters.gc_ns += gc_ns;
                self.scheduler.taken(&mut queue.standing, device_ns);
            }
            self.wake(tenant);
            if mapping.moves_pending() && self.host_page_writes % WRITES_PER_MOVE_STEP == 0 {
                self.timeline.begin();
                self.move_pace.step(mapping, &mut self.timeline);
            }
        }
        self.host_page_writes < host_page_writes
    }

    /// Issues the next page of a tenant's first arrived request.
    fn issue_page<M: Mapping>(&mut self, mapping: &mut M, tenant: u16) {
        let now = self.timeline.now;
        let id = TenantId(tenant);
        let Some(Some(queue)) = self.queues.get_mut(tenant as usize) else { return };
        let Some(&(request, slot)) = queue.arrived.front() else { return };
        let page = queue.next_page;
        if page == request.first {
            let waited_from = queue.outstanding[slot].arrival_ns;
            queue.account.counters.throttled_ns += queue.throttle.start(now, waited_from, u64::from(request.bytes));
        }
        queue.next_page += 1;
        if queue.next_page >= request.end || request.op == Op::Trim {
            queue.all_issued();
        }
        self.in_flight += 1;
        let partial =
            (request.partial_first && page == request.first) || (request.partial_last && page + 1 == request.end);
        match request.op {
            Op::Read => {
                if let Some(die) = mapping.read_page(id, page, &mut self.timeline) {
                    let at = self.timeline.finish;
                    self.agenda.add(at, Event::PageRead { tenant, slot, die });
                    return;
                }
                self.timeline.finish += self.timeline.command_ns();
            }
            Op::Write | Op::WriteZeroes if partial => {
                mapping.rewrite_page_in_part(id, page, &mut self.timeline);
                self.host_page_writes += 1;
            }
            Op::Write => {
                mapping.write_page(id, page, &mut self.timeline);
                self.host_page_writes += 1;
            }
            Op::WriteZeroes => {
                // A request of length 0 covers no page, not even its first.
                if page < request.end {
                    mapping.trim_page(id, page, &mut self.timeline);
                }
                self.timeline.finish += self.timeline.command_ns();
            }
            Op::Trim => {
                let span = PageSpan {
                    first: request.first,
                    end: request.end,
                    partial_first: request.partial_first,
                    partial_last: request.partial_last,
                };
                span.whole().for_each(|p| mapping.trim_page(id, p, &mut self.timeline));
                self.timeline.finish += self.timeline.command_ns();
                if let Some(queue) = self.slot_mut(tenant) {
                    let entry = &mut queue.outstanding[slot];
                    (entry.pages_left, entry.pages_unscheduled) = (1, 1);
                }
            }
            Op::Flush => self.timeline.finish = now + self.timeline.command_ns(),
        }
        let at = self.timeline.finish;
        self.schedule_page_done(at, tenant, slot);
    }

    fn schedule_page_done(&mut self, at: u64, tenant: u16, slot: u32) {
        self.agenda.add(at, Event::PageDone { tenant, slot });
        let Some(Some(queue)) = self.queues.get_mut(tenant as usize) else { return };
        if queue.arrival == Arrival::Live {
            self.completions.extend(queue.page_scheduled(slot, at));
        }
    }

    fn slot_mut(&mut self, tenant: u16) -> Option<&mut TenantQueue> {
        self.queues.get_mut(tenant as usize).and_then(Option::as_mut)
    }

    fn queue(&self, tenant: TenantId) -> Result<&TenantQueue, FtlError> {
        self.queues.get(tenant.0 as usize).and_then(Option::as_ref).ok_or(FtlError::UnknownTenant(tenant.0))
    }

    fn queue_mut(&mut self, tenant: TenantId) -> Result<&mut TenantQueue, FtlError> {
        self.slot_mut(tenant.0).ok_or(FtlError::UnknownTenant(tenant.0))
    }

    fn parse<M: Mapping>(
        &self,
        mapping: &M,
        tenant: TenantId,
        time_ns: &[i64],
        op: &[u8],
        offset_bytes: &[u64],
        length_bytes: &[u64],
    ) -> Result<Vec<Request>, FtlError> {
        let n = time_ns.len();
        if op.len() != n || offset_bytes.len() != n || length_bytes.len() != n {
            return invalid("requests", "columns differ in length");
        }
        let pages = mapping.pages(tenant);
        (0..n)
            .map(|i| {
                let time_ns = u64::try_from(time_ns[i]).unwrap_or(0);
                let op = Op::try_from(op[i])?;
                request(time_ns, op, offset_bytes[i], length_bytes[i], self.page_shift, pages, 0)
            })
            .collect()
    }
}

/// A request in pages, when it asks for something and all of it exists.
fn request(
    time_ns: u64,
    op: Op,
    offset_bytes: u64,
    length_bytes: u64,
    page_shift: u32,
    pages: u64,
    token: u64,
) -> Result<Request, FtlError> {
    if length_bytes == 0 && matches!(op, Op::Read | Op::Write) {
        return invalid("length", format!("a request at byte {offset_bytes} reads or writes nothing"));
    }
    let span = checked_span(offset_bytes, length_bytes, page_shift, pages)?;
    Ok(Request {
        time_ns,
        first: span.first,
        end: span.end,
        bytes: u32::try_from(length_bytes).unwrap_or(u32::MAX),
        op,
        partial_first: span.partial_first,
        partial_last: span.partial_last,
        token,
    })
}

/// The pages of a byte range, when all of them exist.
pub(crate) fn checked_span(offset: u64, length: u64, page_shift: u32, pages: u64) -> Result<PageSpan, FtlError> {
    if offset.checked_add(length).is_none() {
        return Err(FtlError::OutOfRange { page: u64::MAX >> page_shift, pages });
    }
    let span = PageSpan::of(offset, length, page_shift);
    if span.end > pages {
        return Err(FtlError::OutOfRange { page: span.end.saturating_sub(1).max(pages), pages });
    }
    Ok(span)
}

/// Fetches ahead what requests a little further down the input will touch.
#[inline]
fn prefetch<M: Mapping>(mapping: &M, tenant: TenantId, queue: &TenantQueue) {
    if let Some(request) = queue.input.get(PREFETCH_AHEAD) {
        if request.end > request.first {
            mapping.prefetch(tenant, request.first);
        }
    }
    if let Some(request) = queue.input.get(PREFETCH_OVERWRITE_AHEAD) {
        if request.end > request.first {
            mapping.prefetch_overwrite(tenant, request.first);
        }
    }
}

#[cfg(test)]
mod tests;
