//! When each die is free, and which are free now.

use fixedbitset::FixedBitSet;

use crate::address::DieId;
use crate::convert::exact;

/// The register becomes free at an unknown time.
pub(super) const NOT_KNOWN: u64 = u64::MAX;

/// The dies of a drive, each busy until some moment. Which of them are free is asked many times for each time that it
/// changes, so it is kept.
#[derive(Debug)]
pub(super) struct DieTimes {
    /// The present, in nanoseconds since the start.
    now: u64,
    busy_until: Vec<u64>,
    /// By die: the time at which the page read from it has left its register.
    register_until: Vec<u64>,
    /// Dies that have completed their operations and have empty registers.
    idle: FixedBitSet,
    /// No other die is free before this time.
    none_before: u64,
}

impl DieTimes {
    pub fn new(dies: u32) -> Self {
        let count = dies as usize;
        let mut idle = FixedBitSet::with_capacity(count);
        idle.insert_range(..);
        Self { now: 0, busy_until: vec![0; count], register_until: vec![0; count], idle, none_before: NOT_KNOWN }
    }

    #[inline]
    pub fn now(&self) -> u64 {
        self.now
    }

    #[inline]
    pub fn advance_to(&mut self, now: u64) {
        self.now = now;
        if now >= self.none_before {
            self.none_before = NOT_KNOWN;
            for die in 0..self.busy_until.len() {
                self.update(die);
            }
        }
    }

    pub fn count(&self) -> usize {
        self.busy_until.len()
    }

    #[inline]
    pub fn idle(&self) -> &FixedBitSet {
        &self.idle
    }

    #[inline]
    pub fn is_idle(&self, die: DieId) -> bool {
        self.idle.contains(die.index())
    }

    /// Time at which the next die will be free, if known.
    pub fn next_free_ns(&self) -> Option<u64> {
        let free_from = (0..self.count()).map(|die| self.free_from(die));
        free_from.filter(|&from| from > self.now && from != NOT_KNOWN).min()
    }

    #[inline]
    pub fn busy_until(&self, die: DieId) -> u64 {
        self.busy_until[die.index()]
    }

    #[inline]
    pub fn set_busy_until(&mut self, die: DieId, until: u64) {
        self.busy_until[die.index()] = until;
        self.update(die.index());
    }

    #[inline]
    pub fn is_register_empty(&self, die: DieId) -> bool {
        self.register_until[die.index()] <= self.now
    }

    #[inline]
    pub fn hold_register(&mut self, die: DieId, until: u64) {
        self.register_until[die.index()] = until;
        self.update(die.index());
    }

    #[inline]
    fn free_from(&self, die: usize) -> u64 {
        self.busy_until[die].max(self.register_until[die])
    }

    #[inline]
    fn update(&mut self, die: usize) {
        let from = self.free_from(die);
        self.idle.set(die, from <= self.now);
        if from > self.now {
            self.none_before = self.none_before.min(from);
        }
    }
}

/// A die of a set of dies.
#[inline]
pub(super) fn die_at(index: usize) -> DieId {
    DieId(exact::<u32>(index))
}
