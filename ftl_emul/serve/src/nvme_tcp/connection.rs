//! One connection of a host, which is one queue pair: reads PDUs, lets commands be carried out, and ends in good order.

use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use crate::config::is_nsid;
use crate::namespace::Namespace;
use crate::nvme_tcp::Port;
use crate::nvme_tcp::admin::{self, Association, Outcome};
use crate::nvme_tcp::command::{Command, Completion, Place, Status, Transfer, fabrics};
use crate::nvme_tcp::controller::Controller;
use crate::nvme_tcp::io as nvm;
use crate::nvme_tcp::pdu::{
    self, COMMON_BYTES, DIGEST_BYTES, Fault, Format, FromHost, HostData, Layout, MAX_HEADER_BYTES,
};
use crate::nvme_tcp::placement;
use crate::nvme_tcp::queue::{Incoming, Queue, When, Work};
use crate::nvme_tcp::quick;
use crate::nvme_tcp::subsystem::Subsystem;
use crate::polling::Polling;
use crate::threads;

/// Timeout for the rest of a PDU, and for Connect.
pub const STALLED: Duration = Duration::from_secs(10);
/// Time for commands in progress when the server stops.
pub const STOPPING: Duration = Duration::from_secs(10);
/// Time for the host to read a C2HTermReq.
const PARTING: Duration = Duration::from_secs(1);
/// Threads of an I/O queue: where answers wait for the modelled drive, each takes one.
const THREADS: usize = 4;
const TIMED_THREADS: usize = 128;
/// Size of a read from a host.
const READ_BYTES: usize = 128 << 10;
/// Space for the digest and the response after the data of an answer.
const AFTER_DATA_BYTES: usize = 64;

/// Why a connection ends.
enum End {
    /// The host has disconnected, or the server is stopping.
    Closed,
    /// The host has broken the protocol, with this header.
    Fault(Fault, Vec<u8>),
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> Self {
        // In any case, the host cannot be reached.
        Self::Closed
    }
}

/// Returns when the host has begun to send something, however long that takes: [`Subsystem::look_after`] ends connections.
fn wait(stream: &mut impl BufRead) -> Result<(), End> {
    loop {
        match stream.fill_buf() {
            Ok([]) => return Err(End::Closed),
            Ok(_) => return Ok(()),
            Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => return Err(End::Closed),
        }
    }
}

/// Serves a connection to its end.
pub fn serve(subsystem: &Subsystem, stream: TcpStream, port: Port) -> io::Result<()> {
    stream.set_read_timeout(Some(STALLED))?;
    let (mut here, from) = (stream.local_addr()?, stream.peer_addr()?);
    if let Port::Discovery(of_subsystem) = port {
        here.set_port(of_subsystem);
    }
    let queue = Arc::new(Queue::new(stream, &subsystem.server.request_memory)?);
    let Some(number) = subsystem.admit(&queue) else { return Ok(()) };
    let (association, capsule) = (None, Vec::new());
    let mut reader = Reader { subsystem, queue: &queue, port, here, from, association, threads: 0, capsule };
    // A panic ends this connection only.
    let _panicked = catch_unwind(AssertUnwindSafe(|| {
        thread::scope(|scope| {
            let end = catch_unwind(AssertUnwindSafe(|| reader.converse(scope)));
            reader.part(end.unwrap_or(End::Closed));
        });
    }));
    queue.close();
    if let Some(Association { controller, queue: id }) = reader.association {
        if id == 0 {
            subsystem.remove_controller(&controller);
        } else {
            controller.remove_queue(id, &queue);
        }
    }
    subsystem.dismiss(number);
    Ok(())
}

struct Reader<'a> {
    subsystem: &'a Subsystem,
    queue: &'a Arc<Queue>,
    port: Port,
    /// Address at which the host reaches the subsystem.
    here: SocketAddr,
    from: SocketAddr,
    association: Option<Association>,
    threads: usize,
    /// Reused buffer for the data of capsules that arrive in parts.
    capsule: Vec<u8>,
}

