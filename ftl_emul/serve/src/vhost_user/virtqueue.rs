//! A split virtqueue (Virtual I/O Device specification 1.2, section 2.7) while it is served, by a thread of its own.
//!
//! Several requests are taken at a time. Small reads and writes that do not wait are carried out by this thread,
//! between the file and the guest's memory, and answered together with one notification; all others are passed to the
//! client's [`Workers`], which complete them in any order. The rings are the guest's memory, so their contents are not
//! trusted.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ftl_core::convert::exact;
use rustix::event::{EventfdFlags, epoll, eventfd};
use virtio_bindings::virtio_ring::VRING_AVAIL_F_NO_INTERRUPT;
use virtio_queue::desc::split::Descriptor;
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::namespace::Awaited;
use crate::polling::Polling;
use crate::threads::{self, lock};
use crate::vhost_user::in_flight::Tracker;
use crate::vhost_user::request::{BlockRequest, Disk};
use crate::vhost_user::workers::Workers;

/// Reads and writes carried out by the thread of the queue, where the model does not make them wait.
const QUICK_BYTES: u64 = 64 << 10;
/// Requests taken at once, and answered together: half of a usual queue depth, so that the driver takes the answers to one
/// half while the other is carried out.
const MAX_BATCH: usize = 16;
/// Time that a stopped queue waits for the modelled drive.
const STOPPING: Duration = Duration::from_secs(10);
const DESCRIPTOR_BYTES: u32 = 16;

/// Parameters of a queue.
pub struct Setup {
    /// With size, addresses and positions.
    pub ring: Queue,
    /// The guest's.
    pub memory: Arc<GuestMemoryMmap>,
    /// Notifications of the driver.
    pub kick: File,
    /// To notify the driver with.
    pub call: Option<Arc<File>>,
    /// Where requests in flight are recorded.
    pub tracker: Option<Tracker>,
    /// Requests that the last server has left.
    pub resumed: Vec<u16>,
    /// Writes are on stable storage before they are answered.
    pub durable: bool,
    /// The model does not make requests wait.
    pub is_untimed: bool,
    /// See [`Polling`].
    pub max_poll: Duration,
}

struct State {
    ring: Queue,
    memory: Arc<GuestMemoryMmap>,
    call: Option<Arc<File>>,
    tracker: Option<Tracker>,
    /// Requests taken from the available ring that are not in the used ring yet.
    outstanding: u16,
    /// The thread waits for one of them.
    is_full: bool,
    stopping: bool,
    /// The driver violates the specification.
    broken: bool,
}

/// See the module.
pub struct Virtqueue {
    disk: Arc<Disk>,
    workers: Arc<Workers>,
    durable: bool,
    is_untimed: bool,
    state: Mutex<State>,
    drained: Condvar,
    /// No client waits for answers any more.
    given_up: AtomicBool,
    epoll: OwnedFd,
    wake: OwnedFd,
    /// Its notifications arrive through `epoll`, so it stays open.
    _kick: File,
}

/// Location of the descriptors of requests.
struct Table {
    memory: Arc<GuestMemoryMmap>,
    address: GuestAddress,
    size: u16,
}

/// A request that was carried out: the first of its descriptors, and the bytes that the device has written.
type Done = (u16, u32);

/// Next action.
enum Next {
    Requests(Table),
    Nothing,
    Full,
    Stop,
}

