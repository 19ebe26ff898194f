//! BAST, block-associative sector translation: a log block serves one logical block alone.
//!
//! J. Kim, J. M. Kim, S. H. Noh, S. L. Min, Y. Cho, "A space-efficient flash translation layer for `CompactFlash`
//! systems", IEEE Transactions on Consumer Electronics 48(2), 2002 (the log block scheme). Pages are appended to the
//! log block in the order in which they are written. A full log block is merged with its data block; when all log
//! blocks are taken and another logical block needs one, the least recently written log block is merged.

use crate::address::{BlockId, LogicalBlockId};
use crate::mapping::log_block::{LogScheme, LogUse, Purpose, Store, Write};
use crate::nand::Nand;
use crate::op::TenantId;

/// The scheme of [`BastMapping`].
#[derive(Debug, Clone, Copy)]
pub struct Bast;

/// Block mapping with a log block for each of some logical blocks.
pub type BastMapping = Store<Bast>;

impl LogScheme for Bast {
    const NAME: &'static str = "bast";
    const SEQUENTIAL_LOG_BLOCKS: u64 = 0;
    const SNAPSHOT_CODE: u8 = 0xB1;

    fn write_to_log<N: Nand>(store: &mut Store<Self>, write: Write, nand: &mut N) {
        let domain = store.tenant(write.cause).domain;
        let own = store.logical[write.logical].log;
        if own != BlockId::NONE && store.log_use[own].written < store.pages_of_block() {
            store.move_log_to_end(domain, own);
            return store.append(own, write, nand);
        }
        if own != BlockId::NONE {
            merge(store, domain, own, write.cause, Purpose::Collect, nand);
            // If pages were unmapped, the place in the new data block may be free.
            return store.place(write, nand);
        }
        while store.domains[domain as usize].log_blocks >= store.log_limit(domain) {
            if !Self::evict(store, domain, write.cause, Purpose::Collect, nand) {
                break;
            }
        }
        let log = store.list_new_log(domain, write.logical, nand);
        store.logical[write.logical].log = log;
        store.append(log, write, nand);
    }

    fn evict<N: Nand>(store: &mut Store<Self>, domain: u32, cause: TenantId, purpose: Purpose, nand: &mut N) -> bool {
        let Some(oldest) = store.domains[domain as usize].logs.head() else { return false };
        merge(store, domain, oldest, cause, purpose, nand);
        true
    }

    fn release<N: Nand>(store: &mut Store<Self>, logical: LogicalBlockId, cause: TenantId, nand: &mut N) {
        let log = std::mem::replace(&mut store.logical[logical].log, BlockId::NONE);
        if log != BlockId::NONE {
            let domain = store.blocks[log].pool;
            store.unlist_log(domain, log);
            store.note_victim(cause, 0);
            store.erase_log(log, cause, nand);
        }
    }

    fn check(store: &Store<Self>) -> Result<(), String> {
        let mut owned = 0;
        for (number, logical) in
            (0..).map(LogicalBlockId).zip(store.logical.iter()).filter(|(_, l)| l.log != BlockId::NONE)
        {
            owned += 1;
            if store.log_use.get(logical.log.index()).is_none_or(|used| used.logical != number) {
                return Err(format!("log block {} does not belong to logical block {number}", logical.log));
            }
        }
        let listed: u64 = store.domains.iter().map(|d| d.log_blocks).sum();
        if listed != owned {
            return Err(format!("{listed} log blocks, but {owned} logical blocks have one"));
        }
        Ok(())
    }
}

/// Merges a log block with the data block of its logical block.
fn merge<N: Nand>(store: &mut Store<Bast>, domain: u32, log: BlockId, cause: TenantId, purpose: Purpose, nand: &mut N) {
    let LogUse { logical, written, in_order } = store.log_use[log];
    store.unlist_log(domain, log);
    store.logical[logical].log = BlockId::NONE;
    let valid = store.blocks[log].valid;
    if valid > 0 && in_order == written {
        return store.merge_into_log(log, cause, purpose, nand);
    }
    store.note_victim(cause, valid);
    let before = nand.overhead_ns();
    if valid > 0 {
        store.merge_logical(logical, cause, purpose, nand);
    }
    store.erase_log(log, cause, nand);
    if valid > 0 {
        store.note_full_merge(cause, before, nand);
    }
}
