//! What was changed while the device was served: `settings.json`, laid over `device.toml` at the next start.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::atomic_file;
use crate::error::ServeError;

const FORMAT_VERSION: u32 = 1;
const FILE: &str = "settings.json";

/// Everything that can be changed while the device is served.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    format_version: u32,
    /// How the device divides itself among its namespaces, by name; None: as `device.toml` has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<String>,
    /// By name of the namespace.
    pub namespaces: BTreeMap<String, NamespaceSettings>,
}

/// Those of one namespace; None: as `device.toml` has it.
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
    /// Over-provisioning blocks, once every move asked for has been carried out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ops_blocks: Option<u64>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { format_version: FORMAT_VERSION, scheduler: None, namespaces: BTreeMap::new() }
    }
}

impl Settings {
    /// Reads the settings of a device; none when nothing was ever changed.
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
        Ok(settings)
    }

    /// Those of one namespace.
    #[must_use]
    pub fn of(&self, namespace: &str) -> NamespaceSettings {
        self.namespaces.get(namespace).cloned().unwrap_or_default()
    }

    /// Those of one namespace, to be changed; see [`Settings::change`].
    pub fn of_mut(&mut self, namespace: &str) -> &mut NamespaceSettings {
        self.namespaces.entry(namespace.to_owned()).or_default()
    }

    /// Changes settings and writes them, all in one step; what is in memory is changed only if that succeeds.
    pub fn change(&mut self, folder: &Path, change: impl FnOnce(&mut Self)) -> Result<(), ServeError> {
        let mut changed = self.clone();
        change(&mut changed);
        if changed == *self {
            return Ok(());
        }
        let path = folder.join(FILE);
        let text = serde_json::to_vec_pretty(&changed).map_err(|e| ServeError::Refused(e.to_string()))?;
        atomic_file::replace(&path, &text).map_err(|e| ServeError::io("cannot write", &path, &e))?;
        *self = changed;
        Ok(())
    }
}
