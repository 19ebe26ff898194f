//! Dispatch: choice of the next page for the flash, and its completion.

use std::ops::Range;

use crate::address::DieId;
use crate::engine::die_lines::WaitingPage;
use crate::engine::queue::{Outstanding, Request, TenantQueue};
use crate::engine::throttle::Gate;
use crate::engine::{Arrival, Engine, Event, Timeline};
use crate::mapping::Mapping;
use crate::nand::Nand;
use crate::op::{Op, PageSpan, TenantId};

/// Pages of a tenant that may wait for busy dies, for each die: enough to keep the other dies busy while its pages wait
/// for one with a long GC, and so few that a new weight does not take seconds to have an effect.
const LOOK_AHEAD_PER_DIE: usize = 64;

/// Kinds of page operations.
enum Work {
    Read,
    Write,
    /// A part of the page is written, the rest is read first.
    Rewrite,
    /// Touches no flash.
    Unmap(Range<u64>),
}

impl Engine {
    /// Puts a tenant that has a page to issue in the scheduler's line, or sets its timer where a limit holds it.
    pub(super) fn wake(&mut self, tenant: u16) {
        let now = self.timeline.now();
        let look_ahead = LOOK_AHEAD_PER_DIE * self.timeline.dies.count();
        let Some(Some(queue)) = self.queues.get_mut(tenant as usize) else { return };
        let Some(&(request, slot)) = queue.arrived.front() else { return };
        if must_wait(queue, &request) || queue.waiting_pages.len() >= look_ahead {
            return;
        }
        let Outstanding { arrival_ns, mut arrival_tag, .. } = queue.outstanding[slot];
        let mut released_ns = arrival_ns;
        if queue.next_page == request.first {
            match queue.throttle.gate(now) {
                Gate::Open => {}
                Gate::Shut => return,
                Gate::ShutUntil(at) => return self.agenda.add(at, Event::Unthrottle { tenant }),
            }
            released_ns = queue.throttle.released_ns(now, arrival_ns);
            if released_ns > arrival_ns {
                // Time in which its own limit holds a tenant back is not due to it later.
                arrival_tag = arrival_tag.max(self.scheduler.virtual_time(now).least_tag(false));
            }
        }
        queue.account.enter_line(now);
        self.scheduler.enqueue(tenant, &mut queue.entity, released_ns, arrival_tag);
    }

    /// Issues pages while the device accepts them; false when the requested number of host page writes is reached.
    pub(super) fn issue<M: Mapping>(&mut self, mapping: &mut M, host_page_writes: u64) -> bool {
        if self.scheduler.is_spent() {
            self.restart_scheduler(self.scheduler.policy());
        }
        for (tag, tenant) in self.passed_over.drain(..) {
            self.scheduler.requeue(tag, tenant);
        }
        self.count_delay_of_line();
        while self.host_page_writes < host_page_writes {
            let has_room = self.has_room();
            if has_room {
                self.step_moves(mapping);
            }
            let suspends = self.next_page_suspends(mapping);
            let next_tag = if has_room || suspends { self.scheduler.next_tag() } else { None };
            match self.first_waiting(has_room) {
                Some((tag, die)) if next_tag.is_none_or(|next| tag <= next) => self.issue_waiting(mapping, die),
                _ if next_tag.is_some()
                    && (suspends || !self.are_dies_contended() || !self.timeline.dies.idle().is_clear()) =>
                {
                    self.issue_next(mapping);
                }
                _ => {
                    self.move_budget.line_stops(&self.timeline);
                    self.set_timer_for_dies();
                    return true;
                }
            }
        }
        false
    }

    /// True when a free die is not to be had by issuing less than there are dies.
    #[inline]
    fn are_dies_contended(&self) -> bool {
        !self.die_lines.is_empty() || self.timeline.is_at_background_work()
    }

    /// Whether one more page operation may be in flight. Pages that are not in flight yet are in the scheduler's order,
    /// so no more are issued than keep the dies busy.
    #[inline]
    fn has_room(&self) -> bool {
        self.in_flight - self.behind_background < self.device_queue_depth && self.in_flight < self.most_in_flight
    }

    /// True when the next page is a read for which its die suspends an operation, which needs no free slot.
    #[inline]
    fn next_page_suspends<M: Mapping>(&self, mapping: &M) -> bool {
        if !self.timeline.can_suspend() || self.depth_is_given {
            return false;
        }
        let Some(tenant) = self.scheduler.next_tenant() else { return false };
        let Some(Some(queue)) = self.queues.get(tenant as usize) else { return false };
        if !queue.arrived.front().is_some_and(|(request, _)| request.op == Op::Read && queue.next_page < request.end) {
            return false;
        }
        let die = mapping.die_to_read(TenantId(tenant), queue.next_page);
        die.is_some_and(|die| may_read(&self.timeline, &self.passed_over, die, queue.entity.tag()))
    }

