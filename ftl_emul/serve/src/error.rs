//! Why something could not be done, in one line for the operator.

use std::io;
use std::path::Path;

use ftl_core::FtlError;
use thiserror::Error;

/// Why a device cannot be served, or a command not be carried out.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The request is not valid for this device.
    #[error("{0}")]
    Refused(String),
    /// The emulated drive refused.
    #[error(transparent)]
    Drive(#[from] FtlError),
    /// A file could not be used.
    #[error("{0}")]
    File(String),
}

impl ServeError {
    /// A failure of the system on `path`.
    #[must_use]
    pub fn io(what: &str, path: &Path, error: &io::Error) -> Self {
        Self::File(format!("{what} {}: {error}", path.display()))
    }
}

/// Shorthand for [`ServeError::Refused`].
pub fn refuse<T>(reason: impl Into<String>) -> Result<T, ServeError> {
    Err(ServeError::Refused(reason.into()))
}
