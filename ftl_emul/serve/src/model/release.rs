//! Waiting requests whose end is known, and the timer of the clock thread.
//!
//! They have a separate lock, held for moments only: a thread that works on the model may lose the processor while it
//! holds the drive's lock, and due requests must not wait for that.

use std::cmp::Ordering as Order;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

use crate::threads::lock;

pub const NEVER: u64 = u64::MAX;

/// A worker thread, which waits for one request at a time.
#[derive(Debug)]
pub struct Waiter {
    thread: Thread,
    /// The request that it waits for, by number.
    turn: AtomicU64,
    /// The last that was released.
    released: AtomicU64,
    /// Due time of the request, in nanoseconds of wall clock since the start.
    due_ns: AtomicU64,
}

thread_local! {
    static WAITER: Arc<Waiter> = Arc::new(Waiter {
        thread: thread::current(),
        turn: AtomicU64::new(0),
        released: AtomicU64::new(0),
        due_ns: AtomicU64::new(0),
    });
}

/// One request, for its thread to wait for and for the clock to release.
#[derive(Debug, Clone)]
pub struct Turn {
    waiter: Arc<Waiter>,
    number: u64,
}

impl Turn {
    /// The next request of this thread; an abandoned earlier one is ignored.
    pub fn next() -> Self {
        let waiter = WAITER.with(Arc::clone);
        let number = waiter.turn.fetch_add(1, Ordering::Relaxed) + 1;
        Self { waiter, number }
    }

    /// True once it was released.
    pub fn is_over(&self) -> bool {
        self.waiter.released.load(Ordering::Acquire) >= self.number
    }

    /// Due time of the request.
    pub fn due_ns(&self) -> u64 {
        self.waiter.due_ns.load(Ordering::Relaxed)
    }

    fn release(&self, due_ns: u64) {
        if self.waiter.turn.load(Ordering::Relaxed) == self.number {
            self.waiter.due_ns.store(due_ns, Ordering::Relaxed);
            self.waiter.released.fetch_max(self.number, Ordering::Release);
            self.waiter.thread.unpark();
        }
    }
}

/// A request whose end is known.
#[derive(Debug)]
struct Due {
    at_ns: u64,
    turn: Turn,
}

impl Ord for Due {
    /// The earliest is the greatest, for [`BinaryHeap`].
    fn cmp(&self, other: &Self) -> Order {
        other.at_ns.cmp(&self.at_ns)
    }
}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Order> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.at_ns == other.at_ns
    }
}

impl Eq for Due {}

/// All threads that wait for a known time. Times are nanoseconds of wall clock since the start.
#[derive(Debug)]
pub struct Line {
    due: BinaryHeap<Due>,
    /// Time of the next update of the model.
    event_ns: u64,
    /// Time at which the clock thread wakes up.
    timer_ns: u64,
    stopping: bool,
}

impl Line {
    /// Takes a request in.
    pub fn push(&mut self, at_ns: u64, turn: Turn) {
        self.due.push(Due { at_ns, turn });
    }

    /// Releases threads that are due until `until_ns`.
    pub fn release(&mut self, until_ns: u64) {
        while self.due.peek().is_some_and(|due| due.at_ns <= until_ns) {
            if let Some(due) = self.due.pop() {
                due.turn.release(due.at_ns);
            }
        }
    }

    /// True when an update of the model is due.
    pub fn is_event_due(&self, now_ns: u64) -> bool {
        self.event_ns <= now_ns
    }

    /// True once the clock thread is to end.
    pub fn is_stopping(&self) -> bool {
        self.stopping
    }

    fn next_ns(&self, lead_ns: u64) -> u64 {
        let due_ns = self.due.peek().map_or(NEVER, |due| due.at_ns.saturating_sub(lead_ns));
        due_ns.min(self.event_ns)
    }
}

/// The line, its lock and the timer of the clock thread.
#[derive(Debug)]
pub struct Releases {
    line: Mutex<Line>,
    changed: Condvar,
}

impl Default for Releases {
    fn default() -> Self {
        let line = Line { due: BinaryHeap::new(), event_ns: NEVER, timer_ns: NEVER, stopping: false };
        Self { line: Mutex::new(line), changed: Condvar::new() }
    }
}

impl Releases {
    /// The waiting threads. Each change is one step, so that a panic elsewhere leaves them consistent.
    pub fn line(&self) -> MutexGuard<'_, Line> {
        lock(&self.line)
    }

    /// Sets the time of the next update of the model, and wakes the clock thread if it would be late.
    pub fn publish(&self, line: &mut Line, event_ns: u64, lead_ns: u64) {
        line.event_ns = event_ns;
        if line.next_ns(lead_ns) < line.timer_ns {
            self.changed.notify_one();
        }
    }

    /// Sleeps until an update is due, or for a moment if `busy` prevents it.
    pub fn wait<'a>(
        &'a self,
        mut line: MutexGuard<'a, Line>,
        now_ns: u64,
        lead_ns: u64,
        busy: Option<Duration>,
    ) -> MutexGuard<'a, Line> {
        let next_ns = line.next_ns(lead_ns);
        line.timer_ns = next_ns;
        if next_ns == NEVER {
            return self.changed.wait(line).unwrap_or_else(PoisonError::into_inner);
        }
        let left = Duration::from_nanos(next_ns.saturating_sub(now_ns)).max(busy.unwrap_or_default());
        if left.is_zero() {
            return line;
        }
        self.changed.wait_timeout(line, left).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Wakes the clock thread.
    pub fn wake(&self) {
        self.changed.notify_one();
    }

    /// Ends the clock thread.
    pub fn stop(&self) {
        self.line().stopping = true;
        self.changed.notify_all();
    }
}
