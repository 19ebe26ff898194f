//! Load on one namespace of a served device over any of its front ends: a given number of outstanding requests of 4
//! KiB, at random positions, for a given time. Prints one JSON object.
//!
//! All clients differ only in the transport: one thread, which sleeps while it has no reply, or with `--poll` polls,
//! like SPDK, libblkio and QEMU's I/O threads. The client for vhost-user is that of libblkio.

use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use blkio::{Blkio, BlkioStartOutcome, Blkioq, Completion, MemoryRegion, ReqFlags};
use rand_core::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

const BLOCK: usize = 4096;

type Failure = Box<dyn std::error::Error>;

/// A connection to the device.
trait Client {
    /// Begins a request, not necessarily sending it yet.
    fn submit(&mut self, write: bool, offset: u64, tag: usize) -> Result<(), Failure>;
    /// Sends pending requests, waits for at least one reply, and adds the tags of all available replies.
    fn answers(&mut self, tags: &mut Vec<usize>) -> Result<(), Failure>;
}

/// A socket; one that does not block is polled.
struct Socket<S>(S);

fn poll<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match attempt() {
            Err(e) if e.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            done => return done,
        }
    }
}

impl<S: Read> Read for Socket<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        poll(|| self.0.read(buffer))
    }
}

impl<S: Write> Write for Socket<S> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        poll(|| self.0.write(buffer))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// NBD, fixed newstyle, simple replies.
struct Nbd {
    stream: Socket<UnixStream>,
    reader: BufReader<Socket<UnixStream>>,
    out: Vec<u8>,
    /// By tag, whether data follows the reply.
    reads: Vec<bool>,
}

impl Nbd {
    fn connect(path: &str, export: &str, depth: usize, polls: bool) -> Result<Self, Failure> {
        let mut stream = UnixStream::connect(path)?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        // Fixed newstyle, no zeroes; NBD_OPT_EXPORT_NAME.
        let mut hello = vec![0, 0, 0, 3];
        hello.extend(b"IHAVEOPT");
        hello.extend(1_u32.to_be_bytes());
        hello.extend(u32::try_from(export.len())?.to_be_bytes());
        hello.extend(export.as_bytes());
        stream.write_all(&hello)?;
        let mut size_and_flags = [0; 10];
        stream.read_exact(&mut size_and_flags)?;
        stream.set_nonblocking(polls)?;
        let reader = BufReader::with_capacity(256 << 10, Socket(stream.try_clone()?));
        Ok(Self { stream: Socket(stream), reader, out: Vec::new(), reads: vec![false; depth] })
    }

    fn answer(&mut self) -> Result<usize, Failure> {
        let mut head = [0; 16];
        self.reader.read_exact(&mut head)?;
        if head[4..8] != [0; 4] {
            return Err("a request failed".into());
        }
        let tag = usize::try_from(u64::from_be_bytes(head[8..].try_into()?))?;
        if self.reads[tag] {
            let mut data = [0; BLOCK];
            self.reader.read_exact(&mut data)?;
        }
        Ok(tag)
    }
}

impl Client for Nbd {
    fn submit(&mut self, write: bool, offset: u64, tag: usize) -> Result<(), Failure> {
        self.reads[tag] = !write;
        self.out.extend(0x2560_9513_u32.to_be_bytes());
        self.out.extend([0, 0, 0, u8::from(write)]);
        self.out.extend((tag as u64).to_be_bytes());
        self.out.extend(offset.to_be_bytes());
        self.out.extend(u32::try_from(BLOCK)?.to_be_bytes());
        if write {
            self.out.extend([0x5a; BLOCK]);
        }
        Ok(())
    }

    fn answers(&mut self, tags: &mut Vec<usize>) -> Result<(), Failure> {
        self.stream.write_all(&self.out)?;
        self.out.clear();
        tags.push(self.answer()?);
        while self.reader.buffer().len() >= 16 {
            tags.push(self.answer()?);
        }
        Ok(())
    }
}

/// NVMe over TCP without digests: one controller with one I/O queue.
struct Nvme {
    _admin: TcpStream,
    stream: Socket<TcpStream>,
    reader: BufReader<Socket<TcpStream>>,
    out: Vec<u8>,
    namespace: u32,
}

impl Nvme {
    fn connect(address: &str, nqn: &str, namespace: u32, polls: bool) -> Result<Self, Failure> {
        let mut admin = Self::queue(address)?;
        let controller = Self::associate(&mut admin, nqn, 0, 0xffff)?;
        // Property Set of CC: entries of 64 and 16 bytes, enabled.
        let mut enable = command(0x7f, 0);
        enable[44..48].copy_from_slice(&0x14_u32.to_le_bytes());
        enable[48..52].copy_from_slice(&(6_u32 << 16 | 4 << 20 | 1).to_le_bytes());
        admin.write_all(&capsule(&enable, &[]))?;
        response(&mut admin)?;
        let mut stream = Self::queue(address)?;
        Self::associate(&mut stream, nqn, 1, controller)?;
        stream.set_nonblocking(polls)?;
        let reader = BufReader::with_capacity(256 << 10, Socket(stream.try_clone()?));
        Ok(Self { _admin: admin, stream: Socket(stream), reader, out: Vec::new(), namespace })
    }

