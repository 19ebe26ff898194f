//! Descriptors that whoever started this process has handed over.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// Takes one, named on the command line.
pub fn take(fd: RawFd) -> OwnedFd {
    // SAFETY: whoever started us says that it is open, and nothing else in this process uses it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}
