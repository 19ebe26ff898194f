//! A connection after the handshake: requests are read, carried out and answered, many at once.
//!
//! One thread at a time reads. It carries out requests that take no longer than handing them over would, and collects
//! their replies until it would have to wait for the client. For any other request it lets another thread read, carries
//! the request out and answers it. Threads are started if none is left to read, up to a limit; then the client waits.

use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use ftl_core::convert::exact;

use crate::descriptors::Taken as Descriptors;
use crate::namespace::{Awaited, Flags, Namespace};
use crate::nbd::negotiation::Agreed;
use crate::nbd::protocol::{MAX_PAYLOAD_BYTES, Replies, Request, STATE_HOLE, STATE_ZERO, block_status, command, flag};
use crate::nbd::{Front, has_hung_up};
use crate::outgoing::Outgoing;
use crate::polling::Polling;
use crate::request_memory::{Pool, Room, Taken};
use crate::threads::{self, lock};

/// Largest reads and writes that the reading thread executes itself.
const QUICK_BYTES: usize = 64 << 10;
/// Size of a read from the client: a quick write and further requests.
const INCOMING_BYTES: usize = 2 * QUICK_BYTES;
/// Bytes of replies to quick requests that are sent together.
const REPLIES_BYTES: usize = 256 << 10;
/// Reserved memory of an export, for the data of reads and of writes each.
const OWN_BYTES: usize = 2 << 20;
/// Largest reply without data.
const HEAD_BYTES: usize = 32;
/// Size of the pieces of a large request for which there is not enough memory.
const PIECE_BYTES: usize = 1 << 20;
/// Largest number of extents in a block status reply; the client requests the rest.
const MAX_EXTENTS: usize = 4096;
/// Interval at which it is checked whether a client has hung up, in microseconds.
const ASKED_EVERY_US: u64 = 1000;

/// Room of one export. Reads and writes have their own: a client may send a write before it takes what it has read.
#[derive(Debug)]
pub struct Rooms {
    reads: Arc<Room>,
    writes: Arc<Room>,
}

impl Rooms {
    /// Memory of a new export.
    pub fn new(pool: &Arc<Pool>) -> Self {
        Self { reads: Room::new(pool, OWN_BYTES), writes: Room::new(pool, OWN_BYTES) }
    }
}

/// Received bytes that are not carried out yet, and replies that are not sent yet.
struct Incoming {
    buffer: Box<[u8]>,
    begin: usize,
    end: usize,
    replies: Outgoing,
    polling: Polling,
}

/// A request that takes longer, with its data.
struct Work {
    request: Request,
    data: Vec<u8>,
    _room: Option<Taken>,
}

/// How a completed request is answered.
enum Reply {
    /// With this, the memory of which is free again afterwards.
    Whole(Vec<u8>, Option<Taken>),
    /// There is only the result.
    Done,
    /// It has been answered.
    Sent,
}

/// See the module.
pub struct Connection {
    front: &'static Front,
    stream: Arc<UnixStream>,
    /// Socket of the client; differs from `stream` with TLS.
    client: Arc<UnixStream>,
    namespace: Arc<Namespace>,
    replies: Replies,
    allocation: bool,
    rooms: Arc<Rooms>,
    incoming: Mutex<Incoming>,
    sending: Mutex<()>,
    threads: AtomicUsize,
    /// Threads that wait to read.
    idle: AtomicUsize,
    /// Nothing more is read.
    closed: AtomicBool,
    began: Instant,
    /// Microseconds after `began` until which the client is not asked whether it has hung up.
    asked_until_us: AtomicU64,
    /// Until the last thread has ended, and with it the fields above.
    _descriptors: Option<Descriptors>,
}