    /// ICReq and ICResp.
    fn queue(address: &str) -> Result<TcpStream, Failure> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let mut request = [0; 128];
        (request[2], request[4]) = (128, 128);
        stream.write_all(&request)?;
        stream.read_exact(&mut request)?;
        Ok(stream)
    }

    /// The Connect command; returns the controller.
    fn associate(stream: &mut TcpStream, nqn: &str, queue: u16, controller: u16) -> Result<u16, Failure> {
        let mut connect = command(0x7f, 0);
        connect[4] = 1;
        connect[42..44].copy_from_slice(&queue.to_le_bytes());
        connect[44..46].copy_from_slice(&127_u16.to_le_bytes());
        let mut data = [0; 1024];
        data[..16].fill(7);
        data[16..18].copy_from_slice(&controller.to_le_bytes());
        data[256..256 + nqn.len()].copy_from_slice(nqn.as_bytes());
        let host = b"nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555";
        data[512..512 + host.len()].copy_from_slice(host);
        stream.write_all(&capsule(&connect, &data))?;
        let entry = response(stream)?;
        Ok(u16::from_le_bytes([entry[0], entry[1]]))
    }

    fn answer(&mut self) -> Result<usize, Failure> {
        loop {
            let mut head = [0; 24];
            self.reader.read_exact(&mut head)?;
            match head[0] {
                // CapsuleResp.
                5 => {
                    if u16::from_le_bytes([head[22], head[23]]) >> 1 != 0 {
                        return Err("a request failed".into());
                    }
                    return Ok(u16::from_le_bytes([head[20], head[21]]).into());
                }
                // C2HData: a header of 24 bytes.
                7 => {
                    let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize - 24;
                    let mut data = [0; BLOCK];
                    self.reader.read_exact(data.get_mut(..length).ok_or("more data than asked for")?)?;
                }
                other => return Err(format!("an unexpected PDU {other}").into()),
            }
        }
    }
}

fn command(opcode: u8, id: u16) -> [u8; 64] {
    let mut entry = [0; 64];
    (entry[0], entry[1]) = (opcode, 0x40);
    entry[2..4].copy_from_slice(&id.to_le_bytes());
    entry
}

/// CapsuleCmd with its data, if any.
fn capsule(entry: &[u8; 64], data: &[u8]) -> Vec<u8> {
    let mut pdu = Vec::new();
    add_capsule(&mut pdu, entry, data);
    pdu
}

/// Does not copy the data, as over NBD.
fn add_capsule(pdus: &mut Vec<u8>, entry: &[u8; 64], data: &[u8]) {
    let mut entry = *entry;
    if !data.is_empty() {
        entry[32..36].copy_from_slice(&u32::try_from(data.len()).unwrap_or(0).to_le_bytes());
        // A data block in the capsule.
        entry[39] = 0x01;
    }
    pdus.extend([4, 0, 72, if data.is_empty() { 0 } else { 72 }]);
    pdus.extend(u32::try_from(72 + data.len()).unwrap_or(0).to_le_bytes());
    pdus.extend(entry);
    pdus.extend(data);
}

fn response(stream: &mut TcpStream) -> Result<[u8; 16], Failure> {
    let mut pdu = [0; 24];
    stream.read_exact(&mut pdu)?;
    if pdu[0] != 5 || u16::from_le_bytes([pdu[22], pdu[23]]) >> 1 != 0 {
        return Err("the controller refused a command".into());
    }
    Ok(pdu[8..].try_into()?)
}

impl Client for Nvme {
    fn submit(&mut self, write: bool, offset: u64, tag: usize) -> Result<(), Failure> {
        let mut entry = command(if write { 1 } else { 2 }, u16::try_from(tag)?);
        entry[4..8].copy_from_slice(&self.namespace.to_le_bytes());
        entry[40..48].copy_from_slice(&(offset >> 9).to_le_bytes());
        entry[48..52].copy_from_slice(&7_u32.to_le_bytes());
        if write {
            add_capsule(&mut self.out, &entry, &[0x5a; BLOCK]);
        } else {
            // A data block with the host.
            entry[32..36].copy_from_slice(&u32::try_from(BLOCK)?.to_le_bytes());
            entry[39] = 0x5a;
            add_capsule(&mut self.out, &entry, &[]);
        }
        Ok(())
    }

