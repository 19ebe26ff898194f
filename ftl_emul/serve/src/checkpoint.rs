//! The placement of pages on disk: written now and then and on a clean stop, brought in line with the data at start.
//!
//! Placement may be rebuilt, data never. A checkpoint of a clean stop whose files have not changed since is taken as
//! it is. Any other readable checkpoint is corrected: pages that hold data but are not mapped are written, pages that
//! are mapped but hold none are trimmed (not on an aged drive, where every page was mapped whether it held data or
//! not). Without a readable one, a new drive is filled from the files.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use ftl_core::count::Requests;
use ftl_core::{Drive, Op, TenantId};
use serde::{Deserialize, Serialize};

use crate::ageing::Aged;
use crate::atomic_file;
use crate::config::{DeviceConfig, FlashConfig};
use crate::error::ServeError;
use crate::namespace::Namespace;
use crate::settings::Settings;

const FORMAT_VERSION: u32 = 1;
/// Requests handed to the drive at once while it is filled from the files.
const FILL_BATCH: usize = 4096;

/// What a checkpoint says about itself and the files beside it.
#[derive(Debug, Serialize, Deserialize)]
struct Label {
    format_version: u32,
    /// Nothing was written after it.
    clean: bool,
    /// How the placement was aged, where it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    aged: Option<Aged>,
    /// In the order of their tenant numbers.
    namespaces: Vec<LabelNamespace>,
}

#[derive(Debug, Serialize, Deserialize)]
struct LabelNamespace {
    name: String,
    tenant: u16,
    size_bytes: u64,
    modified_ns: i64,
}

/// How the placement at hand came about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// From the checkpoint of a clean stop.
    Exact,
    /// From an older checkpoint, so many pages of which had to be mapped or unmapped.
    Corrected(u64),
    /// From the files alone, of which so many pages hold data; and why.
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

/// Where the checkpoint of a device lies.
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
    atomic_file::replace(&path, b"").map_err(|e| ServeError::io("cannot write", &path, &e))
}

/// Takes note that the checkpoint written last is of the data as it is.
pub fn mark_stopped(folder: &Path) -> Result<(), ServeError> {
    let path = marker_in(folder);
    match std::fs::remove_file(&path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(ServeError::io("cannot remove", &path, &e)),
        _ => Ok(()),
    }
}

/// The state of a drive, ready to be written.
pub fn take(
    drive: &mut Drive,
    namespaces: &[Namespace],
    aged: Option<&Aged>,
    clean: bool,
) -> Result<Vec<u8>, ServeError> {
    let describe = |namespace: &Namespace| -> io::Result<LabelNamespace> {
        Ok(LabelNamespace {
            name: namespace.name.clone(),
            tenant: namespace.tenant.0,
            size_bytes: namespace.size_bytes(),
            modified_ns: namespace.backing.modified_ns()?,
        })
    };
    let described: io::Result<Vec<_>> = namespaces.iter().map(describe).collect();
    let described = described.map_err(|e| ServeError::File(format!("cannot examine a backing file: {e}")))?;
    let label = Label { format_version: FORMAT_VERSION, clean, aged: aged.cloned(), namespaces: described };
    let label = serde_json::to_string(&label).map_err(|e| ServeError::Refused(e.to_string()))?;
    let mut state = Vec::new();
    drive.checkpoint(&label, &mut state)?;
    Ok(state)
}

/// Writes what [`take`] gave, in one step.
pub fn write(folder: &Path, state: &[u8]) -> Result<(), ServeError> {
    let path = path_in(folder);
    atomic_file::replace(&path, state).map_err(|e| ServeError::io("cannot write", &path, &e))
}

/// A drive whose placement agrees with the data in the files.
pub struct Placed {
    /// The drive.
    pub drive: Drive,
    /// How it came about.
    pub origin: Origin,
    /// How it was aged, where it was.
    pub aged: Option<Aged>,
}

