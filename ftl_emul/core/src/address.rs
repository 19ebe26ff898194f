//! Addresses: numbers of dies, blocks and pages, with a separate type for each.
//!
//! A page of a block, counted from 0, is a plain `u32`; a page of a tenant's namespace, counted from 0, a plain `u64`.

use std::fmt;

use bytemuck::{Pod, Zeroable};
use serde::{Deserialize, Serialize};

use crate::block::Block;

/// Defines the address of something: a number of 32 bits, in memory and in snapshots.
macro_rules! address {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, Pod, Zeroable,
        )]
        #[repr(transparent)]
        pub struct $name(pub u32);

        impl $name {
            /// The number as an index of a table that has an entry for each.
            #[inline(always)]
            #[must_use]
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

address! {
    /// A die, counted from 0 over all channels.
    DieId
}
address! {
    /// An erase block, or a clustered one, counted from 0 over all dies.
    BlockId
}
address! {
    /// A logical block of the device, in mappings with log blocks: the logical pages that a block has room for.
    LogicalBlockId
}
address! {
    /// A page of the flash, counted from 0 over all blocks.
    PhysicalPage
}
address! {
    /// A page of the device-wide logical space in which every tenant's namespace has its part.
    LogicalPage
}

impl BlockId {
    /// No block: the end of a list, or a frontier that is not open.
    pub const NONE: Self = Self(u32::MAX);
}

impl LogicalBlockId {
    /// No logical block.
    pub const NONE: Self = Self(u32::MAX);
}

/// An entry of a map: the physical page of a logical page, if it has one. Zeroed memory maps nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub(crate) struct MapEntry(u32);

impl MapEntry {
    /// Not mapped.
    pub const NONE: Self = Self(0);

    /// Mapped to a page; every drive has fewer than 2^32 - 1 of them.
    #[inline(always)]
    pub fn of(page: PhysicalPage) -> Self {
        Self(page.0 + 1)
    }

    #[inline(always)]
    pub fn is_some(self) -> bool {
        self != Self::NONE
    }

    #[inline(always)]
    pub fn get(self) -> Option<PhysicalPage> {
        self.0.checked_sub(1).map(PhysicalPage)
    }

    /// The page; a number that no drive has stands for none.
    #[inline(always)]
    pub fn page_or_last(self) -> PhysicalPage {
        PhysicalPage(self.0.wrapping_sub(1))
    }
}

/// Lets tables with an entry for each address be indexed by the address.
macro_rules! indexed_by {
    ($address:ty, $($entry:ty),+) => {
        $(
            impl std::ops::Index<$address> for [$entry] {
                type Output = $entry;

                #[inline(always)]
                fn index(&self, address: $address) -> &$entry {
                    &self[address.index()]
                }
            }

            impl std::ops::IndexMut<$address> for [$entry] {
                #[inline(always)]
                fn index_mut(&mut self, address: $address) -> &mut $entry {
                    &mut self[address.index()]
                }
            }
        )+
    };
}
pub(crate) use indexed_by;

indexed_by!(BlockId, Block);
indexed_by!(LogicalPage, MapEntry);
indexed_by!(PhysicalPage, LogicalPage);
