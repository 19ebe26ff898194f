//! A table whose entries keep their numbers until they are released.

use crate::convert::exact;
use std::ops::{Index, IndexMut};

/// Entries by number; numbers are reused, the last released first.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    entries: Vec<T>,
    free: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slots<T> {
    /// Adds an entry; returns its number.
    #[inline]
    pub fn put(&mut self, entry: T) -> u32 {
        match self.free.pop() {
            Some(slot) => {
                self.entries[slot as usize] = entry;
                slot
            }
            None => {
                self.entries.push(entry);
                exact::<u32>(self.entries.len()) - 1
            }
        }
    }

    /// Releases the number of an entry.
    #[inline]
    pub fn release(&mut self, slot: u32) {
        self.free.push(slot);
    }
}

impl<T> Index<u32> for Slots<T> {
    type Output = T;

    #[inline]
    fn index(&self, slot: u32) -> &T {
        &self.entries[slot as usize]
    }
}

impl<T> IndexMut<u32> for Slots<T> {
    #[inline]
    fn index_mut(&mut self, slot: u32) -> &mut T {
        &mut self.entries[slot as usize]
    }
}
