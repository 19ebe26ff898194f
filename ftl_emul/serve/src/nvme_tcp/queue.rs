//! A queue pair over one connection: commands that are outstanding, those that wait for data, for room or for a thread,
//! and the half of the connection that answers go out through.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use ftl_core::convert::exact;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::nvme_tcp::command::{Command, Completion, Status, Transfer};
use crate::nvme_tcp::io::{MAX_TRANSFER_BYTES, opcode};
use crate::nvme_tcp::pdu::{Fault, Format, HostData, IN_CAPSULE_BYTES};
use crate::outgoing::Outgoing;
use crate::polling::Polling;
use crate::request_memory::{Pool, Room, Taken};
use crate::threads::lock;

/// Maximum entries of a queue, CAP.MQES (one less, as it counts from 0).
pub const MAX_ENTRIES: u16 = 128;
/// Private memory of a connection for data of its commands in progress: that of the largest command. Commands that
/// transfer no more than a capsule may hold are not counted: the entries of the queue limit them.
const OWN_BYTES: usize = 2 * MAX_TRANSFER_BYTES;
/// Bytes of answers from which they are sent even if the reader has more to do.
const ANSWERS_BYTES: usize = 256 << 10;
/// Time after which a host that does not read answers is disconnected.
const STUCK: Duration = Duration::from_secs(10);

/// A command and the data that came with it.
#[derive(Debug)]
pub struct Work {
    /// The command.
    pub command: Command,
    /// Bytes that it transfers.
    pub transfer: Transfer,
    /// From the host.
    pub data: Vec<u8>,
    /// Whether the digest of its data was wrong.
    pub damaged: bool,
    /// The namespace whose part of the common memory it may use.
    pub namespace: Option<u32>,
    memory: Option<Taken>,
}

impl Work {
    /// A command, with the data that its capsule has brought along.
    pub fn new(command: Command, transfer: Transfer, data: Vec<u8>, namespace: Option<u32>) -> Self {
        Self { command, transfer, data, damaged: false, namespace, memory: None }
    }

    /// Reserves the memory that it needs; false if there is none now.
    fn has_room(&mut self, room: &Arc<Room>) -> bool {
        let bytes = self.transfer.from_host.max(self.transfer.to_host);
        if bytes <= exact::<usize>(IN_CAPSULE_BYTES) {
            return true;
        }
        // Compare reads as much as it is sent.
        let bytes = if self.command.opcode() == opcode::COMPARE { 2 * bytes } else { bytes };
        self.memory = room.try_take(bytes, self.namespace);
        self.memory.is_some()
    }

    /// Its data is still with the host.
    fn is_owed(&self) -> bool {
        self.data.len() < self.transfer.from_host
    }
}

/// When an answer is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// At once.
    Now,
    /// With others, before the connection is read again: see [`Incoming`].
    WithOthers,
}

#[derive(Debug, Default)]
struct State {
    id: u16,
    entries: u16,
    head: u16,
    /// The host has asked to do without SQHD (6.3, CATTR).
    no_flow_control: bool,
    outstanding: HashSet<u16>,
    /// By transfer tag, which is the identifier of the command. Data comes in order.
    incoming: HashMap<u16, Work>,
    /// Waiting for room.
    waiting: VecDeque<Work>,
    ready: VecDeque<Work>,
    idle: usize,
    closed: bool,
}

/// One queue pair.
#[derive(Debug)]
pub struct Queue {
    stream: TcpStream,
    /// Answers that are not sent yet.
    sending: Mutex<Outgoing>,
    format: OnceLock<Format>,
    state: Mutex<State>,
    more: Condvar,
    room: Arc<Room>,
    began: Instant,
    /// Whether the command Connect has been accepted.
    connected: AtomicBool,
    closed: AtomicBool,
}

