//! The invariants of mappings with log blocks, verified from scratch. Every count is taken anew from the tables, so
//! that a damaged snapshot is found as surely as a bug; nothing here trusts an index before it is checked.

use crate::address::{BlockId, LogicalBlockId, MapEntry};
use crate::block::{Block, BlockState};
use crate::convert::exact;
use crate::mapping::Mapping;
use crate::mapping::ensure::ensure;
use crate::mapping::log_block::{LogScheme, NOBODY, Store};
use crate::mapping::wear::Wear;
use crate::namespace::MAX_TENANTS;
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
        ensure!(self.tenants.len() <= MAX_TENANTS, "{} tenants, at most {MAX_TENANTS}", self.tenants.len());
        let blocks = self.blocks.len();
        let mut owned = vec![false; blocks];
        for (number, tenant) in self.tenants.iter().enumerate() {
            let Some(tenant) = tenant else { continue };
            let in_use = self.domains.get(tenant.domain as usize).is_some_and(|d| d.in_use);
            ensure!(in_use, "tenant {number} is in domain {}, which does not exist", tenant.domain);
            let needed = exact::<usize>(tenant.pages.div_ceil(u64::from(self.block_pages)));
            ensure!(tenant.logical.len() == needed, "tenant {number} has not the logical blocks for its pages");
            for &logical in &tenant.logical {
                let owner = self.logical.get(logical.index()).map(|l| l.tenant as usize);
                ensure!(owner == Some(number), "logical block {logical} is not tenant {number}'s");
                let twice = std::mem::replace(&mut owned[logical.index()], true);
                ensure!(!twice, "logical block {logical} is there twice");
            }
            let counters = &tenant.counters;
            ensure!(
                counters.moved_pages_of.len() == self.tenants.len()
                    && counters.victim_histogram.len() == self.block_pages as usize + 1,
                "counters of tenant {number} have the wrong shape"
            );
        }
        for &logical in &self.free_logical {
            let free = self.logical.get(logical.index()).is_some_and(|l| l.tenant == NOBODY);
            ensure!(free, "logical block {logical} is not free");
            ensure!(!std::mem::replace(&mut owned[logical.index()], true), "logical block {logical} is there twice");
        }
        ensure!(owned.iter().all(|&o| o), "a logical block is lost");
        ensure!(self.domains.iter().all(|d| d.free.len() == self.spare.len()), "a domain has not all clusters");
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
                used.logical == LogicalBlockId::NONE
                    || self.logical.get(used.logical.index()).is_some_and(|l| l.tenant != NOBODY),
                "log block {number} is for a logical block of nobody"
            );
        }
        Ok(())
    }

    /// Every block stands in exactly one place, which fits its state and its owner. Returns the logical block of each
    /// data block.
    fn check_places(&self) -> Result<Vec<LogicalBlockId>, String> {
        let mut seen = vec![false; self.blocks.len()];
        let mut visit = |block: BlockId, pool: u32, state: BlockState| -> Result<(), String> {
            let Some(entry) = self.blocks.get(block.index()) else { return Err(format!("no block {block}")) };
            ensure!(!std::mem::replace(&mut seen[block.index()], true), "block {block} stands in two places");
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
        for spare in &self.spare {
            spare.iter().try_for_each(|b| visit(b, SPARE, BlockState::Free))?;
        }
        for (number, domain) in (0..).zip(&self.domains) {
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
            ensure!(!domain.in_use || domain.log_blocks <= limit, "domain {number} has more than {limit} log blocks");
            let free: u64 = domain.free.iter().map(|f| u64::from(f.len())).sum();
            ensure!(
                domain.blocks == 0 || free >= u64::from(self.options.free_floor),
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
            ensure!(logical.tenant != NOBODY, "logical block {number} has a data block but no owner");
            visit(logical.data, self.domain_of_logical(number), BlockState::Full)?;
            data_of[logical.data.index()] = number;
            ensure!(
                logical.next_page <= self.block_pages && logical.programmed <= logical.next_page,
                "data block of logical block {number} is programmed beyond its end"
            );
        }
        let lost = seen.iter().position(|s| !s);
        ensure!(lost.is_none(), "block {} stands nowhere", lost.unwrap_or(0));
        Ok(data_of)
    }

    /// Every page is in one place at most, which agrees that it is there; blocks count the pages they hold.
    fn check_pages(&self, data_of: &[LogicalBlockId]) -> Result<(), String> {
        let words = self.division.words_per_block;
        let mut valid = vec![0u32; self.blocks.len()];
        let mut mapped_of = vec![0u64; self.tenants.len()];
        for (number, logical) in (0..).map(LogicalBlockId).zip(self.logical.iter()) {
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
                mapped_of[logical.tenant as usize] += 1;
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
                ensure!(back == self.division.logical(number, offset), "log page {physical} says it holds {back}");
                ensure!(
                    self.blocks[log].pool == self.domain_of_logical(number),
                    "page {offset} of logical block {number} is in a log block of another owner"
                );
                valid[log.index()] += 1;
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
        for (tenant, mapped) in self.tenants.iter().zip(mapped_of) {
            let counted = tenant.as_ref().map_or(0, |t| t.mapped_pages);
            ensure!(counted == mapped, "a tenant has {mapped} mapped pages, counted {counted}");
        }
        Ok(())
    }

    /// The wear of each domain's blocks, from the blocks themselves.
    pub(super) fn count_wear(&self) -> Vec<Wear> {
        let domain_of = |block: &Block| (block.pool != SPARE).then_some(block.pool as usize);
        Wear::of_domains(self.domains.len(), &self.blocks, domain_of)
    }

    /// Counts kept along the way against counts taken now.
    fn check_counts(&self) -> Result<(), String> {
        let wear = self.count_wear();
        for ((number, domain), wear) in (0..).zip(&self.domains).zip(wear) {
            ensure!(domain.wear == wear, "domain {number} counts {:?}, has {wear:?}", domain.wear);
            let owned = self.blocks.iter().filter(|b| b.pool == number);
            let data = owned.clone().filter(|b| b.state == BlockState::Full).count() as u64;
            ensure!(data == domain.data_blocks, "domain {number} counts {} data blocks", domain.data_blocks);
            ensure!(owned.count() as u64 == domain.blocks, "domain {number} counts {} blocks", domain.blocks);
            let tenants = self.tenants.iter().flatten().filter(|t| t.domain == number);
            let logical: u64 = tenants.map(|t| t.logical.len() as u64).sum();
            ensure!(logical == domain.logical_blocks, "domain {number} counts {}", domain.logical_blocks);
        }
        let owned: u64 = self.domains.iter().map(|d| d.blocks).sum();
        ensure!(self.spare_blocks() + owned == self.blocks.len() as u64, "blocks were lost");
        Ok(())
    }
}
