//! The cached mapping table (CMT): the map entries that are in memory, the least recently used going first.
//!
//! Entries that differ from flash are *dirty*. When one of them goes, every dirty entry of the same translation page
//! is written with it and is clean then (batched updates).

use crate::address::LogicalPage;
use crate::convert::exact;
use crate::error::FtlError;
use crate::table::{Table, prefetch_line};

/// No slot.
const NONE: u32 = u32::MAX;

/// One cached entry; its neighbours by last use, and by translation page when dirty.
#[derive(Debug, Clone, Copy)]
struct Entry {
    page: LogicalPage,
    newer: u32,
    older: u32,
    dirty: bool,
    next_dirty: u32,
    previous_dirty: u32,
}

/// The cached map entries.
pub(super) struct Cache {
    capacity: usize,
    /// log2 of the entries of a translation page.
    entries_shift: u32,
    /// Logical page to slot + 1; 0 is "not cached".
    slot_of: Table<u32>,
    entries: Vec<Entry>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
    /// By translation page: slot + 1 of its first dirty entry.
    dirty: Table<u32>,
}

impl Cache {
    pub fn new(capacity: usize, pages: u64, entries_per_page: u64) -> Result<Self, FtlError> {
        Ok(Self {
            capacity,
            entries_shift: entries_per_page.trailing_zeros(),
            slot_of: Table::zeroed(exact::<usize>(pages))?,
            entries: Vec::new(),
            free: Vec::new(),
            newest: NONE,
            oldest: NONE,
            dirty: Table::zeroed(exact::<usize>(pages.div_ceil(entries_per_page)))?,
        })
    }

    /// The translation page with the entry of a page.
    #[inline(always)]
    pub fn translation_page(&self, page: LogicalPage) -> u64 {
        u64::from(page.0 >> self.entries_shift)
    }

    #[inline(always)]
    pub fn prefetch(&self, page: LogicalPage) {
        self.slot_of.prefetch(page.index());
    }

    #[inline(always)]
    pub fn contains(&self, page: LogicalPage) -> bool {
        self.slot_of[page.index()] != 0
    }

    /// Makes a cached entry the most recently used; false when it is not cached.
    #[inline]
    pub fn touch(&mut self, page: LogicalPage) -> bool {
        let Some(slot) = self.slot_of[page.index()].checked_sub(1) else { return false };
        if self.newest != slot {
            self.unlink(slot);
            self.link_newest(slot);
        }
        true
    }

    /// Drops the least recently used entry when the cache is full. If it is dirty, its translation page must be
    /// written: returns that page, whose entries are clean from now on.
    pub fn make_room(&mut self) -> Option<u64> {
        if self.entries.len() - self.free.len() < self.capacity {
            return None;
        }
        let Entry { page, dirty, .. } = self.entries[self.oldest as usize];
        let translation_page = self.translation_page(page);
        if dirty {
            self.clean(translation_page);
        }
        self.remove(page);
        self.prefetch_oldest();
        dirty.then_some(translation_page)
    }

    /// Prefetches the data for dropping the least recently used entry.
    #[inline]
    fn prefetch_oldest(&self) {
        let Some(&Entry { page, newer, next_dirty, previous_dirty, .. }) = self.entries.get(self.oldest as usize)
        else {
            return;
        };
        self.slot_of.prefetch(page.index());
        for slot in [newer, next_dirty, previous_dirty] {
            prefetch_line(self.entries.as_ptr().wrapping_add(slot as usize));
        }
    }

