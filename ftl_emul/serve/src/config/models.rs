//! Conversion of a configuration into the models of the core.

use ftl_core::disk::{Array, ArrayOptions, DiskParameters};
use ftl_core::engine::{SCHEDULERS, SchedulerPolicy, TimingModel};
use ftl_core::{DriveOptions, LogBlockOptions, MAPPINGS, MappingOptions, PageMappingOptions, Placement, victim_policy};

use crate::config::{ArrayConfig, FlashConfig, MappingConfig};
use crate::error::{ServeError, refuse};

impl ArrayConfig {
    /// The disks, without namespaces.
    pub fn make(&self, disk: DiskParameters) -> Result<Array, ServeError> {
        let options = ArrayOptions {
            disks: self.disks,
            stripe_bytes: self.stripe_bytes,
            scheduler: scheduler_named(&self.scheduler)?,
            queue_depth: (self.queue_depth > 0).then_some(self.queue_depth),
        };
        Ok(Array::new(disk, options)?)
    }
}

impl FlashConfig {
    /// The mapping and its options.
    pub fn mapping_options(&self) -> Result<MappingOptions, ServeError> {
        let MappingConfig { kind, cluster_dies, cached_entries, victim, free_floor, .. } = &self.mapping;
        let Some(&(_, kind, _)) = MAPPINGS.iter().find(|(known, ..)| known == kind) else {
            let known: Vec<&str> = MAPPINGS.iter().map(|(known, ..)| *known).collect();
            return refuse(format!("unknown mapping {kind}; known are {}", known.join(", ")));
        };
        let Some(victim) = victim_policy(victim) else {
            return refuse(format!("unknown victim policy {victim}"));
        };
        let page = PageMappingOptions {
            victim,
            separate_gc_frontier: self.mapping.separate_gc_frontier,
            free_floor: *free_floor,
            seed: self.mapping.seed,
        };
        let log_block = LogBlockOptions { cluster_dies: *cluster_dies, free_floor: *free_floor };
        Ok(MappingOptions::new(kind, page, log_block, *cached_entries)?)
    }

    /// Options of the drive.
    pub fn drive_options(&self) -> Result<DriveOptions, ServeError> {
        Ok(DriveOptions {
            timing: self.timing,
            timing_model: TimingModel::Full { copyback: self.mapping.copyback },
            scheduler: scheduler_named(&self.mapping.scheduler)?,
            device_queue_depth: None,
        })
    }

    /// Placement of a namespace's pages.
    #[must_use]
    pub fn placement(&self) -> Placement {
        if self.mapping.isolated { Placement::Isolated } else { Placement::Shared }
    }
}

/// The scheduler of that name.
pub fn scheduler_named(name: &str) -> Result<SchedulerPolicy, ServeError> {
    match SCHEDULERS.iter().find(|(known, ..)| *known == name) {
        Some(&(_, policy, _)) => Ok(policy),
        None => {
            let known: Vec<&str> = SCHEDULERS.iter().map(|(known, ..)| *known).collect();
            refuse(format!("unknown scheduler {name}; known are {}", known.join(", ")))
        }
    }
}
