//! Changes of a served device, which are stored permanently in its settings.

use ftl_core::convert::unsigned;
use ftl_core::engine::Limit;
use ftl_core::error::size_text;
use ftl_core::{Drive, FtlError, TenantId};

use crate::config::scheduler_named;
use crate::division;
use crate::error::{ServeError, refuse};
use crate::namespace::Namespace;
use crate::server::Server;

/// Pages that a smaller size unmaps before other requests are served.
pub(super) const UNMAPPED_AT_ONCE: u64 = 16 << 10;

impl Server {
    /// Moves OPS blocks of one namespace to another (None: the spare of the device).
    pub fn move_ops(&self, from: Option<&Namespace>, to: Option<&Namespace>, blocks: u64) -> Result<(), ServeError> {
        let ends = (from.map(|n| n.tenant), to.map(|n| n.tenant));
        if ends.0 == ends.1 {
            return refuse("a move needs two different ends: from and to, one of which may be the spare (null)");
        }
        let mut settings = self.change();
        [from, to].into_iter().flatten().try_for_each(|end| self.require_present(end))?;
        self.model.with(|drive| drive.request_move(ends.0, ends.1, blocks))??;
        let mut ops_blocks = self.ops_blocks_set(&settings);
        self.moved(&mut ops_blocks, ends.0, ends.1, blocks);
        self.change_ops_blocks(&mut settings, &ops_blocks, |_| {}).inspect_err(|_| {
            let _model_failed = self.model.with(|drive| withdraw(drive, ends.0, ends.1, blocks));
        })
    }

    /// Cancels the OPS blocks that were not moved yet.
    pub fn cancel_moves(&self) -> Result<(), ServeError> {
        let mut settings = self.change();
        let withdrawn = self.model.with(|drive| {
            let pending = drive.pending_moves();
            drive.cancel_moves();
            pending
        })?;
        let mut ops_blocks = self.ops_blocks_set(&settings);
        for &(from, to, blocks) in &withdrawn {
            self.moved(&mut ops_blocks, to, from, blocks);
        }
        self.change_ops_blocks(&mut settings, &ops_blocks, |_| {}).inspect_err(|_| {
            let _model_failed = self.model.with(|drive| {
                for (from, to, blocks) in withdrawn {
                    let _possible_before = drive.request_move(from, to, blocks);
                }
            });
        })
    }

    /// Sets the share of the device's time that moves may take while requests are outstanding, until it stops.
    pub fn set_move_budget(&self, share: f64) -> Result<(), ServeError> {
        Ok(self.model.with(|drive| drive.set_move_budget(share))??)
    }

    /// Sets the weight of a namespace permanently.
    pub fn set_weight(&self, namespace: &Namespace, weight: f64) -> Result<(), ServeError> {
        let mut settings = self.change_of(namespace)?;
        let before = settings.of(&namespace.name).weight.unwrap_or(namespace.origin.config.weight);
        self.model.set_weight(namespace.tenant, weight)?;
        let kept = settings.change(&self.folder, |s| s.of_mut(&namespace.name).weight = Some(weight));
        kept.inspect_err(|_| drop(self.model.set_weight(namespace.tenant, before)))
    }

    /// Sets the scheduler between namespaces permanently.
    pub fn set_scheduler(&self, name: &str) -> Result<(), ServeError> {
        let policy = scheduler_named(name)?;
        let mut settings = self.change();
        let before = scheduler_named(settings.scheduler.as_deref().unwrap_or(self.config.scheduler()))?;
        self.model.set_scheduler(policy)?;
        let kept = settings.change(&self.folder, |s| s.scheduler = Some(name.to_owned()));
        kept.inspect_err(|_| drop(self.model.set_scheduler(before)))
    }

    /// Sets or removes the limits of a namespace permanently.
    pub fn set_limit(&self, namespace: &Namespace, limit: Limit) -> Result<(), ServeError> {
        let mut settings = self.change_of(namespace)?;
        let kept = settings.of(&namespace.name);
        let before = Limit { iops: kept.limit_iops, bytes_s: kept.limit_bytes_s };
        self.model.set_limit(namespace.tenant, limit)?;
        let kept = settings.change(&self.folder, |s| {
            let namespace = s.of_mut(&namespace.name);
            namespace.limit_iops = limit.iops;
            namespace.limit_bytes_s = limit.bytes_s;
        });
        kept.inspect_err(|_| drop(self.model.set_limit(namespace.tenant, before)))
    }

