//! One disk: an arm, a buffer, and a queue of commands, of which the nearest is served first.
//!
//! A discrete-event model: commands are added at a time, [`Disk::next_ns`] returns when the arm will be free, and
//! [`Disk::step`] has to be called then. The end of a command is reported as soon as it is known.

use std::collections::VecDeque;

use crate::convert::whole;
use crate::disk::buffer::{BufferLookup, Dirty, ReadAhead, WriteCache};
use crate::disk::mechanics::{Mechanics, Place};
use crate::disk::parameters::DiskParameters;
use crate::error::FtlError;

/// A command is served next once this many others were preferred to it, so that none starves.
const MOST_PASSED_OVER: u32 = 128;
/// Maximum written at once from the cache: reads wait no longer than for that.
const DESTAGE_BYTES: u64 = 1 << 20;

/// A command of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Bytes to the host.
    Read,
    /// Bytes from the host.
    Write,
    /// Writes cached data to the media.
    Flush,
}

/// A command.
#[derive(Debug, Clone, Copy)]
pub struct Command {
    /// Kind of the command.
    pub task: Task,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// Identifier chosen by the caller.
    pub token: u64,
    /// Its tenant.
    pub tenant: u16,
}

/// Output of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// A command is done, now or later.
    Done {
        /// Identifier of the command.
        token: u64,
        /// Time of completion.
        at_ns: u64,
    },
    /// Operation of the arm for a tenant.
    Spent {
        /// Tenant of the command.
        tenant: u16,
        /// Duration.
        ns: u64,
    },
}

/// A command that needs the arm.
#[derive(Debug, Clone, Copy)]
struct Pending {
    command: Command,
    ready_ns: u64,
    /// When the interface is done with it.
    sent_ns: u64,
    place: Place,
    passed_over: u32,
}

/// Present operation of the arm.
#[derive(Debug, Clone, Copy)]
struct Operation {
    end_ns: u64,
    work: Work,
}

#[derive(Debug, Clone, Copy)]
enum Work {
    Read { start: u64, end: u64 },
    Write,
    Destage { bytes: u64, number: u64 },
}

/// A candidate for the arm's next operation.
#[derive(Debug, Clone, Copy)]
enum Choice {
    Command(usize),
    Dirty(usize),
}

/// One disk.
#[derive(Debug, Clone)]
pub struct Disk {
    mechanics: Mechanics,
    cylinder: f64,
    /// The byte under the head at a time, if it follows the data that was read before.
    following: Option<(u64, u64)>,
    interface_free_ns: u64,
    operation: Option<Operation>,
    pending: Vec<Pending>,
    /// Writes for which the cache has no room.
    held_up: VecDeque<Pending>,
    /// Tokens, and the last write each waits for.
    flushes: Vec<(u64, u64)>,
    read_ahead: ReadAhead,
    cache: WriteCache,
    writes: u64,
    busy_ns: u64,
}

impl Disk {
    /// An idle disk. Refuses parameters that make none.
    pub fn new(parameters: DiskParameters) -> Result<Self, FtlError> {
        let mechanics = Mechanics::new(parameters)?;
        let p = &parameters;
        Ok(Self {
            cylinder: 0.0,
            following: None,
            interface_free_ns: 0,
            operation: None,
            pending: Vec::with_capacity(p.queue_depth as usize),
            held_up: VecDeque::new(),
            flushes: Vec::new(),
            read_ahead: ReadAhead::new(p.segment_bytes, p.segments as usize),
            cache: WriteCache::new(p.write_cache_bytes, p.write_cache_places as usize),
            writes: 0,
            busy_ns: 0,
            mechanics,
        })
    }

    /// Its mechanics.
    #[must_use]
    pub fn mechanics(&self) -> &Mechanics {
        &self.mechanics
    }

    /// Busy time of the arm, including the present operation.
    #[must_use]
    pub fn busy_ns(&self) -> u64 {
        self.busy_ns
    }

    /// When the arm is free; None when it is.
    #[must_use]
    pub fn next_ns(&self) -> Option<u64> {
        self.operation.map(|operation| operation.end_ns)
    }

