//! Namespace Management and Namespace Attachment (NVM Express Base Specification 2.0, sections 5.23 and 5.22), and the
//! vendor-specific command that moves over-provisioning blocks. They are unknown commands unless the operator permits
//! them.

use std::collections::BTreeSet;
use std::sync::Arc;

use ftl_core::FtlError;

use crate::error::ServeError;
use crate::namespace::Namespace;
use crate::nvme_tcp::command::{Command, Status, Transfer};
use crate::nvme_tcp::controller::Controller;
use crate::nvme_tcp::identify::ENDURANCE_GROUP;
use crate::nvme_tcp::io::BLOCK_SHIFT;
use crate::nvme_tcp::pdu::{le16, le64};
use crate::nvme_tcp::subsystem::Subsystem;
use crate::server::Wanted;
use crate::settings::Hosts;

/// Size of the host's data for a new namespace, and of a list of controllers.
const DATA_BYTES: usize = 4096;
/// SEL: of Namespace Management, and of Namespace Attachment.
const CREATE: u32 = 0;
const DELETE: u32 = 1;
const ATTACH: u32 = 0;
const DETACH: u32 = 1;

/// Bytes that Namespace Management moves.
pub fn transfer(subsystem: &Subsystem, command: &Command) -> Result<Transfer, Status> {
    permitted(subsystem.permissions.namespaces)?;
    match command.dword(10) & 0xf {
        CREATE => Ok(Transfer { from_host: DATA_BYTES, to_host: 0 }),
        DELETE => Ok(Transfer::default()),
        _ => Err(Status::INVALID_FIELD),
    }
}

/// Bytes that Namespace Attachment moves.
pub fn attachment_transfer(subsystem: &Subsystem) -> Result<Transfer, Status> {
    permitted(subsystem.permissions.namespaces)?;
    Ok(Transfer { from_host: DATA_BYTES, to_host: 0 })
}

fn permitted(is: bool) -> Result<(), Status> {
    if is { Ok(()) } else { Err(Status::INVALID_OPCODE) }
}

/// Namespace Management: creates a namespace, whose identifier is the result, or deletes one, or all.
pub fn manage(subsystem: &Subsystem, command: &Command, data: &[u8]) -> Result<u64, Status> {
    permitted(subsystem.permissions.namespaces)?;
    if command.dword(10) & 0xf == CREATE {
        // CSI.
        return if command.dword(11) >> 24 == 0 { create(subsystem, data) } else { Err(Status::INVALID_FIELD) };
    }
    let found = match command.namespace() {
        u32::MAX => subsystem.server.namespaces(),
        id => Arc::from([subsystem.server.namespace_of(id).ok_or(Status::INVALID_NAMESPACE)?]),
    };
    for namespace in found.iter() {
        subsystem.server.delete_namespace(namespace).map_err(|e| refused(subsystem, &e))?;
    }
    Ok(0)
}

fn create(subsystem: &Subsystem, data: &[u8]) -> Result<u64, Status> {
    let server = subsystem.server;
    // NSZE and NCAP; FLBAS; DPS; NMIC; ANAGRPID, NVMSETID, ENDGID.
    let (size, capacity) = (le64(data, 0), le64(data, 8));
    if size != capacity {
        return Err(Status::THIN_PROVISIONING);
    }
    if data[26] != 0 {
        return Err(Status::INVALID_FORMAT);
    }
    let has_set = data[92..96].iter().chain(&data[100..102]).any(|&byte| byte != 0);
    if data[29] != 0 || data[30] & !1 != 0 || has_set || !matches!(le16(data, 102), 0 | ENDURANCE_GROUP) {
        return Err(Status::INVALID_FIELD);
    }
    let size_bytes = size.checked_mul(1 << BLOCK_SHIFT).ok_or(Status::INSUFFICIENT_CAPACITY)?;
    if size_bytes == 0 || size_bytes % server.config.granule_bytes() != 0 {
        return Err(Status::INVALID_FIELD);
    }
    // NPHNDLS and the list: each namespace has one handle, which no other has.
    let handle = match le16(data, 392) {
        0 => None,
        1 if subsystem.places_data() => Some(le16(data, 512)),
        _ => return Err(Status::PLACEMENT_HANDLE_LIST),
    };
    let taken = |handle: u16| server.namespaces().iter().any(|n| n.origin.handle == handle);
    if handle.is_some_and(|handle| taken(handle) || usize::from(handle) >= crate::config::MAX_NAMESPACES) {
        return Err(Status::PLACEMENT_HANDLE_LIST);
    }
    if size_bytes > server.unallocated_bytes() {
        return Err(Status::INSUFFICIENT_CAPACITY);
    }
    if server.namespaces().len() >= crate::config::MAX_NAMESPACES {
        return Err(Status::IDENTIFIER_UNAVAILABLE);
    }
    let wanted = Wanted { size_bytes, handle, hosts: Some(Hosts::none()), ..Wanted::default() };
    server.create_namespace(wanted).map(|made| u64::from(made.nsid())).map_err(|e| refused(subsystem, &e))
}

