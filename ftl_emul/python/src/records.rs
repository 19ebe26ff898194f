//! Records for Python: plain, frozen, all fields readable.

use ftl_core::engine::{LatencyRecord, QueueCounters};
use ftl_core::preconditioning::PreconditioningReport;
use ftl_core::{Drive, MappingCounters, MoveProgress, Placement, Preset, TenantCounters, TenantId, TenantSpace};
use pyo3::prelude::*;

/// Flash-side counters of a tenant since its creation; pages unless the name says otherwise.
#[pyclass(frozen, get_all)]
pub struct TenantRecord {
    host_page_writes: u64,
    host_page_reads: u64,
    unmapped_page_reads: u64,
    rmw_page_reads: u64,
    trimmed_pages: u64,
    gc_page_writes: u64,
    reclaim_page_writes: u64,
    victims: u64,
    victim_valid_pages: u64,
    erases: u64,
    victim_histogram: Vec<u64>,
    moved_pages_of: Vec<u64>,
    switch_merges: u64,
    partial_merges: u64,
    full_merges: u64,
    merged_blocks: u64,
    switch_merge_ns: u64,
    partial_merge_ns: u64,
    full_merge_ns: u64,
    map_reads: u64,
    map_writes: u64,
    map_ns: u64,
}

impl TenantRecord {
    pub fn new(c: &TenantCounters, m: &MappingCounters) -> Self {
        Self {
            host_page_writes: c.host_page_writes,
            host_page_reads: c.host_page_reads,
            unmapped_page_reads: c.unmapped_page_reads,
            rmw_page_reads: c.rmw_page_reads,
            trimmed_pages: c.trimmed_pages,
            gc_page_writes: c.gc_page_writes,
            reclaim_page_writes: c.reclaim_page_writes,
            victims: c.victims,
            victim_valid_pages: c.victim_valid_pages,
            erases: c.erases,
            victim_histogram: c.victim_histogram.clone(),
            moved_pages_of: c.moved_pages_of.clone(),
            switch_merges: m.switch_merges,
            partial_merges: m.partial_merges,
            full_merges: m.full_merges,
            merged_blocks: m.merged_blocks,
            switch_merge_ns: m.switch_merge_ns,
            partial_merge_ns: m.partial_merge_ns,
            full_merge_ns: m.full_merge_ns,
            map_reads: m.map_reads,
            map_writes: m.map_writes,
            map_ns: m.map_ns,
        }
    }
}

/// Queue-side counters of a tenant since its queue was opened.
#[pyclass(frozen, get_all)]
pub struct QueueRecord {
    reads: u64,
    writes: u64,
    trims: u64,
    write_zeroes: u64,
    flushes: u64,
    read_bytes: u64,
    write_bytes: u64,
    device_ns: u64,
    gc_ns: u64,
    throttled_ns: u64,
    latency_ns: u64,
    backlog_ns: u64,
    queued_ns: u64,
}

impl From<&QueueCounters> for QueueRecord {
    fn from(c: &QueueCounters) -> Self {
        let [reads, writes, trims, write_zeroes, flushes] = c.completed;
        Self {
            reads,
            writes,
            trims,
            write_zeroes,
            flushes,
            read_bytes: c.read_bytes,
            write_bytes: c.write_bytes,
            device_ns: c.device_ns,
            gc_ns: c.gc_ns,
            throttled_ns: c.throttled_ns,
            latency_ns: c.latency_ns,
            backlog_ns: c.backlog_ns,
            queued_ns: c.queued_ns,
        }
    }
}

/// Present space of a tenant.
#[pyclass(frozen, get_all)]
pub struct SpaceRecord {
    isolated: bool,
    logical_pages: u64,
    mapped_pages: u64,
    logical_blocks: u64,
    ops_blocks: i64,
    min_ops_blocks: u64,
    free_blocks: u64,
    min_erases: u32,
    max_erases: u32,
    pending_out_blocks: u64,
}

