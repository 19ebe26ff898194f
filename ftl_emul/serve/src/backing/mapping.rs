//! Data on tmpfs, mapped into this process: reads and writes are copies of memory instead of system calls.
//!
//! Accessing a page for which there is no memory kills the process (SIGBUS). So a file is mapped only after all of it
//! is allocated, and a thread that frees pages has exclusive access to the mapping until they are allocated again.
//!
//! Allocated pages that were never written are holes of the file nevertheless, by which placement is rebuilt and clients
//! find data. Touching them would end that, so reads do not.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use ftl_core::convert::exact;
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, fstatfs, fstatvfs, seek};
use rustix::io::{Errno, retry_on_intr};
use vm_memory::{FileOffset, MmapRegion, VolatileMemory, VolatileSlice, volatile_memory};

/// `f_type` of tmpfs in `struct statfs`.
const TMPFS: u64 = 0x0102_1994;
/// Unit for which it is recorded whether it was written.
const PAGE_BYTES: usize = 4096;
static ZEROES: [u8; PAGE_BYTES] = [0; PAGE_BYTES];

/// The mapping of a file.
#[derive(Debug)]
pub struct Mapping {
    file: Arc<File>,
    /// Name for the log.
    path: PathBuf,
    /// None, until the next start, once there was no memory for all of it.
    mapped: RwLock<Option<Mapped>>,
}

/// All of a file.
#[derive(Debug)]
struct Mapped {
    region: MmapRegion,
    /// A bit for each page: it was written since it was last a hole.
    written: Vec<AtomicU64>,
}

impl Mapping {
    /// Maps a file; None if it is not on tmpfs, or there is not enough memory.
    pub fn of(file: &Arc<File>, path: &Path) -> Option<Self> {
        let is_on_tmpfs = fstatfs(file).is_ok_and(|found| u64::try_from(found.f_type) == Ok(TMPFS));
        if !is_on_tmpfs {
            return None;
        }
        let mapped = Mapped::new(file, 0).inspect_err(|e| say_unmapped(path, e)).ok()?;
        Some(Self { file: Arc::clone(file), path: path.to_owned(), mapped: RwLock::new(Some(mapped)) })
    }

    /// Runs an operation on mapped data; false if the file, or that part of it, is not mapped.
    fn with(&self, work: impl FnOnce(&Mapped) -> volatile_memory::Result<()>) -> bool {
        let mapped = self.mapped.read().unwrap_or_else(PoisonError::into_inner);
        mapped.as_ref().is_some_and(|mapped| work(mapped).is_ok())
    }

