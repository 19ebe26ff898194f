//! Random changes of tenants for property tests of all mappings.

use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::mapping::{Mapping, Placement};
use crate::nand::Nand;
use crate::op::TenantId;

/// Expected content of each tenant's pages.
pub(in crate::mapping) type Contents<V> = BTreeMap<u16, Vec<V>>;

/// A change of tenants or their blocks; tenants are picked from those there are.
#[derive(Debug, Clone)]
pub(in crate::mapping) enum Change {
    /// From, to, blocks, maximum number of victims.
    Move(u8, u8, u8, u8),
    /// Pages, shared, OPS blocks.
    Create(u32, bool, u8),
    Delete(u8),
    /// Tenant, pages.
    Resize(u8, u32),
}

/// Changes with tenants below these sizes.
pub(in crate::mapping) fn changes(
    created_pages: u32,
    resized_pages: u32,
    ops_blocks: u8,
) -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => (any::<u8>(), any::<u8>(), 1..20u8, 0..6u8).prop_map(|(a, b, n, g)| Change::Move(a, b, n, g)),
        1 => (1..created_pages, any::<bool>(), 0..ops_blocks).prop_map(|(p, s, o)| Change::Create(p, s, o)),
        1 => any::<u8>().prop_map(Change::Delete),
        1 => (any::<u8>(), 1..resized_pages).prop_map(|(t, p)| Change::Resize(t, p)),
    ]
}

/// One of the existing tenants, if any.
pub(in crate::mapping) fn pick<V>(contents: &Contents<V>, n: u8) -> Option<TenantId> {
    contents.keys().copied().nth(n as usize % contents.len().max(1)).map(TenantId)
}

/// Two isolated tenants and a sharing one, as far as there is room for them.
pub(in crate::mapping) fn three_tenants<M: Mapping, V: Clone + Default>(
    ftl: &mut M,
    pages: u64,
    ops_blocks: u64,
) -> Contents<V> {
    let placements = [Placement::Isolated, Placement::Isolated, Placement::Shared];
    let created = placements.into_iter().filter_map(|placement| ftl.create_tenant(pages, placement, ops_blocks).ok());
    created.map(|tenant| (tenant.0, vec![V::default(); pages as usize])).collect()
}

impl Change {
    /// Makes the change unless the mapping rejects it. New pages contain no data.
    pub fn make<M: Mapping, N: Nand, V: Clone + Default>(
        self,
        ftl: &mut M,
        contents: &mut Contents<V>,
        nand: &mut N,
    ) -> Result<(), TestCaseError> {
        match self {
            Self::Move(a, b, n, passes) => {
                let end = |x: u8| if x % 5 == 4 { None } else { pick(contents, x) };
                let _ = ftl.request_move(end(a), end(b), u64::from(n));
                let pending = ftl.moves_pending();
                let progress = ftl.advance_moves(u64::from(passes), nand);
                prop_assert!(progress.gc_passes <= u64::from(passes));
                prop_assert!(pending || progress.moved_blocks == 0);
            }
            Self::Create(pages, shared, ops) => {
                let placement = if shared { Placement::Shared } else { Placement::Isolated };
                if let Ok(id) = ftl.create_tenant(u64::from(pages), placement, u64::from(ops)) {
                    prop_assert!(contents.insert(id.0, vec![V::default(); pages as usize]).is_none());
                }
            }
            Self::Delete(t) => {
                if let Some(t) = pick(contents, t) {
                    prop_assert!(ftl.delete_tenant(t).is_ok());
                    contents.remove(&t.0);
                }
            }
            Self::Resize(t, pages) => {
                if let Some(t) = pick(contents, t) {
                    if ftl.resize_tenant(t, u64::from(pages)).is_ok() {
                        if let Some(held) = contents.get_mut(&t.0) {
                            held.resize(pages as usize, V::default());
                        }
                    }
                }
            }
        }
        Ok(())
    }
}
