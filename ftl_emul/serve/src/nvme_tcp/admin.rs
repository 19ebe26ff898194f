//! Commands of the Admin Queue, and Fabrics commands on any queue. Sections are those of the NVM Express Base
//! Specification 2.0.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::namespace::Namespace;
use crate::nvme_tcp::Port;
use crate::nvme_tcp::command::{Command, Completion, Status, Transfer, admin, fabrics};
use crate::nvme_tcp::controller::{Controller, Host, MAX_IO_QUEUES, feature};
use crate::nvme_tcp::identify;
use crate::nvme_tcp::io::MAX_TRANSFER_BYTES;
use crate::nvme_tcp::logs;
use crate::nvme_tcp::management;
use crate::nvme_tcp::pdu::{le16, le64};
use crate::nvme_tcp::placement;
use crate::nvme_tcp::queue::{MAX_ENTRIES, Queue, Work};
use crate::nvme_tcp::subsystem::{DISCOVERY_NQN, Subsystem};

/// Bytes of the data of Connect (6.3).
const CONNECT_BYTES: usize = 1024;
/// Bytes of the list of events that FDP Events gives.
const EVENT_LIST_BYTES: usize = 510;
/// Bytes of a Host Identifier with EXHID.
const HOST_ID_BYTES: usize = 16;
/// Entries of an Admin Queue at least (3.1.4), and at most here.
const ADMIN_ENTRIES: std::ops::RangeInclusive<u16> = 32..=MAX_ENTRIES;

/// State of a connection after a successful Connect.
#[derive(Debug, Clone)]
pub struct Association {
    /// Its controller.
    pub controller: Arc<Controller>,
    /// 0: the Admin Queue.
    pub queue: u16,
}

/// Bytes that a command moves; Err for one that is not carried out. Before Connect there is no other command.
pub fn transfer(
    subsystem: &Subsystem,
    command: &Command,
    association: Option<&Association>,
) -> Result<Transfer, Status> {
    let none = Transfer::default();
    if command.is_fused() {
        return Err(Status::INVALID_FIELD);
    }
    if let Some(kind) = command.fabrics_type() {
        return match (kind, association) {
            (fabrics::CONNECT, None) => Ok(Transfer { from_host: CONNECT_BYTES, ..none }),
            (fabrics::CONNECT, Some(_)) | (_, None) => Err(Status::COMMAND_SEQUENCE),
            (fabrics::PROPERTY_GET | fabrics::PROPERTY_SET, Some(Association { queue: 0, .. }))
            | (fabrics::DISCONNECT, Some(Association { queue: 1.., .. })) => Ok(none),
            _ => Err(Status::INVALID_OPCODE),
        };
    }
    let Some(Association { controller, queue: 0 }) = association else {
        return Err(Status::COMMAND_SEQUENCE);
    };
    if !controller.is_ready() && command.opcode() != admin::KEEP_ALIVE {
        return Err(Status::COMMAND_SEQUENCE);
    }
    match command.opcode() {
        admin::IDENTIFY => Ok(Transfer { to_host: identify::BYTES, ..none }),
        admin::GET_LOG_PAGE => {
            // NUMDL and NUMDU, dwords counted from 0.
            let dwords = u64::from(command.dword(10) >> 16) | u64::from(command.dword(11) & 0xffff) << 16;
            let bytes = (dwords + 1) * 4;
            let to_host = usize::try_from(bytes).ok().filter(|&bytes| bytes <= MAX_TRANSFER_BYTES);
            to_host.map(|to_host| Transfer { to_host, ..none }).ok_or(Status::INVALID_FIELD)
        }
        admin::GET_FEATURES if feature_of(command) == feature::HOST_IDENTIFIER => {
            Ok(Transfer { to_host: HOST_ID_BYTES, ..none })
        }
        admin::GET_FEATURES if feature_of(command) == feature::PLACEMENT_EVENTS => {
            Ok(Transfer { to_host: EVENT_LIST_BYTES, ..none })
        }
        // NOET: number of types of events, a byte each.
        admin::SET_FEATURES if feature_of(command) == feature::PLACEMENT_EVENTS => {
            Ok(Transfer { from_host: usize::from(command.0[46]), ..none })
        }
        _ if controller.is_discovery && !of_discovery(command.opcode()) => Err(Status::INVALID_OPCODE),
        admin::NAMESPACE_MANAGEMENT => management::transfer(subsystem, command),
        admin::NAMESPACE_ATTACHMENT => management::attachment_transfer(subsystem),
        admin::DIRECTIVE_RECEIVE => {
            let bytes = usize::try_from((u64::from(command.dword(10)) + 1) * 4).unwrap_or(usize::MAX);
            if bytes > MAX_TRANSFER_BYTES {
                Err(Status::INVALID_FIELD)
            } else {
                Ok(Transfer { to_host: bytes, ..none })
            }
        }
        admin::DIRECTIVE_SEND | admin::MOVE_OPS => Ok(none),
        admin::GET_FEATURES | admin::SET_FEATURES | admin::ABORT | admin::ASYNC_EVENT_REQUEST | admin::KEEP_ALIVE => {
            Ok(none)
        }
        _ => Err(Status::INVALID_OPCODE),
    }
}

