//! Lines for the operator that clients can cause: one in a while, with how many were left out.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::threads::lock;

/// Between two lines about the same.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Debug, Default)]
pub struct OccasionalLog(Mutex<(u64, Option<Instant>)>);

impl OccasionalLog {
    /// Prints a line, unless there was one a moment ago.
    pub fn say(&self, line: impl FnOnce() -> String) {
        let mut state = lock(&self.0);
        let (left_out, last) = &mut *state;
        if last.is_some_and(|last| last.elapsed() < LOG_INTERVAL) {
            *left_out += 1;
            return;
        }
        let more = if *left_out == 0 { String::new() } else { format!(" ({left_out} similar lines omitted)") };
        eprintln!("slo-ctl: {}{more}", line());
        *state = (0, Some(Instant::now()));
    }

    /// Lines left out since the last one.
    #[cfg(test)]
    pub fn left_out(&self) -> u64 {
        lock(&self.0).0
    }
}
