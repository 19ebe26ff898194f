//! Threads that serve, and their locks.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use memmap2::MmapMut;

use crate::error::ServeError;

const STACK_BYTES: usize = 2 << 20;
/// Address space that threads leave to other allocations: the process ends where one of a few KiB fails.
const SPARE_BYTES: usize = 8 << 20;

/// Starts a thread, which goes on if its handle is dropped.
pub fn start(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, ServeError> {
    let started = builder(name).and_then(|builder| builder.spawn(work));
    started.map_err(|e| ServeError::File(format!("cannot start a thread: {e}")))
}

/// A builder of a thread. Fails where its stack would leave too little memory to others, and to what a thread allocates
/// before it runs.
pub fn builder(name: &str) -> io::Result<Builder> {
    MmapMut::map_anon(STACK_BYTES + SPARE_BYTES)?;
    Ok(Builder::new().name(name.into()).stack_size(STACK_BYTES))
}

/// Locks data that is changed in one step, so that a panic of another thread has left it whole.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
