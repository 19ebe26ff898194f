//! A device while it is served: its namespaces, its flash, and what keeps both in order in the background.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ftl_core::engine::Limit;
use ftl_core::{Drive, TenantId};

use crate::checkpoint::{self, Origin};
use crate::config::{DeviceConfig, Latency, Parameters};
use crate::error::{ServeError, refuse};
use crate::flash::{Clock, Counted, Flash, Timed};
use crate::namespace::Namespace;
use crate::settings::Settings;

/// How often gathered requests are applied, promised blocks handed over and the checkpoint considered.
const UPKEEP_INTERVAL: Duration = Duration::from_millis(200);
/// Victims collected at each of these moments while OPS blocks are under way, with a clock and without.
const GC_PASSES_TIMED: u64 = 1;
const GC_PASSES_COUNTED: u64 = 64;
/// Taking a checkpoint holds requests up; it may do so for one part in so many of the time.
const CHECKPOINT_SHARE: u32 = 100;

/// A device while it is served.
pub struct Server {
    /// What it is.
    pub config: DeviceConfig,
    /// Its namespaces, by tenant number.
    pub namespaces: Vec<Namespace>,
    /// Its flash.
    pub flash: Flash,
    /// How its placement came about.
    pub origin: Origin,
    /// Real seconds for each modelled one; None without a clock.
    pub time_scale: Option<f64>,
    folder: PathBuf,
    settings: Mutex<Settings>,
    checkpoint_interval: Duration,
    /// Kept for as long as the device is served.
    _lock: File,
    upkeep: Upkeep,
}