/// Brings the placement in line with the data in the files.
pub fn load(
    folder: &Path,
    config: &DeviceConfig,
    settings: &Settings,
    namespaces: &[Namespace],
) -> Result<Placed, ServeError> {
    let flash = config.flash()?;
    match restore(folder, flash, namespaces) {
        Ok((drive, aged, true)) => Ok(Placed { drive, origin: Origin::Exact, aged }),
        Ok((mut drive, aged, false)) => {
            let changed = reconcile(&mut drive, namespaces, aged.is_some())?;
            Ok(Placed { drive, origin: Origin::Corrected(changed), aged })
        }
        Err(why) => {
            let mut drive = empty_drive(config, flash, settings, namespaces)?;
            let pages = reconcile(&mut drive, namespaces, false)?;
            Ok(Placed { drive, origin: Origin::Rebuilt(pages, why), aged: None })
        }
    }
}

type Restored = (Drive, Option<Aged>, bool);

/// The drive of the checkpoint, how it was aged, and whether the files are as they were when it was taken.
fn restore(folder: &Path, config: &FlashConfig, namespaces: &[Namespace]) -> Result<Restored, String> {
    let file = match File::open(path_in(folder)) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err("there is no checkpoint".into()),
        Err(e) => return Err(e.to_string()),
    };
    let options = config.drive_options().map_err(|e| e.to_string())?;
    let mapping = config.mapping_options().map_err(|e| e.to_string())?;
    let (drive, label) = Drive::restore(&mut BufReader::new(file), options).map_err(|e| e.to_string())?;
    let label: Label = serde_json::from_str(&label).map_err(|e| format!("label: {e}"))?;
    if label.format_version != FORMAT_VERSION {
        return Err(format!("checkpoint of format {}", label.format_version));
    }
    let same = |(namespace, saved): (&Namespace, &LabelNamespace)| {
        namespace.name == saved.name
            && namespace.tenant.0 == saved.tenant
            && namespace.size_bytes() == saved.size_bytes
            && drive.space(namespace.tenant).is_ok_and(|space| {
                space.placement == config.placement()
                    && space.logical_pages * u64::from(config.geometry.page_bytes) == saved.size_bytes
            })
    };
    let tenants: Vec<TenantId> = namespaces.iter().map(|n| n.tenant).collect();
    let all_the_same = *drive.geometry() == config.geometry
        && drive.mapping_options() == mapping
        && label.namespaces.len() == namespaces.len()
        && drive.tenants() == tenants
        && namespaces.iter().zip(&label.namespaces).all(same);
    if !all_the_same {
        return Err("the checkpoint is of a device of another shape".into());
    }
    let untouched = |(namespace, saved): (&Namespace, &LabelNamespace)| {
        namespace.backing.modified_ns().is_ok_and(|now| now == saved.modified_ns)
    };
    let exact = label.clean && !marker_in(folder).exists() && namespaces.iter().zip(&label.namespaces).all(untouched);
    Ok((drive, label.aged, exact))
}

fn empty_drive(
    config: &DeviceConfig,
    flash: &FlashConfig,
    settings: &Settings,
    namespaces: &[Namespace],
) -> Result<Drive, ServeError> {
    let moved =
        |given: &crate::config::NamespaceConfig| settings.of(&given.name).ops_blocks.unwrap_or(given.ops_blocks);
    let as_moved: Vec<u64> = config.namespaces.iter().map(moved).collect();
    // Where moves no longer add up (sizes changed since), the division of the creation does, or else nothing does.
    let as_created = config.namespaces.iter().map(|given| given.ops_blocks).collect();
    drive_with(flash, namespaces, &as_moved).or_else(|_| drive_with(flash, namespaces, &as_created))
}

fn drive_with(config: &FlashConfig, namespaces: &[Namespace], ops_blocks: &Vec<u64>) -> Result<Drive, ServeError> {
    let mut drive = Drive::new(config.geometry, config.mapping_options()?, config.drive_options()?)?;
    for (namespace, &ops) in namespaces.iter().zip(ops_blocks) {
        let pages = namespace.size_bytes() / u64::from(config.geometry.page_bytes);
        let tenant = drive.create_tenant(pages, config.placement(), ops)?;
        debug_assert_eq!(tenant, namespace.tenant);
    }
    Ok(drive)
}

