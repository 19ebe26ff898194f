//! Where pages stand: in the data block of their logical block, or in a log block; and programming them there.

use bytemuck::{Pod, Zeroable};

use crate::block::NO_BLOCK;
use crate::convert::exact;
use crate::mapping::log_block::{LogScheme, Store, Write};
use crate::nand::Nand;

/// Owner of logical blocks that belong to nobody.
pub(super) const NOBODY: u16 = u16::MAX;

/// As many pages of a tenant's namespace as a block has, and where they are.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(in crate::mapping) struct LogicalBlock {
    /// Its data block; [`NO_BLOCK`] before the first write.
    pub data: u32,
    /// The first page that can still be programmed in the data block: pages are programmed in ascending order.
    pub next_page: u32,
    /// Pages of the data block that were programmed.
    pub programmed: u32,
    /// Its own log block, in schemes where it has one; else [`NO_BLOCK`].
    pub log: u32,
    /// Owner.
    pub tenant: u16,
    padding: u16,
}

impl LogicalBlock {
    pub(super) const NONE: Self =
        Self { data: NO_BLOCK, next_page: 0, programmed: 0, log: NO_BLOCK, tenant: NOBODY, padding: 0 };

    /// A tenant's, without a page.
    pub(super) fn of(tenant: u16) -> Self {
        Self { tenant, ..Self::NONE }
    }
}

/// What is written in a log block.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(in crate::mapping) struct LogUse {
    /// The logical block it was opened for; [`NO_BLOCK`] when it takes pages of any.
    pub logical: u32,
    /// Pages programmed.
    pub written: u32,
    /// Of these, leading ones that stand at their own offset.
    pub in_order: u32,
}

impl LogUse {
    pub(super) const NONE: Self = Self { logical: NO_BLOCK, written: 0, in_order: 0 };
}

impl<S: LogScheme> Store<S> {
    /// Word and mask of a page's bit in the data block; the one for log blocks is `words_per_block` further.
    #[inline(always)]
    pub(super) fn bit(&self, logical: u32, offset: u32) -> (usize, u64) {
        (2 * logical as usize * self.division.words_per_block + offset as usize / 64, 1 << (offset % 64))
    }

    #[inline(always)]
    pub(super) fn holds(&self, logical: u32, offset: u32) -> bool {
        let (word, mask) = self.bit(logical, offset);
        (self.bits[word] | self.bits[word + self.division.words_per_block]) & mask != 0
    }

    /// The physical page that holds a page, if any.
    #[inline]
    pub(super) fn physical(&self, logical: u32, offset: u32) -> Option<u64> {
        let (word, mask) = self.bit(logical, offset);
        if self.bits[word] & mask != 0 {
            return Some(self.division.physical(self.logical[logical as usize].data, offset));
        }
        let in_log = self.bits[word + self.division.words_per_block] & mask != 0;
        in_log.then(|| u64::from(self.log_page[exact::<usize>(self.division.physical(logical, offset))]) - 1)
    }

    #[inline]
    pub(super) fn die_of(&self, physical: u64) -> u32 {
        let block = self.division.block(physical);
        self.die_of_page(block, exact::<u32>(physical - self.division.physical(block, 0)))
    }

    /// Takes note that what a page held until now is void.
    #[inline(always)]
    pub(super) fn supersede(&mut self, logical: u32, offset: u32) {
        let (word, mask) = self.bit(logical, offset);
        let in_log = word + self.division.words_per_block;
        if self.bits[word] & mask != 0 {
            self.bits[word] &= !mask;
            self.blocks[self.logical[logical as usize].data as usize].valid -= 1;
        } else if self.bits[in_log] & mask != 0 {
            self.bits[in_log] &= !mask;
            let entry = &mut self.log_page[exact::<usize>(self.division.physical(logical, offset))];
            let block = self.division.block(u64::from(std::mem::take(entry) - 1));
            self.blocks[block as usize].valid -= 1;
        }
    }

    /// Programs a page in the data block, if its place there is still free.
    #[inline(always)]
    fn write_in_place<N: Nand>(&mut self, write: Write, nand: &mut N) -> bool {
        let Write { logical, offset, .. } = write;
        if self.logical[logical as usize].data == NO_BLOCK {
            self.open_data(write, nand);
        }
        let LogicalBlock { data, next_page, .. } = self.logical[logical as usize];
        if offset < next_page {
            return false;
        }
        nand.program(self.die_of_page(data, offset));
        #[cfg(test)]
        self.flash.program(data, offset, (logical, offset));
        self.supersede(logical, offset);
        let (word, mask) = self.bit(logical, offset);
        self.bits[word] |= mask;
        self.blocks[data as usize].valid += 1;
        let entry = &mut self.logical[logical as usize];
        entry.next_page = offset + 1;
        entry.programmed += 1;
        true
    }

    /// Writes a page in the data block if there is room, and else where the scheme says.
    pub(in crate::mapping) fn place<N: Nand>(&mut self, write: Write, nand: &mut N) {
        if !self.write_in_place(write, nand) {
            S::write_to_log(self, write, nand);
        }
    }

    /// Programs the next page of a log block, which must have one.
    #[inline(always)]
    pub(in crate::mapping) fn append<N: Nand>(&mut self, log: u32, write: Write, nand: &mut N) {
        let Write { logical, offset, .. } = write;
        self.supersede(logical, offset);
        let used = &mut self.log_use[log as usize];
        let at = used.written;
        used.in_order += u32::from(used.in_order == at && at == offset);
        used.written += 1;
        nand.program(self.die_of_page(log, at));
        #[cfg(test)]
        self.flash.program(log, at, (logical, offset));
        let physical = self.division.physical(log, at);
        let page = self.division.physical(logical, offset);
        self.log_page[exact::<usize>(page)] = exact::<u32>(physical) + 1;
        self.reverse[exact::<usize>(physical)] = exact::<u32>(page);
        self.blocks[log as usize].valid += 1;
        let (word, mask) = self.bit(logical, offset);
        self.bits[word + self.division.words_per_block] |= mask;
    }

    /// Pages of a block.
    #[inline(always)]
    pub(in crate::mapping) fn pages_of_block(&self) -> u32 {
        self.block_pages
    }

    /// The logical block whose page is valid at a place of a log block.
    pub(in crate::mapping) fn logical_at(&self, log: u32, at: u32) -> Option<u32> {
        let physical = exact::<u32>(self.division.physical(log, at));
        let page = self.reverse[physical as usize];
        // What no valid page needs is not checked when a snapshot is read.
        let valid = self.log_page.get(page as usize).is_some_and(|&at| at == physical + 1);
        valid.then(|| self.division.block(u64::from(page)))
    }
}
