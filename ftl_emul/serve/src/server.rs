//! A served device: its namespaces, the model, and their background maintenance.

mod changes;
mod namespaces;
#[cfg(test)]
pub mod tests;
mod upkeep;

use std::fs::File;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use ftl_core::engine::{Limit, QueueCounters};
use ftl_core::{Drive, FtlError, TenantId};
use serde::Serialize;

use crate::checkpoint::{self, Origin, Placed};
use crate::config::{DeviceConfig, Medium, scheduler_named};
use crate::descriptors::Budget;
use crate::device_lock;
use crate::division;
use crate::error::{ServeError, refuse};
use crate::model::{Clock, Counted, Model, Timed};
use crate::namespace::{Answered, Namespace};
use crate::parameters::{Latency, Parameters};
use crate::preconditioning::{self, Preconditioned};
use crate::recent::{History, Throttled};
use crate::recording::Recorder;
use crate::request_memory::Pool;
use crate::settings::{Created, Settings};
use crate::threads::lock;
pub use namespaces::Wanted;
use upkeep::Upkeep;

/// Address at which NVMe hosts find a device.
#[derive(Debug, Clone, Serialize)]
pub struct NvmeTcp {
    /// Address and port.
    pub address: String,
    /// NQN of its subsystem.
    pub nqn: String,
    /// Address and port that only answer discovery, if there are such.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub discovery: Option<String>,
}

/// A device while it is served.
pub struct Server {
    /// Description of the device.
    pub config: DeviceConfig,
    present: RwLock<Present>,
    /// The model beside its data.
    pub model: Model,
    /// Origin of the placement; None for disks.
    pub origin: Option<Origin>,
    /// Real seconds for each modelled one; None without a clock.
    pub time_scale: Option<f64>,
    /// Time for which a client is polled after a request, see [`crate::polling`]; zero: never.
    pub max_poll: Duration,
    /// Activity in the last seconds.
    pub history: History,
    /// Memory for the data of requests.
    pub request_memory: Arc<Pool>,
    /// Descriptors of this process.
    pub descriptors: Arc<Budget>,
    /// Address for NVMe hosts, if they are served.
    pub nvme_tcp: OnceLock<NvmeTcp>,
    /// Called after a namespace was deleted, for a front end to close its socket.
    pub after_deletion: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Whether its requests are being recorded.
    is_recorded: Arc<AtomicBool>,
    preconditioned: Mutex<Option<Preconditioned>>,
    folder: PathBuf,
    /// Held during a change, which may wait for requests and disks; others read [`Present`].
    changing: Mutex<Settings>,
    checkpoint_interval: Duration,
    /// Held while the device is served.
    _lock: File,
    upkeep: Upkeep,
}

impl Server {
    /// Opens a device, without starting threads.
    pub fn open(parameters: &Parameters) -> Result<Self, ServeError> {
        let Some(folder) = parameters.device.clone() else {
            return refuse("no device given; write device=FOLDER with the folder of a device");
        };
        let lock = device_lock::take(&folder, parameters.lock_fd)?;
        let config = DeviceConfig::read(&folder)?;
        let mut settings = Settings::read(&folder)?;
        if let Err(e) = namespaces::remove_files(&folder, &mut settings) {
            eprintln!("slo-ctl: files of removed namespaces are removed at the next start: {e}");
        }
        let open = |origin: Created| {
            let changed = settings.of(&origin.config.name);
            Namespace::open(&folder, origin, &changed)
        };
        let mut namespaces: Vec<Namespace> =
            settings.present(&config)?.into_iter().map(open).collect::<Result<_, _>>()?;
        let Modelled { model, origin, preconditioned, ops_blocks } =
            model(parameters, &folder, &config, &settings, &mut namespaces)?;
        let time_scale = model.timed().map(|_| parameters.time_scale);
        let server = Self {
            config,
            present: RwLock::new(Present {
                namespaces: namespaces.into_iter().map(Arc::new).collect(),
                settings: Arc::new(settings.clone()),
                answered_by_deleted: Answered::default(),
            }),
            model,
            origin,
            time_scale,
            // Requests that wait for the modelled drive are not polled for.
            max_poll: if time_scale.is_none() { parameters.poll } else { Duration::ZERO },
            history: History::default(),
            request_memory: Arc::default(),
            descriptors: Budget::of_process(parameters.tls_certificates.is_some()),
            nvme_tcp: OnceLock::new(),
            after_deletion: OnceLock::new(),
            is_recorded: Arc::default(),
            preconditioned: Mutex::new(preconditioned),
            folder,
            changing: Mutex::new(settings),
            checkpoint_interval: Duration::from_secs_f64(parameters.checkpoint_s),
            _lock: lock,
            upkeep: Upkeep::default(),
        };
        server.restore_settings()?;
        if let Some(ops_blocks) = ops_blocks {
            server.keep_ops_blocks(&ops_blocks)?;
        }
        Ok(server)
    }

