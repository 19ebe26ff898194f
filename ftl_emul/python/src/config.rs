//! Configuration of a drive in Python.

use ftl_core::engine::{SCHEDULERS, SchedulerPolicy, TimingModel};
use ftl_core::{
    DriveOptions, Geometry, LogBlockOptions, MAPPINGS, MappingOptions, NandTiming, PageMappingOptions, VICTIM_POLICIES,
    victim_policy,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
#[cfg(feature = "stubs")]
use pyo3::{inspect::PyStaticExpr, type_hint_identifier};

use crate::refused;

fn find<T: Copy>(table: &[(&str, T, &str)], kind: &str, name: &str) -> PyResult<T> {
    table.iter().find(|(n, ..)| *n == name).map(|&(_, value, _)| value).ok_or_else(|| {
        let names: Vec<&str> = table.iter().map(|(n, ..)| *n).collect();
        PyValueError::new_err(format!("unknown {kind} '{name}'; known are {}", names.join(", ")))
    })
}

/// Configuration of a drive: the fields of `ftl_emul.Config`, read one by one.
#[derive(FromPyObject)]
pub struct Config {
    page_bytes: u32,
    pages_per_block: u32,
    blocks_per_die: u32,
    channels: u32,
    dies_per_channel: u32,
    planes: u32,
    read_ns: u64,
    program_ns: u64,
    erase_ns: u64,
    transfer_ns: u64,
    suspend_ns: u64,
    paper_timing: bool,
    copyback: bool,
    mapping: String,
    cluster_dies: u32,
    cached_entries: Option<u64>,
    victim: String,
    separate_gc_frontier: bool,
    free_floor: u32,
    scheduler: String,
    device_queue_depth: Option<u32>,
    seed: u64,
}

/// The argument of that type. The stubs name it, which they could not with a derived implementation.
pub struct ConfigArgument(pub Config);

impl<'py> FromPyObject<'_, 'py> for ConfigArgument {
    type Error = PyErr;

    #[cfg(feature = "stubs")]
    const INPUT_TYPE: PyStaticExpr = type_hint_identifier!("ftl_emul.config", "Config");

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        object.extract().map(Self)
    }
}

impl Config {
    pub fn geometry(&self) -> Geometry {
        Geometry {
            page_bytes: self.page_bytes,
            pages_per_block: self.pages_per_block,
            blocks_per_die: self.blocks_per_die,
            channels: self.channels,
            dies_per_channel: self.dies_per_channel,
            planes: self.planes,
        }
    }

    pub fn mapping_options(&self) -> PyResult<MappingOptions> {
        let victim = match victim_policy(&self.victim) {
            Some(policy) => policy,
            None => find(VICTIM_POLICIES, "victim policy", &self.victim)?,
        };
        let kind = find(MAPPINGS, "mapping", &self.mapping)?;
        let page = PageMappingOptions {
            victim,
            separate_gc_frontier: self.separate_gc_frontier,
            free_floor: self.free_floor,
            seed: self.seed,
        };
        let log_block = LogBlockOptions { cluster_dies: self.cluster_dies, free_floor: self.free_floor };
        MappingOptions::new(kind, page, log_block, self.cached_entries).map_err(refused)
    }

    pub fn drive_options(&self) -> PyResult<DriveOptions> {
        let scheduler: SchedulerPolicy = find(SCHEDULERS, "scheduler", &self.scheduler)?;
        let timing_model =
            if self.paper_timing { TimingModel::Paper } else { TimingModel::Full { copyback: self.copyback } };
        let timing = NandTiming {
            read_ns: self.read_ns,
            program_ns: self.program_ns,
            erase_ns: self.erase_ns,
            transfer_ns: self.transfer_ns,
            suspend_ns: self.suspend_ns,
        };
        Ok(DriveOptions { timing, timing_model, scheduler, device_queue_depth: self.device_queue_depth })
    }
}
