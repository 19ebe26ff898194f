//! A drive: a mapping and an engine behind one face, for callers that choose both at run time.

use std::io::{Read, Seek, SeekFrom, Write};

use crate::count::{self, Requests};
use crate::engine::{
    Arrival, Completion, Engine, LatencyRecord, Limit, MoveStatus, PageCosts, QueueCounters, SchedulerPolicy, Stopped,
};
use crate::engine::{TimingModel, Until};
use crate::error::FtlError;
use crate::geometry::{Geometry, NandTiming};
use crate::mapping::bast::{Bast, BastMapping};
use crate::mapping::choice::MappingOptions;
use crate::mapping::dftl::DftlMapping;
use crate::mapping::fast::{Fast, FastMapping};
use crate::mapping::log_block::LogScheme;
use crate::mapping::page::PageMapping;
use crate::mapping::snapshot_file::{PROLOGUE_BYTES, snapshot_code};
use crate::mapping::{Mapping, MappingCounters, MoveProgress, Placement, TenantCounters, TenantSpace};
use crate::op::{Op, TenantId};
use crate::preconditioning::{self, PreconditioningReport};

/// Everything that makes a drive behave as it does, beyond its geometry and its mapping's options.
#[derive(Debug, Clone, Copy)]
pub struct DriveOptions {
    /// Latencies.
    pub timing: NandTiming,
    /// Time model of GC.
    pub timing_model: TimingModel,
    /// How tenants share the device.
    pub scheduler: SchedulerPolicy,
    /// Page operations in flight at most; None: one for each die.
    pub device_queue_depth: Option<u32>,
}

/// The mappings there are.
#[expect(clippy::large_enum_variant, reason = "a drive has one of these, and a box would cost an access a page")]
enum AnyMapping {
    Page(PageMapping),
    Bast(BastMapping),
    Fast(FastMapping),
    Dftl(DftlMapping),
}

/// Codes of the mappings in snapshots.
const BAST: u8 = <Bast as LogScheme>::SNAPSHOT_CODE;
const FAST: u8 = <Fast as LogScheme>::SNAPSHOT_CODE;
const DFTL: u8 = DftlMapping::SNAPSHOT_CODE;

fn labelled<M>((mapping, label): (M, String), kind: impl FnOnce(M) -> AnyMapping) -> (AnyMapping, String) {
    (kind(mapping), label)
}

/// Calls the same function of whichever mapping it is.
macro_rules! with_mapping {
    ($mapping:expr, $m:ident => $call:expr) => {
        match $mapping {
            AnyMapping::Page($m) => $call,
            AnyMapping::Bast($m) => $call,
            AnyMapping::Fast($m) => $call,
            AnyMapping::Dftl($m) => $call,
        }
    };
}

/// An emulated SSD.
pub struct Drive {
    mapping: AnyMapping,
    engine: Engine,
}

impl Drive {
    /// An empty drive.
    pub fn new(
        geometry: Geometry,
        mapping: impl Into<MappingOptions>,
        options: DriveOptions,
    ) -> Result<Self, FtlError> {
        geometry.validate()?;
        let mapping = match mapping.into() {
            MappingOptions::Page(page) => AnyMapping::Page(PageMapping::new(geometry, page)?),
            MappingOptions::Bast(log_block) => AnyMapping::Bast(BastMapping::new(geometry, log_block)?),
            MappingOptions::Fast(log_block) => AnyMapping::Fast(FastMapping::new(geometry, log_block)?),
            MappingOptions::Dftl(dftl) => AnyMapping::Dftl(DftlMapping::new(geometry, dftl)?),
        };
        Ok(Self { mapping, engine: engine(&geometry, options) })
    }

    /// Reads a drive that [`Drive::save`] wrote, and its label. Queues are empty, the clock is at 0.
    pub fn restore(from: &mut (impl Read + Seek), options: DriveOptions) -> Result<(Self, String), FtlError> {
        let refuse = |e: std::io::Error| FtlError::Snapshot(format!("truncated: {e}"));
        let mut prologue = [0; PROLOGUE_BYTES];
        from.read_exact(&mut prologue).map_err(refuse)?;
        from.seek(SeekFrom::Start(0)).map_err(refuse)?;
        // The readers refuse other files.
        let (mapping, label) = match snapshot_code(&prologue)? {
            BAST => labelled(BastMapping::restore(from)?, AnyMapping::Bast),
            FAST => labelled(FastMapping::restore(from)?, AnyMapping::Fast),
            DFTL => labelled(DftlMapping::restore(from)?, AnyMapping::Dftl),
            _ => labelled(PageMapping::restore(from)?, AnyMapping::Page),
        };
        let geometry = *with_mapping!(&mapping, m => m.geometry());
        Ok((Self { mapping, engine: engine(&geometry, options) }, label))
    }

    /// Writes the placement of every page, every counter and `label`. Refused while requests are in flight.
    pub fn save(&mut self, label: &str, to: &mut impl Write) -> Result<(), FtlError> {
        if !self.engine.is_quiescent() {
            return Err(FtlError::State("requests are in flight; run until idle before saving".into()));
        }
        self.checkpoint(label, to)
    }

