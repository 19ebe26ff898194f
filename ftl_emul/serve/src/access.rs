//! Who may use which export: a connection through the socket of one namespace sees that namespace only.
//!
//! nbdkit tells a plugin which process has connected, not through which of its sockets. So all connections of that
//! process are looked up among our own descriptors, and it may use what it has reached a socket for.

use ftl_core::convert::exact;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::{mem, ptr};

/// Name of the socket, beside the folder of the others, that gives access to every namespace.
pub const ALL_SOCKET: &str = "all.sock";

/// See [`is_crowded`].
const DYING_FOR_ONE: usize = 8;

/// What the connections of one process permit.
#[derive(Debug, Default)]
pub struct Sockets {
    all: bool,
    names: HashSet<String>,
}

impl Sockets {
    /// True when the namespace may be used.
    #[must_use]
    pub fn permit(&self, namespace: &str) -> bool {
        self.all || self.names.contains(namespace)
    }

    fn add(&mut self, folder: &Path, socket: &Path) {
        if socket.parent() == Some(folder) {
            let name = socket.file_name().and_then(|n| n.to_str()).and_then(|n| n.strip_suffix(".sock"));
            self.names.extend(name.map(str::to_owned));
        } else if socket.parent() == folder.parent() && socket.file_name().is_some_and(|n| n == ALL_SOCKET) {
            self.all = true;
        }
    }
}

/// The sockets, in or beside `folder`, through which process `pid` is connected to this one.
#[must_use]
pub fn sockets_of(folder: &Path, pid: Option<i64>) -> Sockets {
    let mut found = Sockets::default();
    let Some(pid) = pid else { return found };
    let Ok(descriptors) = fs::read_dir("/proc/self/fd") else { return found };
    for descriptor in descriptors.flatten() {
        let Some(fd) = descriptor.file_name().to_str().and_then(|n| n.parse().ok()) else { continue };
        if peer_of(fd) == Some(pid) {
            if let Some(path) = local_path(fd) {
                found.add(folder, &path);
            }
        }
    }
    // Processes outside of our PID namespace are all number 0: they cannot be distinguished.
    if pid == 0 && (found.all || found.names.len() > 1) {
        return Sockets::default();
    }
    found
}

/// Tells the clients of every connection through the sockets in or beside `folder` that no more will be read. What
/// they have asked for before is answered.
pub fn end_connections(folder: &Path) {
    let Ok(descriptors) = fs::read_dir("/proc/self/fd") else { return };
    for descriptor in descriptors.flatten() {
        let Some(fd) = descriptor.file_name().to_str().and_then(|n| n.parse().ok()) else { continue };
        let mut through = Sockets::default();
        if peer_of(fd).is_some() {
            through.add(folder, &local_path(fd).unwrap_or_default());
        }
        if through.all || !through.names.is_empty() {
            // SAFETY: a plain system call; no memory is passed. Should the descriptor have been closed and its number
            // taken by another connection meanwhile, that one was to be ended as well.
            unsafe { libc::shutdown(fd, libc::SHUT_RD) };
        }
    }
}

/// Whether a socket through which process `pid` is connected has more than `most` connections. Of those whose client is
/// gone, which end once their requests are done, [`DYING_FOR_ONE`] count as one.
#[must_use]
pub fn is_crowded(folder: &Path, pid: Option<i64>, most: usize) -> bool {
    let mut connections: HashMap<PathBuf, (usize, bool)> = HashMap::new();
    for descriptor in fs::read_dir("/proc/self/fd").into_iter().flatten().flatten() {
        let Some(fd) = descriptor.file_name().to_str().and_then(|n| n.parse().ok()) else { continue };
        let Some(peer) = peer_of(fd) else { continue };
        let Some(path) = local_path(fd).filter(|path| path.starts_with(folder.parent().unwrap_or(folder))) else {
            continue;
        };
        let (weight, is_its) = connections.entry(path).or_default();
        *weight += if has_hung_up(fd) { 1 } else { DYING_FOR_ONE };
        *is_its |= Some(peer) == pid;
    }
    connections.values().any(|&(weight, is_its)| is_its && weight / DYING_FOR_ONE > most)
}

