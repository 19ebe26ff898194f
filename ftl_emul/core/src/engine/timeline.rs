//! Virtual time: dies and channels as resources, each busy until some moment.

use serde::{Deserialize, Serialize};

use crate::geometry::{Geometry, NandTiming};
use crate::nand::Nand;

/// What GC costs in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TimingModel {
    /// A copied page costs one program, an erase nothing (Kim, Lee and Noh, FAST '15, section 4.1).
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
}

impl PageCosts {
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
        Self { transfer_ns: timing.transfer_ns, program_ns, read_ns: timing.read_ns, copy_ns, across_ns, erase_ns }
    }
}

/// The dies and channels of one drive.
///
/// Programs take their channel when they are issued and their die after that. Reads take their die when they are
/// issued, and their channel only once the page is in the die's register: the engine calls [`Timeline::transfer_out`]
/// at that moment, so that a channel is never reserved ahead of its use.
#[derive(Debug)]
pub struct Timeline {
    /// The present, in nanoseconds since the start.
    pub now: u64,
    costs: PageCosts,
    dies_per_channel: u32,
    dies: Vec<u64>,
    channels: Vec<u64>,
    /// When the page operation being issued will be done: programs, or the die's part of a read.
    pub finish: u64,
    /// Die and channel time that the operations issued since the last [`Timeline::begin`] take.
    pub device_ns: u64,
    /// The part of it that GC, merges, reclaim, wear levelling and work on the map take.
    pub gc_ns: u64,
}

impl Timeline {
    /// An idle drive at time 0.
    #[must_use]
    pub fn new(geometry: &Geometry, costs: PageCosts) -> Self {
        Self {
            now: 0,
            costs,
            dies_per_channel: geometry.dies_per_channel,
            dies: vec![0; geometry.dies() as usize],
            channels: vec![0; geometry.channels as usize],
            finish: 0,
            device_ns: 0,
            gc_ns: 0,
        }
    }

    /// Starts the account of one page operation, issued now.
    #[inline]
    pub fn begin(&mut self) {
        self.finish = self.now;
        self.device_ns = 0;
        self.gc_ns = 0;
    }

    /// Moves a page that was read from the die out over its channel; returns when it has arrived.
    #[inline]
    pub fn transfer_out(&mut self, die: u32) -> u64 {
        let channel = &mut self.channels[(die / self.dies_per_channel) as usize];
        *channel = self.now.max(*channel) + self.costs.transfer_ns;
        *channel
    }

    /// Time of a command that touches no flash.
    #[must_use]
    pub fn command_ns(&self) -> u64 {
        self.costs.transfer_ns.max(1)
    }

    #[inline]
    fn occupy(&mut self, die: u32, from: u64, duration: u64) -> u64 {
        let until = &mut self.dies[die as usize];
        *until = from.max(*until) + duration;
        self.device_ns += duration;
        *until
    }
}

impl Nand for Timeline {
    #[inline]
    fn is_idle(&self, die: u32) -> bool {
        self.dies[die as usize] <= self.now
    }

    #[inline]
    fn busy_until(&self, die: u32) -> u64 {
        self.dies[die as usize]
    }

    #[inline]
    fn program(&mut self, die: u32) {
        let channel = &mut self.channels[(die / self.dies_per_channel) as usize];
        // A read-modify-write has its old page only at `finish`.
        *channel = self.finish.max(*channel) + self.costs.transfer_ns;
        let transferred = *channel;
        self.device_ns += self.costs.transfer_ns;
        self.finish = self.occupy(die, transferred, self.costs.program_ns);
    }

    #[inline]
    fn read(&mut self, die: u32) {
        // Where the page lives may have had to be read from flash first.
        self.finish = self.occupy(die, self.finish, self.costs.read_ns);
        self.device_ns += self.costs.transfer_ns;
    }

    #[inline]
    fn read_for_rewrite(&mut self, die: u32) {
        self.read(die);
        self.finish += self.costs.transfer_ns;
    }

    #[inline]
    fn copy(&mut self, die: u32, pages: u32) {
        let duration = u64::from(pages) * self.costs.copy_ns;
        self.occupy(die, self.now, duration);
        self.gc_ns += duration;
    }

    fn copy_across(&mut self, from: u32, to: u32, pages: u32) {
        if from == to {
            return self.copy(from, pages);
        }
        // Page follows page: source, channels and target work at the same time.
        let pages = u64::from(pages);
        let (read_ns, transfer_ns, program_ns) = self.costs.across_ns;
        self.occupy(from, self.now, pages * read_ns);
        for die in [from, to] {
            let channel = &mut self.channels[(die / self.dies_per_channel) as usize];
            *channel = self.now.max(*channel) + pages * transfer_ns;
        }
        self.occupy(to, self.now + read_ns + 2 * transfer_ns, pages * program_ns);
        self.device_ns += 2 * pages * transfer_ns;
        self.gc_ns += pages * (read_ns + 2 * transfer_ns + program_ns);
    }

    #[inline]
    fn erase(&mut self, die: u32) {
        self.occupy(die, self.now, self.costs.erase_ns);
        self.gc_ns += self.costs.erase_ns;
    }

    #[inline]
    fn map_read(&mut self, die: u32) {
        self.finish = self.occupy(die, self.finish, self.costs.read_ns) + self.costs.transfer_ns;
        self.device_ns += self.costs.transfer_ns;
        self.gc_ns += self.costs.read_ns + self.costs.transfer_ns;
    }

    #[inline]
    fn map_program(&mut self, die: u32) {
        self.program(die);
        self.gc_ns += self.costs.transfer_ns + self.costs.program_ns;
    }

    #[inline]
    fn overhead_ns(&self) -> u64 {
        self.gc_ns
    }
}
