//! Placement and time: requests wait until the modelled drive would be done with them.
//!
//! Modelled time is the wall clock since the start, divided by the time scale. The engine is brought up to the
//! present whenever a request arrives, and by the clock thread whenever something is due.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use ftl_core::Drive;
use ftl_core::engine::{Arrival, Until};

use crate::error::ServeError;
use crate::flash::Request;

/// How often a waiting request looks whether it is still wanted.
const WANTED_CHECK: Duration = Duration::from_millis(250);
/// Completions are released early by what waking a thread was seen to cost, but never more than this.
const MOST_LEAD_NS: i64 = 1_000_000;
/// An observation later than this is taken as this late.
const MOST_LATE_NS: i64 = 10_000_000;
/// One observation moves the lead by one part in so many.
const LEAD_INERTIA: i64 = 32;
/// A round trip through socket and nbdkit, which the client sees on top of the model: a first guess, and the most that
/// a pause between two requests is taken to be one.
const ROUND_TRIP_GUESS_NS: i64 = 30_000;
const MOST_ROUND_TRIP_NS: i64 = 100_000;
const NEVER: u64 = u64::MAX;

/// A worker thread that waits.
#[derive(Debug)]
struct Waiter {
    thread: Thread,
    done: AtomicBool,
    /// When the request is due, nanoseconds of wall clock since the start.
    due_ns: AtomicU64,
}

thread_local! {
    static WAITER: Arc<Waiter> = Arc::new(Waiter {
        thread: thread::current(),
        done: AtomicBool::new(false),
        due_ns: AtomicU64::new(0),
    });
}

/// A submitted request.
#[derive(Debug)]
pub struct Waiting {
    slot: usize,
    waiter: Arc<Waiter>,
}

/// Who waits for which token of the engine.
#[derive(Debug, Default)]
struct Waiters {
    /// None in a slot that is free, or whose request was given up.
    slots: Vec<Option<Arc<Waiter>>>,
    free: Vec<usize>,
}