    /// Tag and die of the first page that waits for a die which is free by now. Whatever is in flight on other dies,
    /// there is room for it, unless a depth was given.
    #[inline]
    fn first_waiting(&self, has_room: bool) -> Option<(u64, DieId)> {
        if self.die_lines.is_empty() || (self.depth_is_given && !has_room) {
            return None;
        }
        self.die_lines
            .first(self.timeline.dies_that_may_read(), |die, tag| may_read(&self.timeline, &self.passed_over, die, tag))
    }

    /// Schedules an event for when the next die will be free, because not all work of dies ends with a page.
    fn set_timer_for_dies(&mut self) {
        let contended = self.are_dies_contended() || !self.passed_over.is_empty();
        if !(contended && self.has_waiting_pages()) {
            return;
        }
        let Some(at) = self.timeline.dies.next_free_ns() else { return };
        if self.agenda.next_ns().is_none_or(|next| next > at) {
            self.agenda.add(at, Event::DieFree);
        }
    }

    /// True when pages wait, for their turn or for a die.
    pub(super) fn has_waiting_pages(&self) -> bool {
        !(self.scheduler.is_empty() && self.die_lines.is_empty() && self.passed_over.is_empty())
    }

    /// Issues the first page that waits for a die, which is free.
    fn issue_waiting<M: Mapping>(&mut self, mapping: &mut M, die: DieId) {
        let Some((waiting, overtaken)) = self.die_lines.take(die) else { return };
        let WaitingPage { tag, tenant, slot, page, rewrite, .. } = waiting;
        let now = self.timeline.now();
        let Some(Some(queue)) = self.queues.get_mut(tenant as usize) else { return };
        if overtaken {
            queue.account.remove_overtaken_page(now);
        }
        // Its tenant may have rewritten it in the meantime.
        let die = mapping.die_to_read(TenantId(tenant), page);
        if let Some(die) = die.filter(|&die| !may_read(&self.timeline, &self.passed_over, die, tag)) {
            return self.die_lines.add(die, waiting);
        }
        queue.waiting_pages.remove(page);
        self.scheduler.begin(tag);
        let device_ns = self.issue_page(mapping, tenant, slot, page, if rewrite { Work::Rewrite } else { Work::Read });
        let more_ns = device_ns.saturating_sub(self.timeline.read_ns());
        if let Some(Some(queue)) = self.queues.get_mut(tenant as usize) {
            self.scheduler.charge_from(tag, &mut queue.entity, more_ns);
        }
        self.wake(tenant);
    }

    /// Issues the next page of the tenant whose turn it is, unless its die is busy.
    fn issue_next<M: Mapping>(&mut self, mapping: &mut M) {
        let now = self.timeline.now();
        let contended = self.are_dies_contended();
        let Some(tenant) = self.scheduler.take_next() else { return };
        let Some(Some(queue)) = self.queues.get_mut(tenant as usize) else { return };
        let Some(&(request, slot)) = queue.arrived.front() else {
            queue.account.leave_line(now);
            return self.scheduler.serve(&mut queue.entity, 0);
        };
        let page = queue.next_page;
        let work = work(&request, page);
        let tag = queue.entity.tag();
        if contended && matches!(work, Work::Write) {
            let die = mapping.die_to_write(TenantId(tenant), &self.timeline);
            if die.is_some_and(|die| !self.timeline.is_idle(die)) {
                return self.passed_over.push((tag, tenant));
            }
        }
        queue.account.leave_line(now);
        if page == request.first {
            let waited_from = queue.outstanding[slot].arrival_ns;
            queue.account.counters.throttled_ns += queue.throttle.start(now, waited_from, u64::from(request.bytes));
        }
        queue.next_page += 1;
        if queue.next_page >= request.end || request.op == Op::Trim {
            queue.pop_issued();
        }
        if matches!(work, Work::Read | Work::Rewrite) {
            let die = mapping.die_to_read(TenantId(tenant), page);
            if let Some(die) = die.filter(|&die| !may_read(&self.timeline, &self.passed_over, die, tag)) {
                queue.waiting_pages.add(page);
                self.scheduler.defer(&mut queue.entity, self.timeline.read_ns());
                let rewrite = matches!(work, Work::Rewrite);
                let pages_before = self.die_lines.tenants(die).count() as u64;
                self.die_lines.add(die, WaitingPage::new(tag, tenant, slot, page, rewrite));
                self.count_delay_by_moves(tenant, self.timeline.delay_by_background_ns(die, pages_before));
                return self.wake(tenant);
            }
        }
        if request.op == Op::Trim {
            let entry = &mut queue.outstanding[slot];
            (entry.pages_left, entry.pages_unscheduled) = (1, 1);
        }
        let device_ns = self.issue_page(mapping, tenant, slot, page, work);
        if let Some(Some(queue)) = self.queues.get_mut(tenant as usize) {
            // Requests without flash operations take the time of a command, so that many of them do not starve others.
            self.scheduler.serve(&mut queue.entity, device_ns.max(self.timeline.command_ns()));
        }
        self.wake(tenant);
    }