/// Commands of a discovery controller.
fn of_discovery(opcode: u8) -> bool {
    admin::ALWAYS.contains(&opcode)
}

/// FID (5.15, 5.27).
fn feature_of(command: &Command) -> u8 {
    command.dword(10).to_le_bytes()[0]
}

/// Result of a command: an answer with data, or, for Asynchronous Event Requests, none yet.
pub enum Outcome {
    /// The answer.
    Done(Completion, Vec<u8>),
    /// The answer is sent later.
    Later,
}

/// Carries out a command of the Admin Queue, or a property command. `here` is where the host reaches the subsystem.
pub fn carry_out(subsystem: &Subsystem, controller: &Controller, work: &Work, here: SocketAddr) -> Outcome {
    let (command, bytes) = (&work.command, work.transfer.to_host);
    let done = match (command.fabrics_type(), command.opcode()) {
        (Some(_), _) => property(subsystem, controller, command).map(with_result),
        (_, admin::IDENTIFY) => identify::identify(subsystem, controller, command).map(with_data),
        (_, admin::GET_LOG_PAGE) => logs::read(subsystem, controller, command, here, bytes).map(with_data),
        (_, admin::GET_FEATURES) => get_feature(subsystem, controller, command, bytes),
        (_, admin::SET_FEATURES) => set_feature(subsystem, controller, command, &work.data).map(with_result),
        (_, admin::NAMESPACE_MANAGEMENT) => management::manage(subsystem, command, &work.data).map(with_result),
        (_, admin::NAMESPACE_ATTACHMENT) => management::attach(subsystem, command, &work.data).map(with_result),
        (_, admin::MOVE_OPS) => management::move_ops(subsystem, command).map(with_result),
        (_, admin::DIRECTIVE_RECEIVE) => placement::directives(subsystem, command).map(|found| cut(found, bytes)),
        (_, admin::ABORT) => Ok(with_result(abort(controller, command))),
        (_, admin::KEEP_ALIVE) => Ok(with_result(0)),
        (_, admin::ASYNC_EVENT_REQUEST) => match controller.request_event(command.id()) {
            Ok(()) => return Outcome::Later,
            Err(status) => Err(status),
        },
        _ => Err(Status::INVALID_OPCODE),
    };
    let (completion, data) = done.unwrap_or_else(|status| (status.into(), Vec::new()));
    Outcome::Done(completion, data)
}

fn with_result(result: u64) -> (Completion, Vec<u8>) {
    (Completion::of(result), Vec::new())
}

/// The part of it that the host has space for.
fn cut(mut data: Vec<u8>, bytes: usize) -> (Completion, Vec<u8>) {
    data.resize(bytes, 0);
    with_data(data)
}

fn with_data(data: Vec<u8>) -> (Completion, Vec<u8>) {
    (Completion::of(0), data)
}

/// Property Get and Property Set (6.5, 6.6).
fn property(subsystem: &Subsystem, controller: &Controller, command: &Command) -> Result<u64, Status> {
    let is_wide = match command.0[40] & 0b111 {
        0 => false,
        1 => true,
        _ => return Err(Status::INVALID_FIELD),
    };
    let offset = command.dword(11);
    if command.fabrics_type() == Some(fabrics::PROPERTY_GET) {
        return controller.property(offset, is_wide);
    }
    if controller.configure(offset, is_wide, le64(&command.0, 48))? {
        for namespace in subsystem.all_attached(controller) {
            // A namespace that cannot be flushed reports it from now on.
            let _refused = namespace.flush(&subsystem.server.model, || false);
        }
        controller.shut_down();
    }
    Ok(0)
}

fn get_feature(
    subsystem: &Subsystem,
    controller: &Controller,
    command: &Command,
    bytes: usize,
) -> Result<(Completion, Vec<u8>), Status> {
    // SEL: the current value only, as features are never saved.
    if command.dword(10) >> 8 & 0b111 != 0 {
        return Err(Status::INVALID_FIELD);
    }
    if feature_of(command) == feature::HOST_IDENTIFIER {
        // EXHID: 128 bits, as always on Fabrics (5.27.1.25).
        return if command.dword(11) & 1 == 1 {
            Ok(with_data(controller.host.id.to_vec()))
        } else {
            Err(Status::INVALID_FIELD)
        };
    }
    match feature_of(command) {
        feature::PLACEMENT if !controller.is_discovery => {
            placement::mode(subsystem, command.dword(11)).map(with_result)
        }
        feature::PLACEMENT_EVENTS => {
            let namespace = with_handle(subsystem, controller, command)?;
            let found = subsystem.events().supported(&namespace);
            // NOET of the result: how many there are.
            let (_, data) = cut(found.to_vec(), bytes);
            Ok((Completion::of(1), data))
        }
        id => controller.feature(id, command.dword(11)).map(with_result),
    }
}

