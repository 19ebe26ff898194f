//! Data structures of the Identify command (NVM Express Base Specification 2.0, section 5.17.2; NVM Command Set
//! Specification 1.0, section 4.1.5).

use ftl_core::convert::exact;

use crate::namespace::Namespace;
use crate::nvme_tcp::command::{Command, Status};
use crate::nvme_tcp::controller::{Controller, ERROR_ENTRIES, MAX_EVENT_REQUESTS, NAMESPACE_NOTICES, VERSION};
use crate::nvme_tcp::io::{BLOCK_SHIFT, MAX_TRANSFER_SHIFT};
use crate::nvme_tcp::pdu::IN_CAPSULE_BYTES;
use crate::nvme_tcp::queue::MAX_ENTRIES;
use crate::nvme_tcp::subsystem::{DISCOVERY_NQN, Subsystem};

/// Bytes of every one of them.
pub const BYTES: usize = 4096;

/// CNS (Figure 273).
mod cns {
    pub const NAMESPACE: u32 = 0x00;
    pub const CONTROLLER: u32 = 0x01;
    pub const ACTIVE_NAMESPACES: u32 = 0x02;
    pub const DESCRIPTORS: u32 = 0x03;
    pub const NAMESPACE_BY_SET: u32 = 0x05;
    pub const CONTROLLER_BY_SET: u32 = 0x06;
    pub const ACTIVE_NAMESPACES_BY_SET: u32 = 0x07;
    pub const NAMESPACE_OF_ANY_SET: u32 = 0x08;
    pub const COMMAND_SETS: u32 = 0x1c;
}

/// What a host asks for. A discovery controller describes itself only.
pub fn identify(subsystem: &Subsystem, controller: &Controller, command: &Command) -> Result<Vec<u8>, Status> {
    let (structure, set) = (command.dword(10) & 0xff, command.dword(11) >> 24);
    if controller.is_discovery {
        return if structure == cns::CONTROLLER {
            Ok(of_controller(subsystem, controller))
        } else {
            Err(Status::INVALID_FIELD)
        };
    }
    // CSI 0 is the NVM Command Set, the only one.
    let by_set = matches!(structure, cns::NAMESPACE_BY_SET | cns::CONTROLLER_BY_SET | cns::ACTIVE_NAMESPACES_BY_SET);
    if by_set && set != 0 {
        return Err(Status::INVALID_FIELD);
    }
    let namespace = || subsystem.namespace(command.namespace()).ok_or(Status::INVALID_NAMESPACE);
    match structure {
        cns::CONTROLLER => Ok(of_controller(subsystem, controller)),
        // The broadcast value asks for what all have in common.
        cns::NAMESPACE if command.namespace() == u32::MAX => Ok(common_to_namespaces()),
        cns::NAMESPACE => Ok(of_namespace(subsystem, namespace()?)),
        cns::DESCRIPTORS => Ok(descriptors(subsystem.namespace_uuid(namespace()?))),
        cns::ACTIVE_NAMESPACES | cns::ACTIVE_NAMESPACES_BY_SET => active(subsystem, command.namespace()),
        // No protection information; no limits of single commands beside MDTS.
        cns::NAMESPACE_BY_SET => namespace().map(|_| vec![0; BYTES]),
        cns::CONTROLLER_BY_SET => Ok(vec![0; BYTES]),
        cns::NAMESPACE_OF_ANY_SET => namespace().map(|_| of_any_set()),
        cns::COMMAND_SETS => {
            // Of this controller (FFFFh) or the one named. Combination 0: the NVM Command Set.
            let named = command.dword(10) >> 16;
            if named != 0xffff && named != u32::from(controller.id) {
                return Err(Status::INVALID_FIELD);
            }
            let mut data = vec![0; BYTES];
            put(&mut data, 0, &1u64.to_le_bytes());
            Ok(data)
        }
        _ => Err(Status::INVALID_FIELD),
    }
}

