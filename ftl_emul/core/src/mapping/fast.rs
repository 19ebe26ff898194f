//! FAST, fully-associative sector translation: log blocks take pages of any logical block.
//!
//! S.-W. Lee, D.-J. Park, T.-S. Chung, D.-H. Lee, S. Park, H.-J. Song, "A log buffer-based flash translation layer
//! using fully-associative sector translation", ACM TECS 6(3), 2007. One log block is kept for sequential writes: a
//! write to page 0 of a logical block opens it, the pages that follow in order go to it, and it becomes the data block
//! in a switch or partial merge. All other writes are appended to the random log blocks, of which the first opened is
//! merged first; that merges every logical block with pages in it.
//!
//! Cases that the paper does not specify: a write to the logical block of the sequential log block that is out of order
//! merges that log block and then goes to a random log block. A full merge that includes the logical block of the
//! sequential log block merges that one into its log block, which is cheaper.

use crate::address::{BlockId, LogicalBlockId};
use crate::mapping::log_block::{LogScheme, Purpose, Store, Write};
use crate::nand::Nand;
use crate::op::TenantId;

/// The scheme of [`FastMapping`].
#[derive(Debug, Clone, Copy)]
pub struct Fast;

/// Block mapping with common log blocks and a sequential one.
pub type FastMapping = Store<Fast>;

impl LogScheme for Fast {
    const NAME: &'static str = "fast";
    const SEQUENTIAL_LOG_BLOCKS: u64 = 1;
    const SNAPSHOT_CODE: u8 = 0xFA;

    fn write_to_log<N: Nand>(store: &mut Store<Self>, write: Write, nand: &mut N) {
        let domain = store.tenant(write.cause).domain;
        let sequential = store.domains[domain as usize].sequential_log;
        if write.offset == 0 {
            merge_sequential(store, domain, write.cause, Purpose::Collect, nand);
            let log = store.open_log(domain, write.logical, nand);
            store.domains[domain as usize].sequential_log = log;
            return store.append(log, write, nand);
        }
        if sequential != BlockId::NONE && store.log_use[sequential].logical == write.logical {
            if store.log_use[sequential].written == write.offset {
                return store.append(sequential, write, nand);
            }
            merge_sequential(store, domain, write.cause, Purpose::Collect, nand);
            // The merge may have left the place in the new data block free.
            return store.place(write, nand);
        }
        let newest = store.domains[domain as usize].logs.tail();
        let room = newest.filter(|&log| store.log_use[log].written < store.pages_of_block());
        if let Some(log) = room {
            return store.append(log, write, nand);
        }
        if store.domains[domain as usize].log_blocks < store.log_limit(domain) {
            let log = store.list_new_log(domain, LogicalBlockId::NONE, nand);
            return store.append(log, write, nand);
        }
        Self::evict(store, domain, write.cause, Purpose::Collect, nand);
        store.place(write, nand);
    }

    fn evict<N: Nand>(store: &mut Store<Self>, domain: u32, cause: TenantId, purpose: Purpose, nand: &mut N) -> bool {
        let Some(oldest) = store.domains[domain as usize].logs.head() else { return false };
        store.unlist_log(domain, oldest);
        store.note_victim(cause, store.blocks[oldest].valid);
        let mut before = nand.overhead_ns();
        let mut merged = false;
        for at in 0..store.log_use[oldest].written {
            let Some(logical) = store.logical_at(oldest, at) else { continue };
            let sequential = store.domains[domain as usize].sequential_log;
            if sequential != BlockId::NONE && store.log_use[sequential].logical == logical {
                let apart = nand.overhead_ns();
                merge_sequential(store, domain, cause, purpose, nand);
                before += nand.overhead_ns() - apart;
            }
            // Without a sequential log block, or where its pages were all unmapped, the pages are still here.
            if store.logical_at(oldest, at).is_some() {
                store.merge_logical(logical, cause, purpose, nand);
                merged = true;
            }
        }
        store.erase_log(oldest, cause, nand);
        if merged {
            store.note_full_merge(cause, before, nand);
        }
        true
    }

    fn release<N: Nand>(store: &mut Store<Self>, logical: LogicalBlockId, cause: TenantId, nand: &mut N) {
        let domain = store.blocks[store.logical[logical].data].pool;
        let sequential = store.domains[domain as usize].sequential_log;
        if sequential != BlockId::NONE && store.log_use[sequential].logical == logical {
            store.domains[domain as usize].sequential_log = BlockId::NONE;
            store.note_victim(cause, 0);
            store.erase_log(sequential, cause, nand);
        }
    }

    fn check(store: &Store<Self>) -> Result<(), String> {
        for domain in store.domains.iter().filter(|d| d.sequential_log != BlockId::NONE) {
            let used = store.log_use[domain.sequential_log];
            if used.in_order != used.written || used.logical == LogicalBlockId::NONE {
                return Err(format!("sequential log block {} is out of order", domain.sequential_log));
            }
        }
        Ok(())
    }
}

/// Merges the sequential log block, if one is open.
fn merge_sequential<N: Nand>(store: &mut Store<Fast>, domain: u32, cause: TenantId, purpose: Purpose, nand: &mut N) {
    let log = std::mem::replace(&mut store.domains[domain as usize].sequential_log, BlockId::NONE);
    if log == BlockId::NONE {
        return;
    }
    if store.blocks[log].valid > 0 {
        return store.merge_into_log(log, cause, purpose, nand);
    }
    store.note_victim(cause, 0);
    store.erase_log(log, cause, nand);
}
