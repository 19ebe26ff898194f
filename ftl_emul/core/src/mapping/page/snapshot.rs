//! Saving and restoring a mapping, bit for bit.
//!
//! Layout, little-endian: magic, format version (u32), code of the mapping (u8), length of the head (u64), head
//! (postcard), the tables as they stand in memory (here up to their last used entry), CRC-32 of all that. The head
//! carries everything but the tables. Restoring verifies the checksum first and every invariant last. The code of the
//! page mapping is the number of bytes of its page numbers.

use std::io::{self, Read, Write};

use rand_xoshiro::Xoshiro256PlusPlus;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::block::Block;
use crate::error::FtlError;
use crate::geometry::Geometry;
use crate::mapping::page::{Domain, PageMapping, PageMappingOptions, Tenant};
use crate::mapping::transfer::Transfer;
use crate::namespace::Namespaces;
use crate::page_number::PageNumber;
use crate::pool::{FreeBlocks, Pool};

const MAGIC: [u8; 8] = *b"SLOCTLFT";
const VERSION: u32 = 1;
/// Larger heads are no snapshots of ours; keeps a damaged length from allocating the machine away.
const MAX_HEAD_BYTES: u64 = 1 << 32;

/// Bytes of magic, version and code of the mapping.
pub const PROLOGUE_BYTES: usize = MAGIC.len() + 4 + 1;

/// The code of the mapping whose snapshot starts with `prologue`.
pub fn snapshot_code(prologue: &[u8; PROLOGUE_BYTES]) -> Result<u8, FtlError> {
    let (magic, rest) = prologue.split_at(MAGIC.len());
    if magic != MAGIC {
        return refuse("not a snapshot of an emulated SSD");
    }
    let mut version = [0; 4];
    version.copy_from_slice(&rest[..4]);
    if u32::from_le_bytes(version) != VERSION {
        return refuse(format!("format version {}, this program reads {VERSION}", u32::from_le_bytes(version)));
    }
    Ok(rest[4])
}

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

impl<P: PageNumber> PageMapping<P> {
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
        let mapped_bytes = self.namespaces.used_page_numbers() as usize * size_of::<P>();
        let tables = [&self.map.as_bytes_mut()[..mapped_bytes], self.reverse.as_bytes_mut(), self.valid.as_bytes_mut()];
        write_snapshot(size_of::<P>() as u8, &head, &tables, to)
    }

    /// Reads a state that [`PageMapping::save`] wrote, and its label. Anything else is refused.
    pub fn restore(from: &mut impl Read) -> Result<(Self, String), FtlError> {
        let (mut mapping, head) = read_snapshot(size_of::<P>() as u8, from, Self::fitting, Self::tables)?;
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
            && head.namespaces.used_page_numbers() as usize <= mapping.map.len();
        if tables_fit { Ok(mapping) } else { refuse("damaged: tables do not fit the geometry") }
    }

    fn tables<'a>(&'a mut self, head: &Head) -> Vec<&'a mut [u8]> {
        let mapped_bytes = head.namespaces.used_page_numbers() as usize * size_of::<P>();
        vec![&mut self.map.as_bytes_mut()[..mapped_bytes], self.reverse.as_bytes_mut(), self.valid.as_bytes_mut()]
    }
}

/// Writes the snapshot of a mapping: prologue, head, tables, checksum.
pub(in crate::mapping) fn write_snapshot(
    code: u8,
    head: &impl Serialize,
    tables: &[&[u8]],
    to: &mut impl Write,
) -> io::Result<()> {
    let head = postcard::to_stdvec(head).map_err(io::Error::other)?;
    let mut out = Summed { inner: &mut *to, sum: crc32fast::Hasher::new() };
    out.write_all(&MAGIC)?;
    out.write_all(&VERSION.to_le_bytes())?;
    out.write_all(&[code])?;
    out.write_all(&(head.len() as u64).to_le_bytes())?;
    out.write_all(&head)?;
    tables.iter().try_for_each(|table| out.write_all(table))?;
    let sum = out.sum.finalize();
    to.write_all(&sum.to_le_bytes())
}

/// Reads what [`write_snapshot`] wrote. `make` builds an empty mapping from the head, `tables` says where its tables
/// are.
pub(in crate::mapping) fn read_snapshot<H: DeserializeOwned, M>(
    code: u8,
    from: &mut impl Read,
    make: impl FnOnce(&H) -> Result<M, FtlError>,
    tables: impl for<'a> FnOnce(&'a mut M, &H) -> Vec<&'a mut [u8]>,
) -> Result<(M, H), FtlError> {
    let mut input = Summed { inner: &mut *from, sum: crc32fast::Hasher::new() };
    let mut prologue = [0; PROLOGUE_BYTES];
    input.fill(&mut prologue)?;
    let found = snapshot_code(&prologue)?;
    if found != code {
        return refuse(format!("of mapping {found:#x}, expected {code:#x}"));
    }
    let mut length = [0; 8];
    input.fill(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEAD_BYTES {
        return refuse("damaged: impossible length");
    }
    let mut head = Vec::new();
    input.fill_vec(&mut head, length)?;
    let head: H = postcard::from_bytes(&head).or_else(|e| refuse(format!("damaged: {e}")))?;
    let mut mapping = make(&head)?;
    tables(&mut mapping, &head).into_iter().try_for_each(|table| input.fill(table))?;
    let computed = input.sum.finalize();
    let mut stored = [0; 4];
    from.read_exact(&mut stored).or_else(|e| refuse(format!("truncated: {e}")))?;
    if u32::from_le_bytes(stored) != computed {
        return refuse("damaged: the checksum does not match");
    }
    Ok((mapping, head))
}

pub(in crate::mapping) fn refuse<T>(reason: impl Into<String>) -> Result<T, FtlError> {
    Err(FtlError::Snapshot(reason.into()))
}

/// Sums what passes through.
struct Summed<'a, T> {
    inner: &'a mut T,
    sum: crc32fast::Hasher,
}

impl<T: Write> Summed<'_, T> {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.update(bytes);
        self.inner.write_all(bytes)
    }
}

impl<T: Read> Summed<'_, T> {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), FtlError> {
        self.inner.read_exact(bytes).or_else(|e| refuse(format!("truncated: {e}")))?;
        self.sum.update(bytes);
        Ok(())
    }

    /// Reads without trusting the length with an allocation.
    fn fill_vec(&mut self, bytes: &mut Vec<u8>, length: u64) -> Result<(), FtlError> {
        let read =
            self.inner.by_ref().take(length).read_to_end(bytes).or_else(|e| refuse(format!("truncated: {e}")))?;
        if read as u64 != length {
            return refuse("truncated");
        }
        self.sum.update(bytes);
        Ok(())
    }
}
