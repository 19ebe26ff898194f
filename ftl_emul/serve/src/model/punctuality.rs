//! Measures how late completions are, to release them earlier by that: the time to wake a thread, and the way to the
//! client and back.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use ftl_core::TenantId;
use ftl_core::convert::{signed, unsigned};

/// Largest lead by which completions are released early to compensate for the time to wake a thread.
const MOST_LEAD_NS: i64 = 1_000_000;
/// Larger observations are clipped to this.
const MOST_LATE_NS: i64 = 10_000_000;
/// Weight of one observation of the lead: 1 / this.
const LEAD_INERTIA: i64 = 32;
/// A round trip through socket and server, which the client sees in addition to the modelled time: an initial guess,
/// and the longest pause between a request's end and the arrival of the next one that counts as a round trip.
const ROUND_TRIP_GUESS_NS: i64 = 30_000;
const MOST_PAUSE_NS: u64 = 250_000;
/// Clients that pause briefly before they continue seem to be far away. So no more than this is compensated, or than
/// this fraction of the duration of requests, if that is more.
const SURE_ROUND_TRIP_NS: i64 = 100_000;
const ROUND_TRIP_SHARE: i64 = 8;
/// Weight of one observation of the round trip and of the duration of requests: 1 / this.
const ROUND_TRIP_INERTIA: i64 = 64;

/// Punctuality of completions.
#[derive(Debug, Clone, Copy)]
pub struct Punctuality {
    /// Time by which requests are released early to end in time, nanoseconds.
    pub lead_ns: i64,
    /// Time by which they end early here, so that the client sees them in time.
    pub round_trip_ns: i64,
    /// Requests that waited.
    pub waited: u64,
    /// Sum of their lateness; early ends are negative.
    pub late_ns: i64,
}

/// What was learnt from the requests so far. Times are nanoseconds of wall clock since the start.
#[derive(Debug)]
pub struct Lessons {
    /// Measured time from the release of a request until its thread runs.
    lead_ns: AtomicI64,
    /// What a client sees on top: between the end of a request and the arrival of the one that follows it.
    round_trip_ns: AtomicI64,
    /// Time of requests from arrival until they are due.
    taken_ns: AtomicI64,
    /// By tenant number.
    ends: Vec<Ends>,
    /// Requests that waited, and by how much they ended late, summed up.
    waited: AtomicU64,
    late_ns: AtomicI64,
}

impl Lessons {
    /// None so far, for tenants with numbers below `tenants`.
    #[must_use]
    pub fn new(tenants: usize) -> Self {
        Self {
            lead_ns: AtomicI64::new(ROUND_TRIP_GUESS_NS),
            round_trip_ns: AtomicI64::new(ROUND_TRIP_GUESS_NS),
            taken_ns: AtomicI64::new(0),
            ends: (0..tenants).map(|_| Ends::default()).collect(),
            waited: AtomicU64::new(0),
            late_ns: AtomicI64::new(0),
        }
    }

    /// A request has arrived. A client that sends one as soon as it has the answer to another reveals the round-trip
    /// time, including the cost of serving many at once. Which answer it was is unknown; on average any order does.
    pub fn arrived(&self, tenant: TenantId, at_ns: u64) {
        let pause_ns = self.ends.get(usize::from(tenant.0)).and_then(|ends| ends.pause_before(at_ns));
        if let Some(pause_ns) = pause_ns {
            move_towards(&self.round_trip_ns, signed(pause_ns), ROUND_TRIP_INERTIA);
        }
    }

    /// A request has ended.
    pub fn ended(&self, tenant: TenantId, arrived_ns: u64, due_ns: u64, ended_ns: u64) {
        move_towards(&self.taken_ns, signed(due_ns.saturating_sub(arrived_ns)), ROUND_TRIP_INERTIA);
        if let Some(ends) = self.ends.get(usize::from(tenant.0)) {
            ends.push(ended_ns);
        }
        let late_ns = signed(ended_ns) + self.round_trip_ns() - signed(due_ns);
        self.waited.fetch_add(1, Ordering::Relaxed);
        self.late_ns.fetch_add(late_ns, Ordering::Relaxed);
        let lead = self.lead_ns.load(Ordering::Relaxed);
        let step = late_ns.clamp(-MOST_LATE_NS, MOST_LATE_NS) / LEAD_INERTIA;
        self.lead_ns.store((lead + step).clamp(0, MOST_LEAD_NS), Ordering::Relaxed);
    }