fn has_hung_up(fd: RawFd) -> bool {
    let mut asked = libc::pollfd { fd, events: 0, revents: 0 };
    // SAFETY: the kernel reads and writes one pollfd. A descriptor that was closed meanwhile has not hung up.
    unsafe { libc::poll(&raw mut asked, 1, 0) == 1 && asked.revents & libc::POLLHUP != 0 }
}

/// The process connected to a descriptor, if it is a connected Unix socket.
fn peer_of(fd: RawFd) -> Option<i64> {
    let listening: libc::c_int = option(fd, libc::SO_ACCEPTCONN)?;
    let peer: libc::ucred = option(fd, libc::SO_PEERCRED)?;
    (listening == 0).then_some(i64::from(peer.pid))
}

fn option<T: Copy>(fd: RawFd, name: libc::c_int) -> Option<T> {
    // SAFETY: T is a plain C value (an int or a ucred), for which all zeroes is a value.
    let mut value: T = unsafe { mem::zeroed() };
    let mut length = exact::<libc::socklen_t>(size_of::<T>());
    // SAFETY: the kernel writes at most `length` bytes, the size of `value`. A descriptor that is not a socket, or was
    // closed meanwhile, is refused by the kernel.
    let done =
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, name, ptr::from_mut(&mut value).cast(), &raw mut length) };
    (done == 0 && length as usize == size_of::<T>()).then_some(value)
}

/// The path that a Unix socket is bound to, as those are that come from a listening one.
pub fn local_path(fd: RawFd) -> Option<PathBuf> {
    // SAFETY: all zeroes is a socket address.
    let mut address: libc::sockaddr_un = unsafe { mem::zeroed() };
    let mut length = exact::<libc::socklen_t>(size_of::<libc::sockaddr_un>());
    // SAFETY: the kernel writes at most `length` bytes, the size of `address`.
    let done = unsafe { libc::getsockname(fd, ptr::from_mut(&mut address).cast(), &raw mut length) };
    if done != 0 || i32::from(address.sun_family) != libc::AF_UNIX {
        return None;
    }
    let bytes: Vec<u8> =
        address.sun_path.iter().take_while(|&&c| c != 0).map(|c| u8::from_ne_bytes(c.to_ne_bytes())).collect();
    String::from_utf8(bytes).ok().filter(|path| !path.is_empty()).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn a_connection_permits_the_namespace_of_its_socket_only() {
        let run = tempfile::tempdir().unwrap();
        let folder = run.path().join("exports");
        fs::create_dir(&folder).unwrap();
        let me = Some(i64::from(std::process::id()));
        let listener = UnixListener::bind(folder.join("vm1.sock")).unwrap();
        assert!(!sockets_of(&folder, me).permit("vm1"), "listening is not being connected");
        let _client = UnixStream::connect(folder.join("vm1.sock")).unwrap();
        let (_accepted, _) = listener.accept().unwrap();
        let found = sockets_of(&folder, me);
        assert!(found.permit("vm1") && !found.permit("vm2"));
        assert!(!sockets_of(&folder, Some(1)).permit("vm1"), "another process");
        assert!(!sockets_of(&folder, None).permit("vm1"));

        let listener = UnixListener::bind(run.path().join(ALL_SOCKET)).unwrap();
        let _client = UnixStream::connect(run.path().join(ALL_SOCKET)).unwrap();
        let (_accepted, _) = listener.accept().unwrap();
        assert!(sockets_of(&folder, me).permit("vm2"));
        assert!(!is_crowded(&folder, me, 1));
        let another = UnixStream::connect(run.path().join(ALL_SOCKET)).unwrap();
        let (_accepted, _) = listener.accept().unwrap();
        assert!(is_crowded(&folder, me, 1) && !is_crowded(&folder, me, 2));
        assert!(!is_crowded(&folder, Some(1), 1), "another process");
        drop(another);
        assert!(!is_crowded(&folder, me, 1), "its client is gone");
    }
}
