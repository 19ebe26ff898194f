//! Polling for requests, which saves both sides a wakeup and costs a CPU that the client may need.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

/// After unsuccessful polling, the maximum number of sleeps before the next attempt.
const MAX_PAUSE: u32 = 64;

/// Whether a queue or a connection is polled before its thread sleeps.
///
/// It is polled for at most `budget` after each request, as long as the last wait was shorter than that. After
/// unsuccessful polling, which is certain while the client needs this CPU, polling is suspended for 1, 2, 4 and up to
/// [`MAX_PAUSE`] waits. A client without requests is not polled.
#[derive(Debug)]
pub struct Polling {
    budget: Duration,
    is_on: bool,
    /// The next request, if there is one now, is found by polling.
    has_polled: bool,
    since: Instant,
    /// Waits before the next attempt, and how many the next failure costs.
    pause: u32,
    next_pause: u32,
}

impl Polling {
    /// How long to poll after a request; zero: never.
    pub fn new(budget: Duration) -> Self {
        Self { budget, is_on: false, has_polled: false, since: Instant::now(), pause: 0, next_pause: 1 }
    }

    /// There was a request, which is carried out by now.
    pub fn found(&mut self) {
        if self.budget.is_zero() {
            return;
        }
        if self.has_polled {
            self.next_pause = 1;
            self.has_polled = false;
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
        self.has_polled = self.is_on;
        self.is_on
    }

    /// There was a wait, which polling might have replaced.
    pub fn slept(&mut self) {
        if self.pause > 0 {
            self.pause -= 1;
        } else {
            self.is_on = self.since.elapsed() < self.budget;
        }
    }

    /// Receives from a socket, once everything that was received before is carried out: polls it, and then waits.
    pub fn receive(&mut self, socket: impl AsFd, buffer: &mut [u8]) -> io::Result<usize> {
        self.found();
        while self.is_on() {
            match recv(&socket, &mut *buffer, RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN) => std::hint::spin_loop(),
                received => return Ok(received?.1),
            }
        }
        let (_, received) = recv(&socket, buffer, RecvFlags::empty())?;
        self.slept();
        Ok(received)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    /// The last request is so long ago that polling ends.
    fn wait_in_vain(polling: &mut Polling) {
        polling.since = Instant::now().checked_sub(2 * HOUR).unwrap();
        assert!(!polling.is_on());
    }

    #[test]
    fn polling_that_finds_nothing_is_tried_ever_less_often() {
        let mut polling = Polling::new(HOUR);
        polling.slept();
        for waits in [1, 2, 4, 8] {
            // It slept until this request.
            polling.found();
            assert!(polling.is_on());
            wait_in_vain(&mut polling);
            for _ in 0..waits {
                polling.slept();
                polling.found();
                assert!(!polling.is_on());
            }
            polling.slept();
        }
        assert!(polling.is_on());
        polling.found();
        wait_in_vain(&mut polling);
        assert_eq!(polling.pause, 1, "it was worth it the last time");
    }

    #[test]
    fn who_has_no_budget_or_requests_is_not_polled() {
        let mut never = Polling::new(Duration::ZERO);
        let mut idle = Polling::new(HOUR);
        idle.since = Instant::now().checked_sub(2 * HOUR).unwrap();
        for polling in [&mut never, &mut idle] {
            polling.slept();
            assert!(!polling.is_on());
        }
    }

    #[test]
    fn received_bytes_are_the_same_with_and_without_polling() {
        let (mut client, server) = UnixStream::pair().unwrap();
        let mut buffer = [0; 8];
        for polling in [&mut Polling::new(Duration::ZERO), &mut Polling::new(HOUR)] {
            for word in [b"one", b"two"] {
                client.write_all(word).unwrap();
                assert_eq!(polling.receive(&server, &mut buffer).unwrap(), 3);
                assert_eq!(&buffer[..3], word);
            }
        }
        // A socket that is polled still has its end.
        let mut polling = Polling::new(HOUR);
        polling.slept();
        drop(client);
        assert_eq!(polling.receive(&server, &mut buffer).unwrap(), 0);
    }
}
