//! Time: requests wait until the modelled drive, flash or disks, would be done with them.
//!
//! Modelled time is the wall clock since the start, divided by the time scale. The engine is advanced to the present
//! whenever a request arrives, and by the clock thread whenever an event occurs that a request waits for. It reports
//! the end of a request as soon as that is determined, usually long before; the clock thread then wakes the waiting
//! thread in time.

use std::sync::{Mutex, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use ftl_core::TenantId;
use ftl_core::convert::{exact, unsigned, whole};

use crate::config::MAX_NAMESPACES;
use crate::error::ServeError;
use crate::model::modelled::Modelled;
use crate::model::punctuality::{Lessons, Punctuality};
use crate::model::release::{NEVER, Releases, Turn};
use crate::model::{Request, survived};

/// Interval in which a waiting request checks whether its client still waits.
const WANTED_CHECK: Duration = Duration::from_millis(250);
/// Pause of the clock thread while another thread works on the model.
const BUSY_CHECK: Duration = Duration::from_micros(20);

/// A submitted request.
#[derive(Debug)]
pub struct Waiting {
    turn: Turn,
    tenant: TenantId,
    arrived_ns: u64,
    is_piece: bool,
}

/// Waiting threads by token of the engine.
#[derive(Debug, Default)]
struct Waiters {
    /// None in a slot that is free.
    slots: Vec<Option<Turn>>,
    free: Vec<usize>,
}

impl Waiters {
    fn put(&mut self, turn: Turn) -> usize {
        match self.free.pop() {
            Some(slot) => {
                self.slots[slot] = Some(turn);
                slot
            }
            None => {
                self.slots.push(Some(turn));
                self.slots.len() - 1
            }
        }
    }

    fn take(&mut self, slot: usize) -> Option<Turn> {
        self.free.push(slot);
        self.slots[slot].take()
    }

    /// True while the end of a request is unknown.
    fn are_any(&self) -> bool {
        self.free.len() < self.slots.len()
    }
}

/// Operations on any model of time.
pub trait Ticking: Send + Sync {
    /// The clock thread: runs until [`Ticking::stop`].
    fn run_clock(&self);
    /// Ends the clock thread.
    fn stop(&self);
    /// Wakes the clock thread when the next event is due.
    fn wake_clock(&self);
    /// Punctuality of completions.
    fn punctuality(&self) -> Punctuality;
}

struct State<D> {
    drive: D,
    waiters: Waiters,
}

/// Wall clock and modelled time.
#[derive(Debug)]
pub struct Clock {
    started: Instant,
    scale: f64,
}

impl Clock {
    /// Starts now, `scale` real seconds for each modelled one.
    #[must_use]
    pub fn new(scale: f64) -> Self {
        Self { started: Instant::now(), scale }
    }

    fn wall_ns(&self, at: Instant) -> u64 {
        exact::<u64>(at.saturating_duration_since(self.started).as_nanos())
    }

    fn now_ns(&self) -> u64 {
        self.wall_ns(Instant::now())
    }

    fn to_model(&self, wall_ns: u64) -> u64 {
        whole(wall_ns as f64 / self.scale)
    }

    fn to_wall(&self, model_ns: u64) -> u64 {
        whole(model_ns as f64 * self.scale)
    }
}

/// A drive with a clock.
pub struct Timed<D> {
    state: Mutex<State<D>>,
    releases: Releases,
    clock: Clock,
    lessons: Lessons,
    page_bytes: u64,
}

impl<D: Modelled> Timed<D> {
    /// A timed model of a drive, whose tenants get live queues.
    pub fn new(mut drive: D, clock: Clock) -> Result<Self, ServeError> {
        drive.open()?;
        Ok(Self {
            page_bytes: drive.page_bytes(),
            state: Mutex::new(State { drive, waiters: Waiters::default() }),
            releases: Releases::default(),
            clock,
            // Namespaces may be created later.
            lessons: Lessons::new(MAX_NAMESPACES),
        })
    }

    /// Submits a request. None if the model cannot take it: then there is no wait.
    pub fn submit(&self, request: Request, arrived: Instant) -> Option<Waiting> {
        let Request { tenant, op, offset, length, is_piece } = request;
        let arrived_ns = self.clock.wall_ns(arrived);
        if !is_piece {
            self.lessons.arrived(tenant, arrived_ns);
        }
        let turn = Turn::next();
        let taken = self.locked(|state| {
            self.advance(state, arrived_ns);
            let slot = state.waiters.put(turn.clone());
            let taken = state.drive.submit(tenant, op, offset, length, slot as u64);
            if taken.is_err() {
                // Beyond a namespace that was shrunk in the meantime, or an empty request.
                state.waiters.take(slot);
            } else {
                let now_ns = state.drive.now_ns();
                state.drive.run_to(now_ns);
            }
            self.publish(state, arrived_ns);
            taken
        });
        taken?.ok().map(|()| Waiting { turn, tenant, arrived_ns, is_piece })
    }

    /// None after a panic in the model.
    fn locked<R>(&self, work: impl FnOnce(&mut State<D>) -> R) -> Option<R> {
        survived(|| self.state.lock().ok().map(|mut state| work(&mut state))).flatten()
    }

    /// Returns when the request is complete, or when `gone` returns true.
    pub fn wait(&self, waiting: Waiting, mut gone: impl FnMut() -> bool) {
        let Waiting { turn, tenant, arrived_ns, is_piece } = waiting;
        while !turn.is_over() {
            let parked = Instant::now();
            thread::park_timeout(WANTED_CHECK);
            if parked.elapsed() >= WANTED_CHECK && !turn.is_over() && gone() {
                return;
            }
        }
        if !is_piece {
            self.lessons.ended(tenant, arrived_ns, turn.due_ns(), self.clock.now_ns());
        }
    }

    /// Unit in which space is released.
    pub fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// The estimated round trip.
    #[must_use]
    pub fn round_trip(&self) -> Duration {
        Duration::from_nanos(unsigned(self.lessons.round_trip_ns()))
    }

    /// Wall-clock time as modelled time.
    pub fn modelled(&self, took: Duration) -> Duration {
        took.div_f64(self.clock.scale)
    }

    /// Access to the drive at the present time; None after a panic in it.
    pub fn with<R>(&self, work: impl FnOnce(&mut D) -> R) -> Option<R> {
        self.locked(|state| {
            let now_ns = self.clock.now_ns();
            self.advance(state, now_ns);
            let done = work(&mut state.drive);
            self.publish(state, now_ns);
            done
        })
    }

    /// Advances the drive to the present, and not further, as later arrivals would come too late; but the end of a read
    /// is known only after it has left its die, which may be too late to wake its thread in time.
    fn advance(&self, state: &mut State<D>, now_ns: u64) {
        state.drive.run_to(self.clock.to_model(now_ns));
        let soon_ns = self.clock.to_model(now_ns + self.lessons.lead_ns());
        while let Some(next_ns) = state.drive.next_event_ns() {
            if next_ns > soon_ns || !state.drive.next_event_is_read() {
                break;
            }
            state.drive.run_to(next_ns);
        }
    }

    /// Passes on the requests whose end is known by now, and returns when the model has to be advanced next. To be
    /// called after any work on it.
    fn publish(&self, state: &mut State<D>, now_ns: u64) {
        let lead_ns = self.lessons.lead_ns();
        let mut line = self.releases.line();
        for done in state.drive.completions() {
            if let Some(turn) = state.waiters.take(exact::<usize>(done.token)) {
                line.push(self.clock.to_wall(done.at_ns), turn);
            }
        }
        line.release(now_ns + lead_ns);
        // If the end of every request is known, intermediate events can be processed later.
        let event_ns = match state.drive.next_event_ns() {
            Some(next_ns) if state.waiters.are_any() => {
                let early_ns = if state.drive.next_event_is_read() { lead_ns } else { 0 };
                self.clock.to_wall(next_ns).saturating_sub(early_ns)
            }
            _ => NEVER,
        };
        self.releases.publish(&mut line, event_ns, lead_ns);
    }
}

impl<D: Modelled> Ticking for Timed<D> {
    fn run_clock(&self) {
        be_punctual();
        let mut line = self.releases.line();
        while !line.is_stopping() {
            let now_ns = self.clock.now_ns();
            line.release(now_ns + self.lessons.lead_ns());
            let mut busy = None;
            if line.is_event_due(now_ns) {
                drop(line);
                match self.state.try_lock() {
                    // If it fails, the lock is poisoned and the update still due.
                    Ok(mut state) => drop(survived(move || {
                        self.advance(&mut state, now_ns);
                        self.publish(&mut state, now_ns);
                    })),
                    Err(TryLockError::WouldBlock) => busy = Some(BUSY_CHECK),
                    Err(TryLockError::Poisoned(failed)) => {
                        // No request waits for a model that has failed.
                        let waiters = &mut failed.into_inner().waiters;
                        line = self.releases.line();
                        waiters.slots.iter_mut().filter_map(Option::take).for_each(|turn| line.push(now_ns, turn));
                        return line.release(NEVER);
                    }
                }
                line = self.releases.line();
            }
            line = self.releases.wait(line, self.clock.now_ns(), self.lessons.lead_ns(), busy);
        }
    }

    fn stop(&self) {
        self.releases.stop();
    }

    fn wake_clock(&self) {
        self.releases.wake();
    }

    fn punctuality(&self) -> Punctuality {
        self.lessons.punctuality()
    }
}

/// Disables the kernel's rounding of this thread's timers, 50 us by default.
fn be_punctual() {
    // SAFETY: a plain system call about the calling thread; no memory is passed.
    let punctual = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0) };
    if punctual != 0 {
        eprintln!("slo-ctl: timers may fire up to 50 us late: {}", std::io::Error::last_os_error());
    }
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: a plain system call about the calling thread; the kernel reads `priority` only. It is a privilege that
    // punctuality gains from but does not depend on, so a refusal is nothing to tell.
    let _with_privilege = unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const priority) };
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ftl_core::engine::Completion;
    use ftl_core::{FtlError, Op};

    use super::*;

    /// A model that fails after a while, with a request in work.
    struct Failing {
        now_ns: u64,
        completions: Vec<Completion>,
    }

    const FAILS_AT_NS: u64 = 50_000_000;

    impl Modelled for Failing {
        fn open(&mut self) -> Result<(), FtlError> {
            Ok(())
        }

        fn submit(&mut self, _: TenantId, _: Op, _: u64, _: u64, _: u64) -> Result<(), FtlError> {
            Ok(())
        }

        fn run_to(&mut self, time_ns: u64) {
            assert!(time_ns < FAILS_AT_NS, "a fault of the model");
            self.now_ns = time_ns;
        }

        fn completions(&mut self) -> std::vec::Drain<'_, Completion> {
            self.completions.drain(..)
        }

        fn next_event_ns(&self) -> Option<u64> {
            Some(FAILS_AT_NS)
        }

        fn next_event_is_read(&self) -> bool {
            false
        }

        fn now_ns(&self) -> u64 {
            self.now_ns
        }

        fn page_bytes(&self) -> u64 {
            4096
        }
    }

    #[test]
    fn requests_in_work_and_later_ones_go_on_without_a_model_that_fails_in_the_clock_thread() {
        let model = Failing { now_ns: 0, completions: Vec::new() };
        let timed = Arc::new(Timed::new(model, Clock::new(1.0)).unwrap());
        let request = Request { tenant: TenantId(0), op: Op::Read, offset: 0, length: 4096, is_piece: false };
        let waiting = timed.submit(request, Instant::now()).unwrap();
        let clock = Arc::clone(&timed);
        let clock = thread::spawn(move || clock.run_clock());
        let (begun, mut waits_in_vain) = (Instant::now(), false);
        timed.wait(waiting, || {
            waits_in_vain = begun.elapsed() > Duration::from_secs(20);
            waits_in_vain
        });
        assert!(!waits_in_vain);
        clock.join().unwrap();
        assert!(timed.submit(request, Instant::now()).is_none());
        assert!(timed.with(|_| ()).is_none());
    }
}
