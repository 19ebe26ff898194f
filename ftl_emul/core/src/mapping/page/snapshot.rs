//! Saving and restoring a page mapping, bit for bit, as a [`crate::mapping::snapshot_file`]. The map is
//! written up to its last used entry. Restoring verifies every invariant last.

use std::io::{self, Read, Write};

use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

use crate::block::Block;
use crate::convert::exact;
use crate::error::FtlError;
use crate::geometry::Geometry;
use crate::mapping::ownership::Transfer;
use crate::mapping::page::{Domain, PageMapping, PageMappingOptions, Tenant};
use crate::mapping::snapshot_file::{read_snapshot, refuse, write_snapshot};
use crate::namespace::Namespaces;
use crate::pool::{FreeBlocks, Pool};

/// What tells its snapshots from those of other mappings.
const SNAPSHOT_CODE: u8 = 4;

#[derive(Serialize, Deserialize)]
struct Head {
    geometry: Geometry,
    options: PageMappingOptions,
    blocks: Vec<Block>,
    stamps: Vec<u64>,
    pools: Vec<Pool>,
    domains: Vec<Domain>,
    namespaces: Namespaces,
    tenants: Vec<Option<Tenant>>,
    spare: Vec<FreeBlocks>,
    transfers: Vec<Transfer>,
    write_clock: u64,
    rng: Xoshiro256PlusPlus,
    /// Free-form words of the caller, such as the names of tenants.
    label: String,
}

impl PageMapping {
    /// Writes the whole state, and `label` with it.
    pub fn save(&mut self, label: &str, to: &mut impl Write) -> io::Result<()> {
        let head = Head {
            geometry: self.geometry,
            options: self.options,
            blocks: self.blocks.to_vec(),
            stamps: self.stamps.clone(),
            pools: self.pools.clone(),
            domains: self.domains.clone(),
            namespaces: self.namespaces.clone(),
            tenants: self.tenants.clone(),
            spare: self.spare.clone(),
            transfers: self.transfers.clone(),
            write_clock: self.write_clock,
            rng: self.rng.clone(),
            label: label.to_owned(),
        };
        let mapped_bytes = exact::<usize>(self.namespaces.used_page_numbers()) * size_of::<u32>();
        let tables = [&self.map.as_bytes_mut()[..mapped_bytes], self.reverse.as_bytes_mut(), self.valid.as_bytes_mut()];
        write_snapshot(SNAPSHOT_CODE, &head, &tables, to)
    }

    /// Reads a state that [`PageMapping::save`] wrote, and its label. Anything else is refused.
    pub fn restore(from: &mut impl Read) -> Result<(Self, String), FtlError> {
        let (mut mapping, head) = read_snapshot(SNAPSHOT_CODE, from, Self::fitting, Self::tables)?;
        mapping.blocks.copy_from_slice(&head.blocks);
        mapping.stamps = head.stamps;
        mapping.pools = head.pools;
        mapping.domains = head.domains;
        mapping.namespaces = head.namespaces;
        mapping.tenants = head.tenants;
        mapping.spare = head.spare;
        mapping.transfers = head.transfers;
        mapping.write_clock = head.write_clock;
        mapping.rng = head.rng;
        let wear = mapping.count_wear();
        mapping.domains.iter_mut().zip(wear).for_each(|(domain, wear)| domain.wear = wear);
        mapping.check_invariants().or_else(|e| refuse(format!("damaged: {e}")))?;
        Ok((mapping, head.label))
    }

    /// An empty mapping with tables for what `head` describes.
    fn fitting(head: &Head) -> Result<Self, FtlError> {
        let mapping = Self::new(head.geometry, head.options)?;
        let tables_fit = head.blocks.len() == mapping.blocks.len()
            && head.stamps.len() == mapping.stamps.len()
            && head.spare.len() == mapping.spare.len()
            && head.pools.len() == head.domains.len() * head.geometry.dies() as usize
            && exact::<usize>(head.namespaces.used_page_numbers()) <= mapping.map.len();
        if tables_fit { Ok(mapping) } else { refuse("damaged: tables do not fit the geometry") }
    }

    fn tables<'a>(&'a mut self, head: &Head) -> Vec<&'a mut [u8]> {
        let mapped_bytes = exact::<usize>(head.namespaces.used_page_numbers()) * size_of::<u32>();
        vec![&mut self.map.as_bytes_mut()[..mapped_bytes], self.reverse.as_bytes_mut(), self.valid.as_bytes_mut()]
    }
}