impl Virtqueue {
    /// Starts to serve a queue. Requests that were not completed are executed again first.
    pub fn start(
        setup: Setup,
        disk: Arc<Disk>,
        workers: Arc<Workers>,
    ) -> io::Result<(Arc<Self>, thread::JoinHandle<()>)> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        // Edge-triggered: each notification wakes the thread, which need not read it, so that it never blocks.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        for source in [std::os::fd::AsFd::as_fd(&setup.kick), std::os::fd::AsFd::as_fd(&wake)] {
            epoll::add(&epoll, source, epoll::EventData::new_u64(0), flags)?;
        }
        let state = State {
            ring: setup.ring,
            memory: setup.memory,
            call: setup.call,
            tracker: setup.tracker,
            outstanding: 0,
            is_full: false,
            stopping: false,
            broken: false,
        };
        let queue = Arc::new(Self {
            disk,
            workers,
            durable: setup.durable,
            is_untimed: setup.is_untimed,
            state: Mutex::new(state),
            drained: Condvar::new(),
            given_up: AtomicBool::new(false),
            epoll,
            wake,
            _kick: setup.kick,
        });
        let (here, resumed, polling) = (Arc::clone(&queue), setup.resumed, Polling::new(setup.max_poll));
        let run = move || {
            let table = {
                let mut state = here.state();
                state.outstanding += exact::<u16>(resumed.len());
                state.table()
            };
            here.carry_out_all(&table, resumed);
            here.serve(polling);
        };
        let thread = threads::builder("slo-ctl vhost")?.spawn(run)?;
        Ok((queue, thread))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Notifies the driver through another descriptor from now on.
    pub fn set_call(&self, call: Option<Arc<File>>) {
        self.state().call = call;
    }

    /// Requests from now on are in this memory.
    pub fn set_memory(&self, memory: Arc<GuestMemoryMmap>) {
        self.state().memory = memory;
    }

    /// Stops taking requests.
    pub fn stop(&self) {
        self.state().stopping = true;
        self.wake();
    }

    /// No client waits for answers any more.
    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }

    /// Returns once every request is answered, only after [`Self::stop`]: the next entry of the available ring.
    pub fn drain(&self) -> u16 {
        let deadline = Instant::now() + STOPPING;
        let mut state = self.state();
        while state.outstanding > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.give_up();
            }
            let patience = left.max(Duration::from_millis(100));
            state = self.drained.wait_timeout(state, patience).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.ring.next_avail()
    }

    fn wake(&self) {
        // Full: then it is awake.
        let _full = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    fn serve(self: &Arc<Self>, mut polling: Polling) {
        let mut heads = Vec::with_capacity(MAX_BATCH);
        loop {
            match self.next(&mut heads) {
                Next::Requests(table) => {
                    self.carry_out_all(&table, heads.drain(..));
                    polling.found();
                }
                Next::Nothing if polling.is_on() => std::hint::spin_loop(),
                Next::Nothing => {
                    if self.is_idle() {
                        self.sleep();
                        polling.slept();
                    }
                }
                Next::Full => self.sleep(),
                Next::Stop => return,
            }
        }
    }

    /// Takes requests from the available ring, up to [`MAX_BATCH`]; `heads` is empty.
    fn next(&self, heads: &mut Vec<u16>) -> Next {
        let mut state = self.state();
        if state.stopping || state.broken {
            return Next::Stop;
        }
        let size = state.ring.size();
        let room = usize::from(size.saturating_sub(state.outstanding)).min(MAX_BATCH);
        if room == 0 {
            state.is_full = true;
            return Next::Full;
        }
        let memory = Arc::clone(&state.memory);
        let position = state.ring.next_avail();
        // Err where the index of the available ring is further ahead than the ring is long (2.7.13.3).
        match state.ring.iter(&*memory) {
            Ok(available) => heads.extend(available.take(room).map(|chain| chain.head_index())),
            Err(_) => return self.break_off(&mut state, "the available ring has more entries than its size"),
        }
        if let Some(beyond) = heads.iter().position(|&head| head >= size) {
            heads.truncate(beyond);
            let stop = self.break_off(&mut state, "a descriptor lies beyond the table");
            if heads.is_empty() {
                return stop;
            }
        }
        if !heads.is_empty() {
            state.outstanding += exact::<u16>(heads.len());
            if let Some(tracker) = &mut state.tracker {
                for &head in &*heads {
                    tracker.begin(head);
                }
            }
            return Next::Requests(state.table());
        }
        match state.ring.avail_idx(&*memory, Ordering::Acquire) {
            Ok(index) if index.0 == position => Next::Nothing,
            // Or there is one since.
            _ if state.ring.is_valid(&*memory) => Next::Nothing,
            _ => self.break_off(&mut state, "a ring is not in the guest's memory"),
        }
    }

    /// The queue is unusable until the driver resets it.
    fn break_off(&self, state: &mut State, why: &str) -> Next {
        if !state.broken {
            self.disk.say(&format!("a queue was stopped: {why}"));
        }
        state.broken = true;
        Next::Stop
    }

    /// Requests a notification from the driver; false if there is a request already.
    fn is_idle(&self) -> bool {
        let mut state = self.state();
        let memory = Arc::clone(&state.memory);
        match state.ring.enable_notification(&*memory) {
            Ok(more) => !more,
            Err(_) => {
                self.break_off(&mut state, "a ring is not in the guest's memory");
                false
            }
        }
    }

    /// Sleeps until there is a notification, or other work.
    fn sleep(&self) {
        let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 2];
        // Interrupted: the caller checks again.
        let _interrupted = epoll::wait(&self.epoll, &mut events, None);
        let mut state = self.state();
        let memory = Arc::clone(&state.memory);
        if state.ring.disable_notification(&*memory).is_err() {
            self.break_off(&mut state, "a ring is not in the guest's memory");
        }
    }

    /// Executes requests, and completes those that wait for nothing together.
    fn carry_out_all(self: &Arc<Self>, table: &Table, heads: impl IntoIterator<Item = u16>) {
        let mut done = [(0, 0); MAX_BATCH];
        let mut count = 0;
        for head in heads {
            if let Some(written) = self.carry_out(table, head) {
                done[count] = (head, written);
                count += 1;
            }
            if count == MAX_BATCH {
                self.finish(&done);
                count = 0;
            }
        }
        self.finish(&done[..count]);
    }

    /// Carries a request out and returns the bytes written, or has that done by another thread.
    fn carry_out(self: &Arc<Self>, table: &Table, head: u16) -> Option<u32> {
        let chain = Chain::new(&table.memory, table.address, table.size, head);
        let Some(request) = BlockRequest::parse(&table.memory, chain) else { return Some(0) };
        if self.is_untimed && !self.durable && request.is_quick(QUICK_BYTES) {
            let work = || request.carry_out_now(&self.disk, &table.memory);
            // A panic fails this request only.
            let done = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Some(request.fail(&table.memory)));
            if done.is_some() {
                return done;
            }
        }
        let (here, memory) = (Arc::clone(self), Arc::clone(&table.memory));
        self.workers.submit(Box::new(move || {
            let written = {
                let _room = here.workers.room(request.data_bytes());
                here.attempt(&request, &memory)
            };
            here.finish(&[(head, written)]);
        }));
        None
    }

    /// A panic fails this request only.
    fn attempt(&self, request: &BlockRequest, memory: &GuestMemoryMmap) -> u32 {
        // The driver gets the answer, however late.
        let awaited = || if self.given_up.load(Ordering::Relaxed) { Awaited::Soon } else { Awaited::Yes };
        let work = || request.carry_out(&self.disk, memory, self.durable, &awaited);
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| request.fail(memory))
    }

    /// Puts requests into the used ring (2.7.8), and notifies the driver if it requests that.
    fn finish(&self, done: &[Done]) {
        if done.is_empty() {
            return;
        }
        let mut guard = self.state();
        let state = &mut *guard;
        let memory = Arc::clone(&state.memory);
        let mut added = Ok(());
        for &(head, written) in done {
            if let Some(tracker) = &state.tracker {
                tracker.finish(head);
            }
            added = added.and(state.ring.add_used(&*memory, head, written));
            if let Some(tracker) = &state.tracker {
                tracker.finished(head, state.ring.next_used());
            }
        }
        let call = match added.and_then(|()| wants_notification(&mut state.ring, &memory)) {
            Ok(true) => state.call.clone(),
            Ok(false) => None,
            Err(_) => {
                self.break_off(state, "a ring is not in the guest's memory");
                None
            }
        };
        state.outstanding -= exact::<u16>(done.len());
        // A system call even where nobody waits, as nobody does before the queue is to stop.
        if state.outstanding == 0 && state.stopping {
            self.drained.notify_all();
        }
        let was_full = std::mem::take(&mut state.is_full);
        drop(guard);
        if was_full {
            self.wake();
        }
        call.as_deref().into_iter().for_each(notify);
    }
}

