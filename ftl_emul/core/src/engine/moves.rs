//! Moves of blocks between tenants, in the background: GC frees the blocks step by step, within a budget. It limits the
//! share of each die's time for moves while requests are outstanding, and always the share of each tenant's time that
//! they cost: a step takes many times as long as a read, which may arrive during one.

use crate::address::DieId;
use crate::convert::whole;
use crate::engine::queue::TenantQueue;
use crate::engine::{Engine, Event, PageCosts, Timeline};
use crate::error::{FtlError, invalid};
use crate::geometry::Geometry;
use crate::mapping::Mapping;

/// Share of each die's time that moves may take while requests are outstanding, unless another is set.
pub const DEFAULT_MOVE_BUDGET: f64 = 0.1;
/// The budget holds over any period of this length, including time that was saved for bursts.
const BUDGET_WINDOW_S: f64 = 10.0;
/// Part of the budget that may be saved while no blocks are moved.
const BURST_SHARE: f64 = 0.05;

/// 64 victims free a block even where 98 % of their pages are valid.
const MOST_GC_PASSES: u64 = 64;

/// Die time that moves may take, and delays of requests that they may cause. Each die has a budget of its own: requests
/// that are spread over all dies are as fast as the slowest of them, so that work on one die can cost several times its
/// share of the device.
#[derive(Debug, Clone)]
pub(super) struct MoveBudget {
    share: f64,
    /// By die.
    saved_ns: Vec<f64>,
    counted_ns: u64,
    /// No work is started before this: moves have delayed a tenant for longer than its share of the time allows.
    repaid_ns: u64,
    /// Since when nothing can be issued, as no die is free, and the share of dies that are at moves.
    stopped: Option<(u64, f64)>,
    /// No work is started while the dies owe more time than this.
    max_background_ns: u64,
    /// Blocks moved since the start.
    pub moved_blocks: u64,
    /// Victims that a step may collect: twice as many after each that freed no block. Otherwise the giver's own writes
    /// use up the freed pages. The time is still charged to the budget.
    gc_passes: u64,
    /// Whether the agenda has an event for a step.
    pub step_scheduled: bool,
}

impl MoveBudget {
    pub fn new(geometry: &Geometry, costs: PageCosts) -> Self {
        Self {
            share: DEFAULT_MOVE_BUDGET,
            saved_ns: vec![0.0; geometry.dies() as usize],
            counted_ns: 0,
            repaid_ns: 0,
            stopped: None,
            max_background_ns: u64::from(geometry.dies() - 1) * costs.longest_pass_ns(geometry.pages_per_block),
            moved_blocks: 0,
            gc_passes: 1,
            step_scheduled: false,
        }
    }

    /// Each die earns its share of the time since the last call, and saves up a step at least.
    fn accrue(&mut self, now: u64, step_ns: u64) {
        let burst_ns = (self.share * BURST_SHARE * BUDGET_WINDOW_S * 1e9).max(step_ns as f64);
        let earned_ns = (now - self.counted_ns) as f64 * self.share * (1.0 - BURST_SHARE);
        for saved_ns in &mut self.saved_ns {
            *saved_ns = (*saved_ns + earned_ns).min(burst_ns);
        }
        self.counted_ns = now;
    }

    /// Charges a tenant with the delay of one of its requests, which costs it the more of its time the fewer of them are
    /// in service.
    fn charge(&mut self, now: u64, queues: &mut [Option<TenantQueue>], tenant: u16, delay_ns: u64) {
        if delay_ns == 0 || self.share == 0.0 {
            return;
        }
        let Some(Some(queue)) = queues.get_mut(tenant as usize) else { return };
        let saved_ns = whole(BURST_SHARE * BUDGET_WINDOW_S * 1e9);
        let lost_ns = delay_ns as f64 / queue.in_service(now).max(1) as f64;
        let from_ns = queue.moves_repaid_ns.max(now.saturating_sub(saved_ns));
        queue.moves_repaid_ns = from_ns.saturating_add(whole(lost_ns / self.share));
        self.repaid_ns = self.repaid_ns.max(queue.moves_repaid_ns);
    }

