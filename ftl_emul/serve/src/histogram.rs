//! Histograms of the latencies of reads and writes since the start, with fixed bounds.
//!
//! With a clock, times are modelled ones, at any time scale. Bounds never change, so that the counts of a device can be
//! compared over any time and with those of other devices.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ftl_core::Op;
use ftl_core::convert::exact;
use serde_json::{Value, json};

/// Inclusive upper bounds.
pub const BOUNDS_US: [u64; 14] =
    [50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000, 10_000_000];

/// One kind of request.
#[derive(Debug, Default)]
struct Histogram {
    /// Between a bound and the one before; the last is above all of them.
    counts: [AtomicU64; BOUNDS_US.len() + 1],
    sum_ns: AtomicU64,
}

impl Histogram {
    fn record(&self, ns: u64) {
        let bucket = BOUNDS_US.partition_point(|&bound_us| bound_us * 1_000 < ns);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Counts and sum may be a request apart.
    fn to_json(&self) -> Value {
        let counts = self.counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        json!({"counts": counts, "sum_us": self.sum_ns.load(Ordering::Relaxed) as f64 / 1e3})
    }
}

/// Reads and writes of a namespace.
#[derive(Debug, Default)]
pub struct Histograms {
    reads: Histogram,
    writes: Histogram,
}

impl Histograms {
    /// Counts a request, if it is a read or a write.
    #[inline]
    pub fn record(&self, op: Op, took: Duration) {
        match op {
            Op::Read => self.reads.record(exact::<u64>(took.as_nanos())),
            Op::Write => self.writes.record(exact::<u64>(took.as_nanos())),
            Op::Trim | Op::WriteZeroes | Op::Flush => {}
        }
    }

    /// The counts between `BOUNDS_US`.
    pub fn to_json(&self) -> Value {
        json!({"read": self.reads.to_json(), "write": self.writes.to_json()})
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_request_counts_below_the_first_bound_that_it_does_not_exceed(us in 0u64..20_000_000) {
            let histograms = Histograms::default();
            histograms.record(Op::Read, Duration::from_micros(us));
            let found = histograms.to_json();
            let exceeded = BOUNDS_US.iter().filter(|&&bound| us > bound).count();
            let counts: Vec<u64> = serde_json::from_value(found["read"]["counts"].clone()).unwrap();
            prop_assert_eq!(counts.iter().sum::<u64>(), 1);
            prop_assert_eq!(counts[exceeded], 1);
            prop_assert_eq!(found["read"]["sum_us"].as_f64(), Some(us as f64));
        }
    }

    #[test]
    fn reads_and_writes_are_counted_separately() {
        let histograms = Histograms::default();
        for op in [Op::Write, Op::Write, Op::Trim, Op::WriteZeroes, Op::Flush] {
            histograms.record(op, Duration::from_millis(3));
        }
        let found = histograms.to_json();
        let total =
            |kind: &str| found[kind]["counts"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).sum::<u64>();
        assert_eq!((total("read"), total("write")), (0, 2));
        assert_eq!(found["write"]["sum_us"], 6_000.0);
    }
}
