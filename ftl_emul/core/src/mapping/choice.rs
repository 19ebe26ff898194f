//! The mappings by name, and what each can be told.

use crate::mapping::dftl::DftlOptions;
use crate::mapping::log_block::LogBlockOptions;
use crate::mapping::page::PageMappingOptions;

/// Which mapping.
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
    /// The options that concern `kind`, of those for any mapping.
    #[must_use]
    pub fn new(
        kind: MappingKind,
        page: PageMappingOptions,
        log_block: LogBlockOptions,
        cached_entries: Option<u64>,
    ) -> Self {
        match kind {
            MappingKind::Page => Self::Page(page),
            MappingKind::Bast => Self::Bast(log_block),
            MappingKind::Fast => Self::Fast(log_block),
            MappingKind::Dftl => Self::Dftl(DftlOptions { page, cached_entries }),
        }
    }
}

impl From<PageMappingOptions> for MappingOptions {
    fn from(options: PageMappingOptions) -> Self {
        Self::Page(options)
    }
}
