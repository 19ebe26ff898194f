//! Python binding of the emulated SSD: numpy arrays in, typed records out, the GIL released while it works.

#![expect(clippy::needless_pass_by_value, reason = "PyO3 hands arguments over by value")]

mod arguments;
mod config;
mod device;
mod disks;
mod records;
mod toml_lines;

use ftl_core::engine::SCHEDULERS;
use ftl_core::{FtlError, MAPPINGS, PRESETS, VICTIM_POLICIES};
use pyo3::prelude::*;

pyo3::import_exception!(ftl_emul, DriveError);

fn refused(error: FtlError) -> PyErr {
    DriveError::new_err(error.to_string())
}

/// Names and descriptions of a table of policies.
fn listing<T>(table: &[(&'static str, T, &'static str)]) -> Vec<(&'static str, &'static str)> {
    table.iter().map(|&(name, _, description)| (name, description)).collect()
}

/// The compiled part of `ftl_emul`.
#[pymodule]
mod _core {
    use super::{MAPPINGS, PRESETS, SCHEDULERS, VICTIM_POLICIES, listing};
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::device::Device;
    #[pymodule_export]
    use super::disks::{DiskPresetRecord, Disks};
    #[pymodule_export]
    use super::records::{
        LatencyUs, MoveRecord, Moved, Preconditioning, PresetRecord, QueueRecord, SpaceRecord, TenantRecord,
    };
    use super::toml_lines::Step;

    /// The presets of drives.
    #[pyfunction]
    fn presets() -> Vec<PresetRecord> {
        PRESETS.iter().map(PresetRecord::from).collect()
    }

    /// The presets of disks.
    #[pyfunction]
    fn disk_presets() -> Vec<DiskPresetRecord> {
        super::disks::presets()
    }

    /// Mappings: (name, description).
    #[pyfunction]
    fn mappings() -> Vec<(&'static str, &'static str)> {
        listing(MAPPINGS)
    }

    /// Victim policies: (name, description).
    #[pyfunction]
    fn victim_policies() -> Vec<(&'static str, &'static str)> {
        listing(VICTIM_POLICIES)
    }

    /// The line, from 1, of each key, table and element of an array of a TOML file, with its path.
    #[pyfunction]
    fn toml_lines(text: &str) -> Vec<(Vec<Step>, usize)> {
        super::toml_lines::toml_lines(text)
    }

    /// Schedulers: (name, description).
    #[pyfunction]
    fn schedulers() -> Vec<(&'static str, &'static str)> {
        listing(SCHEDULERS)
    }
}
