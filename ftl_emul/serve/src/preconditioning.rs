//! Bringing a device to its steady state before it is served: every logical page is placed, then random writes continue
//! until garbage collection has settled. Only the placement changes; no guest data is read or written.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use ftl_core::preconditioning::PreconditioningReport;
use serde::{Deserialize, Serialize};

use crate::atomic_file;
use crate::error::ServeError;

/// Windows of the report whose mean is the WAF of the steady state: one capacity written.
const STEADY_WINDOWS: usize = 4;

/// Result of the last preconditioning of a placement. Stored with the placement, so that the two always agree.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Preconditioned {
    /// WAF over the last capacity written, of all namespaces together.
    pub waf: f64,
    /// False when the WAF still moved after the most that preconditioning writes.
    pub settled: bool,
    /// Capacities written, the first fill included.
    pub drive_writes: f64,
    /// When, seconds since 1970.
    pub at_s: u64,
}

impl Preconditioned {
    /// Converts a report; `pages` is the capacity.
    #[must_use]
    pub fn of(report: &PreconditioningReport, pages: u64) -> Self {
        let last = &report.waf[report.waf.len().saturating_sub(STEADY_WINDOWS)..];
        Self {
            waf: last.iter().sum::<f64>() / last.len().max(1) as f64,
            settled: report.settled,
            drive_writes: report.host_page_writes as f64 / pages.max(1) as f64,
            at_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        }
    }
}

fn path_in(folder: &Path) -> PathBuf {
    folder.join("preconditioned.json")
}

/// Makes `preconditioned.json`, from which others read how the device was preconditioned, agree with the placement.
pub fn save(folder: &Path, preconditioned: Option<&Preconditioned>) -> Result<(), ServeError> {
    let path = path_in(folder);
    let Some(preconditioned) = preconditioned else {
        return match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(ServeError::io("cannot remove", &path, &e)),
            _ => Ok(()),
        };
    };
    let text = serde_json::to_vec_pretty(preconditioned).map_err(|e| ServeError::Refused(e.to_string()))?;
    if fs::read(&path).is_ok_and(|there| there == text) {
        return Ok(());
    }
    atomic_file::replace(&path, &text).map_err(|e| ServeError::io("cannot write", &path, &e))
}
