//! Creating and deleting namespaces while the device is served.
//!
//! The settings are authoritative. To create a namespace, its file is created, the model allocates its blocks, and then
//! the settings are written; to delete one, it is removed from the settings, and then its blocks and its file are
//! released. The settings list a file that a crash in between leaves behind as one to be removed, which the next start
//! does.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io;
use std::ops::Add;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ftl_core::convert::exact;
use ftl_core::count::Requests;
use ftl_core::engine::{Arrival, Limit};
use ftl_core::error::size_text;
use ftl_core::{Drive, FtlError, Op, Placement, TenantId};

use crate::atomic_file;
use crate::config::{MAX_NAMESPACES, NamespaceConfig};
use crate::error::{ServeError, refuse};
use crate::namespace::{Namespace, path_in};
use crate::server::Server;
use crate::server::changes::UNMAPPED_AT_ONCE;
use crate::settings::{Created, Hosts, NamespaceSettings, Settings, Totals};
use crate::sync;

/// Time for requests of a deleted namespace to leave the model.
const DRAIN: Duration = Duration::from_secs(30);
const DRAIN_CHECK: Duration = Duration::from_millis(5);
/// Hosts that a namespace can list as attached or detached.
const MAX_LISTED_HOSTS: usize = 64;

/// A namespace to be created; values that are None are chosen.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Export name.
    pub name: Option<String>,
    /// Logical size.
    pub size_bytes: u64,
    /// Weight of its device time.
    pub weight: Option<f64>,
    /// Over-provisioning blocks.
    pub ops_blocks: Option<u64>,
    /// Reclaim unit handle.
    pub handle: Option<u16>,
    /// NVMe hosts that it is attached to; None: all.
    pub hosts: Option<Hosts>,
}

impl Server {
    /// Creates a namespace permanently.
    pub fn create_namespace(&self, wanted: Wanted) -> Result<Arc<Namespace>, ServeError> {
        let placement = self.config.flash()?.placement();
        let mut settings = self.change();
        let present = self.namespaces();
        if present.len() >= MAX_NAMESPACES {
            return refuse(format!("the device already has {MAX_NAMESPACES} namespaces, the most it can have"));
        }
        let taken = |name: &str| present.iter().any(|n| n.name == name) || settings.files_to_remove.contains(name);
        let in_use = present.iter().map(|n| n.nsid()).collect();
        // A number is free, as there are fewer namespaces.
        let nsid = settings.next_nsid(&in_use).unwrap_or(u32::MAX);
        let name = match wanted.name {
            Some(name) if taken(&name) => return refuse(format!("namespace {name} already exists")),
            Some(name) => name,
            None => {
                let mut names = (nsid..u32::MAX).map(|number| format!("ns{number}"));
                names.find(|name| !taken(name)).unwrap_or_default()
            }
        };
        let is_unused = |handle: &u16| present.iter().all(|n| n.origin.handle != *handle);
        let handle = match wanted.handle {
            Some(handle) if !is_unused(&handle) || usize::from(handle) >= MAX_NAMESPACES => {
                return refuse(format!("reclaim unit handle {handle} is not free"));
            }
            Some(handle) => handle,
            None => (0..u16::MAX).find(is_unused).unwrap_or(u16::MAX),
        };
        let ops_blocks = match wanted.ops_blocks {
            Some(blocks) => blocks,
            None => self.ops_blocks_for(wanted.size_bytes)?,
        };
        let weight = wanted.weight.unwrap_or(1.0);
        let config = NamespaceConfig { name: name.clone(), size_bytes: wanted.size_bytes, weight, ops_blocks };
        self.config.check_namespace(&config)?;
        let origin = Created { nsid, handle, created_ns: now_ns(), config };
        let changed = NamespaceSettings { hosts: wanted.hosts, ..NamespaceSettings::default() };

        let file = path_in(&self.folder, &name);
        if file.exists() {
            return refuse(format!(
                "{} exists but belongs to no namespace; move it away, or choose another name",
                file.display()
            ));
        }
        settings.change(&self.folder, |s| s.files_to_remove.extend([name.clone()]))?;
        let made = self.make(origin.clone(), &changed, placement).and_then(|namespace| {
            let kept = settings.change(&self.folder, |s| {
                s.files_to_remove.remove(&name);
                s.deleted_nsids.retain(|&deleted| deleted != nsid);
                s.created.push(origin);
                s.namespaces.remove(&name);
                if changed != NamespaceSettings::default() {
                    s.namespaces.insert(name.clone(), changed);
                }
            });
            if kept.is_err() {
                let _model_failed = self.model.with(|drive| drive.delete_tenant(namespace.tenant));
            }
            kept.map(|()| namespace)
        });
        let made = Arc::new(made.inspect_err(|_| drop(remove_files(&self.folder, &mut settings)))?);
        self.publish(&settings, |present| {
            let mut list = present.namespaces.to_vec();
            let place = list.partition_point(|n| n.nsid() < nsid);
            list.insert(place, Arc::clone(&made));
            present.namespaces = list.into();
        });
        Ok(made)
    }

