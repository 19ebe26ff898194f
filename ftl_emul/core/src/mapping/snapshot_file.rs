//! The file with the state of a mapping, for all mappings.
//!
//! Layout, little-endian: magic, format version (u32), code of the mapping (u8), length of the head (u64), head
//! (postcard), CRC-32 of all of that, the tables as in memory, CRC-32 of all of it. The head contains everything except
//! the tables, and says how large these are: memory is allocated only for a head whose checksum is right.

use std::io::{self, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::FtlError;

const MAGIC: [u8; 8] = *b"SLOCTLFT";
const VERSION: u32 = 2;
/// Limit of the head, so that a damaged length does not allocate all memory.
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

/// Writes the snapshot of a mapping: prologue, head, tables, checksum.
pub(in crate::mapping) fn write_snapshot(
    code: u8,
    head: &impl Serialize,
    tables: &[&[u8]],
    to: &mut impl Write,
) -> io::Result<()> {
    let head = postcard::to_stdvec(head).map_err(io::Error::other)?;
    let mut out = Checksummed { inner: &mut *to, sum: crc32fast::Hasher::new() };
    out.write_all(&MAGIC)?;
    out.write_all(&VERSION.to_le_bytes())?;
    out.write_all(&[code])?;
    out.write_all(&(head.len() as u64).to_le_bytes())?;
    out.write_all(&head)?;
    out.write_sum()?;
    tables.iter().try_for_each(|table| out.write_all(table))?;
    out.write_sum()
}

/// Reads a file of [`write_snapshot`]. `make` builds an empty mapping from the head, `tables` returns its tables.
pub(in crate::mapping) fn read_snapshot<H: DeserializeOwned, M>(
    code: u8,
    from: &mut impl Read,
    make: impl FnOnce(&H) -> Result<M, FtlError>,
    tables: impl for<'a> FnOnce(&'a mut M, &H) -> Vec<&'a mut [u8]>,
) -> Result<(M, H), FtlError> {
    let mut input = Checksummed { inner: &mut *from, sum: crc32fast::Hasher::new() };
    let mut prologue = [0; PROLOGUE_BYTES];
    input.fill(&mut prologue)?;
    let found = snapshot_code(&prologue)?;
    if found != code {
        return refuse(format!("mapping {found:#x}, expected {code:#x}"));
    }
    let mut length = [0; 8];
    input.fill(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEAD_BYTES {
        return refuse("damaged: impossible length");
    }
    let mut head = Vec::new();
    input.fill_vec(&mut head, length)?;
    input.check_sum()?;
    let head: H = postcard::from_bytes(&head).or_else(|e| refuse(format!("damaged: {e}")))?;
    let mut mapping = make(&head)?;
    tables(&mut mapping, &head).into_iter().try_for_each(|table| input.fill(table))?;
    input.check_sum()?;
    Ok((mapping, head))
}

pub(in crate::mapping) fn refuse<T>(reason: impl Into<String>) -> Result<T, FtlError> {
    Err(FtlError::Snapshot(reason.into()))
}

/// Computes the checksum of the data that passes through.
struct Checksummed<'a, T> {
    inner: &'a mut T,
    sum: crc32fast::Hasher,
}

impl<T: Write> Checksummed<'_, T> {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.update(bytes);
        self.inner.write_all(bytes)
    }

    /// Writes the checksum of what was written so far.
    fn write_sum(&mut self) -> io::Result<()> {
        let sum = self.sum.clone().finalize();
        self.write_all(&sum.to_le_bytes())
    }
}

impl<T: Read> Checksummed<'_, T> {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), FtlError> {
        self.inner.read_exact(bytes).or_else(|e| refuse(format!("truncated: {e}")))?;
        self.sum.update(bytes);
        Ok(())
    }

    /// Refuses data that does not have the checksum which follows.
    fn check_sum(&mut self) -> Result<(), FtlError> {
        let computed = self.sum.clone().finalize();
        let mut stored = [0; 4];
        self.fill(&mut stored)?;
        if u32::from_le_bytes(stored) == computed { Ok(()) } else { refuse("damaged: the checksum does not match") }
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

/// Gives a forged file of [`write_snapshot`] the right checksums, if its head still has its length.
#[cfg(test)]
pub(in crate::mapping) fn sum_anew(file: &mut [u8], head_bytes: usize) {
    for end in [PROLOGUE_BYTES + 8 + head_bytes, file.len() - 4] {
        let sum = crc32fast::hash(&file[..end]);
        file[end..end + 4].copy_from_slice(&sum.to_le_bytes());
    }
}

/// Bytes of the head of a file of [`write_snapshot`].
#[cfg(test)]
pub(in crate::mapping) fn head_bytes(file: &[u8]) -> usize {
    let length = file[PROLOGUE_BYTES..].first_chunk().copied().unwrap_or_default();
    crate::convert::exact(u64::from_le_bytes(length))
}
