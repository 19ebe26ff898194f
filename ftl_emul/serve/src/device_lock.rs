//! The lock of a device: one process serves it at a time.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::path::Path;

use crate::error::{ServeError, refuse};

/// Takes the lock of a device, or takes over one that was inherited locked.
pub fn take(folder: &Path, inherited: Option<RawFd>) -> Result<File, ServeError> {
    let path = folder.join("lock");
    let file = match inherited {
        // SAFETY: the command line contains the descriptor, and no other code in this process uses it.
        Some(fd) => unsafe { File::from_raw_fd(fd) },
        None => OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|e| ServeError::io("cannot open", &path, &e))?,
    };
    // SAFETY: a plain system call on a descriptor that `file` keeps open; no memory is passed.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(file);
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::EWOULDBLOCK) {
        return refuse(format!("{} is already being served", folder.display()));
    }
    Err(ServeError::io("cannot lock", &path, &error))
}
