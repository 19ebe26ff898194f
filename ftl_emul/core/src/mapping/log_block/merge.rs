//! Merges: data block and log block become one data block again.
//!
//! *Switch*: the log block has its pages in order and no other page is valid; it becomes the data block.
//! *Partial*: it has the first pages in order; the rest is copied behind them, then it becomes the data block.
//! *Full*: everything is copied to a free block. (J. Kim et al., "A space-efficient flash translation layer for
//! `CompactFlash` systems", 2002; S.-W. Lee et al., "A log buffer-based flash translation layer using fully-associative
//! sector translation", 2007.)

use crate::address::{BlockId, DieId, LogicalBlockId, MapEntry};
use crate::block::BlockState;
use crate::convert::exact;
use crate::mapping::log_block::{LogScheme, LogUse, LogicalBlock, Store};
use crate::nand::Nand;
use crate::op::TenantId;

/// Why a log block is merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A host write needs room.
    Collect,
    /// A move takes a block from its owner.
    Reclaim,
}

impl<S: LogScheme> Store<S> {
    /// Switch or partial merge: a log block that contains pages of one logical block in order, and is in no list,
    /// becomes its data block.
    pub(in crate::mapping) fn merge_into_log<N: Nand>(
        &mut self,
        log: BlockId,
        cause: TenantId,
        purpose: Purpose,
        nand: &mut N,
    ) {
        let before = nand.overhead_ns();
        let LogUse { logical, written, .. } = std::mem::replace(&mut self.log_use[log], LogUse::NONE);
        self.note_victim(cause, self.blocks[log].valid);
        let copies = self.copy_logical(logical, log, nand);
        self.replace_data(logical, log, written, copies, cause, nand);
        self.note_copies(logical, copies, cause, purpose);
        let took = nand.overhead_ns() - before;
        let merges = &mut self.tenant(cause).mapping_counters;
        if copies == 0 {
            merges.switch_merges += 1;
            merges.switch_merge_ns += took;
        } else {
            merges.partial_merges += 1;
            merges.partial_merge_ns += took;
        }
    }

    /// The part of a full merge that concerns one logical block: all its pages go to a free block. Returns the pages
    /// copied; log blocks that held some are for the caller to erase.
    pub(in crate::mapping) fn merge_logical<N: Nand>(
        &mut self,
        logical: LogicalBlockId,
        cause: TenantId,
        purpose: Purpose,
        nand: &mut N,
    ) {
        let data = self.logical[logical].data;
        let (domain, near) = (self.blocks[data].pool, self.cluster_of(data));
        let target = self.take_near(domain, near);
        let copies = self.copy_logical(logical, target, nand);
        self.replace_data(logical, target, 0, copies, cause, nand);
        self.note_copies(logical, copies, cause, purpose);
        self.tenant(cause).mapping_counters.merged_blocks += 1;
    }

    /// Counts a full merge, which began when copies and erases had taken `before`.
    pub(in crate::mapping) fn note_full_merge<N: Nand>(&mut self, cause: TenantId, before: u64, nand: &N) {
        let merges = &mut self.tenant(cause).mapping_counters;
        merges.full_merges += 1;
        merges.full_merge_ns += nand.overhead_ns() - before;
    }

    /// Counts a log block that is about to be merged or erased, by the pages still valid in it.
    pub(in crate::mapping) fn note_victim(&mut self, cause: TenantId, valid: u32) {
        self.tenant(cause).counters.victim_histogram[valid as usize] += 1;
    }

