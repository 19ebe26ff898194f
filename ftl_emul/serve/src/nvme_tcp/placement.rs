//! Flexible data placement (NVM Express Technical Proposal 4146): one endurance group with one reclaim group, in which
//! each isolated namespace has its own reclaim unit handle, initially isolated, as its tenant has its own blocks.

use std::collections::{HashSet, VecDeque};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::config::MAX_NAMESPACES;
use crate::namespace::Namespace;
use crate::nvme_tcp::command::{Command, Status, Transfer};
use crate::nvme_tcp::identify::{ENDURANCE_GROUP, put};
use crate::nvme_tcp::io::{BLOCK_SHIFT, MAX_TRANSFER_BYTES, opcode};
use crate::nvme_tcp::pdu::le16;
use crate::nvme_tcp::subsystem::Subsystem;
use ftl_core::MappingOptions;
use ftl_core::convert::exact;

/// Directive type of data placement.
pub const DIRECTIVE: u32 = 2;
/// Largest number of stored events.
const MAX_EVENTS: usize = 63;
const EVENT_BYTES: usize = 64;
/// The only event there can be: Invalid Placement Identifier.
const INVALID_PLACEMENT: u8 = 3;
/// Initially isolated.
const HANDLE_TYPE: u8 = 1;
/// Management Operation: reclaim unit handle status, and update.
const HANDLE_STATUS: u32 = 1;
const HANDLE_UPDATE: u32 = 1;

/// Events, newest first, and the namespaces whose events are enabled, by serial number.
#[derive(Debug, Default)]
pub struct Events {
    wanted: HashSet<u64>,
    kept: VecDeque<[u8; EVENT_BYTES]>,
}