impl<'a> Reader<'a> {
    fn converse<'s>(&mut self, scope: &'s Scope<'s, 'a>) -> End {
        let polling = Polling::new(self.subsystem.server.max_poll);
        let mut stream = BufReader::with_capacity(READ_BYTES, Incoming { queue: self.queue, polling });
        loop {
            if let Err(end) = self.one(&mut stream, scope) {
                return end;
            }
        }
    }

    /// Waits for a PDU and processes it.
    fn one<'s>(&mut self, stream: &mut BufReader<Incoming<'_>>, scope: &'s Scope<'s, 'a>) -> Result<(), End> {
        wait(stream)?;
        let mut header = Vec::with_capacity(MAX_HEADER_BYTES);
        header.resize(COMMON_BYTES, 0);
        stream.read_exact(&mut header)?;
        let mut common = [0; COMMON_BYTES];
        common.copy_from_slice(&header);
        let layout =
            Layout::of(common, self.queue.format().digests).map_err(|fault| End::Fault(fault, header.clone()))?;
        header.resize(COMMON_BYTES + layout.before_data(), 0);
        stream.read_exact(&mut header[COMMON_BYTES..])?;
        let faulty = |fault| End::Fault(fault, header[..layout.header].to_vec());
        let parsed = layout.parse(&header).map_err(faulty)?;
        match (parsed, self.queue.is_agreed()) {
            (FromHost::Initialize(asked), false) => {
                // The host gets the parameters that it requests (NVMe/TCP 3.6.2.3). The response itself has no digest.
                self.queue.send(&pdu::initialized(asked.digests))?;
                self.queue.agree(Format { digests: asked.digests, alignment: asked.alignment });
                Ok(())
            }
            (FromHost::Terminate, _) => Err(End::Closed),
            (FromHost::Initialize(_), true) | (_, false) => Err(faulty(Fault::Sequence)),
            (FromHost::Command(entry), true) => {
                let bytes = layout.data + if layout.data_digest { DIGEST_BYTES } else { 0 };
                let done = if stream.buffer().len() >= bytes {
                    let (data, digest) = stream.buffer()[..bytes].split_at(layout.data);
                    let done = self.command(Command(entry), data, is_damaged(data, digest), scope);
                    stream.consume(bytes);
                    done
                } else {
                    let mut data = std::mem::take(&mut self.capsule);
                    data.resize(layout.data, 0);
                    let damaged = read_data(stream, &mut data, layout.data_digest)?;
                    let done = self.command(Command(entry), &data, damaged, scope);
                    self.capsule = data;
                    done
                };
                done.map_err(|end| match end {
                    End::Fault(fault, _) => faulty(fault),
                    End::Closed => End::Closed,
                })
            }
            (FromHost::Data(data), true) => {
                let work = self.queue.expect(&data).map_err(faulty)?;
                self.data(stream, &data, layout.data_digest, work, scope)
            }
        }
    }

    /// Data that an R2T requested.
    fn data<'s>(
        &mut self,
        stream: &mut impl Read,
        data: &HostData,
        has_digest: bool,
        mut work: Work,
        scope: &'s Scope<'s, 'a>,
    ) -> Result<(), End> {
        let have = work.data.len();
        work.data.resize(have + data.length as usize, 0);
        work.damaged |= read_data(stream, &mut work.data[have..], has_digest)?;
        self.queue.filled(work);
        self.proceed(scope)
    }

    /// A command, with the data in its capsule.
    fn command<'s>(
        &mut self,
        command: Command,
        capsule: &[u8],
        damaged: bool,
        scope: &'s Scope<'s, 'a>,
    ) -> Result<(), End> {
        if let Err(refused) = self.queue.take(&command) {
            return match refused {
                Ok(status) => Ok(self.queue.refuse(command.id(), status)?),
                Err(fault) => Err(End::Fault(fault, Vec::new())),
            };
        }
        if let Some(association) = &self.association {
            association.controller.hear();
        }
        let (transfer, place) = match self.transfer(&command, capsule, damaged) {
            Ok(moved) => moved,
            Err(status) => {
                self.note(&command, status);
                return Ok(self.queue.answer(command.id(), status.into(), None)?);
            }
        };
        if command.fabrics_type() == Some(fabrics::DISCONNECT) {
            self.queue.answer(command.id(), Status::SUCCESS.into(), None)?;
            return Err(End::Closed);
        }
        let data = match place {
            _ if transfer.from_host == 0 => Some(&[][..]),
            Place::Host => None,
            Place::Capsule(offset) => Some(&capsule[offset..offset + transfer.from_host]),
        };
        if let Some(data) = data {
            if self.is_done_at_once(&command, transfer, data)? {
                return Ok(());
            }
        }
        let namespace = self.borrower(&command);
        let data = data.map(<[u8]>::to_vec).unwrap_or_default();
        self.queue.admit(Work::new(command, transfer, data, namespace))?;
        self.proceed(scope)
    }

    /// Carries out and answers a command in this thread, if it does not wait.
    fn is_done_at_once(&self, command: &Command, transfer: Transfer, data: &[u8]) -> io::Result<bool> {
        match &self.association {
            Some(Association { controller, queue: id @ 1.. })
                if quick::is_quick(command, transfer) && self.waits_for_nothing(controller) =>
            {
                quick::carry_out(self.subsystem, self.queue, (controller, *id), (command, data))
            }
            _ => Ok(false),
        }
    }

    /// Whether neither the modelled drive nor stable storage makes quick commands wait.
    fn waits_for_nothing(&self, controller: &Controller) -> bool {
        self.subsystem.server.time_scale.is_none() && !controller.is_write_through()
    }

    /// Whose part of the common memory a command may use: that of its namespace, if there is one.
    fn borrower(&self, command: &Command) -> Option<u32> {
        let Some(Association { controller, queue: 1.. }) = &self.association else { return None };
        self.subsystem.attached(controller, command.namespace()).map(|namespace| namespace.nsid())
    }

    /// Amount and location of a command's data; Err for one that is not carried out.
    fn transfer(&self, command: &Command, capsule: &[u8], damaged: bool) -> Result<(Transfer, Place), Status> {
        if damaged {
            return Err(Status::TRANSIENT_TRANSPORT);
        }
        let transfer = match &self.association {
            Some(Association { controller, queue: 1.. }) if command.fabrics_type().is_none() => {
                if !controller.is_ready() {
                    return Err(Status::COMMAND_SEQUENCE);
                }
                nvm::transfer(command)?
            }
            association => admin::transfer(self.subsystem, command, association.as_ref())?,
        };
        let bytes = transfer.from_host.max(transfer.to_host);
        let place = if bytes == 0 { Place::Host } else { command.place(bytes, capsule.len())? };
        // A response capsule holds no data (IORCSZ).
        if transfer.to_host > 0 && place != Place::Host { Err(Status::SGL_TYPE) } else { Ok((transfer, place)) }
    }

    /// Has ready commands carried out: by this thread on the Admin Queue, and if that takes less time than handing them
    /// over; otherwise by other threads.
    fn proceed<'s>(&mut self, scope: &'s Scope<'s, 'a>) -> Result<(), End> {
        let Some(Association { controller, queue: id @ 1.. }) = &self.association else {
            while let Some(work) = self.queue.ready_now(|_| true) {
                self.administer(work)?;
            }
            return Ok(());
        };
        if self.waits_for_nothing(controller) {
            // Others were done when they came, or have to wait for the disk.
            let is_quick_write =
                |work: &Work| work.transfer.from_host > 0 && quick::is_quick(&work.command, work.transfer);
            while let Some(work) = self.queue.ready_now(is_quick_write) {
                answer(self.subsystem, self.queue, controller, *id, work, When::WithOthers)?;
            }
        }
        let most = if self.subsystem.server.time_scale.is_some() { TIMED_THREADS } else { THREADS };
        if self.queue.wake() && self.threads < most {
            let (subsystem, queue, association) = (self.subsystem, self.queue, self.association.clone());
            let work = move || work(subsystem, queue, association.as_ref());
            match threads::builder("slo-ctl nvme io").and_then(|builder| builder.spawn_scoped(scope, work)) {
                Ok(_joined_by_scope) => self.threads += 1,
                // One is enough to continue.
                Err(_) if self.threads > 0 => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn administer(&mut self, work: Work) -> Result<(), End> {
        if work.damaged {
            return Ok(self.queue.complete(work, Status::TRANSIENT_TRANSPORT.into(), None, When::Now)?);
        }
        let Some(Association { controller, .. }) = &self.association else {
            let (from, port) = (self.from.ip(), self.port);
            let connected = admin::connect(self.subsystem, self.queue, &work.command, &work.data, from, port);
            let completion = match connected {
                Ok((association, completion)) => {
                    self.association = Some(association);
                    completion
                }
                Err(completion) => completion,
            };
            return Ok(self.queue.complete(work, completion, None, When::Now)?);
        };
        match admin::carry_out(self.subsystem, controller, &work, self.here) {
            Outcome::Later => Ok(()),
            Outcome::Done(completion, data) => {
                if completion.status != Status::SUCCESS {
                    self.note(&work.command, completion.status);
                }
                let mut buffer = vec![0; self.queue.format().before_data()];
                buffer.extend_from_slice(&data);
                Ok(self.queue.complete(work, completion, Some(buffer), When::Now)?)
            }
        }
    }

    fn note(&self, command: &Command, status: Status) {
        if let Some(Association { controller, queue }) = &self.association {
            controller.note_error(*queue, command, status);
        }
    }

    /// Ends a connection: tells the host why, where it is at fault, and answers what is in work, where the server stops.
    fn part(&self, end: End) {
        match end {
            End::Fault(fault, header) => {
                let stream = self.queue.stream();
                let sent = self.queue.send(&pdu::terminate(fault, &header));
                if sent.is_err() || stream.shutdown(Shutdown::Write).is_err() {
                    return self.queue.close();
                }
                // Were anything left unread, the host would find a reset in place of the reason.
                let deadline = Instant::now() + PARTING;
                let mut nothing = [0; 4096];
                let mut from = stream;
                let _unsupported = stream.set_read_timeout(Some(PARTING));
                while Instant::now() < deadline && from.read(&mut nothing).is_ok_and(|n| n > 0) {}
            }
            End::Closed if self.subsystem.is_stopping() => {
                if matches!(self.association, Some(Association { queue: 1.., .. })) {
                    self.queue.finish(STOPPING);
                }
            }
            End::Closed => {}
        }
        self.queue.close();
    }
}

/// Reads data, and its digest if there is one; true if the two do not agree.
fn read_data(stream: &mut impl Read, data: &mut [u8], has_digest: bool) -> io::Result<bool> {
    stream.read_exact(data)?;
    let mut digest = [0; DIGEST_BYTES];
    let digest = if has_digest { &mut digest[..] } else { &mut [] };
    stream.read_exact(digest)?;
    Ok(is_damaged(data, digest))
}

/// `digest` is empty where none was agreed on.
fn is_damaged(data: &[u8], digest: &[u8]) -> bool {
    !digest.is_empty() && digest != crc32c::crc32c(data).to_le_bytes()
}

/// Carries out commands of an I/O queue until it ends.
fn work(subsystem: &Subsystem, queue: &Queue, association: Option<&Association>) {
    let Some(Association { controller, queue: id }) = association else { return };
    while let Some(work) = queue.ready() {
        if answer(subsystem, queue, controller, *id, work, When::Now).is_err() {
            return;
        }
    }
}

/// Carries out a command of an I/O queue and answers it.
fn answer(
    subsystem: &Subsystem,
    queue: &Queue,
    controller: &Controller,
    id: u16,
    work: Work,
    when: When,
) -> io::Result<()> {
    let bytes = queue.format().before_data() + work.transfer.to_host;
    let mut buffer = Vec::with_capacity(bytes + AFTER_DATA_BYTES);
    buffer.resize(bytes, 0);
    // A panic fails this command only.
    let done = catch_unwind(AssertUnwindSafe(|| carry_out(subsystem, queue, controller, &work, &mut buffer)));
    let completion = done.unwrap_or(Status::INTERNAL_ERROR.into());
    if completion.status != Status::SUCCESS {
        controller.note_error(id, &work.command, completion.status);
    }
    queue.complete(work, completion, Some(buffer), when)
}

/// For a namespace that a host does not have: a valid identifier is merely inactive (3.2.1).
fn no_namespace(id: u32) -> Status {
    if is_nsid(id) { Status::INVALID_FIELD } else { Status::INVALID_NAMESPACE }
}

fn carry_out(
    subsystem: &Subsystem,
    queue: &Queue,
    controller: &Controller,
    work: &Work,
    buffer: &mut [u8],
) -> Completion {
    if work.damaged {
        return Status::TRANSIENT_TRANSPORT.into();
    }
    let durable = controller.is_write_through();
    let (model, command, gone) = (&subsystem.server.model, &work.command, || queue.is_closed());
    let id = command.namespace();
    if id == u32::MAX && command.opcode() == nvm::opcode::FLUSH {
        let attached = subsystem.all_attached(controller);
        let flush =
            |namespace: &Arc<Namespace>| nvm::carry_out(namespace, model, command, (&[], &mut []), durable, &gone);
        let flushed = attached.iter().map(flush);
        let failed: Vec<Completion> = flushed.filter(|done| done.status != Status::SUCCESS).collect();
        return failed.first().copied().unwrap_or(Status::SUCCESS.into());
    }
    let Some(namespace) = subsystem.attached(controller, id) else { return no_namespace(id).into() };
    let at = queue.format().before_data();
    match command.opcode() {
        nvm::opcode::WRITE => {
            if let Err(status) = placement::check_write(subsystem, &namespace, command) {
                return status.into();
            }
        }
        nvm::opcode::MANAGEMENT_RECEIVE | nvm::opcode::MANAGEMENT_SEND => {
            let done = placement::manage(subsystem, &namespace, command, (&work.data, &mut buffer[at..]));
            return done.err().unwrap_or(Status::SUCCESS).into();
        }
        _ => {}
    }
    nvm::carry_out(&namespace, model, command, (&work.data, &mut buffer[at..]), durable, &gone)
}