    /// Has the settings agree with a drive that cannot have its blocks as they were set.
    fn keep_ops_blocks(&self, found: &[u64]) -> Result<(), ServeError> {
        let mut settings = self.change();
        let set = self.ops_blocks_set(&settings);
        for ((namespace, set), found) in self.namespaces().iter().zip(&set).zip(found) {
            if set != found {
                eprintln!(
                    "slo-ctl: namespace {}: {found} over-provisioning blocks; the {set} that were set do not fit",
                    namespace.name
                );
            }
        }
        self.change_ops_blocks(&mut settings, found, |_| {})
    }

    /// Over-provisioning blocks as they were set, in the order of the namespaces.
    fn ops_blocks_set(&self, settings: &Settings) -> Vec<u64> {
        division::ops_blocks_set(&self.namespaces(), settings)
    }

    /// Keeps over-provisioning blocks, and another `change` in the same step.
    fn change_ops_blocks(
        &self,
        settings: &mut Settings,
        ops_blocks: &[u64],
        change: impl FnOnce(&mut Settings),
    ) -> Result<(), ServeError> {
        let before = self.ops_blocks_set(settings);
        settings.change(&self.folder, |settings| {
            for ((namespace, before), &after) in self.namespaces().iter().zip(before).zip(ops_blocks) {
                if before != after {
                    settings.of_mut(&namespace.name).ops_blocks = Some(after);
                }
            }
            change(settings);
        })
    }

    fn restore_settings(&self) -> Result<(), ServeError> {
        let Some(timed) = self.model.timed() else { return Ok(()) };
        let settings = self.settings();
        if let Some(name) = &settings.scheduler {
            self.model.set_scheduler(scheduler_named(name)?)?;
        }
        for namespace in self.namespaces().iter() {
            let kept = settings.of(&namespace.name);
            self.model.set_weight(namespace.tenant, kept.weight.unwrap_or(namespace.origin.config.weight))?;
            let limit = Limit { iops: kept.limit_iops, bytes_s: kept.limit_bytes_s };
            self.model.set_limit(namespace.tenant, limit)?;
        }
        timed.wake_clock();
        Ok(())
    }

    /// Time for which limits have throttled requests, by namespace; empty without a clock.
    pub fn throttled(&self, namespaces: &[Arc<Namespace>]) -> Vec<Throttled> {
        if self.model.timed().is_none() {
            return Vec::new();
        }
        let of =
            |counters: Result<&QueueCounters, FtlError>| counters.map_or_else(|_| Throttled::default(), Throttled::of);
        let disks =
            self.model.with_disks(|disks| namespaces.iter().map(|n| of(disks.queue_counters(n.tenant))).collect());
        if let Ok(Some(throttled)) = disks {
            return throttled;
        }
        let of_drive = |drive: &mut Drive| namespaces.iter().map(|n| of(drive.queue_counters(n.tenant))).collect();
        self.model.with(of_drive).unwrap_or_default()
    }

    /// Starts to record the requests of these namespaces, or of all there are now.
    pub fn record(&self, names: Option<&[String]>) -> Result<Recorder, ServeError> {
        let namespaces = match names {
            None => self.namespaces().to_vec(),
            Some(names) => names.iter().map(|name| self.require(name)).collect::<Result<_, _>>()?,
        };
        Recorder::start(namespaces, self.time_scale, &self.is_recorded)
    }

    /// The namespace with this name; Err if there is none.
    pub fn require(&self, name: &str) -> Result<Arc<Namespace>, ServeError> {
        match self.namespace(name) {
            Some(namespace) => Ok(namespace),
            None => refuse(format!("namespace {name:?} does not exist")),
        }
    }

    /// The namespaces there are now, by NSID.
    #[must_use]
    pub fn namespaces(&self) -> Arc<[Arc<Namespace>]> {
        Arc::clone(&self.present.read().unwrap_or_else(PoisonError::into_inner).namespaces)
    }

    /// The namespace of that name.
    #[must_use]
    pub fn namespace(&self, name: &str) -> Option<Arc<Namespace>> {
        self.namespaces().iter().find(|n| n.name == name).map(Arc::clone)
    }

    /// The namespace of that number.
    #[must_use]
    pub fn namespace_of(&self, nsid: u32) -> Option<Arc<Namespace>> {
        let namespaces = &self.present.read().unwrap_or_else(PoisonError::into_inner).namespaces;
        let place = namespaces.binary_search_by_key(&nsid, |n| n.nsid()).ok()?;
        Some(Arc::clone(&namespaces[place]))
    }

    /// Settings changed since the device was created.
    pub fn settings(&self) -> Arc<Settings> {
        self.present().0
    }

