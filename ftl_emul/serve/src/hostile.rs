//! Bytes of strangers, handed to each front end as they would arrive: for fuzzing, and for the inputs that it has found.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::control::protocol::{self, Session};
use crate::error::ServeError;
use crate::namespace::Awaited;
use crate::nbd::{self, Nbd};
use crate::nvme_tcp::{Permissions, Port, Subsystem, connection};
use crate::parameters::Parameters;
use crate::server::Server;
use crate::vhost_user::request::{BlockRequest, Disk};
use crate::vhost_user::virtqueue::Chain;

/// Bytes of a page of [`make`]'s device.
pub const PAGE: u64 = 4096;
/// Pages of each of its namespaces.
pub const PAGES: u64 = 320;
/// Their names.
pub const NAMES: [&str; 3] = ["a", "b", "c"];

/// Inputs are no longer than this.
pub const MOST_BYTES: usize = 4096;
/// Descriptors of a guest's queue, followed by what they point to.
const MEMORY_BYTES: usize = 64 << 10;
const DESCRIPTORS: u16 = 16;

const ICREQ_BYTES: u8 = 128;
const NO_CONTROLLER: u16 = 0xffff;
/// CC: enabled, entries of 64 and 16 bytes.
const ENABLE: u32 = 6 << 16 | 4 << 20 | 1;

/// Makes a device of 2 dies with 64 blocks of 16 pages each, and no spare block but those that `spare` leaves.
pub fn make(folder: &Path, kind: &str, isolated: bool, spare: u64) -> io::Result<()> {
    let ops = (128 - spare - 3 * PAGES.div_ceil(16)) / 3;
    let size = PAGES * PAGE;
    let mut text = format!(
        "format_version = 1\nname = \"d\"\nemulated = true\nspec = \"\"\ncreated = \"\"\n[geometry]\npage_bytes = 4096\n\
         pages_per_block = 16\nblocks_per_die = 64\nchannels = 2\ndies_per_channel = 1\nplanes = 1\n[timing]\n\
         read_ns = 1\nprogram_ns = 1\nerase_ns = 1\ntransfer_ns = 1\n[mapping]\nkind = \"{kind}\"\nvictim = \"greedy\"\n\
         separate_gc_frontier = false\nfree_floor = 1\ncopyback = true\nscheduler = \"fifo\"\nisolated = {isolated}\n\
         seed = 1\n"
    );
    for name in NAMES {
        // Into a String: cannot fail.
        let _written =
            write!(text, "[[namespace]]\nname = \"{name}\"\nsize_bytes = {size}\nweight = 1.0\nops_blocks = {ops}\n");
        File::create(folder.join(format!("{name}.img")))?.set_len(size)?;
    }
    fs::write(folder.join("device.toml"), text)
}

/// A front end, and how far a stranger has got there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// NBD from the first byte of the client on.
    NbdNegotiation,
    /// NBD requests to a namespace that was chosen.
    NbdRequests,
    /// NVMe/TCP from the first byte of the host on.
    NvmeTcp,
    /// PDUs on an admin queue that is connected and enabled.
    NvmeTcpAdmin,
    /// PDUs on an I/O queue.
    NvmeTcpIo,
    /// Memory of a guest: descriptors of a queue, and requests.
    VhostUser,
    /// Lines on the control socket, from root.
    Control,
}

impl Door {
    /// With the names of their inputs.
    pub const ALL: [(&str, Self); 7] = [
        ("nbd_negotiation", Self::NbdNegotiation),
        ("nbd_requests", Self::NbdRequests),
        ("nvme_tcp", Self::NvmeTcp),
        ("nvme_tcp_admin", Self::NvmeTcpAdmin),
        ("nvme_tcp_io", Self::NvmeTcpIo),
        ("vhost_user", Self::VhostUser),
        ("control", Self::Control),
    ];
}

/// A device that strangers reach. Its server is never ended, as its threads are not.
pub struct Device {
    server: &'static Server,
    nbd: Nbd,
    subsystem: Arc<Subsystem>,
    listener: TcpListener,
    disk: Disk,
    /// Keeps a controller for the I/O queues.
    _admin: TcpStream,
    controller: u16,
}

impl Device {
    /// Makes a device in an empty folder and serves it without a clock.
    pub fn new(folder: &Path) -> Result<Self, ServeError> {
        let failed = |e: io::Error| ServeError::File(format!("{}: {e}", folder.display()));
        make(folder, "page", true, 8).map_err(failed)?;
        let parameters = Parameters { device: Some(folder.to_owned()), ..Parameters::default() };
        let server: &'static Server = Box::leak(Box::new(Server::open(&parameters)?));
        let nbd = Nbd::new(server, &Parameters::default())?;
        let permissions = Permissions { namespaces: true, ops: true };
        let subsystem = Arc::new(Subsystem::new(server, Vec::new(), permissions));
        let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
        let disk = Disk::new(Arc::clone(&server.namespaces()[0]), &server.model, "d", Arc::default());
        let (admin, controller) = admin(&subsystem, &listener).map_err(failed)?;
        Ok(Self { server, nbd, subsystem, listener, disk, _admin: admin, controller })
    }