impl Waiters {
    fn take(&mut self, waiter: Arc<Waiter>) -> usize {
        match self.free.pop() {
            Some(slot) => {
                self.slots[slot] = Some(waiter);
                slot
            }
            None => {
                self.slots.push(Some(waiter));
                self.slots.len() - 1
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    fn complete(&mut self, slot: usize, due_ns: u64) {
        if let Some(waiter) = self.slots[slot].take() {
            waiter.due_ns.store(due_ns, Ordering::Relaxed);
            waiter.done.store(true, Ordering::Release);
            waiter.thread.unpark();
        }
        self.free.push(slot);
    }
}

struct State {
    drive: Drive,
    waiters: Waiters,
    /// When the clock thread will wake by itself, in modelled nanoseconds.
    alarm_ns: u64,
    stopping: bool,
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
        at.saturating_duration_since(self.started).as_nanos() as u64
    }

    fn to_model(&self, wall_ns: u64) -> u64 {
        (wall_ns as f64 / self.scale) as u64
    }

    fn to_wall(&self, model_ns: u64) -> u64 {
        (model_ns as f64 * self.scale) as u64
    }
}

/// A drive with a clock.
pub struct Timed {
    state: Mutex<State>,
    alarm_changed: Condvar,
    clock: Clock,
    /// What it was seen to take from releasing a request to its thread running, nanoseconds of wall clock.
    lead_ns: AtomicI64,
    /// What a client sees on top: between the end of a lone request and the next one's arrival.
    round_trip_ns: AtomicI64,
    /// When a request ended last, nanoseconds of wall clock since the start.
    ended_ns: AtomicU64,
    /// Requests that waited, and by how much they ended late, summed up.
    waited: AtomicU64,
    late_ns: AtomicI64,
}

/// How well completions keep to the model.
#[derive(Debug, Clone, Copy)]
pub struct Punctuality {
    /// How early requests are released to end in time, nanoseconds.
    pub lead_ns: i64,
    /// How much earlier than modelled they end here, so that the client sees them in time.
    pub round_trip_ns: i64,
    /// Requests that waited.
    pub waited: u64,
    /// Sum of their lateness; what ended early counts against it.
    pub late_ns: i64,
}

impl Timed {
    /// Around a drive, whose tenants get live queues.
    pub fn new(mut drive: Drive, clock: Clock) -> Result<Self, ServeError> {
        for tenant in drive.tenants() {
            drive.open_queue(tenant, Arrival::Live)?;
        }
        Ok(Self {
            state: Mutex::new(State { drive, waiters: Waiters::default(), alarm_ns: NEVER, stopping: false }),
            alarm_changed: Condvar::new(),
            clock,
            lead_ns: AtomicI64::new(ROUND_TRIP_GUESS_NS),
            round_trip_ns: AtomicI64::new(ROUND_TRIP_GUESS_NS),
            ended_ns: AtomicU64::new(0),
            waited: AtomicU64::new(0),
            late_ns: AtomicI64::new(0),
        })
    }

    /// Lets a request arrive. None when the model cannot take it: then there is nothing to wait for.
    pub fn submit(&self, request: Request, arrived: Instant) -> Option<Waiting> {
        let waiter = WAITER.with(Arc::clone);
        waiter.done.store(false, Ordering::Relaxed);
        let mut guard = self.state.lock().ok()?;
        let state = &mut *guard;
        if state.waiters.is_empty() {
            self.learn_round_trip(arrived);
        }
        self.advance(state, arrived);
        let slot = state.waiters.take(Arc::clone(&waiter));
        let Request { tenant, op, offset, length } = request;
        if state.drive.submit(tenant, op, offset, length, slot as u64).is_err() {
            // Beyond a namespace that has shrunk meanwhile, or nothing to do.
            state.waiters.slots[slot] = None;
            state.waiters.free.push(slot);
            return None;
        }
        let now_ns = state.drive.now_ns();
        run_to(&mut state.drive, now_ns);
        self.deliver(state);
        if state.drive.next_event_ns().unwrap_or(NEVER) < state.alarm_ns {
            self.alarm_changed.notify_one();
        }
        Some(Waiting { slot, waiter })
    }

    /// Returns when the request is done, or when `gone` says that nobody cares any more.
    pub fn wait(&self, waiting: Waiting, mut gone: impl FnMut() -> bool) {
        let Waiting { slot, waiter } = waiting;
        while !waiter.done.load(Ordering::Acquire) {
            let parked = Instant::now();
            thread::park_timeout(WANTED_CHECK);
            if parked.elapsed() >= WANTED_CHECK && !waiter.done.load(Ordering::Acquire) && gone() {
                if let Ok(mut state) = self.state.lock() {
                    if !waiter.done.load(Ordering::Acquire) {
                        state.waiters.slots[slot] = None;
                    }
                }
                return;
            }
        }
        self.learn(waiter.due_ns.load(Ordering::Relaxed));
    }

    /// Moves the lead towards what makes requests end when they are due.
    fn learn(&self, due_ns: u64) {
        let now_ns = self.clock.wall_ns(Instant::now());
        self.ended_ns.store(now_ns, Ordering::Relaxed);
        let late_ns = now_ns as i64 + self.round_trip_ns.load(Ordering::Relaxed) - due_ns as i64;
        self.waited.fetch_add(1, Ordering::Relaxed);
        self.late_ns.fetch_add(late_ns, Ordering::Relaxed);
        let lead = self.lead_ns.load(Ordering::Relaxed);
        let step = late_ns.clamp(-MOST_LATE_NS, MOST_LATE_NS) / LEAD_INERTIA;
        self.lead_ns.store((lead + step).clamp(0, MOST_LEAD_NS), Ordering::Relaxed);
    }

    /// A client that sends a request as soon as it has the answer to the last shows how long the way is: the shortest
    /// pauses count, as the others include what the client does meanwhile.
    fn learn_round_trip(&self, arrived: Instant) {
        let pause_ns = self.clock.wall_ns(arrived).saturating_sub(self.ended_ns.load(Ordering::Relaxed)) as i64;
        if pause_ns < MOST_ROUND_TRIP_NS {
            let known_ns = self.round_trip_ns.load(Ordering::Relaxed);
            let inertia = if pause_ns < known_ns { 4 } else { LEAD_INERTIA };
            self.round_trip_ns.store(known_ns + (pause_ns - known_ns) / inertia, Ordering::Relaxed);
        }
    }

    /// A round trip as it was learnt.
    #[must_use]
    pub fn round_trip(&self) -> Duration {
        Duration::from_nanos(self.round_trip_ns.load(Ordering::Relaxed).max(0) as u64)
    }

    /// How well completions keep to the model.
    #[must_use]
    pub fn punctuality(&self) -> Punctuality {
        Punctuality {
            lead_ns: self.lead_ns.load(Ordering::Relaxed),
            round_trip_ns: self.round_trip_ns.load(Ordering::Relaxed),
            waited: self.waited.load(Ordering::Relaxed),
            late_ns: self.late_ns.load(Ordering::Relaxed),
        }
    }

    /// Gives access to the drive at the present moment; None after a panic in it.
    pub fn with<R>(&self, work: impl FnOnce(&mut Drive) -> R) -> Option<R> {
        let mut guard = self.state.lock().ok()?;
        let state = &mut *guard;
        self.advance(state, Instant::now());
        Some(work(&mut state.drive))
    }

    /// Makes the clock thread look again when something is due next.
    pub fn wake_clock(&self) {
        self.alarm_changed.notify_one();
    }

    /// The clock thread: runs until [`Timed::stop`].
    pub fn run_clock(&self) {
        be_punctual();
        let Ok(mut guard) = self.state.lock() else { return };
        while !guard.stopping {
            self.advance(&mut guard, Instant::now());
            let Some(next_ns) = guard.drive.next_event_ns() else {
                guard.alarm_ns = NEVER;
                let Ok(woken) = self.alarm_changed.wait(guard) else { return };
                guard = woken;
                continue;
            };
            let due_ns = self.clock.to_wall(next_ns).saturating_sub(self.lead());
            let now_ns = self.clock.wall_ns(Instant::now());
            if due_ns <= now_ns {
                continue;
            }
            guard.alarm_ns = next_ns;
            let Ok((woken, _)) = self.alarm_changed.wait_timeout(guard, Duration::from_nanos(due_ns - now_ns)) else {
                return;
            };
            guard = woken;
        }
    }

    /// Ends the clock thread.
    pub fn stop(&self) {
        if let Ok(mut state) = self.state.lock() {
            state.stopping = true;
        }
        self.alarm_changed.notify_all();
    }

    fn lead(&self) -> u64 {
        self.lead_ns.load(Ordering::Relaxed).max(0) as u64
    }

    /// Brings the drive up to `now`, and through what is due so soon that its thread has to be woken now.
    fn advance(&self, state: &mut State, now: Instant) {
        let wall_ns = self.clock.wall_ns(now);
        run_to(&mut state.drive, self.clock.to_model(wall_ns));
        let soon_ns = self.clock.to_model(wall_ns + self.lead());
        while let Some(next_ns) = state.drive.next_event_ns() {
            if next_ns > soon_ns {
                break;
            }
            run_to(&mut state.drive, next_ns);
        }
        self.deliver(state);
    }

    fn deliver(&self, state: &mut State) {
        for done in state.drive.completions() {
            state.waiters.complete(done.token as usize, self.clock.to_wall(done.at_ns));
        }
    }
}

fn run_to(drive: &mut Drive, time_ns: u64) {
    drive.run(Until { time_ns, host_page_writes: u64::MAX });
}

/// Asks the kernel not to round this thread's alarms, by default to 50 us.
fn be_punctual() {
    // SAFETY: a plain system call about the calling thread; no memory is passed.
    let punctual = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0) };
    if punctual != 0 {
        eprintln!("slo-ctl: alarms may ring up to 50 us late: {}", std::io::Error::last_os_error());
    }
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: a plain system call about the calling thread; the kernel reads `priority` only. It is a privilege that
    // punctuality gains from but does not depend on, so a refusal is nothing to tell.
    let _with_privilege = unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &priority) };
}
