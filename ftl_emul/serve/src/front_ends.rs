//! Starts and stops everything that serves a device. Each front end has its own folder, and accesses the device only
//! through its [`Server`].

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::control;
use crate::error::ServeError;
use crate::inherited;
use crate::namespace::Namespace;
use crate::nbd::{self, Nbd};
use crate::nvme_tcp::{self, Subsystem};
use crate::parameters::Parameters;
use crate::server::Server;
use crate::threads;
use crate::vhost_user::{self, VhostUser};

/// A message about a socket: the front end, a blank, the name of a namespace.
const MESSAGE_BYTES: usize = 256;
/// A namespace is in the settings, where its socket comes from, a moment before it is served.
const NAMESPACE_TIMEOUT: Duration = Duration::from_secs(10);
const NAMESPACE_CHECK: Duration = Duration::from_millis(10);

/// The front ends other than NBD.
pub struct FrontEnds {
    nvme_tcp: Option<Arc<Subsystem>>,
    vhost_user: Option<Arc<VhostUser>>,
}

impl FrontEnds {
    /// Starts the configured front ends of a running server.
    pub fn start(server: &'static Server, nbd: &Nbd, parameters: &Parameters) -> Result<Self, ServeError> {
        let nvme_tcp = nvme_tcp::start(server, parameters)?;
        let vhost_user = vhost_user::start(server, parameters)?;
        if let Some(fd) = parameters.sockets_fd {
            let added = Added { server, nbd: nbd.front(), vhost_user: vhost_user.clone() };
            let channel = inherited::take(fd);
            threads::start("slo-ctl sockets", move || added.take_from(&channel))?;
        }
        // Last, because it reports the addresses of the others.
        control::start(server, parameters.control_fd)?;
        Ok(Self { nvme_tcp, vhost_user })
    }

    /// Ends every connection once its requests in work are answered. Before the server is stopped.
    pub fn stop(&self) {
        if let Some(subsystem) = &self.nvme_tcp {
            nvme_tcp::stop(subsystem);
        }
        if let Some(vhost_user) = &self.vhost_user {
            vhost_user.stop();
        }
    }
}

/// Sockets of namespaces that are added while the device is served. Whoever started this program opens them, so that
/// they outlast it, and sends each with a message.
struct Added {
    server: &'static Server,
    nbd: &'static nbd::Front,
    vhost_user: Option<Arc<VhostUser>>,
}

impl Added {
    /// Runs until the other end of the channel is closed.
    fn take_from(&self, channel: &OwnedFd) {
        loop {
            let mut bytes = [0; MESSAGE_BYTES];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut files = RecvAncillaryBuffer::new(&mut space);
            let length = match recvmsg(channel, &mut [IoSliceMut::new(&mut bytes)], &mut files, RecvFlags::CMSG_CLOEXEC)
            {
                Ok(taken) if taken.bytes > 0 => taken.bytes,
                Err(rustix::io::Errno::INTR) => continue,
                _ => return,
            };
            let socket = files.drain().find_map(|message| match message {
                RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
                _ => None,
            });
            let message = String::from_utf8_lossy(&bytes[..length]);
            let (Some((front_end, name)), Some(socket)) = (message.split_once(' '), socket) else { continue };
            if let Err(e) = self.listen(front_end, name, UnixListener::from(socket)) {
                eprintln!("slo-ctl: namespace {name} is not served over {front_end}: {e}");
            }
        }
    }

    fn listen(&self, front_end: &str, name: &str, socket: UnixListener) -> Result<(), ServeError> {
        // Otherwise it was deleted in the meantime.
        let Some(namespace) = self.namespace(name) else { return Ok(()) };
        match (front_end, &self.vhost_user) {
            ("nbd", _) => self.nbd.add(socket, name),
            ("vhost-user", Some(vhost_user)) => vhost_user.add(socket, namespace),
            _ => Err(ServeError::Refused("it is not a front end that runs".into())),
        }
    }

    fn namespace(&self, name: &str) -> Option<Arc<Namespace>> {
        let deadline = Instant::now() + NAMESPACE_TIMEOUT;
        loop {
            let found = self.server.namespace(name);
            if found.is_some() || Instant::now() >= deadline {
                return found;
            }
            thread::sleep(NAMESPACE_CHECK);
        }
    }
}
