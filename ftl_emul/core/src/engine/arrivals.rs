//! Arrival of requests: checked and queued, they arrive at their time or as the queue depth permits.

use crate::engine::queue::{Request, TenantQueue};
use crate::engine::{Arrival, Engine, Event};
use crate::error::{FtlError, invalid};
use crate::mapping::Mapping;
use crate::op::{Op, PageSpan, TenantId};
use crate::table::prefetch_line;

/// Distance, in requests, at which map entries are prefetched.
const PREFETCH_AHEAD: usize = 8;
const PREFETCH_OVERWRITE_AHEAD: usize = 3;
/// Requests ahead that are fetched themselves: the inputs of several tenants are too much for the caches.
const PREFETCH_REQUEST_AHEAD: usize = 24;

impl Engine {
    /// Appends requests to a tenant's input: columns of equal length. All are checked before one is added.
    pub fn feed<M: Mapping>(
        &mut self,
        mapping: &M,
        tenant: TenantId,
        time_ns: &[i64],
        op: &[u8],
        offset_bytes: &[u64],
        length_bytes: &[u64],
    ) -> Result<(), FtlError> {
        let n = time_ns.len();
        if op.len() != n || offset_bytes.len() != n || length_bytes.len() != n {
            return invalid("requests", "columns differ in length");
        }
        let (page_shift, pages) = (self.page_shift, mapping.pages(tenant));
        let parse = |i: usize| {
            let time_ns = u64::try_from(time_ns[i]).unwrap_or(0);
            request(time_ns, Op::try_from(op[i])?, offset_bytes[i], length_bytes[i], page_shift, pages, 0)
        };
        let input = &mut self.queue_mut(tenant)?.input;
        let before = input.len();
        input.reserve(n);
        for i in 0..n {
            match parse(i) {
                Ok(request) => input.push_back(request),
                Err(refusal) => {
                    input.truncate(before);
                    return Err(refusal);
                }
            }
        }
        Ok(())
    }

    /// Lets one request of a live queue arrive now. Let time pass with [`Engine::run`] up to the moment of the call
    /// first, and after it; [`Engine::completions`] then has those whose end is known.
    pub fn submit<M: Mapping>(
        &mut self,
        mapping: &M,
        tenant: TenantId,
        op: Op,
        offset_bytes: u64,
        length_bytes: u64,
        token: u64,
    ) -> Result<(), FtlError> {
        let pages = mapping.pages(tenant);
        let now = self.timeline.now();
        let request = request(now, op, offset_bytes, length_bytes, self.page_shift, pages, token)?;
        let virtual_time = self.scheduler.virtual_time(now);
        let queue = self.queue_mut(tenant)?;
        if queue.arrival != Arrival::Live {
            return Err(FtlError::State(format!("tenant {} has no live queue", tenant.0)));
        }
        queue.input.push_back(request);
        queue.arrive(now, virtual_time);
        self.wake(tenant.0);
        Ok(())
    }

    /// Marks a tenant's input as complete: the tenant becomes idle after its last request.
    pub fn end_input(&mut self, tenant: TenantId) -> Result<(), FtlError> {
        self.queue_mut(tenant)?.input_ended = true;
        Ok(())
    }

    /// Stops or resumes arrivals of a tenant. Open-loop timestamps are shifted by the length of the pause.
    pub fn pause(&mut self, tenant: TenantId, paused: bool) -> Result<(), FtlError> {
        let now = self.timeline.now();
        let queue = self.queue_mut(tenant)?;
        if queue.paused && !paused {
            if let Some(next) = queue.input.front() {
                queue.time_offset_ns = now.saturating_sub(next.time_ns);
            }
        }
        queue.paused = paused;
        Ok(())
    }

    /// Lets requests arrive as far as the tenant's way of arriving allows at this moment.
    pub(super) fn admit<M: Mapping>(&mut self, mapping: &M, tenant: u16) {
        let now = self.timeline.now();
        let virtual_time = self.scheduler.virtual_time(now);
        let Some(Some(queue)) = self.queues.get_mut(tenant as usize) else { return };
        if queue.paused {
            return;
        }
        match queue.arrival {
            Arrival::Closed { queue_depth } => {
                let before = queue.account.outstanding();
                while queue.account.outstanding() < queue_depth && !queue.input.is_empty() {
                    prefetch(mapping, TenantId(tenant), queue);
                    queue.arrive(now, virtual_time);
                }
                if queue.account.outstanding() < queue_depth && !queue.input_ended {
                    self.starved.push(TenantId(tenant));
                }
                if self.slot_mut(tenant).is_some_and(|q| q.account.outstanding() > before) {
                    self.wake(tenant);
                }
            }
            Arrival::Live => {}
            Arrival::Open => {
                if queue.arrival_scheduled {
                    return;
                }
                match queue.input.front() {
                    Some(next) => {
                        let at = (next.time_ns + queue.time_offset_ns).max(now);
                        queue.arrival_scheduled = true;
                        prefetch(mapping, TenantId(tenant), queue);
                        self.agenda.add(at, Event::Arrival { tenant });
                    }
                    None if !queue.input_ended => self.starved.push(TenantId(tenant)),
                    None => {}
                }
            }
        }
    }
}

/// A request in pages; refused if it is empty or not within the namespace.
fn request(
    time_ns: u64,
    op: Op,
    offset_bytes: u64,
    length_bytes: u64,
    page_shift: u32,
    pages: u64,
    token: u64,
) -> Result<Request, FtlError> {
    if length_bytes == 0 && matches!(op, Op::Read | Op::Write) {
        return invalid("length", format!("the request at byte {offset_bytes} has no length"));
    }
    let span = PageSpan::within(offset_bytes, length_bytes, page_shift, pages)?;
    Ok(Request {
        time_ns,
        first: span.first,
        end: span.end,
        bytes: u32::try_from(length_bytes).unwrap_or(u32::MAX),
        op,
        partial_first: span.partial_first,
        partial_last: span.partial_last,
        token,
    })
}

/// Prefetches the data for requests a little further down the input.
#[inline]
fn prefetch<M: Mapping>(mapping: &M, tenant: TenantId, queue: &TenantQueue) {
    if let Some(request) = queue.input.get(PREFETCH_REQUEST_AHEAD) {
        prefetch_line(request);
    }
    if let Some(request) = queue.input.get(PREFETCH_AHEAD) {
        if request.end > request.first {
            mapping.prefetch(tenant, request.first);
        }
    }
    if let Some(request) = queue.input.get(PREFETCH_OVERWRITE_AHEAD) {
        if request.end > request.first {
            mapping.prefetch_overwrite(tenant, request.first);
        }
    }
}
