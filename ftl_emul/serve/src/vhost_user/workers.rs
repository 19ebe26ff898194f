//! Threads of one client for requests that wait: for the modelled drive, for stable storage, for large copies.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::request_memory::{Pool, Room, Taken};
use crate::threads::{self, lock};

/// Maximum concurrent requests of one client. Further ones wait for a thread.
const MAX_THREADS: usize = 128;
/// Memory of a client that is its own, for data of requests larger than [`SMALL_BYTES`]: as much as the largest has.
const OWN_BYTES: usize = 8 << 20;
/// Largest data that is copied, so that all threads together have at most 2 MiB of it.
const SMALL_BYTES: usize = 16 << 10;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    idle: usize,
    threads: usize,
    closed: bool,
}

/// See the module.
pub struct Workers {
    state: Mutex<State>,
    more: Condvar,
    room: Arc<Room>,
    /// NSID of the namespace that borrows memory.
    namespace: u32,
}

impl Workers {
    /// Threads of a new client.
    pub fn new(pool: &Arc<Pool>, namespace: u32) -> Arc<Self> {
        let room = Room::new(pool, OWN_BYTES);
        Arc::new(Self { state: Mutex::default(), more: Condvar::new(), room, namespace })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Runs a job in a thread. Jobs start in order.
    pub fn submit(self: &Arc<Self>, job: Job) {
        let mut state = self.state();
        state.jobs.push_back(job);
        if state.jobs.len() <= state.idle {
            self.more.notify_one();
        } else if state.threads < MAX_THREADS {
            state.threads += 1;
            let here = Arc::clone(self);
            let started = threads::builder("slo-ctl vhost work").and_then(|builder| builder.spawn(move || here.work()));
            if started.is_err() {
                state.threads -= 1;
                let job = if state.threads == 0 { state.jobs.pop_front() } else { None };
                drop(state);
                // Without a thread, the caller runs it.
                if let Some(job) = job {
                    job();
                }
            }
        }
    }

    fn work(&self) {
        let mut state = self.state();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job();
                state = self.state();
            } else if state.closed {
                state.threads -= 1;
                return;
            } else {
                state.idle += 1;
                state = self.more.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
        }
    }

    /// Waits until there is room for the data of a request.
    pub fn room(&self, bytes: usize) -> Option<Taken> {
        if bytes > SMALL_BYTES { self.room.take(bytes, bytes, self.namespace, || false) } else { None }
    }

    /// Ends the threads once there are no jobs left.
    pub fn close(&self) {
        self.state().closed = true;
        self.more.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn waiting_jobs_do_not_block_others() {
        let workers = Workers::new(&Arc::default(), 1);
        let (first, waits) = mpsc::channel::<()>();
        let (done, ends) = mpsc::channel();
        let done_too = done.clone();
        workers.submit(Box::new(move || {
            let _ended = waits.recv();
            done_too.send("first").unwrap();
        }));
        workers.submit(Box::new(move || done.send("second").unwrap()));
        assert_eq!(ends.recv_timeout(Duration::from_secs(60)), Ok("second"));
        drop(first);
        assert_eq!(ends.recv_timeout(Duration::from_secs(60)), Ok("first"));
        workers.close();
    }

    #[test]
    fn large_requests_wait_for_buffer_space() {
        let workers = Workers::new(&Arc::default(), 1);
        let all: Vec<_> = (0..).map_while(|_| workers.room.try_take(OWN_BYTES, Some(1))).collect();
        drop(workers.room(SMALL_BYTES));
        let (done, ends) = mpsc::channel();
        let here = Arc::clone(&workers);
        thread::spawn(move || {
            drop(here.room(SMALL_BYTES + 1));
            done.send(()).unwrap();
        });
        assert!(ends.recv_timeout(Duration::from_millis(50)).is_err());
        drop(all);
        assert!(ends.recv_timeout(Duration::from_secs(60)).is_ok());
    }
}