#[derive(Default)]
struct Upkeep {
    stopping: Mutex<bool>,
    stop: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Server {
    /// Opens a device. Nothing runs yet.
    pub fn open(parameters: &Parameters) -> Result<Self, ServeError> {
        let Some(folder) = parameters.device.clone() else {
            return refuse("which device? device=FOLDER names the folder of one");
        };
        let lock = lock(&folder, parameters.lock_fd)?;
        let config = DeviceConfig::read(&folder)?;
        let settings = Settings::read(&folder)?;
        let open = |(number, given): (usize, &crate::config::NamespaceConfig)| {
            let size_bytes = settings.of(&given.name).size_bytes.unwrap_or(given.size_bytes);
            Namespace::open(&folder, &given.name, TenantId(number as u16), size_bytes)
        };
        let namespaces: Vec<Namespace> = config.namespaces.iter().enumerate().map(open).collect::<Result<_, _>>()?;
        let (drive, origin) = checkpoint::load(&folder, &config, &settings, &namespaces)?;
        let (flash, time_scale) = match parameters.latency {
            Latency::None => (Flash::Counted(Box::new(Counted::new(drive))), None),
            Latency::Real => {
                let scale = parameters.time_scale;
                (Flash::Timed(Arc::new(Timed::new(drive, Clock::new(scale))?)), Some(scale))
            }
        };
        let server = Self {
            config,
            namespaces,
            flash,
            origin,
            time_scale,
            folder,
            settings: Mutex::new(settings),
            checkpoint_interval: Duration::from_secs_f64(parameters.checkpoint_s),
            _lock: lock,
            upkeep: Upkeep::default(),
        };
        server.restore_settings()?;
        Ok(server)
    }

    fn restore_settings(&self) -> Result<(), ServeError> {
        let Some(timed) = self.flash.timed() else { return Ok(()) };
        let settings = self.settings();
        for (namespace, given) in self.namespaces.iter().zip(&self.config.namespaces) {
            let kept = settings.of(&namespace.name);
            self.flash.set_weight(namespace.tenant, kept.weight.unwrap_or(given.weight))?;
            let limit = Limit { iops: kept.limit_iops, bytes_s: kept.limit_bytes_s };
            self.flash.set_limit(namespace.tenant, limit)?;
        }
        timed.wake_clock();
        Ok(())
    }

    /// Starts the clock and the upkeep. To be called in the process that serves, after any fork.
    pub fn start(&'static self) -> Result<(), ServeError> {
        checkpoint::mark_serving(&self.folder)?;
        if let Some(timed) = self.flash.timed() {
            let timed = Arc::clone(timed);
            self.spawn("slo-ctl clock", move || timed.run_clock())?;
        }
        self.spawn("slo-ctl upkeep", move || self.keep_up())
    }

    fn spawn(&self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), ServeError> {
        let thread = thread::Builder::new()
            .name(name.into())
            .spawn(work)
            .map_err(|e| ServeError::File(format!("cannot start a thread: {e}")))?;
        lock_anyway(&self.upkeep.threads).push(thread);
        Ok(())
    }

    /// Ends what [`Server::start`] started and writes the checkpoint of a clean stop.
    pub fn stop(&self) -> Result<(), ServeError> {
        *lock_anyway(&self.upkeep.stopping) = true;
        self.upkeep.stop.notify_all();
        if let Some(timed) = self.flash.timed() {
            timed.stop();
        }
        for thread in lock_anyway(&self.upkeep.threads).drain(..) {
            if thread.join().is_err() {
                eprintln!("slo-ctl: a background thread had failed");
            }
        }
        for namespace in &self.namespaces {
            namespace
                .backing
                .flush()
                .map_err(|e| ServeError::File(format!("namespace {}: cannot flush its data: {e}", namespace.name)))?;
        }
        self.checkpoint(true)?;
        checkpoint::mark_stopped(&self.folder)
    }

    /// Writes where every page lies.
    pub fn checkpoint(&self, clean: bool) -> Result<(), ServeError> {
        let state = self.flash.with(|drive| checkpoint::take(drive, &self.namespaces, clean))??;
        checkpoint::write(&self.folder, &state)
    }

    fn keep_up(&self) {
        let mut due = Instant::now() + self.checkpoint_interval;
        let mut written_at = self.host_page_writes();
        let mut stopping = lock_anyway(&self.upkeep.stopping);
        while !*stopping {
            let waited = self.upkeep.stop.wait_timeout(stopping, UPKEEP_INTERVAL);
            stopping = waited.unwrap_or_else(PoisonError::into_inner).0;
            if *stopping {
                return;
            }
            drop(stopping);
            let passes = if self.flash.timed().is_some() { GC_PASSES_TIMED } else { GC_PASSES_COUNTED };
            // Err: the model has failed, which those who ask for it are told.
            let _failed = self.flash.with(|drive| drive.advance_moves(passes));
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
            stopping = lock_anyway(&self.upkeep.stopping);
        }
    }

    fn host_page_writes(&self) -> u64 {
        let sum = |drive: &mut Drive| {
            let of = |n: &Namespace| drive.counters(n.tenant).map_or(0, |c| c.host_page_writes + c.trimmed_pages);
            self.namespaces.iter().map(of).sum()
        };
        self.flash.with(sum).unwrap_or(0)
    }

    /// The namespace of that name.
    #[must_use]
    pub fn namespace(&self, name: &str) -> Option<&Namespace> {
        self.namespaces.iter().find(|n| n.name == name)
    }

    /// What was changed since the device was created.
    pub fn settings(&self) -> MutexGuard<'_, Settings> {
        lock_anyway(&self.settings)
    }

