//! The NVM subsystem of a served device: its names, its controllers, and permissions to connect.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use ftl_core::Placement;

use crate::namespace::Namespace;
use crate::nvme_tcp::command::Status;
use crate::nvme_tcp::connection::STALLED;
use crate::nvme_tcp::controller::{Controller, Host};
use crate::nvme_tcp::placement::Events;
use crate::nvme_tcp::queue::Queue;
use crate::occasional_log::OccasionalLog;
use crate::server::Server;
use crate::threads::lock;

/// The well-known name of every discovery subsystem (NVM Express Base Specification 2.0, section 4.5).
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// Maximum number of controllers.
const MAX_CONTROLLERS: usize = 32;
/// Interval of checks of namespaces and keep alive timers.
const LOOKING: Duration = Duration::from_millis(100);

/// Operations permitted to every connected host besides reading and writing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Permissions {
    /// Create, delete, attach and detach namespaces.
    pub namespaces: bool,
    /// Move OPS blocks from namespace to namespace.
    pub ops: bool,
}

/// See the module.
pub struct Subsystem {
    /// The device.
    pub server: &'static Server,
    /// Its name.
    pub nqn: String,
    /// Operations permitted to hosts besides reading and writing.
    pub permissions: Permissions,
    /// Hosts that may connect from elsewhere than this machine, by NQN.
    allowed: Vec<String>,
    controllers: Mutex<BTreeMap<u16, Arc<Controller>>>,
    /// Queues of all connections, by number.
    connections: Mutex<BTreeMap<u64, Arc<Queue>>>,
    /// See [`crate::nvme_tcp::placement`].
    events: Mutex<Events>,
    accepted: AtomicUsize,
    stopping: AtomicBool,
    /// Hosts that may not connect.
    pub not_permitted: OccasionalLog,
    /// Commands of namespace management that failed.
    pub not_managed: OccasionalLog,
    /// Hosts whose keep alive timeout has expired.
    pub not_heard: OccasionalLog,
}

impl Subsystem {
    /// The subsystem of a device.
    pub fn new(server: &'static Server, allowed: Vec<String>, permissions: Permissions) -> Self {
        let id = uuid(&[&server.config.name, &server.config.created]);
        Self {
            server,
            // A name made of a UUID is for those who own no domain (4.5).
            nqn: format!("nqn.2014-08.org.nvmexpress:uuid:{}", hyphenated(id)),
            permissions,
            allowed,
            events: Mutex::default(),
            controllers: Mutex::default(),
            connections: Mutex::default(),
            accepted: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
            not_permitted: OccasionalLog::default(),
            not_managed: OccasionalLog::default(),
            not_heard: OccasionalLog::default(),
        }
    }

