//! Writing files to stable storage, with a workaround for file systems that report success after losing data.
//!
//! ext4 (seen with Linux 6.18) reports success for a sync although data is lost, if its journal is aborted during the
//! sync, as upon an error after which it is read-only. New blocks of the file can then no longer be marked as written,
//! which no later call reports. Starting a transaction fails, however. So every sync is followed by an operation that
//! starts one and changes nothing. XFS reports the failure itself.

use std::fs::File;
use std::io;

use rustix::fs::{fremovexattr, fstatfs};
use rustix::io::Errno;

/// `f_type` of ext4 in `struct statfs`; ext2 and ext3 have the same.
const EXT4: u64 = 0xef53;
/// An extended attribute that no file has.
const NO_ATTRIBUTE: &str = "user.slo-ctl.none";

/// The data of a file, and its length, is on stable storage when this returns.
pub fn data(file: &File) -> io::Result<()> {
    file.sync_data()?;
    journal_is_well(file)
}

/// The same for everything that there is about a file or a folder.
pub fn all(file: &File) -> io::Result<()> {
    file.sync_all()?;
    journal_is_well(file)
}

fn journal_is_well(file: &File) -> io::Result<()> {
    let is_ext4 = fstatfs(file).is_ok_and(|found| u64::try_from(found.f_type) == Ok(EXT4));
    if !is_ext4 {
        return Ok(());
    }
    match fremovexattr(file, NO_ATTRIBUTE) {
        Err(aborted @ (Errno::ROFS | Errno::IO)) => Err(aborted.into()),
        // There is no such attribute, which only a journal that works finds out; or there are none at all.
        _ => Ok(()),
    }
}
