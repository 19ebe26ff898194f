//! The placement of pages on disk: written now and then and on a clean stop, brought in line with the data at start.
//!
//! Placement may be rebuilt, data never. A checkpoint of a clean stop whose files have not changed since is used
//! unchanged. Any other readable checkpoint is corrected: sizes and OPS blocks become those of the settings, pages with
//! data that are not mapped are written, mapped pages without data are trimmed (not on a preconditioned drive, where
//! every page was mapped with or without data). Without a readable one, a new drive is filled from the files.

mod reconcile;
#[cfg(test)]
mod tests;

use std::borrow::Borrow;
use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use ftl_core::{Drive, FtlError};
use serde::{Deserialize, Serialize};

use crate::atomic_file;
use crate::config::{DeviceConfig, FlashConfig};
use crate::division;
use crate::error::ServeError;
use crate::namespace::Namespace;
use crate::preconditioning::Preconditioned;
use crate::settings::Settings;
use reconcile::reconcile;

const FORMAT_VERSION: u32 = 1;
/// Description of a checkpoint and of the data files.
#[derive(Debug, Serialize, Deserialize)]
struct Label {
    format_version: u32,
    /// Nothing was written after it.
    clean: bool,
    /// How the placement was preconditioned, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    preconditioned: Option<Preconditioned>,
    namespaces: Vec<LabelNamespace>,
}

#[derive(Debug, Serialize, Deserialize)]
struct LabelNamespace {
    name: String,
    /// See [`crate::settings::Created`].
    #[serde(default)]
    created_ns: u64,
    tenant: u16,
    size_bytes: u64,
    modified_ns: i64,
}

/// Origin of the present placement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// From the checkpoint of a clean stop.
    Exact,
    /// From an older checkpoint, of which this many pages were mapped or unmapped.
    Corrected(u64),
    /// From the data files alone, in which this many pages have data; and why.
    Rebuilt(u64, String),
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exact => write!(f, "as it was left"),
            Self::Corrected(pages) => write!(f, "from a checkpoint, {pages} pages brought in line with the data"),
            Self::Rebuilt(pages, why) => write!(f, "rebuilt from the data, {pages} pages ({why})"),
        }
    }
}

/// Path of a device's checkpoint.
#[must_use]
pub fn path_in(folder: &Path) -> PathBuf {
    folder.join("placement")
}

/// There while the device is served, and after it until a stop that was clean. The files' time stamps do not say as
/// much: after a power failure they may be older than the data.
fn marker_in(folder: &Path) -> PathBuf {
    folder.join("serving")
}

/// Takes note that data may change from now on without a checkpoint knowing.
pub fn mark_serving(folder: &Path) -> Result<(), ServeError> {
    let path = marker_in(folder);
    // The file exists after a kill, so that a full disk cannot prevent it.
    let marked = if path.is_file() { atomic_file::sync_folder(folder) } else { atomic_file::replace(&path, b"") };
    marked.map_err(|e| ServeError::io("cannot write", &path, &e))
}

/// Records that the last checkpoint matches the data.
pub fn mark_stopped(folder: &Path) -> Result<(), ServeError> {
    let path = marker_in(folder);
    match std::fs::remove_file(&path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(ServeError::io("cannot remove", &path, &e)),
        _ => Ok(()),
    }
}

/// Memory for [`take`], as large as the last checkpoint and resident: requests wait while it is filled.
pub fn buffer(folder: &Path) -> Vec<u8> {
    let bytes = std::fs::metadata(path_in(folder)).map_or(0, |file| file.len());
    // Zeroes would be provided by the kernel only when they are accessed.
    let mut state = vec![1; usize::try_from(bytes).unwrap_or(0)];
    state.clear();
    state
}

/// The state of a drive, ready to be written, in the memory of `state`.
pub fn take<N: Borrow<Namespace>>(
    drive: &mut Drive,
    namespaces: &[N],
    preconditioned: Option<&Preconditioned>,
    clean: bool,
    mut state: Vec<u8>,
) -> Result<Vec<u8>, ServeError> {
    let describe = |namespace: &Namespace| -> io::Result<LabelNamespace> {
        Ok(LabelNamespace {
            name: namespace.name.clone(),
            created_ns: namespace.origin.created_ns,
            tenant: namespace.tenant.0,
            size_bytes: namespace.size_bytes(),
            modified_ns: namespace.backing.modified_ns()?,
        })
    };
    let described: io::Result<Vec<_>> = namespaces.iter().map(|namespace| describe(namespace.borrow())).collect();
    let described = described.map_err(|e| ServeError::File(format!("cannot examine a backing file: {e}")))?;
    let label =
        Label { format_version: FORMAT_VERSION, clean, preconditioned: preconditioned.cloned(), namespaces: described };
    let label = serde_json::to_string(&label).map_err(|e| ServeError::Refused(e.to_string()))?;
    drive.checkpoint(&label, &mut state)?;
    Ok(state)
}

/// Writes the result of [`take`] atomically.
pub fn write(folder: &Path, state: &[u8]) -> Result<(), ServeError> {
    let path = path_in(folder);
    atomic_file::replace(&path, state).map_err(|e| ServeError::io("cannot write", &path, &e))
}

/// A drive whose placement agrees with the settings and with the data in the files.
pub struct Placed {
    /// The drive.
    pub drive: Drive,
    /// Origin of the placement.
    pub origin: Origin,
    /// How it was preconditioned, if it was.
    pub preconditioned: Option<Preconditioned>,
    /// OPS blocks of every namespace, once moves under way have been carried out: as they were set, unless the drive
    /// cannot have them so.
    pub ops_blocks: Vec<u64>,
}

