//! Latency histograms per kind of operation.

/// A histogram of nanoseconds.
pub type Histogram = hdrhistogram::Histogram<u64>;

/// Values are kept to two significant digits from 100 ns to 10 hours; longer ones count as 10 hours.
const LOWEST_NS: u64 = 100;
const HIGHEST_NS: u64 = 36_000_000_000_000;

/// Latencies of reads and of writes, from arrival to completion.
#[derive(Debug, Clone)]
pub struct LatencyRecord {
    reads: Histogram,
    writes: Histogram,
}

impl Default for LatencyRecord {
    fn default() -> Self {
        Self::new()
    }
}

impl LatencyRecord {
    /// No latencies are recorded.
    #[must_use]
    pub fn new() -> Self {
        let Ok(empty) = Histogram::new_with_bounds(LOWEST_NS, HIGHEST_NS, 2) else {
            unreachable!("the bounds are constants that fit two digits")
        };
        Self { reads: empty.clone(), writes: empty }
    }

    #[inline]
    pub(crate) fn read(&mut self, ns: u64) {
        self.reads.saturating_record(ns);
    }

    #[inline]
    pub(crate) fn write(&mut self, ns: u64) {
        self.writes.saturating_record(ns);
    }

    /// Forgets everything, for a new window.
    pub fn clear(&mut self) {
        self.reads.reset();
        self.writes.reset();
    }

    /// The read latencies.
    #[must_use]
    pub fn reads(&self) -> &Histogram {
        &self.reads
    }

    /// The write latencies.
    #[must_use]
    pub fn writes(&self) -> &Histogram {
        &self.writes
    }
}
