//! Verifies the invariants of mappings with log blocks from scratch. All counts are recomputed from the tables, so that
//! a damaged snapshot is detected as reliably as a bug; indices are checked before they are used.

use crate::address::{BlockId, LogicalBlockId, MapEntry};
use crate::block::BlockState;
use crate::convert::exact;
use crate::mapping::ensure::ensure;
use crate::mapping::log_block::{LogScheme, Store};
use crate::mapping::ownership::Ownership;
use crate::pool::SPARE;

impl<S: LogScheme> Store<S> {
    pub(super) fn check_invariants(&self) -> Result<(), String> {
        self.check_references()?;
        let data_of = self.check_places()?;
        self.check_pages(&data_of)?;
        self.check_counts()?;
        S::check(self)
    }

    /// Every number that names something names something there is.
    fn check_references(&self) -> Result<(), String> {
        self.tenancy.check_references()?;
        ensure!(self.domains.iter().all(|d| d.free.len() == self.tenancy.spare.len()), "a domain lacks a cluster");
        for (number, block) in self.blocks.iter().enumerate() {
            ensure!(
                block.pool == SPARE || (block.pool as usize) < self.domains.len(),
                "block {number} belongs to a domain that does not exist"
            );
            let used = self.log_use[BlockId(exact::<u32>(number))];
            ensure!(
                used.in_order <= used.written && used.written <= self.block_pages,
                "log block {number} is written beyond its end"
            );
            ensure!(
                used.logical == LogicalBlockId::NONE || !self.tenancy.namespaces.is_free(used.logical.0),
                "log block {number} is for a logical block of nobody"
            );
        }
        Ok(())
    }

    /// Every block is in exactly one place that fits its state and its owner. Returns the logical block of each data
    /// block.
    fn check_places(&self) -> Result<Vec<LogicalBlockId>, String> {
        let mut seen = vec![false; self.blocks.len()];
        let mut visit = |block: BlockId, pool: u32, state: BlockState| -> Result<(), String> {
            let Some(entry) = self.blocks.get(block.index()) else { return Err(format!("no block {block}")) };
            ensure!(!std::mem::replace(&mut seen[block.index()], true), "block {block} is in two places");
            ensure!(entry.pool == pool, "block {block} is in a place of {pool} but owned by {}", entry.pool);
            ensure!(entry.state == state, "block {block} is {:?}, its place says {state:?}", entry.state);
            let used = self.log_use[block];
            ensure!(
                state == BlockState::Open || used.written == 0,
                "block {block} is not a log block but written as one"
            );
            ensure!(state != BlockState::Free || entry.valid == 0, "free block {block} has valid pages");
            Ok(())
        };
        for spare in &self.tenancy.spare {
            spare.iter().try_for_each(|b| visit(b, SPARE, BlockState::Free))?;
        }
        for ((number, domain), owned) in (0..).zip(&self.domains).zip(&self.tenancy.domains) {
            for free in &domain.free {
                free.iter().try_for_each(|b| visit(b, number, BlockState::Free))?;
            }
            let listed = domain.logs.check(&self.blocks, |b| b.state == BlockState::Open && b.pool == number)?;
            ensure!(listed as u64 == domain.log_blocks, "domain {number} counts {} log blocks", domain.log_blocks);
            domain.logs.iter(&self.blocks).try_for_each(|b| visit(b, number, BlockState::Open))?;
            if domain.sequential_log != BlockId::NONE {
                visit(domain.sequential_log, number, BlockState::Open)?;
            }
            let limit = self.log_limit(number);
            ensure!(!owned.in_use || domain.log_blocks <= limit, "domain {number} has more than {limit} log blocks");
            let free: u64 = domain.free.iter().map(|f| u64::from(f.len())).sum();
            ensure!(
                owned.blocks == 0 || free >= u64::from(self.options.free_floor),
                "domain {number} has {free} free blocks, floor {}",
                self.options.free_floor
            );
        }
        let mut data_of = vec![LogicalBlockId::NONE; self.blocks.len()];
        for (number, logical) in (0..).map(LogicalBlockId).zip(self.logical.iter()) {
            if logical.data == BlockId::NONE {
                ensure!(logical.log == BlockId::NONE, "logical block {number} has a log block but no data block");
                continue;
            }
            let free = self.tenancy.namespaces.is_free(number.0);
            ensure!(!free, "logical block {number} has a data block but no owner");
            visit(logical.data, self.domain_of_logical(number), BlockState::Full)?;
            data_of[logical.data.index()] = number;
            ensure!(
                logical.next_page <= self.block_pages && logical.programmed <= logical.next_page,
                "data block of logical block {number} is programmed beyond its end"
            );
        }
        let lost = seen.iter().position(|s| !s);
        ensure!(lost.is_none(), "block {} is in no place", lost.unwrap_or(0));
        Ok(data_of)
    }

