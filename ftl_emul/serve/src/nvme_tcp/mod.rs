//! The device as an NVM subsystem over TCP, beside NBD and through the same [`crate::namespace`]s: requests from either
//! are one kind of request to the model.
//!
//! [`pdu`] has the bytes of the transport, [`command`] those of queue entries; a [`connection`] is one [`queue`] of a
//! [`controller`] of the [`subsystem`]; [`admin`] (with [`identify`], [`logs`] and [`management`] of namespaces) and [`io`]
//! carry commands out; [`placement`] is what both have of flexible data placement.

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
mod subsystem;
#[cfg(test)]
mod tests;

use std::net::{TcpListener, TcpStream};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::error::ServeError;
use crate::inherited;
use crate::server::{NvmeTcp, Server};
pub use subsystem::{Permissions, Subsystem};

/// Starts to listen on an inherited socket; nothing without one. `hosts` may connect from other machines, by NQN.
pub fn start(
    server: &'static Server,
    listening: Option<RawFd>,
    hosts: &[String],
    permissions: Permissions,
) -> Result<Option<Arc<Subsystem>>, ServeError> {
    let Some(fd) = listening else { return Ok(None) };
    let listener = TcpListener::from(inherited::take(fd));
    let address = listener
        .local_addr()
        .and_then(|address| listener.set_nonblocking(false).map(|()| address))
        .map_err(|e| ServeError::File(format!("nvme-tcp-fd={fd} is not a listening socket: {e}")))?;
    let subsystem = Arc::new(Subsystem::new(server, hosts.to_vec(), permissions));
    let _started_once = server.nvme_tcp.set(NvmeTcp { address: address.to_string(), nqn: subsystem.nqn.clone() });
    let (listening, looking) = (Arc::clone(&subsystem), Arc::clone(&subsystem));
    run("slo-ctl nvme", move || listen(&listening, &listener))?;
    run("slo-ctl nvme look", move || looking.look_after())?;
    Ok(Some(subsystem))
}

/// Ends every connection in good order.
pub fn stop(subsystem: &Subsystem) {
    subsystem.stop(connection::STOPPING);
}

fn run(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), ServeError> {
    match thread::Builder::new().name(name.into()).spawn(work) {
        Ok(_detached) => Ok(()),
        Err(e) => Err(ServeError::File(format!("cannot start a thread: {e}"))),
    }
}

fn listen(subsystem: &Arc<Subsystem>, listener: &TcpListener) {
    loop {
        match listener.accept() {
            Ok((stream, _)) => admit(Arc::clone(subsystem), stream),
            Err(e) => {
                // Out of descriptors, most likely: others may give some back.
                eprintln!("slo-ctl: NVMe/TCP: {e}");
                thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

fn admit(subsystem: Arc<Subsystem>, stream: TcpStream) {
    let serve = move || {
        // A host that is gone already is not worth telling anyone.
        let _gone = connection::serve(&subsystem, stream);
    };
    // Without a thread the connection is dropped, and the host tries again.
    let _dropped = thread::Builder::new().name("slo-ctl nvme host".into()).spawn(serve);
}