/// Maps what holds data and, unless `keep_mapped`, unmaps what does not; returns the pages changed.
fn reconcile(drive: &mut Drive, namespaces: &[Namespace], keep_mapped: bool) -> Result<u64, ServeError> {
    let page = u64::from(drive.geometry().page_bytes);
    let mut fill = Fill::new(page);
    for namespace in namespaces {
        let size = namespace.size_bytes();
        // Up to here pages are dealt with: a page may be data in part and hole in part, and counts as data.
        let mut next_page = 0;
        let mut offset = 0;
        while offset < size {
            let extent = namespace
                .backing
                .extent_at(offset, size)
                .map_err(|e| ServeError::File(format!("namespace {}: cannot find its data: {e}", namespace.name)))?;
            let end = offset + extent.length;
            let (first, last) = if extent.hole {
                (offset.div_ceil(page), if end == size { end.div_ceil(page) } else { end / page })
            } else {
                (offset / page, end.div_ceil(page))
            };
            let from = if extent.hole && keep_mapped { last } else { first.max(next_page) };
            for number in from..last {
                if drive.is_mapped(namespace.tenant, number) == extent.hole {
                    fill.add(drive, namespace.tenant, if extent.hole { Op::Trim } else { Op::Write }, number)?;
                }
            }
            next_page = next_page.max(last);
            offset = end;
        }
    }
    fill.apply(drive)?;
    Ok(fill.pages)
}

/// Single-page requests on their way to a drive.
struct Fill {
    page_bytes: u64,
    tenant: Vec<u16>,
    op: Vec<u8>,
    offset: Vec<u64>,
    length: Vec<u64>,
    pages: u64,
}

impl Fill {
    fn new(page_bytes: u64) -> Self {
        let (tenant, op, offset) = (Vec::new(), Vec::new(), Vec::new());
        Self { page_bytes, tenant, op, offset, length: vec![page_bytes; FILL_BATCH], pages: 0 }
    }

    fn add(&mut self, drive: &mut Drive, tenant: TenantId, op: Op, page: u64) -> Result<(), ServeError> {
        self.tenant.push(tenant.0);
        self.op.push(op as u8);
        self.offset.push(page * self.page_bytes);
        if self.tenant.len() == FILL_BATCH { self.apply(drive) } else { Ok(()) }
    }

