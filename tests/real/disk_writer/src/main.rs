//! `/init` of the VMs that tests boot: loads the drivers of virtio disks, then writes random 4 KiB pages to `/dev/vda`
//! endlessly, with the queue depth of the kernel's command line (`disk_writer.depth=N`).
//!
//! Once a second it puts the number of writes so far into page 0, flushes, and prints `flushed N` on the console: a
//! reader that finds a smaller number in the disk's image has found a lost write.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

const DISK: &str = "/dev/vda";
const PAGE_BYTES: usize = 4096;
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Aligned as required by direct I/O.
#[repr(align(4096))]
struct Page([u8; PAGE_BYTES]);

fn main() {
    let outcome = run();
    println!("disk_writer: {outcome:?}");
    // The end of init is a kernel panic; the output should be seen first.
    thread::sleep(Duration::from_secs(3600));
}

fn run() -> io::Result<()> {
    for (kind, place) in [("devtmpfs", "/dev"), ("proc", "/proc")] {
        mount(kind, place)?;
    }
    load_modules(Path::new("/modules"))?;
    let disk = Arc::new(open_disk());
    let bytes = fs::metadata(DISK).and_then(|_| size_of(&disk))?;
    let depth = parameter("disk_writer.depth").unwrap_or(1);
    println!("disk_writer: {bytes} bytes, {depth} at a time");
    let written = Arc::new(AtomicU64::new(0));
    for number in 0..depth {
        let (disk, written) = (Arc::clone(&disk), Arc::clone(&written));
        thread::spawn(move || write_for_ever(&disk, bytes / PAGE_BYTES as u64, number, &written));
    }
    loop {
        thread::sleep(FLUSH_INTERVAL);
        let count = written.load(Ordering::Relaxed);
        let mut page = Box::new(Page([0; PAGE_BYTES]));
        page.0[..8].copy_from_slice(&count.to_le_bytes());
        match disk.write_all_at(&page.0, 0).and_then(|()| disk.sync_data()) {
            Ok(()) => println!("flushed {count}"),
            Err(error) => println!("disk_writer: {error}"),
        }
    }
}

fn write_for_ever(disk: &File, pages: u64, number: u64, written: &AtomicU64) {
    let mut page = Box::new(Page([0; PAGE_BYTES]));
    // xorshift64: which pages does not matter, as long as all are as likely.
    let mut state = 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(number + 1);
    loop {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        page.0[..8].copy_from_slice(&state.to_le_bytes());
        match disk.write_all_at(&page.0, (1 + state % (pages - 1)) * PAGE_BYTES as u64) {
            Ok(()) => _ = written.fetch_add(1, Ordering::Relaxed),
            Err(error) => {
                println!("disk_writer: {error}");
                thread::sleep(RETRY_INTERVAL);
            }
        }
    }
}

/// Waits for the disk, which may be plugged in later.
fn open_disk() -> File {
    loop {
        match OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(DISK) {
            Ok(disk) => return disk,
            Err(_) => thread::sleep(RETRY_INTERVAL),
        }
    }
}

fn size_of(disk: &File) -> io::Result<u64> {
    // SAFETY: only reads the size of an open descriptor; SEEK_END on a block device gives its size.
    let bytes = unsafe { libc::lseek(disk.as_raw_fd(), 0, libc::SEEK_END) };
    u64::try_from(bytes).map_err(|_| io::Error::last_os_error())
}

fn mount(kind: &str, place: &str) -> io::Result<()> {
    fs::create_dir_all(place)?;
    let (kind, place) = (CString::new(kind)?, CString::new(place)?);
    // SAFETY: the strings end with NUL and outlive the call; these file systems take no data.
    let failed = unsafe { libc::mount(kind.as_ptr(), place.as_ptr(), kind.as_ptr(), 0, std::ptr::null()) } != 0;
    match failed.then(io::Error::last_os_error) {
        Some(error) if error.raw_os_error() != Some(libc::EBUSY) => Err(error),
        _ => Ok(()),
    }
}

/// Loads every module of the folder, in the order of their names.
fn load_modules(folder: &Path) -> io::Result<()> {
    let mut modules: Vec<PathBuf> = fs::read_dir(folder)?.flatten().map(|entry| entry.path()).collect();
    modules.sort();
    for module in modules {
        let image = fs::read(&module)?;
        let parameters = c"";
        // SAFETY: the image and the parameters outlive the call.
        let failed =
            unsafe { libc::syscall(libc::SYS_init_module, image.as_ptr(), image.len(), parameters.as_ptr()) } != 0;
        if failed {
            println!("disk_writer: {}: {}", module.display(), io::Error::last_os_error());
        }
    }
    Ok(())
}

fn parameter(name: &str) -> Option<u64> {
    let line = fs::read_to_string("/proc/cmdline").ok()?;
    line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
}
