//! Threads that serve.

use std::thread::{Builder, JoinHandle};

use crate::error::ServeError;

/// Starts a thread, which goes on if its handle is dropped.
pub fn start(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, ServeError> {
    let started = Builder::new().name(name.into()).spawn(work);
    started.map_err(|e| ServeError::File(format!("cannot start a thread: {e}")))
}