    /// How early to release a request.
    #[must_use]
    pub fn lead_ns(&self) -> u64 {
        unsigned(self.lead_ns.load(Ordering::Relaxed))
    }

    /// How much earlier than modelled a request is to end.
    #[must_use]
    pub fn round_trip_ns(&self) -> i64 {
        let most_ns = SURE_ROUND_TRIP_NS.max(self.taken_ns.load(Ordering::Relaxed) / ROUND_TRIP_SHARE);
        self.round_trip_ns.load(Ordering::Relaxed).clamp(0, most_ns)
    }

    /// All values.
    #[must_use]
    pub fn punctuality(&self) -> Punctuality {
        Punctuality {
            lead_ns: self.lead_ns.load(Ordering::Relaxed),
            round_trip_ns: self.round_trip_ns(),
            waited: self.waited.load(Ordering::Relaxed),
            late_ns: self.late_ns.load(Ordering::Relaxed),
        }
    }
}

/// Moves an average towards an observation. Of two concurrent threads one may be lost, which does not matter.
fn move_towards(average: &AtomicI64, observed: i64, inertia: i64) {
    let known = average.load(Ordering::Relaxed);
    average.store(known + (observed - known) / inertia, Ordering::Relaxed);
}

/// When requests of one namespace ended that none has followed yet, oldest first.
#[derive(Debug, Default)]
struct Ends(Mutex<VecDeque<u64>>);

impl Ends {
    fn push(&self, ended_ns: u64) {
        if let Ok(mut ends) = self.0.lock() {
            forget_old(&mut ends, ended_ns);
            ends.push_back(ended_ns);
        }
    }

    /// How long ago the request ended that the one now arriving follows; None when that is not an answer to it.
    fn pause_before(&self, arrived_ns: u64) -> Option<u64> {
        let mut ends = self.0.lock().ok()?;
        forget_old(&mut ends, arrived_ns);
        ends.pop_front().map(|ended_ns| arrived_ns.saturating_sub(ended_ns))
    }
}

fn forget_old(ends: &mut VecDeque<u64>, now_ns: u64) {
    while ends.front().is_some_and(|&ended_ns| ended_ns + MOST_PAUSE_NS < now_ns) {
        ends.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENANT: TenantId = TenantId(0);
    const TAKEN_NS: u64 = 1_200_000;

    /// A client with one request at a time that answers after `pause_ns`, with threads that run `wake_ns` after their release.
    fn served(pause_ns: u64, wake_ns: u64) -> Lessons {
        let lessons = Lessons::new(1);
        let mut arrived_ns = 0;
        for _ in 0..2000 {
            lessons.arrived(TENANT, arrived_ns);
            let due_ns = arrived_ns + TAKEN_NS;
            let ended_ns = due_ns - lessons.lead_ns() + wake_ns;
            lessons.ended(TENANT, arrived_ns, due_ns, ended_ns);
            arrived_ns = ended_ns + pause_ns;
        }
        lessons
    }

    #[test]
    fn delay_to_the_client_is_compensated() {
        let found = served(80_000, 20_000).punctuality();
        assert!((found.round_trip_ns - 80_000).abs() < 2000, "{found:?}");
        assert!((found.lead_ns - 100_000).abs() < 4000, "{found:?}");
    }

    #[test]
    fn compensation_never_exceeds_the_known_delay() {
        let most_ns = TAKEN_NS as i64 / ROUND_TRIP_SHARE;
        let found = served(most_ns as u64 - 10_000, 20_000).punctuality();
        assert!((found.round_trip_ns - (most_ns - 10_000)).abs() < 2000, "{found:?}");
        let found = served(most_ns as u64 + 50_000, 20_000).punctuality();
        assert!((most_ns - 2000..=most_ns).contains(&found.round_trip_ns), "{found:?}");
    }

    #[test]
    fn think_time_is_not_taken_for_transport_delay() {
        assert_eq!(served(400_000, 20_000).punctuality().round_trip_ns, ROUND_TRIP_GUESS_NS);
    }
}
