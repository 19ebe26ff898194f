//! The device over NBD: one Unix socket for each namespace, and one for all of them.
//!
//! [`negotiation`] is the handshake of a client, [`connection`] serves it afterwards, [`protocol`] has the bytes of
//! both; [`tls`] encrypts them. The exports that a client may use depend on the socket that it connects to.

mod connection;
mod negotiation;
mod protocol;
#[cfg(test)]
mod tests;
mod tls;

use std::collections::HashMap;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};
use std::{iter, mem};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::descriptors::{Owner, Taken};
use crate::error::ServeError;
use crate::inherited;
use crate::occasional_log::OccasionalLog;
use crate::parameters::{Latency, Parameters};
use crate::server::Server;
use crate::threads::{self, lock};
use connection::{Connection, Rooms};

/// Largest number of connections per socket. Each has its own threads and descriptors.
const MAX_CONNECTIONS: usize = 16;
/// The same including connections whose client has left, which end after their requests.
const MAX_CLOSING: usize = 128;
/// Maximum concurrent requests of each connection: each that waits for the modelled drive takes a thread.
const THREADS: usize = 4;
const TIMED_THREADS: usize = 128;
/// Interval of checks whether connections have ended.
const ENDING_CHECK: Duration = Duration::from_millis(5);
/// After a connection could not be accepted, most likely for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Time for requests in progress when the server stops; then their connections are closed.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
const CUT_TIMEOUT: Duration = Duration::from_secs(2);

/// State that all connections share.
pub struct Front {
    server: &'static Server,
    tls: Option<tls::Certificates>,
    threads: usize,
    rooms: Mutex<HashMap<String, Arc<Rooms>>>,
    stopping: AtomicBool,
    failures: OccasionalLog,
    /// Sockets of namespaces that were added since, until [`Nbd::listen`] takes them.
    added: Mutex<Vec<(UnixListener, String)>>,
    /// Readable when there are some, or sockets of deleted namespaces.
    is_changed: OwnedFd,
}

impl Front {
    /// Accepts clients of a namespace on one more socket, in place of another one of that name.
    pub fn add(&self, listener: UnixListener, namespace: &str) -> Result<(), ServeError> {
        self.server.descriptors.add([Owner::Nbd(Some(namespace.to_owned()))])?;
        listener.set_nonblocking(false).map_err(|e| ServeError::File(e.to_string()))?;
        lock(&self.added).push((listener, namespace.to_owned()));
        self.wake();
        Ok(())
    }

    /// Has [`Nbd::listen`] look for added and deleted namespaces.
    fn wake(&self) {
        // Fails only if it is readable already.
        let _readable = rustix::io::write(&self.is_changed, &1_u64.to_ne_bytes());
    }

    fn rooms_of(&self, namespace: &str) -> Arc<Rooms> {
        let mut rooms = lock(&self.rooms);
        // Names of exports come and go, and one without connections needs none.
        rooms.retain(|_, rooms| Arc::strong_count(rooms) > 1);
        let new = || Arc::new(Rooms::new(&self.server.request_memory));
        Arc::clone(rooms.entry(namespace.to_owned()).or_insert_with(new))
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }
}

/// A listening socket and its connections.
struct Socket {
    listener: UnixListener,
    /// The only namespace of the socket; None: all.
    only: Option<String>,
    connections: Vec<Weak<UnixStream>>,
}

impl Socket {
    fn new(listener: UnixListener, only: Option<String>) -> Self {
        Self { listener, only, connections: Vec::new() }
    }
}

/// The front end.
pub struct Nbd {
    front: &'static Front,
    sockets: Vec<Socket>,
    refused: OccasionalLog,
    not_accepted: OccasionalLog,
}

impl Nbd {
    /// Adds the listening sockets, without accepting connections yet.
    pub fn new(server: &'static Server, parameters: &Parameters) -> Result<Self, ServeError> {
        let is_timed = parameters.latency == Latency::Real;
        let front = Front {
            server,
            tls: parameters
                .tls_certificates
                .as_deref()
                .map(|folder| tls::Certificates::read(folder, parameters.tls_verify_peer))
                .transpose()?,
            threads: parameters.threads.unwrap_or(if is_timed { TIMED_THREADS } else { THREADS }),
            rooms: Mutex::default(),
            stopping: AtomicBool::new(false),
            failures: OccasionalLog::default(),
            added: Mutex::default(),
            is_changed: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(|e| ServeError::File(format!("cannot make an event descriptor: {e}")))?,
        };
        let mut sockets = Vec::new();
        for (fd, only) in &parameters.nbd_fds {
            let listener = UnixListener::from(inherited::take(*fd));
            listener
                .local_addr()
                .and_then(|_| listener.set_nonblocking(false))
                .map_err(|e| ServeError::File(format!("nbd-fd={fd} is not a listening socket: {e}")))?;
            sockets.push(Socket::new(listener, only.clone()));
        }
        // Threads that outlast a stop still use it.
        let front: &'static Front = Box::leak(Box::new(front));
        // Set before by another one, which has no sockets of namespaces.
        let _set = server.after_deletion.set(Box::new(|| front.wake()));
        Ok(Self { front, sockets, refused: OccasionalLog::default(), not_accepted: OccasionalLog::default() })
    }

