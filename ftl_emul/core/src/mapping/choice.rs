//! The mappings by name, with the options of each.

use crate::error::{FtlError, invalid};
use crate::mapping::dftl::DftlOptions;
use crate::mapping::log_block::LogBlockOptions;
use crate::mapping::page::PageMappingOptions;
use crate::victim::VictimPolicy;

/// Kind of mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MappingKind {
    /// [`crate::mapping::page`].
    #[default]
    Page,
    /// [`crate::mapping::bast`].
    Bast,
    /// [`crate::mapping::fast`].
    Fast,
    /// [`crate::mapping::dftl`].
    Dftl,
}

/// The mappings by name: name, mapping, description.
pub const MAPPINGS: &[(&str, MappingKind, &str)] = &[
    ("page", MappingKind::Page, "page mapping, the map in memory"),
    ("bast", MappingKind::Bast, "block mapping with a log block per logical block (BAST)"),
    ("fast", MappingKind::Fast, "block mapping with log blocks for all, one for sequential writes (FAST)"),
    ("dftl", MappingKind::Dftl, "page mapping, the map on flash and a part of it cached (DFTL)"),
];

/// A mapping with its options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MappingOptions {
    /// Page mapping.
    Page(PageMappingOptions),
    /// BAST.
    Bast(LogBlockOptions),
    /// FAST.
    Fast(LogBlockOptions),
    /// DFTL.
    Dftl(DftlOptions),
}

impl MappingOptions {
    /// The options for `kind`, out of those for any mapping. Rejects options that `kind` does not support.
    pub fn new(
        kind: MappingKind,
        page: PageMappingOptions,
        log_block: LogBlockOptions,
        cached_entries: Option<u64>,
    ) -> Result<Self, FtlError> {
        let name = MAPPINGS.iter().find(|(_, k, _)| *k == kind).map_or("", |(name, ..)| name);
        let merges = matches!(kind, MappingKind::Bast | MappingKind::Fast);
        let PageMappingOptions { victim, separate_gc_frontier, .. } = page;
        if merges && (victim, separate_gc_frontier) != (VictimPolicy::Greedy, false) {
            return invalid("victim, separate_gc_frontier", format!("{name} merges log blocks and has no GC"));
        }
        if !merges && log_block.cluster_dies != 1 {
            return invalid("cluster_dies", format!("{name} has no clustered blocks; only bast and fast have"));
        }
        if kind != MappingKind::Dftl && cached_entries.is_some() {
            return invalid("cached_entries", format!("{name} has its whole map in memory; only dftl has a limit"));
        }
        Ok(match kind {
            MappingKind::Page => Self::Page(page),
            MappingKind::Bast => Self::Bast(log_block),
            MappingKind::Fast => Self::Fast(log_block),
            MappingKind::Dftl => Self::Dftl(DftlOptions { page, cached_entries }),
        })
    }
}

impl From<PageMappingOptions> for MappingOptions {
    fn from(options: PageMappingOptions) -> Self {
        Self::Page(options)
    }
}