    /// Copies every page of a logical block to `target`, except those that are already in it; from then on they count
    /// as in the data block. Returns their number.
    fn copy_logical<N: Nand>(&mut self, logical: LogicalBlockId, target: BlockId, nand: &mut N) -> u32 {
        #[cfg(test)]
        self.copy_on_flash(logical, target);
        let words = self.division.words_per_block;
        let first = 2 * logical.index() * words;
        let data = self.logical[logical].data;
        let mut copies = 0;
        for word in 0..words {
            let in_data = self.bits[first + word];
            copies += in_data.count_ones();
            if N::TIMED {
                self.count_copies(data, word, in_data, target);
            }
            let mut in_log = std::mem::take(&mut self.bits[first + words + word]);
            self.bits[first + word] = in_data | in_log;
            while in_log != 0 {
                let offset = exact::<u32>(word) * 64 + in_log.trailing_zeros();
                in_log &= in_log - 1;
                let entry = &mut self.log_page[self.division.logical(logical, offset)];
                let physical = std::mem::replace(entry, MapEntry::NONE).page_or_last();
                let block = self.division.block(physical);
                self.blocks[block].valid -= 1;
                if block == target {
                    continue;
                }
                copies += 1;
                if N::TIMED {
                    let page = self.division.page_of_block(block, physical);
                    self.count_copy(block, page, target, offset, 1);
                }
            }
        }
        if N::TIMED && copies > 0 {
            self.carry_out_copies(target, nand);
        }
        copies
    }

    /// Makes `target`, which holds every page of a logical block, its data block.
    fn replace_data<N: Nand>(
        &mut self,
        logical: LogicalBlockId,
        target: BlockId,
        written: u32,
        copies: u32,
        cause: TenantId,
        nand: &mut N,
    ) {
        let words = self.division.words_per_block;
        let first = 2 * logical.index() * words;
        let in_data = &self.bits[first..first + words];
        let valid = in_data.iter().map(|word| word.count_ones()).sum();
        let last = in_data.iter().rposition(|&word| word != 0);
        let end = last.map_or(0, |word| exact::<u32>(word) * 64 + 64 - in_data[word].leading_zeros());
        let entry = &mut self.logical[logical];
        let LogicalBlock { data, programmed, .. } = *entry;
        entry.data = target;
        entry.next_page = end.max(written);
        entry.programmed = written + copies;
        self.blocks[target].valid = valid;
        self.blocks[target].state = BlockState::Full;
        let domain = self.blocks[target].pool;
        self.domains[domain as usize].data_blocks += 1;
        debug_assert_ne!(data, BlockId::NONE, "pages go to log blocks only where the data block has them already");
        self.erase_data(data, programmed, cause, nand);
    }

    fn note_copies(&mut self, logical: LogicalBlockId, copies: u32, cause: TenantId, purpose: Purpose) {
        let owner = self.owner_of_logical(logical).0 as usize;
        let counters = &mut self.tenant(cause).counters;
        counters.gc_page_writes += u64::from(copies);
        counters.victim_valid_pages += u64::from(copies);
        counters.moved_pages_of[owner] += u64::from(copies);
        if purpose == Purpose::Reclaim {
            counters.reclaim_page_writes += u64::from(copies);
        }
    }

    /// Takes note of copies between pages of equal number, one for each bit.
    fn count_copies(&mut self, from: BlockId, word: usize, mut bits: u64, target: BlockId) {
        if self.options.cluster_dies == 1 {
            return self.count_copy(from, 0, target, 0, bits.count_ones());
        }
        while bits != 0 {
            let offset = exact::<u32>(word) * 64 + bits.trailing_zeros();
            bits &= bits - 1;
            self.count_copy(from, offset, target, offset, 1);
        }
    }

    #[inline]
    fn count_copy(&mut self, from: BlockId, from_page: u32, to: BlockId, to_page: u32, pages: u32) {
        let source = if from == BlockId::NONE { return } else { self.die_of_page(from, from_page) };
        let width = self.options.cluster_dies;
        let target = self.die_of_page(to, to_page).0 % width;
        self.copies[(source.0 * width + target) as usize] += pages;
    }

    /// Lets the copies noted take their time.
    fn carry_out_copies<N: Nand>(&mut self, target: BlockId, nand: &mut N) {
        let width = self.options.cluster_dies;
        let first = self.cluster_of(target) * width;
        for (pair, pages) in (0..).zip(&mut self.copies) {
            let pages = std::mem::take(pages);
            if pages > 0 {
                nand.copy_across(DieId(pair / width), DieId(first + pair % width), pages);
            }
        }
    }
}