    /// Adds an entry that is not cached, clean; there must be room.
    pub fn insert(&mut self, page: LogicalPage) {
        let entry = Entry { page, newer: NONE, older: NONE, dirty: false, next_dirty: NONE, previous_dirty: NONE };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.entries[slot as usize] = entry;
                slot
            }
            None => {
                self.entries.push(entry);
                exact::<u32>(self.entries.len()) - 1
            }
        };
        self.slot_of[page.index()] = slot + 1;
        self.link_newest(slot);
    }

    /// Marks an entry as dirty; false if it is not cached.
    #[inline]
    pub fn mark_dirty(&mut self, page: LogicalPage) -> bool {
        let Some(slot) = self.slot_of[page.index()].checked_sub(1) else { return false };
        if self.entries[slot as usize].dirty {
            return true;
        }
        let translation_page = exact::<usize>(self.translation_page(page));
        let head = &mut self.dirty[translation_page];
        let next = head.checked_sub(1).unwrap_or(NONE);
        *head = slot + 1;
        let entry = &mut self.entries[slot as usize];
        (entry.dirty, entry.next_dirty, entry.previous_dirty) = (true, next, NONE);
        if next != NONE {
            self.entries[next as usize].previous_dirty = slot;
        }
        true
    }

    /// Marks all cached entries of a translation page as clean.
    pub fn clean(&mut self, translation_page: u64) {
        let mut at = std::mem::take(&mut self.dirty[exact::<usize>(translation_page)]).checked_sub(1).unwrap_or(NONE);
        while at != NONE {
            let entry = &mut self.entries[at as usize];
            entry.dirty = false;
            at = entry.next_dirty;
        }
    }

    /// Forgets an entry, dirty or not, if it is cached.
    pub fn remove(&mut self, page: LogicalPage) {
        let Some(slot) = self.slot_of[page.index()].checked_sub(1) else { return };
        let Entry { dirty, next_dirty, previous_dirty, .. } = self.entries[slot as usize];
        if dirty {
            if previous_dirty == NONE {
                let translation_page = exact::<usize>(self.translation_page(page));
                self.dirty[translation_page] = next_dirty.wrapping_add(1);
            } else {
                self.entries[previous_dirty as usize].next_dirty = next_dirty;
            }
            if next_dirty != NONE {
                self.entries[next_dirty as usize].previous_dirty = previous_dirty;
            }
        }
        self.unlink(slot);
        self.slot_of[page.index()] = 0;
        self.free.push(slot);
    }

    /// Cached pages and whether they are dirty, the least recently used first.
    pub fn oldest_first(&self) -> impl Iterator<Item = (LogicalPage, bool)> + '_ {
        let first = (self.oldest != NONE).then_some(self.oldest);
        let slots = std::iter::successors(first, |&slot| {
            let newer = self.entries[slot as usize].newer;
            (newer != NONE).then_some(newer)
        });
        slots.map(|slot| (self.entries[slot as usize].page, self.entries[slot as usize].dirty))
    }

    /// Verifies that the lists agree with each other.
    pub fn check(&self) -> Result<(), String> {
        let cached = self.entries.len() - self.free.len();
        if cached > self.capacity {
            return Err(format!("{cached} map entries are cached, {} may be", self.capacity));
        }
        let mut dirty_entries = 0;
        let mut listed = 0;
        for (page, dirty) in self.oldest_first().take(cached + 1) {
            listed += 1;
            dirty_entries += usize::from(dirty);
            let slot = self.slot_of[page.index()].checked_sub(1);
            if slot.is_none_or(|slot| self.entries[slot as usize].page != page) {
                return Err(format!("the cached map entry of page {page} is not found"));
            }
        }
        let found = self.slot_of.iter().filter(|&&slot| slot != 0).count();
        if listed != cached || found != cached {
            return Err(format!("{cached} map entries are cached, {listed} are listed, {found} are found"));
        }
        for (translation_page, &head) in (0..).zip(self.dirty.iter()) {
            let mut at = head.checked_sub(1).unwrap_or(NONE);
            while at != NONE {
                let entry = self.entries[at as usize];
                if !entry.dirty || self.translation_page(entry.page) != translation_page || dirty_entries == 0 {
                    return Err(format!("page {} has the wrong place in the list of dirty pages", entry.page));
                }
                dirty_entries -= 1;
                at = entry.next_dirty;
            }
        }
        if dirty_entries > 0 { Err(format!("{dirty_entries} dirty map entries are not listed")) } else { Ok(()) }
    }

    fn unlink(&mut self, slot: u32) {
        let Entry { newer, older, .. } = self.entries[slot as usize];
        match newer {
            NONE => self.newest = older,
            _ => self.entries[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            _ => self.entries[older as usize].newer = newer,
        }
    }

    fn link_newest(&mut self, slot: u32) {
        let older = std::mem::replace(&mut self.newest, slot);
        let entry = &mut self.entries[slot as usize];
        (entry.newer, entry.older) = (NONE, older);
        match older {
            NONE => self.oldest = slot,
            _ => self.entries[older as usize].newer = slot,
        }
    }
}
