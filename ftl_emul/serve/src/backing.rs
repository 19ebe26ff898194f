//! Guest data: one sparse file for each namespace, at the guest's own offsets.
//!
//! All data acknowledged to the guest is in this file (or its page cache) before the reply is sent; there is no other
//! copy. So a crash of the server keeps what a plain file would keep.

mod mapping;

use ftl_core::convert::exact;
use ftl_core::error::size_text;
use std::fs::{self, File};
use std::io::{self, IoSliceMut};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rustix::io::{Errno, ReadWriteFlags, preadv2};
use vm_memory::VolatileSlice;

use crate::error::{ServeError, refuse};
use crate::sync;
use crate::threads::lock;
use mapping::Mapping;

/// Bytes written to the file at once, and the alignment of such pieces. Kernels keep data that is written at once as
/// one folio of the page cache, and some (ext4 in 6.18) process a whole folio to change a part of it: after writes of 1
/// MiB, random ones of 4 KiB took three times as long.
const PIECE_BYTES: u64 = 16 << 10;

/// One backing file.
#[derive(Debug)]
pub struct Backing {
    file: Arc<File>,
    /// None where reads and writes are system calls.
    mapping: Option<Mapping>,
    /// A flush has failed: the kernel may have lost writes, which it reports only once.
    failed: AtomicBool,
    /// Held while the file is synced: of two concurrent syncs the kernel reports lost writes only to one.
    syncing: Mutex<()>,
    /// Number of syncs that were started.
    syncs: AtomicU64,
    /// Bytes that found no room; 0 while there is some.
    without_room: AtomicU64,
}

/// Why not all is well with a backing file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ailment {
    /// Writes may be lost; all requests are refused until the next start.
    FlushFailed,
    /// There is no space for a write; other requests continue.
    NoSpace,
}

impl std::fmt::Display for Ailment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::FlushFailed => "a flush has failed: nothing more is written until the server is started anew",
            Self::NoSpace => "the file system of the backing file is full: writes that need space are refused",
        })
    }
}

/// A part of the file, either data or a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// No space is allocated; reads as zeroes.
    pub hole: bool,
}

impl Backing {
    /// Opens a file that exists already: making an empty one in its stead would hide that data is lost.
    pub fn open(path: &Path, size_bytes: u64) -> Result<Self, ServeError> {
        let file =
            fs::OpenOptions::new().read(true).write(true).open(path).map_err(|e| missing(path, size_bytes, &e))?;
        let found = file.metadata().map_err(|e| ServeError::io("cannot examine", path, &e))?;
        if !found.is_file() {
            return refuse(format!("{} is not a file", path.display()));
        }
        if found.len() < size_bytes {
            return refuse(format!(
                "{0} has {1} where the namespace has {2}: data is missing; its first {1} and the other namespaces are \
                 there. Restore the file, or have the rest read as zeroes: truncate -s {size_bytes} {0}",
                path.display(),
                size_text(found.len()),
                size_text(size_bytes),
            ));
        }
        let file = Arc::new(file);
        let mapping = Mapping::of(&file, path);
        let backing = Self {
            file,
            mapping,
            failed: AtomicBool::new(false),
            syncing: Mutex::new(()),
            syncs: AtomicU64::new(0),
            without_room: AtomicU64::new(0),
        };
        backing.expect_random_access();
        Ok(backing)
    }

