//! Hard disks: one, or several as RAID-0, with a clock of their own. They move no data.
//!
//! From the platters upwards: [`parameters`] (data sheets), [`mechanics`] (seeks, rotation, zones), [`buffer`]
//! (read-ahead, write cache), [`drive`] (one disk and its queue), [`stripe`], and [`array`], which divides disks among
//! tenants.

pub mod array;
mod buffer;
mod drive;
pub mod mechanics;
pub mod parameters;
mod stripe;

pub use array::{Array, ArrayOptions};
pub use mechanics::Mechanics;
pub use parameters::{DISK_PRESETS, DiskParameters, DiskPreset, disk_preset};
