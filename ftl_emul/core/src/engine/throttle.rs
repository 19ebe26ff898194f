//! Upper bounds on the service of a tenant, on flash and on disks.

use crate::convert::whole;
use crate::error::{FtlError, invalid};

/// Time that a rate-limited tenant may catch up after a delay by something other than its limit.
const LIMIT_BURST_NS: u64 = 1_000_000_000;
/// Later than any clock gets, and so early that durations can be added: 146 years.
const NEVER_NS: u64 = 1 << 62;

/// An upper bound on the service of a tenant.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Limit {
    /// Requests per second.
    pub iops: Option<f64>,
    /// Bytes per second.
    pub bytes_s: Option<f64>,
}

impl Limit {
    /// How much longer a request takes under this limit than under `other`, at least; 0 where one of its bounds is new,
    /// or there is none.
    fn slowdown(&self, other: &Self) -> f64 {
        let bounds = [(self.iops, other.iops), (self.bytes_s, other.bytes_s)];
        let set = bounds.into_iter().filter_map(|(own, other)| own.map(|own| other.unwrap_or(0.0) / own));
        set.min_by(f64::total_cmp).unwrap_or(0.0)
    }

    /// Refuses a limit that is not finite and above 0.
    pub fn validate(&self) -> Result<(), FtlError> {
        for value in [self.iops, self.bytes_s].into_iter().flatten() {
            if !(value.is_finite() && value > 0.0) {
                return invalid("limit", format!("{value} is not a positive number"));
            }
        }
        Ok(())
    }
}

/// Whether a limit lets a tenant's next request start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gate {
    /// It may start now.
    Open,
    /// It waits, and a timer is already set that calls [`Throttle::timer_fired`] in time.
    Shut,
    /// It waits: the caller sets a timer that calls [`Throttle::timer_fired`] at this moment, and looks again.
    ShutUntil(u64),
}

/// A limit, and when it lets the next request start.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Throttle {
    limit: Limit,
    /// When the limit lets the next request start.
    eligible_ns: u64,
    /// Time at which a limit was last set while no request was throttled.
    unheld_ns: u64,
    /// Requests that arrived before this were held up by limits before the present one, until that was set.
    held_before_ns: u64,
    changed_ns: u64,
    /// The moment for which a timer is set.
    timer_ns: Option<u64>,
}

impl Throttle {
    /// Changes the limit from now on.
    ///
    /// What a tenant may catch up on, and what it has to wait for, remain the same number of requests. Before a limit
    /// is set nothing is counted, so a new limit begins with neither.
    pub fn set(&mut self, limit: Limit, now: u64) -> Result<(), FtlError> {
        limit.validate()?;
        if self.is_open(now) {
            self.unheld_ns = now;
        }
        if self.limit != Limit::default() {
            self.held_before_ns = self.held_before_ns.max(self.eligible_ns.min(now));
            self.changed_ns = now;
        }
        let slowdown = limit.slowdown(&self.limit);
        let eligible_ns = self.eligible_ns.max(now.saturating_sub(LIMIT_BURST_NS));
        let scaled_ns = whole(eligible_ns.abs_diff(now) as f64 * slowdown);
        self.eligible_ns =
            if eligible_ns > now { now.saturating_add(scaled_ns).min(NEVER_NS) } else { now.saturating_sub(scaled_ns) };
        self.limit = limit;
        Ok(())
    }

    /// True when the limit lets a request start.
    #[inline]
    pub fn is_open(&self, now: u64) -> bool {
        self.eligible_ns <= now
    }

    /// Whether a request may start, and if not, when to check again.
    #[inline]
    pub fn gate(&mut self, now: u64) -> Gate {
        if self.is_open(now) {
            Gate::Open
        } else if self.timer_ns.is_some_and(|timer_ns| timer_ns <= self.eligible_ns) {
            Gate::Shut
        } else {
            self.timer_ns = Some(self.eligible_ns);
            Gate::ShutUntil(self.eligible_ns)
        }
    }

    /// A timer of [`Gate::ShutUntil`] has fired; one that a new limit brought forward is not waited for.
    pub fn timer_fired(&mut self, now: u64) {
        self.timer_ns = self.timer_ns.filter(|&timer_ns| timer_ns > now);
    }

    /// Time for which the limit has delayed a request that arrived at a given time and may start.
    #[inline]
    pub fn held_ns(&self, now: u64, arrived: u64) -> u64 {
        self.eligible_ns.min(now).saturating_sub(arrived.max(self.unheld_ns))
    }

    /// When limits let go a request that arrived at a moment and may start: at that moment, where none held it up.
    #[inline]
    pub fn released_ns(&self, now: u64, arrived: u64) -> u64 {
        let before_ns = if arrived < self.held_before_ns { self.changed_ns } else { arrived };
        if self.held_ns(now, arrived) > 0 { before_ns.max(self.eligible_ns.min(now)) } else { before_ns }
    }