impl State {
    fn table(&self) -> Table {
        let (memory, address) = (Arc::clone(&self.memory), GuestAddress(self.ring.desc_table()));
        Table { memory, address, size: self.ring.size() }
    }
}

/// Writes to an eventfd of the client.
pub fn notify(mut call: &File) {
    // A client that has disconnected needs no notification.
    let _gone = call.write(&1_u64.to_ne_bytes());
}

/// Whether the driver requests a notification about the added entries (2.7.7).
fn wants_notification(ring: &mut Queue, memory: &GuestMemoryMmap) -> Result<bool, virtio_queue::Error> {
    if ring.event_idx_enabled() {
        return ring.needs_notification(memory);
    }
    std::sync::atomic::fence(Ordering::SeqCst);
    let flags: u16 =
        memory.load(GuestAddress(ring.avail_ring()), Ordering::Relaxed).map_err(virtio_queue::Error::GuestMemory)?;
    Ok(u32::from(u16::from_le(flags)) & VRING_AVAIL_F_NO_INTERRUPT == 0)
}

/// The descriptors of a request (2.7.5), also in an indirect table (2.7.5.3). Ends early where they are not as the
/// specification has them, and after as many as the table has: they may be linked in a circle.
pub struct Chain<'a> {
    memory: &'a GuestMemoryMmap,
    table: GuestAddress,
    size: u32,
    next: Option<u16>,
    left: u32,
    is_indirect: bool,
}

impl<'a> Chain<'a> {
    /// That which begins at `head` in a table of so many descriptors.
    pub fn new(memory: &'a GuestMemoryMmap, table: GuestAddress, size: u16, head: u16) -> Self {
        let size = u32::from(size);
        Self { memory, table, size, next: Some(head), left: size, is_indirect: false }
    }
}

impl Iterator for Chain<'_> {
    type Item = Descriptor;

    fn next(&mut self) -> Option<Descriptor> {
        loop {
            let index = self.next.take().filter(|&index| u32::from(index) < self.size)?;
            self.left = self.left.checked_sub(1)?;
            let at = self.table.0.checked_add(u64::from(index) * u64::from(DESCRIPTOR_BYTES))?;
            let descriptor: Descriptor = self.memory.read_obj(GuestAddress(at)).ok()?;
            if !descriptor.refers_to_indirect_table() {
                self.next = descriptor.has_next().then(|| descriptor.next());
                return Some(descriptor);
            }
            let entries = descriptor.len() / DESCRIPTOR_BYTES;
            if self.is_indirect || descriptor.has_next() || descriptor.len() % DESCRIPTOR_BYTES != 0 {
                return None;
            }
            // The index in a descriptor reaches no further.
            let entries = entries.min(u32::from(u16::MAX));
            (self.table, self.size, self.left) = (descriptor.addr(), entries, entries);
            (self.next, self.is_indirect) = (Some(0), true);
        }
    }
}
