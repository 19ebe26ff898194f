//! A controller: the device as seen by one host, from its Connect on the Admin Queue to the end of that connection.
//! Sections are those of the NVM Express Base Specification 2.0.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use ftl_core::convert::exact;

use crate::namespace::Namespace;
use crate::nvme_tcp::command::{Command, Completion, Status};
use crate::nvme_tcp::queue::{MAX_ENTRIES, Queue};
use crate::threads::lock;

/// I/O queues of a controller at most.
pub const MAX_IO_QUEUES: u16 = 16;
/// AERL: Asynchronous Event Requests outstanding at most.
pub const MAX_EVENT_REQUESTS: usize = 4;
/// ELPE: entries of the error log.
pub const ERROR_ENTRIES: usize = 64;
/// Bytes of one.
pub const ERROR_BYTES: usize = 64;
/// VS (3.1.3.2): 2.0.
pub const VERSION: u32 = 0x0002_0000;
/// CAP.TO and CRTO.CRWMT: time until it is ready, in units of 500 ms.
const READY_TIMEOUT: u64 = 2;

/// Properties (3.1.3) by their offset.
mod property {
    pub const CAP: u32 = 0x00;
    pub const VS: u32 = 0x08;
    pub const CC: u32 = 0x14;
    pub const CSTS: u32 = 0x1c;
    pub const CRTO: u32 = 0x68;
}

/// Features (5.27.1).
pub mod feature {
    pub const ARBITRATION: u8 = 0x01;
    pub const POWER_STATE: u8 = 0x02;
    pub const TEMPERATURE_THRESHOLD: u8 = 0x04;
    pub const ERROR_RECOVERY: u8 = 0x05;
    pub const WRITE_CACHE: u8 = 0x06;
    pub const NUMBER_OF_QUEUES: u8 = 0x07;
    pub const WRITE_ATOMICITY: u8 = 0x0a;
    pub const EVENTS: u8 = 0x0b;
    pub const KEEP_ALIVE: u8 = 0x0f;
    pub const PLACEMENT: u8 = 0x1d;
    pub const PLACEMENT_EVENTS: u8 = 0x1e;
    pub const HOST_IDENTIFIER: u8 = 0x81;
}

/// CC.EN and CSTS.RDY.
const ENABLED: u32 = 1;
/// The only bits of CC that a host may have set beside EN and SHN: IOCQES 4, IOSQES 6; CSS 0 or 6; MPS and AMS 0.
const ENTRY_SIZES: u32 = 4 << 20 | 6 << 16;
/// Event configuration (5.27.1.8) and OAES: Namespace Attribute Notices.
pub const NAMESPACE_NOTICES: u32 = 1 << 8;

/// Identity of the connected host (6.3): Host NQN and Host Identifier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Its name.
    pub nqn: String,
    /// The same for all its connections.
    pub id: [u8; 16],
}

#[derive(Debug)]
struct State {
    cc: u32,
    csts: u32,
    /// Keep alive timeout; None: none.
    keep_alive: Option<Duration>,
    /// Time of the last check that found new commands.
    heard: Instant,
    write_cache: bool,
    event_config: u32,
    /// Values of mandatory features without effect on an emulated drive; by feature and, of temperatures, THSEL.
    kept: BTreeMap<(u8, u32), u32>,
    /// Identifiers of outstanding Asynchronous Event Requests.
    event_requests: VecDeque<u16>,
    /// Reported, and its log page not read since.
    notice_is_masked: bool,
    /// Namespaces that were not reported to the host yet.
    changed: BTreeSet<u32>,
    /// Reported namespaces: identity and size by NSID.
    known: BTreeMap<u32, (u64, u64)>,
    errors: VecDeque<[u8; ERROR_BYTES]>,
    error_count: u64,
    queues: BTreeMap<u16, Arc<Queue>>,
}

/// See the module.
#[derive(Debug)]
pub struct Controller {
    /// CNTLID.
    pub id: u16,
    /// It reports subsystems, and has no namespaces.
    pub is_discovery: bool,
    /// Its only user.
    pub host: Host,
    ended: AtomicBool,
    /// Whether commands have arrived since the last check; reading a clock for each would be slower.
    heard: AtomicBool,
    state: Mutex<State>,
}

