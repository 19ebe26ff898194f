//! `ftl-serve`: an emulated device, served over NBD and other front ends.
//!
//! [`server`] owns the device: [`namespace`]s with their data in [`backing`] files, the [`model`] of placement and
//! time, and the [`checkpoint`] of the placement. [`nbd`] and the other [`front_ends`] give access to the same
//! namespaces; the [`control`] socket takes commands. `slo-ctl device serve` starts this program with open sockets, and
//! restarts it if it ends.

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

mod atomic_file;
mod backing;
mod checkpoint;
mod config;
mod control;
mod descriptors;
mod device_lock;
mod division;
mod error;
#[cfg(test)]
mod faults;
mod front_ends;
mod histogram;
pub mod hostile;
mod inherited;
mod model;
mod namespace;
mod nbd;
mod nvme_tcp;
mod occasional_log;
mod offline;
mod outgoing;
mod parameters;
mod polling;
mod preconditioning;
mod recent;
mod recording;
mod request_memory;
mod server;
mod settings;
mod sync;
mod threads;
mod vhost_user;

use std::ffi::c_int;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::process::ExitCode;
use std::{env, mem, process, ptr};

use error::{ServeError, refuse};
use front_ends::FrontEnds;
use nbd::Nbd;
use parameters::Parameters;
use server::Server;

/// Larger allocations are returned to the system as soon as they are free.
const MAPPED_BYTES: c_int = 256 << 10;

/// Serves the device that the arguments of this process name, until it is to stop.
#[must_use]
pub fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("slo-ctl: error: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), ServeError> {
    let mut parameters = Parameters::default();
    for word in env::args_os().skip(1) {
        let word = word.to_string_lossy();
        let Some((key, value)) = word.split_once('=') else {
            return refuse(format!(
                "{word}: not KEY=VALUE; use `slo-ctl device serve` rather than this program by itself"
            ));
        };
        parameters.set(key, value)?;
    }
    // SAFETY: takes numbers. Where the C library has no such thing, memory is released later.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_BYTES) };
    // The threads of connections that outlast a stop still use it.
    let server: &'static Server = Box::leak(Box::new(Server::open(&parameters)?));
    if let Some(command) = &parameters.command {
        return offline::carry_out(server, command);
    }
    // Before threads are started, which inherit the signal mask.
    let signals = block_signals().map_err(|e| ServeError::File(format!("cannot wait for signals: {e}")))?;
    if let Some(origin) = &server.origin {
        eprintln!("slo-ctl: {} (emulated): placement {origin}", server.config.name);
    }
    server.descriptors.add(descriptors::owners_of(&parameters))?;
    let mut nbd = Nbd::new(server, &parameters)?;
    server.start()?;
    let front_ends = FrontEnds::start(server, &nbd, &parameters)?;
    if let Some(path) = &parameters.pid_file {
        write_pid(path).map_err(|e| ServeError::io("cannot write", path, &e))?;
    }
    let stop = parameters.stop_fd.map(inherited::take);
    let stop_signs: Vec<_> = [Some(&signals), stop.as_ref()].into_iter().flatten().map(AsFd::as_fd).collect();
    nbd.listen(&stop_signs)?;
    front_ends.stop();
    nbd.stop();
    server.stop()
}

/// SIGTERM and SIGINT end no thread from now on, but make the descriptor readable.
fn block_signals() -> io::Result<OwnedFd> {
    // SAFETY: sigset_t is a plain C value, for which all zeroes is a value; the calls read and write that one only, and the
    // descriptor is ours alone.
    unsafe {
        let mut signals: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&raw mut signals);
        libc::sigaddset(&raw mut signals, libc::SIGTERM);
        libc::sigaddset(&raw mut signals, libc::SIGINT);
        let blocked = libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signals, ptr::null_mut());
        if blocked != 0 {
            return Err(io::Error::from_raw_os_error(blocked));
        }
        let fd = libc::signalfd(-1, &raw const signals, libc::SFD_CLOEXEC);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

/// Written atomically: a process that waits for the file finds the complete number in it, or an empty file if there is
/// no space. Its existence is what matters: clients are not refused because a disk is full.
fn write_pid(path: &Path) -> io::Result<()> {
    let new = path.with_extension("new");
    let written = File::create(&new)?.write_all(format!("{}\n", process::id()).as_bytes());
    match written {
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT)) => {
            eprintln!("slo-ctl: {} remains empty: {e}", path.display());
        }
        written => written?,
    }
    fs::rename(&new, path)
}
