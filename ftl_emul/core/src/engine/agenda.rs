//! Future events, in virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Events by time; simultaneous ones in the order in which they were added.
#[derive(Debug)]
pub(crate) struct Agenda<E> {
    events: BinaryHeap<Reverse<(u64, u64, E)>>,
    added: u64,
}

impl<E: Copy + Ord> Agenda<E> {
    /// No event.
    pub fn new() -> Self {
        Self { events: BinaryHeap::new(), added: 0 }
    }

    /// Lets something happen at a moment.
    #[inline]
    pub fn add(&mut self, at_ns: u64, event: E) {
        self.added += 1;
        self.events.push(Reverse((at_ns, self.added, event)));
    }

    /// Time of the next event; None without one.
    #[inline]
    pub fn next_ns(&self) -> Option<u64> {
        self.events.peek().map(|&Reverse((time_ns, ..))| time_ns)
    }

    /// The next event.
    pub fn next_event(&self) -> Option<E> {
        self.events.peek().map(|&Reverse((.., event))| event)
    }

    /// Removes the next event and returns it with its time; None when there is none until `until_ns`.
    #[inline]
    pub fn take_by(&mut self, until_ns: u64) -> Option<(u64, E)> {
        if self.next_ns()? > until_ns {
            return None;
        }
        self.events.pop().map(|Reverse((time_ns, _, event))| (time_ns, event))
    }

    /// Drops the events that do not pass.
    pub fn retain(&mut self, passes: impl Fn(E) -> bool) {
        self.events.retain(|&Reverse((.., event))| passes(event));
    }
}