    /// Records that no further operation can be issued now.
    pub fn line_stops(&mut self, timeline: &Timeline) {
        let by_moves = timeline.is_at_background_work() && timeline.dies.idle().is_clear();
        self.stopped = by_moves.then(|| (timeline.now(), timeline.share_at_background_work()));
    }

    /// Spends the time for a step on a die, if it has as much.
    fn spend(&mut self, die: DieId, ns: u64) -> bool {
        let saved_ns = &mut self.saved_ns[die.index()];
        let affordable = *saved_ns >= ns as f64;
        if affordable {
            *saved_ns -= ns as f64;
        }
        affordable
    }
}

/// State of moves of blocks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MoveStatus {
    /// Share of each die's time that they may take while requests are outstanding.
    pub budget: f64,
    /// Die time that moves have taken since the start.
    pub done_ns: u64,
    /// Die time of GC that has been decided on and is still to be done.
    pub owed_ns: u64,
    /// Blocks that have changed owners since the start.
    pub moved_blocks: u64,
}

impl Engine {
    /// State of moves of blocks.
    #[must_use]
    pub fn move_status(&self) -> MoveStatus {
        MoveStatus {
            budget: self.move_budget.share,
            done_ns: self.timeline.background_done_ns,
            owed_ns: self.timeline.background_ns(),
            moved_blocks: self.move_budget.moved_blocks,
        }
    }

    /// Sets the share of each die's time that moves may take while requests are outstanding, 0 to 1.
    pub fn set_move_budget(&mut self, share: f64) -> Result<(), FtlError> {
        if !(0.0..=1.0).contains(&share) {
            return invalid("move_budget", format!("{share} is not a share between 0 and 1"));
        }
        self.move_budget.share = share;
        Ok(())
    }

    /// Background work on its die delays a page of a tenant.
    pub(super) fn count_delay_by_moves(&mut self, tenant: u16, delay_ns: u64) {
        self.move_budget.charge(self.timeline.now(), &mut self.queues, tenant, delay_ns);
    }

    /// Pages waited for their turn while no die was free: because of moves in proportion to the dies that were at them.
    pub(super) fn count_delay_of_line(&mut self) {
        let Some((since_ns, share)) = self.move_budget.stopped.take() else { return };
        let now = self.timeline.now();
        let delay_ns = whole((now - since_ns) as f64 * share);
        for tenant in self.scheduler.waiting() {
            self.move_budget.charge(now, &mut self.queues, tenant, delay_ns);
        }
    }

    /// One step of pending moves, as far as idle dies and the budget allow.
    pub(super) fn step_moves<M: Mapping>(&mut self, mapping: &mut M) {
        if !mapping.moves_pending() && self.timeline.background_ns() == 0 {
            return;
        }
        let busy = self.in_flight > 0 || self.has_waiting_pages();
        let (budget, die_lines, queues) = (&mut self.move_budget, &mut self.die_lines, &mut self.queues);
        let now = self.timeline.now();
        budget.accrue(now, self.timeline.background_step_ns());
        self.timeline.work_in_background(|die, ns| {
            let starts = budget.repaid_ns <= now && (!busy || (die_lines.yields(die) && budget.spend(die, ns)));
            for tenant in die_lines.tenants(die).take_while(|_| starts) {
                budget.charge(now, queues, tenant, ns);
            }
            starts
        });
        let allowed = !busy || budget.share > 0.0;
        let owed_ns = self.timeline.background_ns();
        let mut going = owed_ns > 0;
        if mapping.moves_pending() && allowed && owed_ns <= budget.max_background_ns {
            self.timeline.begin();
            let passes = self.move_budget.gc_passes;
            let progress = mapping.advance_moves(passes, &mut self.timeline);
            self.move_budget.moved_blocks += progress.moved_blocks;
            let nothing_moved = progress.moved_blocks == 0 && progress.gc_passes == passes;
            self.move_budget.gc_passes = if nothing_moved { (2 * passes).min(MOST_GC_PASSES) } else { 1 };
            going |= progress.gc_passes > 0 || progress.moved_blocks > 0;
        }
        if going && !self.move_budget.step_scheduled {
            self.move_budget.step_scheduled = true;
            self.agenda.add(self.timeline.now() + self.timeline.background_step_ns(), Event::MoveStep);
        }
    }
}
