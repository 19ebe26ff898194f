//! Changes to a device that is served. They are kept in its settings, and hold when it is served again.

use ftl_core::TenantId;
use ftl_core::engine::Limit;

use crate::config::scheduler_named;
use crate::error::{ServeError, refuse};
use crate::namespace::Namespace;
use crate::server::Server;

impl Server {
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

    /// Withdraws what moves of OPS blocks have not handed over yet.
    pub fn cancel_moves(&self) -> Result<(), ServeError> {
        let mut settings = self.settings();
        let owned: Vec<u64> = self.model.with(|drive| {
            drive.cancel_moves();
            let owned = |n: &Namespace| drive.space(n.tenant).map_or(0, |space| space.ops_blocks.max(0) as u64);
            self.namespaces.iter().map(owned).collect()
        })?;
        for (namespace, owned) in self.namespaces.iter().zip(owned) {
            if settings.of(&namespace.name).ops_blocks.is_some_and(|kept| kept != owned) {
                settings.change(&self.folder, &namespace.name, |s| s.ops_blocks = Some(owned))?;
            }
        }
        Ok(())
    }

    /// Sets the share of the device's time that moves may take while requests are outstanding, until it stops.
    pub fn set_move_budget(&self, share: f64) -> Result<(), ServeError> {
        Ok(self.model.with(|drive| drive.set_move_budget(share))??)
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
