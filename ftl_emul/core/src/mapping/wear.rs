//! Erase counts of the blocks of a domain, with fast access to the lowest and the highest one.

use std::collections::BTreeMap;

/// Blocks by how often they have been erased.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::mapping) struct Wear(BTreeMap<u32, u32>);

impl Wear {
    /// A block joins the domain.
    pub fn add(&mut self, erases: u32) {
        *self.0.entry(erases).or_default() += 1;
    }

    /// A block leaves the domain.
    pub fn remove(&mut self, erases: u32) {
        let Some(blocks) = self.0.get_mut(&erases) else { unreachable!("every block of a domain was added to it") };
        *blocks -= 1;
        if *blocks == 0 {
            self.0.remove(&erases);
        }
    }

    /// A block of the domain was erased for the `erases`-th time.
    pub fn erased(&mut self, erases: u32) {
        self.remove(erases - 1);
        self.add(erases);
    }

    /// Blocks of the domain.
    pub fn blocks(&self) -> u64 {
        self.0.values().map(|&blocks| u64::from(blocks)).sum()
    }

    /// Erases of the least and of the most worn block; (`u32::MAX`, 0) without blocks.
    pub fn min_max(&self) -> (u32, u32) {
        let least = self.0.keys().next().copied().unwrap_or(u32::MAX);
        (least, self.0.keys().next_back().copied().unwrap_or(0))
    }
}
