//! Parameters of the command line: words `key=value`.

use std::os::fd::RawFd;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::{ServeError, refuse};
use crate::nvme_tcp::Permissions;

/// Longer polling uses a CPU and gains almost nothing.
const MAX_POLL_US: u64 = 1000;

/// Timing of completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Latency {
    /// As soon as the data is there.
    #[default]
    None,
    /// When the modelled drive would be done.
    Real,
}

/// Parameters of the command line.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameters {
    /// Folder of the device.
    pub device: Option<PathBuf>,
    /// Timing of completions.
    pub latency: Latency,
    /// Real seconds for each modelled one.
    pub time_scale: f64,
    /// Listening Unix sockets for NBD clients, inherited, each with the only namespace that is seen through it if any.
    pub nbd_fds: Vec<(RawFd, Option<String>)>,
    /// Maximum concurrent requests on each NBD connection.
    pub threads: Option<usize>,
    /// Directory of certificates, with which NBD clients must use TLS.
    pub tls_certificates: Option<PathBuf>,
    /// Whether NBD clients need a certificate.
    pub tls_verify_peer: bool,
    /// Listening control socket, inherited.
    pub control_fd: Option<RawFd>,
    /// Locked file, inherited; keeps a second server of the device away while this process lives.
    pub lock_fd: Option<RawFd>,
    /// Pipe, inherited; the server ends once it is closed at its other end.
    pub stop_fd: Option<RawFd>,
    /// Listening TCP socket for NVMe hosts, inherited.
    pub nvme_tcp_fd: Option<RawFd>,
    /// Another one, for discovery only, inherited.
    pub nvme_discovery_fd: Option<RawFd>,
    /// NVMe hosts that may connect from other machines, by NQN.
    pub nvme_hosts: Vec<String>,
    /// Listening sockets for vhost-user clients, inherited, each with its namespace.
    pub vhost_user_fds: Vec<(RawFd, String)>,
    /// Time for which clients are polled after a request, before a thread sleeps; zero: never.
    pub poll: Duration,
    /// Where listening sockets of namespaces come that are added while the device is served, inherited.
    pub sockets_fd: Option<RawFd>,
    /// Operations permitted to NVMe hosts besides reading and writing.
    pub nvme_permissions: Permissions,
    /// Seconds between checkpoints of the placement.
    pub checkpoint_s: f64,
    /// A command of the control protocol to carry out instead of serving; see [`crate::offline`].
    pub command: Option<String>,
    /// File to which the PID is written when clients are served.
    pub pid_file: Option<PathBuf>,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            device: None,
            latency: Latency::None,
            time_scale: 1.0,
            nbd_fds: Vec::new(),
            threads: None,
            tls_certificates: None,
            tls_verify_peer: false,
            control_fd: None,
            lock_fd: None,
            stop_fd: None,
            nvme_tcp_fd: None,
            nvme_discovery_fd: None,
            nvme_hosts: Vec::new(),
            vhost_user_fds: Vec::new(),
            poll: Duration::from_micros(32),
            sockets_fd: None,
            nvme_permissions: Permissions::default(),
            checkpoint_s: 60.0,
            command: None,
            pid_file: None,
        }
    }
}

impl Parameters {
    /// Takes one `key=value`.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), ServeError> {
        match key {
            "device" => self.device = Some(PathBuf::from(value)),
            "command" => self.command = Some(value.to_owned()),
            "pid-file" => self.pid_file = Some(PathBuf::from(value)),
            "threads" => self.threads = Some(count(key, value, 4096)?),
            "tls-certificates" => self.tls_certificates = Some(PathBuf::from(value)),
            "tls-verify-peer" => {
                self.tls_verify_peer = match value {
                    "yes" => true,
                    "no" => false,
                    _ => return refuse(format!("tls-verify-peer={value}: write yes or no")),
                }
            }
            "nbd-fd" => {
                let (fd, only) = value.split_once(':').map_or((value, None), |(fd, only)| (fd, Some(only.to_owned())));
                self.nbd_fds.push((descriptor(key, fd)?, only));
            }
            "latency" => {
                self.latency = match value {
                    "none" => Latency::None,
                    "real" => Latency::Real,
                    _ => return refuse(format!("latency={value}: write real or none")),
                }
            }
            "time-scale" => self.time_scale = positive(key, value, 1e6)?,
            "checkpoint-seconds" => self.checkpoint_s = positive(key, value, 1e9)?,
            "control-fd" => self.control_fd = Some(descriptor(key, value)?),
            "stop-fd" => self.stop_fd = Some(descriptor(key, value)?),
            "sockets-fd" => self.sockets_fd = Some(descriptor(key, value)?),
            "nvme-tcp-fd" => self.nvme_tcp_fd = Some(descriptor(key, value)?),
            "nvme-discovery-fd" => self.nvme_discovery_fd = Some(descriptor(key, value)?),
            "vhost-user-fd" => match value.split_once(':') {
                Some((fd, name)) => self.vhost_user_fds.push((descriptor(key, fd)?, name.to_owned())),
                None => return refuse(format!("{key}={value}: write FD:NAMESPACE")),
            },
            "poll-us" => {
                self.poll = match value.parse() {
                    Ok(poll_us) if poll_us <= MAX_POLL_US => Duration::from_micros(poll_us),
                    _ => return refuse(format!("{key}={value}: write a number from 0 to {MAX_POLL_US}")),
                }
            }
            "nvme-host" => self.nvme_hosts.push(value.to_owned()),
            "nvme-allow" => match value {
                "namespaces" => self.nvme_permissions.namespaces = true,
                "ops" => self.nvme_permissions.ops = true,
                _ => return refuse(format!("nvme-allow={value}: write namespaces or ops")),
            },
            "lock-fd" => self.lock_fd = Some(descriptor(key, value)?),
            _ => {
                return refuse(format!(
                    "unknown parameter {key}; there are device, latency, time-scale, checkpoint-seconds, threads, pid-file, \
                     nbd-fd, control-fd, lock-fd, stop-fd, sockets-fd, nvme-tcp-fd, nvme-discovery-fd, nvme-host, \
                     nvme-allow, vhost-user-fd, poll-us, tls-certificates, tls-verify-peer and command"
                ));
            }
        }
        Ok(())
    }
}

fn positive(key: &str, value: &str, most: f64) -> Result<f64, ServeError> {
    match value.parse::<f64>() {
        Ok(number) if number >= 1e-6 && number <= most => Ok(number),
        _ => refuse(format!("{key}={value}: write a number from 0.000001 to {most}")),
    }
}

fn count(key: &str, value: &str, most: usize) -> Result<usize, ServeError> {
    match value.parse::<usize>() {
        Ok(number) if (1..=most).contains(&number) => Ok(number),
        _ => refuse(format!("{key}={value}: write a number from 1 to {most}")),
    }
}

fn descriptor(key: &str, value: &str) -> Result<RawFd, ServeError> {
    match value.parse::<RawFd>() {
        Ok(fd) if fd > 2 => Ok(fd),
        _ => refuse(format!("{key}={value}: not an inherited file descriptor")),
    }
}