    fn apply(&mut self, drive: &mut Drive) -> Result<(), ServeError> {
        drive.apply(Requests {
            tenant: &self.tenant,
            op: &self.op,
            offset_bytes: &self.offset,
            length_bytes: &self.length[..self.tenant.len()],
        })?;
        self.pages += self.tenant.len() as u64;
        self.tenant.clear();
        self.op.clear();
        self.offset.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{DEVICE_FORMAT_VERSION, MappingConfig, Medium, NamespaceConfig};
    use crate::model::{Counted, Model};
    use crate::namespace::Flags;
    use ftl_core::{Geometry, MAPPINGS, NandTiming};
    use proptest::prelude::*;

    const PAGES: u64 = 512;
    const PAGE: u64 = 4096;

    fn config(kind: &str) -> DeviceConfig {
        let namespace =
            |name: &str| NamespaceConfig { name: name.into(), size_bytes: PAGES * PAGE, weight: 1.0, ops_blocks: 20 };
        DeviceConfig {
            format_version: DEVICE_FORMAT_VERSION,
            name: "d".into(),
            emulated: true,
            spec: String::new(),
            created: String::new(),
            medium: Medium::Flash(FlashConfig {
                geometry: Geometry {
                    page_bytes: PAGE as u32,
                    pages_per_block: 16,
                    blocks_per_die: 64,
                    channels: 2,
                    dies_per_channel: 1,
                    planes: 1,
                },
                timing: NandTiming { read_ns: 1, program_ns: 1, erase_ns: 1, transfer_ns: 1 },
                mapping: MappingConfig {
                    kind: kind.into(),
                    cluster_dies: 1,
                    cached_entries: None,
                    victim: "greedy".into(),
                    separate_gc_frontier: false,
                    free_floor: 1,
                    copyback: true,
                    scheduler: "fifo".into(),
                    isolated: true,
                    seed: 1,
                },
            }),
            namespaces: vec![namespace("a"), namespace("b")],
        }
    }

    fn open(folder: &Path, config: &DeviceConfig) -> Vec<Namespace> {
        let open = |(n, c): (usize, &NamespaceConfig)| {
            Namespace::open(folder, &c.name, TenantId(n as u16), c.size_bytes).unwrap()
        };
        config.namespaces.iter().enumerate().map(open).collect()
    }

    fn loaded(folder: &Path, kind: &str) -> (Model, Origin, Vec<Namespace>) {
        let config = config(kind);
        let namespaces = open(folder, &config);
        let Placed { drive, origin, .. } = load(folder, &config, &Settings::default(), &namespaces).unwrap();
        (Model::Counted(Box::new(Counted::new(drive))), origin, namespaces)
    }

    fn mapped(model: &Model) -> Vec<Vec<bool>> {
        let of = |drive: &Drive, t: u16| (0..PAGES).map(|page| drive.is_mapped(TenantId(t), page)).collect();
        model
            .with(|drive| {
                drive.check().unwrap();
                vec![of(drive, 0), of(drive, 1)]
            })
            .unwrap()
    }

    /// Whole pages of a namespace: write or trim.
    fn change() -> impl Strategy<Value = (usize, bool, u64, u64)> {
        (0..2usize, any::<bool>(), 0..PAGES, 1..40u64)
    }

    fn apply(model: &Model, namespaces: &[Namespace], changes: &[(usize, bool, u64, u64)]) {
        for &(which, write, page, count) in changes {
            let length = count.min(PAGES - page) * PAGE;
            let namespace = &namespaces[which];
            if write {
                let data = vec![1; length as usize];
                namespace.write(model, &data, page * PAGE, Flags::default(), || false).unwrap();
            } else {
                namespace.trim(model, page * PAGE, length, Flags::default(), || false).unwrap();
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        /// Whatever is written and trimmed before and after a checkpoint, and whether there is one: what is placed
        /// after a crash is what was placed before it.
        #[test]
        fn what_is_placed_after_a_crash_is_what_holds_data(
            kind in proptest::sample::select(MAPPINGS.iter().map(|(name, ..)| *name).collect::<Vec<_>>()),
            before in proptest::collection::vec(change(), 0..40),
            after in proptest::collection::vec(change(), 0..40),
            saved in any::<bool>(),
        ) {
            let folder = tempfile::tempdir().unwrap();
            for name in ["a.img", "b.img"] {
                File::create(folder.path().join(name)).unwrap().set_len(PAGES * PAGE).unwrap();
            }
            let (model, origin, namespaces) = loaded(folder.path(), kind);
            prop_assert!(matches!(origin, Origin::Rebuilt(0, _)));
            apply(&model, &namespaces, &before);
            if saved {
                let state = model.with(|drive| take(drive, &namespaces, None, false)).unwrap().unwrap();
                write(folder.path(), &state).unwrap();
            }
            apply(&model, &namespaces, &after);
            let (again, origin, _) = loaded(folder.path(), kind);
            prop_assert_eq!(matches!(origin, Origin::Corrected(_)), saved);
            prop_assert_eq!(mapped(&again), mapped(&model));
        }
    }

    #[test]
    fn only_a_clean_stop_without_changes_since_is_taken_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.img", "b.img"] {
            File::create(folder.path().join(name)).unwrap().set_len(PAGES * PAGE).unwrap();
        }
        let (model, _, namespaces) = loaded(folder.path(), "page");
        apply(&model, &namespaces, &[(0, true, 3, 5)]);
        let state = model.with(|drive| take(drive, &namespaces, None, true)).unwrap().unwrap();
        write(folder.path(), &state).unwrap();
        assert_eq!(loaded(folder.path(), "page").1, Origin::Exact);
        mark_serving(folder.path()).unwrap();
        assert_eq!(loaded(folder.path(), "page").1, Origin::Corrected(0));
        mark_stopped(folder.path()).unwrap();
        apply(&model, &namespaces, &[(1, true, 0, 2)]);
        assert_eq!(loaded(folder.path(), "page").1, Origin::Corrected(2));
    }
    #[test]
    fn a_checkpoint_of_another_mapping_is_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.img", "b.img"] {
            File::create(folder.path().join(name)).unwrap().set_len(PAGES * PAGE).unwrap();
        }
        let (model, _, namespaces) = loaded(folder.path(), "bast");
        apply(&model, &namespaces, &[(0, true, 3, 5)]);
        let state = model.with(|drive| take(drive, &namespaces, None, true)).unwrap().unwrap();
        write(folder.path(), &state).unwrap();
        assert_eq!(loaded(folder.path(), "bast").1, Origin::Exact);
        assert!(matches!(loaded(folder.path(), "fast").1, Origin::Rebuilt(5, _)));
    }
}
