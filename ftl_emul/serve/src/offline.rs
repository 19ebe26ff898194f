//! One command for a device that is not served: this program opens the device, carries the command out, saves the
//! placement and exits, before it would listen. Its output on stdout is JSON, line by line: progress first, if it takes
//! long, then the reply of the control protocol.

use std::io::{self, Write};

use serde_json::json;

use crate::control::protocol;
use crate::error::ServeError;
use crate::server::Server;

/// Carries out one command, given as the control socket takes it. Err when not even a refusal could be printed.
pub fn carry_out(server: &Server, command: &str) -> Result<(), ServeError> {
    let reply = protocol::answer_offline(server, command.as_bytes(), |drive_writes| {
        // If the line cannot be printed, the parent process has given up.
        print(format!("{}\n", json!({"drive_writes": drive_writes})).as_bytes()).is_ok()
    });
    print(&reply).map_err(|e| ServeError::File(format!("cannot print the result: {e}")))
}

fn print(line: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(line)?;
    out.flush()
}
