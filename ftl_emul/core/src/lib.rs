//! An emulated SSD: flash translation layer with tenants, over-provisioning isolation, virtual time and statistics.
//!
//! The modules, from the flash upwards: [`geometry`] (structure of a drive), [`mapping`] (placement of pages, GC,
//! tenants, moves of OPS blocks), [`nand`] (the interface between mapping and time), [`engine`] (queues, scheduler,
//! virtual time), [`count`] (runs without a clock), [`preconditioning`], and [`drive`], the interface to all of it.
//! [`disk`] has hard disks, without any flash. This crate performs no I/O.

#![cfg_attr(test, allow(clippy::unwrap_used))]
// Tests make up small numbers, compare floats that were computed alike, and have stack to spare.
#![cfg_attr(
    test,
    allow(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss,
        clippy::float_cmp,
        clippy::large_stack_arrays
    )
)]

pub mod address;
mod block;
pub mod convert;
pub mod count;
pub mod disk;
pub mod drive;
pub mod engine;
pub mod error;
pub mod geometry;
pub mod mapping;
pub mod namespace;
pub mod nand;
pub mod op;
mod pool;
pub mod preconditioning;
pub mod table;
mod victim;

pub use address::{BlockId, DieId, LogicalBlockId, LogicalPage, PhysicalPage};
pub use drive::{Drive, DriveOptions};
pub use error::FtlError;
pub use geometry::{Geometry, NandTiming, PRESETS, Preset};
pub use mapping::bast::BastMapping;
pub use mapping::choice::{MAPPINGS, MappingKind, MappingOptions};
pub use mapping::dftl::{DftlMapping, DftlOptions};
pub use mapping::fast::FastMapping;
pub use mapping::log_block::LogBlockOptions;
pub use mapping::page::{PageMapping, PageMappingOptions};
pub use mapping::{Mapping, MappingCounters, MoveProgress, Placement, TenantCounters, TenantSpace};
pub use nand::{Nand, Untimed};
pub use op::{Op, PageSpan, TenantId};
pub use victim::{VICTIM_POLICIES, VictimPolicy, victim_policy};