    fn answers(&mut self, tags: &mut Vec<usize>) -> Result<(), Failure> {
        self.stream.write_all(&self.out)?;
        self.out.clear();
        tags.push(self.answer()?);
        while self.reader.buffer().len() >= 24 {
            tags.push(self.answer()?);
        }
        Ok(())
    }
}

/// vhost-user, by libblkio.
struct VhostUser {
    queue: Blkioq,
    memory: MemoryRegion,
    polls: bool,
    // Dropped after its queue.
    _device: Blkio,
}

impl VhostUser {
    fn connect(path: &str, depth: usize, polls: bool) -> Result<Self, Failure> {
        let failed = |e: blkio::Error| -> Failure { e.message().into() };
        let mut device = Blkio::new("virtio-blk-vhost-user").map_err(failed)?;
        device.set_str("path", path).map_err(failed)?;
        device.connect().map_err(failed)?;
        let BlkioStartOutcome { mut queues, .. } = device.start().map_err(failed)?;
        let memory = device.alloc_mem_region(depth * BLOCK).map_err(failed)?;
        device.map_mem_region(&memory).map_err(failed)?;
        Ok(Self { queue: queues.remove(0), memory, polls, _device: device })
    }
}

impl Client for VhostUser {
    fn submit(&mut self, write: bool, offset: u64, tag: usize) -> Result<(), Failure> {
        let buffer = self.memory.addr + tag * BLOCK;
        if write {
            self.queue.write(offset, buffer as *const u8, BLOCK, tag, ReqFlags::empty());
        } else {
            self.queue.read(offset, buffer as *mut u8, BLOCK, tag, ReqFlags::empty());
        }
        Ok(())
    }

    fn answers(&mut self, tags: &mut Vec<usize>) -> Result<(), Failure> {
        let mut found = [const { MaybeUninit::<Completion>::uninit() }; 64];
        let least = usize::from(!self.polls);
        let count = loop {
            match self.queue.do_io(&mut found, least, None, None).map_err(|e| e.message().to_owned())? {
                0 => std::hint::spin_loop(),
                count => break count,
            }
        };
        for completion in &found[..count] {
            // SAFETY: do_io has filled in as many completions as it returns.
            let completion = unsafe { completion.assume_init_ref() };
            if completion.ret != 0 {
                return Err(format!("a request failed: {}", completion.ret).into());
            }
            tags.push(completion.user_data);
        }
        Ok(())
    }
}

/// Results: requests, seconds, and the mean time of a request.
fn run(
    client: &mut dyn Client,
    write: bool,
    depth: usize,
    blocks: u64,
    lasts: Duration,
) -> Result<(u64, f64, f64), Failure> {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(7);
    let mut begun = vec![Instant::now(); depth];
    let (mut tags, mut free) = (Vec::with_capacity(depth), (0..depth).collect::<Vec<_>>());
    let (mut requests, mut waited, started) = (0_u64, Duration::ZERO, Instant::now());
    let deadline = started + lasts;
    loop {
        if Instant::now() < deadline {
            for tag in free.drain(..) {
                let place = ((u128::from(rng.next_u64()) * u128::from(blocks)) >> 64) as u64;
                begun[tag] = Instant::now();
                client.submit(write, place * BLOCK as u64, tag)?;
            }
        } else if free.len() == depth {
            break;
        }
        client.answers(&mut tags)?;
        for tag in tags.drain(..) {
            waited += begun[tag].elapsed();
            requests += 1;
            free.push(tag);
        }
    }
    Ok((requests, started.elapsed().as_secs_f64(), waited.as_secs_f64() / requests as f64))
}

const USAGE: &str = "usage: front_end_load [--poll] (nbd SOCKET EXPORT | vhost-user SOCKET | nvme-tcp ADDRESS:PORT NQN NSID) \
                     (read|write) DEPTH BLOCKS SECONDS";

fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let polls = words.first() == Some(&"--poll");
    let [way @ .., kind, depth, blocks, seconds] = &words[usize::from(polls)..] else { return Err(USAGE.into()) };
    let (depth, blocks): (usize, u64) = (depth.parse()?, blocks.parse()?);
    let mut client: Box<dyn Client> = match way {
        ["nbd", socket, export] => Box::new(Nbd::connect(socket, export, depth, polls)?),
        ["vhost-user", socket] => Box::new(VhostUser::connect(socket, depth, polls)?),
        ["nvme-tcp", address, nqn, namespace] => Box::new(Nvme::connect(address, nqn, namespace.parse()?, polls)?),
        _ => return Err(USAGE.into()),
    };
    let lasts = Duration::from_secs_f64(seconds.parse()?);
    let (requests, seconds, mean_s) = run(client.as_mut(), *kind == "write", depth, blocks, lasts)?;
    let iops = requests as f64 / seconds;
    println!(
        r#"{{"requests": {requests}, "seconds": {seconds:.6}, "iops": {iops:.1}, "mean_us": {:.3}}}"#,
        mean_s * 1e6
    );
    Ok(())
}