/// Figure 275.
fn of_controller(subsystem: &Subsystem, controller: &Controller) -> Vec<u8> {
    let mut data = vec![0; BYTES];
    let uuid = &subsystem.nqn[subsystem.nqn.len() - 12..];
    // SN, MN, FR.
    put(&mut data, 4, &text::<20>(uuid));
    put(&mut data, 24, &text::<40>("slo-ctl emulated SSD"));
    put(&mut data, 64, &text::<8>(env!("CARGO_PKG_VERSION")));
    // CMIC: there may be other controllers.
    data[76] = 1 << 1;
    // CNTLID, VER, OAES.
    put(&mut data, 78, &controller.id.to_le_bytes());
    put(&mut data, 80, &VERSION.to_le_bytes());
    // CNTRLTYPE: I/O or discovery.
    data[111] = if controller.is_discovery { 2 } else { 1 };
    // AERL counts from 0; ELPE too. FRMW: one slot, read-only.
    data[259] = exact::<u8>(MAX_EVENT_REQUESTS - 1);
    data[260] = 1 << 1 | 1;
    data[262] = exact::<u8>(ERROR_ENTRIES - 1);
    // KAS in units of 100 ms; CTRATT: 128-bit Host Identifier, Traffic Based Keep Alive.
    put(&mut data, 320, &1u16.to_le_bytes());
    put(&mut data, 96, &(1u32 | 1 << 6).to_le_bytes());
    // LPA: log pages from an offset on.
    data[261] = 1 << 2;
    // MAXCMD; SGLS: supported, at any alignment; offset addresses; Transport SGL Data Blocks.
    put(&mut data, 514, &MAX_ENTRIES.to_le_bytes());
    put(&mut data, 536, &(1u32 | 1 << 20 | 1 << 21).to_le_bytes());
    let nqn = if controller.is_discovery { DISCOVERY_NQN } else { &subsystem.nqn };
    put(&mut data, 768, nqn.as_bytes());
    // IORCSZ in units of 16 bytes; MSDBD: one descriptor; OFCS: Disconnect.
    put(&mut data, 1796, &1u32.to_le_bytes());
    data[1803] = 1;
    put(&mut data, 1804, &1u16.to_le_bytes());
    if controller.is_discovery {
        return data;
    }
    data[77] = MAX_TRANSFER_SHIFT;
    put(&mut data, 92, &NAMESPACE_NOTICES.to_le_bytes());
    // LPA: and SMART of each namespace, supported commands.
    data[261] |= 1 << 1 | 1;
    // SQES and CQES: 64 and 16 bytes.
    data[512] = 0x66;
    data[513] = 0x44;
    put(&mut data, 516, &subsystem.namespace_count().to_le_bytes());
    // ONCS: Compare, Dataset Management, Write Zeroes, Verify.
    put(&mut data, 520, &(1u16 | 1 << 2 | 1 << 3 | 1 << 7).to_le_bytes());
    // VWC: there is a volatile write cache, and Flush takes the broadcast NSID.
    data[525] = 3 << 1 | 1;
    // MNAN.
    put(&mut data, 540, &subsystem.namespace_count().to_le_bytes());
    // IOCCSZ in units of 16 bytes: an entry and data beside it.
    put(&mut data, 1792, &((64 + IN_CAPSULE_BYTES) / 16).to_le_bytes());
    data
}

/// NVM Command Set Specification 1.0, Figure 97.
fn of_namespace(subsystem: &Subsystem, namespace: &Namespace) -> Vec<u8> {
    let mut data = common_to_namespaces();
    let server = subsystem.server;
    let blocks = namespace.size_bytes() >> BLOCK_SHIFT;
    let granule = exact::<u16>((server.config.granule_bytes() >> BLOCK_SHIFT).clamp(1, 1 << 15) - 1);
    let mapped = server.model.with(|drive| drive.space(namespace.tenant).map(|space| space.mapped_pages));
    // Of disks everything is in use, and of a model that has failed too.
    let used = match (mapped, server.config.flash()) {
        (Ok(Ok(pages)), Ok(flash)) => ((pages * u64::from(flash.geometry.page_bytes)) >> BLOCK_SHIFT).min(blocks),
        _ => blocks,
    };
    // NSZE, NCAP, NUSE.
    for (at, count) in [(0, blocks), (8, blocks), (16, used)] {
        put(&mut data, at, &count.to_le_bytes());
    }
    // NSFEAT: OPTPERF, which says that NPWG to NOWS count: writes and releases of whole pages, aligned.
    data[24] = 1 << 4;
    for at in [64, 66, 68, 70] {
        put(&mut data, at, &granule.to_le_bytes());
    }
    // NVMCAP in bytes.
    put(&mut data, 48, &namespace.size_bytes().to_le_bytes());
    data
}

/// What does not depend on the namespace.
fn common_to_namespaces() -> Vec<u8> {
    let mut data = vec![0; BYTES];
    // NMIC: other controllers may have it too.
    data[30] = 1;
    // LBAF0: LBADS. NLBAF and FLBAS are 0: it is the only format.
    data[130] = exact::<u8>(BLOCK_SHIFT);
    data
}

/// I/O Command Set Independent Identify Namespace (Figure 280).
fn of_any_set() -> Vec<u8> {
    let mut data = vec![0; BYTES];
    // NMIC; NSTAT: ready.
    data[1] = 1;
    data[14] = 1;
    data
}

/// Namespace Identification Descriptors (Figure 277): a UUID, and the command set.
fn descriptors(uuid: [u8; 16]) -> Vec<u8> {
    let mut data = vec![0; BYTES];
    put(&mut data, 0, &[3, 16, 0, 0]);
    put(&mut data, 4, &uuid);
    put(&mut data, 20, &[4, 1, 0, 0, 0]);
    data
}

/// Up to 1024 identifiers above `after`.
fn active(subsystem: &Subsystem, after: u32) -> Result<Vec<u8>, Status> {
    if after >= u32::MAX - 1 {
        return Err(Status::INVALID_NAMESPACE);
    }
    let mut data = vec![0; BYTES];
    for (place, id) in data.chunks_exact_mut(4).zip(after + 1..=subsystem.namespace_count()) {
        place.copy_from_slice(&id.to_le_bytes());
    }
    Ok(data)
}

/// Puts bytes in their place.
pub fn put(data: &mut [u8], at: usize, bytes: &[u8]) {
    data[at..at + bytes.len()].copy_from_slice(bytes);
}

/// ASCII, padded with spaces (1.4.2).
pub fn text<const N: usize>(words: &str) -> [u8; N] {
    let mut field = [b' '; N];
    for (place, byte) in field.iter_mut().zip(words.bytes()) {
        *place = byte;
    }
    field
}
