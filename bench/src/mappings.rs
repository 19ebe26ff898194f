//! Comparison of the mappings: count-only, uniform random writes, the same geometry and over-provisioning.

use ftl_core::{
    BastMapping, DftlMapping, DftlOptions, FastMapping, FtlError, Geometry, LogBlockOptions, Mapping, PageMapping,
    PageMappingOptions,
};

use crate::ftl::Counting;
use crate::{ROUNDS, SPARE_FACTOR, median};

/// The page mapping that everything is compared with.
pub fn page(geometry: Geometry) -> Result<PageMapping, FtlError> {
    PageMapping::new(geometry, PageMappingOptions::default())
}

/// Measures one round; returns host page writes per CPU-second and the WAF.
type Measure = Box<dyn FnMut() -> (f64, f64)>;

fn preconditioned<M: Mapping + 'static>(pages: u64, make: impl FnOnce(Geometry) -> Result<M, FtlError>) -> Measure {
    let mut counting = Counting::preconditioned(pages, SPARE_FACTOR, make);
    Box::new(move || counting.writes_per_s())
}

/// Prints a line for each mapping and size: medians over rounds in which all were measured in turn.
pub fn compare(sizes: &[u64], json: bool) {
    if !json {
        println!("{ROUNDS} rounds each, medians; S_f {SPARE_FACTOR}, 128 pages a block, 4 KiB uniform random writes");
        println!("{:>6} {:>8} {:>8} {:>13} {:>9}", "GiB", "mapping", "WAF", "count-only/s", "of page");
    }
    for &gib in sizes {
        let pages = (gib << 30) / 4096;
        let log_block = LogBlockOptions::default();
        let dftl = |geometry| DftlMapping::new(geometry, DftlOptions::default());
        let mut drives: [(&str, Measure); 4] = [
            ("page", preconditioned(pages, page)),
            ("bast", preconditioned(pages, |geometry| BastMapping::new(geometry, log_block))),
            ("fast", preconditioned(pages, |geometry| FastMapping::new(geometry, log_block))),
            ("dftl", preconditioned(pages, dftl)),
        ];
        let mut rounds: [Vec<(f64, f64)>; 4] = Default::default();
        for _ in 0..ROUNDS {
            for ((_, measure), results) in drives.iter_mut().zip(&mut rounds) {
                results.push(measure());
            }
        }
        for ((name, _), results) in drives.iter().zip(&rounds) {
            let per_s = median(results.iter().map(|r| r.0).collect());
            let waf = median(results.iter().map(|r| r.1).collect());
            let of_page = median(results.iter().zip(&rounds[0]).map(|(r, page)| r.0 / page.0).collect());
            if json {
                println!(
                    "{{\"gib\": {gib}, \"mapping\": \"{name}\", \"waf\": {waf:.4}, \
                     \"count_only_per_cpu_s\": {per_s:.0}, \"ratio_of_page\": {of_page:.4}}}"
                );
            } else {
                println!("{gib:>6} {name:>8} {waf:>8.3} {:>11.2} M {of_page:>9.2}", per_s / 1e6);
            }
        }
    }
}