    /// Channel through which other threads add sockets.
    pub fn front(&self) -> &'static Front {
        self.front
    }

    /// Adds sockets of new namespaces, and closes those of deleted namespaces.
    fn take_changes(&mut self) {
        // If there is nothing to read, an earlier iteration has read it.
        let _none = rustix::io::read(&self.front.is_changed, &mut [0; 8]);
        let added = mem::take(&mut *lock(&self.front.added));
        for (listener, name) in added {
            match self.sockets.iter_mut().find(|socket| socket.only.as_deref() == Some(&name)) {
                Some(socket) => socket.listener = listener,
                None => self.sockets.push(Socket::new(listener, Some(name))),
            }
        }
        let server = self.front.server;
        self.sockets.retain(|socket| {
            let is_gone = socket.only.as_ref().is_some_and(|name| server.namespace(name).is_none());
            // Sockets with clients are closed later, so that a stop can wait for the clients.
            let stays = !is_gone || socket.connections.iter().any(|each| each.strong_count() > 0);
            if !stays {
                server.descriptors.remove(&Owner::Nbd(socket.only.clone()));
            }
            stays
        });
    }

    /// Accepts clients until one of the descriptors `stop` becomes readable.
    pub fn listen(&mut self, stop: &[BorrowedFd<'_>]) -> Result<(), ServeError> {
        loop {
            let ready = {
                let changed = iter::once(self.front.is_changed.as_fd());
                let listeners = self.sockets.iter().map(|socket| socket.listener.as_fd());
                let watched = stop.iter().copied().chain(changed).chain(listeners);
                let mut polled: Vec<PollFd<'_>> =
                    watched.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
                match poll(&mut polled, None) {
                    Ok(_) => {}
                    Err(rustix::io::Errno::INTR) => continue,
                    Err(e) => return Err(ServeError::File(format!("cannot wait for clients: {e}"))),
                }
                polled.iter().map(|each| !each.revents().is_empty()).collect::<Vec<_>>()
            };
            let (stops, rest) = ready.split_at(stop.len());
            if stops.contains(&true) {
                return Ok(());
            }
            if rest[0] {
                self.take_changes();
                continue;
            }
            let sockets = &rest[1..];
            // One of each, so that no socket has to wait for many clients at another.
            let mut failed = false;
            for (socket, _) in self.sockets.iter_mut().zip(sockets).filter(|(_, ready)| **ready) {
                match socket.listener.accept() {
                    Ok((stream, _)) => socket.admit(self.front, stream, &self.refused),
                    Err(e) => {
                        self.not_accepted.say(|| format!("cannot accept clients: {e}"));
                        failed = true;
                    }
                }
            }
            if failed {
                thread::sleep(ACCEPT_PAUSE);
            }
        }
    }

    /// Closes every connection after its requests are answered.
    pub fn stop(self) {
        self.front.stopping.store(true, Ordering::Relaxed);
        let connections: Vec<_> = self.sockets.into_iter().flat_map(|socket| socket.connections).collect();
        for (how, timeout) in [(Shutdown::Read, STOP_TIMEOUT), (Shutdown::Both, CUT_TIMEOUT)] {
            for stream in connections.iter().filter_map(Weak::upgrade) {
                // The client may have done so before.
                let _ended = stream.shutdown(how);
            }
            let deadline = Instant::now() + timeout;
            while connections.iter().any(|each| each.strong_count() > 0) {
                if Instant::now() >= deadline {
                    break;
                }
                thread::sleep(ENDING_CHECK);
            }
        }
    }
}

impl Socket {
    fn admit(&mut self, front: &'static Front, stream: UnixStream, refused: &OccasionalLog) {
        self.connections.retain(|each| each.strong_count() > 0);
        let is_alive = |each: &Weak<UnixStream>| each.upgrade().is_some_and(|stream| !has_hung_up(&stream));
        let alive = self.connections.iter().filter(|each| is_alive(each)).count();
        let name = self.only.as_deref().unwrap_or("all namespaces");
        if alive >= MAX_CONNECTIONS || self.connections.len() >= MAX_CLOSING {
            refused.say(|| format!("refused a connection to {name}: a socket accepts {MAX_CONNECTIONS} at once"));
            return;
        }
        let descriptors = &front.server.descriptors;
        let Some(taken) = descriptors.take(&Owner::Nbd(self.only.clone()), descriptors.nbd_connection()) else {
            refused.say(|| {
                format!("refused a connection to {name}: the remaining file descriptors are reserved for other sockets")
            });
            return;
        };
        let (stream, only) = (Arc::new(stream), self.only.clone());
        let ending: Vec<_> = self.connections.iter().filter(|each| !is_alive(each)).cloned().collect();
        self.connections.push(Arc::downgrade(&stream));
        let serve = move || {
            outlast(front, &ending, &stream);
            converse(front, stream, only.as_deref(), Some(taken));
            if only.is_some_and(|name| front.server.namespace(&name).is_none()) {
                front.wake();
            }
        };
        if let Err(e) = threads::start("slo-ctl nbd", serve) {
            refused.say(|| format!("refused a connection: {e}"));
        }
    }
}

/// Returns when clients that have hung up have no more requests in progress: a request that a client had still sent
/// must not overwrite its data after it has reconnected, or after its VM was restarted.
fn outlast(front: &Front, ending: &[Weak<UnixStream>], client: &UnixStream) {
    while ending.iter().any(|each| each.strong_count() > 0) && !front.is_stopping() && !has_hung_up(client) {
        thread::sleep(ENDING_CHECK);
    }
}

/// Serves a client until it leaves. With `only`, that namespace is all it may see. It has `descriptors`, where they are
/// counted.
pub fn converse(front: &'static Front, stream: Arc<UnixStream>, only: Option<&str>, descriptors: Option<Taken>) {
    // A client that disconnects during the handshake is not logged.
    if let Ok(Some(agreed)) = negotiation::negotiate(front, Arc::clone(&stream), only) {
        Connection::serve(front, stream, agreed, descriptors);
    }
}

/// Whether the peer has closed the connection.
fn has_hung_up(stream: &UnixStream) -> bool {
    let mut polled = [PollFd::new(stream, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok() && polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}