impl Events {
    /// A write has named a placement identifier that its namespace does not have.
    fn note_invalid(&mut self, namespace: &Namespace, identifier: u16) {
        if !self.wanted.contains(&namespace.serial) {
            return;
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let milliseconds = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        let mut event = [0; EVENT_BYTES];
        // Type; flags: placement identifier, namespace and location are valid.
        event[..2].copy_from_slice(&[INVALID_PLACEMENT, 0b111]);
        event[2..4].copy_from_slice(&identifier.to_le_bytes());
        // Six bytes of milliseconds since 1970, as the Timestamp feature has them.
        event[4..10].copy_from_slice(&milliseconds.to_le_bytes()[..6]);
        event[12..16].copy_from_slice(&namespace.nsid().to_le_bytes());
        event[34] = namespace.origin.handle.to_le_bytes()[0];
        self.kept.push_front(event);
        self.kept.truncate(MAX_EVENTS);
    }

    /// Log page 23h: events of hosts (LSP bit 0) or of the controller, of which there are none.
    pub fn page(&self, of_hosts: bool) -> Vec<u8> {
        let kept = if of_hosts { self.kept.len() } else { 0 };
        let mut data = vec![0; EVENT_BYTES * (1 + kept)];
        put(&mut data, 0, &exact::<u32>(kept).to_le_bytes());
        for (place, event) in data[EVENT_BYTES..].chunks_exact_mut(EVENT_BYTES).zip(&self.kept) {
            place.copy_from_slice(event);
        }
        data
    }

    /// Feature 1Eh of a namespace: the events there can be, and whether they are wanted.
    pub fn supported(&self, namespace: &Namespace) -> [u8; 2] {
        [INVALID_PLACEMENT, u8::from(self.wanted.contains(&namespace.serial))]
    }

    /// Enables or disables events, including types that never occur.
    pub fn set_wanted(&mut self, namespace: &Namespace, types: &[u8], wanted: bool) {
        if !types.contains(&INVALID_PLACEMENT) {
            return;
        }
        if !wanted {
            self.wanted.remove(&namespace.serial);
        } else if self.wanted.len() < MAX_NAMESPACES {
            self.wanted.insert(namespace.serial);
        }
    }

    /// Drops namespaces that no longer exist.
    pub fn retain(&mut self, serials: &HashSet<u64>) {
        self.wanted.retain(|serial| serials.contains(serial));
    }
}

/// Bytes of a reclaim unit: a block on each die, or a clustered block.
fn reclaim_unit_bytes(subsystem: &Subsystem) -> u64 {
    let Ok(flash) = subsystem.server.config.flash() else { return 0 };
    let has_log_blocks = matches!(flash.mapping_options(), Ok(MappingOptions::Bast(_) | MappingOptions::Fast(_)));
    let dies = if has_log_blocks { flash.mapping.cluster_dies } else { flash.geometry.dies() };
    u64::from(dies) * u64::from(flash.geometry.pages_per_block) * u64::from(flash.geometry.page_bytes)
}

/// Log page 20h: the only configuration, which is always enabled.
pub fn configurations(subsystem: &Subsystem) -> Vec<u8> {
    const HEADER: usize = 16;
    const DESCRIPTOR: usize = 64;
    let size = DESCRIPTOR + 4 * MAX_NAMESPACES;
    let mut data = vec![0; HEADER + size];
    // NUMFDPC counts from 0; SIZE of the page.
    put(&mut data, 4, &exact::<u32>(HEADER + size).to_le_bytes());
    let found = &mut data[HEADER..];
    put(found, 0, &exact::<u16>(size).to_le_bytes());
    // FDPA: valid, and no bits of a placement identifier for reclaim groups.
    found[2] = 1 << 7;
    // NRG, NRUH, MAXPIDS (from 0), NNSS, RUNS; ERUTL 0: no time limit.
    put(found, 4, &1u32.to_le_bytes());
    put(found, 8, &exact::<u16>(MAX_NAMESPACES).to_le_bytes());
    put(found, 12, &exact::<u32>(MAX_NAMESPACES).to_le_bytes());
    put(found, 16, &reclaim_unit_bytes(subsystem).to_le_bytes());
    for handle in found[DESCRIPTOR..].chunks_exact_mut(4) {
        handle[0] = HANDLE_TYPE;
    }
    data
}

/// Log page 21h: which handles namespaces have, as hosts named them or not.
pub fn usage(subsystem: &Subsystem) -> Vec<u8> {
    let mut data = vec![0; 8 + 8 * MAX_NAMESPACES];
    put(&mut data, 0, &exact::<u16>(MAX_NAMESPACES).to_le_bytes());
    for namespace in subsystem.server.namespaces().iter() {
        // RUHA: host specified.
        data[8 + 8 * usize::from(namespace.origin.handle)] = 1;
    }
    data
}

/// Log page 22h: HBMW, MBMW and MBE.
pub fn statistics(subsystem: &Subsystem) -> Result<Vec<u8>, Status> {
    let totals = subsystem.server.totals().map_err(|_| Status::INTERNAL_ERROR)?;
    let mut data = vec![0; 64];
    for (at, bytes) in [(0, totals.host_written_bytes), (16, totals.media_written_bytes), (32, totals.erased_bytes)] {
        put(&mut data, at, &u128::from(bytes).to_le_bytes());
    }
    Ok(data)
}

/// Feature 1Dh (`group` is CDW11): enabled, with configuration 0.
pub fn mode(subsystem: &Subsystem, group: u32) -> Result<u64, Status> {
    if !subsystem.places_data() || group & 0xffff != u32::from(ENDURANCE_GROUP) {
        return Err(Status::INVALID_FIELD);
    }
    Ok(1)
}

/// What a write says of placement; an identifier that its namespace does not have means the only one it has.
pub fn check_write(subsystem: &Subsystem, namespace: &Namespace, command: &Command) -> Result<(), Status> {
    let (kind, specific) = (command.dword(12) >> 20 & 0xf, command.dword(13) >> 16);
    match kind {
        0 => Ok(()),
        DIRECTIVE if subsystem.places_data() => {
            if specific != 0 {
                subsystem.events().note_invalid(namespace, exact::<u16>(specific));
            }
            Ok(())
        }
        _ => Err(Status::INVALID_FIELD),
    }
}

/// Bytes that I/O Management Receive and Send move.
pub fn transfer(command: &Command) -> Result<Transfer, Status> {
    let bytes = if command.opcode() == opcode::MANAGEMENT_RECEIVE {
        (u64::from(command.dword(11)) + 1) * 4
    } else {
        // NPID counts from 0.
        (u64::from(command.dword(10) >> 16) + 1) * 2
    };
    let bytes =
        usize::try_from(bytes).ok().filter(|&bytes| bytes <= MAX_TRANSFER_BYTES).ok_or(Status::INVALID_FIELD)?;
    Ok(if command.opcode() == opcode::MANAGEMENT_RECEIVE {
        Transfer { to_host: bytes, from_host: 0 }
    } else {
        Transfer { to_host: 0, from_host: bytes }
    })
}

/// I/O Management Receive and Send: the status of the handle of a namespace, and going on to another reclaim unit.
pub fn manage(
    subsystem: &Subsystem,
    namespace: &Namespace,
    command: &Command,
    (data, out): (&[u8], &mut [u8]),
) -> Result<(), Status> {
    if !subsystem.places_data() {
        return Err(Status::FDP_DISABLED);
    }
    let operation = command.dword(10) & 0xff;
    if command.opcode() == opcode::MANAGEMENT_SEND {
        if operation != HANDLE_UPDATE || data.chunks_exact(2).any(|identifier| le16(identifier, 0) != 0) {
            return Err(Status::INVALID_FIELD);
        }
        // No operation: the model fills an open block before it opens another one.
        return Ok(());
    }
    if operation != HANDLE_STATUS {
        return Err(Status::INVALID_FIELD);
    }
    let open_pages = subsystem.server.model.with(|drive| drive.space(namespace.tenant).map(|space| space.open_pages));
    let open_bytes = open_pages.ok().and_then(Result::ok).unwrap_or(0) * subsystem.server.config.granule_bytes();
    let mut status = [0; 48];
    // NRUHSD; PID 0, RUHID, EARUTR 0, RUAMW.
    put(&mut status, 14, &1u16.to_le_bytes());
    put(&mut status, 18, &namespace.origin.handle.to_le_bytes());
    put(&mut status, 24, &(open_bytes >> BLOCK_SHIFT).to_le_bytes());
    let most = status.len().min(out.len());
    out[..most].copy_from_slice(&status[..most]);
    Ok(())
}

/// Directive Receive, Identify: Return Parameters. Which directives there are, are enabled, and stay so after a reset.
pub fn directives(subsystem: &Subsystem, command: &Command) -> Result<Vec<u8>, Status> {
    const IDENTIFY_DIRECTIVE: u32 = 0;
    const RETURN_PARAMETERS: u32 = 1;
    let (operation, kind) = (command.dword(11) & 0xff, command.dword(11) >> 8 & 0xff);
    if !subsystem.places_data() || (kind, operation) != (IDENTIFY_DIRECTIVE, RETURN_PARAMETERS) {
        return Err(Status::INVALID_FIELD);
    }
    let mut data = vec![0; 4096];
    let bits = [1u8 | 1 << DIRECTIVE];
    for at in [0, 32] {
        put(&mut data, at, &bits);
    }
    // Of those that a host could change, which Identify is not.
    data[64] = 1 << DIRECTIVE;
    Ok(data)
}
