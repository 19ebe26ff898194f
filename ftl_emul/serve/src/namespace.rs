//! A namespace: the disk of one guest.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use ftl_core::convert::exact;
use ftl_core::{Op, TenantId};

use crate::backing::{self, Backing};
use crate::error::ServeError;
use crate::histogram::Histograms;
use crate::model::{Model, Request, Ticket};
use crate::recent::Latencies;
use crate::recording::{Outstanding, Recording};
use crate::settings::{Created, Hosts, NamespaceSettings};
use crate::threads::lock;

/// Pause between parts of work on the map, for other threads: as long as such a part took, up to this.
const MOST_PAUSE: Duration = Duration::from_millis(5);
/// Zeroes that are written at once if the file system has no better way; memory that all requests share.
static ZEROES: [u8; 1 << 20] = [0; 1 << 20];

/// Requests answered, by the codes of [`Op`], and their bytes.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Answered {
    requests: [AtomicU64; 5],
    bytes: [AtomicU64; 5],
}

impl Answered {
    fn count(&self, op: Op, bytes: u64) {
        self.requests[op as usize].fetch_add(1, Ordering::Relaxed);
        self.bytes[op as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    fn each(&self) -> impl Iterator<Item = &AtomicU64> {
        self.requests.iter().chain(&self.bytes)
    }

    /// Adds what others have counted.
    pub fn add(&self, others: &Self) {
        for (sum, count) in self.each().zip(others.each()) {
            sum.fetch_add(count.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Requests of a kind.
    #[must_use]
    pub fn requests(&self, op: Op) -> u64 {
        self.requests[op as usize].load(Ordering::Relaxed)
    }

    /// Their bytes.
    #[must_use]
    pub fn bytes(&self, op: Op) -> u64 {
        self.bytes[op as usize].load(Ordering::Relaxed)
    }
}

/// Number of namespaces that this process has opened.
static OPENED: AtomicU64 = AtomicU64::new(0);

/// One namespace while it is served.
#[derive(Debug)]
pub struct Namespace {
    /// Export name.
    pub name: String,
    /// Distinguishes it from earlier namespaces with the same name or number.
    pub serial: u64,
    /// As created, with its NVMe numbers.
    pub origin: Created,
    /// Its number on the model.
    pub tenant: TenantId,
    /// Its data.
    pub backing: Backing,
    /// Counters since the start.
    pub answered: Answered,
    /// Latencies of reads and writes, as the client saw them.
    pub latencies: Latencies,
    /// The same in modelled time, since the start.
    pub histograms: Histograms,
    size_bytes: AtomicU64,
    /// Whether requests are accepted.
    open: AtomicBool,
    /// Held by each request, or piece of one, from its check until its data is moved.
    in_progress: RwLock<()>,
    /// NVMe hosts that it is attached to.
    hosts: RwLock<Hosts>,
    /// Held while space is released or zeroed in pieces: one such request of a namespace is in work at a time, however
    /// many it asks for at once.
    in_pieces: Mutex<()>,
    /// Where its requests are recorded, and its index there.
    recording: RwLock<Option<(Arc<Recording>, u16)>>,
    /// The same without the lock.
    is_recorded: AtomicBool,
}

/// Whether a client waits for the end of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Awaited {
    /// At its time.
    Yes,
    /// As soon as possible: the server is stopping.
    Soon,
    /// The client is gone. It may be back already, so the rest of the request must not be carried out.
    No,
}

impl From<bool> for Awaited {
    /// From whether the client is gone.
    fn from(is_gone: bool) -> Self {
        if is_gone { Self::No } else { Self::Yes }
    }
}

/// Options of a request.
#[derive(Debug, Clone, Copy, Default)]
pub struct Flags {
    /// On stable storage before the answer.
    pub fua: bool,
    /// Space may be released.
    pub may_trim: bool,
}

impl Namespace {
    /// Opens the namespace whose backing file is in `folder`, with its settings and later changes. Its number on the
    /// model is set later.
    pub fn open(folder: &Path, origin: Created, settings: &NamespaceSettings) -> Result<Self, ServeError> {
        let size_bytes = settings.size_bytes.unwrap_or(origin.config.size_bytes);
        let backing = Backing::open(&path_in(folder, &origin.config.name), size_bytes)?;
        Ok(Self {
            name: origin.config.name.clone(),
            serial: OPENED.fetch_add(1, Ordering::Relaxed),
            origin,
            tenant: TenantId(u16::MAX),
            backing,
            answered: Answered::default(),
            latencies: Latencies::default(),
            histograms: Histograms::default(),
            size_bytes: AtomicU64::new(size_bytes),
            open: AtomicBool::new(true),
            in_progress: RwLock::new(()),
            hosts: RwLock::new(settings.hosts.clone().unwrap_or_default()),
            in_pieces: Mutex::new(()),
            recording: RwLock::new(None),
            is_recorded: AtomicBool::new(false),
        })
    }

    /// NVMe namespace identifier.
    #[must_use]
    pub fn nsid(&self) -> u32 {
        self.origin.nsid
    }

    /// Whether it is attached to an NVMe host, by its NQN.
    #[must_use]
    pub fn is_attached_to(&self, host_nqn: &str) -> bool {
        self.hosts.read().unwrap_or_else(PoisonError::into_inner).include(host_nqn)
    }

    /// Sets which NVMe hosts it is attached to.
    pub fn set_hosts(&self, hosts: Hosts) {
        *self.hosts.write().unwrap_or_else(PoisonError::into_inner) = hosts;
    }

    /// Refuses further requests and pieces, and waits for those in progress; or accepts requests again.
    pub fn set_open(&self, open: bool) {
        self.open.store(open, Ordering::SeqCst);
        self.wait_for_those_in_progress();
    }

    fn wait_for_those_in_progress(&self) {
        drop(self.in_progress.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Starts or stops recording its requests.
    pub fn set_recording(&self, recording: Option<(Arc<Recording>, u16)>) {
        let mut current = self.recording.write().unwrap_or_else(PoisonError::into_inner);
        self.is_recorded.store(recording.is_some(), Ordering::Relaxed);
        *current = recording;
    }

    /// Whether its requests are recorded.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        self.is_recorded.load(Ordering::Relaxed)
    }

    /// Records a request that arrives now, where requests are recorded and this one lies within the namespace.
    #[inline]
    fn record(&self, op: Op, offset: u64, length: u64) -> Option<Outstanding> {
        if !self.is_recorded() || offset.checked_add(length).is_none_or(|end| end > self.size_bytes()) {
            return None;
        }
        let recording = self.recording.read().unwrap_or_else(PoisonError::into_inner);
        recording.as_ref().map(|(recording, place)| recording.arrived(*place, op, offset, length))
    }

    /// Logical size.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::SeqCst)
    }

    /// Changes the logical size, which new connections see. From then on no request moves data beyond it.
    pub fn set_size_bytes(&self, size_bytes: u64) {
        self.size_bytes.store(size_bytes, Ordering::SeqCst);
        self.wait_for_those_in_progress();
    }

    /// Reads.
    pub fn read<A: Into<Awaited>>(
        &self,
        model: &Model,
        buffer: &mut [u8],
        offset: u64,
        awaited: impl FnMut() -> A,
    ) -> io::Result<()> {
        let length = buffer.len() as u64;
        self.serve(model, Op::Read, offset, length, awaited, |at, bytes| {
            let from = exact::<usize>(at - offset);
            self.backing.read(&mut buffer[from..from + exact::<usize>(bytes)], at)
        })
    }

    /// Reads cached data, for a model without a clock; `WouldBlock` if the disk would have to be read.
    pub fn read_now(&self, model: &Model, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let length = buffer.len() as u64;
        self.move_now(model, Op::Read, offset, length, |backing| backing.read_now(buffer, offset))
    }

    /// A small read or write whose data the caller moves, for a model without a clock. `WouldBlock` of `move_data` means
    /// that the caller repeats it by another way.
    #[inline]
    pub fn move_now(
        &self,
        model: &Model,
        op: Op,
        offset: u64,
        length: u64,
        mut move_data: impl FnMut(&Backing) -> io::Result<()>,
    ) -> io::Result<()> {
        self.serve_unrecorded(model, op, offset, length, || false, |_, _| move_data(&self.backing))?;
        // Only now, because a blocking request is repeated.
        drop(self.record(op, offset, length));
        Ok(())
    }

    /// Writes.
    pub fn write<A: Into<Awaited>>(
        &self,
        model: &Model,
        buffer: &[u8],
        offset: u64,
        flags: Flags,
        awaited: impl FnMut() -> A,
    ) -> io::Result<()> {
        let length = buffer.len() as u64;
        self.serve(model, Op::Write, offset, length, awaited, |at, bytes| {
            let from = exact::<usize>(at - offset);
            let last = at + bytes == offset + length;
            self.backing.write(&buffer[from..from + exact::<usize>(bytes)], at, flags.fua && last)
        })
    }

    /// Puts everything answered so far on stable storage.
    pub fn flush<A: Into<Awaited>>(&self, model: &Model, awaited: impl FnMut() -> A) -> io::Result<()> {
        self.serve(model, Op::Flush, 0, 0, awaited, |_, _| self.backing.flush())
    }

    /// Frees space if the file system can; the content of the range is then undefined for the guest.
    pub fn trim<A: Into<Awaited>>(
        &self,
        model: &Model,
        offset: u64,
        length: u64,
        flags: Flags,
        awaited: impl FnMut() -> A,
    ) -> io::Result<()> {
        self.serve(model, Op::Trim, offset, length, awaited, |at, bytes| {
            match self.backing.punch(at, bytes) {
                Err(e) if !backing::is_unsupported(&e) => return Err(e),
                _ => {}
            }
            if flags.fua && at + bytes == offset + length { self.backing.flush() } else { Ok(()) }
        })
    }

    /// Makes a range read as zeroes. `EOPNOTSUPP` where that would mean writing them.
    pub fn zero<A: Into<Awaited>>(
        &self,
        model: &Model,
        offset: u64,
        length: u64,
        flags: Flags,
        awaited: impl FnMut() -> A,
    ) -> io::Result<()> {
        self.serve(model, Op::WriteZeroes, offset, length, awaited, |at, bytes| {
            let zeroed = if flags.may_trim { self.backing.punch(at, bytes) } else { self.backing.zero(at, bytes) };
            match zeroed {
                Err(e) if backing::is_unsupported(&e) => return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
                Err(e) => return Err(e),
                Ok(()) => {}
            }
            if flags.fua && at + bytes == offset + length { self.backing.flush() } else { Ok(()) }
        })
    }

    /// Makes a range read as zeroes, by writing them if the file system has no fast operation.
    pub fn zero_or_write<A: Into<Awaited>>(
        &self,
        model: &Model,
        offset: u64,
        length: u64,
        flags: Flags,
        mut awaited: impl FnMut() -> A,
    ) -> io::Result<()> {
        match self.zero(model, offset, length, flags, &mut awaited) {
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
            done => return done,
        }
        let mut done = 0;
        while done < length {
            if awaited().into() != Awaited::Yes {
                return Err(io::Error::from_raw_os_error(libc::ESHUTDOWN));
            }
            let piece = (length - done).min(ZEROES.len() as u64);
            let flags = Flags { fua: flags.fua && done + piece == length, ..flags };
            self.write(model, &ZEROES[..exact::<usize>(piece)], offset + done, flags, &mut awaited)?;
            done += piece;
        }
        Ok(())
    }

    /// Submits a request to the model, moves its data, and returns when the model has completed it. A large one is done
    /// piece by piece.
    #[inline]
    fn serve<A: Into<Awaited>>(
        &self,
        model: &Model,
        op: Op,
        offset: u64,
        length: u64,
        awaited: impl FnMut() -> A,
        move_data: impl FnMut(u64, u64) -> io::Result<()>,
    ) -> io::Result<()> {
        let _outstanding = self.record(op, offset, length);
        self.serve_unrecorded(model, op, offset, length, awaited, move_data)
    }

    #[inline]
    fn serve_unrecorded<A: Into<Awaited>>(
        &self,
        model: &Model,
        op: Op,
        offset: u64,
        length: u64,
        mut awaited: impl FnMut() -> A,
        mut move_data: impl FnMut(u64, u64) -> io::Result<()>,
    ) -> io::Result<()> {
        let arrived = Instant::now();
        let (end, most) = (offset.saturating_add(length), model.piece_bytes(op));
        self.check(op, end, awaited().into())?;
        if length <= most {
            let request = Request { tenant: self.tenant, op, offset, length, is_piece: false };
            self.serve_piece(model, request, arrived, &mut awaited, &mut move_data)?;
        } else {
            let turn = match op {
                Op::Read | Op::Write | Op::Flush => None,
                Op::Trim | Op::WriteZeroes => Some(self.turn_in_pieces(&mut awaited)?),
            };
            let mut at = offset;
            while at < end {
                let piece = (most - at % most).min(end - at);
                let request = Request { tenant: self.tenant, op, offset: at, length: piece, is_piece: true };
                let worked = self.serve_piece(model, request, Instant::now(), &mut awaited, &mut move_data)?;
                if turn.is_some() {
                    // Locks of the model and of the file system go to who asks first, which others would hardly ever do.
                    thread::sleep(worked.min(MOST_PAUSE));
                }
                at += piece;
            }
        }
        self.answered.count(op, length);
        let took = arrived.elapsed() + model.on_top();
        self.latencies.record(op, took);
        self.histograms.record(op, model.modelled(took));
        Ok(())
    }

    /// Serves a request, or a piece of it; returns how long that took, without waiting for the model.
    fn serve_piece<A: Into<Awaited>>(
        &self,
        model: &Model,
        request: Request,
        arrived: Instant,
        awaited: &mut impl FnMut() -> A,
        move_data: &mut impl FnMut(u64, u64) -> io::Result<()>,
    ) -> io::Result<Duration> {
        let Request { op, offset, length, .. } = request;
        let in_progress = self.in_progress.read().unwrap_or_else(PoisonError::into_inner);
        let is_in_time = self.check(op, offset.saturating_add(length), awaited().into())? == Awaited::Yes;
        let ticket = model.begin(request, arrived);
        let moved = move_data(offset, length);
        let (waits, worked) = (ticket.waits(), arrived.elapsed());
        // A caller that closes or shrinks the namespace does not wait for the model.
        let _until_it_is_counted = (!waits).then_some(in_progress);
        let ticket = if is_in_time { ticket } else { Ticket::given_up() };
        let mut still = || self.check(op, 0, awaited().into());
        model.end(request, ticket, moved.is_ok(), || !matches!(still(), Ok(Awaited::Yes)));
        moved.map(|()| if waits { worked } else { arrived.elapsed() })
    }

    /// Err for a request that must not be carried out, or not any more.
    fn check(&self, op: Op, end: u64, awaited: Awaited) -> io::Result<Awaited> {
        let refused = if !self.open.load(Ordering::SeqCst) {
            libc::ENXIO
        } else if end > self.size_bytes() {
            if op == Op::Read { libc::EINVAL } else { libc::ENOSPC }
        } else if awaited == Awaited::No {
            libc::ESHUTDOWN
        } else {
            return Ok(awaited);
        };
        Err(io::Error::from_raw_os_error(refused))
    }

    /// Waits for other such requests of this namespace. Err if the client no longer waits.
    fn turn_in_pieces<A: Into<Awaited>>(&self, awaited: &mut impl FnMut() -> A) -> io::Result<MutexGuard<'_, ()>> {
        let turn = lock(&self.in_pieces);
        if awaited().into() == Awaited::Yes { Ok(turn) } else { Err(io::Error::from_raw_os_error(libc::ESHUTDOWN)) }
    }
}

/// Path of the data of a namespace with that name.
#[must_use]
pub fn path_in(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.img"))
}