    fn controllers(&self) -> MutexGuard<'_, BTreeMap<u16, Arc<Controller>>> {
        lock(&self.controllers)
    }

    fn connections(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Queue>>> {
        lock(&self.connections)
    }

    /// The namespace with that number, if it is attached to a host.
    pub fn attached(&self, controller: &Controller, id: u32) -> Option<Arc<Namespace>> {
        self.server.namespace_of(id).filter(|namespace| controller.has(namespace))
    }

    /// The namespaces that are attached to a host, by number.
    pub fn all_attached(&self, controller: &Controller) -> Vec<Arc<Namespace>> {
        self.server.namespaces().iter().filter(|namespace| controller.has(namespace)).map(Arc::clone).collect()
    }

    /// Globally unique identifier of a namespace.
    pub fn namespace_uuid(&self, namespace: &Namespace) -> [u8; 16] {
        let (config, created_ns) = (&self.server.config, namespace.origin.created_ns);
        let words = [&*config.name, &*config.created, &*namespace.name];
        if created_ns == 0 { uuid(&words) } else { uuid(&[words[0], words[1], words[2], &created_ns.to_string()]) }
    }

    /// Whether a host may connect from there.
    pub fn permits(&self, host: &str, from: IpAddr) -> bool {
        from.to_canonical().is_loopback() || self.allowed.iter().any(|allowed| allowed == host)
    }

    /// Creates a controller for a host.
    pub fn add_controller(
        &self,
        is_discovery: bool,
        host: Host,
        keep_alive_ms: u32,
        admin: &Arc<Queue>,
    ) -> Result<Arc<Controller>, Status> {
        let mut controllers = self.controllers();
        if controllers.len() >= MAX_CONTROLLERS {
            return Err(Status::CONNECT_BUSY);
        }
        let Some(id) = (1..=u16::MAX).find(|id| !controllers.contains_key(id)) else {
            return Err(Status::CONNECT_BUSY);
        };
        let made = Controller::new(id, is_discovery, host, keep_alive_ms, &self.server.namespaces(), Arc::clone(admin));
        let made = Arc::new(made);
        controllers.insert(id, Arc::clone(&made));
        Ok(made)
    }

    /// Controllers with numbers from that one on, without those for discovery.
    pub fn controllers_from(&self, id: u16) -> Vec<Arc<Controller>> {
        self.controllers().range(id..).map(|(_, found)| Arc::clone(found)).filter(|c| !c.is_discovery).collect()
    }

    /// Whether namespaces have separate reclaim units (flexible data placement).
    pub fn places_data(&self) -> bool {
        self.server.config.flash().is_ok_and(|flash| flash.placement() == Placement::Isolated)
    }

    /// Events of data placement.
    pub fn events(&self) -> MutexGuard<'_, Events> {
        lock(&self.events)
    }

    /// The controller of that number.
    pub fn controller(&self, id: u16) -> Option<Arc<Controller>> {
        self.controllers().get(&id).map(Arc::clone)
    }

    /// The Admin Queue of a controller has ended, and with it the controller.
    pub fn remove_controller(&self, controller: &Controller) {
        self.controllers().remove(&controller.id);
        controller.end();
    }

    /// Controllers that hosts are connected to.
    #[cfg(test)]
    pub fn controller_count(&self) -> usize {
        self.controllers().len()
    }

    /// Counts a new connection; None where the server is stopping.
    pub fn admit(&self, queue: &Arc<Queue>) -> Option<u64> {
        let mut connections = self.connections();
        if self.is_stopping() {
            return None;
        }
        let number = self.accepted.fetch_add(1, Ordering::Relaxed) as u64;
        connections.insert(number, Arc::clone(queue));
        Some(number)
    }

    /// Closes the oldest connection of which it is not known whose it is: a host that may connect does so at once, and
    /// others must not keep it out.
    pub fn close_oldest_unconnected(&self) {
        let is_unconnected = |queue: &&Arc<Queue>| queue.unconnected_for().is_some() && !queue.is_closed();
        if let Some(queue) = self.connections().values().find(is_unconnected) {
            queue.close();
        }
    }

    /// A connection has ended.
    pub fn dismiss(&self, number: u64) {
        self.connections().remove(&number);
    }

    /// Whether the server is about to end.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Ends every connection once its commands in work are answered.
    pub fn stop(&self, patience: Duration) {
        self.stopping.store(true, Ordering::Relaxed);
        let deadline = Instant::now() + patience;
        for queue in self.connections().values() {
            queue.stop_reading();
        }
        while !self.connections().is_empty() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Reports changed namespaces to hosts, removes controllers whose keep alive timer has expired, and closes connections
    /// that have not become one of a controller in time.
    pub fn look_after(&self) {
        while !self.is_stopping() {
            let now = Instant::now();
            let serials = self.server.namespaces().iter().map(|namespace| namespace.serial).collect();
            self.events().retain(&serials);
            for queue in self.connections().values() {
                if queue.unconnected_for().is_some_and(|time| time >= STALLED) {
                    queue.close();
                }
            }
            let controllers: Vec<_> = self.controllers().values().map(Arc::clone).collect();
            for controller in controllers {
                if controller.is_forsaken(now) {
                    let nqn = &controller.host.nqn;
                    self.not_heard.say(|| format!("NVMe/TCP: no keep-alive from {nqn}; closing its connections"));
                    controller.end();
                } else {
                    controller.look_at(&self.server.namespaces());
                }
            }
            thread::sleep(LOOKING);
        }
    }
}

/// A UUID of version 8 (RFC 9562) from the 128-bit FNV-1a hash of some words.
fn uuid(words: &[&str]) -> [u8; 16] {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let mut hash = BASIS;
    for word in words {
        for &byte in word.as_bytes().iter().chain(&[0]) {
            hash = (hash ^ u128::from(byte)).wrapping_mul(PRIME);
        }
    }
    let mut bytes = hash.to_be_bytes();
    bytes[6] = bytes[6] & 0x0f | 0x80;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}

fn hyphenated(uuid: [u8; 16]) -> String {
    let hex = format!("{:032x}", u128::from_be_bytes(uuid));
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_depend_on_every_part_of_the_name() {
        let one = hyphenated(uuid(&["ssd0", "2026"]));
        assert_eq!((one.len(), &one[14..15]), (36, "8"));
        assert_ne!(one, hyphenated(uuid(&["ssd02", "026"])));
        assert_eq!(one, hyphenated(uuid(&["ssd0", "2026"])));
    }
}