/// The namespace that a command about events names, and its only placement handle.
fn with_handle(subsystem: &Subsystem, controller: &Controller, command: &Command) -> Result<Arc<Namespace>, Status> {
    if !subsystem.places_data() || command.dword(11) & 0xffff != 0 {
        return Err(Status::INVALID_FIELD);
    }
    subsystem.attached(controller, command.namespace()).ok_or(Status::INVALID_NAMESPACE)
}

fn set_feature(subsystem: &Subsystem, controller: &Controller, command: &Command, data: &[u8]) -> Result<u64, Status> {
    // SV.
    if command.dword(10) >> 31 != 0 {
        return Err(Status::FEATURE_NOT_SAVEABLE);
    }
    match feature_of(command) {
        // There is one configuration, and namespaces that use it.
        feature::PLACEMENT if !controller.is_discovery => Err(Status::FEATURE_NOT_CHANGEABLE),
        feature::PLACEMENT_EVENTS => {
            let namespace = with_handle(subsystem, controller, command)?;
            subsystem.events().set_wanted(&namespace, data, command.dword(12) & 1 != 0);
            Ok(0)
        }
        id => controller.set_feature(id, command.dword(11)),
    }
}

/// Abort (5.1): the result is 0 where the command was aborted, and 1 where that is too late.
fn abort(controller: &Controller, command: &Command) -> u64 {
    let [low, high, id_low, id_high] = command.dword(10).to_le_bytes();
    let (queue, id) = (u16::from_le_bytes([low, high]), u16::from_le_bytes([id_low, id_high]));
    let Some(found) = controller.queue(queue) else { return 1 };
    let aborted = if queue == 0 {
        controller.withdraw_event_request(id) && found.answer(id, Status::ABORT_REQUESTED.into(), None).is_ok()
    } else {
        found.abort(id).unwrap_or(false)
    };
    u64::from(!aborted)
}

/// Connect (6.3). Err: the completion with the error.
pub fn connect(
    subsystem: &Subsystem,
    queue: &Arc<Queue>,
    command: &Command,
    data: &[u8],
    from: IpAddr,
    port: Port,
) -> Result<(Association, Completion), Completion> {
    let sqe = |at: u64| Completion { result: at, status: Status::CONNECT_PARAMETERS };
    // IATTR: the field at that byte of the data.
    let in_data = |at: u64| sqe(at | 1 << 16);
    if le16(&command.0, 40) != 0 {
        return Err(Status::CONNECT_FORMAT.into());
    }
    let (id, size, keep_alive_ms) = (le16(&command.0, 42), le16(&command.0, 44), command.dword(12));
    let entries = size.checked_add(1).filter(|&entries| entries >= 2).ok_or(sqe(44))?;
    let fits = if id == 0 { ADMIN_ENTRIES.contains(&entries) } else { entries <= MAX_ENTRIES };
    if !fits {
        return Err(sqe(44));
    }
    let mut host_id = [0; HOST_ID_BYTES];
    host_id.copy_from_slice(&data[..HOST_ID_BYTES]);
    let wanted = le16(data, 16);
    let subsystem_nqn = name(&data[256..512]).ok_or(in_data(256))?;
    let host = Host { nqn: name(&data[512..768]).ok_or(in_data(512))?, id: host_id };
    let is_discovery = subsystem_nqn == DISCOVERY_NQN;
    if !is_discovery && (port != Port::All || subsystem_nqn != subsystem.nqn) {
        return Err(in_data(256));
    }
    if !subsystem.permits(&host.nqn, from) {
        let nqn = &host.nqn;
        subsystem.not_permitted.say(|| format!("NVMe/TCP: refused {nqn} from {from}: --nvme-hosts does not name it"));
        return Err(Status::CONNECT_HOST.into());
    }
    let controller = if id == 0 {
        // Controllers are created when hosts connect: the dynamic controller model.
        if wanted != 0xffff {
            return Err(in_data(16));
        }
        subsystem.add_controller(is_discovery, host, keep_alive_ms, queue)?
    } else {
        let controller = subsystem.controller(wanted).filter(|controller| !controller.is_discovery && !is_discovery);
        let controller = controller.ok_or(in_data(16))?;
        if controller.host != host {
            return Err(Status::CONNECT_HOST.into());
        }
        if id > MAX_IO_QUEUES {
            return Err(sqe(42));
        }
        if !controller.add_queue(id, queue) {
            return Err(Status::COMMAND_SEQUENCE.into());
        }
        controller
    };
    // CATTR: SQ flow control is not wanted.
    queue.set(id, entries, command.0[46] & (1 << 2) != 0);
    let completion = Completion::of(u64::from(controller.id));
    Ok((Association { controller, queue: id }, completion))
}

/// An NQN (4.5): up to 223 bytes of UTF-8 and a NUL. It gets into the log and the settings, so that it is one line.
fn name(field: &[u8]) -> Option<String> {
    let end = field.iter().position(|&byte| byte == 0).filter(|&end| (1..=223).contains(&end))?;
    let name = String::from_utf8(field[..end].to_vec()).ok()?;
    (name.starts_with("nqn.") && !name.contains(char::is_control)).then_some(name)
}
