//! What nbdkit does with the sockets of its clients, where its own way lets one client harm the others.
//!
//! nbdkit up to 1.33 aborts when a client breaks off while replies to it are under way (assertion "sock >= 0" failed:
//! one thread closes the socket that another is about to send to), and its threads keep the buffer of the largest
//! request they have ever served, up to 64 MiB each. `slo-ctl device serve` preloads this library into nbdkit, so that
//! its calls of `read`, `send` and `shutdown` come here:
//!
//! - a reply to a client that is gone counts as sent, and a connection that was reset as ended: then nothing is closed
//!   while others send;
//! - where nbdkit gives a connection up in the middle of a request, replies under way have time to come to nothing;
//! - buffers of large requests are returned to the system once the reply is out, and large requests of one export
//!   wait until there is room for their data. Reads and writes have room of their own: a client may send a write before
//!   it takes what it has read.
//!
//! Without the preload, none of it happens. TLS has buffers of its own, of at most 16 KiB, and is left alone.

use ftl_core::convert::exact;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use crate::access;

/// Larger requests are counted, and their buffers released.
const LARGE_BYTES: usize = 256 << 10;
/// Bytes of large requests of one export in work at once, of reads and of writes; one request may be larger.
const EXPORT_BYTES: u64 = 64 << 20;
/// Bytes of the head of a request.
const HEAD_BYTES: usize = 28;
/// From closing a connection to nbdkit taking note that it is closed.
const DYING: Duration = Duration::from_secs(1);

/// Room for the data of large requests.
#[derive(Debug, Default)]
struct Room {
    taken: Mutex<u64>,
    less: Condvar,
}

impl Room {
    fn lock(&self) -> MutexGuard<'_, u64> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is room, or nobody else has any.
    fn take(&self, bytes: u64) {
        let mut taken = self.lock();
        while *taken > 0 && *taken + bytes > EXPORT_BYTES {
            taken = self.less.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
        *taken += bytes;
    }

    fn give_back(&self, bytes: u64) {
        *self.lock() -= bytes;
        self.less.notify_all();
    }
}

/// What the request in work in this thread has taken.
#[derive(Debug, Default)]
struct Held {
    room: Option<(Arc<Room>, u64)>,
    /// Of the data to be written: address and length.
    buffer: Option<(usize, usize)>,
}

impl Held {
    /// The request has been answered.
    fn release(&mut self) {
        if let Some((address, length)) = self.buffer.take() {
            give_back_memory(address, length);
        }
        if let Some((room, bytes)) = self.room.take() {
            room.give_back(bytes);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // The thread ends, and its buffer may be gone already.
        self.buffer = None;
        self.release();
    }
}

thread_local! {
    static HELD: RefCell<Held> = RefCell::default();
}

/// Does something to what this thread holds; nothing while the thread ends.
fn held<R>(work: impl FnOnce(&mut Held) -> R) -> Option<R> {
    HELD.try_with(|held| held.try_borrow_mut().ok().map(|mut held| work(&mut held))).ok().flatten()
}

/// By socket or namespace; apart for writes.
type Rooms = HashMap<(PathBuf, bool), Arc<Room>>;

fn room_of(path: PathBuf, writes: bool) -> Arc<Room> {
    static ROOMS: OnceLock<Mutex<Rooms>> = OnceLock::new();
    let mut rooms = ROOMS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(rooms.entry((path, writes)).or_default())
}

/// Takes room for a request of this thread, unless it has some.
fn take_room(bytes: usize, room: impl FnOnce() -> Option<Arc<Room>>) {
    if held(|held| held.room.is_some()) != Some(false) {
        return;
    }
    let Some(room) = room() else { return };
    room.take(bytes as u64);
    if held(|held| held.room = Some((Arc::clone(&room), bytes as u64))).is_none() {
        room.give_back(bytes as u64);
    }
}

/// True when nbdkit's calls come here.
fn is_preloaded() -> bool {
    static PRELOADED: OnceLock<bool> = OnceLock::new();
    *PRELOADED.get_or_init(|| {
        // SAFETY: looks a name up among the libraries of this process; what is found is only compared.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"send".as_ptr()) };
        found == interposed::send as *mut c_void
    })
}

/// Waits until there is room for what a request is going to read, which is kept until it has been sent.
pub fn make_room_to_read(namespace: &str, bytes: usize, is_tls: bool) {
    if bytes > LARGE_BYTES && !is_tls && is_preloaded() {
        take_room(bytes, || Some(room_of(PathBuf::from(namespace), false)));
    }
}

/// Gives whole pages between the two back to the system. They are zeroes when they are touched again.
fn give_back_memory(address: usize, length: usize) {
    const PAGE: usize = 4096;
    let (first, last) = (address.next_multiple_of(PAGE), (address + length) / PAGE * PAGE);
    if first < last {
        // SAFETY: whole pages inside the buffer of a request whose data nobody looks at any more. Where the system has
        // larger pages it refuses, and all stays as it was.
        let _advice = unsafe { libc::madvise(first as *mut c_void, last - first, libc::MADV_DONTNEED) };
    }
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// nbdkit reads from a socket or a file.
unsafe fn read(fd: RawFd, buffer: *mut c_void, length: usize) -> isize {
    if length > LARGE_BYTES {
        take_room(length, || access::local_path(fd).map(|path| room_of(path, true)));
        held(|held| {
            if held.room.is_some() && held.buffer.is_none() {
                held.buffer = Some((buffer as usize, length));
            }
        });
    } else if length == HEAD_BYTES {
        // Of a request that was never answered.
        held(Held::release);
    }
    // SAFETY: as the caller of read(2) promises.
    let done = exact::<isize>(unsafe { libc::syscall(libc::SYS_read, fd, buffer, length) });
    if done < 0 && errno() == libc::ECONNRESET { 0 } else { done }
}

/// nbdkit sends a reply, or a part of one.
unsafe fn send(fd: RawFd, buffer: *const c_void, length: usize, flags: c_int) -> isize {
    let nowhere = std::ptr::null::<c_void>();
    // SAFETY: as the caller of send(2) promises.
    let done = exact::<isize>(unsafe { libc::syscall(libc::SYS_sendto, fd, buffer, length, flags, nowhere, 0) });
    let sent = match done {
        // Others than nbdkit, such as the control socket, ask not to be signalled, and want to know.
        -1 if flags & libc::MSG_NOSIGNAL == 0 && matches!(errno(), libc::EPIPE | libc::ECONNRESET) => {
            exact::<isize>(length)
        }
        done => done,
    };
    // Nor does nbdkit have the buffers of those that ask not to be signalled.
    if sent > 0 && flags & libc::MSG_NOSIGNAL == 0 {
        if length > LARGE_BYTES {
            give_back_memory(buffer as usize, exact::<usize>(sent));
        }
        if flags & libc::MSG_MORE == 0 && exact::<usize>(sent) == length {
            held(Held::release);
        }
    }
    sent
}

/// nbdkit gives a connection up, or the plugin tells it to.
unsafe fn shutdown(fd: RawFd, how: c_int) -> c_int {
    let is_local = access::local_path(fd).is_some();
    let how = if how == libc::SHUT_WR && is_local { libc::SHUT_RDWR } else { how };
    // SAFETY: a plain system call; no memory is passed.
    let done = exact::<c_int>(unsafe { libc::syscall(libc::SYS_shutdown, fd, how) });
    if how == libc::SHUT_RDWR && is_local {
        thread::sleep(DYING);
    }
    done
}

#[cfg(test)]
use self as interposed;

/// The names that nbdkit calls. A test binary keeps those of the C library.
#[cfg(not(test))]
mod interposed {
    use super::{RawFd, c_int, c_void};

    /// As read(2).
    ///
    /// # Safety
    /// As there.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn read(fd: RawFd, buffer: *mut c_void, length: usize) -> isize {
        // SAFETY: as the caller promises.
        unsafe { super::read(fd, buffer, length) }
    }

    /// As send(2), but a peer that is gone takes everything.
    ///
    /// # Safety
    /// As there.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn send(fd: RawFd, buffer: *const c_void, length: usize, flags: c_int) -> isize {
        // SAFETY: as the caller promises.
        unsafe { super::send(fd, buffer, length, flags) }
    }

