//! Blocks and their dies: allocating an erased block, opening it as data or log block, erasing it.

use crate::address::{BlockId, DieId, LogicalBlockId};
use crate::block::{BlockList, BlockState};
use crate::convert::exact;
use crate::mapping::log_block::{LogDomain, LogScheme, LogUse, LogicalBlock, Store, Write};
use crate::mapping::tenancy::Domain;
use crate::nand::Nand;
use crate::op::TenantId;

impl<S: LogScheme> Store<S> {
    /// The cluster of dies that a block spans.
    #[inline(always)]
    pub(super) fn cluster_of(&self, block: BlockId) -> u32 {
        block.0 / self.geometry.blocks_per_die
    }

    /// The die of a page: pages of a clustered block take turns on its dies.
    #[inline(always)]
    pub(super) fn die_of_page(&self, block: BlockId, page: u32) -> DieId {
        let width = self.options.cluster_dies;
        let first = self.cluster_of(block) * width;
        DieId(if width == 1 { first } else { first + page % width })
    }

    /// Log blocks that the list of a domain may have: OPS, less the free floor and the sequential log block.
    #[inline(always)]
    pub(in crate::mapping) fn log_limit(&self, domain: u32) -> u64 {
        let Domain { blocks, logical_blocks, .. } = self.tenancy.domains[domain as usize];
        blocks.saturating_sub(logical_blocks + u64::from(self.options.free_floor) + S::SEQUENTIAL_LOG_BLOCKS)
    }

    /// An erased block for new writes: of the next idle dies in rotation, or where most are.
    fn take_for_writes<N: Nand>(&mut self, domain: u32, nand: &N) -> BlockId {
        let clusters = exact::<u32>(self.tenancy.spare.len());
        let LogDomain { next_cluster, free, .. } = &self.domains[domain as usize];
        let rotation = (0..clusters).map(|n| (next_cluster + n) % clusters);
        let idle = |&cluster: &u32| {
            free[cluster as usize].len() > 0 && nand.is_idle(DieId(cluster * self.options.cluster_dies))
        };
        let chosen = rotation.clone().find(idle).or_else(|| rotation.max_by_key(|&c| free[c as usize].len()));
        self.take_from(domain, chosen.unwrap_or(0))
    }

    /// An erased block for a merge: on the same dies if there is one, so that copies need not leave them.
    pub(super) fn take_near(&mut self, domain: u32, cluster: u32) -> BlockId {
        let free = &self.domains[domain as usize].free;
        if free[cluster as usize].len() > 0 {
            return self.take_from(domain, cluster);
        }
        let fullest = (0..exact::<u32>(free.len())).max_by_key(|&c| free[c as usize].len());
        self.take_from(domain, fullest.unwrap_or(0))
    }

    fn take_from(&mut self, domain: u32, cluster: u32) -> BlockId {
        let clusters = exact::<u32>(self.tenancy.spare.len());
        let domain = &mut self.domains[domain as usize];
        domain.next_cluster = (cluster + 1) % clusters;
        let Some(block) = domain.free[cluster as usize].pop() else {
            unreachable!("the free floor is kept before merges and host writes take a block")
        };
        block
    }

    /// Assigns a data block to a logical block.
    #[cold]
    pub(super) fn open_data<N: Nand>(&mut self, write: Write, nand: &N) {
        let domain = self.tenant(write.cause).domain;
        let block = self.take_for_writes(domain, nand);
        self.domains[domain as usize].data_blocks += 1;
        self.blocks[block].state = BlockState::Full;
        let entry = &mut self.logical[write.logical];
        (entry.data, entry.next_page, entry.programmed) = (block, 0, 0);
    }

    /// Opens a log block for `logical` alone, or for any ([`LogicalBlockId::NONE`]); the caller says where it stands.
    pub(in crate::mapping) fn open_log<N: Nand>(&mut self, domain: u32, logical: LogicalBlockId, nand: &N) -> BlockId {
        let block = self.take_for_writes(domain, nand);
        self.blocks[block].state = BlockState::Open;
        self.log_use[block] = LogUse { logical, ..LogUse::NONE };
        block
    }

