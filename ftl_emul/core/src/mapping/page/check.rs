//! Verifies the invariants of the page mapping from scratch. All counts are recomputed from the tables, so that a
//! damaged snapshot is detected as reliably as a bug; indices are checked before they are used.

use crate::address::{BlockId, PhysicalPage};
use crate::block::BlockState;
use crate::convert::exact;
use crate::mapping::Mapping;
use crate::mapping::ensure::ensure;
use crate::mapping::ownership::Ownership;
use crate::mapping::page::PageMapping;
use crate::pool::SPARE;

impl PageMapping {
    pub(super) fn check_invariants(&self) -> Result<(), String> {
        self.check_references()?;
        self.check_map()?;
        self.check_places()?;
        self.check_counts()
    }

    /// Verifies that all numbers refer to existing things, on which the other checks rely.
    fn check_references(&self) -> Result<(), String> {
        self.tenancy.check_references()?;
        for (number, block) in self.blocks.iter().enumerate() {
            ensure!(block.pool == SPARE || (block.pool as usize) < self.pools.len(), "block {number} is in no pool");
            ensure!(block.valid <= self.geometry.pages_per_block, "block {number} counts too many valid pages");
        }
        for (number, pool) in self.pools.iter().enumerate() {
            ensure!(pool.die.0 == exact::<u32>(number) % self.geometry.dies(), "pool {number} is on another die");
            ensure!(
                pool.victims.fits(self.options.victim, self.geometry.pages_per_block),
                "the victim index of pool {number} has the wrong shape"
            );
        }
        Ok(())
    }

    /// p2l[l2p[x]] == x for every mapped page, and sum of valid == mapped pages.
    fn check_map(&self) -> Result<(), String> {
        let mut mapped_total = 0;
        for tenant in self.tenancy.namespaces.tenants() {
            let known = self.tenancy.known(tenant).map_err(|e| e.to_string())?;
            let mut mapped = 0;
            for page in 0..self.pages(tenant) {
                let logical = self.global(tenant, page);
                ensure!(
                    self.namespaces().owner(logical) == tenant,
                    "page {page} of tenant {} has another owner",
                    tenant.0
                );
                let Some(physical) = self.map[logical].get() else { continue };
                mapped += 1;
                let there = u64::from(physical.0) < self.geometry.pages();
                ensure!(there, "page {page} of tenant {} maps beyond the drive", tenant.0);
                let back = self.reverse[physical];
                ensure!(back == logical, "p2l[l2p[{logical}]] is {back}");
                ensure!(self.is_valid(physical), "logical page {logical} maps to a page that is not valid");
                let block = &self.blocks[self.division.block(physical)];
                ensure!(
                    self.domain_of_block(block) == Some(known.domain),
                    "logical page {logical} lies in a block of another owner"
                );
            }
            let counted = known.mapped_pages;
            ensure!(mapped == counted, "tenant {} has {mapped} mapped pages, counted {counted}", tenant.0);
            mapped_total += mapped;
        }
        let valid: u64 = self.blocks.iter().map(|b| u64::from(b.valid)).sum();
        ensure!(valid == mapped_total, "valid pages {valid}, mapped pages {mapped_total}");
        let bits: u64 = self.valid.iter().map(|w| u64::from(w.count_ones())).sum();
        ensure!(bits == mapped_total, "valid bits {bits}, mapped pages {mapped_total}");
        Ok(())
    }

    /// Every block stands in exactly one place, which fits its state and its owner.
    fn check_places(&self) -> Result<(), String> {
        let mut seen = vec![false; self.blocks.len()];
        let mut visit = |block: BlockId, pool: u32, state: BlockState| -> Result<(), String> {
            let Some(entry) = self.blocks.get(block.index()) else { return Err(format!("no block {block}")) };
            ensure!(!std::mem::replace(&mut seen[block.index()], true), "block {block} is in two lists");
            ensure!(entry.pool == pool, "block {block} is in a list of pool {pool} but owned by {}", entry.pool);
            ensure!(entry.state == state, "block {block} is {:?}, its list says {state:?}", entry.state);
            ensure!(state != BlockState::Free || entry.valid == 0, "free block {block} has valid pages");
            Ok(())
        };
        for spare in &self.tenancy.spare {
            spare.iter().try_for_each(|b| visit(b, SPARE, BlockState::Free))?;
        }
        for (index, pool) in self.pools.iter().enumerate() {
            pool.free.iter().try_for_each(|b| visit(b, exact::<u32>(index), BlockState::Free))?;
            for frontier in pool.frontiers.iter().filter(|f| f.block != BlockId::NONE) {
                visit(frontier.block, exact::<u32>(index), BlockState::Open)?;
                ensure!(
                    frontier.next_page <= self.geometry.pages_per_block,
                    "frontier of block {} beyond its end",
                    frontier.block
                );
            }
            pool.victims.check(&self.blocks).map_err(|e| format!("pool {index}: {e}"))?;
            pool.victims
                .members(&self.blocks)
                .into_iter()
                .try_for_each(|b| visit(b, exact::<u32>(index), BlockState::Full))?;
            let used = pool.blocks > 0 && self.tenancy.domains[index / self.geometry.dies() as usize].in_use;
            ensure!(
                !used || pool.free.len() >= self.options.free_floor.min(pool.blocks),
                "pool {index} has {} free blocks, floor {}",
                pool.free.len(),
                self.options.free_floor
            );
        }
        let lost = seen.iter().position(|s| !s);
        ensure!(lost.is_none(), "block {} is in no list", lost.unwrap_or(0));
        Ok(())
    }

    /// Compares maintained counts with recalculated ones.
    fn check_counts(&self) -> Result<(), String> {
        let dies = self.geometry.dies() as usize;
        let mut blocks = vec![0u32; self.pools.len()];
        let mut valid = vec![0u64; self.pools.len()];
        for (number, block) in self.blocks.iter().enumerate() {
            let words = self.division.words_per_block;
            let bits: u32 = self.valid[number * words..(number + 1) * words].iter().map(|w| w.count_ones()).sum();
            ensure!(bits == block.valid, "block {number} counts {} valid pages and has {bits}", block.valid);
            if block.pool != SPARE {
                blocks[block.pool as usize] += 1;
                valid[block.pool as usize] += u64::from(block.valid);
            }
        }
        for (index, pool) in self.pools.iter().enumerate() {
            ensure!(pool.blocks == blocks[index], "pool {index} counts {} blocks, owns {}", pool.blocks, blocks[index]);
            ensure!(pool.valid == valid[index], "pool {index} counts {} valid pages, has {}", pool.valid, valid[index]);
        }
        for (number, domain) in self.domains.iter().enumerate() {
            let slack: i64 = self.pools[number * dies..(number + 1) * dies].iter().map(|p| self.slack(p)).sum();
            ensure!(slack == domain.slack_pages, "domain {number} counts slack {}, has {slack}", domain.slack_pages);
        }
        self.tenancy.check_counts(&self.count_wear(), self.geometry.blocks())
    }

    fn is_valid(&self, physical: PhysicalPage) -> bool {
        let block = self.division.block(physical);
        let page = self.division.page_of_block(block, physical) as usize;
        self.valid[block.index() * self.division.words_per_block + page / 64] >> (page % 64) & 1 == 1
    }
}