    /// The settings, and the namespaces that they are about.
    pub fn present(&self) -> (Arc<Settings>, Arc<[Arc<Namespace>]>) {
        let present = self.present.read().unwrap_or_else(PoisonError::into_inner);
        (Arc::clone(&present.settings), Arc::clone(&present.namespaces))
    }

    /// Begins a change of the settings, once the one before has ended.
    fn change(&self) -> Change<'_> {
        Change { server: self, settings: lock(&self.changing) }
    }

    /// Begins a change of a namespace. Err if it has been deleted since it was looked up: another one may have its name
    /// and its tenant.
    fn change_of(&self, namespace: &Namespace) -> Result<Change<'_>, ServeError> {
        let change = self.change();
        self.require_present(namespace).map(|()| change)
    }

    /// See [`Server::change_of`]: only during a change.
    fn require_present(&self, namespace: &Namespace) -> Result<(), ServeError> {
        if self.namespaces().iter().any(|n| n.serial == namespace.serial) {
            return Ok(());
        }
        refuse(format!("namespace {:?} no longer exists", namespace.name))
    }

    fn publish(&self, settings: &Settings, change: impl FnOnce(&mut Present)) {
        let settings = Arc::new(settings.clone());
        let mut present = self.present.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut present);
        present.settings = settings;
    }

    /// How the placement was preconditioned, if it was.
    pub fn preconditioned(&self) -> Option<Preconditioned> {
        lock(&self.preconditioned).clone()
    }

    /// Brings the placement, in memory until it is next saved, to its steady state; `progress` gets the capacities
    /// written so far and returns whether to continue. All requests wait until then, so it is for devices that are not
    /// served.
    pub fn precondition(&self, progress: impl FnMut(f64) -> bool) -> Result<Preconditioned, ServeError> {
        let mut going_on = true;
        let mut progress = progress;
        let mut watched = |written: f64| {
            going_on = progress(written);
            going_on
        };
        let seed = self.config.flash()?.mapping.seed;
        let (report, pages) = self.model.with(|drive| {
            let pages = |t: TenantId| drive.space(t).map_or(0, |space| space.logical_pages);
            let pages = self.namespaces().iter().map(|n| pages(n.tenant)).sum();
            (drive.precondition(seed, &mut watched), pages)
        })?;
        if !going_on {
            return refuse("the client of the preconditioning has disconnected; the placement is unchanged");
        }
        let preconditioned = Preconditioned::of(&report, pages);
        *lock(&self.preconditioned) = Some(preconditioned.clone());
        Ok(preconditioned)
    }
}

/// What there is at the moment.
struct Present {
    /// By NSID.
    namespaces: Arc<[Arc<Namespace>]>,
    settings: Arc<Settings>,
    /// Of namespaces that were deleted since the start.
    answered_by_deleted: Answered,
}

/// The settings during a change, after which all find them.
struct Change<'a> {
    server: &'a Server,
    settings: MutexGuard<'a, Settings>,
}

impl Deref for Change<'_> {
    type Target = Settings;

    fn deref(&self) -> &Settings {
        &self.settings
    }
}

impl DerefMut for Change<'_> {
    fn deref_mut(&mut self) -> &mut Settings {
        &mut self.settings
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.server.publish(&self.settings, |_| {});
    }
}

/// Result of [`model`].
struct Modelled {
    model: Model,
    /// Origin of its placement, if it has one.
    origin: Option<Origin>,
    preconditioned: Option<Preconditioned>,
    ops_blocks: Option<Vec<u64>>,
}

/// The model of a device.
fn model(
    parameters: &Parameters,
    folder: &Path,
    config: &DeviceConfig,
    settings: &Settings,
    namespaces: &mut [Namespace],
) -> Result<Modelled, ServeError> {
    let clock = (parameters.latency == Latency::Real).then(|| Clock::new(parameters.time_scale));
    if let Medium::Disks(array, disk) = &config.medium {
        let mut disks = array.make(*disk)?;
        for namespace in namespaces {
            namespace.tenant = disks.create_tenant(namespace.size_bytes())?;
        }
        let model = match clock {
            None => Model::Still,
            Some(clock) => Model::Disks(Arc::new(Timed::new(disks, clock)?)),
        };
        return Ok(Modelled { model, origin: None, preconditioned: None, ops_blocks: None });
    }
    let Placed { drive, origin, preconditioned, ops_blocks } = checkpoint::load(folder, config, settings, namespaces)?;
    preconditioning::save(folder, preconditioned.as_ref())?;
    let model = match clock {
        None => Model::Counted(Box::new(Counted::new(drive))),
        Some(clock) => Model::Timed(Arc::new(Timed::new(drive, clock)?)),
    };
    Ok(Modelled { model, origin: Some(origin), preconditioned, ops_blocks: Some(ops_blocks) })
}