    /// Promises OPS blocks of one namespace to another (None: the spare of the device).
    pub fn move_ops(&self, from: Option<&Namespace>, to: Option<&Namespace>, blocks: u64) -> Result<(), ServeError> {
        let ends = (from.map(|n| n.tenant), to.map(|n| n.tenant));
        if ends.0 == ends.1 {
            return refuse("a move needs two different ends: from and to, one of which may be the spare (null)");
        }
        let mut settings = self.settings();
        let before = self.flash.with(|drive| {
            let owned = |end: Option<TenantId>| end.and_then(|t| drive.space(t).ok());
            let before = (owned(ends.0), owned(ends.1));
            drive.request_move(ends.0, ends.1, blocks)?;
            Ok::<_, ServeError>(before)
        })??;
        for (end, space, gains) in [(from, before.0, false), (to, before.1, true)] {
            let (Some(namespace), Some(space)) = (end, space) else { continue };
            let had = settings.of(&namespace.name).ops_blocks.unwrap_or(space.ops_blocks.max(0) as u64);
            let has = if gains { had + blocks } else { had.saturating_sub(blocks) };
            settings.change(&self.folder, &namespace.name, |s| s.ops_blocks = Some(has))?;
        }
        Ok(())
    }

    /// Sets the weight of a namespace, for good.
    pub fn set_weight(&self, namespace: &Namespace, weight: f64) -> Result<(), ServeError> {
        let mut settings = self.settings();
        self.flash.set_weight(namespace.tenant, weight)?;
        settings.change(&self.folder, &namespace.name, |s| s.weight = Some(weight))
    }

    /// Sets or lifts the limits of a namespace, for good.
    pub fn set_limit(&self, namespace: &Namespace, limit: Limit) -> Result<(), ServeError> {
        let mut settings = self.settings();
        self.flash.set_limit(namespace.tenant, limit)?;
        settings.change(&self.folder, &namespace.name, |s| {
            s.limit_iops = limit.iops;
            s.limit_bytes_s = limit.bytes_s;
        })
    }

    /// Changes the size of a namespace, for good. Data beyond a smaller end is gone.
    pub fn resize(&self, namespace: &Namespace, size_bytes: u64) -> Result<(), ServeError> {
        let page = u64::from(self.config.geometry.page_bytes);
        if size_bytes == 0 || size_bytes % page != 0 || size_bytes > 1 << 62 {
            return refuse(format!("size_bytes must be a whole number of pages of {page} bytes, and at least one"));
        }
        let mut settings = self.settings();
        let before = namespace.size_bytes();
        let resize_file = || {
            let resized = namespace.backing.resize(size_bytes);
            resized.map_err(|e| ServeError::File(format!("namespace {}: cannot resize: {e}", namespace.name)))
        };
        self.flash.with(|drive| drive.resize_tenant(namespace.tenant, size_bytes / page))??;
        // At every moment the file is at least as long as the settings say, so that a crash in between costs nothing.
        let kept = if size_bytes < before {
            namespace.set_size_bytes(size_bytes);
            settings
                .change(&self.folder, &namespace.name, |s| s.size_bytes = Some(size_bytes))
                .and_then(|()| resize_file())
        } else {
            resize_file()
                .and_then(|()| settings.change(&self.folder, &namespace.name, |s| s.size_bytes = Some(size_bytes)))
        };
        if kept.is_err() && size_bytes > before {
            self.flash.with(|drive| drive.resize_tenant(namespace.tenant, before / page))??;
        } else {
            namespace.set_size_bytes(size_bytes);
        }
        kept
    }
}

/// Data behind these locks is changed in one step, so that a panic elsewhere leaves it whole.
fn lock_anyway<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the lock of a device, or takes over one that was inherited locked.
fn lock(folder: &Path, inherited: Option<RawFd>) -> Result<File, ServeError> {
    let path = folder.join("lock");
    let file = match inherited {
        // SAFETY: whoever started us says so on the command line, and nothing else in this process uses it.
        Some(fd) => unsafe { File::from_raw_fd(fd) },
        None => OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|e| ServeError::io("cannot open", &path, &e))?,
    };
    // SAFETY: a plain system call on a descriptor that `file` keeps open; no memory is passed.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(file);
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::EWOULDBLOCK) {
        return refuse(format!("{} is being served already", folder.display()));
    }
    Err(ServeError::io("cannot lock", &path, &error))
}