    /// Counts a request that arrived at a moment against the limit as it starts; returns for how long the limit has
    /// held it up.
    #[inline]
    pub fn start(&mut self, now: u64, arrived: u64, bytes: u64) -> u64 {
        let held_ns = self.held_ns(now, arrived);
        if self.limit != Limit::default() {
            let per_request = self.limit.iops.map_or(0.0, |iops| 1e9 / iops);
            let per_bytes = self.limit.bytes_s.map_or(0.0, |rate| bytes as f64 * 1e9 / rate);
            let cost_ns = whole(per_request.max(per_bytes));
            let begins_ns = self.eligible_ns.max(now.saturating_sub(LIMIT_BURST_NS));
            self.eligible_ns = begins_ns.saturating_add(cost_ns).min(NEVER_NS);
        }
        held_ns
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn iops(iops: f64) -> Limit {
        Limit { iops: Some(iops), bytes_s: None }
    }

    /// A tenant with a request waiting at all times.
    #[derive(Default)]
    struct Tenant {
        throttle: Throttle,
        now: u64,
        timers: Vec<u64>,
    }

    impl Tenant {
        /// Requests that start until `end`.
        fn started_until(&mut self, end: u64) -> u64 {
            let mut count = 0;
            while self.now < end {
                match self.throttle.gate(self.now) {
                    Gate::Open => {
                        self.throttle.start(self.now, self.now, 4096);
                        count += 1;
                        continue;
                    }
                    Gate::ShutUntil(at) => self.timers.push(at),
                    Gate::Shut => {}
                }
                self.now = end.min(*self.timers.iter().min().expect("a timer is set"));
                for _ in self.timers.extract_if(.., |&mut at| at <= self.now) {
                    self.throttle.timer_fired(self.now);
                }
            }
            count
        }
    }

    #[test]
    fn new_limit_begins_without_credit() {
        for before in [Limit::default(), Limit { iops: None, bytes_s: Some(1e9) }] {
            let mut tenant = Tenant { now: 60 * SECOND, ..Tenant::default() };
            tenant.throttle.set(before, 0).unwrap();
            tenant.throttle.set(iops(100.0), tenant.now).unwrap();
            assert_eq!(tenant.started_until(61 * SECOND), 100);
        }
    }

    #[test]
    fn time_before_a_limit_is_not_spent_throttled() {
        let mut throttle = Throttle::default();
        for limit in [iops(10.0), Limit::default()] {
            throttle.set(limit, 5 * SECOND).unwrap();
            assert_eq!(throttle.start(6 * SECOND, SECOND, 4096), 0, "{limit:?}");
        }
        throttle.set(iops(1.0), 7 * SECOND).unwrap();
        throttle.start(7 * SECOND, 0, 4096);
        throttle.set(iops(0.5), 7 * SECOND).unwrap();
        assert_eq!(throttle.start(9 * SECOND, 7 * SECOND, 4096), 2 * SECOND);
    }

    #[test]
    fn limit_that_lets_hardly_anything_through_does() {
        for limit in [iops(1e-300), Limit { iops: None, bytes_s: Some(f64::MIN_POSITIVE) }] {
            let mut throttle = Throttle::default();
            throttle.set(limit, 5 * SECOND).unwrap();
            for _ in 0..3 {
                throttle.start(5 * SECOND, 0, 1 << 20);
                assert!(!throttle.is_open(100 * 365 * 24 * 3600 * SECOND));
            }
            throttle.set(iops(1.0), 6 * SECOND).unwrap();
            throttle.start(6 * SECOND, 0, 1 << 20);
        }
    }

    #[test]
    fn higher_limit_keeps_the_number_of_requests_to_catch_up_on() {
        let mut tenant = Tenant::default();
        tenant.throttle.set(iops(10.0), 0).unwrap();
        assert_eq!(tenant.started_until(SECOND), 10);
        tenant.now = 60 * SECOND;
        tenant.throttle.set(iops(1000.0), tenant.now).unwrap();
        assert_eq!(tenant.started_until(61 * SECOND), 1010);
    }

    #[test]
    fn higher_limit_shortens_a_wait_and_its_timer() {
        let mut throttle = Throttle::default();
        throttle.set(iops(0.1), 0).unwrap();
        throttle.start(0, 0, 4096);
        assert_eq!(throttle.gate(0), Gate::ShutUntil(10 * SECOND));
        throttle.set(iops(1.0), 0).unwrap();
        assert_eq!(throttle.gate(0), Gate::ShutUntil(SECOND));
        assert_eq!(throttle.gate(0), Gate::Shut);
        throttle.timer_fired(SECOND);
        throttle.start(SECOND, SECOND, 4096);
        assert_eq!(throttle.gate(SECOND), Gate::ShutUntil(2 * SECOND));
        throttle.timer_fired(10 * SECOND - 1);
        throttle.start(10 * SECOND - 1, 0, 4096);
        let next = throttle.gate(10 * SECOND - 1);
        assert!(matches!(next, Gate::Open), "{next:?}");
    }

    proptest! {
        #[test]
        fn changes_of_a_limit_grant_no_request_of_their_own(
            limits in prop::collection::vec(1.0..1000.0_f64, 1..50), step in 1..2 * SECOND,
        ) {
            let (mut tenant, mut granted, mut began) = (Tenant::default(), 0.0, 0);
            for limit in limits {
                tenant.throttle.set(iops(limit), tenant.now).unwrap();
                began += tenant.started_until(tenant.now + step);
                granted += limit * step as f64 / 1e9;
                // Times are whole nanoseconds.
                prop_assert!((began as f64 - granted).abs() <= 1.1, "{began} of {granted}");
                prop_assert!(tenant.timers.len() <= 50, "{}", tenant.timers.len());
            }
        }
    }
}