    /// Opens a log block at the end of its domain's list.
    pub(in crate::mapping) fn list_new_log<N: Nand>(
        &mut self,
        domain: u32,
        logical: LogicalBlockId,
        nand: &N,
    ) -> BlockId {
        let log = self.open_log(domain, logical, nand);
        let owner = &mut self.domains[domain as usize];
        owner.logs.push_back(&mut self.blocks, log);
        owner.log_blocks += 1;
        log
    }

    /// Takes a log block out of its domain's list.
    pub(in crate::mapping) fn unlist_log(&mut self, domain: u32, log: BlockId) {
        let owner = &mut self.domains[domain as usize];
        owner.logs.remove(&mut self.blocks, log);
        owner.log_blocks -= 1;
    }

    /// Moves a log block to the end of its domain's list.
    #[inline(always)]
    pub(in crate::mapping) fn move_log_to_end(&mut self, domain: u32, log: BlockId) {
        if self.blocks[log].next != BlockId::NONE {
            let logs: &mut BlockList = &mut self.domains[domain as usize].logs;
            logs.remove(&mut self.blocks, log);
            logs.push_back(&mut self.blocks, log);
        }
    }

    /// Erases a log block that is in no list and contains no valid page.
    pub(in crate::mapping) fn erase_log<N: Nand>(&mut self, log: BlockId, cause: TenantId, nand: &mut N) {
        let used = std::mem::replace(&mut self.log_use[log], LogUse::NONE);
        self.erase(log, used.written, cause, nand);
    }

    /// Erases a data block.
    pub(super) fn erase_data<N: Nand>(&mut self, block: BlockId, programmed: u32, cause: TenantId, nand: &mut N) {
        let domain = self.blocks[block].pool;
        self.domains[domain as usize].data_blocks -= 1;
        self.erase(block, programmed, cause, nand);
    }

    fn erase<N: Nand>(&mut self, block: BlockId, programmed: u32, cause: TenantId, nand: &mut N) {
        #[cfg(test)]
        self.flash.erase(block, programmed);
        let entry = &mut self.blocks[block];
        entry.valid = 0;
        entry.state = BlockState::Free;
        entry.erases += 1;
        let (erases, domain) = (entry.erases, entry.pool);
        let cluster = self.cluster_of(block);
        self.domains[domain as usize].free[cluster as usize].push(erases, block);
        self.tenancy.domains[domain as usize].wear.erased(erases);
        if N::TIMED {
            let width = self.options.cluster_dies;
            (cluster * width..(cluster + 1) * width).for_each(|die| nand.erase(DieId(die)));
        }
        let block_pages = u64::from(self.block_pages);
        let remainder = &mut self.victim_remainder_pages[cause.0 as usize];
        let written = *remainder + u64::from(programmed);
        *remainder = written % block_pages;
        let counters = &mut self.tenant(cause).counters;
        counters.erases += 1;
        counters.victims += written / block_pages;
    }

    /// Erases the blocks of a logical block without pages.
    pub(super) fn close_if_empty<N: Nand>(&mut self, logical: LogicalBlockId, cause: TenantId, nand: &mut N) {
        let LogicalBlock { data, programmed, .. } = self.logical[logical];
        if data == BlockId::NONE || self.blocks[data].valid > 0 {
            return;
        }
        let words = self.division.words_per_block;
        let in_log = (2 * logical.index() + 1) * words;
        if self.bits[in_log..in_log + words].iter().any(|&word| word != 0) {
            return;
        }
        S::release(self, logical, cause, nand);
        self.erase_data(data, programmed, cause, nand);
        let entry = &mut self.logical[logical];
        (entry.data, entry.next_page, entry.programmed) = (BlockId::NONE, 0, 0);
    }
}
