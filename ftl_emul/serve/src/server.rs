//! A device while it is served: its namespaces, the model beside them, and what keeps both in order in the background.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ftl_core::engine::Limit;
use ftl_core::{Drive, TenantId};

use crate::ageing::{self, Aged};
use crate::backing::Ailment;
use crate::checkpoint::{self, Origin, Placed};
use crate::config::{DeviceConfig, Latency, Medium, Parameters, scheduler_named};
use crate::error::{ServeError, refuse};
use crate::model::{Clock, Counted, Model, Timed};
use crate::namespace::Namespace;
use crate::recent::{History, Throttled};
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
    /// The model beside its data.
    pub model: Model,
    /// How its placement came about; None for disks, which have none.
    pub origin: Option<Origin>,
    /// Real seconds for each modelled one; None without a clock.
    pub time_scale: Option<f64>,
    /// What happened in the last seconds.
    pub history: History,
    aged: Mutex<Option<Aged>>,
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
        let (model, origin, aged) = model(parameters, &folder, &config, &settings, &namespaces)?;
        let time_scale = model.timed().map(|_| parameters.time_scale);
        let server = Self {
            config,
            namespaces,
            model,
            origin,
            time_scale,
            history: History::default(),
            aged: Mutex::new(aged),
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
        let Some(timed) = self.model.timed() else { return Ok(()) };
        let settings = self.settings();
        if let Some(name) = &settings.scheduler {
            self.model.set_scheduler(scheduler_named(name)?)?;
        }
        for (namespace, given) in self.namespaces.iter().zip(&self.config.namespaces) {
            let kept = settings.of(&namespace.name);
            self.model.set_weight(namespace.tenant, kept.weight.unwrap_or(given.weight))?;
            let limit = Limit { iops: kept.limit_iops, bytes_s: kept.limit_bytes_s };
            self.model.set_limit(namespace.tenant, limit)?;
        }
        timed.wake_clock();
        Ok(())
    }

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
        if let Some(timed) = self.model.timed() {
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
        if self.origin.is_none() {
            return Ok(());
        }
        self.checkpoint(true)?;
        ageing::tell(&self.folder, self.aged().as_ref())?;
        checkpoint::mark_stopped(&self.folder)
    }

    /// Writes where every page lies.
    pub fn checkpoint(&self, clean: bool) -> Result<(), ServeError> {
        let aged = self.aged();
        let state = self.model.with(|drive| checkpoint::take(drive, &self.namespaces, aged.as_ref(), clean))??;
        checkpoint::write(&self.folder, &state)
    }

    fn keep_up(&self) {
        let mut due = Instant::now() + self.checkpoint_interval;
        let mut written_at = self.host_page_writes();
        let mut ailing = vec![None; self.namespaces.len()];
        let mut stopping = lock_anyway(&self.upkeep.stopping);
        while !*stopping {
            let waited = self.upkeep.stop.wait_timeout(stopping, UPKEEP_INTERVAL);
            stopping = waited.unwrap_or_else(PoisonError::into_inner).0;
            if *stopping {
                return;
            }
            drop(stopping);
            let passes = if self.model.timed().is_some() { GC_PASSES_TIMED } else { GC_PASSES_COUNTED };
            // Err: the model has failed, which those who ask for it are told.
            let _failed = self.model.with(|drive| drive.advance_moves(passes));
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
            stopping = lock_anyway(&self.upkeep.stopping);
        }
    }

    /// Tells the operator of what ails a namespace, once, and when it has passed.
    fn look_after_namespaces(&self, told: &mut [Option<Ailment>]) {
        for (namespace, told) in self.namespaces.iter().zip(told) {
            if told.is_some() {
                namespace.backing.look_for_room();
            }
            let ailment = namespace.backing.ailment();
            if ailment != *told {
                match ailment {
                    Some(ailment) => eprintln!("slo-ctl: namespace {}: {ailment}", namespace.name),
                    None => eprintln!("slo-ctl: namespace {}: is well again", namespace.name),
                }
                *told = ailment;
            }
        }
    }

    fn host_page_writes(&self) -> u64 {
        let sum = |drive: &mut Drive| {
            let of = |n: &Namespace| drive.counters(n.tenant).map_or(0, |c| c.host_page_writes + c.trimmed_pages);
            self.namespaces.iter().map(of).sum()
        };
        self.model.with(sum).unwrap_or(0)
    }

    /// How long limits have held requests back, by namespace; empty without a clock.
    pub fn throttled(&self) -> Vec<Throttled> {
        if self.model.timed().is_none() {
            return Vec::new();
        }
        let disks = self.model.with_disks(|disks| {
            let counters = |n: &Namespace| disks.queue_counters(n.tenant).ok();
            self.namespaces.iter().map(|n| counters(n).map_or_else(Throttled::default, Throttled::of)).collect()
        });
        if let Ok(Some(throttled)) = disks {
            return throttled;
        }
        let of = |drive: &mut Drive| {
            let counters = |n: &Namespace| drive.queue_counters(n.tenant).ok();
            self.namespaces.iter().map(|n| counters(n).map_or_else(Throttled::default, Throttled::of)).collect()
        };
        self.model.with(of).unwrap_or_default()
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

    /// How the placement was aged, where it was.
    pub fn aged(&self) -> Option<Aged> {
        lock_anyway(&self.aged).clone()
    }

    /// Brings the placement, in memory until it is next saved, to its steady state; `progress` is told the capacities written so far and says whether to
    /// go on. Holds every request up meanwhile, so it is for devices that are not served.
    pub fn age(&self, progress: impl FnMut(f64) -> bool) -> Result<Aged, ServeError> {
        let mut going_on = true;
        let mut progress = progress;
        let mut watched = |written: f64| {
            going_on = progress(written);
            going_on
        };
        let seed = self.config.flash()?.mapping.seed;
        let (report, pages) = self.model.with(|drive| {
            let pages = |t: TenantId| drive.space(t).map_or(0, |space| space.logical_pages);
            let pages = self.namespaces.iter().map(|n| pages(n.tenant)).sum();
            (drive.age(seed, &mut watched), pages)
        })?;
        if !going_on {
            return refuse("nobody waits for the ageing any more; the placement stays as it was");
        }
        let aged = Aged::of(&report, pages);
        *lock_anyway(&self.aged) = Some(aged.clone());
        Ok(aged)
    }

    /// Promises OPS blocks of one namespace to another (None: the spare of the device).
    pub fn move_ops(&self, from: Option<&Namespace>, to: Option<&Namespace>, blocks: u64) -> Result<(), ServeError> {
        let ends = (from.map(|n| n.tenant), to.map(|n| n.tenant));
        if ends.0 == ends.1 {
            return refuse("a move needs two different ends: from and to, one of which may be the spare (null)");
        }
        let mut settings = self.settings();
        let before = self.model.with(|drive| {
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
        self.model.set_weight(namespace.tenant, weight)?;
        settings.change(&self.folder, &namespace.name, |s| s.weight = Some(weight))
    }

    /// Chooses how the device divides itself among its namespaces, for good.
    pub fn set_scheduler(&self, name: &str) -> Result<(), ServeError> {
        let policy = scheduler_named(name)?;
        let mut settings = self.settings();
        self.model.set_scheduler(policy)?;
        settings.change_scheduler(&self.folder, name)
    }

    /// Sets or lifts the limits of a namespace, for good.
    pub fn set_limit(&self, namespace: &Namespace, limit: Limit) -> Result<(), ServeError> {
        let mut settings = self.settings();
        self.model.set_limit(namespace.tenant, limit)?;
        settings.change(&self.folder, &namespace.name, |s| {
            s.limit_iops = limit.iops;
            s.limit_bytes_s = limit.bytes_s;
        })
    }

    /// Changes the size of a namespace, for good. Data beyond a smaller end is gone; with `keep_data` that is refused.
    pub fn resize(&self, namespace: &Namespace, size_bytes: u64, keep_data: bool) -> Result<(), ServeError> {
        let page = u64::from(self.config.flash()?.geometry.page_bytes);
        if size_bytes == 0 || size_bytes % page != 0 || size_bytes > 1 << 62 {
            return refuse(format!("size_bytes must be a whole number of pages of {page} bytes, and at least one"));
        }
        let mut settings = self.settings();
        let before = namespace.size_bytes();
        if size_bytes >= before {
            self.grow(namespace, before, size_bytes)?;
            let kept = settings.change(&self.folder, &namespace.name, |s| s.size_bytes = Some(size_bytes));
            if kept.is_err() {
                self.model.with(|drive| drive.resize_tenant(namespace.tenant, before / page))??;
                return kept;
            }
            namespace.set_size_bytes(size_bytes);
            return Ok(());
        }
        // From here on nobody writes beyond the new end, so that what is looked for stays absent.
        namespace.set_size_bytes(size_bytes);
        let shrunk = self.check_shrinking(namespace, size_bytes, before, keep_data).and_then(|()| {
            self.model.with(|drive| drive.resize_tenant(namespace.tenant, size_bytes / page))?.map_err(Into::into)
        });
        if shrunk.is_err() {
            namespace.set_size_bytes(before);
            return shrunk;
        }
        // The file is at least as long as the settings say at every moment: a crash in between costs nothing.
        settings.change(&self.folder, &namespace.name, |s| s.size_bytes = Some(size_bytes))?;
        resize_file(namespace, size_bytes)
    }

    fn grow(&self, namespace: &Namespace, before: u64, size_bytes: u64) -> Result<(), ServeError> {
        let page = u64::from(self.config.flash()?.geometry.page_bytes);
        self.model.with(|drive| {
            let pages_per_block = u64::from(drive.block_pages());
            let (space, spare) = (drive.space(namespace.tenant)?, drive.spare_blocks());
            drive.resize_tenant(namespace.tenant, size_bytes / page).map_err(|refusal| {
                let free = (space.ops_blocks.max(0) as u64)
                    .saturating_sub(space.pending_out_blocks)
                    .saturating_sub(space.min_ops_blocks);
                let blocks = (before / page).div_ceil(pages_per_block) + free + spare;
                let most = (blocks * pages_per_block * page).max(before);
                ServeError::Refused(format!(
                    "namespace {} can have at most {most} bytes ({} MiB): {free} of its over-provisioning blocks and \
                     {spare} spare blocks of the device are left for more ({refusal})",
                    namespace.name,
                    most >> 20,
                ))
            })
        })??;
        resize_file(namespace, size_bytes).inspect_err(|_| {
            // Smaller always fits.
            let _back = self.model.with(|drive| drive.resize_tenant(namespace.tenant, before / page));
        })
    }

    fn check_shrinking(
        &self,
        namespace: &Namespace,
        size_bytes: u64,
        before: u64,
        keep_data: bool,
    ) -> Result<(), ServeError> {
        if !keep_data {
            return Ok(());
        }
        let page = self.config.granule_bytes();
        let end = namespace
            .backing
            .data_end(size_bytes, before)
            .map_err(|e| ServeError::File(format!("namespace {}: cannot find its data: {e}", namespace.name)))?;
        match end {
            None => Ok(()),
            Some(end) => refuse(format!(
                "namespace {} holds data up to byte {end}; without loss it can be made {} bytes, not {size_bytes}",
                namespace.name,
                end.div_ceil(page) * page,
            )),
        }
    }
}

fn resize_file(namespace: &Namespace, size_bytes: u64) -> Result<(), ServeError> {
    let resized = namespace.backing.resize(size_bytes);
    resized.map_err(|e| ServeError::File(format!("namespace {}: cannot resize its file: {e}", namespace.name)))
}

/// The model of a device, how its placement came about, and how it was aged.
fn model(
    parameters: &Parameters,
    folder: &Path,
    config: &DeviceConfig,
    settings: &Settings,
    namespaces: &[Namespace],
) -> Result<(Model, Option<Origin>, Option<Aged>), ServeError> {
    let clock = (parameters.latency == Latency::Real).then(|| Clock::new(parameters.time_scale));
    if let Medium::Disks(array, disk) = &config.medium {
        let mut disks = array.make(*disk)?;
        for namespace in namespaces {
            let tenant = disks.create_tenant(namespace.size_bytes())?;
            debug_assert_eq!(tenant, namespace.tenant);
        }
        let model = match clock {
            None => Model::Still,
            Some(clock) => Model::Disks(Arc::new(Timed::new(disks, clock)?)),
        };
        return Ok((model, None, None));
    }
    let Placed { drive, origin, aged } = checkpoint::load(folder, config, settings, namespaces)?;
    ageing::tell(folder, aged.as_ref())?;
    let model = match clock {
        None => Model::Counted(Box::new(Counted::new(drive))),
        Some(clock) => Model::Timed(Arc::new(Timed::new(drive, clock)?)),
    };
    Ok((model, Some(origin), aged))
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
