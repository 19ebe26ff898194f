//! Statistics of the last seconds: latencies as seen by clients, and times for which limits throttled requests.
//!
//! Requests are counted in histograms that only grow, without a lock. Once a second their state is saved; the
//! difference between now and ten seconds ago is the recent activity. The histograms are HDR histograms for concurrent
//! writers: those of the crate `hdrhistogram` need a lock, or a recorder for each thread and namespace.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use ftl_core::Op;
use ftl_core::convert::{exact, whole};
use ftl_core::engine::QueueCounters;
use serde_json::{Value, json};

use crate::namespace::Namespace;
use crate::server::Server;
use crate::threads::lock;

/// Length of the recorded past.
const WINDOW: Duration = Duration::from_secs(10);
/// Interval at which the state is saved.
const STEP: Duration = Duration::from_secs(1);

/// Values are kept to one part in 64, in units of 256 ns, up to more than an hour.
const UNIT_BITS: u32 = 8;
const PART_BITS: u32 = 6;
const PARTS: usize = 1 << PART_BITS;
const OCTAVES: usize = 30;
const BUCKETS: usize = PARTS * (OCTAVES + 1);

const PERCENTILES: [(&str, f64); 3] = [("p50", 0.50), ("p99", 0.99), ("p999", 0.999)];

fn bucket_of(ns: u64) -> usize {
    let value = ns >> UNIT_BITS;
    let octave = (u64::BITS - value.leading_zeros()).saturating_sub(PART_BITS + 1);
    // In octave 0 and 1 a bucket is one unit wide, from then on twice as wide each time.
    let index = (octave as usize) * PARTS + (value >> octave) as usize;
    index.min(BUCKETS - 1)
}

/// The middle of a bucket.
fn value_of(bucket: usize) -> f64 {
    let octave = (bucket / PARTS).saturating_sub(1);
    let part = bucket - octave * PARTS;
    let width = (1u64 << octave) as f64;
    (part as f64 + 0.5) * width * f64::from(1 << UNIT_BITS)
}

/// One kind of request.
#[derive(Debug)]
struct Growing {
    counts: Box<[AtomicU32]>,
    sum_ns: AtomicU64,
}

impl Default for Growing {
    fn default() -> Self {
        Self { counts: (0..BUCKETS).map(|_| AtomicU32::new(0)).collect(), sum_ns: AtomicU64::new(0) }
    }
}

impl Growing {
    fn record(&self, ns: u64) {
        self.counts[bucket_of(ns)].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    fn now(&self) -> Counts {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        Counts { counts, sum_ns: self.sum_ns.load(Ordering::Relaxed) }
    }
}

/// The state of one kind at a moment. Counts and sum may be a request apart, which shows in the mean only.
#[derive(Debug, PartialEq, Eq)]
struct Counts {
    counts: Box<[u32]>,
    sum_ns: u64,
}

impl Counts {
    fn since(&self, before: Option<&Self>) -> Value {
        let earlier = |bucket: usize| before.map_or(0, |b| b.counts[bucket]);
        // Counts go round after 2^32 requests in one bucket, their differences do not.
        let counts: Vec<u32> = self.counts.iter().enumerate().map(|(i, n)| n.wrapping_sub(earlier(i))).collect();
        let count: u64 = counts.iter().map(|&n| u64::from(n)).sum();
        if count == 0 {
            return json!({"count": 0, "mean": null, "p50": null, "p99": null, "p999": null});
        }
        let sum_ns = self.sum_ns.wrapping_sub(before.map_or(0, |b| b.sum_ns));
        let mut fields = json!({"count": count, "mean": sum_ns as f64 / count as f64 / 1e3});
        for (name, share) in PERCENTILES {
            let wanted = whole((count as f64 * share).ceil()).max(1);
            let mut seen = 0;
            let at = counts.iter().position(|&n| {
                seen += u64::from(n);
                seen >= wanted
            });
            fields[name] = json!(at.map(|bucket| value_of(bucket) / 1e3));
        }
        fields
    }
}

/// Latencies of a namespace's reads and writes.
#[derive(Debug, Default)]
pub struct Latencies {
    reads: Growing,
    writes: Growing,
}

impl Latencies {
    /// Counts a request, if it is a read or a write.
    #[inline]
    pub fn record(&self, op: Op, took: Duration) {
        match op {
            Op::Read => self.reads.record(exact::<u64>(took.as_nanos())),
            Op::Write => self.writes.record(exact::<u64>(took.as_nanos())),
            Op::Trim | Op::WriteZeroes | Op::Flush => {}
        }
    }
}

/// Time for which limits have throttled the requests of a namespace since the start.
#[derive(Debug, Clone, Copy, Default)]
pub struct Throttled {
    /// Requests completed.
    pub requests: u64,
    /// Sum of their waits, modelled nanoseconds.
    pub wait_ns: u64,
}

impl Throttled {
    /// From the engine's counters.
    #[must_use]
    pub fn of(counters: &QueueCounters) -> Self {
        Self { requests: counters.completed.iter().sum(), wait_ns: counters.throttled_ns }
    }
}

#[derive(Debug)]
struct Past {
    at: Instant,
    /// By serial number of the namespace; shared with the second before where nothing happened.
    namespaces: HashMap<u64, Arc<(Counts, Counts)>>,
    /// Likewise; empty without a clock.
    throttled: HashMap<u64, Throttled>,
}

/// The states put aside, oldest first.
#[derive(Debug)]
pub struct History(Mutex<VecDeque<Past>>);

impl Default for History {
    /// An empty past.
    fn default() -> Self {
        let start = Past { at: Instant::now(), namespaces: HashMap::new(), throttled: HashMap::new() };
        Self(Mutex::new(VecDeque::from([start])))
    }
}

impl History {
    /// Puts the present state aside, if it is time.
    pub fn keep_up(&self, server: &Server) {
        let now = Instant::now();
        let before = {
            let past = self.past();
            let last = past.back();
            if last.is_some_and(|last| now - last.at < STEP) {
                return;
            }
            last.map(|last| last.namespaces.clone())
        };
        let namespaces = server.namespaces();
        let present = |namespace: &Arc<Namespace>| {
            let state = (namespace.latencies.reads.now(), namespace.latencies.writes.now());
            let state = match before.as_ref().and_then(|before| before.get(&namespace.serial)) {
                Some(same) if **same == state => Arc::clone(same),
                _ => Arc::new(state),
            };
            (namespace.serial, state)
        };
        let throttled = namespaces.iter().map(|n| n.serial).zip(server.throttled(&namespaces)).collect();
        let namespaces = namespaces.iter().map(present).collect();
        let mut past = self.past();
        past.push_back(Past { at: now, namespaces, throttled });
        while past.get(1).is_some_and(|second| now - second.at >= WINDOW) {
            past.pop_front();
        }
    }

