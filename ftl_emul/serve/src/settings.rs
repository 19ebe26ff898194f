//! Changes made while the device was served: `settings.json`, applied over `device.toml` at the next start.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

use ftl_core::convert::exact;
use serde::{Deserialize, Serialize};

use crate::atomic_file;
use crate::config::{DeviceConfig, MAX_NAMESPACES, NamespaceConfig, is_name, is_nsid};
use crate::error::ServeError;

const FORMAT_VERSION: u32 = 1;
const FILE: &str = "settings.json";

/// Everything that can be changed while the device is served.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    format_version: u32,
    /// The tenant scheduler, by name; None: that of `device.toml`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<String>,
    /// By name of the namespace.
    pub namespaces: BTreeMap<String, NamespaceSettings>,
    /// Namespaces that were created since the device was.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub created: Vec<Created>,
    /// Namespaces of `device.toml` that were deleted.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub deleted: BTreeSet<String>,
    /// NSIDs of namespaces that were deleted and have no successor, the first to be deleted first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deleted_nsids: Vec<u32>,
    /// Backing files to remove, by name of the namespace, whose creation or deletion is in progress.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub files_to_remove: BTreeSet<String>,
    /// Amount that deleted namespaces had read and written.
    #[serde(default, skip_serializing_if = "Totals::are_nothing")]
    pub totals_of_deleted: Totals,
}

/// A namespace that was created since the device was.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Created {
    /// NVMe namespace identifier.
    pub nsid: u32,
    /// Reclaim unit handle.
    pub handle: u16,
    /// Time in nanoseconds since 1970, which distinguishes it from earlier namespaces with its name.
    pub created_ns: u64,
    /// The entry as in `device.toml`.
    #[serde(rename = "namespace")]
    pub config: NamespaceConfig,
}

/// Bytes since the device was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Totals {
    /// Read by hosts.
    pub host_read_bytes: u64,
    /// Written by hosts.
    pub host_written_bytes: u64,
    /// Read from flash: for hosts, GC and the map.
    pub media_read_bytes: u64,
    /// Written to flash: by hosts, GC and the map.
    pub media_written_bytes: u64,
    /// Flash erased.
    pub erased_bytes: u64,
}

impl Totals {
    fn are_nothing(&self) -> bool {
        *self == Self::default()
    }
}

impl std::ops::Add for Totals {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            host_read_bytes: self.host_read_bytes + other.host_read_bytes,
            host_written_bytes: self.host_written_bytes + other.host_written_bytes,
            media_read_bytes: self.media_read_bytes + other.media_read_bytes,
            media_written_bytes: self.media_written_bytes + other.media_written_bytes,
            erased_bytes: self.erased_bytes + other.erased_bytes,
        }
    }
}

/// NVMe hosts that a namespace is attached to, by NQN.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hosts {
    /// All but these.
    AllBut(BTreeSet<String>),
    /// Only these.
    Only(BTreeSet<String>),
}

impl Default for Hosts {
    fn default() -> Self {
        Self::AllBut(BTreeSet::new())
    }
}

impl Hosts {
    /// None.
    #[must_use]
    pub fn none() -> Self {
        Self::Only(BTreeSet::new())
    }

    /// Whether it is attached to that host.
    #[must_use]
    pub fn include(&self, nqn: &str) -> bool {
        match self {
            Self::AllBut(excluded) => !excluded.contains(nqn),
            Self::Only(included) => included.contains(nqn),
        }
    }

    /// Attaches it to a host, or detaches it.
    pub fn set(&mut self, nqn: &str, attached: bool) {
        let (listed, is_listed) = match self {
            Self::AllBut(excluded) => (excluded, !attached),
            Self::Only(included) => (included, attached),
        };
        if is_listed {
            listed.insert(nqn.to_owned());
        } else {
            listed.remove(nqn);
        }
    }

    /// Hosts that are listed.
    #[must_use]
    pub fn listed(&self) -> usize {
        match self {
            Self::AllBut(listed) | Self::Only(listed) => listed.len(),
        }
    }
}

/// Settings of one namespace; None: as in `device.toml`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamespaceSettings {
    /// Logical size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Weight of its device time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
    /// Requests per second at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_iops: Option<f64>,
    /// Bytes per second at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_bytes_s: Option<f64>,
    /// Over-provisioning blocks after all pending moves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ops_blocks: Option<u64>,
    /// NVMe hosts that it is attached to; None: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<Hosts>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            format_version: FORMAT_VERSION,
            scheduler: None,
            namespaces: BTreeMap::new(),
            created: Vec::new(),
            deleted: BTreeSet::new(),
            deleted_nsids: Vec::new(),
            files_to_remove: BTreeSet::new(),
            totals_of_deleted: Totals::default(),
        }
    }
}

