//! Threads that serve, and their locks.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use crate::error::ServeError;

/// Starts a thread, which goes on if its handle is dropped.
pub fn start(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, ServeError> {
    let started = Builder::new().name(name.into()).spawn(work);
    started.map_err(|e| ServeError::File(format!("cannot start a thread: {e}")))
}

/// Locks data that is changed in one step, so that a panic of another thread has left it whole.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