    /// Takes a command; `offset + length` lies on the disk.
    pub fn accept(&mut self, command: Command, now_ns: u64, outputs: &mut Vec<Output>) {
        let p = self.mechanics.parameters();
        let ready_ns = now_ns.max(self.interface_free_ns) + p.command_ns;
        let sent_ns = ready_ns + whole(command.length as f64 * 1e9 / p.interface_bytes_s as f64);
        self.interface_free_ns = sent_ns;
        let place = self.mechanics.place(command.offset);
        let pending = Pending { command, ready_ns, sent_ns, place, passed_over: 0 };
        match command.task {
            Task::Read => {
                let idle = self.operation.is_none();
                if !self.find(&pending, now_ns, idle, outputs) {
                    self.pending.push(pending);
                }
            }
            Task::Write => {
                self.read_ahead.overwrite(command.offset, command.length);
                if !self.cache.is_on() {
                    self.pending.push(pending);
                } else if !self.held_up.is_empty() || !self.cache_write(&pending, ready_ns, outputs) {
                    self.held_up.push_back(pending);
                }
            }
            Task::Flush => {
                self.flushes.push((command.token, self.writes));
                self.end_flushes(ready_ns, outputs);
            }
        }
        if self.operation.is_none() {
            self.begin(now_ns, outputs);
        }
    }

    /// Completes the operation of the arm. To be called at [`Disk::next_ns`].
    pub fn step(&mut self, now_ns: u64, outputs: &mut Vec<Output>) {
        let Some(operation) = self.operation.take() else { return };
        match operation.work {
            Work::Read { start, end } => self.read_ahead.follow(start, end, now_ns),
            Work::Write => {}
            Work::Destage { bytes, .. } => {
                self.cache.written(bytes);
                while let Some(first) = self.held_up.front().copied() {
                    if !self.cache_write(&first, now_ns, outputs) {
                        break;
                    }
                    self.held_up.pop_front();
                }
                self.end_flushes(now_ns, outputs);
            }
        }
        self.begin(now_ns, outputs);
    }

    /// Serves a read from the buffer or by continuing to read ahead; false if neither is possible.
    fn find(&mut self, pending: &Pending, now_ns: u64, idle: bool, outputs: &mut Vec<Output>) -> bool {
        let Command { offset, length, token, tenant, .. } = pending.command;
        let at_ns = pending.sent_ns.max(now_ns);
        if self.cache.holds(offset, length) || self.read_ahead.has(offset, length) {
            outputs.push(Output::Done { token, at_ns });
            return true;
        }
        if !idle {
            return false;
        }
        let rate = self.mechanics.rate_bytes_ns(self.read_ahead.stream_at().unwrap_or(offset));
        match self.read_ahead.find(offset, length, now_ns, rate) {
            BufferLookup::All => outputs.push(Output::Done { token, at_ns }),
            BufferLookup::Coming(bytes) => {
                let coming_ns = whole((bytes as f64 / rate).ceil());
                let end_ns = now_ns + coming_ns;
                self.occupy(end_ns, coming_ns, tenant, Work::Read { start: offset, end: offset + length }, outputs);
                self.arrive_at(offset + length, end_ns);
                outputs.push(Output::Done { token, at_ns: end_ns.max(at_ns) });
            }
            BufferLookup::Nothing => return false,
        }
        true
    }

    fn cache_write(&mut self, pending: &Pending, now_ns: u64, outputs: &mut Vec<Output>) -> bool {
        let Command { offset, length, token, tenant, .. } = pending.command;
        let sent_ns = pending.sent_ns.max(now_ns);
        self.writes += 1;
        let (number, place) = (self.writes, pending.place);
        let end = offset + length;
        let taken =
            self.cache.put(Dirty { start: offset, end, ready_ns: sent_ns, number, tenant, passed_over: 0, place });
        if taken {
            outputs.push(Output::Done { token, at_ns: sent_ns });
        }
        taken
    }

    fn end_flushes(&mut self, now_ns: u64, outputs: &mut Vec<Output>) {
        if self.flushes.is_empty() {
            return;
        }
        let under_way = match self.operation.map(|operation| operation.work) {
            Some(Work::Destage { number, .. }) => Some(number),
            _ => None,
        };
        let oldest = self.cache.dirty.iter().map(|dirty| dirty.number).chain(under_way).min().unwrap_or(u64::MAX);
        self.flushes.retain(|&(token, last)| {
            let waits = oldest <= last;
            if !waits {
                outputs.push(Output::Done { token, at_ns: now_ns });
            }
            waits
        });
    }

