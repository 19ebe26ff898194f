//! Virtual time: dies and channels as resources, each busy until some moment.

use fixedbitset::FixedBitSet;
use serde::{Deserialize, Serialize};

use crate::address::DieId;
use crate::convert::exact;
use crate::engine::die_times::{DieTimes, NOT_KNOWN};
use crate::geometry::{Geometry, NandTiming};
use crate::nand::Nand;

/// Time model of GC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TimingModel {
    /// A copied page costs one program, an erase is free (Kim, Lee and Noh, FAST '15, section 4.1).
    Paper,
    /// A copied page costs a read and a program, and two transfers unless copied back within the die; an erase costs
    /// its time.
    Full {
        /// Copies stay inside the die.
        copyback: bool,
    },
}

/// Nanoseconds of one page operation, derived from geometry, latencies and timing model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageCosts {
    transfer_ns: u64,
    program_ns: u64,
    read_ns: u64,
    copy_ns: u64,
    /// The parts of a copy from die to die: on the source, on each channel, on the target.
    across_ns: (u64, u64, u64),
    erase_ns: u64,
    suspend_ns: u64,
}

/// GC done for a pool whose time has not passed yet.
#[derive(Debug, Clone, Copy, Default)]
struct DeferredWork {
    ns: u64,
    /// Host pages that pay it off, a step each.
    writes: u32,
}

impl PageCosts {
    /// GC of a block in which each page is valid.
    pub(super) fn longest_pass_ns(&self, pages_per_block: u32) -> u64 {
        u64::from(pages_per_block) * self.copy_ns + self.erase_ns
    }

    /// Costs on a die of `geometry`.
    #[must_use]
    pub fn new(geometry: &Geometry, timing: &NandTiming, model: TimingModel) -> Self {
        let program_ns = timing.program_ns / u64::from(geometry.planes);
        let (copy_ns, across_ns, erase_ns) = match model {
            TimingModel::Paper => (program_ns, (0, 0, program_ns), 0),
            TimingModel::Full { copyback } => {
                let transfers = if copyback { 0 } else { 2 * timing.transfer_ns };
                let across_ns = (timing.read_ns, timing.transfer_ns, program_ns);
                (timing.read_ns + program_ns + transfers, across_ns, timing.erase_ns)
            }
        };
        let NandTiming { read_ns, transfer_ns, suspend_ns, .. } = *timing;
        Self { transfer_ns, program_ns, read_ns, copy_ns, across_ns, erase_ns, suspend_ns }
    }
}

/// The dies and channels of one drive.
///
/// Programs take their channel when they are issued and their die after that. Reads take their die when they are
/// issued, and their channel only once the page is in the die's register: the engine calls [`Timeline::transfer_out`]
/// at that moment, so that a channel is never reserved ahead of its use.
#[derive(Debug)]
pub struct Timeline {
    costs: PageCosts,
    dies_per_channel: u32,
    pub(super) dies: DieTimes,
    all_dies: FixedBitSet,
    channels: Vec<u64>,
    /// When the page operation being issued will be done: programs, or the die's part of a read.
    pub finish: u64,
    /// Die and channel time that the operations issued since the last [`Timeline::begin`] take.
    pub device_ns: u64,
    /// The part of it that GC, merges, reclaim and work on the map take.
    pub gc_ns: u64,
    /// Copies and erases are being deferred; how long they take.
    deferring_ns: Option<u64>,
    /// By pool.
    deferred: Vec<DeferredWork>,
    /// By die: copies and erases for moves of blocks that were not done yet.
    background_ns: Vec<u64>,
    /// Die time spent on such work so far.
    pub background_done_ns: u64,
    /// By die: the end of its last step of such work.
    background_until: Vec<u64>,
    /// The latest of these.
    last_background_end: u64,
    /// Time that the page operation being issued waits for such work on its die.
    pub behind_background_ns: u64,
    /// The die of the page operation being issued, if it has one.
    pub die: Option<DieId>,
}

impl Timeline {
    /// An idle drive at time 0.
    #[must_use]
    pub fn new(geometry: &Geometry, costs: PageCosts) -> Self {
        Self {
            costs,
            dies_per_channel: geometry.dies_per_channel,
            dies: DieTimes::new(geometry.dies()),
            all_dies: (0..geometry.dies() as usize).collect(),
            channels: vec![0; geometry.channels as usize],
            finish: 0,
            device_ns: 0,
            gc_ns: 0,
            deferring_ns: None,
            deferred: Vec::new(),
            background_ns: vec![0; geometry.dies() as usize],
            background_done_ns: 0,
            background_until: vec![0; geometry.dies() as usize],
            last_background_end: 0,
            behind_background_ns: 0,
            die: None,
        }
    }

    /// The present, in nanoseconds since the start.
    #[inline]
    #[must_use]
    pub fn now(&self) -> u64 {
        self.dies.now()
    }

