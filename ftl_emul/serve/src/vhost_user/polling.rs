//! Polling of a queue, which saves the driver a notification and costs a CPU that the driver may need.

use std::time::{Duration, Instant};

/// After polling in vain, so many sleeps at most go by before the next attempt.
const MAX_PAUSE: u32 = 64;

/// Whether a queue is polled before its thread sleeps.
///
/// It is for at most `budget` after each request, as long as the last wait was shorter than that. Where polling was in
/// vain, as it always is while the driver needs this CPU, it is given up for 1, 2, 4 and up to [`MAX_PAUSE`] waits. A
/// queue without requests is not polled at all.
pub struct Polling {
    budget: Duration,
    is_on: bool,
    since: Instant,
    /// Waits before the next attempt, and how many the next failure costs.
    pause: u32,
    next_pause: u32,
}

impl Polling {
    /// How long a queue is polled after a request; zero: never.
    pub fn new(budget: Duration) -> Self {
        Self { budget, is_on: false, since: Instant::now(), pause: 0, next_pause: 1 }
    }

    /// There was a request.
    pub fn found(&mut self) {
        if self.budget.is_zero() {
            return;
        }
        if self.is_on {
            self.next_pause = 1;
        }
        self.since = Instant::now();
    }

    /// Whether to poll again at once.
    pub fn is_on(&mut self) -> bool {
        if self.is_on && self.since.elapsed() >= self.budget {
            self.is_on = false;
            self.pause = self.next_pause;
            self.next_pause = (2 * self.next_pause).min(MAX_PAUSE);
        }
        self.is_on
    }

    /// The queue has waited for a notification, which polling might have replaced.
    pub fn slept(&mut self) {
        if self.pause > 0 {
            self.pause -= 1;
        } else {
            self.is_on = self.since.elapsed() < self.budget;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn polling_that_finds_nothing_is_tried_ever_less_often() {
        let mut polling = Polling::new(HOUR);
        for waits in [1, 2, 4, 8] {
            // The last request is long ago: polling stops.
            polling.is_on = true;
            polling.since = Instant::now().checked_sub(2 * HOUR).unwrap();
            assert!(!polling.is_on());
            polling.found();
            for _ in 0..waits {
                polling.slept();
                assert!(!polling.is_on());
            }
            polling.slept();
            assert!(polling.is_on());
        }
        polling.found();
        assert_eq!(polling.next_pause, 1);
    }

    #[test]
    fn queue_without_budget_or_requests_is_not_polled() {
        let mut never = Polling::new(Duration::ZERO);
        let mut idle = Polling::new(HOUR);
        idle.since = Instant::now().checked_sub(2 * HOUR).unwrap();
        for polling in [&mut never, &mut idle] {
            polling.slept();
            assert!(!polling.is_on());
        }
    }
}