    /// Activity of a namespace in the last seconds; `throttled` is its present state.
    pub fn of(&self, namespace: &Namespace, throttled: Option<Throttled>) -> Value {
        let past = self.past();
        let before = past.front();
        let counts = before.and_then(|before| before.namespaces.get(&namespace.serial));
        let wait_us = throttled.map(|now| {
            let then = before.and_then(|before| before.throttled.get(&namespace.serial)).copied().unwrap_or_default();
            let requests = now.requests.saturating_sub(then.requests);
            (requests > 0).then(|| now.wait_ns.saturating_sub(then.wait_ns) as f64 / requests as f64 / 1e3)
        });
        json!({
            "window_s": before.map_or(0.0, |before| before.at.elapsed().as_secs_f64()),
            "latency_us": {
                "read": namespace.latencies.reads.now().since(counts.map(|c| &c.0)),
                "write": namespace.latencies.writes.now().since(counts.map(|c| &c.1)),
            },
            "throttle_wait_us": wait_us.flatten(),
        })
    }

    fn past(&self) -> MutexGuard<'_, VecDeque<Past>> {
        lock(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn values_are_kept_within_one_part_in_64(ns in 0u64..3_600_000_000_000) {
            let kept = value_of(bucket_of(ns));
            let unit = f64::from(1 << UNIT_BITS);
            prop_assert!((kept - ns as f64).abs() <= unit.max(ns as f64 / 64.0), "{ns} is kept as {kept}");
        }

        #[test]
        fn buckets_are_in_order(ns in 0u64..u64::MAX / 2, more in 0u64..u64::MAX / 2) {
            prop_assert!(bucket_of(ns) <= bucket_of(ns + more));
        }
    }

    #[test]
    fn older_values_are_left_out() {
        let growing = Growing::default();
        growing.record(1_000_000_000);
        let before = growing.now();
        for ms in 1..=100 {
            growing.record(ms * 1_000_000);
        }
        let fields = growing.now().since(Some(&before));
        assert_eq!(fields["count"], 100);
        assert!((fields["mean"].as_f64().unwrap() - 50_500.0).abs() < 1.0);
        for (name, expected) in [("p50", 50_000.0), ("p99", 99_000.0), ("p999", 100_000.0)] {
            let found = fields[name].as_f64().unwrap();
            assert!((found / expected - 1.0).abs() < 0.02, "{name} {found}");
        }
        assert_eq!(before.since(Some(&before))["mean"], Value::Null);
    }
}
