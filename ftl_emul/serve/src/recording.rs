//! Recording the requests of a served device with their times, for replay; never their data.
//!
//! Requests wait in memory until the client of the control socket fetches them, at most [`MAX_REQUESTS`] of them;
//! requests that arrive while the memory is full are counted and not recorded. One recording at a time.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use ftl_core::Op;
use ftl_core::convert::whole;
use serde_json::{Value, json};

use crate::error::{ServeError, refuse};
use crate::namespace::Namespace;
use crate::threads::lock;

/// Requests in memory at most: 32 MiB.
pub const MAX_REQUESTS: usize = 1 << 20;
/// Largest number of requests in a reply, which is then below 4 MiB.
const MAX_FETCHED: usize = 1 << 16;

/// One request, as it arrived.
#[derive(Debug, Clone, Copy)]
struct Arrived {
    time_ns: u64,
    offset_bytes: u64,
    length_bytes: u64,
    /// Place in `Recording::names`.
    namespace: u16,
    op: Op,
}

/// Totals of a namespace; times are modelled if there is a clock.
#[derive(Debug, Clone, Copy, Default)]
struct Activity {
    recorded: u64,
    dropped: u64,
    outstanding: u64,
    since_ns: u64,
    /// Time with a request outstanding.
    busy_ns: u64,
    /// Sum over the requests of the time that each was outstanding.
    outstanding_ns: u64,
}

impl Activity {
    /// Accounts for the time up to now.
    fn advance(&mut self, now_ns: u64) {
        let passed_ns = now_ns.saturating_sub(self.since_ns);
        if self.outstanding > 0 {
            self.busy_ns += passed_ns;
            self.outstanding_ns += passed_ns.saturating_mul(self.outstanding);
        }
        self.since_ns = self.since_ns.max(now_ns);
    }
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Arrived>,
    activities: Vec<Activity>,
}

/// The requests of some namespaces, from its start on.
#[derive(Debug)]
pub struct Recording {
    names: Vec<String>,
    started: Instant,
    /// Real seconds for each one of the recorded times.
    time_scale: f64,
    state: Mutex<State>,
}

impl Recording {
    fn new(names: Vec<String>, time_scale: f64) -> Self {
        let activities = vec![Activity::default(); names.len()];
        let state = Mutex::new(State { waiting: VecDeque::new(), activities });
        Self { names, started: Instant::now(), time_scale, state }
    }

    /// Records a request of the namespace at that place. It is outstanding until the returned value is dropped.
    pub fn arrived(self: &Arc<Self>, namespace: u16, op: Op, offset_bytes: u64, length_bytes: u64) -> Outstanding {
        let mut state = self.state();
        // With the lock held, so that times are in order.
        let now_ns = self.now_ns();
        let is_full = state.waiting.len() >= MAX_REQUESTS;
        let activity = &mut state.activities[usize::from(namespace)];
        activity.advance(now_ns);
        activity.outstanding += 1;
        if is_full {
            activity.dropped += 1;
        } else {
            activity.recorded += 1;
            state.waiting.push_back(Arrived { time_ns: now_ns, offset_bytes, length_bytes, namespace, op });
        }
        drop(state);
        Outstanding { recording: Arc::clone(self), namespace }
    }

    /// The oldest waiting requests, which are removed, and the total activity of the namespaces.
    fn fetch(&self) -> Value {
        let (requests, more, activities, now_ns) = {
            let mut state = self.state();
            let now_ns = self.now_ns();
            for activity in &mut state.activities {
                activity.advance(now_ns);
            }
            let fetched = state.waiting.len().min(MAX_FETCHED);
            let requests: Vec<Arrived> = state.waiting.drain(..fetched).collect();
            (requests, !state.waiting.is_empty(), state.activities.clone(), now_ns)
        };
        let of = |(name, activity): (&String, &Activity)| {
            json!({
                "name": name,
                "recorded": activity.recorded,
                "dropped": activity.dropped,
                "busy_ns": activity.busy_ns,
                "outstanding_ns": activity.outstanding_ns,
            })
        };
        let column = |of: fn(&Arrived) -> u64| -> Vec<u64> { requests.iter().map(of).collect() };
        json!({
            "elapsed_ns": now_ns,
            "namespaces": self.names.iter().zip(&activities).map(of).collect::<Vec<_>>(),
            "requests": {
                "time_ns": column(|r| r.time_ns),
                "namespace": column(|r| u64::from(r.namespace)),
                "op": column(|r| r.op as u64),
                "offset_bytes": column(|r| r.offset_bytes),
                "length_bytes": column(|r| r.length_bytes),
            },
            "more": more,
        })
    }

