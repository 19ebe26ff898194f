//! The speed of memory alone: random read-modify-writes of a flat table as large as the drive's map.

use cpu_time::ProcessTime;
use ftl_core::convert::exact;
use ftl_core::table::Table as FlatTable;
use rand_core::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::below;

const UPDATES: u64 = 100_000_000;
const BATCH: usize = 64;

/// A table of u32 on huge pages, as the map is.
pub struct Table {
    entries: FlatTable<u32>,
    rng: Xoshiro256PlusPlus,
}

impl Table {
    /// A table that is completely in memory.
    pub fn new(entries: u64) -> Self {
        let mut table = FlatTable::zeroed(exact::<usize>(entries)).expect("memory for the table");
        table.iter_mut().zip(0..).for_each(|(entry, n)| *entry = n);
        Self { entries: table, rng: Xoshiro256PlusPlus::seed_from_u64(1) }
    }

    /// One update after the other; the processor overlaps them as far as it can.
    pub fn plain_updates_per_s(&mut self) -> f64 {
        let n = self.entries.len() as u64;
        let start = ProcessTime::now();
        for _ in 0..UPDATES {
            let slot = exact::<usize>(below(&mut self.rng, n));
            self.entries[slot] = self.entries[slot].wrapping_add(1);
        }
        UPDATES as f64 / start.elapsed().as_secs_f64()
    }

    /// In batches whose cache lines are prefetched: the maximum that the memory system delivers.
    pub fn prefetched_updates_per_s(&mut self) -> f64 {
        let n = self.entries.len() as u64;
        let mut batch = [0; BATCH];
        let start = ProcessTime::now();
        for _ in 0..UPDATES / BATCH as u64 {
            for slot in &mut batch {
                *slot = exact::<usize>(below(&mut self.rng, n));
                self.entries.prefetch(*slot);
            }
            for &slot in &batch {
                self.entries[slot] = self.entries[slot].wrapping_add(1);
            }
        }
        UPDATES as f64 / start.elapsed().as_secs_f64()
    }
}
