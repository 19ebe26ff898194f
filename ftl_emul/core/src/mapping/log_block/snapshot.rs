//! Saving and restoring a mapping with log blocks, bit for bit, as a [`crate::mapping::snapshot_file`]. Its code is
//! [`LogScheme::SNAPSHOT_CODE`].

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

use crate::address::LogicalBlockId;
use crate::block::Block;
use crate::error::FtlError;
use crate::geometry::Geometry;
use crate::mapping::log_block::{Domain, LogBlockOptions, LogScheme, Store, Tenant};
use crate::mapping::ownership::Transfer;
use crate::mapping::snapshot_file::{read_snapshot, refuse, write_snapshot};
use crate::pool::FreeBlocks;

#[derive(Serialize, Deserialize)]
struct Head {
    geometry: Geometry,
    options: LogBlockOptions,
    blocks: Vec<Block>,
    domains: Vec<Domain>,
    tenants: Vec<Option<Tenant>>,
    spare: Vec<FreeBlocks>,
    free_logical: Vec<LogicalBlockId>,
    transfers: Vec<Transfer>,
    /// Free-form words of the caller, such as the names of tenants.
    label: String,
}

impl<S: LogScheme> Store<S> {
    /// Writes the whole state, and `label` with it.
    pub fn save(&mut self, label: &str, to: &mut impl Write) -> io::Result<()> {
        let head = Head {
            geometry: self.geometry,
            options: self.options,
            blocks: self.blocks.to_vec(),
            domains: self.domains.clone(),
            tenants: self.tenants.clone(),
            spare: self.spare.clone(),
            free_logical: self.free_logical.clone(),
            transfers: self.transfers.clone(),
            label: label.to_owned(),
        };
        let tables: Vec<&[u8]> = self.tables().into_iter().map(|table| &*table).collect();
        write_snapshot(S::SNAPSHOT_CODE, &head, &tables, to)
    }

    /// Reads a state that [`Store::save`] wrote, and its label. Anything else is refused.
    pub fn restore(from: &mut impl Read) -> Result<(Self, String), FtlError> {
        let (mut mapping, head) = read_snapshot(S::SNAPSHOT_CODE, from, Self::fitting, |m, _| m.tables())?;
        mapping.blocks.copy_from_slice(&head.blocks);
        mapping.domains = head.domains;
        mapping.tenants = head.tenants;
        mapping.spare = head.spare;
        mapping.free_logical = head.free_logical;
        mapping.transfers = head.transfers;
        let wear = mapping.count_wear();
        mapping.domains.iter_mut().zip(wear).for_each(|(domain, wear)| domain.wear = wear);
        mapping.check_invariants().or_else(|e| refuse(format!("damaged: {e}")))?;
        Ok((mapping, head.label))
    }

    /// An empty mapping with tables for what `head` describes.
    fn fitting(head: &Head) -> Result<Self, FtlError> {
        let mapping = Self::new(head.geometry, head.options)?;
        let tables_fit = head.blocks.len() == mapping.blocks.len() && head.spare.len() == mapping.spare.len();
        if tables_fit { Ok(mapping) } else { refuse("damaged: tables do not fit the geometry") }
    }

    fn tables(&mut self) -> Vec<&mut [u8]> {
        vec![
            self.logical.as_bytes_mut(),
            self.bits.as_bytes_mut(),
            self.log_page.as_bytes_mut(),
            self.reverse.as_bytes_mut(),
            self.log_use.as_bytes_mut(),
        ]
    }
}
