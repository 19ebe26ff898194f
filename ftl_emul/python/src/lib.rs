//! Python binding of the emulated SSD: numpy arrays in, typed records out, the GIL released while it works.

mod disks;
mod records;

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::PathBuf;

use ftl_core::count::Requests;
use ftl_core::engine::{Arrival, Limit, SCHEDULERS, SchedulerPolicy, Stopped, TimingModel, Until};
use ftl_core::{
    Drive, DriveOptions, FtlError, Geometry, LogBlockOptions, MAPPINGS, MappingOptions, NandTiming, PRESETS,
    PageMappingOptions, Placement, TenantId, VICTIM_POLICIES, victim_policy,
};
use numpy::PyReadonlyArray1;
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;

use records::{Ageing, LatencyUs, Moved, QueueRecord, SpaceRecord, TenantRecord};

create_exception!(_core, DriveError, PyException, "A request that the emulated SSD refused; nothing was changed.");

fn refused(error: FtlError) -> PyErr {
    DriveError::new_err(error.to_string())
}

fn find<T: Copy>(table: &[(&str, T, &str)], kind: &str, name: &str) -> PyResult<T> {
    table.iter().find(|(n, ..)| *n == name).map(|&(_, value, _)| value).ok_or_else(|| {
        let names: Vec<&str> = table.iter().map(|(n, ..)| *n).collect();
        PyValueError::new_err(format!("no {kind} '{name}'; there are {}", names.join(", ")))
    })
}

/// Names and descriptions of a table of policies.
fn listing<T>(table: &[(&'static str, T, &'static str)]) -> Vec<(&'static str, &'static str)> {
    table.iter().map(|&(name, _, description)| (name, description)).collect()
}

/// What makes a drive: the fields of `ftl_emul.Config`, read one by one.
#[derive(FromPyObject)]
struct Config {
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
    paper_timing: bool,
    copyback: bool,
    mapping: String,
    cluster_dies: u32,
    cached_entries: Option<u64>,
    victim: String,
    separate_gc_frontier: bool,
    free_floor: u32,
    wear_spread_limit: Option<u32>,
    scheduler: String,
    device_queue_depth: Option<u32>,
    seed: u64,
}

impl Config {
    fn geometry(&self) -> Geometry {
        Geometry {
            page_bytes: self.page_bytes,
            pages_per_block: self.pages_per_block,
            blocks_per_die: self.blocks_per_die,
            channels: self.channels,
            dies_per_channel: self.dies_per_channel,
            planes: self.planes,
        }
    }

    fn mapping_options(&self) -> PyResult<MappingOptions> {
        let victim = match victim_policy(&self.victim) {
            Some(policy) => policy,
            None => find(VICTIM_POLICIES, "victim policy", &self.victim)?,
        };
        let kind = find(MAPPINGS, "mapping", &self.mapping)?;
        let page = PageMappingOptions {
            victim,
            separate_gc_frontier: self.separate_gc_frontier,
            free_floor: self.free_floor,
            wear_spread_limit: self.wear_spread_limit,
            seed: self.seed,
        };
        let log_block = LogBlockOptions { cluster_dies: self.cluster_dies, free_floor: self.free_floor };
        MappingOptions::new(kind, page, log_block, self.cached_entries).map_err(refused)
    }

    fn drive_options(&self) -> PyResult<DriveOptions> {
        let scheduler: SchedulerPolicy = find(SCHEDULERS, "scheduler", &self.scheduler)?;
        let timing_model =
            if self.paper_timing { TimingModel::Paper } else { TimingModel::Full { copyback: self.copyback } };
        let timing = NandTiming {
            read_ns: self.read_ns,
            program_ns: self.program_ns,
            erase_ns: self.erase_ns,
            transfer_ns: self.transfer_ns,
        };
        Ok(DriveOptions { timing, timing_model, scheduler, device_queue_depth: self.device_queue_depth })
    }
}

type Column<'py, T> = PyReadonlyArray1<'py, T>;

/// A column as a slice; columns must be contiguous.
fn slice<'a, T: numpy::Element>(column: &'a Column<'_, T>) -> PyResult<&'a [T]> {
    column.as_slice().map_err(|_| PyValueError::new_err("columns must be contiguous arrays"))
}

/// An emulated SSD. Every refusal raises DriveError and changes nothing.
#[pyclass]
struct Device {
    drive: Drive,
}

#[pymethods]
impl Device {
    #[new]
    fn new(config: Config) -> PyResult<Self> {
        let drive = Drive::new(config.geometry(), config.mapping_options()?, config.drive_options()?);
        Ok(Self { drive: drive.map_err(refused)? })
    }