impl Connection {
    /// Serves requests until the client disconnects, in this thread and others.
    pub fn serve(front: &'static Front, client: Arc<UnixStream>, agreed: Agreed, descriptors: Option<Descriptors>) {
        let incoming = Incoming {
            buffer: vec![0; INCOMING_BYTES].into(),
            begin: 0,
            end: 0,
            replies: Outgoing::default(),
            polling: Polling::new(front.server.max_poll),
        };
        let connection = Arc::new(Self {
            front,
            stream: agreed.stream,
            client,
            replies: Replies { structured: agreed.structured },
            allocation: agreed.allocation,
            rooms: front.rooms_of(&agreed.namespace.name),
            namespace: agreed.namespace,
            incoming: Mutex::new(incoming),
            sending: Mutex::new(()),
            threads: AtomicUsize::new(1),
            idle: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            began: Instant::now(),
            asked_until_us: AtomicU64::new(0),
            _descriptors: descriptors,
        });
        connection.work();
    }

    /// Reads and carries out requests until the connection ends.
    fn work(self: &Arc<Self>) {
        loop {
            self.idle.fetch_add(1, Ordering::Relaxed);
            let mut incoming = lock(&self.incoming);
            self.idle.fetch_sub(1, Ordering::Relaxed);
            if self.closed.load(Ordering::Relaxed) {
                return;
            }
            // After a panic the read position is unknown, so the connection is closed.
            let next = catch_unwind(AssertUnwindSafe(|| self.next(&mut incoming)));
            let Ok(Ok(work)) = next else {
                self.closed.store(true, Ordering::Relaxed);
                return;
            };
            if self.idle.load(Ordering::Relaxed) == 0 {
                self.start_thread();
            }
            drop(incoming);
            self.carry_out(work);
        }
    }