    /// Lets time pass.
    #[inline]
    pub fn advance_to(&mut self, now: u64) {
        self.dies.advance_to(now);
    }

    /// Starts the account of one page operation, issued now.
    #[inline]
    pub fn begin(&mut self) {
        self.finish = self.now();
        self.device_ns = 0;
        self.gc_ns = 0;
        self.behind_background_ns = 0;
        self.die = None;
    }

    /// Keeps a page that is being read in the register of its die, until it is moved out.
    #[inline]
    pub fn hold_in_register(&mut self, die: DieId) {
        self.dies.hold_register(die, NOT_KNOWN);
    }

    /// Moves a page that was read from the die out over its channel; returns when it has arrived.
    #[inline]
    pub fn transfer_out(&mut self, die: DieId) -> u64 {
        let channel = &mut self.channels[(die.0 / self.dies_per_channel) as usize];
        *channel = self.dies.now().max(*channel) + self.costs.transfer_ns;
        self.dies.hold_register(die, *channel);
        *channel
    }

    /// True when dies can suspend programs and erases for reads.
    #[inline]
    #[must_use]
    pub fn can_suspend(&self) -> bool {
        self.costs.suspend_ns > 0
    }

    /// True when a die is at work that it can suspend for a read.
    #[inline]
    #[must_use]
    pub fn is_suspendable(&self, die: DieId) -> bool {
        self.can_suspend() && self.dies.is_register_empty(die)
    }

    /// Dies that may be able to read a page now: the others are busy and cannot suspend anything.
    #[inline]
    pub(super) fn dies_that_may_read(&self) -> &FixedBitSet {
        if self.can_suspend() { &self.all_dies } else { self.dies.idle() }
    }

    /// Time of dies and channels that reading a page takes.
    #[inline]
    #[must_use]
    pub fn read_ns(&self) -> u64 {
        self.costs.read_ns + self.costs.transfer_ns
    }

    /// Time of a command that touches no flash.
    #[must_use]
    pub fn command_ns(&self) -> u64 {
        self.costs.transfer_ns.max(1)
    }

    /// Die time that moves of blocks still owe.
    #[must_use]
    pub fn background_ns(&self) -> u64 {
        self.background_ns.iter().sum()
    }

    /// Longest time for which such work blocks a die at a time.
    #[must_use]
    pub fn background_step_ns(&self) -> u64 {
        (2 * self.costs.copy_ns).max(self.costs.erase_ns).max(1)
    }

    /// True while a die is at such work.
    #[inline]
    #[must_use]
    pub fn is_at_background_work(&self) -> bool {
        self.last_background_end > self.now()
    }

    /// Remaining time of such work on a die.
    #[inline]
    #[must_use]
    pub fn background_left_ns(&self, die: DieId) -> u64 {
        if self.is_at_background_work() { self.background_until[die.index()].saturating_sub(self.now()) } else { 0 }
    }

    /// The share of dies that are at such work.
    #[must_use]
    pub fn share_at_background_work(&self) -> f64 {
        let dies = self.background_until.iter().filter(|&&until| until > self.now()).count();
        dies as f64 / self.background_until.len() as f64
    }

    /// Additional time that such work makes a read wait for a die: until its end, and then for earlier reads that the
    /// die would have completed in that time.
    #[inline]
    #[must_use]
    pub fn delay_by_background_ns(&self, die: DieId, reads_before: u64) -> u64 {
        match self.background_left_ns(die) {
            0 => 0,
            left_ns => {
                let past_ns = self.background_step_ns().saturating_sub(left_ns);
                left_ns + past_ns.min(reads_before * self.read_ns())
            }
        }
    }

    /// Does one step of background work on each idle die that has some, if `may_work` allows its duration.
    pub fn work_in_background(&mut self, mut may_work: impl FnMut(DieId, u64) -> bool) {
        let (now, step_ns) = (self.now(), self.background_step_ns());
        for die in 0..self.background_ns.len() {
            let ns = self.background_ns[die].min(step_ns);
            let id = DieId(exact::<u32>(die));
            if ns == 0 || self.dies.busy_until(id) > now || !may_work(id, ns) {
                continue;
            }
            self.dies.set_busy_until(id, now + ns);
            self.background_until[die] = now + ns;
            self.last_background_end = self.last_background_end.max(now + ns);
            self.background_ns[die] -= ns;
            self.background_done_ns += ns;
        }
    }

    /// Time of GC on one die, or deferred.
    #[inline]
    fn collect(&mut self, die: DieId, duration: u64) {
        match &mut self.deferring_ns {
            Some(deferred_ns) => *deferred_ns += duration,
            None => {
                self.occupy(die, self.now(), duration);
                self.gc_ns += duration;
            }
        }
    }

