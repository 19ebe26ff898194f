//! Data structures of the Identify command (NVM Express Base Specification 2.0, section 5.17.2; NVM Command Set
//! Specification 1.0, section 4.1.5).

use std::sync::Arc;

use ftl_core::MappingOptions;
use ftl_core::convert::exact;

use crate::config::{MAX_NAMESPACES, is_nsid};
use crate::namespace::Namespace;
use crate::nvme_tcp::command::{Command, Status};
use crate::nvme_tcp::controller::{Controller, ERROR_ENTRIES, MAX_EVENT_REQUESTS, NAMESPACE_NOTICES, VERSION};
use crate::nvme_tcp::io::{BLOCK_SHIFT, MAX_TRANSFER_SHIFT};
use crate::nvme_tcp::pdu::{IN_CAPSULE_BYTES, le16};
use crate::nvme_tcp::queue::MAX_ENTRIES;
use crate::nvme_tcp::subsystem::{DISCOVERY_NQN, Subsystem};

/// Bytes of every one of them.
pub const BYTES: usize = 4096;
/// ENDGID of every namespace.
pub const ENDURANCE_GROUP: u16 = 1;
/// UUID List, from index 1 on: OCP's, of log page C0h, and ours, of log page E0h and command C0h.
pub const VENDOR_UUIDS: [u128; 2] =
    [0xc194_d55b_e094_4794_a21d_2999_8f56_be6f, 0xb662_f3c3_ebfa_4e1b_83e3_21c7_2578_2351];

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
    pub const ALLOCATED_NAMESPACES: u32 = 0x10;
    pub const ALLOCATED_NAMESPACE: u32 = 0x11;
    pub const CONTROLLERS_OF_NAMESPACE: u32 = 0x12;
    pub const CONTROLLERS: u32 = 0x13;
    pub const GRANULARITY: u32 = 0x16;
    pub const UUIDS: u32 = 0x17;
    pub const ENDURANCE_GROUPS: u32 = 0x19;
    pub const ALLOCATED_NAMESPACES_BY_SET: u32 = 0x1a;
    pub const ALLOCATED_NAMESPACE_BY_SET: u32 = 0x1b;
    pub const COMMAND_SETS: u32 = 0x1c;
}

