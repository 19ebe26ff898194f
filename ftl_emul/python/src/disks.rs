//! Hard disks in virtual time, one or several as RAID-0.

use ftl_core::disk::{Array, ArrayOptions, DISK_PRESETS, DiskPreset, disk_preset};
use ftl_core::engine::SchedulerPolicy;
use ftl_core::{Op, TenantId};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::arguments::Column;
use crate::refused;

/// A preset of a disk.
#[pyclass(name = "DiskPreset", frozen, get_all)]
#[derive(Clone)]
pub struct DiskPresetRecord {
    name: &'static str,
    description: &'static str,
    capacity_bytes: u64,
    heads: u32,
    rotation_ns: u64,
    seek_min_ns: u64,
    seek_average_ns: u64,
    seek_max_ns: u64,
    write_settle_ns: u64,
    outer_bytes_s: u64,
    inner_bytes_s: u64,
    zones: u32,
    interface_bytes_s: u64,
    command_ns: u64,
    queue_depth: u32,
    segment_bytes: u64,
    segments: u32,
    write_cache_bytes: u64,
    write_cache_places: u32,
}

impl From<&DiskPreset> for DiskPresetRecord {
    fn from(preset: &DiskPreset) -> Self {
        let p = preset.parameters;
        Self {
            name: preset.name,
            description: preset.description,
            capacity_bytes: p.capacity_bytes,
            heads: p.heads,
            rotation_ns: p.rotation_ns,
            seek_min_ns: p.seek_min_ns,
            seek_average_ns: p.seek_average_ns,
            seek_max_ns: p.seek_max_ns,
            write_settle_ns: p.write_settle_ns,
            outer_bytes_s: p.outer_bytes_s,
            inner_bytes_s: p.inner_bytes_s,
            zones: p.zones,
            interface_bytes_s: p.interface_bytes_s,
            command_ns: p.command_ns,
            queue_depth: p.queue_depth,
            segment_bytes: p.segment_bytes,
            segments: p.segments,
            write_cache_bytes: p.write_cache_bytes,
            write_cache_places: p.write_cache_places,
        }
    }
}

/// The presets of disks.
pub fn presets() -> Vec<DiskPresetRecord> {
    DISK_PRESETS.iter().map(DiskPresetRecord::from).collect()
}

/// Disks of one kind, all of them used by one client.
#[pyclass]
pub struct Disks {
    array: Array,
    tenant: TenantId,
}

#[pymethods]
impl Disks {
    /// Raises `ValueError` for an unknown preset, `DriveError` for an invalid array.
    #[new]
    fn new(preset: &str, disks: u32, stripe_bytes: u64) -> PyResult<Self> {
        let Some(known) = disk_preset(preset) else {
            let names: Vec<&str> = DISK_PRESETS.iter().map(|known| known.name).collect();
            return Err(PyValueError::new_err(format!("unknown disk '{preset}'; known are {}", names.join(", "))));
        };
        let scheduler = SchedulerPolicy::Fifo;
        let options = ArrayOptions { disks, stripe_bytes, scheduler, queue_depth: None };
        let mut array = Array::new(known.parameters, options).map_err(refused)?;
        let tenant = array.create_tenant(array.capacity_bytes()).map_err(refused)?;
        Ok(Self { array, tenant })
    }

    #[getter]
    fn capacity_bytes(&self) -> u64 {
        self.array.capacity_bytes()
    }

    #[getter]
    fn now_ns(&self) -> u64 {
        self.array.now_ns()
    }

    /// Plays requests of one kind (0 read, 1 write) and size, `queue_depth` at a time, until all have ended or
    /// `limit_ns` has passed. Returns the number of ended requests and the time they took.
    #[pyo3(signature = (op, offsets_bytes, length_bytes, queue_depth=1, limit_ns=None))]
    fn play(
        &mut self,
        py: Python<'_>,
        op: u8,
        offsets_bytes: Column<'_, u64>,
        length_bytes: u64,
        queue_depth: usize,
        limit_ns: Option<u64>,
    ) -> PyResult<(u64, u64)> {
        let (op, offsets) = (Op::try_from(op).map_err(refused)?, offsets_bytes.slice()?);
        let limit_ns = limit_ns.unwrap_or(u64::MAX);
        py.detach(|| self.array.play(self.tenant, op, offsets, length_bytes, queue_depth, limit_ns)).map_err(refused)
    }

    /// Waits until every write is on the media.
    fn flush(&mut self) -> PyResult<()> {
        self.array.play(self.tenant, Op::Flush, &[0], 0, 1, u64::MAX).map(drop).map_err(refused)
    }
}