fn refused(subsystem: &Subsystem, error: &ServeError) -> Status {
    subsystem.not_managed.say(|| format!("NVMe/TCP: namespace management: {error}"));
    match error {
        ServeError::Drive(FtlError::NotEnoughBlocks { .. } | FtlError::BelowMinimumOps { .. }) => {
            Status::INSUFFICIENT_CAPACITY
        }
        _ => Status::INTERNAL_ERROR,
    }
}

/// Namespace Attachment, for the hosts of the controllers that are listed. Their controllers come and go (the dynamic
/// controller model), so it is their names that are kept.
pub fn attach(subsystem: &Subsystem, command: &Command, data: &[u8]) -> Result<u64, Status> {
    permitted(subsystem.permissions.namespaces)?;
    let attached = match command.dword(10) & 0xf {
        ATTACH => true,
        DETACH => false,
        _ => return Err(Status::INVALID_FIELD),
    };
    let namespace = subsystem.server.namespace_of(command.namespace()).ok_or(Status::INVALID_NAMESPACE)?;
    // A Controller List (4.4.1): how many, and their identifiers in order.
    let count = usize::from(le16(data, 0));
    if !(1..DATA_BYTES / 2).contains(&count) {
        return Err(Status::CONTROLLER_LIST);
    }
    let ids: Vec<u16> = data[2..].chunks_exact(2).take(count).map(|id| le16(id, 0)).collect();
    let known = |&id: &u16| subsystem.controller(id).filter(|controller| !controller.is_discovery);
    let found: Option<Vec<Arc<Controller>>> = ids.iter().map(known).collect();
    let found = found.filter(|_| ids.is_sorted_by(|a, b| a < b)).ok_or(Status::CONTROLLER_LIST)?;
    if found.iter().any(|controller| controller.has(&namespace) == attached) {
        return Err(if attached { Status::ALREADY_ATTACHED } else { Status::NOT_ATTACHED });
    }
    let hosts: BTreeSet<&str> = found.iter().map(|controller| &*controller.host.nqn).collect();
    subsystem.server.attach_namespace(&namespace, &hosts, attached).map(|()| 0).map_err(|e| refused(subsystem, &e))
}

/// Moves OPS blocks from the namespace NSID to that in CDW10 (0: spare blocks); CDW11 is their number.
pub fn move_ops(subsystem: &Subsystem, command: &Command) -> Result<u64, Status> {
    permitted(subsystem.permissions.ops)?;
    let server = subsystem.server;
    if !subsystem.places_data() {
        return Err(Status::INVALID_FIELD);
    }
    let end = |id: u32| match id {
        0 => Ok(None),
        id => server.namespace_of(id).map(Some).ok_or(Status::INVALID_NAMESPACE),
    };
    let (from, to): (Option<Arc<Namespace>>, _) = (end(command.namespace())?, end(command.dword(10))?);
    let moved = server.move_ops(from.as_deref(), to.as_deref(), u64::from(command.dword(11)));
    moved.map(|()| 0).map_err(|e| match e {
        ServeError::File(_) => Status::INTERNAL_ERROR,
        ServeError::Refused(_) | ServeError::Drive(_) => Status::INVALID_FIELD,
    })
}
