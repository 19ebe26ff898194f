//! The control socket: JSON lines, one command and one reply each. A client that may connect may send all commands;
//! none of them gives access to guest data.

pub mod protocol;
mod statistics;

use std::io::{self, Read, Write};
use std::os::fd::RawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::control::protocol::Session;
use crate::descriptors::Owner;
use crate::error::ServeError;
use crate::inherited;
use crate::occasional_log::OccasionalLog;
use crate::server::Server;
use crate::threads;

/// Bytes of a command at most, the line's end included.
const MAX_LINE_BYTES: usize = 64 << 10;
/// A connection is closed when no complete command arrives for this time.
const IDLE: Duration = Duration::from_secs(60);
/// Also closed: a connection whose client does not read its replies.
const STUCK: Duration = Duration::from_secs(10);

/// Starts to listen on an inherited socket, if there is one.
pub fn start(server: &'static Server, listening: Option<RawFd>) -> Result<(), ServeError> {
    let Some(fd) = listening else { return Ok(()) };
    let listener = UnixListener::from(inherited::take(fd));
    listener
        .local_addr()
        .and_then(|_| listener.set_nonblocking(false))
        .map_err(|e| ServeError::File(format!("control-fd={fd} is not a listening socket: {e}")))?;
    threads::start("slo-ctl control", move || listen(server, &listener))?;
    Ok(())
}

fn listen(server: &'static Server, listener: &UnixListener) {
    let not_accepted = OccasionalLog::default();
    loop {
        match listener.accept() {
            Ok((stream, _)) => admit(server, stream),
            Err(e) => {
                // Most likely out of descriptors: other clients may release some.
                not_accepted.say(|| format!("control socket: cannot accept clients: {e}"));
                thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

fn admit(server: &'static Server, mut stream: UnixStream) {
    let Some(descriptor) = server.descriptors.take(&Owner::Control, 1) else {
        let refused = protocol::failure(None, "busy", "too many connections; try again");
        // The client may have disconnected already.
        let _told = stream.set_nonblocking(true).and_then(|()| stream.write_all(&refused));
        return;
    };
    // Without a thread the connection is dropped, and the client tries again.
    let _dropped = threads::start("slo-ctl client", move || {
        let _until_the_end = descriptor;
        let mut session = Session::new(is_owner(&stream));
        // A client that disconnects or is too slow is not logged.
        let _broken_off = converse(&mut stream, |line| protocol::answer(server, &mut session, line));
    });
}

/// Whether the client is root or runs as we do.
fn is_owner(stream: &UnixStream) -> bool {
    rustix::net::sockopt::socket_peercred(stream)
        .is_ok_and(|client| client.uid.is_root() || client.uid == rustix::process::geteuid())
}

/// Answers line by line until the client ends, stalls or oversteps the bound of a line.
fn converse(stream: &mut UnixStream, mut answer: impl FnMut(&[u8]) -> Vec<u8>) -> io::Result<()> {
    stream.set_write_timeout(Some(STUCK))?;
    let mut pending = Vec::new();
    let mut chunk = [0; 4096];
    let mut deadline = Instant::now() + IDLE;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        stream.set_read_timeout(Some(left))?;
        let n = match stream.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        pending.extend_from_slice(&chunk[..n]);
        while let Some(end) = pending.iter().position(|&b| b == b'\n') {
            if !pending[..end].trim_ascii().is_empty() && end < MAX_LINE_BYTES {
                stream.write_all(&answer(&pending[..end]))?;
            }
            pending.drain(..=end);
            deadline = Instant::now() + IDLE;
        }
        if pending.len() >= MAX_LINE_BYTES {
            let message = format!("a command may have at most {MAX_LINE_BYTES} bytes");
            return stream.write_all(&protocol::failure(None, "too_long", &message));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::net::Shutdown;

    fn served() -> UnixStream {
        let (client, mut server) = UnixStream::pair().unwrap();
        thread::spawn(move || {
            let echo = |line: &[u8]| [line, b"\n"].concat();
            let _ended = converse(&mut server, echo);
        });
        client
    }

    #[test]
    fn lines_are_answered_however_they_are_split() {
        let mut client = served();
        client.write_all(b"one\n\n  \ntw").unwrap();
        client.write_all(b"o\nthree").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let lines: Vec<String> = BufReader::new(client).lines().map(Result::unwrap).collect();
        assert_eq!(lines, ["one", "two"]);
    }

    #[test]
    fn endless_line_is_refused_and_not_buffered() {
        let mut client = served();
        let mut reader = BufReader::new(client.try_clone().unwrap());
        let flood = vec![b'x'; MAX_LINE_BYTES + 1];
        // The server may hang up in the middle.
        let _refused = client.write_all(&flood);
        let mut reply = String::new();
        reader.read_line(&mut reply).unwrap();
        assert!(reply.contains("too_long"), "{reply}");
    }
}