    /// Changes the size of a namespace permanently. Data beyond a smaller end is lost; `keep_data` refuses that.
    ///
    /// The file is at least as long as the settings say at every moment, on stable storage too: whenever this ends,
    /// the device starts with one size or the other.
    pub fn resize(&self, namespace: &Namespace, size_bytes: u64, keep_data: bool) -> Result<(), ServeError> {
        let page = u64::from(self.config.flash()?.geometry.page_bytes);
        if size_bytes == 0 || size_bytes % page != 0 || size_bytes > 1 << 62 {
            return refuse(format!("a size must be a whole number of pages of {}, and at least one", size_text(page)));
        }
        let mut settings = self.change_of(namespace)?;
        let before = namespace.size_bytes();
        let growing = size_bytes >= before;
        let taken = if growing {
            // What a smaller size has left behind, where the server ended before it was cut off.
            if settings.of(&namespace.name).size_bytes.is_some() {
                cut_off(namespace, before)?;
            }
            self.grow(namespace, before, size_bytes)
        } else {
            // No request writes beyond the new end from here on, so the check stays valid.
            namespace.set_size_bytes(size_bytes);
            self.check_shrinking(namespace, size_bytes, before, keep_data)
                .and_then(|()| self.resize_in_model(namespace, size_bytes / page))
        };
        let mut ops_blocks = self.ops_blocks_set(&settings);
        let mut surplus = 0;
        let kept = taken.and_then(|gained| {
            surplus = gained;
            self.shift(&mut ops_blocks, namespace.tenant, gained);
            self.change_ops_blocks(&mut settings, &ops_blocks, |s| {
                s.of_mut(&namespace.name).size_bytes = Some(size_bytes);
            })
        });
        if let Err(e) = kept {
            // Growing uses spare blocks first: excess blocks become spare again.
            surplus += self.resize_in_model(namespace, before / page).unwrap_or(0);
            let _model_failed =
                self.model.with(|drive| drive.request_move(Some(namespace.tenant), None, unsigned(surplus.max(0))));
            namespace.set_size_bytes(before);
            return Err(e);
        }
        namespace.set_size_bytes(size_bytes);
        if growing { Ok(()) } else { cut_off(namespace, size_bytes) }
    }

    /// Returns how many OPS blocks that gave, or took where it is negative. Pages beyond a smaller end are unmapped some
    /// at a time, so that others need not wait for all of them.
    fn resize_in_model(&self, namespace: &Namespace, pages: u64) -> Result<i64, ServeError> {
        let mut gained = 0;
        loop {
            let (left, gave) = self.model.with(|drive| {
                let before = drive.space(namespace.tenant)?;
                let next = pages.max(before.logical_pages.saturating_sub(UNMAPPED_AT_ONCE));
                drive.resize_tenant(namespace.tenant, next)?;
                Ok::<_, FtlError>((next - pages, drive.space(namespace.tenant)?.ops_blocks - before.ops_blocks))
            })??;
            gained += gave;
            if left == 0 {
                return Ok(gained);
            }
        }
    }

    fn grow(&self, namespace: &Namespace, before: u64, size_bytes: u64) -> Result<i64, ServeError> {
        let page = u64::from(self.config.flash()?.geometry.page_bytes);
        let gained = self.resize_in_model(namespace, size_bytes / page).map_err(|refusal| {
            let most = self.model.with(|drive| {
                let (space, spare) = (drive.space(namespace.tenant)?, drive.spare_blocks());
                let free = unsigned(space.ops_blocks)
                    .saturating_sub(space.pending_out_blocks)
                    .saturating_sub(space.min_ops_blocks);
                let pages_per_block = u64::from(drive.block_pages());
                let blocks = (before / page).div_ceil(pages_per_block) + free + spare;
                Ok::<_, FtlError>(((blocks * pages_per_block * page).max(before), free, spare))
            });
            let Ok(Ok((most, free, spare))) = most else { return refusal };
            ServeError::Refused(format!(
                "namespace {} can have at most {}: {free} of its over-provisioning blocks and {spare} spare blocks of the \
                 device are left for more ({refusal})",
                namespace.name,
                size_text(most),
            ))
        })?;
        resize_file(namespace, size_bytes)?;
        Ok(gained)
    }

    /// Moves blocks from one namespace to another.
    pub(super) fn moved(&self, ops_blocks: &mut [u64], from: Option<TenantId>, to: Option<TenantId>, blocks: u64) {
        let blocks = i64::try_from(blocks).unwrap_or(i64::MAX);
        for (end, by) in [(from, -blocks), (to, blocks)] {
            if let Some(tenant) = end {
                self.shift(ops_blocks, tenant, by);
            }
        }
    }

    fn shift(&self, ops_blocks: &mut [u64], tenant: TenantId, by: i64) {
        if let Some(place) = self.namespaces().iter().position(|n| n.tenant == tenant) {
            division::shift(ops_blocks, place, by);
        }
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
                "namespace {} holds data up to byte {end}; without loss it can be made {}, not {}",
                namespace.name,
                size_text(end.div_ceil(page) * page),
                size_text(size_bytes),
            )),
        }
    }
}

fn resize_file(namespace: &Namespace, size_bytes: u64) -> Result<(), ServeError> {
    let resized = namespace.backing.resize(size_bytes);
    resized.map_err(|e| ServeError::File(format!("namespace {}: cannot resize its file: {e}", namespace.name)))
}

/// Truncates the file of a namespace to at most this length.
fn cut_off(namespace: &Namespace, size_bytes: u64) -> Result<(), ServeError> {
    match namespace.backing.length() {
        Ok(length) if length <= size_bytes => Ok(()),
        _ => resize_file(namespace, size_bytes),
    }
}

/// Cancels the last requested move; blocks that were already moved are moved back.
fn withdraw(drive: &mut Drive, from: Option<TenantId>, to: Option<TenantId>, blocks: u64) {
    let mut pending = drive.pending_moves();
    let under_way = pending.iter_mut().rev().find(|(f, t, _)| (*f, *t) == (from, to));
    let left = under_way.map_or(0, |(.., left)| std::mem::replace(left, left.saturating_sub(blocks)).min(blocks));
    drive.cancel_moves();
    pending.push((to, from, blocks - left));
    for (from, to, blocks) in pending {
        let _possible_before = drive.request_move(from, to, blocks);
    }
}
