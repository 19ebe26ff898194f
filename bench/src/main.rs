//! Speed of the emulated SSD in host page writes per CPU-second, as ratios against the memory it runs in.
//!
//! Every page write of the FTL costs WAF random updates of the map, so random read-modify-writes per second, divided
//! by the WAF, are an upper bound for any page-mapped FTL. Both are measured alternately, in one process, and the
//! result is the median of the ratios. All times are CPU time of this process.

#![expect(clippy::large_stack_arrays, reason = "batches are on the stack so that no allocation is measured")]

mod dram;
mod ftl;
mod mappings;

use rand_core::RngCore;
use rand_xoshiro::Xoshiro256PlusPlus;

/// Share of the drive's pages that are spare: (T - U) / T.
const SPARE_FACTOR: f64 = 0.15;
const ROUNDS: usize = 3;

/// A number below `n`, uniform to within n / 2^64.
pub fn below(rng: &mut Xoshiro256PlusPlus, n: u64) -> u64 {
    ((u128::from(rng.next_u64()) * u128::from(n)) >> 64) as u64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Results for one size of drive: medians over the rounds.
struct Row {
    gib: u64,
    waf: f64,
    count_only_per_s: f64,
    timed_per_s: f64,
    dram_plain_per_s: f64,
    dram_prefetched_per_s: f64,
    ratio_of_limit: f64,
    /// Memory of the drive that counts, without data of guests.
    drive_bytes: u64,
}

/// Memory of this process that is in use.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let found = text.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse().ok());
    1024 * found.unwrap_or(0_u64)
}

fn measure(gib: u64) -> Row {
    let pages = (gib << 30) / 4096;
    let before_bytes = resident_bytes();
    let mut counting = ftl::Counting::preconditioned(pages, SPARE_FACTOR, mappings::page);
    let drive_bytes = resident_bytes() - before_bytes;
    let mut memory = dram::Table::new(pages);
    let mut timed = ftl::Timed::preconditioned(pages, SPARE_FACTOR);
    let mut columns: [Vec<f64>; 5] = Default::default();
    let mut waf = 0.0;
    for _ in 0..ROUNDS {
        let plain = memory.plain_updates_per_s();
        let prefetched = memory.prefetched_updates_per_s();
        let (count_only, measured_waf) = counting.writes_per_s();
        waf = measured_waf;
        let row = [plain, prefetched, count_only, timed.writes_per_s(), count_only * waf / plain];
        for (column, value) in columns.iter_mut().zip(row) {
            column.push(value);
        }
    }
    let [dram_plain_per_s, dram_prefetched_per_s, count_only_per_s, timed_per_s, ratio_of_limit] = columns.map(median);
    Row {
        gib,
        waf,
        count_only_per_s,
        timed_per_s,
        dram_plain_per_s,
        dram_prefetched_per_s,
        ratio_of_limit,
        drive_bytes,
    }
}

fn main() {
    let mut sizes: Vec<u64> = Vec::new();
    let (mut json, mut mappings_only) = (false, false);
    for argument in std::env::args().skip(1) {
        match argument.parse() {
            Ok(gib) if (1..=1024).contains(&gib) => sizes.push(gib),
            _ if argument == "--json" => json = true,
            _ if argument == "--mappings" => mappings_only = true,
            _ => {
                eprintln!(
                    "usage: slo-ctl-bench [--json] [--mappings] [GIB ...]   (drive sizes, 1 to 1024; default 1 8 64)"
                );
                std::process::exit(2);
            }
        }
    }
    if sizes.is_empty() {
        sizes = if mappings_only { vec![1, 8] } else { vec![1, 8, 64] };
    }
    if mappings_only {
        return mappings::compare(&sizes, json);
    }
    if !json {
        println!("{ROUNDS} rounds each, medians; S_f {SPARE_FACTOR}, 128 pages a block, 4 KiB uniform random writes");
        println!(
            "{:>6} {:>7} {:>13} {:>13} {:>13} {:>13} {:>10} {:>10}",
            "GiB", "WAF", "count-only/s", "timed/s", "DRAM/s", "prefetched/s", "of limit", "memory"
        );
    }
    for gib in sizes {
        let row = measure(gib);
        if json {
            println!(
                "{{\"gib\": {}, \"waf\": {:.4}, \"count_only_per_cpu_s\": {:.0}, \"timed_per_cpu_s\": {:.0}, \
                 \"dram_updates_per_cpu_s\": {:.0}, \"dram_prefetched_per_cpu_s\": {:.0}, \"ratio_of_limit\": {:.4}, \
                 \"drive_bytes\": {}}}",
                row.gib,
                row.waf,
                row.count_only_per_s,
                row.timed_per_s,
                row.dram_plain_per_s,
                row.dram_prefetched_per_s,
                row.ratio_of_limit,
                row.drive_bytes
            );
        } else {
            let m = 1e6;
            println!(
                "{:>6} {:>7.3} {:>11.2} M {:>11.2} M {:>11.1} M {:>11.1} M {:>10.2} {:>6} MiB",
                row.gib,
                row.waf,
                row.count_only_per_s / m,
                row.timed_per_s / m,
                row.dram_plain_per_s / m,
                row.dram_prefetched_per_s / m,
                row.ratio_of_limit,
                row.drive_bytes >> 20
            );
        }
    }
}