impl Queue {
    /// The queue of a new connection, before it is known which it is to be.
    pub fn new(stream: TcpStream, pool: &Arc<Pool>) -> io::Result<Self> {
        stream.set_write_timeout(Some(STUCK))?;
        stream.set_nodelay(true)?;
        // Connect is the first command, and the only one until the size is known.
        let state = State { entries: 2, ..State::default() };
        Ok(Self {
            stream,
            sending: Mutex::default(),
            format: OnceLock::new(),
            state: Mutex::new(state),
            more: Condvar::new(),
            room: Room::new(pool, OWN_BYTES),
            began: Instant::now(),
            connected: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The connection, for its reader.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Layout of PDUs to the host.
    pub fn format(&self) -> Format {
        self.format.get().copied().unwrap_or_default()
    }

    /// Agrees on a format; false where that has been done.
    pub fn agree(&self, format: Format) -> bool {
        self.format.set(format).is_ok()
    }

    /// Whether the two have agreed.
    pub fn is_agreed(&self) -> bool {
        self.format.get().is_some()
    }

    /// Sets number and size of the queue, from the command Connect (6.3).
    pub fn set(&self, id: u16, entries: u16, no_flow_control: bool) {
        let mut state = self.state();
        // Connect itself was entry 0.
        (state.id, state.entries, state.no_flow_control) = (id, entries, no_flow_control);
        state.head = 1 % entries;
        self.connected.store(true, Ordering::Relaxed);
    }

    /// Time for which the connection has been open, if its host is not known yet.
    pub fn unconnected_for(&self) -> Option<Duration> {
        (!self.connected.load(Ordering::Relaxed)).then(|| self.began.elapsed())
    }

    /// Takes a command from the host; Err where it must not come now, with the status for it if there is one.
    pub fn take(&self, command: &Command) -> Result<(), Result<Status, Fault>> {
        let mut state = self.state();
        if state.outstanding.contains(&command.id()) {
            return Err(Ok(Status::ID_CONFLICT));
        }
        // One entry of a queue is always free (3.3.1.3).
        if state.outstanding.len() + 1 >= usize::from(state.entries).max(2) {
            return Err(Err(Fault::Sequence));
        }
        state.head = (state.head + 1) % state.entries;
        state.outstanding.insert(command.id());
        Ok(())
    }

    /// Queues a command until it has room, its data and a thread. See [`Self::wake`].
    pub fn admit(&self, mut work: Work) -> io::Result<()> {
        let mut state = self.state();
        if !state.waiting.is_empty() || !work.has_room(&self.room) {
            state.waiting.push_back(work);
            return Ok(());
        }
        let asked = state.begin(work);
        drop(state);
        asked.map_or(Ok(()), |asked| self.ask(asked))
    }

    fn ask(&self, (command, bytes): (u16, u32)) -> io::Result<()> {
        self.send(&self.format().ready_to_transfer(command, command, 0, bytes))
    }

    /// Takes the command that data comes for, to be filled (NVMe/TCP 3.3.2.2); then [`Self::filled`] is called.
    pub fn expect(&self, data: &HostData) -> Result<Work, Fault> {
        let mut state = self.state();
        // Offsets of CCCID and TTAG in the header.
        let Some(work) = state.incoming.remove(&data.tag) else { return Err(Fault::HeaderField(10)) };
        if data.command_id != data.tag {
            return Err(Fault::HeaderField(8));
        }
        let (have, all) = (work.data.len() as u64, work.transfer.from_host as u64);
        let end = u64::from(data.offset) + u64::from(data.length);
        if u64::from(data.offset) != have || end > all || data.last != (end == all) {
            return Err(Fault::OutOfRange);
        }
        Ok(work)
    }

    /// The expected data has arrived. See [`Self::wake`].
    pub fn filled(&self, work: Work) {
        let mut state = self.state();
        if work.is_owed() {
            state.incoming.insert(work.command.id(), work);
        } else {
            state.ready.push_back(work);
        }
    }

    /// The next command whose data has arrived; waits for it. None once the connection has ended.
    pub fn ready(&self) -> Option<Work> {
        let mut state = self.state();
        loop {
            if state.closed {
                return None;
            }
            if let Some(work) = state.ready.pop_front() {
                return Some(work);
            }
            state.idle += 1;
            state = self.more.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }

    /// Like [`Self::ready`], for callers that do not wait and handle only some commands.
    pub fn ready_now(&self, wanted: impl FnOnce(&Work) -> bool) -> Option<Work> {
        let mut state = self.state();
        if state.ready.front().is_some_and(wanted) { state.ready.pop_front() } else { None }
    }

    /// Wakes threads that wait for commands; true if there are too few of them.
    pub fn wake(&self) -> bool {
        let state = self.state();
        for _ in 0..state.ready.len().min(state.idle) {
            self.more.notify_one();
        }
        state.ready.len() > state.idle
    }

    /// Answers a command and forgets it. `buffer`, if any, has the data for the host where [`Format::finish_data`]
    /// looks for it.
    pub fn complete(&self, work: Work, completion: Completion, buffer: Option<Vec<u8>>, when: When) -> io::Result<()> {
        let done = self.answer_when(work.command.id(), completion, buffer, when);
        drop(work);
        let mut asked = Vec::new();
        {
            let mut state = self.state();
            while let Some(next) = state.waiting.front_mut() {
                if !next.has_room(&self.room) {
                    break;
                }
                let next = state.waiting.pop_front();
                asked.extend(next.map(|next| state.begin(next)));
            }
        }
        for asked in asked.into_iter().flatten() {
            self.ask(asked)?;
        }
        self.wake();
        done
    }

    /// Answers a command that took no room.
    pub fn answer(&self, command: u16, completion: Completion, buffer: Option<Vec<u8>>) -> io::Result<()> {
        self.answer_when(command, completion, buffer, When::Now)
    }

    fn answer_when(&self, command: u16, completion: Completion, buffer: Option<Vec<u8>>, when: When) -> io::Result<()> {
        let (head, id) = {
            let mut state = self.state();
            // Before the answer: the host may use the identifier again as soon as it has that.
            state.outstanding.remove(&command);
            (state.told_head(), state.id)
        };
        let format = self.format();
        let entry = format.response(&completion.entry(head, id, command));
        match buffer.filter(|buffer| buffer.len() > format.before_data()) {
            Some(mut buffer) if completion.status == Status::SUCCESS => {
                let at = format.before_data();
                let (before, digest) = format.around_data(&buffer[at..], command);
                buffer[..at].copy_from_slice(&before);
                buffer.extend(digest.into_iter().flatten());
                buffer.extend_from_slice(&entry);
                self.send_when(&buffer, when)
            }
            _ => self.send_when(&entry, when),
        }
    }

    /// Answers a command that was carried out by the thread that reads, together with others.
    pub fn answer_with_others(&self, command: u16, completion: Completion) -> io::Result<()> {
        self.answer_when(command, completion, None, When::WithOthers)
    }

    /// Answers a command with data, together with others: `fill` writes it into the output buffer. If that fails, the
    /// command is not answered: false.
    pub fn answer_filled(
        &self,
        command: u16,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> io::Result<()>,
    ) -> io::Result<bool> {
        let format = self.format();
        let mut unsent = lock(&self.sending);
        let at = format.before_data();
        let room = unsent.room(at + bytes);
        // Data that a panic leaves behind is not sent.
        if !catch_unwind(AssertUnwindSafe(|| fill(&mut room[at..]))).is_ok_and(|filled| filled.is_ok()) {
            return Ok(false);
        }
        let (before, digest) = format.around_data(&room[at..], command);
        room[..at].copy_from_slice(&before);
        unsent.add(at + bytes);
        unsent.extend(digest.as_ref().map_or(&[], |digest| &digest[..]));
        let (head, id) = {
            let mut state = self.state();
            state.outstanding.remove(&command);
            (state.told_head(), state.id)
        };
        unsent.extend(&format.response(&Completion::of(0).entry(head, id, command)));
        if unsent.len() >= ANSWERS_BYTES {
            self.send_all(&mut unsent)?;
        }
        Ok(true)
    }

    /// Answers a command that was taken out of turn: its identifier belongs to another one.
    pub fn refuse(&self, command: u16, status: Status) -> io::Result<()> {
        let (head, id) = {
            let state = self.state();
            (state.told_head(), state.id)
        };
        self.send(&self.format().response(&Completion::from(status).entry(head, id, command)))
    }

    /// Commands that will not be answered, after a reset.
    pub fn forget(&self, commands: impl IntoIterator<Item = u16>) {
        let mut state = self.state();
        for command in commands {
            state.outstanding.remove(&command);
        }
    }

    /// Aborts a command that no thread has begun; false if there is none. Commands whose data is on its way are not
    /// aborted, as the host would send the data to no command.
    pub fn abort(&self, command: u16) -> io::Result<bool> {
        let found = {
            let mut state = self.state();
            let of = |list: &mut VecDeque<Work>| {
                list.iter().position(|work| work.command.id() == command).and_then(|at| list.remove(at))
            };
            match of(&mut state.ready) {
                Some(work) => Some(work),
                None => of(&mut state.waiting),
            }
        };
        match found {
            Some(work) => self.complete(work, Status::ABORT_REQUESTED.into(), None, When::Now).map(|()| true),
            None => Ok(false),
        }
    }

    /// Sends one PDU, or several. After a failure the connection is of no use.
    pub fn send(&self, bytes: &[u8]) -> io::Result<()> {
        self.send_when(bytes, When::Now)
    }

    fn send_when(&self, bytes: &[u8], when: When) -> io::Result<()> {
        let mut unsent = lock(&self.sending);
        if unsent.is_empty() && when == When::Now {
            return (&self.stream).write_all(bytes).inspect_err(|_| self.close());
        }
        unsent.extend(bytes);
        if when == When::Now || unsent.len() >= ANSWERS_BYTES { self.send_all(&mut unsent) } else { Ok(()) }
    }

    fn send_all(&self, unsent: &mut Outgoing) -> io::Result<()> {
        let sent = (&self.stream).write_all(unsent.waiting()).inspect_err(|_| self.close());
        unsent.clear();
        sent
    }

    /// Whether a short answer could be sent now, without waiting for the host to read others.
    pub fn takes_answers(&self) -> bool {
        let Ok(_nobody_sends) = self.sending.try_lock() else { return false };
        let mut ready = [PollFd::new(&self.stream, PollFlags::OUT)];
        poll(&mut ready, Some(&Timespec::default())).is_ok_and(|count| count > 0)
    }

    /// Whether the host has sent something that was not read yet.
    pub fn has_input(&self) -> bool {
        let mut ready = [PollFd::new(&self.stream, PollFlags::IN)];
        poll(&mut ready, Some(&Timespec::default())).is_ok() && ready[0].revents() == PollFlags::IN
    }

    /// Whether the host no longer waits for answers.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Ends the connection; commands in work are not answered.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.state().closed = true;
        self.more.notify_all();
        // The host may have done so before.
        let _ended = self.stream.shutdown(Shutdown::Both);
    }

    /// Stops reading commands; those in progress are answered.
    pub fn stop_reading(&self) {
        let _ended = self.stream.shutdown(Shutdown::Read);
    }

    /// Returns when no command is ready or in work that can be done without the host.
    pub fn finish(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        loop {
            let state = self.state();
            let under_way = state.outstanding.len() - state.incoming.len().min(state.outstanding.len());
            if state.closed || under_way == 0 || Instant::now() >= deadline {
                return;
            }
            drop(state);
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Input of a host, for its reader: pending answers are sent before the connection is read, so that a host never waits
/// for these while this side waits for the host.
pub struct Incoming<'a> {
    /// Stream from the host.
    pub queue: &'a Queue,
    /// Until the host sends more.
    pub polling: Polling,
}

impl Read for Incoming<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut unsent = lock(&self.queue.sending);
        if !unsent.is_empty() {
            self.queue.send_all(&mut unsent)?;
        }
        drop(unsent);
        self.polling.receive(&self.queue.stream, buffer)
    }
}

impl State {
    /// SQHD (3.3.3.2, and 6.3 for the value that says that there is no flow control).
    fn told_head(&self) -> u16 {
        if self.no_flow_control { u16::MAX } else { self.head }
    }

    /// A command has room; returns the data to request from the host, if any.
    fn begin(&mut self, mut work: Work) -> Option<(u16, u32)> {
        if !work.is_owed() {
            self.ready.push_back(work);
            return None;
        }
        let asked = (work.command.id(), exact::<u32>(work.transfer.from_host));
        work.data.reserve_exact(work.transfer.from_host);
        self.incoming.insert(asked.0, work);
        Some(asked)
    }
}
