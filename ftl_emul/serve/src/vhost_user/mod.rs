//! Namespaces as virtio block devices for VMs that share their memory with this process (vhost-user protocol), in
//! addition to NBD and NVMe/TCP: one socket for each namespace, and one client at a time on each.
//!
//! A [`session`] is a client, with its [`memory`]; its [`virtqueue`]s take [`request`]s, some of which are left to
//! [`workers`], and note them in memory that survives this process ([`in_flight`]).

mod in_flight;
mod memory;
pub mod request;
mod session;
#[cfg(test)]
mod tests;
pub mod virtqueue;
mod workers;

use std::io;
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ftl_core::convert::exact;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketType, recv, recvmsg, send,
    shutdown, sockopt,
};
use vhost::vhost_user::BackendReqHandler;

use crate::descriptors::{Owner, Taken, VHOST_USER_CLIENT};
use crate::error::ServeError;
use crate::inherited;
use crate::namespace::Namespace;
use crate::occasional_log::OccasionalLog;
use crate::parameters::Parameters;
use crate::server::Server;
use crate::threads::{self, lock};
use request::Disk;
use session::{Serving, Session};

/// Interval of checks of the sizes of namespaces.
const LOOKING: Duration = Duration::from_millis(100);
/// Time that a new client waits for the end of the one before it.
const ONE_BEFORE: Duration = Duration::from_secs(5);
/// Time that a stop waits for requests in progress.
const STOPPING: Duration = Duration::from_secs(15);

/// The header of a message ("Message Specification"): request, flags, size.
const MESSAGE_BYTES: usize = 12;
/// `VHOST_USER_SET_BACKEND_REQ_FD`, which the library takes without a way to send what is needed here.
const SET_BACKEND_REQ_FD: u32 = 21;
/// `VHOST_USER_BACKEND_CONFIG_CHANGE_MSG`, of the other direction.
const CONFIG_CHANGE: u32 = 2;
/// Flags: version 1; this is a reply; one is wanted.
const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// A client that is connected.
struct Client {
    stream: UnixStream,
    /// Channel for messages of this server.
    messages: Mutex<Option<UnixStream>>,
}

/// A namespace and its socket.
struct Slot {
    namespace: Arc<Namespace>,
    listener: UnixListener,
    current: Mutex<Option<Arc<Client>>>,
    free: Condvar,
    size_bytes: AtomicU64,
    log: Arc<OccasionalLog>,
}

/// See the module.
pub struct VhostUser {
    server: &'static Server,
    slots: Mutex<Vec<Arc<Slot>>>,
    stopping: AtomicBool,
}

/// Starts to listen on inherited sockets, each of which belongs to the namespace of that name; None without any.
pub fn start(server: &'static Server, parameters: &Parameters) -> Result<Option<Arc<VhostUser>>, ServeError> {
    let listening = &parameters.vhost_user_fds;
    if listening.is_empty() {
        return Ok(None);
    }
    let served = Arc::new(VhostUser { server, slots: Mutex::default(), stopping: AtomicBool::new(false) });
    for (fd, name) in listening {
        // Without a namespace if it was deleted since the sockets were opened.
        if let Some(namespace) = server.namespace(name) {
            served.add(UnixListener::from(inherited::take(*fd)), namespace)?;
        }
    }
    let here = Arc::clone(&served);
    threads::start("slo-ctl vhost look", move || here.look_after())?;
    Ok(Some(served))
}

impl VhostUser {
    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Serves a namespace on a socket, unless it has one.
    pub fn add(self: &Arc<Self>, listener: UnixListener, namespace: Arc<Namespace>) -> Result<(), ServeError> {
        if listener.set_nonblocking(false).is_err() {
            return Err(ServeError::File(format!("vhost-user: not a usable socket for namespace {}", namespace.name)));
        }
        let mut slots = lock(&self.slots);
        if slots.iter().any(|slot| Arc::ptr_eq(&slot.namespace, &namespace)) {
            return Ok(());
        }
        self.server.descriptors.add([Owner::VhostUser(namespace.name.clone())])?;
        let size_bytes = AtomicU64::new(namespace.size_bytes());
        let (current, free, log) = (Mutex::default(), Condvar::new(), Arc::default());
        let slot = Arc::new(Slot { namespace, listener, current, free, size_bytes, log });
        let (here, its_slot) = (Arc::clone(self), Arc::clone(&slot));
        threads::start("slo-ctl vhost accept", move || here.listen(&its_slot))?;
        slots.push(slot);
        Ok(())
    }

