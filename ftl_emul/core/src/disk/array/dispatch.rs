//! Dispatch: choice of the next request, its parts, and its completion.

use crate::convert::exact;
use crate::disk::array::{Array, Event, Request};
use crate::disk::drive::{Command, Output, Task};
use crate::disk::stripe::Stripe;
use crate::engine::Completion;
use crate::engine::throttle::Gate;
use crate::op::Op;

impl Array {
    /// Puts a tenant that has a request in the scheduler's line, or sets its timer where a limit holds it.
    pub(super) fn wake(&mut self, number: u16) {
        let now_ns = self.now_ns;
        let tenant = &mut self.tenants[usize::from(number)];
        let Some(&slot) = tenant.line.front() else { return };
        match tenant.throttle.gate(now_ns) {
            Gate::Open => {}
            Gate::Shut => return,
            Gate::ShutUntil(at_ns) => return self.agenda.add(at_ns, Event::Unthrottle { tenant: number }),
        }
        tenant.account.enter_line(now_ns);
        let least_tag = self.scheduler.virtual_time(now_ns).least_tag(false);
        let released_ns = tenant.throttle.released_ns(now_ns, self.requests[slot].arrival_ns);
        self.scheduler.enqueue(number, &mut tenant.entity, released_ns, least_tag);
    }

    /// Passes requests to the disks while they have room.
    pub(super) fn issue(&mut self) {
        if self.scheduler.is_spent() {
            self.restart_scheduler(self.scheduler.policy());
        }
        while self.in_flight < self.queue_depth {
            let Some(number) = self.scheduler.take_next() else { return };
            let now_ns = self.now_ns;
            let tenant = &mut self.tenants[usize::from(number)];
            tenant.account.leave_line(now_ns);
            self.scheduler.serve(&mut tenant.entity, 0);
            // A limit may have been set while it was in the line.
            if tenant.throttle.is_open(now_ns) {
                if let Some(slot) = tenant.line.pop_front() {
                    let request = self.requests[slot];
                    tenant.account.counters.throttled_ns +=
                        tenant.throttle.start(now_ns, request.arrival_ns, request.length);
                    self.in_flight += 1;
                    self.hand_over(slot);
                }
            }
            self.wake(number);
        }
    }

    fn hand_over(&mut self, slot: u32) {
        let Request { tenant, op, offset, length, .. } = self.requests[slot];
        let task = match op {
            Op::Read => Some(Task::Read),
            Op::Write | Op::WriteZeroes => Some(Task::Write),
            Op::Flush => Some(Task::Flush),
            // Disks that overwrite in place have nothing to release.
            Op::Trim => None,
        };
        let count = self.disks.len() as u64;
        let part = |stripe: &Stripe, disk: u64| match task {
            Some(Task::Flush) => Some((0, 0)),
            Some(_) if count == 1 => Some((offset, length)),
            Some(_) => stripe.part(offset, length, disk),
            None => None,
        };
        self.requests[slot].parts_left = exact::<u32>((0..count).filter(|&d| part(&self.stripe, d).is_some()).count());
        let Some(task) = task else {
            let at_ns = self.now_ns + self.mechanics().parameters().command_ns;
            return self.schedule_completion(slot, at_ns);
        };
        for disk in 0..count {
            if let Some((offset, length)) = part(&self.stripe, disk) {
                let command = Command { task, offset, length, token: u64::from(slot), tenant };
                self.disks[exact::<usize>(disk)].accept(command, self.now_ns, &mut self.outputs);
                self.forward_outputs(exact::<usize>(disk));
            }
        }
    }

    /// Passes on the outputs of a disk, and sets the timer for its arm.
    pub(super) fn forward_outputs(&mut self, disk: usize) {
        let mut outputs = std::mem::take(&mut self.outputs);
        for each in outputs.drain(..) {
            match each {
                Output::Spent { tenant, ns } => {
                    let tenant = &mut self.tenants[usize::from(tenant)];
                    tenant.account.counters.device_ns += ns;
                    self.scheduler.charge(&mut tenant.entity, ns);
                }
                Output::Done { token, at_ns } => {
                    let slot = exact::<u32>(token);
                    let request = &mut self.requests[slot];
                    request.done_ns = request.done_ns.max(at_ns);
                    request.parts_left -= 1;
                    if request.parts_left == 0 {
                        let at_ns = request.done_ns;
                        self.schedule_completion(slot, at_ns);
                    }
                }
            }
        }
        self.outputs = outputs;
        let next_ns = self.disks[disk].next_ns();
        if let Some(at_ns) = next_ns.filter(|_| self.armed[disk].is_none()) {
            self.armed[disk] = next_ns;
            self.agenda.add(at_ns, Event::Arm { disk });
        }
    }

    /// Records the end of a request.
    fn schedule_completion(&mut self, slot: u32, at_ns: u64) {
        self.completions.push(Completion { token: self.requests[slot].token, at_ns });
        self.agenda.add(at_ns, Event::Done { slot });
    }

    pub(super) fn done(&mut self, slot: u32) {
        let Request { tenant, op, length, arrival_ns, .. } = self.requests[slot];
        let now_ns = self.now_ns;
        let tenant = &mut self.tenants[usize::from(tenant)];
        tenant.account.completed(now_ns, arrival_ns, op, length);
        self.requests.release(slot);
        self.in_flight -= 1;
    }
}