    fn now_ns(&self) -> u64 {
        whole(self.started.elapsed().as_secs_f64() / self.time_scale * 1e9)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// A recorded request, while it is in work.
#[derive(Debug)]
pub struct Outstanding {
    recording: Arc<Recording>,
    namespace: u16,
}

impl Drop for Outstanding {
    fn drop(&mut self) {
        let mut state = self.recording.state();
        let now_ns = self.recording.now_ns();
        let activity = &mut state.activities[usize::from(self.namespace)];
        activity.advance(now_ns);
        activity.outstanding -= 1;
    }
}

/// A recording and its client; it ends when this is dropped, as when a client closes its connection.
#[derive(Debug)]
pub struct Recorder {
    recording: Arc<Recording>,
    namespaces: Vec<Arc<Namespace>>,
    under_way: Arc<AtomicBool>,
}

impl Recorder {
    /// Starts to record requests to `namespaces`. `under_way` prevents a second recording.
    pub fn start(
        namespaces: Vec<Arc<Namespace>>,
        time_scale: Option<f64>,
        under_way: &Arc<AtomicBool>,
    ) -> Result<Self, ServeError> {
        if under_way.swap(true, Ordering::AcqRel) {
            return refuse("the device is already being recorded; wait until that recording ends");
        }
        let names = namespaces.iter().map(|namespace| namespace.name.clone()).collect();
        let recording = Arc::new(Recording::new(names, time_scale.unwrap_or(1.0)));
        for (place, namespace) in (0..).zip(&namespaces) {
            namespace.set_recording(Some((Arc::clone(&recording), place)));
        }
        Ok(Self { recording, namespaces, under_way: Arc::clone(under_way) })
    }

    /// The reply to `recording_start`.
    pub fn describe(&self) -> Value {
        json!({"namespaces": self.recording.names, "max_requests": MAX_REQUESTS, "time_scale": self.recording.time_scale})
    }

    /// The reply to `recording_fetch`.
    pub fn fetch(&self) -> Value {
        self.recording.fetch()
    }

    /// Records no further request; waiting ones can still be fetched.
    pub fn stop(&self) {
        for namespace in &self.namespaces {
            namespace.set_recording(None);
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.stop();
        self.under_way.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace::Flags;
    use crate::server::tests::{PAGE, make, open};

    fn times(fetched: &Value) -> Vec<u64> {
        serde_json::from_value(fetched["requests"]["time_ns"].clone()).unwrap()
    }

    #[test]
    fn requests_are_fetched_once_in_their_order() {
        let folder = tempfile::tempdir().unwrap();
        make(folder.path(), "page", true, 8);
        let server = open(folder.path());
        let namespaces = server.namespaces();
        let (a, b) = (&namespaces[0], &namespaces[1]);
        let recorder = server.record(Some(&["b".to_owned()])).unwrap();
        a.write(&server.model, &[1; 4096], 0, Flags::default(), || false).unwrap();
        b.write(&server.model, &[1; 8192], PAGE, Flags::default(), || false).unwrap();
        b.trim(&server.model, 0, PAGE, Flags::default(), || false).unwrap();
        b.read_now(&server.model, &mut [0; 512], 1024).unwrap();
        b.flush(&server.model, || false).unwrap();
        assert!(b.read(&server.model, &mut [0; 4096], u64::MAX - 10, || false).is_err());
        let fetched = recorder.fetch();
        let requests = &fetched["requests"];
        assert_eq!(requests["op"], json!([Op::Write as u8, Op::Trim as u8, Op::Read as u8, Op::Flush as u8]));
        assert_eq!(requests["offset_bytes"], json!([PAGE, 0, 1024, 0]));
        assert_eq!(requests["length_bytes"], json!([8192, PAGE, 512, 0]));
        assert!(times(&fetched).is_sorted());
        assert_eq!(fetched["namespaces"].as_array().unwrap().len(), 1);
        assert_eq!(fetched["namespaces"][0]["recorded"], 4);
        recorder.stop();
        b.flush(&server.model, || false).unwrap();
        assert!(times(&recorder.fetch()).is_empty());
    }

    #[test]
    fn second_recording_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        make(folder.path(), "page", true, 8);
        let server = open(folder.path());
        assert!(server.record(Some(&["z".to_owned()])).unwrap_err().to_string().contains('z'));
        let first = server.record(None).unwrap();
        assert!(server.record(None).is_err());
        drop(first);
        assert_eq!(server.record(None).unwrap().describe()["namespaces"], json!(["a", "b", "c"]));
    }

    #[test]
    fn full_buffer_drops_and_counts_requests() {
        let recording = Arc::new(Recording::new(vec!["a".into(), "b".into()], 1.0));
        for _ in 0..MAX_REQUESTS {
            drop(recording.arrived(0, Op::Read, 0, 512));
        }
        for _ in 0..3 {
            drop(recording.arrived(1, Op::Read, 0, 512));
        }
        let fetched = recording.fetch();
        assert_eq!(
            (&fetched["namespaces"][1]["recorded"], &fetched["namespaces"][1]["dropped"]),
            (&json!(0), &json!(3))
        );
        assert_eq!(times(&fetched).len(), MAX_FETCHED);
        assert_eq!(fetched["more"], true);
        drop(recording.arrived(1, Op::Read, 0, 512));
        assert_eq!(recording.fetch()["namespaces"][1]["recorded"], 1);
    }

    #[test]
    fn busy_and_outstanding_time_overlap() {
        let mut activity = Activity::default();
        activity.advance(10);
        activity.outstanding = 2;
        activity.advance(30);
        activity.outstanding = 1;
        activity.advance(35);
        activity.outstanding = 0;
        activity.advance(100);
        assert_eq!((activity.busy_ns, activity.outstanding_ns), (25, 45));
    }
}
