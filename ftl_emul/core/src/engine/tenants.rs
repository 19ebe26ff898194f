//! Tenants of the engine: their queues, weights and limits, and counters of their requests.

use crate::engine::queue::TenantQueue;
use crate::engine::{Arrival, Engine, Event, LatencyRecord, Limit, QueueCounters};
use crate::error::{FtlError, invalid};
use crate::op::TenantId;

impl Engine {
    /// Creates an empty queue for a tenant, which replaces an existing one.
    pub fn open_queue(&mut self, tenant: TenantId, arrival: Arrival) -> Result<(), FtlError> {
        if arrival == (Arrival::Closed { queue_depth: 0 }) {
            return invalid("queue_depth", "must be at least 1");
        }
        let index = tenant.0 as usize;
        if self.queues.len() <= index {
            self.queues.resize_with(index + 1, || None);
        }
        self.close_queue(tenant)?;
        self.queues[index] = Some(TenantQueue::new(arrival));
        Ok(())
    }

    /// Drops the queue of a tenant, if it has one.
    pub fn close_queue(&mut self, tenant: TenantId) -> Result<(), FtlError> {
        let Some(slot) = self.queues.get_mut(tenant.0 as usize) else { return Ok(()) };
        if slot.as_ref().is_some_and(|q| q.account.outstanding() > 0) {
            return Err(FtlError::State(format!("tenant {} still has requests outstanding", tenant.0)));
        }
        if slot.take().is_some() {
            // Alarms of the old queue must not ring for a later one of the same number.
            self.agenda.retain(|event| {
                !matches!(event, Event::Arrival { tenant: t } | Event::Unthrottle { tenant: t } if t == tenant.0)
            });
        }
        Ok(())
    }

    /// True when a request of the tenant, fed but not complete, touches a page from `pages` on.
    #[must_use]
    pub fn touches_pages_from(&self, tenant: TenantId, pages: u64) -> bool {
        let Ok(queue) = self.queue(tenant) else { return false };
        let arrived = queue.arrived.iter().map(|(request, _)| request);
        arrived.chain(&queue.input).any(|request| request.end > pages) || queue.waiting_pages.any_in(pages..u64::MAX)
    }

    /// Sets the weight of a tenant's device time; finite and above 0.
    pub fn set_weight(&mut self, tenant: TenantId, weight: f64) -> Result<(), FtlError> {
        let Some(Some(queue)) = self.queues.get_mut(usize::from(tenant.0)) else {
            return Err(FtlError::UnknownTenant(tenant.0));
        };
        // Pages that wait for a die have had their turn.
        for (tag, other) in self.passed_over.drain(..) {
            self.scheduler.requeue(tag, other);
        }
        self.scheduler.set_weight(tenant.0, &mut queue.entity, weight)
    }

    /// Sets the limits of a tenant; finite and above 0 where given.
    pub fn set_limit(&mut self, tenant: TenantId, limit: Limit) -> Result<(), FtlError> {
        let now = self.timeline.now();
        self.queue_mut(tenant)?.throttle.set(limit, now)?;
        self.wake(tenant.0);
        Ok(())
    }

    /// Counters of a tenant's requests.
    pub fn counters(&self, tenant: TenantId) -> Result<&QueueCounters, FtlError> {
        Ok(&self.queue(tenant)?.account.counters)
    }

    /// Requests of a tenant that have arrived and are not complete.
    pub fn outstanding(&self, tenant: TenantId) -> Result<u32, FtlError> {
        Ok(self.queue(tenant)?.account.outstanding())
    }

    /// Latencies of a tenant since they were last cleared.
    pub fn latency(&self, tenant: TenantId) -> Result<&LatencyRecord, FtlError> {
        Ok(&self.queue(tenant)?.latency)
    }

    /// The latencies of a tenant since the previous call for it; empty at the first call.
    pub fn take_recent_latency(&mut self, tenant: TenantId) -> Result<LatencyRecord, FtlError> {
        let queue = self.queue_mut(tenant)?;
        Ok(queue.recent.replace(LatencyRecord::new()).unwrap_or_default())
    }

    /// Clears the latencies of every tenant, for a new window.
    pub fn clear_latencies(&mut self) {
        for queue in self.queues.iter_mut().flatten() {
            queue.latency.clear();
        }
    }

    pub(super) fn slot_mut(&mut self, tenant: u16) -> Option<&mut TenantQueue> {
        self.queues.get_mut(tenant as usize).and_then(Option::as_mut)
    }

    fn queue(&self, tenant: TenantId) -> Result<&TenantQueue, FtlError> {
        self.queues.get(tenant.0 as usize).and_then(Option::as_ref).ok_or(FtlError::UnknownTenant(tenant.0))
    }

    pub(super) fn queue_mut(&mut self, tenant: TenantId) -> Result<&mut TenantQueue, FtlError> {
        self.slot_mut(tenant.0).ok_or(FtlError::UnknownTenant(tenant.0))
    }
}
