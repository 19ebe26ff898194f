//! Tenants of the disks: their parts of the addresses, weights and limits, and counters of their requests.

use std::collections::VecDeque;

use crate::convert::exact;
use crate::disk::array::Array;
use crate::engine::account::Account;
use crate::engine::throttle::Throttle;
use crate::engine::{Limit, QueueCounters, SchedulingEntity};
use crate::error::{FtlError, size_text};
use crate::op::TenantId;

#[derive(Debug)]
pub(super) struct Tenant {
    pub first_byte: u64,
    pub size_bytes: u64,
    /// Slots of requests that wait for the scheduler.
    pub line: VecDeque<u32>,
    pub throttle: Throttle,
    pub entity: SchedulingEntity,
    pub account: Account,
}

impl Array {
    /// Assigns a tenant the addresses that follow those of earlier tenants.
    pub fn create_tenant(&mut self, size_bytes: u64) -> Result<TenantId, FtlError> {
        let first_byte = self.tenants.last().map_or(0, |last| last.first_byte + last.size_bytes);
        let left = self.capacity_bytes() - first_byte;
        if size_bytes == 0 || size_bytes > left {
            let [size, left] = [size_bytes, left].map(size_text);
            return Err(FtlError::State(format!("{size} do not fit; {left} are left on the disks")));
        }
        if self.tenants.len() > usize::from(u16::MAX) {
            return Err(FtlError::State("too many tenants".into()));
        }
        let number = exact::<u16>(self.tenants.len());
        self.tenants.push(Tenant {
            first_byte,
            size_bytes,
            line: VecDeque::new(),
            throttle: Throttle::default(),
            entity: SchedulingEntity::new(1.0),
            account: Account::default(),
        });
        Ok(TenantId(number))
    }

    /// Tenants in the order of their numbers.
    #[must_use]
    pub fn tenants(&self) -> Vec<TenantId> {
        (0..exact::<u16>(self.tenants.len())).map(TenantId).collect()
    }

    /// Sets the weight of a tenant's device time; finite and above 0.
    pub fn set_weight(&mut self, tenant: TenantId, weight: f64) -> Result<(), FtlError> {
        let entity = &mut self.tenants.get_mut(usize::from(tenant.0)).ok_or(FtlError::UnknownTenant(tenant.0))?.entity;
        self.scheduler.set_weight(tenant.0, entity, weight)
    }

    /// Sets the limits of a tenant; finite and above 0 where given.
    pub fn set_limit(&mut self, tenant: TenantId, limit: Limit) -> Result<(), FtlError> {
        let now_ns = self.now_ns;
        self.tenant_mut(tenant)?.throttle.set(limit, now_ns)?;
        self.wake(tenant.0);
        Ok(())
    }

    /// Counters of a tenant's requests. `device_ns` is the time of arms; there is no GC.
    pub fn queue_counters(&self, tenant: TenantId) -> Result<&QueueCounters, FtlError> {
        Ok(&self.tenant(tenant)?.account.counters)
    }

    /// Requests of a tenant that have arrived and are not done.
    pub fn outstanding(&self, tenant: TenantId) -> Result<u32, FtlError> {
        Ok(self.tenant(tenant)?.account.outstanding())
    }

    fn tenant(&self, tenant: TenantId) -> Result<&Tenant, FtlError> {
        self.tenants.get(usize::from(tenant.0)).ok_or(FtlError::UnknownTenant(tenant.0))
    }

    pub(super) fn tenant_mut(&mut self, tenant: TenantId) -> Result<&mut Tenant, FtlError> {
        self.tenants.get_mut(usize::from(tenant.0)).ok_or(FtlError::UnknownTenant(tenant.0))
    }
}