    fn is_there(&self, slot: &Slot) -> bool {
        let namespace = self.server.namespace(&slot.namespace.name);
        namespace.is_some_and(|namespace| Arc::ptr_eq(&namespace, &slot.namespace))
    }

    fn listen(self: &Arc<Self>, slot: &Arc<Slot>) {
        while !self.is_stopping() && self.is_there(slot) {
            match slot.listener.accept() {
                Ok((stream, _)) => self.admit(slot, stream),
                Err(_) if !self.is_there(slot) => return,
                Err(e) => {
                    // Most likely out of descriptors: other clients may release some.
                    slot.say(&format!("cannot accept clients: {e}"));
                    thread::sleep(LOOKING);
                }
            }
        }
    }

    /// Serves a client in a separate thread, unless there is another one. Further clients wait to be accepted.
    fn admit(self: &Arc<Self>, slot: &Arc<Slot>, stream: UnixStream) {
        let client = match stream.try_clone() {
            Ok(own) => Arc::new(Client { stream: own, messages: Mutex::default() }),
            Err(e) => return slot.say(&format!("cannot accept clients: {e}")),
        };
        {
            let waited = slot.free.wait_timeout_while(slot.current(), ONE_BEFORE, |current| current.is_some());
            let (mut current, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if current.is_some() || self.is_stopping() {
                drop(current);
                return slot.say("refused a second client: a VM uses this namespace over vhost-user already");
            }
            *current = Some(Arc::clone(&client));
        }
        let owner = Owner::VhostUser(slot.namespace.name.clone());
        let Some(descriptors) = self.server.descriptors.take(&owner, VHOST_USER_CLIENT) else {
            // The namespace is gone: a client always has one otherwise.
            return slot.release();
        };
        let (here, its_slot) = (Arc::clone(self), Arc::clone(slot));
        let serve = move || {
            match catch_unwind(AssertUnwindSafe(|| here.serve(&its_slot, stream, &client, descriptors))) {
                Ok(Ok(())) => {}
                Ok(Err(e)) => its_slot.say(&format!("a connection was closed: {e}")),
                Err(_) => its_slot.say("a client ends: internal error, please report it"),
            }
            its_slot.release();
        };
        if threads::start("slo-ctl vhost client", serve).is_err() {
            // Without a thread the connection is dropped, and the client tries again.
            slot.release();
        }
    }

    fn serve(&self, slot: &Slot, stream: UnixStream, client: &Client, descriptors: Taken) -> io::Result<()> {
        // A client that may stop this server needs no other way to do so.
        let peer = sockopt::socket_peercred(&stream)?;
        let is_trusted = peer.uid.is_root() || peer.uid == rustix::process::geteuid();
        let server = self.server;
        let (namespace, log) = (Arc::clone(&slot.namespace), Arc::clone(&slot.log));
        let disk = Disk::new(namespace, &server.model, &server.config.name, log);
        let serving = Serving {
            granule_bytes: server.config.granule_bytes(),
            is_untimed: server.time_scale.is_none(),
            is_trusted,
            max_poll: server.max_poll,
        };
        let session = Arc::new(Mutex::new(Session::new(Arc::new(disk), &server.request_memory, serving, descriptors)));
        let mut handler = BackendReqHandler::from_stream(stream, Arc::clone(&session));
        let ended = catch_unwind(AssertUnwindSafe(|| {
            loop {
                match next_message(&client.stream)? {
                    None => return Ok(()),
                    Some(SET_BACKEND_REQ_FD) => {
                        let takes_messages = lock(&session).takes_messages();
                        let given = take_message_socket(&client.stream)?;
                        *lock(&client.messages) = given.filter(|_| takes_messages);
                    }
                    Some(_) => handler.handle_request().map_err(|e| io::Error::other(e.to_string()))?,
                }
            }
        }));
        // A server that stops completes requests in progress; otherwise no client waits for them.
        lock(&session).close(!self.is_stopping());
        ended.unwrap_or_else(|_| Err(io::Error::other("internal error, please report it")))
    }

    /// Notifies clients of namespaces whose size has changed, and closes the sockets of deleted namespaces.
    fn look_after(&self) {
        while !self.is_stopping() {
            lock(&self.slots).retain(|slot| {
                let is_there = self.is_there(slot);
                if !is_there {
                    // Wakes the thread that waits for clients. Without one, the client ends with its namespace.
                    let _closed = shutdown(&slot.listener, rustix::net::Shutdown::Both);
                    slot.hang_up();
                    self.server.descriptors.remove(&Owner::VhostUser(slot.namespace.name.clone()));
                }
                is_there
            });
            for slot in self.slots() {
                let size_bytes = slot.namespace.size_bytes();
                if slot.size_bytes.swap(size_bytes, Ordering::Relaxed) != size_bytes {
                    slot.announce_change();
                }
            }
            thread::sleep(LOOKING);
        }
    }

    fn slots(&self) -> Vec<Arc<Slot>> {
        lock(&self.slots).clone()
    }

    /// Ends every client once its requests in work are answered.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        let slots = self.slots();
        for slot in &slots {
            slot.hang_up();
        }
        let deadline = Instant::now() + STOPPING;
        for slot in &slots {
            let left = deadline.saturating_duration_since(Instant::now());
            drop(slot.free.wait_timeout_while(slot.current(), left, |current| current.is_some()));
        }
    }
}