    /// A read is executed before the present operation of the die, which is suspended.
    fn suspend(&mut self, die: DieId, duration: u64) -> u64 {
        self.dies.set_busy_until(die, self.dies.busy_until(die) + duration);
        let now = self.now();
        let background = &mut self.background_until[die.index()];
        if *background > now {
            *background += duration;
            self.last_background_end = self.last_background_end.max(*background);
        }
        self.die = Some(die);
        self.device_ns += duration;
        self.finish + duration
    }

    #[inline]
    fn occupy(&mut self, die: DieId, from: u64, duration: u64) -> u64 {
        self.behind_background_ns = self.behind_background_ns.max(self.background_left_ns(die));
        let until = from.max(self.dies.busy_until(die)) + duration;
        self.dies.set_busy_until(die, until);
        self.die = Some(die);
        self.device_ns += duration;
        until
    }
}

impl Nand for Timeline {
    #[inline]
    fn is_idle(&self, die: DieId) -> bool {
        self.dies.is_idle(die)
    }

    #[inline]
    fn busy_until(&self, die: DieId) -> u64 {
        self.dies.busy_until(die)
    }

    #[inline]
    fn program(&mut self, die: DieId) {
        let channel = &mut self.channels[(die.0 / self.dies_per_channel) as usize];
        // A read-modify-write has its old page only at `finish`.
        *channel = self.finish.max(*channel) + self.costs.transfer_ns;
        // The die's register takes the page only once the die is free.
        let loaded = (*channel).max(self.dies.busy_until(die) + self.costs.transfer_ns);
        self.device_ns += self.costs.transfer_ns;
        self.finish = self.occupy(die, loaded, self.costs.program_ns);
    }

    #[inline]
    fn read(&mut self, die: DieId) {
        // The location of the page may first have to be read from flash.
        self.finish = match self.costs.suspend_ns {
            0 => self.occupy(die, self.finish, self.costs.read_ns),
            _ if self.dies.busy_until(die) <= self.finish => self.occupy(die, self.finish, self.costs.read_ns),
            suspend_ns => self.suspend(die, suspend_ns + self.costs.read_ns),
        };
        self.device_ns += self.costs.transfer_ns;
    }

    #[inline]
    fn read_for_rewrite(&mut self, die: DieId) {
        self.read(die);
        self.finish += self.costs.transfer_ns;
    }

    #[inline]
    fn copy(&mut self, die: DieId, pages: u32) {
        self.collect(die, u64::from(pages) * self.costs.copy_ns);
    }

    fn copy_across(&mut self, from: DieId, to: DieId, pages: u32) {
        if from == to {
            return self.copy(from, pages);
        }
        // Page follows page: source, channels and target work at the same time.
        let pages = u64::from(pages);
        let (read_ns, transfer_ns, program_ns) = self.costs.across_ns;
        self.occupy(from, self.now(), pages * read_ns);
        for die in [from, to] {
            let channel = &mut self.channels[(die.0 / self.dies_per_channel) as usize];
            *channel = self.dies.now().max(*channel) + pages * transfer_ns;
        }
        self.occupy(to, self.now() + read_ns + 2 * transfer_ns, pages * program_ns);
        self.device_ns += 2 * pages * transfer_ns;
        self.gc_ns += pages * (read_ns + 2 * transfer_ns + program_ns);
    }

    #[inline]
    fn erase(&mut self, die: DieId) {
        self.collect(die, self.costs.erase_ns);
    }

    #[inline]
    fn map_read(&mut self, die: DieId) {
        self.finish = self.occupy(die, self.finish, self.costs.read_ns) + self.costs.transfer_ns;
        self.device_ns += self.costs.transfer_ns;
        self.gc_ns += self.costs.read_ns + self.costs.transfer_ns;
    }

    #[inline]
    fn map_program(&mut self, die: DieId) {
        self.program(die);
        self.gc_ns += self.costs.transfer_ns + self.costs.program_ns;
    }

    #[inline]
    fn overhead_ns(&self) -> u64 {
        self.gc_ns
    }

    fn begin_deferring(&mut self) {
        self.deferring_ns = Some(0);
    }

    fn defer_to_writes(&mut self, pool: usize, writes: u32) {
        if self.deferred.len() <= pool {
            self.deferred.resize(pool + 1, DeferredWork::default());
        }
        let work = &mut self.deferred[pool];
        work.ns += self.deferring_ns.take().unwrap_or(0);
        work.writes = writes;
    }

    fn defer_to_background(&mut self, die: DieId) {
        self.background_ns[die.index()] += self.deferring_ns.take().unwrap_or(0);
    }

    #[inline]
    fn run_deferred_step(&mut self, pool: usize, die: DieId) {
        let Some(work) = self.deferred.get_mut(pool).filter(|work| work.ns > 0) else { return };
        let step_ns = work.ns / u64::from(work.writes.max(1));
        work.ns -= step_ns;
        work.writes = work.writes.saturating_sub(1);
        self.occupy(die, self.now(), step_ns);
        self.gc_ns += step_ns;
    }
}