/// Makes the placement match the settings and the data files, and assigns tenants to namespaces.
pub fn load(
    folder: &Path,
    config: &DeviceConfig,
    settings: &Settings,
    namespaces: &mut [Namespace],
) -> Result<Placed, ServeError> {
    let flash = config.flash()?;
    let set = division::ops_blocks_set(namespaces, settings);
    let restored = restore(folder, flash, namespaces, &set);
    let (mut drive, preconditioned, because) = match restored {
        Ok((drive, preconditioned, exact)) => (drive, preconditioned, if exact { None } else { Some(None) }),
        Err(why) => (division::new_drive(flash, namespaces, &set)?, None, Some(Some(why))),
    };
    let origin = match because {
        None => Origin::Exact,
        Some(None) => Origin::Corrected(reconcile(&mut drive, namespaces, preconditioned.is_some())?),
        Some(Some(why)) => Origin::Rebuilt(reconcile(&mut drive, namespaces, false)?, why),
    };
    let ops_blocks = division::ops_blocks_of(&drive, flash.placement(), namespaces, &set)?;
    Ok(Placed { drive, origin, preconditioned, ops_blocks })
}

type Restored = (Drive, Option<Preconditioned>, bool);

/// The drive of the checkpoint with the namespaces, sizes and blocks that were set, how it was preconditioned, and
/// whether it and the files are as they were when it was taken.
fn restore(folder: &Path, config: &FlashConfig, namespaces: &mut [Namespace], set: &[u64]) -> Result<Restored, String> {
    let file = match File::open(path_in(folder)) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err("there is no checkpoint".into()),
        Err(e) => return Err(e.to_string()),
    };
    let options = config.drive_options().map_err(|e| e.to_string())?;
    let mapping = config.mapping_options().map_err(|e| e.to_string())?;
    let (mut drive, label) = Drive::restore(&mut BufReader::new(file), options).map_err(|e| e.to_string())?;
    let label: Label = serde_json::from_str(&label).map_err(|e| format!("label: {e}"))?;
    if label.format_version != FORMAT_VERSION {
        return Err(format!("checkpoint of format {}", label.format_version));
    }
    let is_of_placement = |tenant| drive.space(tenant).is_ok_and(|space| space.placement == config.placement());
    let all_the_same = *drive.geometry() == config.geometry
        && drive.mapping_options() == mapping
        && drive.tenants().into_iter().all(is_of_placement);
    if !all_the_same {
        return Err("the checkpoint is of a device of another shape".into());
    }
    let found = pair(&mut drive, config, namespaces, &label, set).map_err(|e| e.to_string())?;
    let page_bytes = u64::from(config.geometry.page_bytes);
    let untouched = |(namespace, saved): (&Namespace, Option<&LabelNamespace>)| {
        let Some(saved) = saved else { return false };
        namespace.size_bytes() == saved.size_bytes
            && drive.space(namespace.tenant).is_ok_and(|space| space.logical_pages * page_bytes == saved.size_bytes)
            && namespace.backing.modified_ns().is_ok_and(|now| now == saved.modified_ns)
    };
    let exact = label.clean
        && !marker_in(folder).exists()
        && label.namespaces.len() == namespaces.len()
        && namespaces.iter().zip(found).all(untouched);
    let all: Vec<&Namespace> = namespaces.iter().collect();
    division::bring_about(&mut drive, config.placement(), &all, set, !exact).map_err(|e| e.to_string())?;
    Ok((drive, label.preconditioned, exact))
}

/// Gives namespaces their tenants of the checkpoint, deletes tenants of others, and creates missing ones. Returns the
/// state of each in the checkpoint.
fn pair<'a>(
    drive: &mut Drive,
    config: &FlashConfig,
    namespaces: &mut [Namespace],
    label: &'a Label,
    set: &[u64],
) -> Result<Vec<Option<&'a LabelNamespace>>, FtlError> {
    let mut unused = drive.tenants();
    let mut found = Vec::new();
    for namespace in namespaces.iter_mut() {
        let same =
            |saved: &&LabelNamespace| saved.name == namespace.name && saved.created_ns == namespace.origin.created_ns;
        let saved = label.namespaces.iter().find(same);
        let place = saved.and_then(|saved| unused.iter().position(|tenant| tenant.0 == saved.tenant));
        if let Some(place) = place {
            namespace.tenant = unused.swap_remove(place);
        }
        found.push(saved.filter(|_| place.is_some()));
    }
    for tenant in unused {
        drive.delete_tenant(tenant)?;
    }
    let (known, lacking): (Vec<usize>, Vec<usize>) = (0..namespaces.len()).partition(|&n| found[n].is_some());
    if lacking.is_empty() {
        return Ok(found);
    }
    // First the other tenants give the blocks that they have in excess.
    let others: Vec<&Namespace> = known.iter().map(|&n| &namespaces[n]).collect();
    let set_of_others: Vec<u64> = known.iter().map(|&n| set[n]).collect();
    division::bring_about(drive, config.placement(), &others, &set_of_others, true)?;
    for number in lacking {
        let pages = namespaces[number].size_bytes() / u64::from(config.geometry.page_bytes);
        namespaces[number].tenant = drive.create_tenant(pages, config.placement(), set[number])?;
    }
    Ok(found)
}
