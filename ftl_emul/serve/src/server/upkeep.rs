//! Background work while a device is served: the clock, moves of blocks, history, checkpoints.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ftl_core::Drive;

use crate::backing::Ailment;
use crate::checkpoint;
use crate::error::ServeError;
use crate::namespace::Namespace;
use crate::preconditioning;
use crate::server::Server;
use crate::threads::{self, lock};

/// Interval in which gathered requests are applied, blocks moved and checkpoints considered.
const UPKEEP_INTERVAL: Duration = Duration::from_millis(200);
/// Victims collected at each of these moments while OPS blocks are under way, without a clock. With one, the model
/// moves them in its own time.
const GC_PASSES_COUNTED: u64 = 64;
/// Taking a checkpoint delays requests; it may do so for this fraction of the time.
const CHECKPOINT_SHARE: u32 = 100;

#[derive(Default)]
pub(super) struct Upkeep {
    stopping: Mutex<bool>,
    stop: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// One checkpoint at a time: this thread and the control socket write the same file.
    checkpoint: Mutex<()>,
}

impl Server {
    /// Starts the clock and the upkeep. To be called in the process that serves, after any fork.
    pub fn start(&'static self) -> Result<(), ServeError> {
        if self.origin.is_some() {
            checkpoint::mark_serving(&self.folder)?;
        }
        if let Some(timed) = self.model.timed() {
            self.spawn("slo-ctl clock", move || timed.run_clock())?;
        }
        self.spawn("slo-ctl upkeep", move || self.keep_up())
    }

    fn spawn(&self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), ServeError> {
        let thread = threads::start(name, work)?;
        lock(&self.upkeep.threads).push(thread);
        Ok(())
    }

    /// Stops the threads of [`Server::start`] and writes the checkpoint of a clean stop.
    pub fn stop(&self) -> Result<(), ServeError> {
        *lock(&self.upkeep.stopping) = true;
        self.upkeep.stop.notify_all();
        if let Some(timed) = self.model.timed() {
            timed.stop();
        }
        for thread in lock(&self.upkeep.threads).drain(..) {
            if thread.join().is_err() {
                eprintln!("slo-ctl: a background thread failed");
            }
        }
        let flush = |namespace: &Arc<Namespace>| {
            let why = |e| ServeError::File(format!("namespace {}: cannot flush its data: {e}", namespace.name));
            namespace.backing.flush().map_err(why)
        };
        // Continue with the others if one fails.
        self.namespaces().iter().map(flush).fold(Ok(()), Result::and)?;
        if self.origin.is_none() {
            return Ok(());
        }
        self.checkpoint(true)?;
        preconditioning::save(&self.folder, self.preconditioned().as_ref())?;
        checkpoint::mark_stopped(&self.folder)
    }

    /// Writes the placement of every page.
    pub fn checkpoint(&self, clean: bool) -> Result<(), ServeError> {
        let _one_at_a_time = lock(&self.upkeep.checkpoint);
        let preconditioned = self.preconditioned();
        let buffer = checkpoint::buffer(&self.folder);
        let state = self
            .model
            .with(|drive| checkpoint::take(drive, &self.namespaces(), preconditioned.as_ref(), clean, buffer))??;
        checkpoint::write(&self.folder, &state)
    }

    fn keep_up(&self) {
        let mut due = Instant::now() + self.checkpoint_interval;
        let mut written_at = self.host_page_writes();
        let mut ailing = HashMap::new();
        let mut stopping = lock(&self.upkeep.stopping);
        while !*stopping {
            let waited = self.upkeep.stop.wait_timeout(stopping, UPKEEP_INTERVAL);
            stopping = waited.unwrap_or_else(PoisonError::into_inner).0;
            if *stopping {
                return;
            }
            drop(stopping);
            let counted = self.model.timed().is_none();
            // Advances the model to the present. Err: the model has failed, which commands that need it report.
            let _failed = self.model.with(|drive| {
                if counted {
                    drive.advance_moves(GC_PASSES_COUNTED);
                }
            });
            self.history.keep_up(self);
            self.look_after_namespaces(&mut ailing);
            if Instant::now() >= due {
                let written = self.host_page_writes();
                let begun = Instant::now();
                if written != written_at {
                    if let Err(e) = self.checkpoint(false) {
                        eprintln!("slo-ctl: no checkpoint of the placement: {e}");
                    }
                }
                written_at = written;
                due = Instant::now() + self.checkpoint_interval.max(begun.elapsed() * CHECKPOINT_SHARE);
            }
            stopping = lock(&self.upkeep.stopping);
        }
    }

    /// Logs a problem of a namespace once, and its end.
    fn look_after_namespaces(&self, known: &mut HashMap<u64, Ailment>) {
        let namespaces = self.namespaces();
        known.retain(|serial, _| namespaces.iter().any(|n| n.serial == *serial));
        for namespace in namespaces.iter() {
            let before = known.get(&namespace.serial).copied();
            if before.is_some() {
                namespace.backing.look_for_room();
            }
            match namespace.backing.ailment() {
                same if same == before => {}
                Some(ailment) => {
                    eprintln!("slo-ctl: namespace {}: {ailment}", namespace.name);
                    known.insert(namespace.serial, ailment);
                }
                None => {
                    eprintln!("slo-ctl: namespace {}: works again", namespace.name);
                    known.remove(&namespace.serial);
                }
            }
        }
    }

    fn host_page_writes(&self) -> u64 {
        let sum = |drive: &mut Drive| {
            let of = |n: &Arc<Namespace>| drive.counters(n.tenant).map_or(0, |c| c.host_page_writes + c.trimmed_pages);
            self.namespaces().iter().map(of).sum()
        };
        self.model.with(sum).unwrap_or(0)
    }
}
