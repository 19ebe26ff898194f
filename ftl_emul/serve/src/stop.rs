//! A stop in good order while clients are connected: nbdkit itself would wait until each of them goes.

use std::fs::File;
use std::io::Read;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use crate::access;
use crate::error::ServeError;
use crate::inherited;

/// Connections may still be in the making when the first are ended.
const AGAIN: Duration = Duration::from_millis(100);

/// Waits, in a thread, for the other end of an inherited pipe to be closed, and then ends every connection.
pub fn start(pipe: Option<RawFd>, sockets: Option<PathBuf>) -> Result<(), ServeError> {
    let (Some(fd), Some(sockets)) = (pipe, sockets) else { return Ok(()) };
    let mut pipe = File::from(inherited::take(fd));
    let wait = move || {
        let mut nothing = [0; 64];
        while pipe.read(&mut nothing).is_ok_and(|n| n > 0) {}
        loop {
            access::end_connections(&sockets);
            thread::sleep(AGAIN);
        }
    };
    match thread::Builder::new().name("slo-ctl stop".into()).spawn(wait) {
        Ok(_detached) => Ok(()),
        Err(e) => Err(ServeError::File(format!("cannot start a thread: {e}"))),
    }
}