/// Identify data of a request. A discovery controller describes only itself.
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
    let by_set = matches!(
        structure,
        cns::NAMESPACE_BY_SET
            | cns::CONTROLLER_BY_SET
            | cns::ACTIVE_NAMESPACES_BY_SET
            | cns::ALLOCATED_NAMESPACES_BY_SET
            | cns::ALLOCATED_NAMESPACE_BY_SET
    );
    if by_set && set != 0 {
        return Err(Status::INVALID_FIELD);
    }
    let id = command.namespace();
    let allocated = || subsystem.server.namespace_of(id).ok_or(Status::INVALID_NAMESPACE);
    // Of one that is not attached there is only the absence to describe: zeroes (5.17.2.1).
    let of_attached = |describe: &dyn Fn(&Namespace) -> Vec<u8>| match subsystem.attached(controller, id) {
        Some(namespace) => Ok(describe(&namespace)),
        None if is_nsid(id) => Ok(vec![0; BYTES]),
        None => Err(Status::INVALID_NAMESPACE),
    };
    match structure {
        cns::CONTROLLER => Ok(of_controller(subsystem, controller)),
        // The broadcast value requests common features.
        cns::NAMESPACE if id == u32::MAX => Ok(common_to_namespaces(subsystem)),
        cns::NAMESPACE => of_attached(&|namespace| of_namespace(subsystem, namespace)),
        cns::ALLOCATED_NAMESPACE => allocated().map(|namespace| of_namespace(subsystem, &namespace)),
        cns::DESCRIPTORS => {
            let namespace = subsystem.attached(controller, id).ok_or(Status::INVALID_NAMESPACE)?;
            Ok(descriptors(subsystem.namespace_uuid(&namespace)))
        }
        cns::ACTIVE_NAMESPACES | cns::ACTIVE_NAMESPACES_BY_SET => {
            namespace_list(&subsystem.all_attached(controller), id)
        }
        cns::ALLOCATED_NAMESPACES | cns::ALLOCATED_NAMESPACES_BY_SET => {
            namespace_list(&subsystem.server.namespaces(), id)
        }
        // No protection information; no limits of single commands except MDTS.
        cns::NAMESPACE_BY_SET => of_attached(&|_| vec![0; BYTES]),
        cns::ALLOCATED_NAMESPACE_BY_SET => allocated().map(|_| vec![0; BYTES]),
        cns::CONTROLLER_BY_SET => Ok(vec![0; BYTES]),
        cns::NAMESPACE_OF_ANY_SET => of_attached(&|_| of_any_set()),
        cns::CONTROLLERS => Ok(controller_list(subsystem, command, |_| true)),
        cns::CONTROLLERS_OF_NAMESPACE => {
            let namespace = allocated()?;
            Ok(controller_list(subsystem, command, |controller| controller.has(&namespace)))
        }
        cns::GRANULARITY => Ok(granularity(subsystem)),
        cns::UUIDS => Ok(uuids()),
        // CNSSID: identifiers from there on.
        cns::ENDURANCE_GROUPS => Ok(endurance_groups(command.dword(11) & 0xffff)),
        cns::COMMAND_SETS => {
            // Of this controller (FFFFh) or the given one. Combination 0: the NVM Command Set.
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
    let attributes = 1u32 | 1 << 6;
    put(&mut data, 96, &attributes.to_le_bytes());
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
    // CTRATT: and endurance groups, namespace granularity, UUID list, flexible data placement.
    let placement = if subsystem.places_data() { 1 << 19 } else { 0 };
    put(&mut data, 96, &(attributes | 1 << 4 | 1 << 7 | 1 << 9 | placement).to_le_bytes());
    // OACS: namespace management, where that is allowed; directives, among which is that of data placement.
    let manages = if subsystem.permissions.namespaces { 1 << 3 } else { 0 };
    let directives = if subsystem.places_data() { 1 << 5 } else { 0u16 };
    put(&mut data, 256, &(manages | directives).to_le_bytes());
    // TNVMCAP and UNVMCAP.
    put(&mut data, 280, &u128::from(subsystem.server.config.capacity_bytes).to_le_bytes());
    put(&mut data, 296, &u128::from(subsystem.server.unallocated_bytes()).to_le_bytes());
    // ENDGIDMAX.
    put(&mut data, 340, &ENDURANCE_GROUP.to_le_bytes());
    put(&mut data, 92, &NAMESPACE_NOTICES.to_le_bytes());
    // LPA: and SMART of each namespace, supported commands.
    data[261] |= 1 << 1 | 1;
    // SQES and CQES: 64 and 16 bytes.
    data[512] = 0x66;
    data[513] = 0x44;
    put(&mut data, 516, &exact::<u32>(MAX_NAMESPACES).to_le_bytes());
    // ONCS: Compare, Dataset Management, Write Zeroes, Verify.
    put(&mut data, 520, &(1u16 | 1 << 2 | 1 << 3 | 1 << 7).to_le_bytes());
    // VWC: there is a volatile write cache, and Flush takes the broadcast NSID.
    data[525] = 3 << 1 | 1;
    // MNAN.
    put(&mut data, 540, &exact::<u32>(MAX_NAMESPACES).to_le_bytes());
    // IOCCSZ in units of 16 bytes: an entry and its in-capsule data.
    put(&mut data, 1792, &((64 + IN_CAPSULE_BYTES) / 16).to_le_bytes());
    data
}

/// NVM Command Set Specification 1.0, Figure 97.
fn of_namespace(subsystem: &Subsystem, namespace: &Namespace) -> Vec<u8> {
    let mut data = common_to_namespaces(subsystem);
    let server = subsystem.server;
    let blocks = namespace.size_bytes() >> BLOCK_SHIFT;
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
    // NVMCAP in bytes.
    put(&mut data, 48, &namespace.size_bytes().to_le_bytes());
    // ENDGID; NGUID: the bytes of the UUID, as for others whose maker has no number of its own.
    put(&mut data, 102, &ENDURANCE_GROUP.to_le_bytes());
    put(&mut data, 104, &subsystem.namespace_uuid(namespace));
    data
}

/// Fields that do not depend on the namespace.
fn common_to_namespaces(subsystem: &Subsystem) -> Vec<u8> {
    let mut data = vec![0; BYTES];
    // NSFEAT: OPTPERF, which means that NPWG to NOWS are valid: writes and releases of whole, aligned pages (each
    // counted from 0), best of as many as the mapping writes at once.
    data[24] = 1 << 4;
    let blocks = |bytes: u64| exact::<u16>((bytes >> BLOCK_SHIFT).clamp(1, 1 << 16) - 1);
    let granule = subsystem.server.config.granule_bytes();
    for at in [64, 66, 68, 70] {
        put(&mut data, at, &blocks(granule).to_le_bytes());
    }
    put(&mut data, 72, &blocks(best_write_bytes(subsystem).unwrap_or(granule)).to_le_bytes());
    // NMIC: other controllers may have it too.
    data[30] = 1;
    // LBAF0: LBADS. NLBAF and FLBAS are 0: it is the only format.
    data[130] = exact::<u8>(BLOCK_SHIFT);
    data
}

/// NOWS: with log blocks a whole block, which then needs no merge; otherwise a page on each die.
fn best_write_bytes(subsystem: &Subsystem) -> Option<u64> {
    let flash = subsystem.server.config.flash().ok()?;
    let has_log_blocks = matches!(flash.mapping_options(), Ok(MappingOptions::Bast(_) | MappingOptions::Fast(_)));
    let block_pages = u64::from(flash.geometry.pages_per_block) * u64::from(flash.mapping.cluster_dies);
    let pages = if has_log_blocks { block_pages } else { u64::from(flash.geometry.dies()) };
    Some(pages * u64::from(flash.geometry.page_bytes))
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
fn namespace_list(namespaces: &[Arc<Namespace>], after: u32) -> Result<Vec<u8>, Status> {
    if after >= u32::MAX - 1 {
        return Err(Status::INVALID_NAMESPACE);
    }
    let mut data = vec![0; BYTES];
    let ids = namespaces.iter().map(|namespace| namespace.nsid()).filter(|&id| id > after);
    for (place, id) in data.chunks_exact_mut(4).zip(ids) {
        place.copy_from_slice(&id.to_le_bytes());
    }
    Ok(data)
}

/// Controller List (4.4.1) from the identifier on that CNTID names.
fn controller_list(subsystem: &Subsystem, command: &Command, wanted: impl Fn(&Controller) -> bool) -> Vec<u8> {
    let from = le16(&command.0, 42);
    let found = subsystem.controllers_from(from).into_iter().filter(|controller| wanted(controller));
    let mut data = vec![0; BYTES];
    let mut count = 0u16;
    for (place, controller) in data[2..].chunks_exact_mut(2).zip(found) {
        place.copy_from_slice(&controller.id.to_le_bytes());
        count += 1;
    }
    put(&mut data, 0, &count.to_le_bytes());
    data
}

/// Namespace Granularity List (NVM Command Set Specification, 4.1.5.7): one descriptor, of whole pages.
fn granularity(subsystem: &Subsystem) -> Vec<u8> {
    let mut data = vec![0; BYTES];
    let granule = subsystem.server.config.granule_bytes();
    put(&mut data, 32, &granule.to_le_bytes());
    put(&mut data, 40, &granule.to_le_bytes());
    data
}

/// UUID List (Figure 286): the vendor of the vendor-specific log pages.
fn uuids() -> Vec<u8> {
    let mut data = vec![0; BYTES];
    for (number, uuid) in (1..).zip(VENDOR_UUIDS) {
        put(&mut data, number * 32 + 16, &uuid.to_be_bytes());
    }
    data
}

/// Endurance Group List: the one there is.
fn endurance_groups(from: u32) -> Vec<u8> {
    let mut data = vec![0; BYTES];
    if from <= u32::from(ENDURANCE_GROUP) {
        put(&mut data, 0, &1u16.to_le_bytes());
        put(&mut data, 2, &ENDURANCE_GROUP.to_le_bytes());
    }
    data
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