    /// Restores a drive that save() wrote; returns it and its label. Shape and GC policy come from the file, latencies
    /// and scheduler from the configuration.
    #[staticmethod]
    fn restore(py: Python<'_>, path: PathBuf, config: Config) -> PyResult<(Self, String)> {
        let options = config.drive_options()?;
        let mut file = BufReader::new(File::open(path)?);
        let (drive, label) = py.detach(|| Drive::restore(&mut file, options)).map_err(refused)?;
        Ok((Self { drive }, label))
    }

    /// Writes the placement of every page, every counter and a label of the caller's.
    fn save(&mut self, py: Python<'_>, path: PathBuf, label: &str) -> PyResult<()> {
        let mut file = BufWriter::new(File::create(path)?);
        py.detach(|| self.drive.save(label, &mut file)).map_err(refused)?;
        file.flush()?;
        file.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()?;
        Ok(())
    }

    /// Blocks of the whole drive, as tenants own them: clustered ones count as one.
    #[getter]
    fn blocks(&self) -> u64 {
        self.drive.geometry().pages() / u64::from(self.drive.block_pages())
    }

    /// Pages of such a block.
    #[getter]
    fn block_pages(&self) -> u32 {
        self.drive.block_pages()
    }

    #[getter]
    fn spare_blocks(&self) -> u64 {
        self.drive.spare_blocks()
    }

    #[getter]
    fn now_ns(&self) -> u64 {
        self.drive.now_ns()
    }

    #[getter]
    fn host_page_writes(&self) -> u64 {
        self.drive.host_page_writes()
    }

    fn tenants(&self) -> Vec<u16> {
        self.drive.tenants().into_iter().map(|t| t.0).collect()
    }

    fn create_tenant(&mut self, pages: u64, isolated: bool, ops_blocks: u64) -> PyResult<u16> {
        let placement = if isolated { Placement::Isolated } else { Placement::Shared };
        self.drive.create_tenant(pages, placement, ops_blocks).map(|t| t.0).map_err(refused)
    }

    fn delete_tenant(&mut self, tenant: u16) -> PyResult<()> {
        self.drive.delete_tenant(TenantId(tenant)).map_err(refused)
    }

    fn resize_tenant(&mut self, tenant: u16, pages: u64) -> PyResult<()> {
        self.drive.resize_tenant(TenantId(tenant), pages).map_err(refused)
    }

    #[pyo3(signature = (source, target, blocks))]
    fn request_move(&mut self, source: Option<u16>, target: Option<u16>, blocks: u64) -> PyResult<()> {
        self.drive.request_move(source.map(TenantId), target.map(TenantId), blocks).map_err(refused)
    }

    fn advance_moves(&mut self, py: Python<'_>, max_gc_passes: u64) -> Moved {
        py.detach(|| self.drive.advance_moves(max_gc_passes)).into()
    }

    fn counters(&self, tenant: u16) -> PyResult<TenantRecord> {
        let tenant = TenantId(tenant);
        let merges = self.drive.mapping_counters(tenant).map_err(refused)?;
        self.drive.counters(tenant).map(|counters| TenantRecord::new(counters, &merges)).map_err(refused)
    }

    fn queue_counters(&self, tenant: u16) -> PyResult<QueueRecord> {
        self.drive.queue_counters(TenantId(tenant)).map(Into::into).map_err(refused)
    }

    fn space(&self, tenant: u16) -> PyResult<SpaceRecord> {
        self.drive.space(TenantId(tenant)).map(Into::into).map_err(refused)
    }

    fn outstanding(&self, tenant: u16) -> PyResult<u32> {
        self.drive.outstanding(TenantId(tenant)).map_err(refused)
    }

    /// Percentiles (0..100) of read and write latency in microseconds since the last clear.
    fn latency_us(&self, tenant: u16, percentiles: Vec<f64>) -> PyResult<LatencyUs> {
        let record = self.drive.latency(TenantId(tenant)).map_err(refused)?;
        Ok(LatencyUs::new(record, &percentiles))
    }

    fn clear_latencies(&mut self) {
        self.drive.clear_latencies();
    }

    /// Brings the drive to a steady state. `progress`, if given, is called with the capacities written so far;
    /// what it raises ends the ageing.
    #[pyo3(signature = (seed, progress=None))]
    fn age(&mut self, py: Python<'_>, seed: u64, progress: Option<Py<PyAny>>) -> PyResult<Ageing> {
        let mut raised = Ok(());
        let report = py.detach(|| {
            self.drive.age(seed, |capacities| {
                raised = Python::attach(|py| {
                    py.check_signals()?;
                    progress.as_ref().map_or(Ok(()), |p| p.call1(py, (capacities,)).map(drop))
                });
                raised.is_ok()
            })
        });
        raised?;
        Ok(report.into())
    }

