//! The emulated SSD in steady state: by counting, and in virtual time.

use cpu_time::ProcessTime;
use ftl_core::convert::{exact, whole};
use ftl_core::count::{Requests, apply};
use ftl_core::engine::{Arrival, Engine, PageCosts, SchedulerPolicy, Stopped, TimingModel, Until};
use ftl_core::geometry::preset;
use ftl_core::preconditioning::precondition;
use ftl_core::{FtlError, Geometry, Mapping, PageMapping, PageMappingOptions, Placement, TenantId};
use rand_core::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::below;

const PAGE_BYTES: u64 = 4096;
const WRITES: u64 = 10_000_000;
const BATCH: usize = 1 << 16;
const TENANTS: u64 = 3;

/// A geometry with room for `tenants` of `pages` together, and the OPS blocks of each.
fn shape(pages: u64, spare_factor: f64, dies: u32, tenants: u64) -> (Geometry, u64) {
    let blocks = whole((pages as f64 / (1.0 - spare_factor) / 128.0).ceil());
    let held = u64::from(dies) * tenants;
    let geometry = Geometry {
        page_bytes: exact::<u32>(PAGE_BYTES),
        pages_per_block: 128,
        blocks_per_die: exact::<u32>((blocks + held).div_ceil(u64::from(dies))),
        channels: dies,
        dies_per_channel: 1,
        planes: 1,
    };
    (geometry, (blocks + held) / tenants - geometry.blocks_for(pages / tenants))
}

/// Isolated tenants on an empty drive, preconditioned.
fn populate<M: Mapping>(mapping: &mut M, pages: u64, tenants: u64, ops: u64) -> Vec<TenantId> {
    let ids = (0..tenants)
        .map(|_| mapping.create_tenant(pages / tenants, Placement::Isolated, ops).expect("blocks enough"))
        .collect();
    precondition(mapping, 1, |_| true);
    ids
}

fn drive(pages: u64, spare_factor: f64, dies: u32, tenants: u64) -> (PageMapping, Vec<TenantId>) {
    let (geometry, ops) = shape(pages, spare_factor, dies, tenants);
    let mut mapping = PageMapping::new(geometry, PageMappingOptions::default()).expect("a valid geometry");
    let ids = populate(&mut mapping, pages, tenants, ops);
    (mapping, ids)
}

fn offsets(rng: &mut Xoshiro256PlusPlus, pages: u64) -> Vec<u64> {
    (0..BATCH).map(|_| below(rng, pages) * PAGE_BYTES).collect()
}

/// A drive without a clock, with one tenant.
pub struct Counting<M = PageMapping> {
    mapping: M,
    tenant: TenantId,
    rng: Xoshiro256PlusPlus,
}

impl<M: Mapping> Counting<M> {
    /// A drive in steady state, on one die, with the mapping that `make` makes of its geometry.
    pub fn preconditioned(pages: u64, spare_factor: f64, make: impl FnOnce(Geometry) -> Result<M, FtlError>) -> Self {
        let (geometry, ops) = shape(pages, spare_factor, 1, 1);
        let mut mapping = make(geometry).expect("a valid geometry");
        let tenant = populate(&mut mapping, pages, 1, ops)[0];
        Self { mapping, tenant, rng: Xoshiro256PlusPlus::seed_from_u64(2) }
    }

    /// Host page writes per CPU-second, without the time to generate requests; and the WAF.
    pub fn writes_per_s(&mut self) -> (f64, f64) {
        let pages = self.mapping.pages(self.tenant);
        let (tenant, op, length) = ([self.tenant.0; BATCH], [1; BATCH], [PAGE_BYTES; BATCH]);
        let before = self.mapping.counters(self.tenant).expect("the tenant").clone();
        let mut seconds = 0.0;
        for _ in 0..WRITES / BATCH as u64 {
            let offset_bytes = offsets(&mut self.rng, pages);
            let requests = Requests { tenant: &tenant, op: &op, offset_bytes: &offset_bytes, length_bytes: &length };
            let start = ProcessTime::now();
            apply(&mut self.mapping, requests).expect("requests within the drive");
            seconds += start.elapsed().as_secs_f64();
        }
        let after = self.mapping.counters(self.tenant).expect("the tenant");
        let host = (after.host_page_writes - before.host_page_writes) as f64;
        (host / seconds, 1.0 + (after.gc_page_writes - before.gc_page_writes) as f64 / host)
    }
}

/// In virtual time: three tenants on eight dies, eight requests of each outstanding, latency histograms of each.
pub struct Timed {
    mapping: PageMapping,
    engine: Engine,
    rng: Xoshiro256PlusPlus,
}

impl Timed {
    /// A drive in steady state.
    pub fn preconditioned(pages: u64, spare_factor: f64) -> Self {
        let (mapping, tenants) = drive(pages, spare_factor, 8, TENANTS);
        let timing = preset("fast15").expect("a preset").timing;
        let costs = PageCosts::new(mapping.geometry(), &timing, TimingModel::Full { copyback: true });
        let mut engine = Engine::new(mapping.geometry(), costs, SchedulerPolicy::WeightedFair, None);
        for tenant in tenants {
            engine.open_queue(tenant, Arrival::Closed { queue_depth: 8 }).expect("a new queue");
        }
        Self { mapping, engine, rng: Xoshiro256PlusPlus::seed_from_u64(3) }
    }

    /// Host page writes per CPU-second, without the time to generate requests, but with that to submit them.
    pub fn writes_per_s(&mut self) -> f64 {
        let first = self.engine.host_page_writes();
        let until = Until { time_ns: u64::MAX, host_page_writes: first + WRITES };
        let (time, op, length) = ([0; BATCH], [1; BATCH], [PAGE_BYTES; BATCH]);
        let mut seconds = 0.0;
        loop {
            let start = ProcessTime::now();
            let stopped = self.engine.run(&mut self.mapping, until);
            seconds += start.elapsed().as_secs_f64();
            let Stopped::Starved(tenants) = stopped else { break };
            for tenant in tenants {
                let offset = offsets(&mut self.rng, self.mapping.pages(tenant));
                let start = ProcessTime::now();
                self.engine.feed(&self.mapping, tenant, &time, &op, &offset, &length).expect("valid requests");
                seconds += start.elapsed().as_secs_f64();
            }
        }
        (self.engine.host_page_writes() - first) as f64 / seconds
    }
}