    /// Fills memory from `offset`; false if it is not mapped, likewise below.
    pub fn read(&self, parts: &[VolatileSlice<'_>], offset: u64) -> bool {
        self.with(|mapped| {
            let mut at = exact::<usize>(offset);
            parts.iter().try_for_each(|part| {
                mapped.read(part, at)?;
                at += part.len();
                Ok(())
            })
        })
    }

    /// Writes from a buffer.
    pub fn write(&self, buffer: &[u8], offset: u64) -> bool {
        self.with(|mapped| {
            mapped.to_write(exact(offset), buffer.len())?.copy_from(buffer);
            Ok(())
        })
    }

    /// Writes from a guest's memory.
    pub fn write_guest(&self, parts: &[VolatileSlice<'_>], offset: u64) -> bool {
        self.with(|mapped| {
            let mut at = exact::<usize>(offset);
            parts.iter().try_for_each(|part| {
                part.copy_to_volatile_slice(mapped.to_write(at, part.len())?);
                at += part.len();
                Ok(())
            })
        })
    }

    /// Makes a range a hole by `punch`, for which there is memory as before.
    pub fn punch(&self, offset: u64, length: u64, punch: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut mapped = self.mapped.write().unwrap_or_else(PoisonError::into_inner);
        let punched = punch();
        if let Some(still) = &mut *mapped {
            if punched.is_ok() {
                still.forget(offset, length);
            }
            if let Err(e) = allocate(&self.file, offset, length) {
                say_unmapped(&self.path, &e);
                *mapped = None;
            }
        }
        punched
    }

    /// Changes the length of the file with `resize`, and maps it anew.
    pub fn resize(&self, resize: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut mapped = self.mapped.write().unwrap_or_else(PoisonError::into_inner);
        let before = mapped.take();
        let resized = resize();
        if let Some(before) = before {
            let allocated = before.region.size().next_multiple_of(PAGE_BYTES) as u64;
            *mapped = Mapped::new(&self.file, allocated).inspect_err(|e| say_unmapped(&self.path, e)).ok();
        }
        resized
    }

    /// Whether it is mapped at present.
    pub fn is_mapped(&self) -> bool {
        self.mapped.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

fn say_unmapped(path: &Path, why: &io::Error) {
    eprintln!("slo-ctl: {} is on tmpfs but served by system calls, which takes longer: {why}", path.display());
}

impl Mapped {
    /// The file is allocated up to there, and perhaps further.
    fn new(file: &Arc<File>, allocated: u64) -> io::Result<Self> {
        let found = file.metadata()?;
        let has_bytes = found.blocks() * 512;
        if has_bytes != found.len().next_multiple_of(PAGE_BYTES as u64) && allocated < found.len() {
            check_room(file, found.len().saturating_sub(has_bytes))?;
            allocate(file, allocated, found.len() - allocated)?;
        }
        let bytes = exact::<usize>(found.len());
        let region =
            MmapRegion::from_file(FileOffset::from_arc(Arc::clone(file), 0), bytes).map_err(io::Error::other)?;
        let written = (0..bytes.div_ceil(PAGE_BYTES).div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let mapped = Self { region, written };
        let mut at = 0;
        while let Some(data) = next(file, SeekFrom::Data(at))? {
            at = next(file, SeekFrom::Hole(data))?.unwrap_or(found.len());
            mapped.note_written(exact(data), exact(at - data));
        }
        Ok(mapped)
    }

    /// The word of a page in `written`, and its bit.
    fn bit(&self, page: usize) -> (&AtomicU64, u64) {
        (&self.written[page / 64], 1 << (page % 64))
    }

    fn note_written(&self, at: usize, length: usize) {
        for page in at / PAGE_BYTES..(at + length).div_ceil(PAGE_BYTES) {
            let (word, bit) = self.bit(page);
            if word.load(Ordering::Relaxed) & bit == 0 {
                word.fetch_or(bit, Ordering::Relaxed);
            }
        }
    }

    /// Marks the whole pages of a range as not written.
    fn forget(&mut self, offset: u64, length: u64) {
        let (begin, end) = (exact::<usize>(offset), exact::<usize>(offset + length));
        for page in begin.div_ceil(PAGE_BYTES)..end / PAGE_BYTES {
            let (word, bit) = self.bit(page);
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    fn read(&self, to: &VolatileSlice<'_>, from: usize) -> volatile_memory::Result<()> {
        let source = self.region.get_slice(from, to.len())?;
        let mut done = 0;
        while done < to.len() {
            let at = from + done;
            let bytes = (PAGE_BYTES - at % PAGE_BYTES).min(to.len() - done);
            let part = to.subslice(done, bytes)?;
            let (word, bit) = self.bit(at / PAGE_BYTES);
            if word.load(Ordering::Relaxed) & bit == 0 {
                part.copy_from(&ZEROES[..bytes]);
            } else {
                source.subslice(done, bytes)?.copy_to_volatile_slice(part);
            }
            done += bytes;
        }
        Ok(())
    }

    /// Marks a range that is about to be written.
    fn to_write(&self, at: usize, length: usize) -> volatile_memory::Result<VolatileSlice<'_>> {
        let target = self.region.get_slice(at, length)?;
        self.note_written(at, length);
        Ok(target)
    }
}

/// Allocates the missing pages of a range. Pages that are allocated again count as written data.
fn allocate(file: &File, offset: u64, length: u64) -> io::Result<()> {
    Ok(retry_on_intr(|| fallocate(file, FallocateFlags::KEEP_SIZE, offset, length))?)
}

/// The next data or hole; None when there is none up to the end of the file.
fn next(file: &File, what: SeekFrom) -> io::Result<Option<u64>> {
    match seek(file, what) {
        Err(Errno::NXIO) => Ok(None),
        found => Ok(Some(found?)),
    }
}

/// Err where the rest of a file would take more than half of the memory or of the space that is left. Without memory
/// the kernel would rather end processes than refuse it, and the device's other files need space.
fn check_room(file: &File, missing: u64) -> io::Result<()> {
    let memory = fs::read_to_string("/proc/meminfo")?;
    let available = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB"));
    let available_kib: u64 = available.and_then(|kib| kib.parse().ok()).unwrap_or(0);
    let space = fstatvfs(file)?;
    // Without a limit the file system reports 0 of 0.
    let free_kib = if space.f_blocks == 0 { u64::MAX } else { space.f_bavail.saturating_mul(space.f_frsize) / 1024 };
    let left_kib = available_kib.min(free_kib);
    if missing / 1024 <= left_kib / 2 {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "{} MiB of it are not allocated yet, more than half of the {} MiB that are left",
        missing >> 20,
        left_kib >> 10
    )))
}

#[cfg(test)]
pub mod tests {
    use std::os::fd::AsRawFd;

    use proptest::prelude::*;
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;
    use crate::backing::Backing;

    const SIZE: u64 = 1 << 20;

    fn on_tmpfs(bytes: u64) -> File {
        let file = File::from(memfd_create("vm", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(bytes).unwrap();
        file
    }

    fn open(file: &File) -> Backing {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        Backing::open(Path::new(&path), file.metadata().unwrap().len()).unwrap()
    }

    /// A mapped file, in the place of one in that folder.
    pub fn mapped(bytes: u64) -> (tempfile::TempDir, Backing) {
        let backing = open(&on_tmpfs(bytes));
        assert!(is_mapped(&backing));
        (tempfile::tempdir().unwrap(), backing)
    }

    fn is_mapped(backing: &Backing) -> bool {
        backing.mapping.as_ref().is_some_and(Mapping::is_mapped)
    }

    fn holes(file: &File) -> Vec<bool> {
        let is_hole = |at| next(file, SeekFrom::Data(at)).unwrap() != Some(at);
        (0..file.metadata().unwrap().len()).step_by(PAGE_BYTES).map(is_hole).collect()
    }

    #[test]
    fn all_of_it_is_allocated_and_only_what_was_written_is_data() {
        let file = on_tmpfs(SIZE);
        let backing = open(&file);
        let allocated = || file.metadata().unwrap().blocks() * 512;
        assert_eq!(allocated(), SIZE);
        let mut all = vec![1; exact(SIZE)];
        backing.read(&mut all, 0).unwrap();
        assert!(all.iter().all(|&b| b == 0) && holes(&file).into_iter().all(|hole| hole), "reads allocate no data");
        backing.write(&all, 0, false).unwrap();
        assert!(!holes(&file).contains(&true));
        backing.punch(0, SIZE / 2).unwrap();
        assert_eq!(allocated(), SIZE);
        assert_eq!(holes(&file), [[true; 128], [false; 128]].concat());
        // As after a kill: only the file remains.
        let backing = open(&file);
        assert_eq!(holes(&file), [[true; 128], [false; 128]].concat());
        backing.zero(SIZE / 2, SIZE / 4).unwrap();
        backing.resize(2 * SIZE).unwrap();
        assert_eq!(allocated(), 2 * SIZE);
        assert_eq!(holes(&file), [&[true; 192][..], &[false; 64], &[true; 256]].concat());
        assert!(is_mapped(&backing));
    }

    #[test]
    fn a_file_of_another_length_is_mapped_anew() {
        let file = on_tmpfs(SIZE);
        let backing = open(&file);
        for bytes in [2 * SIZE, SIZE / 2, SIZE] {
            backing.resize(bytes).unwrap();
            assert_eq!(file.metadata().unwrap().blocks() * 512, bytes);
            backing.write(&[7; 4096], bytes - 4096, false).unwrap();
            assert!(is_mapped(&backing));
        }
        let mut found = [0; 4096];
        backing.read(&mut found, SIZE / 2 - 4096).unwrap();
        assert_eq!(found, [7; 4096]);
        // As for a file on disk.
        backing.read(&mut found, SIZE).unwrap();
        assert_eq!(found, [0; 4096]);
    }

    #[test]
    fn a_file_that_is_larger_than_the_memory_is_served_without_a_mapping() {
        let file = on_tmpfs(1 << 50);
        let backing = open(&file);
        assert!(backing.mapping.is_none());
        assert_eq!(file.metadata().unwrap().blocks(), 0);
        backing.write(&[7; 5000], 1 << 49, true).unwrap();
        let mut found = [0; 5000];
        backing.read_now(&mut found, 1 << 49).unwrap();
        assert_eq!(found, [7; 5000]);
        // A namespace that grows beyond it.
        let (_folder, backing) = mapped(SIZE);
        backing.resize(1 << 50).unwrap();
        assert!(!is_mapped(&backing));
        backing.write(&[7; 5000], 1 << 49, true).unwrap();
        backing.read(&mut found, 1 << 49).unwrap();
        assert_eq!(found, [7; 5000]);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Write(u8),
        WriteGuest(u8),
        Punch,
        Zero,
        Reopen,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (1..255u8).prop_map(Step::Write),
            (1..255u8).prop_map(Step::WriteGuest),
            Just(Step::Punch),
            Just(Step::Zero),
            Just(Step::Reopen),
        ]
    }

    proptest! {
        #[test]
        fn what_is_read_is_what_was_written(
            steps in proptest::collection::vec((step(), 0..120_000usize, 1..40_000usize), 1..30),
        ) {
            const BYTES: usize = 160_000;
            let file = on_tmpfs(BYTES as u64);
            let mut backing = open(&file);
            let mut expected = vec![0; BYTES];
            for (step, at, length) in steps {
                let (offset, bytes, part) = (at as u64, length as u64, &mut expected[at..at + length]);
                match step {
                    Step::Write(byte) => {
                        part.fill(byte);
                        backing.write(part, offset, false).unwrap();
                    }
                    Step::WriteGuest(byte) => {
                        part.fill(byte);
                        let (first, second) = part.split_at_mut(length / 3);
                        backing.write_guest(&[VolatileSlice::from(first), VolatileSlice::from(second)], offset).unwrap();
                    }
                    Step::Punch => {
                        part.fill(0);
                        backing.punch(offset, bytes).unwrap();
                    }
                    Step::Zero => {
                        part.fill(0);
                        backing.zero(offset, bytes).unwrap();
                    }
                    Step::Reopen => backing = open(&file),
                }
                let mut found = vec![255; BYTES];
                let (first, second) = found.split_at_mut(at);
                backing.read_guest(&[VolatileSlice::from(first), VolatileSlice::from(second)], 0).unwrap();
                prop_assert!(found == expected);
            }
            // Others that open the file see the same.
            let mut found = vec![255; BYTES];
            std::os::unix::fs::FileExt::read_exact_at(&file, &mut found, 0).unwrap();
            prop_assert!(found == expected);
        }
    }
}
