//! Preconditioning: brings a drive to the steady state in which it will spend its life.
//!
//! After one sequential fill, random writes of 4 to 32 KiB go over every namespace at once, in proportion to size,
//! (Kim, Lee and Noh, FAST '15, section 2), until they exceed the capacity and the WAF has settled.

use rand_core::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::convert::exact;
use crate::mapping::Mapping;
use crate::nand::Untimed;
use crate::op::TenantId;
use crate::victim::below;

/// The WAF counts as settled once this many windows in a row lie within the tolerance of their mean.
const SETTLED_WINDOWS: usize = 4;
/// Tolerance of the settled WAF.
const SETTLED_TOLERANCE: f64 = 0.02;
/// Windows of WAF for each capacity written.
const WINDOWS_PER_CAPACITY: u64 = 4;
/// Capacities written at most.
const MAX_CAPACITIES: u64 = 20;
/// Largest write, in bytes.
const LARGEST_WRITE_BYTES: u64 = 32 << 10;

/// Result of preconditioning.
#[derive(Debug, Clone, PartialEq)]
pub struct PreconditioningReport {
    /// WAF of each quarter of a capacity written.
    pub waf: Vec<f64>,
    /// Pages written by the host, the first fill included.
    pub host_page_writes: u64,
    /// False when the WAF still moved after the most that preconditioning writes.
    pub settled: bool,
}

/// Preconditions every namespace of a drive. `progress` is given the capacities written so far and says whether to continue.
pub fn precondition<M: Mapping>(
    mapping: &mut M,
    seed: u64,
    mut progress: impl FnMut(f64) -> bool,
) -> PreconditioningReport {
    let tenants: Vec<(TenantId, u64)> = mapping.tenants().into_iter().map(|t| (t, mapping.pages(t))).collect();
    let capacity: u64 = tenants.iter().map(|&(_, pages)| pages).sum();
    let mut report = PreconditioningReport { waf: Vec::new(), host_page_writes: 0, settled: false };
    if capacity == 0 {
        return report;
    }
    for &(tenant, pages) in &tenants {
        for page in 0..pages {
            mapping.write_page(tenant, page, &mut Untimed);
        }
    }
    report.host_page_writes = capacity;

    // A page number over all namespaces picks a tenant in proportion to its size.
    let starts: Vec<u64> =
        tenants.iter().scan(0, |start, &(_, pages)| Some(std::mem::replace(start, *start + pages))).collect();
    let largest = (LARGEST_WRITE_BYTES / u64::from(mapping.geometry().page_bytes)).max(1);
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let window = capacity.div_ceil(WINDOWS_PER_CAPACITY);
    let mut draws = RandomRequests { lookahead: Vec::new(), next: 0 };
    while report.waf.len() < exact::<usize>(MAX_CAPACITIES * WINDOWS_PER_CAPACITY) {
        let (host_before, gc_before) = totals(mapping, &tenants);
        let mut written = 0;
        while written < window {
            let (index, first, length) = draws.next(mapping, &tenants, &starts, capacity, largest, &mut rng);
            let (tenant, pages) = tenants[index];
            let end = (first + length).min(pages);
            (first..end).for_each(|page| mapping.write_page(tenant, page, &mut Untimed));
            written += end - first;
        }
        let (host, gc) = totals(mapping, &tenants);
        report.waf.push(1.0 + (gc - gc_before) as f64 / (host - host_before) as f64);
        report.host_page_writes += written;
        let exceeded = report.waf.len() as u64 > WINDOWS_PER_CAPACITY;
        report.settled = exceeded && is_settled(&report.waf);
        if report.settled || !progress(report.host_page_writes as f64 / capacity as f64) {
            break;
        }
    }
    report
}

fn is_settled(waf: &[f64]) -> bool {
    let Some(last) = waf.len().checked_sub(SETTLED_WINDOWS).map(|from| &waf[from..]) else { return false };
    let mean = last.iter().sum::<f64>() / last.len() as f64;
    last.iter().all(|w| (w / mean - 1.0).abs() <= SETTLED_TOLERANCE)
}

fn totals<M: Mapping>(mapping: &M, tenants: &[(TenantId, u64)]) -> (u64, u64) {
    tenants
        .iter()
        .filter_map(|&(t, _)| mapping.counters(t).ok())
        .fold((0, 0), |(host, gc), c| (host + c.host_page_writes, gc + c.gc_page_writes))
}

/// Random requests, drawn in batches so that their map entries can be fetched ahead.
struct RandomRequests {
    lookahead: Vec<(usize, u64, u64)>,
    next: usize,
}

impl RandomRequests {
    const BATCH: usize = 64;
    /// Distance, in requests, at which the pages to be overwritten are prefetched.
    const OVERWRITE_AHEAD: usize = 6;

    fn next<M: Mapping>(
        &mut self,
        mapping: &M,
        tenants: &[(TenantId, u64)],
        starts: &[u64],
        capacity: u64,
        largest: u64,
        rng: &mut Xoshiro256PlusPlus,
    ) -> (usize, u64, u64) {
        if self.next == self.lookahead.len() {
            self.lookahead.clear();
            self.next = 0;
            for _ in 0..Self::BATCH {
                let at = below(rng, capacity);
                let index = starts.partition_point(|&start| start <= at) - 1;
                let first = at - starts[index];
                let length = 1 + below(rng, largest);
                mapping.prefetch(tenants[index].0, first);
                self.lookahead.push((index, first, length));
            }
        }
        if let Some(&(index, first, length)) = self.lookahead.get(self.next + Self::OVERWRITE_AHEAD) {
            let (tenant, pages) = tenants[index];
            (first..(first + length).min(pages)).for_each(|page| mapping.prefetch_overwrite(tenant, page));
        }
        self.next += 1;
        self.lookahead[self.next - 1]
    }
}
