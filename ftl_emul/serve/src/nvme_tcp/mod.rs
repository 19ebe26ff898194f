//! The device as an NVM subsystem over TCP, with the same [`crate::namespace`]s as NBD: the model does not distinguish
//! their requests.
//!
//! [`pdu`] has the bytes of the transport, [`command`] those of queue entries; a [`connection`] is one [`queue`] of a
//! [`controller`] of the [`subsystem`]; [`admin`] (with [`identify`], [`logs`] and [`management`] of namespaces) and [`io`]
//! carry out commands, [`quick`] those that do not wait; [`placement`] has flexible data placement for both.

mod admin;
mod command;
pub mod connection;
mod controller;
mod identify;
mod io;
mod logs;
mod management;
mod pdu;
mod placement;
mod queue;
mod quick;
mod subsystem;
#[cfg(test)]
mod tests;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::descriptors::{NVME_CONNECTIONS, Owner, Taken};
use crate::error::ServeError;
use crate::inherited;
use crate::occasional_log::OccasionalLog;
use crate::parameters::Parameters;
use crate::server::{NvmeTcp, Server};
use crate::threads;
pub use subsystem::{Permissions, Subsystem};

/// Interval, and number of times, at which it is checked whether a closed connection has ended.
const ENDING_CHECK: Duration = Duration::from_millis(1);
const ENDING_CHECKS: usize = 100;

/// The subsystem behind a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port {
    /// The subsystem, and discovery.
    All,
    /// Discovery, which leads to the subsystem at that port.
    Discovery(u16),
}

/// Starts to listen on the inherited sockets, if there are any.
pub fn start(server: &'static Server, parameters: &Parameters) -> Result<Option<Arc<Subsystem>>, ServeError> {
    let Some(fd) = parameters.nvme_tcp_fd else { return Ok(None) };
    let (listener, address) = inherit("nvme-tcp-fd", fd)?;
    let discovery = parameters.nvme_discovery_fd.map(|fd| inherit("nvme-discovery-fd", fd)).transpose()?;
    let subsystem = Arc::new(Subsystem::new(server, parameters.nvme_hosts.clone(), parameters.nvme_permissions));
    let _started_once = server.nvme_tcp.set(NvmeTcp {
        address: address.to_string(),
        nqn: subsystem.nqn.clone(),
        discovery: discovery.as_ref().map(|(_, address)| address.to_string()),
    });
    let (listening, looking) = (Arc::clone(&subsystem), Arc::clone(&subsystem));
    threads::start("slo-ctl nvme", move || listen(&listening, &listener, Port::All))?;
    threads::start("slo-ctl nvme look", move || looking.look_after())?;
    if let Some((listener, _)) = discovery {
        let discovering = Arc::clone(&subsystem);
        threads::start("slo-ctl nvme disc", move || listen(&discovering, &listener, Port::Discovery(address.port())))?;
    }
    Ok(Some(subsystem))
}

fn inherit(parameter: &str, fd: RawFd) -> Result<(TcpListener, SocketAddr), ServeError> {
    let listener = TcpListener::from(inherited::take(fd));
    let address = listener.local_addr().and_then(|address| listener.set_nonblocking(false).map(|()| address));
    let address = address.map_err(|e| ServeError::File(format!("{parameter}={fd} is not a listening socket: {e}")))?;
    Ok((listener, address))
}

/// Ends every connection in good order.
pub fn stop(subsystem: &Subsystem) {
    subsystem.stop(connection::STOPPING);
}

fn listen(subsystem: &Arc<Subsystem>, listener: &TcpListener, port: Port) {
    let (refused, not_accepted) = (OccasionalLog::default(), OccasionalLog::default());
    loop {
        match listener.accept() {
            Ok((stream, _)) => match descriptor(subsystem) {
                Some(descriptor) => admit(Arc::clone(subsystem), stream, port, descriptor),
                None => refused.say(|| format!("NVMe/TCP: refused a connection: {NVME_CONNECTIONS} are open already")),
            },
            Err(e) => {
                // Most likely out of descriptors: other hosts may release some.
                not_accepted.say(|| format!("NVMe/TCP: cannot accept hosts: {e}"));
                thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

/// A descriptor for a connection; None where hosts that are connected have all.
fn descriptor(subsystem: &Subsystem) -> Option<Taken> {
    let take = || subsystem.server.descriptors.take(&Owner::NvmeTcp, 1);
    take().or_else(|| {
        subsystem.close_oldest_unconnected();
        (0..ENDING_CHECKS).find_map(|_| {
            thread::sleep(ENDING_CHECK);
            take()
        })
    })
}

fn admit(subsystem: Arc<Subsystem>, stream: TcpStream, port: Port, descriptor: Taken) {
    let serve = move || {
        let _until_the_end = descriptor;
        // A host that has already disconnected is not logged.
        let _gone = connection::serve(&subsystem, stream, port);
    };
    // Without a thread the connection is dropped, and the host tries again.
    let _dropped = threads::start("slo-ctl nvme host", serve);
}