impl From<TenantSpace> for SpaceRecord {
    fn from(s: TenantSpace) -> Self {
        Self {
            isolated: s.placement == Placement::Isolated,
            logical_pages: s.logical_pages,
            mapped_pages: s.mapped_pages,
            logical_blocks: s.logical_blocks,
            ops_blocks: s.ops_blocks,
            min_ops_blocks: s.min_ops_blocks,
            free_blocks: s.free_blocks,
            min_erases: s.erases_min_max.0,
            max_erases: s.erases_min_max.1,
            pending_out_blocks: s.pending_out_blocks,
        }
    }
}

/// Result of moves of OPS blocks.
#[pyclass(frozen, get_all)]
pub struct Moved {
    moved_blocks: u64,
    gc_passes: u64,
    pending_blocks: u64,
}

impl From<MoveProgress> for Moved {
    fn from(p: MoveProgress) -> Self {
        Self { moved_blocks: p.moved_blocks, gc_passes: p.gc_passes, pending_blocks: p.pending_blocks }
    }
}

/// State of the moves of OPS blocks in the background.
#[pyclass(frozen, get_all)]
pub struct MoveRecord {
    budget: f64,
    done_ns: u64,
    owed_ns: u64,
    moved_blocks: u64,
    /// From, to (None: spare blocks), blocks still to be moved.
    pending: Vec<(Option<u16>, Option<u16>, u64)>,
}

impl From<&Drive> for MoveRecord {
    fn from(drive: &Drive) -> Self {
        let status = drive.move_status();
        let number = |tenant: Option<TenantId>| tenant.map(|t| t.0);
        let pending = drive.pending_moves().into_iter().map(|(from, to, blocks)| (number(from), number(to), blocks));
        Self {
            budget: status.budget,
            done_ns: status.done_ns,
            owed_ns: status.owed_ns,
            moved_blocks: status.moved_blocks,
            pending: pending.collect(),
        }
    }
}

/// Result of preconditioning.
#[pyclass(frozen, get_all)]
pub struct Preconditioning {
    waf: Vec<f64>,
    host_page_writes: u64,
    settled: bool,
}

impl From<PreconditioningReport> for Preconditioning {
    fn from(r: PreconditioningReport) -> Self {
        Self { waf: r.waf, host_page_writes: r.host_page_writes, settled: r.settled }
    }
}

/// Latency percentiles in microseconds, in the requested order; empty if nothing was recorded.
#[pyclass(frozen, get_all)]
pub struct LatencyUs {
    read: Vec<f64>,
    write: Vec<f64>,
    reads: u64,
    writes: u64,
}

impl LatencyUs {
    pub fn new(record: &LatencyRecord, percentiles: &[f64]) -> Self {
        let (reads, writes) = (record.reads(), record.writes());
        let of = |h: &ftl_core::engine::Histogram| {
            if h.is_empty() {
                return Vec::new();
            }
            percentiles.iter().map(|&p| h.value_at_quantile(p / 100.0) as f64 / 1000.0).collect()
        };
        Self { read: of(reads), write: of(writes), reads: reads.len(), writes: writes.len() }
    }
}

/// A preset of a drive.
#[pyclass(frozen, get_all, name = "Preset")]
pub struct PresetRecord {
    name: &'static str,
    description: &'static str,
    page_bytes: u32,
    pages_per_block: u32,
    channels: u32,
    dies_per_channel: u32,
    planes: u32,
    over_provisioning: f64,
    read_ns: u64,
    program_ns: u64,
    erase_ns: u64,
    transfer_ns: u64,
}

impl From<&Preset> for PresetRecord {
    fn from(p: &Preset) -> Self {
        Self {
            name: p.name,
            description: p.description,
            page_bytes: p.page_bytes,
            pages_per_block: p.pages_per_block,
            channels: p.channels,
            dies_per_channel: p.dies_per_channel,
            planes: p.planes,
            over_provisioning: p.over_provisioning,
            read_ns: p.timing.read_ns,
            program_ns: p.timing.program_ns,
            erase_ns: p.timing.erase_ns,
            transfer_ns: p.timing.transfer_ns,
        }
    }
}