    /// Guests read ahead themselves; and see [`PIECE_BYTES`].
    fn expect_random_access(&self) {
        // SAFETY: a plain system call on a descriptor that `self.file` keeps open; no memory is passed. It is advice:
        // without an effect on correctness.
        let _advice = unsafe { libc::posix_fadvise(self.file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
    }

    /// Fills `buffer` from `offset`; beyond the end of the file there are zeroes.
    pub fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        if self.read_mapped(buffer, offset) {
            return Ok(());
        }
        let mut done = 0;
        while done < buffer.len() {
            match self.file.read_at(&mut buffer[done..], offset + done as u64) {
                Ok(0) => {
                    buffer[done..].fill(0);
                    break;
                }
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn read_mapped(&self, buffer: &mut [u8], offset: u64) -> bool {
        self.mapping.as_ref().is_some_and(|mapping| mapping.read(&[VolatileSlice::from(buffer)], offset))
    }

    /// The same for cached data: `WouldBlock` if the disk would have to be read.
    pub fn read_now(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        if self.read_mapped(buffer, offset) {
            return Ok(());
        }
        let length = buffer.len();
        match preadv2(&self.file, &mut [IoSliceMut::new(buffer)], offset, ReadWriteFlags::NOWAIT) {
            Ok(read) if read == length => Ok(()),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Err(io::ErrorKind::WouldBlock.into()),
            // The file system does not report which data is cached.
            Err(Errno::OPNOTSUPP) => self.read(buffer, offset),
            Err(e) => Err(e.into()),
        }
    }

    /// Writes all of `buffer` at `offset`; with `fua` it is on stable storage when this returns.
    pub fn write(&self, buffer: &[u8], offset: u64, fua: bool) -> io::Result<()> {
        self.usable()?;
        let is_mapped = self.mapping.as_ref().is_some_and(|mapping| mapping.write(buffer, offset));
        let (mut rest, mut at) = (if is_mapped { &[] } else { buffer }, offset);
        while !rest.is_empty() {
            let fits = (PIECE_BYTES - at % PIECE_BYTES).min(rest.len() as u64);
            let (piece, after) = rest.split_at(exact::<usize>(fits));
            self.file.write_all_at(piece, at).inspect_err(|e| self.note_full(e, rest.len() as u64))?;
            (rest, at) = (after, at + fits);
        }
        if fua { self.flush() } else { Ok(()) }
    }

    /// Reads cached data into a guest's memory; `WouldBlock` if the disk would have to be read.
    pub fn read_guest(&self, parts: &[VolatileSlice<'_>], offset: u64) -> io::Result<()> {
        if self.mapping.as_ref().is_some_and(|mapping| mapping.read(parts, offset)) {
            return Ok(());
        }
        match self.move_guest(parts, offset, |fd, vectors, count, at| {
            // SAFETY: see `move_guest`.
            unsafe { libc::preadv2(fd, vectors, count, at, libc::RWF_NOWAIT) }
        }) {
            // The file system does not report which data is cached.
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                self.move_guest(parts, offset, |fd, vectors, count, at| {
                    // SAFETY: see `move_guest`.
                    unsafe { libc::preadv(fd, vectors, count, at) }
                })
            }
            Err(e) if e.raw_os_error() == Some(libc::EINTR) => Err(io::ErrorKind::WouldBlock.into()),
            done => done,
        }
    }

    /// Writes from a guest's memory; `WouldBlock` if [`Self::write`] has to write the data, even if only to determine
    /// why it fails.
    pub fn write_guest(&self, parts: &[VolatileSlice<'_>], offset: u64) -> io::Result<()> {
        self.usable()?;
        if self.mapping.as_ref().is_some_and(|mapping| mapping.write_guest(parts, offset)) {
            return Ok(());
        }
        let length: usize = parts.iter().map(VolatileSlice::len).sum();
        if offset % PIECE_BYTES + length as u64 > PIECE_BYTES {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let done = self.move_guest(parts, offset, |fd, vectors, count, at| {
            // SAFETY: see `move_guest`.
            unsafe { libc::pwritev(fd, vectors, count, at) }
        });
        done.map_err(|_| io::ErrorKind::WouldBlock.into())
    }

    /// Calls `transfer` with the file, vectors for the kernel, their number, and the offset; `WouldBlock` where it moves
    /// less than all.
    ///
    /// The vectors are valid during the call: the slices borrow the mapping of the guest's memory, and the guards keep
    /// it accessible. The guest may change that memory concurrently, which affects only the kernel's copy.
    fn move_guest(
        &self,
        parts: &[VolatileSlice<'_>],
        offset: u64,
        transfer: impl Fn(i32, *const libc::iovec, i32, i64) -> isize,
    ) -> io::Result<()> {
        let guards: Vec<_> = parts.iter().map(|part| (part.ptr_guard_mut(), part.len())).collect();
        let vectors: Vec<libc::iovec> = guards
            .iter()
            .map(|(guard, length)| libc::iovec { iov_base: guard.as_ptr().cast(), iov_len: *length })
            .collect();
        let length: usize = parts.iter().map(VolatileSlice::len).sum();
        let fd = self.file.as_raw_fd();
        let moved = transfer(fd, vectors.as_ptr(), exact::<i32>(vectors.len()), exact::<i64>(offset));
        match usize::try_from(moved) {
            Ok(moved) if moved == length => Ok(()),
            Ok(_) => Err(io::ErrorKind::WouldBlock.into()),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }

    /// Everything written so far is on stable storage when this returns.
    ///
    /// Once this has failed it never succeeds again, nor does a write: the kernel reports lost writes only once, so a
    /// later success would be wrong.
    pub fn flush(&self) -> io::Result<()> {
        let begun = self.syncs.load(Ordering::SeqCst);
        let _turn = lock(&self.syncing);
        self.usable()?;
        // Waiting callers share the next sync, which begins after they came.
        if self.syncs.load(Ordering::SeqCst) > begun {
            return Ok(());
        }
        self.syncs.fetch_add(1, Ordering::SeqCst);
        let flushed = sync::data(&self.file);
        if flushed.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        flushed
    }

    /// Makes a range read as zeroes and frees its space. `EOPNOTSUPP` if the file system cannot.
    pub fn punch(&self, offset: u64, length: u64) -> io::Result<()> {
        let punch = || self.fallocate(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, offset, length);
        match &self.mapping {
            Some(mapping) if length > 0 => mapping.punch(offset, length, punch),
            _ => punch(),
        }
    }

    /// Makes a range read as zeroes and keeps its space. `EOPNOTSUPP` if the file system cannot do it quickly.
    pub fn zero(&self, offset: u64, length: u64) -> io::Result<()> {
        if self.mapping.as_ref().is_some_and(Mapping::is_mapped) {
            return self.punch(offset, length);
        }
        let zeroed = self.fallocate(libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE, offset, length);
        match zeroed {
            Err(e) if is_unsupported(&e) => {
                self.punch(offset, length)?;
                self.fallocate(libc::FALLOC_FL_KEEP_SIZE, offset, length)
            }
            done => done,
        }
    }

    fn fallocate(&self, mode: i32, offset: u64, length: u64) -> io::Result<()> {
        self.usable()?;
        if length == 0 {
            return Ok(());
        }
        loop {
            // SAFETY: a plain system call on a descriptor that `self.file` keeps open; no memory is passed.
            let done =
                unsafe { libc::fallocate(self.file.as_raw_fd(), mode, exact::<i64>(offset), exact::<i64>(length)) };
            if done == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                self.note_full(&error, length);
                return Err(error);
            }
        }
    }

    fn note_full(&self, error: &io::Error, needed: u64) {
        if matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT)) {
            self.without_room.store(needed.max(1), Ordering::Relaxed);
        }
    }

    /// Checks whether there is space again. This does not detect quotas, which the next write shows.
    pub fn look_for_room(&self) {
        let needed = self.without_room.load(Ordering::Relaxed);
        if needed == 0 {
            return;
        }
        // SAFETY: statvfs is a plain C value, for which all zeroes is a value.
        let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel fills in `found`; the descriptor is one that `self.file` keeps open.
        let asked = unsafe { libc::fstatvfs(self.file.as_raw_fd(), &raw mut found) };
        if asked != 0 || found.f_bavail.saturating_mul(found.f_frsize) >= needed {
            // Unless another write has found none in the meantime.
            let _still = self.without_room.compare_exchange(needed, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// The extent that `offset` lies in, cut off at `end`. A file system without holes has one extent of data.
    pub fn extent_at(&self, offset: u64, end: u64) -> io::Result<Extent> {
        let data = self.seek(offset, libc::SEEK_DATA)?.unwrap_or(end).min(end);
        if data > offset {
            return Ok(Extent { offset, length: data - offset, hole: true });
        }
        let hole = self.seek(offset, libc::SEEK_HOLE)?.unwrap_or(end).min(end);
        // A hole punched between the two calls would give an empty extent.
        Ok(Extent { offset, length: hole.saturating_sub(offset).max(1), hole: false })
    }

    /// End of the last data between `from` and `to`; None when there is none.
    pub fn data_end(&self, from: u64, to: u64) -> io::Result<Option<u64>> {
        let (mut at, mut last) = (from, None);
        while at < to {
            let extent = self.extent_at(at, to)?;
            at += extent.length;
            if !extent.hole {
                last = Some(at);
            }
        }
        Ok(last)
    }

    /// None when there is no such thing up to the end of the file.
    fn seek(&self, offset: u64, whence: i32) -> io::Result<Option<u64>> {
        // SAFETY: a plain system call on a descriptor that `self.file` keeps open. It moves the file position, which is
        // not used: all input and output is at explicit offsets.
        let found = unsafe { libc::lseek(self.file.as_raw_fd(), exact::<i64>(offset), whence) };
        if found >= 0 {
            return Ok(Some(exact::<u64>(found)));
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() == Some(libc::ENXIO) { Ok(None) } else { Err(error) }
    }

    /// Length of the file.
    pub fn length(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Changes the length of the file; it is so on stable storage when this returns.
    pub fn resize(&self, size_bytes: u64) -> io::Result<()> {
        self.usable()?;
        match &self.mapping {
            Some(mapping) => mapping.resize(|| self.file.set_len(size_bytes))?,
            None => self.file.set_len(size_bytes)?,
        }
        #[cfg(test)]
        crate::faults::resized(&self.file);
        self.flush()?;
        #[cfg(test)]
        crate::faults::synced(&self.file);
        Ok(())
    }

    /// When the file was last changed, nanoseconds since 1970.
    pub fn modified_ns(&self) -> io::Result<i64> {
        let found = self.file.metadata()?;
        Ok(found.mtime() * 1_000_000_000 + found.mtime_nsec())
    }

    /// Its problem, if it has one.
    #[must_use]
    pub fn ailment(&self) -> Option<Ailment> {
        if self.failed.load(Ordering::Relaxed) {
            Some(Ailment::FlushFailed)
        } else if self.without_room.load(Ordering::Relaxed) > 0 {
            Some(Ailment::NoSpace)
        } else {
            None
        }
    }

    fn usable(&self) -> io::Result<()> {
        let failed = self.failed.load(Ordering::Relaxed);
        if failed { Err(io::Error::from_raw_os_error(libc::EIO)) } else { Ok(()) }
    }
}

fn missing(path: &Path, size_bytes: u64, error: &io::Error) -> ServeError {
    if error.kind() != io::ErrorKind::NotFound {
        return ServeError::io("cannot open", path, error);
    }
    ServeError::File(format!(
        "cannot open {0}: {error}; the other namespaces are there. Restore the file, or begin with an empty one: \
         truncate -s {size_bytes} {0}",
        path.display()
    ))
}

/// True when the file system has no such operation.
#[must_use]
pub fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY | libc::EINVAL))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 20;

    fn backing() -> (tempfile::TempDir, Backing) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vm.img");
        File::create(&path).unwrap().set_len(SIZE).unwrap();
        (folder, Backing::open(&path, SIZE).unwrap())
    }

    /// On disk, with system calls, and on tmpfs, mapped.
    fn backings() -> [(tempfile::TempDir, Backing); 2] {
        [backing(), mapping::tests::mapped(SIZE)]
    }

    #[test]
    fn written_data_is_kept_and_holes_read_as_zeroes() {
        for (_folder, backing) in backings() {
            backing.write(&[7; 5000], 4000, true).unwrap();
            let mut found = vec![1; 6000];
            backing.read(&mut found, 3500).unwrap();
            assert!(found[..500].iter().all(|&b| b == 0));
            assert!(found[500..5500].iter().all(|&b| b == 7));
            assert!(found[5500..].iter().all(|&b| b == 0));
        }
    }

    #[test]
    fn holes_and_data_follow_writes_and_punches() {
        for (_folder, backing) in backings() {
            assert_eq!(backing.extent_at(0, SIZE).unwrap(), Extent { offset: 0, length: SIZE, hole: true });
            backing.write(&[1; 65_536], 65_536, false).unwrap();
            assert_eq!(backing.extent_at(0, SIZE).unwrap(), Extent { offset: 0, length: 65_536, hole: true });
            let data = backing.extent_at(65_536, SIZE).unwrap();
            assert_eq!(data, Extent { offset: 65_536, length: 65_536, hole: false });
            backing.punch(65_536, 65_536).unwrap();
            assert!(backing.extent_at(65_536, SIZE).unwrap().hole);
            backing.zero(0, 8192).unwrap();
            let mut found = [9; 8192];
            backing.read(&mut found, 0).unwrap();
            assert!(found.iter().all(|&b| b == 0));
        }
    }

    #[test]
    fn nothing_is_accepted_after_a_failed_flush() {
        let (_folder, mut backing) = backing();
        // It cannot be synced.
        backing.file = Arc::new(File::options().read(true).write(true).open("/dev/null").unwrap());
        assert_eq!(backing.ailment(), None);
        backing.flush().unwrap_err();
        assert_eq!(backing.ailment(), Some(Ailment::FlushFailed));
        backing.file = Arc::new(tempfile::tempfile().unwrap());
        let refused = [backing.flush(), backing.write(&[1], 0, false), backing.punch(0, 1), backing.resize(SIZE)];
        assert!(refused.iter().all(|done| done.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::EIO))));
    }

    #[test]
    fn a_missing_or_short_file_is_refused() {
        let (folder, _) = backing();
        assert!(Backing::open(&folder.path().join("none"), 1).is_err());
        let message = Backing::open(&folder.path().join("vm.img"), SIZE + 1).unwrap_err().to_string();
        assert!(message.contains("data is missing"), "{message}");
    }
}
