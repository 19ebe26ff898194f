//! Location of pages, in the data block of their logical block or in a log block, and programming them there.

use bytemuck::{Pod, Zeroable};

use crate::address::{BlockId, DieId, LogicalBlockId, MapEntry, PhysicalPage, indexed_by};
use crate::mapping::log_block::{LogScheme, Store, Write};
use crate::nand::Nand;

/// A block's worth of pages of a tenant's namespace, and their location.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(in crate::mapping) struct LogicalBlock {
    /// Its data block; [`BlockId::NONE`] before the first write.
    pub data: BlockId,
    /// The first page that can still be programmed in the data block: pages are programmed in ascending order.
    pub next_page: u32,
    /// Pages of the data block that were programmed.
    pub programmed: u32,
    /// Its own log block, in schemes that have one; else [`BlockId::NONE`].
    pub log: BlockId,
    /// Unused; the owner in snapshots of earlier versions.
    unused: u32,
}

impl LogicalBlock {
    pub(super) const NONE: Self =
        Self { data: BlockId::NONE, next_page: 0, programmed: 0, log: BlockId::NONE, unused: 0 };
}

/// Content of a log block.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(in crate::mapping) struct LogUse {
    /// The logical block it was opened for; [`LogicalBlockId::NONE`] when it takes pages of any.
    pub logical: LogicalBlockId,
    /// Pages programmed.
    pub written: u32,
    /// Of these, leading ones that are at their own offset.
    pub in_order: u32,
}

impl LogUse {
    pub(super) const NONE: Self = Self { logical: LogicalBlockId::NONE, written: 0, in_order: 0 };
}

indexed_by!(BlockId, LogUse);
indexed_by!(LogicalBlockId, LogicalBlock);

impl<S: LogScheme> Store<S> {
    /// Word and mask of a page's bit in the data block; the one for log blocks is `words_per_block` further.
    #[inline(always)]
    pub(super) fn bit(&self, logical: LogicalBlockId, offset: u32) -> (usize, u64) {
        (2 * logical.index() * self.division.words_per_block + offset as usize / 64, 1 << (offset % 64))
    }

    #[inline(always)]
    pub(super) fn holds(&self, logical: LogicalBlockId, offset: u32) -> bool {
        let (word, mask) = self.bit(logical, offset);
        (self.bits[word] | self.bits[word + self.division.words_per_block]) & mask != 0
    }

    /// The physical page that holds a page, if any.
    #[inline]
    pub(super) fn physical(&self, logical: LogicalBlockId, offset: u32) -> Option<PhysicalPage> {
        let (word, mask) = self.bit(logical, offset);
        if self.bits[word] & mask != 0 {
            return Some(self.division.physical(self.logical[logical].data, offset));
        }
        let in_log = self.bits[word + self.division.words_per_block] & mask != 0;
        if in_log { self.log_page[self.division.logical(logical, offset)].get() } else { None }
    }

    #[inline]
    pub(super) fn die_of(&self, physical: PhysicalPage) -> DieId {
        let block = self.division.block(physical);
        self.die_of_page(block, self.division.page_of_block(block, physical))
    }

    /// Invalidates the previous content of a page.
    #[inline(always)]
    pub(super) fn supersede(&mut self, logical: LogicalBlockId, offset: u32) {
        let (word, mask) = self.bit(logical, offset);
        let in_log = word + self.division.words_per_block;
        if self.bits[word] & mask != 0 {
            self.bits[word] &= !mask;
            self.blocks[self.logical[logical].data].valid -= 1;
        } else if self.bits[in_log] & mask != 0 {
            self.bits[in_log] &= !mask;
            let entry = &mut self.log_page[self.division.logical(logical, offset)];
            let block = self.division.block(std::mem::replace(entry, MapEntry::NONE).page_or_last());
            self.blocks[block].valid -= 1;
        }
    }

    /// Programs a page in the data block, if its place there is still free.
    #[inline(always)]
    fn write_in_place<N: Nand>(&mut self, write: Write, nand: &mut N) -> bool {
        let Write { logical, offset, .. } = write;
        if self.logical[logical].data == BlockId::NONE {
            self.open_data(write, nand);
        }
        let LogicalBlock { data, next_page, .. } = self.logical[logical];
        if offset < next_page {
            return false;
        }
        nand.program(self.die_of_page(data, offset));
        #[cfg(test)]
        self.flash.program(data, offset, (logical, offset));
        self.supersede(logical, offset);
        let (word, mask) = self.bit(logical, offset);
        self.bits[word] |= mask;
        self.blocks[data].valid += 1;
        let entry = &mut self.logical[logical];
        entry.next_page = offset + 1;
        entry.programmed += 1;
        true
    }

    /// Writes a page to the data block if its place is free there, else where the scheme decides.
    pub(in crate::mapping) fn place<N: Nand>(&mut self, write: Write, nand: &mut N) {
        if !self.write_in_place(write, nand) {
            S::write_to_log(self, write, nand);
        }
    }

    /// Programs the next page of a log block, which must have one.
    #[inline(always)]
    pub(in crate::mapping) fn append<N: Nand>(&mut self, log: BlockId, write: Write, nand: &mut N) {
        let Write { logical, offset, .. } = write;
        self.supersede(logical, offset);
        let used = &mut self.log_use[log];
        let at = used.written;
        used.in_order += u32::from(used.in_order == at && at == offset);
        used.written += 1;
        nand.program(self.die_of_page(log, at));
        #[cfg(test)]
        self.flash.program(log, at, (logical, offset));
        let physical = self.division.physical(log, at);
        let page = self.division.logical(logical, offset);
        self.log_page[page] = MapEntry::of(physical);
        self.reverse[physical] = page;
        self.blocks[log].valid += 1;
        let (word, mask) = self.bit(logical, offset);
        self.bits[word + self.division.words_per_block] |= mask;
    }

    /// Pages of a block.
    #[inline(always)]
    pub(in crate::mapping) fn pages_of_block(&self) -> u32 {
        self.block_pages
    }

    /// The logical block whose page is valid at a place of a log block.
    pub(in crate::mapping) fn logical_at(&self, log: BlockId, at: u32) -> Option<LogicalBlockId> {
        let physical = self.division.physical(log, at);
        let page = self.reverse[physical];
        // Fields that no valid page uses are not checked when a snapshot is read.
        let valid = self.log_page.get(page.index()).is_some_and(|&at| at == MapEntry::of(physical));
        valid.then(|| self.division.logical_block(page))
    }
}
