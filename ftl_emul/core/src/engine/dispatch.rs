//! Dispatch: whose page goes to the flash next, and when it will be done.

use crate::engine::throttle::Gate;
use crate::engine::{Arrival, Engine, Event};
use crate::mapping::Mapping;
use crate::op::{Op, PageSpan, TenantId};

impl Engine {
    /// Puts a tenant that has a page to issue in the scheduler's line, or sets its alarm where a limit holds it.
    pub(super) fn wake(&mut self, tenant: u16) {
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
        queue.account.queued(now);
        self.scheduler.enqueue(tenant, &mut queue.standing, arrival_ns);
    }

    /// Issues pages while the device has room; false when the host page writes asked for are reached.
    pub(super) fn issue<M: Mapping>(&mut self, mapping: &mut M, host_page_writes: u64) -> bool {
        while self.has_room() {
            if self.host_page_writes >= host_page_writes {
                return false;
            }
            self.step_moves(mapping);
            let Some(tenant) = self.scheduler.take_next() else { return true };
            self.timeline.begin();
            self.issue_page(mapping, tenant);
            let (device_ns, gc_ns) = (self.timeline.device_ns, self.timeline.gc_ns);
            let now = self.timeline.now;
            if let Some(Some(queue)) = self.queues.get_mut(tenant as usize) {
                queue.account.taken(now);
                queue.account.counters.device_ns += device_ns;
                queue.account.counters.gc_ns += gc_ns;
                // What touches no flash takes the time of a command, so that floods of it do not starve the others.
                self.scheduler.taken(&mut queue.standing, device_ns.max(self.timeline.command_ns()));
            }
            self.wake(tenant);
        }
        self.host_page_writes < host_page_writes
    }

    /// Whether one more page operation may be in flight. What is not in flight yet is in the order of the scheduler,
    /// so there are only as many as keep the dies busy.
    #[inline]
    fn has_room(&self) -> bool {
        self.in_flight - self.behind_background < self.device_queue_depth && self.in_flight < self.most_in_flight
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
                    let (at, behind_background) = (self.timeline.finish, self.timeline.behind_background);
                    self.behind_background += u32::from(behind_background);
                    self.agenda.add(at, Event::PageRead { tenant, slot, die, behind_background });
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
        let (at, behind_background) = (self.timeline.finish, self.timeline.behind_background);
        self.behind_background += u32::from(behind_background);
        self.schedule_page_done(at, tenant, slot, behind_background);
    }

    pub(super) fn schedule_page_done(&mut self, at: u64, tenant: u16, slot: u32, behind_background: bool) {
        self.agenda.add(at, Event::PageDone { tenant, slot, behind_background });
        let Some(Some(queue)) = self.queues.get_mut(tenant as usize) else { return };
        if queue.arrival == Arrival::Live {
            self.completions.extend(queue.page_scheduled(slot, at));
        }
    }
}