    /// Issues a page; returns the device time that it takes.
    fn issue_page<M: Mapping>(&mut self, mapping: &mut M, tenant: u16, slot: u32, page: u64, work: Work) -> u64 {
        let id = TenantId(tenant);
        self.timeline.begin();
        self.in_flight += 1;
        let mut read_from = None;
        match work {
            Work::Read => {
                read_from = mapping.read_page(id, page, &mut self.timeline);
                if read_from.is_none() {
                    self.timeline.finish += self.timeline.command_ns();
                }
            }
            Work::Rewrite => {
                mapping.rewrite_page_in_part(id, page, &mut self.timeline);
                self.host_page_writes += 1;
            }
            Work::Write => {
                mapping.write_page(id, page, &mut self.timeline);
                self.host_page_writes += 1;
            }
            Work::Unmap(pages) => {
                pages.for_each(|page| mapping.trim_page(id, page, &mut self.timeline));
                self.timeline.finish += self.timeline.command_ns();
            }
        }
        let (at, behind_ns) = (self.timeline.finish, self.timeline.behind_background_ns);
        let behind_background = behind_ns > 0;
        self.behind_background += u32::from(behind_background);
        self.count_delay_by_moves(tenant, behind_ns);
        match read_from {
            Some(die) => {
                self.timeline.hold_in_register(die);
                self.agenda.add(at, Event::PageRead { tenant, slot, die, behind_background });
            }
            None => self.schedule_page_done(at, tenant, slot, behind_background),
        }
        let (device_ns, gc_ns) = (self.timeline.device_ns, self.timeline.gc_ns);
        if let Some(Some(queue)) = self.queues.get_mut(tenant as usize) {
            queue.account.counters.device_ns += device_ns;
            queue.account.counters.gc_ns += gc_ns;
        }
        self.count_overtaken_pages(tenant);
        device_ns
    }

    /// Pages of other tenants that wait for the die of the page just issued wait because of the scheduler from now on.
    #[inline]
    fn count_overtaken_pages(&mut self, tenant: u16) {
        let Some(die) = self.timeline.die.filter(|_| !self.die_lines.is_empty()) else { return };
        let (now, queues) = (self.timeline.now(), &mut self.queues);
        self.die_lines.begin(die, tenant, |other| {
            if let Some(Some(queue)) = queues.get_mut(other as usize) {
                queue.account.add_overtaken_page(now);
            }
        });
    }

    pub(super) fn schedule_page_done(&mut self, at: u64, tenant: u16, slot: u32, behind_background: bool) {
        self.agenda.add(at, Event::PageDone { tenant, slot, behind_background });
        let Some(Some(queue)) = self.queues.get_mut(tenant as usize) else { return };
        if queue.arrival == Arrival::Live {
            self.completions.extend(queue.page_scheduled(slot, at));
        }
    }
}

/// Whether a die can read a page now: it is free, or can suspend its operation, which it does for no page whose turn is
/// after that of a waiting write.
#[inline]
fn may_read(timeline: &Timeline, passed_over: &[(u64, u16)], die: DieId, tag: u64) -> bool {
    let is_its_turn = || passed_over.iter().all(|&(earlier, _)| tag <= earlier);
    timeline.is_idle(die) || (timeline.is_suspendable(die) && is_its_turn())
}

/// Whether a request must not start before others of its tenant: a flush before none, and requests that unmap pages not
/// before waiting reads.
fn must_wait(queue: &TenantQueue, request: &Request) -> bool {
    match request.op {
        Op::Read | Op::Write => false,
        Op::Flush => queue.account.outstanding() as usize > queue.arrived.len(),
        Op::Trim | Op::WriteZeroes => queue.waiting_pages.any_in(request.first..request.end),
    }
}

/// Operation for a page of a request, or for all its pages if it is a TRIM.
#[inline]
fn work(request: &Request, page: u64) -> Work {
    let partial = (request.partial_first && page == request.first) || (request.partial_last && page + 1 == request.end);
    match request.op {
        Op::Read => Work::Read,
        Op::Write | Op::WriteZeroes if partial => Work::Rewrite,
        Op::Write => Work::Write,
        // A request of length 0 covers no page, not even its first.
        Op::WriteZeroes => Work::Unmap(page..(page + 1).min(request.end)),
        Op::Trim => {
            let Request { first, end, partial_first, partial_last, .. } = *request;
            Work::Unmap(PageSpan { first, end, partial_first, partial_last }.whole())
        }
        Op::Flush => Work::Unmap(page..page),
    }
}