    /// Like [`Drive::save`], but also with requests in flight; pages that were not issued yet are omitted.
    pub fn checkpoint(&mut self, label: &str, to: &mut impl Write) -> Result<(), FtlError> {
        with_mapping!(&mut self.mapping, m => m.save(label, to))
            .map_err(|e| FtlError::State(format!("cannot write the snapshot: {e}")))
    }

    /// The shape of the drive.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        with_mapping!(&self.mapping, m => m.geometry())
    }

    /// The mapping and how it works.
    #[must_use]
    pub fn mapping_options(&self) -> MappingOptions {
        match &self.mapping {
            AnyMapping::Page(m) => MappingOptions::Page(*m.options()),
            AnyMapping::Bast(m) => MappingOptions::Bast(*m.options()),
            AnyMapping::Fast(m) => MappingOptions::Fast(*m.options()),
            AnyMapping::Dftl(m) => MappingOptions::Dftl(*m.options()),
        }
    }

    /// See [`Mapping::block_pages`].
    #[must_use]
    pub fn block_pages(&self) -> u32 {
        with_mapping!(&self.mapping, m => m.block_pages())
    }

    /// See [`Mapping::create_tenant`].
    pub fn create_tenant(&mut self, pages: u64, placement: Placement, ops_blocks: u64) -> Result<TenantId, FtlError> {
        with_mapping!(&mut self.mapping, m => m.create_tenant(pages, placement, ops_blocks))
    }

    /// See [`Mapping::delete_tenant`]. Refused while its requests are in flight; its queue goes with it.
    pub fn delete_tenant(&mut self, tenant: TenantId) -> Result<(), FtlError> {
        self.engine.close_queue(tenant)?;
        with_mapping!(&mut self.mapping, m => m.delete_tenant(tenant))
    }

    /// See [`Mapping::resize_tenant`]. Rejected if queued requests would exceed the end.
    pub fn resize_tenant(&mut self, tenant: TenantId, pages: u64) -> Result<(), FtlError> {
        if self.engine.touches_pages_from(tenant, pages) {
            return Err(FtlError::State(format!("tenant {} has requests queued beyond {pages} pages", tenant.0)));
        }
        with_mapping!(&mut self.mapping, m => m.resize_tenant(tenant, pages))
    }

    /// Tenants in the order of their numbers.
    #[must_use]
    pub fn tenants(&self) -> Vec<TenantId> {
        with_mapping!(&self.mapping, m => m.tenants())
    }

    /// See [`Mapping::is_mapped`].
    #[must_use]
    pub fn is_mapped(&self, tenant: TenantId, page: u64) -> bool {
        with_mapping!(&self.mapping, m => m.is_mapped(tenant, page))
    }

    /// See [`Mapping::request_move`].
    pub fn request_move(&mut self, from: Option<TenantId>, to: Option<TenantId>, blocks: u64) -> Result<(), FtlError> {
        with_mapping!(&mut self.mapping, m => m.request_move(from, to, blocks))
    }

    /// See [`Mapping::advance_moves`].
    pub fn advance_moves(&mut self, max_gc_passes: u64) -> MoveProgress {
        with_mapping!(&mut self.mapping, m => self.engine.advance_moves(m, max_gc_passes))
    }

    /// See [`Engine::move_status`].
    #[must_use]
    pub fn move_status(&self) -> MoveStatus {
        self.engine.move_status()
    }

    /// See [`Engine::set_move_budget`].
    pub fn set_move_budget(&mut self, share: f64) -> Result<(), FtlError> {
        self.engine.set_move_budget(share)
    }

    /// Pending moves of blocks: from, to, blocks still to be moved; None represents the spare blocks.
    #[must_use]
    pub fn pending_moves(&self) -> Vec<(Option<TenantId>, Option<TenantId>, u64)> {
        with_mapping!(&self.mapping, m => m.pending_moves())
    }

    /// Cancels the blocks that were not moved yet.
    pub fn cancel_moves(&mut self) {
        with_mapping!(&mut self.mapping, m => m.cancel_moves());
    }

    /// Blocks that no tenant owns.
    #[must_use]
    pub fn spare_blocks(&self) -> u64 {
        with_mapping!(&self.mapping, m => m.spare_blocks())
    }

    /// The fewest OPS blocks with which the owner of blocks works.
    #[must_use]
    pub fn min_ops_blocks(&self) -> u64 {
        with_mapping!(&self.mapping, m => m.tenancy().min_ops_blocks)
    }

    /// Flash-side counters of a tenant.
    pub fn counters(&self, tenant: TenantId) -> Result<&TenantCounters, FtlError> {
        with_mapping!(&self.mapping, m => m.counters(tenant))
    }

    /// Merges and accesses to the map of a tenant.
    pub fn mapping_counters(&self, tenant: TenantId) -> Result<MappingCounters, FtlError> {
        with_mapping!(&self.mapping, m => m.mapping_counters(tenant))
    }

    /// Space of a tenant.
    pub fn space(&self, tenant: TenantId) -> Result<TenantSpace, FtlError> {
        with_mapping!(&self.mapping, m => m.space(tenant))
    }

    /// Verifies every invariant.
    pub fn check(&self) -> Result<(), String> {
        with_mapping!(&self.mapping, m => m.check())
    }

    /// See [`preconditioning::precondition`].
    pub fn precondition(&mut self, seed: u64, progress: impl FnMut(f64) -> bool) -> PreconditioningReport {
        with_mapping!(&mut self.mapping, m => preconditioning::precondition(m, seed, progress))
    }

    /// See [`count::apply`].
    pub fn apply(&mut self, requests: Requests<'_>) -> Result<(), FtlError> {
        with_mapping!(&mut self.mapping, m => count::apply(m, requests))
    }

    /// See [`Engine::open_queue`].
    pub fn open_queue(&mut self, tenant: TenantId, arrival: Arrival) -> Result<(), FtlError> {
        self.counters(tenant)?;
        self.engine.open_queue(tenant, arrival)
    }

    /// See [`Engine::feed`].
    pub fn feed(
        &mut self,
        tenant: TenantId,
        time_ns: &[i64],
        op: &[u8],
        offset_bytes: &[u64],
        length_bytes: &[u64],
    ) -> Result<(), FtlError> {
        with_mapping!(&self.mapping, m => self.engine.feed(m, tenant, time_ns, op, offset_bytes, length_bytes))
    }

    /// See [`Engine::submit`].
    pub fn submit(
        &mut self,
        tenant: TenantId,
        op: Op,
        offset_bytes: u64,
        length_bytes: u64,
        token: u64,
    ) -> Result<(), FtlError> {
        with_mapping!(&self.mapping, m => self.engine.submit(m, tenant, op, offset_bytes, length_bytes, token))
    }

    /// See [`Engine::completions`].
    pub fn completions(&mut self) -> std::vec::Drain<'_, Completion> {
        self.engine.completions()
    }

    /// See [`Engine::next_event_ns`].
    #[must_use]
    pub fn next_event_ns(&self) -> Option<u64> {
        self.engine.next_event_ns()
    }

    /// See [`Engine::next_event_is_read`].
    #[must_use]
    pub fn next_event_is_read(&self) -> bool {
        self.engine.next_event_is_read()
    }

    /// See [`Engine::end_input`].
    pub fn end_input(&mut self, tenant: TenantId) -> Result<(), FtlError> {
        self.engine.end_input(tenant)
    }

    /// See [`Engine::pause`].
    pub fn pause(&mut self, tenant: TenantId, paused: bool) -> Result<(), FtlError> {
        self.engine.pause(tenant, paused)
    }

    /// See [`Engine::set_weight`].
    pub fn set_weight(&mut self, tenant: TenantId, weight: f64) -> Result<(), FtlError> {
        self.engine.set_weight(tenant, weight)
    }

    /// See [`Engine::set_scheduler`].
    pub fn set_scheduler(&mut self, policy: SchedulerPolicy) {
        self.engine.set_scheduler(policy);
    }

    /// See [`Engine::scheduler`].
    #[must_use]
    pub fn scheduler(&self) -> SchedulerPolicy {
        self.engine.scheduler()
    }

    /// See [`Engine::set_limit`].
    pub fn set_limit(&mut self, tenant: TenantId, limit: Limit) -> Result<(), FtlError> {
        self.engine.set_limit(tenant, limit)
    }

    /// See [`Engine::run`].
    pub fn run(&mut self, until: Until) -> Stopped {
        with_mapping!(&mut self.mapping, m => self.engine.run(m, until))
    }

    /// Virtual time, nanoseconds.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.engine.now_ns()
    }

    /// Host page writes issued by the engine.
    #[must_use]
    pub fn host_page_writes(&self) -> u64 {
        self.engine.host_page_writes()
    }

    /// Queue-side counters of a tenant.
    pub fn queue_counters(&self, tenant: TenantId) -> Result<&QueueCounters, FtlError> {
        self.engine.counters(tenant)
    }

    /// Requests of a tenant that have arrived and are not complete.
    pub fn outstanding(&self, tenant: TenantId) -> Result<u32, FtlError> {
        self.engine.outstanding(tenant)
    }

    /// Latencies of a tenant since they were last cleared.
    pub fn latency(&self, tenant: TenantId) -> Result<&LatencyRecord, FtlError> {
        self.engine.latency(tenant)
    }

    /// See [`Engine::take_recent_latency`].
    pub fn take_recent_latency(&mut self, tenant: TenantId) -> Result<LatencyRecord, FtlError> {
        self.engine.take_recent_latency(tenant)
    }

    /// Clears the latencies of every tenant.
    pub fn clear_latencies(&mut self) {
        self.engine.clear_latencies();
    }
}

fn engine(geometry: &Geometry, options: DriveOptions) -> Engine {
    let costs = PageCosts::new(geometry, &options.timing, options.timing_model);
    Engine::new(geometry, costs, options.scheduler, options.device_queue_depth)
}
