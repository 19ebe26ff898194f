//! Description of a device in `device.toml`.

mod models;

use std::fs;
use std::path::Path;

use ftl_core::convert::exact;
use ftl_core::disk::DiskParameters;
use ftl_core::{Geometry, NandTiming};
use serde::{Deserialize, Serialize};

use crate::error::{ServeError, refuse};
pub use models::scheduler_named;

/// The version of `device.toml` this program reads.
pub const DEVICE_FORMAT_VERSION: u32 = 1;
/// The refusal of commands that need flash.
pub const NO_FLASH: &str = "this is a hard disk: it has no flash, so no placement, no over-provisioning, no preconditioning, and parts of fixed size";
const SECTOR_BYTES: u64 = 512;
/// Most namespaces of one device that can be served.
pub const MAX_NAMESPACES: usize = 1024;

/// Content of `device.toml`: tables of flash, or tables of disks.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceText {
    format_version: u32,
    name: String,
    emulated: bool,
    spec: String,
    created: String,
    capacity_bytes: Option<u64>,
    geometry: Option<Geometry>,
    timing: Option<NandTiming>,
    mapping: Option<MappingConfig>,
    array: Option<ArrayConfig>,
    disk: Option<DiskParameters>,
    #[serde(rename = "namespace")]
    namespaces: Vec<NamespaceConfig>,
}

impl TryFrom<DeviceText> for DeviceConfig {
    type Error = String;

    fn try_from(text: DeviceText) -> Result<Self, String> {
        let DeviceText { format_version, name, emulated, spec, created, capacity_bytes, namespaces, .. } = text;
        let medium = match (text.geometry, text.timing, text.mapping, text.array, text.disk) {
            (Some(geometry), Some(timing), Some(mapping), None, None) => {
                Medium::Flash(FlashConfig { geometry, timing, mapping })
            }
            (None, None, None, Some(array), Some(disk)) => Medium::Disks(array, disk),
            _ => {
                return Err(
                    "the tables of an SSD are geometry, timing and mapping, those of disks array and disk".into()
                );
            }
        };
        // Devices created before a part could remain free have namespaces of the whole capacity.
        let sum = || namespaces.iter().map(|each| each.size_bytes).fold(0, u64::saturating_add);
        let capacity_bytes = capacity_bytes.unwrap_or_else(sum);
        Ok(Self { format_version, name, emulated, spec, created, capacity_bytes, medium, namespaces })
    }
}

/// The modelled medium.
#[derive(Debug, Clone, PartialEq)]
pub enum Medium {
    /// An SSD.
    Flash(FlashConfig),
    /// A hard disk, or several as RAID-0.
    Disks(ArrayConfig, DiskParameters),
}

/// `[geometry]`, `[timing]` and `[mapping]` of `device.toml`.
#[derive(Debug, Clone, PartialEq)]
pub struct FlashConfig {
    /// Shape of the flash.
    pub geometry: Geometry,
    /// Latencies of the flash.
    pub timing: NandTiming,
    /// Options of the translation layer.
    pub mapping: MappingConfig,
}

/// `[array]` of `device.toml`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArrayConfig {
    /// Disks; more than one are a RAID-0.
    pub disks: u32,
    /// Bytes of one disk before the next one's turn.
    pub stripe_bytes: u64,
    /// Scheduler by name.
    pub scheduler: String,
    /// Requests that the disks hold at once; 0: the default of the scheduler.
    pub queue_depth: u32,
}

/// `device.toml`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "DeviceText")]
pub struct DeviceConfig {
    /// [`DEVICE_FORMAT_VERSION`].
    pub format_version: u32,
    /// Name of the device.
    pub name: String,
    /// Always true: no real drive is served.
    pub emulated: bool,
    /// The options it was created from, for people.
    pub spec: String,
    /// When it was created, for people.
    pub created: String,
    /// Bytes that all its namespaces can have together.
    pub capacity_bytes: u64,
    /// The medium that stores the data.
    pub medium: Medium,
    /// The namespaces, in the order of their tenant numbers.
    pub namespaces: Vec<NamespaceConfig>,
}

/// `[mapping]` of `device.toml`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MappingConfig {
    /// Mapping by name; devices made before there was a choice map by page.
    #[serde(default = "page_mapping")]
    pub kind: String,
    /// Dies that a block spans, with log blocks.
    #[serde(default = "one_die")]
    pub cluster_dies: u32,
    /// Map entries in memory, if the map is on flash; None: the default of the mapping.
    #[serde(default)]
    pub cached_entries: Option<u64>,
    /// Victim policy by name.
    pub victim: String,
    /// Whether GC writes into separate blocks.
    pub separate_gc_frontier: bool,
    /// Erased blocks that each pool reserves.
    pub free_floor: u32,
    /// Copies stay inside the die.
    pub copyback: bool,
    /// Scheduler by name.
    pub scheduler: String,
    /// Every namespace owns its blocks.
    pub isolated: bool,
    /// Seed of random victim policies.
    pub seed: u64,
}

