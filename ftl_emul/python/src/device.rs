//! A drive in Python.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::PathBuf;

use ftl_core::count::Requests;
use ftl_core::engine::{Arrival, Limit, Until};
use ftl_core::{Drive, Placement, TenantId};
use pyo3::prelude::*;

use crate::arguments::{Column, Progress, Reason};
use crate::config::ConfigArgument;
use crate::records::{LatencyUs, MoveRecord, Moved, Preconditioning, QueueRecord, SpaceRecord, TenantRecord};
use crate::{DriveError, refused};

/// An emulated SSD. Every refusal raises `DriveError` and changes nothing.
#[pyclass]
pub struct Device {
    drive: Drive,
}

#[pymethods]
impl Device {
    #[new]
    fn new(config: ConfigArgument) -> PyResult<Self> {
        let ConfigArgument(config) = config;
        let drive = Drive::new(config.geometry(), config.mapping_options()?, config.drive_options()?);
        Ok(Self { drive: drive.map_err(refused)? })
    }

    /// Restores a drive that `save()` wrote; returns it and its label. Shape and GC policy come from the file, latencies
    /// and scheduler from the configuration.
    #[staticmethod]
    fn restore(py: Python<'_>, path: PathBuf, config: ConfigArgument) -> PyResult<(Self, String)> {
        let options = config.0.drive_options()?;
        let mut file = BufReader::new(File::open(path)?);
        let (drive, label) = py.detach(|| Drive::restore(&mut file, options)).map_err(refused)?;
        Ok((Self { drive }, label))
    }

    /// Writes the placement of every page, every counter and the caller's label.
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

    /// State of the moves in the background.
    fn moves(&self) -> MoveRecord {
        (&self.drive).into()
    }

    /// Share of the device's time that moves may take while requests are outstanding.
    fn set_move_budget(&mut self, share: f64) -> PyResult<()> {
        self.drive.set_move_budget(share).map_err(refused)
    }

    /// Cancels the blocks that were not moved yet.
    fn cancel_moves(&mut self) {
        self.drive.cancel_moves();
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

    /// The same percentiles since the previous call for the tenant; empty at the first call.
    fn take_recent_latency_us(&mut self, tenant: u16, percentiles: Vec<f64>) -> PyResult<LatencyUs> {
        let record = self.drive.take_recent_latency(TenantId(tenant)).map_err(refused)?;
        Ok(LatencyUs::new(&record, &percentiles))
    }

    fn clear_latencies(&mut self) {
        self.drive.clear_latencies();
    }

    /// Brings the drive to a steady state. `progress`, if given, is called with the capacities written so far;
    /// its exception ends the preconditioning.
    #[pyo3(signature = (seed, progress=None))]
    fn precondition(&mut self, py: Python<'_>, seed: u64, progress: Option<Progress>) -> PyResult<Preconditioning> {
        let mut raised = Ok(());
        let report = py.detach(|| {
            self.drive.precondition(seed, |capacities| {
                raised = Python::attach(|py| {
                    py.check_signals()?;
                    progress.as_ref().map_or(Ok(()), |progress| progress.report(py, capacities))
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
            tenant: tenant.slice()?,
            op: op.slice()?,
            offset_bytes: offset_bytes.slice()?,
            length_bytes: length_bytes.slice()?,
        };
        py.detach(|| self.drive.apply(requests)).map_err(refused)
    }

    /// Creates an empty queue for a tenant: closed loop at a depth, or open loop by timestamps when depth is None.
    #[pyo3(signature = (tenant, queue_depth))]
    fn open_queue(&mut self, tenant: u16, queue_depth: Option<u32>) -> PyResult<()> {
        let arrival = queue_depth.map_or(Arrival::Open, |queue_depth| Arrival::Closed { queue_depth });
        self.drive.open_queue(TenantId(tenant), arrival).map_err(refused)
    }

    /// Appends requests to a tenant's input. Columns of equal length; all are checked before one is added.
    fn feed(
        &mut self,
        py: Python<'_>,
        tenant: u16,
        time_ns: Column<'_, i64>,
        op: Column<'_, u8>,
        offset_bytes: Column<'_, u64>,
        length_bytes: Column<'_, u64>,
    ) -> PyResult<()> {
        let (time, op, offset, length) = (time_ns.slice()?, op.slice()?, offset_bytes.slice()?, length_bytes.slice()?);
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
    /// Returns "time", "writes", "starved" or "idle", and the tenants without input.
    #[pyo3(signature = (until_ns=None, until_host_page_writes=None))]
    fn run(
        &mut self,
        py: Python<'_>,
        until_ns: Option<u64>,
        until_host_page_writes: Option<u64>,
    ) -> (Reason, Vec<u16>) {
        let until = Until {
            time_ns: until_ns.unwrap_or(u64::MAX),
            host_page_writes: until_host_page_writes.unwrap_or(u64::MAX),
        };
        Reason::of(py.detach(|| self.drive.run(until)))
    }

    /// Verifies every invariant of the mapping; raises `DriveError` naming the first that is broken.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.drive.check()).map_err(DriveError::new_err)
    }
}