    /// Every page is in one place at most, which agrees that it is there; blocks count the pages they hold.
    fn check_pages(&self, data_of: &[LogicalBlockId]) -> Result<(), String> {
        let words = self.division.words_per_block;
        let mut valid = vec![0u32; self.blocks.len()];
        let mut mapped_of = vec![0u64; self.tenancy.tenants.len()];
        for (number, logical) in (0..).map(LogicalBlockId).zip(self.logical.iter()) {
            let mut held = 0;
            for offset in 0..exact::<u32>(words) * 64 {
                let (word, mask) = self.bit(number, offset);
                let in_data = self.bits[word] & mask != 0;
                let in_log = self.bits[word + words] & mask != 0;
                let entry = if offset < self.block_pages {
                    self.log_page[self.division.logical(number, offset)]
                } else {
                    MapEntry::NONE
                };
                ensure!(
                    in_log == entry.is_some(),
                    "page {offset} of logical block {number}: bit and log page disagree"
                );
                if !in_data && !in_log {
                    continue;
                }
                ensure!(!(in_data && in_log), "page {offset} of logical block {number} is in two places");
                ensure!(logical.data != BlockId::NONE, "logical block {number} has pages but no data block");
                held += 1;
                if in_data {
                    ensure!(offset < logical.next_page, "page {offset} of logical block {number} was not programmed");
                    valid[logical.data.index()] += 1;
                    continue;
                }
                let physical = entry.page_or_last();
                let log = self.division.block(physical);
                let there = self.blocks.get(log.index()).is_some_and(|b| b.state == BlockState::Open);
                ensure!(there, "page {offset} of logical block {number} is in block {log}, which is not a log block");
                let at = self.division.page_of_block(log, physical);
                ensure!(at < self.log_use[log].written, "page {at} of log block {log} was not written");
                let back = self.reverse[physical];
                ensure!(
                    back == self.division.logical(number, offset),
                    "log page {physical} is recorded as holding {back}"
                );
                ensure!(
                    self.blocks[log].pool == self.domain_of_logical(number),
                    "page {offset} of logical block {number} is in a log block of another owner"
                );
                valid[log.index()] += 1;
            }
            ensure!((held == 0) == (logical.data == BlockId::NONE), "logical block {number} has blocks and no page");
            if held > 0 {
                mapped_of[self.owner_of_logical(number).0 as usize] += held;
            }
        }
        for (number, block) in self.blocks.iter().enumerate() {
            ensure!(
                block.valid == valid[number],
                "block {number} counts {} valid pages and has {}",
                block.valid,
                valid[number]
            );
            ensure!(
                (block.state == BlockState::Full) == (data_of[number] != LogicalBlockId::NONE),
                "block {number} is {:?} and the data block of {}",
                block.state,
                data_of[number]
            );
        }
        for (tenant, mapped) in self.tenancy.tenants.iter().zip(mapped_of) {
            let counted = tenant.as_ref().map_or(0, |t| t.mapped_pages);
            ensure!(counted == mapped, "a tenant has {mapped} mapped pages, counted {counted}");
        }
        Ok(())
    }

    /// Compares maintained counts with recalculated ones.
    fn check_counts(&self) -> Result<(), String> {
        for (number, domain) in (0..).zip(&self.domains) {
            let data = self.blocks.iter().filter(|b| b.pool == number && b.state == BlockState::Full).count() as u64;
            ensure!(data == domain.data_blocks, "domain {number} counts {} data blocks", domain.data_blocks);
        }
        self.tenancy.check_counts(&self.count_wear(), self.blocks.len() as u64)
    }

    /// The domain of a logical block's owner, which must have one.
    fn domain_of_logical(&self, logical: LogicalBlockId) -> u32 {
        match self.tenancy.domain_of(self.owner_of_logical(logical)) {
            Ok(domain) => domain,
            Err(_) => unreachable!("a logical block in use belongs to a tenant"),
        }
    }
}
