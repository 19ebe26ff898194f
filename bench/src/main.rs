//! Count-only and timed speed of the emulated SSD, as ratios against the DRAM random-update limit of the same run.

use cpu_time::ProcessTime;

use ftl_core::table::Table;
use ftl_core::{Geometry, Mapping, PageMapping, PageMappingOptions, Placement, Untimed};
use rand_core::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

fn below(rng: &mut Xoshiro256PlusPlus, n: u64) -> u64 {
    ((u128::from(rng.next_u64()) * u128::from(n)) >> 64) as u64
}

/// Random read-modify-writes of a flat u32 table per second, prefetched as the FTL prefetches its map.
fn dram_updates_per_s(entries: u64, updates: u64) -> f64 {
    let mut table = Table::<u32>::zeroed(entries as usize).expect("memory");
    for (i, x) in table.iter_mut().enumerate() {
        *x = i as u32;
    }
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
    let mut batch = [0u64; 64];
    let start = ProcessTime::now();
    for _ in 0..updates / 64 {
        for slot in &mut batch {
            *slot = below(&mut rng, entries);
            table.prefetch(*slot as usize);
        }
        for &slot in &batch {
            table[slot as usize] = table[slot as usize].wrapping_add(1);
        }
    }
    updates as f64 / start.elapsed().as_secs_f64()
}

fn count_only(gib: u64) -> (f64, f64) {
    let pages = (gib << 30) / 4096;
    let blocks = (pages as f64 / 0.85 / 128.0).ceil() as u32 + 1;
    let geometry = Geometry {
        page_bytes: 4096,
        pages_per_block: 128,
        blocks_per_die: blocks,
        channels: 1,
        dies_per_channel: 1,
        planes: 1,
    };
    let mut ftl = PageMapping::<u32>::new(geometry, PageMappingOptions::default()).expect("geometry");
    let ops = u64::from(blocks) - geometry.blocks_for(pages);
    let tenant = ftl.create_tenant(pages, Placement::Isolated, ops).expect("tenant");
    for page in 0..pages {
        ftl.write_page(tenant, page, &mut Untimed);
    }
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(2);
    let mut batch = [0u64; 64];
    let mut write = |ftl: &mut PageMapping<u32>, n: u64| {
        for _ in 0..n / 64 {
            for slot in &mut batch {
                *slot = below(&mut rng, pages);
                ftl.prefetch(tenant, *slot);
            }
            for i in 0..64 {
                if let Some(&page) = batch.get(i + 12) {
                    ftl.prefetch_overwrite(tenant, page);
                }
                ftl.write_page(tenant, batch[i], &mut Untimed);
            }
        }
    };
    write(&mut ftl, 3 * pages);
    let before = ftl.counters(tenant).expect("tenant").clone();
    let start = ProcessTime::now();
    write(&mut ftl, pages);
    let seconds = start.elapsed().as_secs_f64();
    let after = ftl.counters(tenant).expect("tenant");
    let host = (after.host_page_writes - before.host_page_writes) as f64;
    (host / seconds, 1.0 + (after.gc_page_writes - before.gc_page_writes) as f64 / host)
}

fn main() {
    for gib in [8, 64] {
        let limit = dram_updates_per_s((gib << 30) / 4096, 200_000_000);
        let (rate, waf) = count_only(gib);
        println!(
            "{gib} GiB: DRAM {:.1} M/s, limit {:.2} M/s, count-only {:.2} M/s, WAF {waf:.3}, ratio {:.2}",
            limit / 1e6,
            limit / waf / 1e6,
            rate / 1e6,
            rate * waf / limit
        );
    }
}