    /// Creates the file of a namespace, and assigns blocks to it.
    fn make(
        &self,
        origin: Created,
        changed: &NamespaceSettings,
        placement: Placement,
    ) -> Result<Namespace, ServeError> {
        let NamespaceConfig { size_bytes, weight, ops_blocks, .. } = origin.config;
        let file = path_in(&self.folder, &origin.config.name);
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file).and_then(|opened| {
            opened.set_len(size_bytes)?;
            sync::all(&opened)?;
            atomic_file::sync_folder(&self.folder)
        });
        made.map_err(|e| ServeError::io("cannot make", &file, &e))?;
        let mut namespace = Namespace::open(&self.folder, origin, changed)?;
        let pages = size_bytes / self.config.granule_bytes();
        let is_timed = self.time_scale.is_some();
        namespace.tenant = self.model.with(|drive| {
            let tenant = drive.create_tenant(pages, placement, ops_blocks)?;
            let opened = if is_timed { drive.open_queue(tenant, Arrival::Live) } else { Ok(()) };
            let opened = opened.and_then(|()| if is_timed { drive.set_weight(tenant, weight) } else { Ok(()) });
            opened.inspect_err(|_| drop(drive.delete_tenant(tenant))).map(|()| tenant)
        })??;
        Ok(namespace)
    }

    /// Deletes a namespace and its data permanently. Requests in progress are completed, later ones refused.
    pub fn delete_namespace(&self, namespace: &Arc<Namespace>) -> Result<(), ServeError> {
        let placement = self.config.flash()?.placement();
        let mut settings = self.change_of(namespace)?;
        if self.time_scale.is_some() {
            // A limit must not make this wait.
            self.model.set_limit(namespace.tenant, Limit::default())?;
        }
        namespace.set_open(false);
        let begun =
            self.drain(namespace.tenant).and_then(|()| self.begin_to_delete(&mut settings, namespace, placement));
        if let Err(e) = begun {
            namespace.set_open(true);
            let kept = settings.of(&namespace.name);
            let limit = Limit { iops: kept.limit_iops, bytes_s: kept.limit_bytes_s };
            let _without_clock = self.model.set_limit(namespace.tenant, limit);
            return Err(e);
        }
        self.publish(&settings, |present| {
            present.answered_by_deleted.add(&namespace.answered);
            present.namespaces = present.namespaces.iter().filter(|n| n.serial != namespace.serial).cloned().collect();
        });
        if let Some(after) = self.after_deletion.get() {
            after();
        }
        // It is deleted now; remaining work is done by the next start at the latest.
        let released = self.release_pages(namespace);
        let released = released.and_then(|()| Ok(self.model.with(|drive| drive.delete_tenant(namespace.tenant))??));
        if let Err(e) = released {
            eprintln!("slo-ctl: namespace {}: its blocks are free after the next start: {e}", namespace.name);
        }
        if let Err(e) = remove_files(&self.folder, &mut settings) {
            eprintln!("slo-ctl: namespace {}: its file is removed at the next start: {e}", namespace.name);
        }
        Ok(())
    }

    /// Unmaps all pages of a namespace, some at a time, so that other requests need not wait for all.
    fn release_pages(&self, namespace: &Namespace) -> Result<(), ServeError> {
        let most = UNMAPPED_AT_ONCE * self.config.granule_bytes();
        let (mut at, end) = (0, namespace.size_bytes());
        while at < end {
            let length = most.min(end - at);
            self.model.with(|drive| {
                drive.apply(Requests {
                    tenant: &[namespace.tenant.0],
                    op: &[Op::Trim as u8],
                    offset_bytes: &[at],
                    length_bytes: &[length],
                })
            })??;
            at += length;
        }
        Ok(())
    }

    /// Returns when the model has no requests of a namespace left, including abandoned ones.
    fn drain(&self, tenant: TenantId) -> Result<(), ServeError> {
        let deadline = Instant::now() + DRAIN;
        while self.time_scale.is_some() && self.model.with(|drive| drive.outstanding(tenant))?? > 0 {
            if Instant::now() >= deadline {
                return refuse("requests are still in flight; try again");
            }
            thread::sleep(DRAIN_CHECK);
        }
        Ok(())
    }

    /// Cancels the moves of a namespace, and takes it out of the settings.
    fn begin_to_delete(
        &self,
        settings: &mut Settings,
        namespace: &Namespace,
        placement: Placement,
    ) -> Result<(), ServeError> {
        let tenant = Some(namespace.tenant);
        let (cancelled, kept) = self.model.with(|drive| {
            let (cancelled, kept): (Vec<_>, Vec<_>) =
                drive.pending_moves().into_iter().partition(|&(from, to, _)| from == tenant || to == tenant);
            drive.cancel_moves();
            request_again(drive, &kept);
            (cancelled, kept)
        })?;
        let mut ops_blocks = self.ops_blocks_set(settings);
        for &(from, to, blocks) in &cancelled {
            self.moved(&mut ops_blocks, to, from, blocks);
        }
        let totals = self.totals_of(namespace)?;
        let present = self.namespaces();
        let place = present.iter().position(|n| n.serial == namespace.serial);
        if let (Placement::Shared, Some(place)) = (placement, place) {
            // Namespaces that it shared blocks with keep its OPS.
            let freed = std::mem::take(&mut ops_blocks[place]);
            let heir = (0..present.len()).find(|&n| n != place);
            if let Some(heir) = heir {
                ops_blocks[heir] += freed;
            }
        }
        let done = self.change_ops_blocks(settings, &ops_blocks, |s| {
            let name = &namespace.name;
            s.namespaces.remove(name);
            let before = s.created.len();
            s.created.retain(|each| each.nsid != namespace.nsid());
            if s.created.len() == before {
                s.deleted.insert(name.clone());
            }
            s.deleted_nsids.push(namespace.nsid());
            s.files_to_remove.insert(name.clone());
            s.totals_of_deleted = s.totals_of_deleted + totals;
        });
        done.inspect_err(|_| {
            let _model_failed = self.model.with(|drive| {
                drive.cancel_moves();
                request_again(drive, &kept);
                request_again(drive, &cancelled);
            });
        })
    }

    /// Attaches a namespace to NVMe hosts, or detaches it from them, permanently: all of them or none.
    pub fn attach_namespace(
        &self,
        namespace: &Namespace,
        host_nqns: &BTreeSet<&str>,
        attached: bool,
    ) -> Result<(), ServeError> {
        let mut settings = self.change_of(namespace)?;
        let mut hosts = settings.of(&namespace.name).hosts.unwrap_or_default();
        for host_nqn in host_nqns {
            hosts.set(host_nqn, attached);
        }
        if hosts.listed() > MAX_LISTED_HOSTS {
            return refuse(format!("namespace {} would list more than {MAX_LISTED_HOSTS} hosts", namespace.name));
        }
        settings.change(&self.folder, |s| s.of_mut(&namespace.name).hosts = Some(hosts.clone()))?;
        namespace.set_hosts(hosts);
        Ok(())
    }

    /// Bytes of the device that no namespace has.
    #[must_use]
    pub fn unallocated_bytes(&self) -> u64 {
        let allocated = self.namespaces().iter().map(|n| n.size_bytes()).fold(0, u64::saturating_add);
        self.config.capacity_bytes.saturating_sub(allocated)
    }

    /// Over-provisioning blocks for a new namespace: of the unowned blocks, the part that its size is of the
    /// unallocated capacity, minus its size; but at least the minimum for GC.
    fn ops_blocks_for(&self, size_bytes: u64) -> Result<u64, ServeError> {
        let flash = self.config.flash()?;
        let unallocated = self.unallocated_bytes();
        if size_bytes > unallocated {
            let [size, left] = [size_bytes, unallocated].map(size_text);
            return refuse(format!("{size} do not fit: only {left} are unallocated"));
        }
        let page_bytes = u64::from(flash.geometry.page_bytes);
        let (spare, block_pages, minimum) = self.model.with(|drive| {
            let taken: u64 = drive.pending_moves().iter().filter(|(from, ..)| from.is_none()).map(|(.., b)| b).sum();
            (
                drive.spare_blocks().saturating_sub(taken),
                u64::from(drive.block_pages()),
                least_ops(drive, flash.placement()),
            )
        })?;
        let logical = (size_bytes / page_bytes).div_ceil(block_pages);
        let part = u128::from(spare) * u128::from(size_bytes) / u128::from(unallocated.max(1));
        Ok(exact::<u64>(part).saturating_sub(logical).max(minimum))
    }

    /// What all namespaces have read and written since the device was created, those that were deleted included.
    pub fn totals(&self) -> Result<Totals, ServeError> {
        if self.config.flash().is_err() {
            return Ok(self.namespaces().iter().map(|n| totals_of_disk(n)).fold(Totals::default(), Totals::add));
        }
        Ok(self.model.with(|drive| {
            // With the drive locked, so that each of these namespaces still has its tenant.
            let (settings, namespaces) = self.present();
            let add = |sum, n: &Arc<Namespace>| Ok::<_, FtlError>(sum + totals_of_flash(drive, n.tenant)?);
            namespaces.iter().try_fold(settings.totals_of_deleted, add)
        })??)
    }

    /// What one namespace has read and written.
    pub fn totals_of(&self, namespace: &Namespace) -> Result<Totals, ServeError> {
        if self.config.flash().is_err() {
            return Ok(totals_of_disk(namespace));
        }
        Ok(self.model.with(|drive| totals_of_flash(drive, namespace.tenant))??)
    }

    /// Requests of a kind that all namespaces have answered since the start, those that were deleted since included.
    #[must_use]
    pub fn answered(&self, op: Op) -> u64 {
        let present = self.present.read().unwrap_or_else(PoisonError::into_inner);
        let answered: u64 = present.namespaces.iter().map(|n| n.answered.requests(op)).sum();
        present.answered_by_deleted.requests(op) + answered
    }
}

fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

fn request_again(drive: &mut Drive, moves: &[(Option<TenantId>, Option<TenantId>, u64)]) {
    for &(from, to, blocks) in moves {
        let _possible_before = drive.request_move(from, to, blocks);
    }
}

/// The fewest OPS blocks that a new namespace can have.
fn least_ops(drive: &Drive, placement: Placement) -> u64 {
    let shared = |tenant: &TenantId| drive.space(*tenant).is_ok_and(|space| space.placement == Placement::Shared);
    if placement == Placement::Shared && drive.tenants().iter().any(shared) {
        return 0;
    }
    drive.min_ops_blocks()
}

/// Disks have no placement, so only what hosts ask for counts.
fn totals_of_disk(namespace: &Namespace) -> Totals {
    let [read, written] = [Op::Read, Op::Write].map(|op| namespace.answered.bytes(op));
    Totals {
        host_read_bytes: read,
        host_written_bytes: written,
        media_read_bytes: read,
        media_written_bytes: written,
        erased_bytes: 0,
    }
}

fn totals_of_flash(drive: &Drive, tenant: TenantId) -> Result<Totals, FtlError> {
    let (pages, map) = (drive.counters(tenant)?, drive.mapping_counters(tenant)?);
    let page = u64::from(drive.geometry().page_bytes);
    let media_reads = pages.host_page_reads + pages.rmw_page_reads + pages.gc_page_writes + map.map_reads;
    Ok(Totals {
        // Pages never written are read, too, though not from flash.
        host_read_bytes: (pages.host_page_reads + pages.unmapped_page_reads) * page,
        host_written_bytes: pages.host_page_writes * page,
        media_read_bytes: media_reads * page,
        media_written_bytes: (pages.host_page_writes + pages.gc_page_writes + map.map_writes) * page,
        erased_bytes: pages.erases * u64::from(drive.block_pages()) * page,
    })
}

/// Removes the files that are listed for removal.
pub(super) fn remove_files(folder: &Path, settings: &mut Settings) -> Result<(), ServeError> {
    if settings.files_to_remove.is_empty() {
        return Ok(());
    }
    #[cfg(test)]
    crate::faults::reached();
    for name in &settings.files_to_remove {
        let path = path_in(folder, name);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(ServeError::io("cannot remove", &path, &e)),
            _ => {}
        }
    }
    #[cfg(test)]
    crate::faults::reached();
    atomic_file::sync_folder(folder).map_err(|e| ServeError::io("cannot sync", folder, &e))?;
    settings.change(folder, |s| s.files_to_remove.clear())
}