fn page_mapping() -> String {
    "page".into()
}

fn one_die() -> u32 {
    1
}

/// `[[namespace]]` of `device.toml`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamespaceConfig {
    /// Export name and name of the backing file.
    pub name: String,
    /// Logical size; a whole number of pages.
    pub size_bytes: u64,
    /// Weight of its device time to begin with.
    pub weight: f64,
    /// Initial over-provisioning blocks, including those that GC keeps free.
    pub ops_blocks: u64,
}

impl DeviceConfig {
    /// Reads and checks `device.toml` of the device that lives in `folder`.
    pub fn read(folder: &Path) -> Result<Self, ServeError> {
        let path = folder.join("device.toml");
        let text = fs::read_to_string(&path).map_err(|e| ServeError::io("cannot read", &path, &e))?;
        let config: Self =
            toml::from_str(&text).map_err(|e| ServeError::Refused(format!("{}: {}", path.display(), one_line(&e))))?;
        config.check().map_err(|e| ServeError::Refused(format!("{}: {e}", path.display())))?;
        Ok(config)
    }

    fn check(&self) -> Result<(), ServeError> {
        if self.format_version != DEVICE_FORMAT_VERSION {
            return refuse(format!(
                "format_version {}, this program reads {DEVICE_FORMAT_VERSION}",
                self.format_version
            ));
        }
        match &self.medium {
            Medium::Flash(flash) => {
                flash.geometry.validate()?;
                flash.mapping_options()?;
            }
            Medium::Disks(array, disk) => drop(array.make(*disk)?),
        }
        scheduler_named(self.scheduler())?;
        if self.namespaces.is_empty() || self.namespaces.len() > MAX_NAMESPACES {
            return refuse(format!("has {} namespaces; 1 to {MAX_NAMESPACES} can be served", self.namespaces.len()));
        }
        for (index, namespace) in self.namespaces.iter().enumerate() {
            let name = &namespace.name;
            if self.namespaces[..index].iter().any(|other| other.name == *name) {
                return refuse(format!("namespace {name} is listed twice"));
            }
            self.check_namespace(namespace)?;
        }
        Ok(())
    }

    /// Refuses a namespace that no device of this kind could have.
    pub fn check_namespace(&self, namespace: &NamespaceConfig) -> Result<(), ServeError> {
        let name = &namespace.name;
        if !is_name(name) {
            return refuse(format!(
                "namespace {name:?}: a name has up to 64 letters, digits, '.', '_' and '-', and begins with one of the \
                 first two"
            ));
        }
        let page = self.granule_bytes();
        if namespace.size_bytes == 0 || namespace.size_bytes % page != 0 || namespace.size_bytes > 1 << 62 {
            return refuse(format!("namespace {name}: size_bytes is not a whole number of units of {page} bytes"));
        }
        if !(namespace.weight.is_finite() && namespace.weight > 0.0) {
            return refuse(format!("namespace {name}: weight must be a positive number"));
        }
        Ok(())
    }

    /// Sizes of namespaces are multiples of this: a page of flash, a sector of a disk.
    #[must_use]
    pub fn granule_bytes(&self) -> u64 {
        match &self.medium {
            Medium::Flash(flash) => u64::from(flash.geometry.page_bytes),
            Medium::Disks(..) => SECTOR_BYTES,
        }
    }

    /// The flash. Refuses disks, which have none.
    pub fn flash(&self) -> Result<&FlashConfig, ServeError> {
        match &self.medium {
            Medium::Flash(flash) => Ok(flash),
            Medium::Disks(..) => refuse(NO_FLASH),
        }
    }

    /// The scheduler it was created with, by name.
    #[must_use]
    pub fn scheduler(&self) -> &str {
        match &self.medium {
            Medium::Flash(flash) => &flash.mapping.scheduler,
            Medium::Disks(array, _) => &array.scheduler,
        }
    }
}

/// Names of devices and namespaces: they become names of files.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    (1..=64).contains(&text.len()) && text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(plain)
}

/// Whether a namespace could have that NVMe namespace identifier.
#[must_use]
pub fn is_nsid(id: u32) -> bool {
    (1..=exact::<u32>(MAX_NAMESPACES)).contains(&id)
}

fn one_line(error: &toml::de::Error) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}