impl Controller {
    /// A controller that `admin` has just connected to.
    pub fn new(
        id: u16,
        is_discovery: bool,
        host: Host,
        keep_alive_ms: u32,
        namespaces: &[Arc<Namespace>],
        admin: Arc<Queue>,
    ) -> Self {
        let state = State {
            cc: 0,
            csts: 0,
            keep_alive: keep_alive(keep_alive_ms),
            heard: Instant::now(),
            write_cache: true,
            event_config: 0,
            kept: BTreeMap::new(),
            event_requests: VecDeque::new(),
            notice_is_masked: false,
            changed: BTreeSet::new(),
            known: attached_to(&host, is_discovery, namespaces),
            errors: VecDeque::new(),
            error_count: 0,
            queues: BTreeMap::from([(0, admin)]),
        };
        let (ended, heard) = (AtomicBool::new(false), AtomicBool::new(true));
        Self { id, is_discovery, host, ended, heard, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Whether a namespace is attached to it.
    pub fn has(&self, namespace: &Namespace) -> bool {
        !self.is_discovery && namespace.is_attached_to(&self.host.nqn)
    }

    /// Records a command on any queue (3.9: keep alive based on traffic).
    pub fn hear(&self) {
        self.heard.store(true, Ordering::Relaxed);
    }

    /// Whether the keep alive timeout has expired, and its connections are still to be ended. A host is not silent that
    /// has sent something which was not read yet, as while a command of the Admin Queue takes long.
    pub fn is_forsaken(&self, now: Instant) -> bool {
        let mut state = self.state();
        if self.heard.swap(false, Ordering::Relaxed) {
            state.heard = now;
        }
        let is_late = state.keep_alive.is_some_and(|most| now.saturating_duration_since(state.heard) > most);
        is_late && !self.ended.load(Ordering::Relaxed) && !state.queues.values().any(|queue| queue.has_input())
    }

    /// Ready for commands other than those of Fabrics.
    pub fn is_ready(&self) -> bool {
        self.state().csts & ENABLED != 0
    }

    /// Property Get (6.5): its value, by the size that ATTRIB names.
    pub fn property(&self, offset: u32, is_wide: bool) -> Result<u64, Status> {
        let state = self.state();
        match (offset, is_wide) {
            // MQES; CQR; TO; CSS: NVM Command Set, and others by CC.CSS; CRMS: ready with media.
            (property::CAP, true) => {
                Ok(u64::from(MAX_ENTRIES - 1) | 1 << 16 | READY_TIMEOUT << 24 | 1 << 37 | 1 << 43 | 1 << 59)
            }
            (property::VS, false) => Ok(u64::from(VERSION)),
            (property::CC, false) => Ok(u64::from(state.cc)),
            (property::CSTS, false) => Ok(u64::from(state.csts)),
            (property::CRTO, false) => Ok(READY_TIMEOUT),
            _ => Err(Status::INVALID_FIELD),
        }
    }

    /// Property Set (6.6) of CC (3.1.3.5), the only one that can be set. True if a shutdown is requested: the caller
    /// flushes, and then calls [`Self::shut_down`].
    pub fn configure(&self, offset: u32, is_wide: bool, value: u64) -> Result<bool, Status> {
        let Ok(cc) = u32::try_from(value) else { return Err(Status::INVALID_FIELD) };
        if offset != property::CC || is_wide {
            return Err(Status::INVALID_FIELD);
        }
        let mut state = self.state();
        let was_enabled = state.cc & ENABLED != 0;
        if cc & ENABLED != 0 && !was_enabled {
            let (selection, others) = (cc >> 4 & 7, cc >> 7 & 0x7f);
            // The size of entries is fixed on Fabrics; a discovery controller has no I/O queues to size.
            let sizes_fit = self.is_discovery || cc & 0x00ff_0000 == ENTRY_SIZES;
            if !matches!(selection, 0 | 6) || others != 0 || !sizes_fit {
                state.csts |= 1 << 1; // CFS
                return Err(Status::INVALID_FIELD);
            }
            state.csts = ENABLED;
        }
        state.cc = cc;
        if cc & ENABLED == 0 && was_enabled {
            state.reset();
        }
        // SHN: normal or abrupt.
        Ok(cc >> 14 & 3 != 0)
    }

    /// CSTS.SHST: shutdown is complete.
    pub fn shut_down(&self) {
        let mut state = self.state();
        state.csts = state.csts & !(3 << 2) | 2 << 2;
    }

    /// Assigns a number to an I/O queue (6.3); false if it is in use or the controller is not ready.
    pub fn add_queue(&self, id: u16, queue: &Arc<Queue>) -> bool {
        let mut state = self.state();
        if self.ended.load(Ordering::Relaxed) || state.csts & ENABLED == 0 || state.queues.contains_key(&id) {
            return false;
        }
        state.queues.insert(id, Arc::clone(queue));
        true
    }

    /// The connection of an I/O queue has ended.
    pub fn remove_queue(&self, id: u16, queue: &Arc<Queue>) {
        let mut state = self.state();
        // After a reset another one may have its number.
        if state.queues.get(&id).is_some_and(|found| Arc::ptr_eq(found, queue)) {
            state.queues.remove(&id);
        }
    }

    /// The queue of that number.
    pub fn queue(&self, id: u16) -> Option<Arc<Queue>> {
        self.state().queues.get(&id).map(Arc::clone)
    }

    /// Ends every connection.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        let queues: Vec<_> = self.state().queues.values().map(Arc::clone).collect();
        for queue in queues {
            queue.close();
        }
    }

    /// Whether writes have to be on stable storage before their completion.
    pub fn is_write_through(&self) -> bool {
        !self.state().write_cache
    }

    /// Get Features (5.15): the current value; `selector` is CDW11.
    pub fn feature(&self, id: u8, selector: u32) -> Result<u64, Status> {
        let state = self.state();
        match (id, self.is_discovery) {
            (feature::KEEP_ALIVE, _) => Ok(state.keep_alive.map_or(0, |most| exact::<u64>(most.as_millis()))),
            (feature::EVENTS, _) => Ok(u64::from(state.event_config)),
            (feature::WRITE_CACHE, false) => Ok(u64::from(state.write_cache)),
            (feature::NUMBER_OF_QUEUES, false) => Ok(queues_granted()),
            (_, false) => {
                let key = (id, kept_by(id, selector)?);
                Ok(u64::from(state.kept.get(&key).copied().unwrap_or(if key == OVER_TEMPERATURE { NEVER } else { 0 })))
            }
            _ => Err(Status::INVALID_FIELD),
        }
    }

    /// Set Features (5.27).
    pub fn set_feature(&self, id: u8, value: u32) -> Result<u64, Status> {
        let mut state = self.state();
        match (id, self.is_discovery) {
            (feature::KEEP_ALIVE, _) => state.keep_alive = keep_alive(value),
            // Only notices about namespaces are sent.
            (feature::EVENTS, _) => state.event_config = value & NAMESPACE_NOTICES,
            (feature::WRITE_CACHE, false) => state.write_cache = value & 1 != 0,
            (feature::NUMBER_OF_QUEUES, false) => {
                // 65536 of either (5.27.1.5).
                if value & 0xffff == 0xffff || value >> 16 == 0xffff {
                    return Err(Status::INVALID_FIELD);
                }
                return Ok(queues_granted());
            }
            (feature::HOST_IDENTIFIER, _) => return Err(Status::FEATURE_NOT_CHANGEABLE),
            (_, false) => {
                let key = (id, kept_by(id, value)?);
                state.kept.insert(key, kept_of(id, value)?);
            }
            _ => return Err(Status::INVALID_FIELD),
        }
        Ok(0)
    }

    /// Asynchronous Event Request (5.2): kept until there is an event.
    pub fn request_event(&self, command: u16) -> Result<(), Status> {
        let mut state = self.state();
        if state.event_requests.len() >= MAX_EVENT_REQUESTS {
            return Err(Status::TOO_MANY_EVENT_REQUESTS);
        }
        state.event_requests.push_back(command);
        drop(state);
        self.send_notice();
        Ok(())
    }

    /// Removes an outstanding request; false if there is none.
    pub fn withdraw_event_request(&self, command: u16) -> bool {
        let mut state = self.state();
        let before = state.event_requests.len();
        state.event_requests.retain(|&outstanding| outstanding != command);
        before != state.event_requests.len()
    }

    /// Compares namespaces with those reported to the host, and reports changes.
    pub fn look_at(&self, namespaces: &[Arc<Namespace>]) {
        let now = attached_to(&self.host, self.is_discovery, namespaces);
        let mut state = self.state();
        let before = std::mem::replace(&mut state.known, now);
        let mut differing = Vec::new();
        for id in state.known.keys().chain(before.keys()) {
            if state.known.get(id) != before.get(id) {
                differing.push(*id);
            }
        }
        state.changed.extend(differing);
        drop(state);
        self.send_notice();
    }

    /// Sends the notice that namespaces have changed (5.2.1), once until its log page is read. Later, at the next
    /// [`Self::look_at`], if the host does not read its answers: others would wait for it.
    fn send_notice(&self) {
        let mut state = self.state();
        let wanted = state.event_config & NAMESPACE_NOTICES != 0 && !state.changed.is_empty();
        if !wanted || state.notice_is_masked || self.is_discovery {
            return;
        }
        let Some(admin) = state.queues.get(&0).filter(|admin| admin.takes_answers()).map(Arc::clone) else { return };
        let Some(command) = state.event_requests.pop_front() else { return };
        state.notice_is_masked = true;
        drop(state);
        // Type notice, information Namespace Attribute Changed, log page 04h. If that fails, the connection has ended.
        let _told = admin.answer(command, Completion::of(2 | 4 << 16), None);
    }

    /// The namespaces that have changed (5.16.1.5); reading them allows the next notice unless `retain`.
    pub fn changed_namespaces(&self, retain: bool) -> Vec<u32> {
        let mut state = self.state();
        let found = state.changed.iter().copied().collect();
        if !retain {
            state.changed.clear();
            state.notice_is_masked = false;
        }
        found
    }

    /// Notes a command that failed (5.16.1.2).
    pub fn note_error(&self, queue: u16, command: &Command, status: Status) {
        let mut state = self.state();
        state.error_count += 1;
        let mut entry = [0; ERROR_BYTES];
        entry[..8].copy_from_slice(&state.error_count.to_le_bytes());
        entry[8..10].copy_from_slice(&queue.to_le_bytes());
        entry[10..12].copy_from_slice(&command.id().to_le_bytes());
        entry[12..14].copy_from_slice(&(status.0 << 1).to_le_bytes());
        // The field in error is not reported.
        entry[14..16].copy_from_slice(&[0xff; 2]);
        if queue != 0 {
            entry[16..24].copy_from_slice(&command.start().to_le_bytes());
        }
        entry[24..28].copy_from_slice(&command.namespace().to_le_bytes());
        // TRTYPE.
        entry[29] = 3;
        state.errors.push_front(entry);
        state.errors.truncate(ERROR_ENTRIES);
    }

    /// Entries of the error log, the newest first, and how many errors there ever were.
    pub fn errors(&self) -> (Vec<u8>, u64) {
        let state = self.state();
        (state.errors.iter().flatten().copied().collect(), state.error_count)
    }
}

impl State {
    /// A Controller Level Reset (3.7.2): I/O queues end, and settings are forgotten.
    fn reset(&mut self) {
        self.csts = 0;
        self.write_cache = true;
        self.event_config = 0;
        self.kept.clear();
        if let Some(admin) = self.queues.get(&0) {
            admin.forget(self.event_requests.drain(..));
        }
        self.notice_is_masked = false;
        let (admin, io): (BTreeMap<_, _>, _) =
            std::mem::take(&mut self.queues).into_iter().partition(|(id, _)| *id == 0);
        self.queues = admin;
        for queue in io.into_values() {
            queue.close();
        }
    }
}

/// Namespaces that are attached to a host: see `known` of [`State`].
fn attached_to(host: &Host, is_discovery: bool, namespaces: &[Arc<Namespace>]) -> BTreeMap<u32, (u64, u64)> {
    let attached = namespaces.iter().filter(|namespace| !is_discovery && namespace.is_attached_to(&host.nqn));
    attached.map(|namespace| (namespace.nsid(), (namespace.serial, namespace.size_bytes()))).collect()
}

/// The threshold that is compared with temperatures from above; those of an emulated drive never reach it.
const OVER_TEMPERATURE: (u8, u32) = (feature::TEMPERATURE_THRESHOLD, 0);
const NEVER: u32 = 0xffff;

/// Which of the values of a feature without effect CDW11 selects.
fn kept_by(id: u8, cdw11: u32) -> Result<u32, Status> {
    // TMPSEL: the composite temperature, or all (5.27.1.3).
    let (sensor, threshold) = (cdw11 >> 16 & 0xf, cdw11 >> 20 & 0b11);
    match id {
        feature::TEMPERATURE_THRESHOLD if matches!(sensor, 0 | 0xf) && threshold < 2 => Ok(threshold),
        feature::ARBITRATION | feature::POWER_STATE | feature::ERROR_RECOVERY | feature::WRITE_ATOMICITY => Ok(0),
        _ => Err(Status::INVALID_FIELD),
    }
}

/// Stored part of a value of such a feature.
fn kept_of(id: u8, value: u32) -> Result<u32, Status> {
    match id {
        // There is only power state 0.
        feature::POWER_STATE if value & 0x1f != 0 => Err(Status::INVALID_FIELD),
        // DULBE: deallocated blocks are read as zeroes.
        feature::ERROR_RECOVERY if value & 1 << 16 != 0 => Err(Status::INVALID_FIELD),
        feature::ARBITRATION => Ok(value & 0xffff_ff07),
        feature::POWER_STATE => Ok(value & 0xe0),
        feature::WRITE_ATOMICITY => Ok(value & 1),
        _ => Ok(value & 0xffff),
    }
}

fn keep_alive(milliseconds: u32) -> Option<Duration> {
    (milliseconds > 0).then(|| Duration::from_millis(u64::from(milliseconds)))
}

/// NCQA and NSQA, which count from 0.
fn queues_granted() -> u64 {
    u64::from(MAX_IO_QUEUES - 1) | u64::from(MAX_IO_QUEUES - 1) << 16
}