    fn start_thread(self: &Arc<Self>) {
        if self.threads.load(Ordering::Relaxed) >= self.front.threads {
            return;
        }
        let another = Arc::clone(self);
        let started = threads::builder("slo-ctl nbd").and_then(|builder| builder.spawn(move || another.work()));
        // Without it, the next request is read later.
        if started.is_ok() {
            self.threads.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Carries out requests as long as they are quick; returns the first that is not. Err when the connection is to end.
    fn next(&self, incoming: &mut Incoming) -> io::Result<Work> {
        loop {
            if incoming.replies.len() >= REPLIES_BYTES {
                self.send_replies(incoming)?;
            }
            let head = self.fill(incoming, Request::BYTES)?;
            let request = Request::parse(head[..].first_chunk().ok_or(ErrorKind::InvalidData)?);
            let Some(request) = request.filter(|request| request.command != command::DISC) else {
                self.send_replies(incoming)?;
                return Err(ErrorKind::InvalidData.into());
            };
            incoming.begin += Request::BYTES;
            let payload = if request.has_payload() { request.length as usize } else { 0 };
            if payload > MAX_PAYLOAD_BYTES as usize {
                self.send_replies(incoming)?;
                return Err(ErrorKind::InvalidData.into());
            }
            if let Err(refused) = self.check(&request) {
                self.skip(incoming, payload)?;
                self.reply(incoming, &request, &Err(refused));
                continue;
            }
            if self.is_quick(&request) {
                self.fill(incoming, payload)?;
                if self.carry_out_quickly(&request, incoming).is_continue() {
                    incoming.begin += payload;
                    continue;
                }
            }
            self.send_replies(incoming)?;
            let (mut data, mut room) = (Vec::new(), None);
            if payload > 0 {
                let taken = self.take(&self.rooms.writes, payload).ok_or(ErrorKind::ConnectionAborted)?;
                if taken.bytes() < payload {
                    self.write_in_pieces(&request, incoming, &taken)?;
                    continue;
                }
                room = Some(taken);
                data = vec![0; payload];
                self.payload(incoming, &mut data)?;
            }
            return Ok(Work { request, data, _room: room });
        }
    }

    /// Returns this many bytes from the client; sends pending replies before it waits for them.
    fn fill<'i>(&self, incoming: &'i mut Incoming, bytes: usize) -> io::Result<&'i [u8]> {
        while incoming.end - incoming.begin < bytes {
            self.send_replies(incoming)?;
            if incoming.begin + bytes > INCOMING_BYTES || incoming.begin == incoming.end {
                incoming.buffer.copy_within(incoming.begin..incoming.end, 0);
                (incoming.begin, incoming.end) = (0, incoming.end - incoming.begin);
            }
            match incoming.polling.receive(&*self.stream, &mut incoming.buffer[incoming.end..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => incoming.end += read,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(&incoming.buffer[incoming.begin..incoming.begin + bytes])
    }

    /// Returns the data of a write, or the next piece of it.
    fn payload(&self, incoming: &mut Incoming, data: &mut [u8]) -> io::Result<()> {
        let there = data.len().min(incoming.end - incoming.begin);
        data[..there].copy_from_slice(&incoming.buffer[incoming.begin..incoming.begin + there]);
        incoming.begin += there;
        (&*self.stream).read_exact(&mut data[there..])
    }

    /// Carries out a write for whose data there is no memory, as it arrives: no other request is read until then. Adds
    /// the reply.
    fn write_in_pieces(&self, request: &Request, incoming: &mut Incoming, room: &Taken) -> io::Result<()> {
        let mut data = vec![0; room.bytes()];
        let (mut at, mut left, mut done) = (request.offset, request.length as usize, Ok(()));
        while left > 0 {
            let piece = &mut data[..left.min(room.bytes())];
            self.payload(incoming, piece)?;
            left -= piece.len();
            if done.is_ok() {
                let flags = Flags { fua: request.has(flag::FUA) && left == 0, ..Flags::default() };
                let written = self.namespace.write(&self.front.server.model, piece, at, flags, || self.awaited());
                at += piece.len() as u64;
                done = written;
            }
        }
        self.note(request, &done);
        self.reply(incoming, request, &done);
        Ok(())
    }

    /// Memory for the data of a request.
    fn take(&self, room: &Arc<Room>, bytes: usize) -> Option<Taken> {
        room.take(bytes, PIECE_BYTES, self.namespace.nsid(), || self.awaited() != Awaited::Yes)
    }

    fn skip(&self, incoming: &mut Incoming, bytes: usize) -> io::Result<()> {
        let mut left = bytes;
        while left > 0 {
            let piece = left.min(QUICK_BYTES);
            self.fill(incoming, piece)?;
            incoming.begin += piece;
            left -= piece;
        }
        Ok(())
    }

    fn send_replies(&self, incoming: &mut Incoming) -> io::Result<()> {
        if incoming.replies.is_empty() {
            return Ok(());
        }
        let sent = self.send(incoming.replies.waiting());
        incoming.replies.clear();
        sent
    }

    /// Err for a request that is not carried out ("Request types", "Size constraints", "Error values").
    fn check(&self, request: &Request) -> io::Result<()> {
        let Request { command, offset, length, .. } = *request;
        let size = self.namespace.size_bytes();
        let is_within = length > 0 && offset.checked_add(u64::from(length)).is_some_and(|end| end <= size);
        let is_valid = !request.has_wrong_flags(self.replies.structured)
            && match command {
                command::FLUSH => offset == 0 && length == 0,
                command::READ => is_within && length <= MAX_PAYLOAD_BYTES,
                command::BLOCK_STATUS => is_within && self.allocation,
                command::WRITE | command::WRITE_ZEROES if length > 0 && !is_within => {
                    return Err(io::Error::from_raw_os_error(libc::ENOSPC));
                }
                command::TRIM | command::WRITE | command::WRITE_ZEROES => is_within,
                _ => false,
            };
        if is_valid { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EINVAL)) }
    }

    /// Whether a request waits neither for the modelled drive nor for stable storage, and moves little.
    fn is_quick(&self, request: &Request) -> bool {
        self.front.server.time_scale.is_none()
            && request.length as usize <= QUICK_BYTES
            && (request.command == command::READ || request.command == command::WRITE && !request.has(flag::FUA))
    }

    /// Carries out a quick request, whose data is all there, and adds the reply. Break for a read that would have to
    /// wait for a disk.
    fn carry_out_quickly(&self, request: &Request, incoming: &mut Incoming) -> ControlFlow<()> {
        let length = request.length as usize;
        let model = &self.front.server.model;
        let done = if request.command == command::READ {
            let mut head = Vec::with_capacity(HEAD_BYTES);
            self.replies.before_data(&mut head, request);
            let (room, at) = (incoming.replies.room(head.len() + length), head.len());
            room[..at].copy_from_slice(&head);
            match self.namespace.read_now(model, &mut room[at..], request.offset) {
                Ok(()) => {
                    incoming.replies.add(at + length);
                    return ControlFlow::Continue(());
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return ControlFlow::Break(()),
                failed => failed,
            }
        } else {
            let data = &incoming.buffer[incoming.begin..incoming.begin + length];
            self.namespace.write(model, data, request.offset, Flags::default(), || false)
        };
        self.note(request, &done);
        self.reply(incoming, request, &done);
        ControlFlow::Continue(())
    }

    /// Adds a reply without data.
    fn reply(&self, incoming: &mut Incoming, request: &Request, result: &io::Result<()>) {
        let mut reply = Vec::with_capacity(HEAD_BYTES);
        self.replies.done(&mut reply, request, result);
        incoming.replies.extend(&reply);
    }

    /// Carries a request out and answers it.
    fn carry_out(&self, work: Work) {
        let request = work.request;
        // A panic ends this request only.
        let done = catch_unwind(AssertUnwindSafe(|| match request.command {
            command::READ => self.read(&request),
            command::BLOCK_STATUS => self.block_status(&request),
            _ => self.change(&work).map(|()| Reply::Done),
        }));
        let done = done.unwrap_or_else(|_| Err(io::Error::from_raw_os_error(libc::EIO)));
        drop(work);
        // The reading thread detects a failure as well.
        let _sent = match done {
            // The memory is free again when the reply was sent.
            Ok(Reply::Whole(reply, _room)) => self.send(&reply),
            Ok(Reply::Sent) => Ok(()),
            Err(e) if e.raw_os_error() == Some(libc::ESHUTDOWN) => {
                // QEMU would pass the error on to its guest, but repeats unanswered requests on a new connection.
                self.end();
                Ok(())
            }
            done => {
                let done = done.map(|_| ());
                self.note(&request, &done);
                let mut reply = Vec::with_capacity(HEAD_BYTES);
                self.replies.done(&mut reply, &request, &done);
                self.send(&reply)
            }
        };
    }

    fn change(&self, work: &Work) -> io::Result<()> {
        let Work { request, data, .. } = work;
        let (namespace, model) = (&self.namespace, &self.front.server.model);
        let (offset, length) = (request.offset, u64::from(request.length));
        let flags = Flags { fua: request.has(flag::FUA), may_trim: !request.has(flag::NO_HOLE) };
        let awaited = || self.awaited();
        match request.command {
            command::WRITE => namespace.write(model, data, offset, flags, awaited),
            command::FLUSH => namespace.flush(model, awaited),
            command::TRIM => namespace.trim(model, offset, length, flags, awaited),
            command::WRITE_ZEROES if request.has(flag::FAST_ZERO) => {
                namespace.zero(model, offset, length, flags, awaited)
            }
            _ => namespace.zero_or_write(model, offset, length, flags, awaited),
        }
    }

    fn read(&self, request: &Request) -> io::Result<Reply> {
        let length = request.length as usize;
        let room = self.take(&self.rooms.reads, length);
        let room = room.ok_or_else(|| io::Error::from_raw_os_error(libc::ESHUTDOWN))?;
        if room.bytes() < length {
            return self.read_in_pieces(request, &room);
        }
        let mut reply = Vec::with_capacity(HEAD_BYTES + length);
        self.replies.before_data(&mut reply, request);
        let data = reply.len();
        reply.resize(data + length, 0);
        self.namespace.read(&self.front.server.model, &mut reply[data..], request.offset, || self.awaited())?;
        Ok(Reply::Whole(reply, Some(room)))
    }

    /// Carries out a read for whose data there is no memory, and sends the data as it is read: other replies of this
    /// connection wait. A reply that has begun cannot report that the rest failed, so the connection is then closed.
    fn read_in_pieces(&self, request: &Request, room: &Taken) -> io::Result<Reply> {
        let read = |data: &mut [u8], at| self.namespace.read(&self.front.server.model, data, at, || self.awaited());
        let (mut data, end) = (vec![0; room.bytes()], request.offset + u64::from(request.length));
        read(&mut data, request.offset)?;
        let mut head = Vec::with_capacity(HEAD_BYTES);
        self.replies.before_data(&mut head, request);
        let sending = lock(&self.sending);
        let mut sent = self.send_next(&sending, &head).and_then(|()| self.send_next(&sending, &data));
        let mut at = request.offset + data.len() as u64;
        while at < end && sent.is_ok() {
            data.truncate(exact::<usize>(end - at));
            sent = match read(&mut data, at) {
                Ok(()) => self.send_next(&sending, &data),
                Err(failed) => {
                    self.note(request, &Err(failed));
                    self.end();
                    break;
                }
            };
            at += data.len() as u64;
        }
        Ok(Reply::Sent)
    }

    fn block_status(&self, request: &Request) -> io::Result<Reply> {
        let end = request.offset + u64::from(request.length);
        let most = if request.has(flag::REQ_ONE) { 1 } else { MAX_EXTENTS };
        let mut extents: Vec<(u32, u32)> = Vec::new();
        let mut at = request.offset;
        while at < end {
            let extent = self.namespace.backing.extent_at(at, end)?;
            let (length, state) = (exact::<u32>(extent.length), if extent.hole { STATE_HOLE | STATE_ZERO } else { 0 });
            let count = extents.len();
            match extents.last_mut() {
                Some((before, same)) if *same == state => *before += length,
                _ if count == most => break,
                _ => extents.push((length, state)),
            }
            at += extent.length;
        }
        Ok(Reply::Whole(block_status(request, &extents), None))
    }

    /// Logs a failure that is not the client's fault. Upkeep reports a full disk; ENXIO means that the namespace was
    /// removed.
    fn note(&self, request: &Request, done: &io::Result<()>) {
        let Err(e) = done else { return };
        if !matches!(
            e.raw_os_error(),
            Some(libc::EOPNOTSUPP | libc::ENOSPC | libc::EINVAL | libc::ESHUTDOWN | libc::ENXIO)
        ) {
            let what = match request.command {
                command::READ => "read",
                command::WRITE => "write",
                command::FLUSH => "flush",
                command::TRIM => "trim",
                command::WRITE_ZEROES => "write zeroes",
                _ => "block status",
            };
            self.front.failures.say(|| format!("namespace {}: {what}: {e}", self.namespace.name));
        }
    }

    fn awaited(&self) -> Awaited {
        if self.front.is_stopping() {
            Awaited::Soon
        } else if self.has_hung_up() {
            Awaited::No
        } else if self.closed.load(Ordering::Relaxed) {
            Awaited::Soon
        } else {
            Awaited::Yes
        }
    }

    /// Whether the client has hung up by the last time that it was asked; every request asks, and asking is a system call.
    fn has_hung_up(&self) -> bool {
        let now_us = exact::<u64>(self.began.elapsed().as_micros());
        if now_us < self.asked_until_us.load(Ordering::Relaxed) {
            return false;
        }
        let has_hung_up = has_hung_up(&self.client);
        if !has_hung_up {
            self.asked_until_us.store(now_us + ASKED_EVERY_US, Ordering::Relaxed);
        }
        has_hung_up
    }

    /// Sends a reply, or several. After a failure the connection is of no use.
    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let sending = lock(&self.sending);
        self.send_next(&sending, bytes)
    }

    /// Sends a reply, exclusively.
    fn send_next(&self, _one_at_a_time: &MutexGuard<'_, ()>, bytes: &[u8]) -> io::Result<()> {
        (&*self.stream).write_all(bytes).inspect_err(|_| self.end())
    }

    fn end(&self) {
        self.closed.store(true, Ordering::Relaxed);
        // The client may have done so before.
        let _ended = self.stream.shutdown(Shutdown::Both);
    }
}
