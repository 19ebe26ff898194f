//! Descriptors that this process has inherited.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// Takes one, named on the command line.
pub fn take(fd: RawFd) -> OwnedFd {
    // SAFETY: the parent process has opened it, and no other code in this process uses it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}