    /// Sends it the input of a client, which then disconnects; returns after all of it was answered.
    pub fn receive(&self, door: Door, bytes: &[u8]) -> io::Result<()> {
        match door {
            Door::NbdNegotiation => self.nbd(&[bytes]),
            Door::NbdRequests => self.nbd(&[&chosen_export("b"), bytes]),
            Door::NvmeTcp => self.nvme_tcp(&[bytes]),
            Door::NvmeTcpAdmin => {
                self.nvme_tcp(&[&connect(&self.subsystem.nqn, 0, NO_CONTROLLER), &configure(ENABLE), bytes])
            }
            Door::NvmeTcpIo => self.nvme_tcp(&[&connect(&self.subsystem.nqn, 1, self.controller), bytes]),
            Door::VhostUser => self.vhost_user(bytes),
            Door::Control => {
                let mut session = Session::new(true);
                for line in bytes.split(|&byte| byte == b'\n') {
                    protocol::answer(self.server, &mut session, line);
                }
                Ok(())
            }
        }
    }

    fn nbd(&self, parts: &[&[u8]]) -> io::Result<()> {
        let (here, mut there) = UnixStream::pair()?;
        for part in parts {
            there.write_all(part)?;
        }
        there.shutdown(Shutdown::Write)?;
        let reader = thread::spawn(move || read_all(&there));
        nbd::converse(self.nbd.front(), Arc::new(here), None, None);
        ended(reader)
    }

    fn nvme_tcp(&self, parts: &[&[u8]]) -> io::Result<()> {
        let mut there = TcpStream::connect(self.listener.local_addr()?)?;
        let (here, _) = self.listener.accept()?;
        for part in parts {
            there.write_all(part)?;
        }
        there.shutdown(Shutdown::Write)?;
        let reader = thread::spawn(move || read_all(&there));
        connection::serve(&self.subsystem, here, Port::All)?;
        ended(reader)
    }

    fn vhost_user(&self, bytes: &[u8]) -> io::Result<()> {
        let memory =
            GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), MEMORY_BYTES)]).map_err(io::Error::other)?;
        memory.write_slice(bytes, GuestAddress(0)).map_err(io::Error::other)?;
        for head in 0..DESCRIPTORS {
            let chain = Chain::new(&memory, GuestAddress(0), DESCRIPTORS, head);
            if let Some(request) = BlockRequest::parse(&memory, chain) {
                request.carry_out(&self.disk, &memory, false, &|| Awaited::Yes);
            }
        }
        Ok(())
    }
}

fn read_all(mut stream: impl Read) {
    // The server may end the connection in any way.
    let _ended = io::copy(&mut stream, &mut io::sink());
}

fn ended(reader: thread::JoinHandle<()>) -> io::Result<()> {
    reader.join().map_err(|_| io::Error::other("the reader of replies has ended"))
}

/// Client flags, and the option GO for an export (NBD protocol, "Newstyle negotiation").
fn chosen_export(name: &str) -> Vec<u8> {
    let length = u32::try_from(name.len()).unwrap_or(0);
    [
        &3_u32.to_be_bytes()[..],
        b"IHAVEOPT",
        &7_u32.to_be_bytes(),
        &(length + 6).to_be_bytes(),
        &length.to_be_bytes(),
        name.as_bytes(),
        &[0, 0],
    ]
    .concat()
}

/// The ICReq PDU, and a Connect command for a queue (NVMe/TCP 3.6.2.2, NVMe over Fabrics 3.3).
fn connect(subsystem: &str, queue: u16, controller: u16) -> Vec<u8> {
    let mut initialize = vec![0; usize::from(ICREQ_BYTES)];
    (initialize[2], initialize[4]) = (ICREQ_BYTES, ICREQ_BYTES);
    let mut data = vec![0; 1024];
    data[16..18].copy_from_slice(&controller.to_le_bytes());
    data[256..256 + subsystem.len()].copy_from_slice(subsystem.as_bytes());
    data[512..519].copy_from_slice(b"nqn.x:y");
    let mut entry = entry(1);
    entry[32..36].copy_from_slice(&1024_u32.to_le_bytes());
    entry[39] = 1;
    entry[42..44].copy_from_slice(&queue.to_le_bytes());
    entry[44] = 31;
    [initialize, capsule(&entry, &data)].concat()
}

/// Property Set of CC.
fn configure(value: u32) -> Vec<u8> {
    let mut entry = entry(0);
    entry[44] = 0x14;
    entry[48..52].copy_from_slice(&value.to_le_bytes());
    capsule(&entry, &[])
}

/// Fields of a Fabrics command.
fn entry(kind: u8) -> [u8; 64] {
    let mut entry = [0; 64];
    (entry[0], entry[1], entry[4]) = (0x7f, 0x40, kind);
    entry
}

fn capsule(entry: &[u8; 64], data: &[u8]) -> Vec<u8> {
    let (header, place) = (72, if data.is_empty() { 0 } else { 72 });
    let length = u32::try_from(72 + data.len()).unwrap_or(0);
    [&[4, 0, header, place][..], &length.to_le_bytes(), entry, data].concat()
}

/// An admin queue, connected and enabled; with the number of its controller.
fn admin(subsystem: &Arc<Subsystem>, listener: &TcpListener) -> io::Result<(TcpStream, u16)> {
    let mut host = TcpStream::connect(listener.local_addr()?)?;
    let (here, _) = listener.accept()?;
    let serving = Arc::clone(subsystem);
    thread::spawn(move || connection::serve(&serving, here, Port::All));
    host.write_all(&connect(&subsystem.nqn, 0, NO_CONTROLLER))?;
    // ICResp, and the response to Connect, whose result is the controller.
    let mut answers = [0; 128 + 24];
    host.read_exact(&mut answers)?;
    let controller = u16::from_le_bytes([answers[136], answers[137]]);
    host.write_all(&configure(ENABLE))?;
    host.read_exact(&mut answers[..24])?;
    Ok((host, controller))
}