impl Slot {
    fn current(&self) -> MutexGuard<'_, Option<Arc<Client>>> {
        lock(&self.current)
    }

    /// Stops reading messages of the client, if there is one.
    fn hang_up(&self) {
        if let Some(client) = &*self.current() {
            // It may have disconnected before.
            let _gone = client.stream.shutdown(Shutdown::Read);
        }
    }

    /// The client has disconnected.
    fn release(&self) {
        *self.current() = None;
        self.free.notify_all();
    }

    /// Logs a message about a client, at a limited rate.
    fn say(&self, what: &str) {
        self.log.say(|| format!("vhost-user: namespace {}: {what}", self.namespace.name));
    }

    fn announce_change(&self) {
        let Some(client) = self.current().clone() else { return };
        let message = header(CONFIG_CHANGE, VERSION, 0);
        if let Some(messages) = &*lock(&client.messages) {
            // A client that does not read gets the new size when it asks.
            let _not_sent = send(messages, &message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
    }
}

fn header(request: u32, flags: u32, size: u32) -> [u8; MESSAGE_BYTES] {
    let mut bytes = [0; MESSAGE_BYTES];
    for (part, value) in bytes.chunks_exact_mut(4).zip([request, flags, size]) {
        part.copy_from_slice(&value.to_ne_bytes());
    }
    bytes
}

fn word(header: &[u8; MESSAGE_BYTES], number: usize) -> u32 {
    u32::from_ne_bytes([0, 1, 2, 3].map(|byte| header[number * 4 + byte]))
}

/// Waits for a message and returns its type, without reading it. None after the client has disconnected.
fn next_message(stream: &UnixStream) -> io::Result<Option<u32>> {
    let mut start = [0; MESSAGE_BYTES];
    match recv(stream, &mut start[..], RecvFlags::PEEK) {
        Ok((0, _)) | Err(rustix::io::Errno::CONNRESET) => Ok(None),
        Ok((_, length)) if length >= 4 => Ok(Some(word(&start, 0))),
        Ok(_) => Err(io::Error::other("an incomplete message")),
        Err(rustix::io::Errno::INTR) => next_message(stream),
        Err(e) => Err(e.into()),
    }
}

/// Takes `VHOST_USER_SET_BACKEND_REQ_FD` and returns the socket that comes with it.
fn take_message_socket(stream: &UnixStream) -> io::Result<Option<UnixStream>> {
    let mut bytes = [0; MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut files = RecvAncillaryBuffer::new(&mut space);
    let taken = recvmsg(stream, &mut [io::IoSliceMut::new(&mut bytes)], &mut files, RecvFlags::CMSG_CLOEXEC)?;
    if taken.bytes != MESSAGE_BYTES || word(&bytes, 2) != 0 {
        return Err(io::Error::other("SET_BACKEND_REQ_FD of another length"));
    }
    let mut sockets = files.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let socket = sockets.next().and_then(|mut descriptors| descriptors.next());
    let is_unix_stream = |fd: &std::os::fd::OwnedFd| {
        sockopt::socket_domain(fd).is_ok_and(|family| family == AddressFamily::UNIX)
            && sockopt::socket_type(fd).is_ok_and(|kind| kind == SocketType::STREAM)
    };
    let socket =
        socket.filter(is_unix_stream).ok_or_else(|| io::Error::other("SET_BACKEND_REQ_FD without a socket"))?;
    let flags = word(&bytes, 1);
    if flags & NEED_REPLY != 0 {
        let mut reply = header(SET_BACKEND_REQ_FD, VERSION | REPLY, exact::<u32>(size_of::<u64>())).to_vec();
        reply.extend(0_u64.to_ne_bytes());
        send(stream, &reply, SendFlags::NOSIGNAL)?;
    }
    Ok(Some(UnixStream::from(socket)))
}