impl Settings {
    /// Reads the settings of a device; default ones if nothing was ever changed.
    pub fn read(folder: &Path) -> Result<Self, ServeError> {
        let path = folder.join(FILE);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(e) => return Err(ServeError::io("cannot read", &path, &e)),
        };
        let refuse = |why: String| ServeError::Refused(format!("{}: {why}", path.display()));
        let settings: Self = serde_json::from_str(&text).map_err(|e| refuse(e.to_string()))?;
        if settings.format_version != FORMAT_VERSION {
            return Err(refuse(format!(
                "format_version {}, this program reads {FORMAT_VERSION}",
                settings.format_version
            )));
        }
        settings.check().map_err(refuse)?;
        Ok(settings)
    }

    /// Rejects settings that this program cannot have written.
    fn check(&self) -> Result<(), String> {
        let named = self.created.iter().map(|each| &each.config.name);
        if let Some(name) = named.chain(&self.files_to_remove).find(|name| !is_name(name)) {
            return Err(format!("{name:?} is not a valid name of a namespace"));
        }
        if let Some(nsid) = self.deleted_nsids.iter().find(|&&nsid| !is_nsid(nsid)) {
            return Err(format!("deleted namespace: nsid {nsid} is not possible"));
        }
        for each in &self.created {
            let name = &each.config.name;
            if !is_nsid(each.nsid) || usize::from(each.handle) >= MAX_NAMESPACES {
                return Err(format!(
                    "created namespace {name}: nsid {} or handle {} is not possible",
                    each.nsid, each.handle
                ));
            }
            if self.files_to_remove.contains(name) {
                return Err(format!("namespace {name} is both created and marked for removal"));
            }
        }
        Ok(())
    }

    /// Existing namespaces by NSID: those of `device.toml` that were not deleted, and those created since.
    pub fn present(&self, config: &DeviceConfig) -> Result<Vec<Created>, ServeError> {
        let original = (0..).zip(&config.namespaces).filter(|(_, given)| !self.deleted.contains(&given.name));
        let original = original.map(|(number, given)| Created {
            nsid: u32::from(number) + 1,
            handle: number,
            created_ns: 0,
            config: given.clone(),
        });
        let mut found: Vec<Created> = original.chain(self.created.iter().cloned()).collect();
        found.sort_by_key(|each| each.nsid);
        let (mut names, mut handles) = (BTreeSet::new(), BTreeSet::new());
        let mut last_nsid = 0;
        for each in &found {
            let is_new = names.insert(&each.config.name) && handles.insert(each.handle) && each.nsid > last_nsid;
            if !is_new {
                return Err(ServeError::Refused(format!(
                    "{FILE}: namespace {} has the name, NSID or handle of another",
                    each.config.name
                )));
            }
            config.check_namespace(&each.config)?;
            last_nsid = each.nsid;
        }
        Ok(found)
    }

    /// NSID of a new namespace; None if all are in use. A host that has not noticed the deletion of a namespace may
    /// still write to its NSID: the smallest unused one, else that of the namespace that was deleted first.
    #[must_use]
    pub fn next_nsid(&self, in_use: &BTreeSet<u32>) -> Option<u32> {
        let nsids = 1..=exact::<u32>(MAX_NAMESPACES);
        let is_new = |nsid: &u32| !in_use.contains(nsid) && !self.deleted_nsids.contains(nsid);
        nsids
            .into_iter()
            .find(is_new)
            .or_else(|| self.deleted_nsids.iter().copied().find(|nsid| !in_use.contains(nsid)))
    }

    /// Settings of one namespace.
    #[must_use]
    pub fn of(&self, namespace: &str) -> NamespaceSettings {
        self.namespaces.get(namespace).cloned().unwrap_or_default()
    }

    /// Settings of one namespace for a change; see [`Settings::change`].
    pub fn of_mut(&mut self, namespace: &str) -> &mut NamespaceSettings {
        self.namespaces.entry(namespace.to_owned()).or_default()
    }

    /// Changes settings and writes them atomically; the settings in memory change only if that succeeds.
    pub fn change(&mut self, folder: &Path, change: impl FnOnce(&mut Self)) -> Result<(), ServeError> {
        let mut changed = self.clone();
        change(&mut changed);
        if changed == *self {
            return Ok(());
        }
        let path = folder.join(FILE);
        let text = changed.text()?;
        if let Err(error) = atomic_file::replace(&path, &text) {
            // The new file may exist if only the folder could not be synced: the next start must not find the refused
            // settings. If even this fails, the first reason is reported.
            if fs::read(&path).is_ok_and(|there| there == text) {
                let _reported = atomic_file::replace(&path, &self.text()?);
            }
            return Err(ServeError::io("cannot write", &path, &error));
        }
        *self = changed;
        Ok(())
    }

    fn text(&self) -> Result<Vec<u8>, ServeError> {
        serde_json::to_vec_pretty(self).map_err(|e| ServeError::Refused(e.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_used_again_when_there_is_no_other_and_the_first_deleted_first() {
        let mut settings = Settings { deleted_nsids: vec![2, 5, 1], ..Settings::default() };
        assert_eq!(settings.next_nsid(&BTreeSet::from([3, 4])), Some(6));
        let all: BTreeSet<u32> = (1..=exact(MAX_NAMESPACES)).collect();
        let but = |deleted: &[u32]| &all - &deleted.iter().copied().collect();
        assert_eq!(settings.next_nsid(&but(&[1, 2, 5])), Some(2));
        assert_eq!(settings.next_nsid(&but(&[1, 5, 9])), Some(9));
        settings.deleted_nsids.push(9);
        assert_eq!(settings.next_nsid(&but(&[9])), Some(9));
        assert_eq!(settings.next_nsid(&all), None);
    }
}