    /// Applies requests in order, without a clock. Columns of equal length.
    fn apply(
        &mut self,
        py: Python<'_>,
        tenant: Column<'_, u16>,
        op: Column<'_, u8>,
        offset_bytes: Column<'_, u64>,
        length_bytes: Column<'_, u64>,
    ) -> PyResult<()> {
        let requests = Requests {
            tenant: slice(&tenant)?,
            op: slice(&op)?,
            offset_bytes: slice(&offset_bytes)?,
            length_bytes: slice(&length_bytes)?,
        };
        py.detach(|| self.drive.apply(requests)).map_err(refused)
    }

    /// Gives a tenant an empty queue: closed loop at a depth, or open loop by timestamps when depth is None.
    #[pyo3(signature = (tenant, queue_depth))]
    fn open_queue(&mut self, tenant: u16, queue_depth: Option<u32>) -> PyResult<()> {
        let arrival = queue_depth.map_or(Arrival::Open, |queue_depth| Arrival::Closed { queue_depth });
        self.drive.open_queue(TenantId(tenant), arrival).map_err(refused)
    }

    /// Appends requests to a tenant's input. Columns of equal length; all are checked before any is taken.
    fn feed(
        &mut self,
        py: Python<'_>,
        tenant: u16,
        time_ns: Column<'_, i64>,
        op: Column<'_, u8>,
        offset_bytes: Column<'_, u64>,
        length_bytes: Column<'_, u64>,
    ) -> PyResult<()> {
        let (time, op, offset, length) = (slice(&time_ns)?, slice(&op)?, slice(&offset_bytes)?, slice(&length_bytes)?);
        py.detach(|| self.drive.feed(TenantId(tenant), time, op, offset, length)).map_err(refused)
    }

    fn end_input(&mut self, tenant: u16) -> PyResult<()> {
        self.drive.end_input(TenantId(tenant)).map_err(refused)
    }

    fn pause(&mut self, tenant: u16, paused: bool) -> PyResult<()> {
        self.drive.pause(TenantId(tenant), paused).map_err(refused)
    }

    fn set_weight(&mut self, tenant: u16, weight: f64) -> PyResult<()> {
        self.drive.set_weight(TenantId(tenant), weight).map_err(refused)
    }

    #[pyo3(signature = (tenant, iops=None, bytes_s=None))]
    fn set_limit(&mut self, tenant: u16, iops: Option<f64>, bytes_s: Option<f64>) -> PyResult<()> {
        self.drive.set_limit(TenantId(tenant), Limit { iops, bytes_s }).map_err(refused)
    }

    /// Lets virtual time pass until a time, a count of host page writes, or a tenant without input.
    ///
    /// Returns "time", "writes", "starved" or "idle", and the tenants that starve.
    #[pyo3(signature = (until_ns=None, until_host_page_writes=None))]
    fn run(
        &mut self,
        py: Python<'_>,
        until_ns: Option<u64>,
        until_host_page_writes: Option<u64>,
    ) -> (&'static str, Vec<u16>) {
        let until = Until {
            time_ns: until_ns.unwrap_or(u64::MAX),
            host_page_writes: until_host_page_writes.unwrap_or(u64::MAX),
        };
        match py.detach(|| self.drive.run(until)) {
            Stopped::Time => ("time", Vec::new()),
            Stopped::Writes => ("writes", Vec::new()),
            Stopped::Starved(tenants) => ("starved", tenants.into_iter().map(|t| t.0).collect()),
            Stopped::Idle => ("idle", Vec::new()),
        }
    }

    /// Verifies every invariant of the mapping; raises DriveError naming the first that is broken.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.drive.check()).map_err(DriveError::new_err)
    }
}

/// The compiled part of `ftl_emul`.
#[pymodule]
mod _core {
    use super::{MAPPINGS, PRESETS, SCHEDULERS, VICTIM_POLICIES, listing};
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::disks::{DiskPresetRecord, Disks};
    #[pymodule_export]
    use super::records::{Ageing, LatencyUs, Moved, PresetRecord, QueueRecord, SpaceRecord, TenantRecord};
    #[pymodule_export]
    use super::{Device, DriveError};

    /// The drives that need no further description.
    #[pyfunction]
    fn presets() -> Vec<PresetRecord> {
        PRESETS.iter().map(PresetRecord::from).collect()
    }

    /// The disks that need no further description.
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

    /// Schedulers: (name, description).
    #[pyfunction]
    fn schedulers() -> Vec<(&'static str, &'static str)> {
        listing(SCHEDULERS)
    }
}