    /// Starts the next operation of the arm, if there is any.
    fn begin(&mut self, now_ns: u64, outputs: &mut Vec<Output>) {
        let mut index = 0;
        while index < self.pending.len() {
            let pending = self.pending[index];
            if pending.command.task == Task::Read && self.find(&pending, now_ns, true, outputs) {
                self.pending.remove(index);
                if self.operation.is_some() {
                    return;
                }
            } else {
                index += 1;
            }
        }
        let Some((choice, start_ns, position_ns)) = self.nearest(now_ns) else { return };
        let rate = self.mechanics.rate_bytes_ns(self.read_ahead.stream_at().unwrap_or(0));
        self.read_ahead.stop(now_ns, rate);
        match choice {
            Choice::Command(index) => {
                let Pending { command, sent_ns, .. } = self.pending.remove(index);
                let Command { offset, length, token, tenant, .. } = command;
                let end_ns = start_ns + position_ns + self.mechanics.transfer_ns(offset, length);
                let work = match command.task {
                    Task::Read => Work::Read { start: offset, end: offset + length },
                    _ => Work::Write,
                };
                self.occupy(end_ns, end_ns - start_ns, tenant, work, outputs);
                self.arrive_at(offset + length, end_ns);
                outputs.push(Output::Done { token, at_ns: end_ns.max(sent_ns) });
            }
            Choice::Dirty(index) => {
                let dirty = self.cache.dirty[index];
                let bytes = (dirty.end - dirty.start).min(DESTAGE_BYTES);
                let end = dirty.start + bytes;
                if end == dirty.end {
                    self.cache.dirty.remove(index);
                } else {
                    let place = self.mechanics.place(end);
                    let rest = &mut self.cache.dirty[index];
                    (rest.start, rest.place) = (end, place);
                }
                let end_ns = start_ns + position_ns + self.mechanics.transfer_ns(dirty.start, bytes);
                let work = Work::Destage { bytes, number: dirty.number };
                self.occupy(end_ns, end_ns - start_ns, dirty.tenant, work, outputs);
                self.arrive_at(end, end_ns);
            }
        }
    }

    fn occupy(&mut self, end_ns: u64, ns: u64, tenant: u16, work: Work, outputs: &mut Vec<Output>) {
        self.operation = Some(Operation { end_ns, work });
        self.busy_ns += ns;
        outputs.push(Output::Spent { tenant, ns });
    }

    fn arrive_at(&mut self, offset: u64, at_ns: u64) {
        let last = self.mechanics.parameters().capacity_bytes - 1;
        self.cylinder = self.mechanics.place(offset.min(last)).cylinder;
        self.following = Some((offset, at_ns));
    }

    /// The candidate that the arm reaches first: the command or the cached write, its start, and seek and rotation.
    /// Cached writes are served if no command waits, or if a request waits for them.
    fn nearest(&mut self, now_ns: u64) -> Option<(Choice, u64, u64)> {
        let depth = self.mechanics.parameters().queue_depth as usize;
        let commands = self.pending.len().min(depth);
        let writes = if commands == 0 || !self.held_up.is_empty() || !self.flushes.is_empty() {
            self.cache.dirty.len()
        } else {
            0
        };
        let mut best: Option<(Choice, u64, u64)> = None;
        let mut consider = |choice: Choice, ready_ns: u64, offset: u64, place: Place, write: bool, overdue: bool| {
            let start_ns = now_ns.max(ready_ns);
            let position_ns = if self.following == Some((offset, start_ns)) {
                0
            } else {
                self.mechanics.position_ns(self.cylinder, place, write, start_ns)
            };
            let nearer = best.is_none_or(|(_, start, position)| start_ns + position_ns < start + position);
            if nearer || overdue {
                best = Some((choice, start_ns, position_ns));
            }
            overdue
        };
        'all: {
            for (index, pending) in self.pending[..commands].iter().enumerate() {
                let Pending { command, ready_ns, place, passed_over, .. } = *pending;
                let write = command.task == Task::Write;
                let overdue = passed_over >= MOST_PASSED_OVER;
                if consider(Choice::Command(index), ready_ns, command.offset, place, write, overdue) {
                    break 'all;
                }
            }
            for (index, dirty) in self.cache.dirty[..writes].iter().enumerate() {
                let overdue = dirty.passed_over >= MOST_PASSED_OVER;
                if consider(Choice::Dirty(index), dirty.ready_ns, dirty.start, dirty.place, true, overdue) {
                    break 'all;
                }
            }
        }
        if best.is_some() {
            self.pending[..commands].iter_mut().for_each(|pending| pending.passed_over += 1);
            self.cache.dirty[..writes].iter_mut().for_each(|dirty| dirty.passed_over += 1);
        }
        best
    }
}
