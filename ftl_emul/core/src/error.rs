//! Errors, in words that an operator can act on.

use thiserror::Error;

/// Reason why a request to the emulated SSD was rejected; nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FtlError {
    /// The geometry or the options make no drive.
    #[error("{field}: {reason}")]
    Invalid {
        /// The setting at fault.
        field: &'static str,
        /// The error, and valid values.
        reason: String,
    },
    /// No such tenant.
    #[error("tenant {0} does not exist")]
    UnknownTenant(u16),
    /// The device has too few blocks to spare.
    #[error("needs {needed} blocks ({what}) but the device has only {available} to spare")]
    NotEnoughBlocks {
        /// Requested blocks.
        needed: u64,
        /// Blocks without an owner.
        available: u64,
        /// Their purpose.
        what: &'static str,
    },
    /// A tenant would be left without the blocks that GC needs to make progress.
    #[error("tenant would keep {would_keep} over-provisioning blocks; GC needs at least {minimum}")]
    BelowMinimumOps {
        /// OPS blocks left after the request.
        would_keep: i64,
        /// The fewest that work.
        minimum: u64,
    },
    /// A page beyond the namespace.
    #[error("page {page} lies beyond the namespace of {pages} pages")]
    OutOfRange {
        /// First requested page that does not exist.
        page: u64,
        /// Pages in the namespace.
        pages: u64,
    },
    /// All tenant numbers are in use.
    #[error("a device can have at most {0} tenants")]
    TooManyTenants(usize),
    /// Memory for the tables cannot be allocated.
    #[error("cannot reserve {} of address space for the mapping tables", size_text(*bytes))]
    OutOfMemory {
        /// Requested bytes.
        bytes: u64,
    },
    /// A request that the engine cannot take in its present state.
    #[error("{0}")]
    State(String),
    /// A snapshot that is damaged, truncated, of another version or not a snapshot.
    #[error("snapshot refused: {0}")]
    Snapshot(String),
}

/// Shorthand for [`FtlError::Invalid`].
pub(crate) fn invalid<T>(field: &'static str, reason: impl Into<String>) -> Result<T, FtlError> {
    Err(FtlError::Invalid { field, reason: reason.into() })
}

/// A size as operators write it: `8GiB`, `1536MiB`, `20484KiB`; exact, so that it can be given to a command. Other
/// numbers stay bytes.
#[must_use]
pub fn size_text(bytes: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.iter().find(|(_, shift)| bytes != 0 && bytes.trailing_zeros() >= *shift) {
        Some((unit, shift)) => format!("{}{unit}", bytes >> shift),
        None if bytes == 1 => "1 byte".into(),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::size_text;

    #[test]
    fn sizes_are_exact_in_the_largest_unit() {
        let sizes = [0, 1, 1023, 4096, (20 << 20) + 4096, 1536 << 20, 8 << 30, 3 << 40, u64::MAX];
        let texts = sizes.map(size_text);
        assert_eq!(texts[..5], ["0 bytes", "1 byte", "1023 bytes", "4KiB", "20484KiB"]);
        assert_eq!(texts[5..], ["1536MiB", "8GiB", "3TiB", "18446744073709551615 bytes"]);
    }
}