    /// As shutdown(2).
    ///
    /// # Safety
    /// As there.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn shutdown(fd: RawFd, how: c_int) -> c_int {
        // SAFETY: as the caller promises.
        unsafe { super::shutdown(fd, how) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn a_reply_to_a_client_that_is_gone_counts_as_sent_and_its_reset_as_the_end() {
        let (server, client) = UnixStream::pair().unwrap();
        let reply = [1u8; 4096];
        let fd = server.as_raw_fd();
        // SAFETY: both buffers are as long as is said.
        unsafe {
            assert_eq!(send(fd, reply.as_ptr().cast(), reply.len(), 0), 4096);
            // With the reply unread, which makes it a reset.
            drop(client);
            assert_eq!(send(fd, reply.as_ptr().cast(), reply.len(), 0), 4096);
            assert_eq!(send(fd, reply.as_ptr().cast(), reply.len(), libc::MSG_NOSIGNAL), -1);
            let mut head = [0u8; 28];
            assert_eq!(read(fd, head.as_mut_ptr().cast(), head.len()), 0);
        }
    }

    #[test]
    fn a_connection_that_is_given_up_ends_both_ways() {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("vm1.sock")).unwrap();
        let mut client = UnixStream::connect(folder.path().join("vm1.sock")).unwrap();
        let (server, _) = listener.accept().unwrap();
        // SAFETY: no memory is passed.
        assert_eq!(unsafe { shutdown(server.as_raw_fd(), libc::SHUT_WR) }, 0);
        assert!(client.write_all(b"more").is_err());
    }

    #[test]
    fn a_request_waits_for_room_but_one_alone_may_be_larger() {
        let room = Arc::new(Room::default());
        room.take(2 * EXPORT_BYTES);
        let second = Arc::clone(&room);
        let waiting = thread::spawn(move || second.take(1));
        assert_eq!(*room.lock(), 2 * EXPORT_BYTES);
        room.give_back(2 * EXPORT_BYTES);
        waiting.join().unwrap();
        assert_eq!(*room.lock(), 1);
    }
}
