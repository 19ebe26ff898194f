//! The emulated SSD as a block device: an nbdkit plugin.
//!
//! nbdkit speaks NBD, listens, authenticates and calls [`plugin`]; [`server`] has the device behind it: [`namespace`]s
//! whose data lies in [`backing`] files, the [`model`] of placement and time beside them, the [`checkpoint`]
//! of the placement, and the [`control`] socket. [`nvme_tcp`] and [`vhost_user`] serve the same namespaces beside nbdkit.

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

mod access;
mod ageing;
mod atomic_file;
mod backing;
mod checkpoint;
mod config;
mod control;
mod device_lock;
mod division;
mod error;
#[cfg(test)]
mod faults;
mod front_ends;
mod histogram;
mod inherited;
mod model;
mod namespace;
mod nbdkit;
mod nvme_tcp;
mod offline;
mod parameters;
mod plugin;
mod recent;
mod server;
mod settings;
mod stop;
mod transport;
mod vhost_user;
