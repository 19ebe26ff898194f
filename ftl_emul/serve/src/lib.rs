//! The emulated SSD as a block device: an nbdkit plugin.
//!
//! nbdkit speaks NBD, listens, authenticates and calls [`plugin`]; [`server`] has the device behind it: [`namespace`]s
//! whose data lies in [`backing`] files, the [`model`] of placement and time beside them, the [`checkpoint`]
//! of the placement, and the [`control`] socket.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod access;
mod ageing;
mod atomic_file;
mod backing;
mod checkpoint;
mod config;
mod control;
mod device_lock;
mod error;
mod model;
mod namespace;
mod nbdkit;
mod offline;
mod parameters;
mod plugin;
mod recent;
mod server;
mod settings;
mod stop;
