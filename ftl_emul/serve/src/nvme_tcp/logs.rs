//! Log pages (NVM Express Base Specification 2.0, section 5.16.1; OCP Datacenter NVMe SSD Specification 2.0, section
//! 4.8.6).

use std::net::SocketAddr;
use std::sync::Arc;

use ftl_core::convert::exact;
use ftl_core::{Drive, FtlError, Op};

use crate::namespace::Namespace;
use crate::nvme_tcp::command::{Command, Status, admin};
use crate::nvme_tcp::controller::{Controller, ERROR_BYTES, ERROR_ENTRIES};
use crate::nvme_tcp::identify::{ENDURANCE_GROUP, VENDOR_UUIDS, put, text};
use crate::nvme_tcp::io;
use crate::nvme_tcp::pdu::le64;
use crate::nvme_tcp::placement;
use crate::nvme_tcp::queue::MAX_ENTRIES;
use crate::nvme_tcp::subsystem::Subsystem;

/// Log page identifiers (Figure 202).
mod page {
    pub const SUPPORTED: u8 = 0x00;
    pub const ERRORS: u8 = 0x01;
    pub const SMART: u8 = 0x02;
    pub const FIRMWARE: u8 = 0x03;
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    pub const COMMANDS: u8 = 0x05;
    pub const ENDURANCE_GROUP: u8 = 0x09;
    pub const PLACEMENT_CONFIGURATIONS: u8 = 0x20;
    pub const PLACEMENT_USAGE: u8 = 0x21;
    pub const PLACEMENT_STATISTICS: u8 = 0x22;
    pub const PLACEMENT_EVENTS: u8 = 0x23;
    pub const DISCOVERY: u8 = 0x70;
    /// OCP: SMART / Health Information Extended.
    pub const OCP_SMART: u8 = 0xc0;
    /// Vendor-specific: over-provisioning of each namespace.
    pub const OPS: u8 = 0xe0;
    /// The pages about the endurance group.
    pub const OF_GROUP: [u8; 5] =
        [ENDURANCE_GROUP, PLACEMENT_CONFIGURATIONS, PLACEMENT_USAGE, PLACEMENT_STATISTICS, PLACEMENT_EVENTS];
}

/// Log pages of a discovery controller.
const DISCOVERY_PAGES: [u8; 2] = [page::SUPPORTED, page::DISCOVERY];

/// The log pages of a controller.
fn known(subsystem: &Subsystem, controller: &Controller) -> Vec<u8> {
    if controller.is_discovery {
        return DISCOVERY_PAGES.to_vec();
    }
    let mut known = vec![
        page::SUPPORTED,
        page::ERRORS,
        page::SMART,
        page::FIRMWARE,
        page::CHANGED_NAMESPACES,
        page::COMMANDS,
        page::ENDURANCE_GROUP,
        page::OCP_SMART,
    ];
    if subsystem.places_data() {
        known.extend(&page::OF_GROUP[1..]);
    }
    if subsystem.server.config.flash().is_ok() {
        known.push(page::OPS);
    }
    known
}

/// Get Log Page (5.16): `bytes` of a page from the offset on that the command names; beyond its end there are zeroes.
/// `here` is where the host reaches the subsystem.
pub fn read(
    subsystem: &Subsystem,
    controller: &Controller,
    command: &Command,
    here: SocketAddr,
    bytes: usize,
) -> Result<Vec<u8>, Status> {
    let (id, offset) = (command.dword(10).to_le_bytes()[0], le64(&command.0, 48));
    let known = known(subsystem, controller);
    if !known.contains(&id) {
        return Err(Status::INVALID_LOG_PAGE);
    }
    // OT: not from the entry of an index on.
    if offset % 4 != 0 || command.dword(14) & (1 << 23) != 0 {
        return Err(Status::INVALID_FIELD);
    }
    // LSI names the endurance group; UUID Index one of the list, if any.
    let is_of_other_group = page::OF_GROUP.contains(&id) && command.dword(11) >> 16 != u32::from(ENDURANCE_GROUP);
    if is_of_other_group || command.dword(14) as usize & 0x7f > VENDOR_UUIDS.len() {
        return Err(Status::INVALID_FIELD);
    }
    let (whole_device, retain) = (matches!(command.namespace(), 0 | u32::MAX), command.dword(10) & (1 << 15) != 0);
    let found = match id {
        page::SUPPORTED => supported(&known),
        page::ERRORS => errors(controller),
        page::SMART if whole_device => smart(subsystem, None, controller)?,
        page::SMART => {
            let namespace = subsystem.attached(controller, command.namespace()).ok_or(Status::INVALID_NAMESPACE)?;
            smart(subsystem, Some(&namespace), controller)?
        }
        page::FIRMWARE => firmware(),
        page::CHANGED_NAMESPACES => changed_namespaces(controller, retain),
        page::COMMANDS => commands(subsystem),
        page::ENDURANCE_GROUP => endurance_group(subsystem)?,
        page::PLACEMENT_CONFIGURATIONS => placement::configurations(subsystem),
        page::PLACEMENT_USAGE => placement::usage(subsystem),
        page::PLACEMENT_STATISTICS => placement::statistics(subsystem)?,
        // LSP: events of hosts.
        page::PLACEMENT_EVENTS => subsystem.events().page(command.dword(10) & 1 << 8 != 0),
        page::OPS => ops(subsystem)?,
        page::DISCOVERY => discovery(&subsystem.nqn, here),
        _ => ocp_smart(subsystem)?,
    };
    let start = usize::try_from(offset).ok().filter(|&start| start <= found.len()).ok_or(Status::INVALID_FIELD)?;
    let mut part = found[start..].to_vec();
    part.resize(bytes, 0);
    Ok(part)
}

/// Error Information (5.16.1.2), the newest first.
fn errors(controller: &Controller) -> Vec<u8> {
    let mut data = controller.errors().0;
    data.resize(ERROR_ENTRIES * ERROR_BYTES, 0);
    data
}

fn supported(known: &[u8]) -> Vec<u8> {
    let mut data = vec![0; 1024];
    for &id in known {
        // LSUPP.
        data[usize::from(id) * 4] = 1;
    }
    data
}

/// SMART / Health Information (5.16.1.3). Not modelled, and 0: temperature, times, power cycles.
fn smart(subsystem: &Subsystem, only: Option<&Arc<Namespace>>, controller: &Controller) -> Result<Vec<u8>, Status> {
    /// Units are thousands of 512 bytes, rounded up.
    const UNIT: u64 = 512_000;
    let server = subsystem.server;
    let namespaces = only.map_or_else(|| server.namespaces(), |only| Arc::from([Arc::clone(only)]));
    let totals = only.map_or_else(|| server.totals(), |only| server.totals_of(only));
    let totals = totals.map_err(|_| Status::INTERNAL_ERROR)?;
    let requests = |op| only.map_or_else(|| server.answered(op), |only| only.answered.requests(op));
    let mut data = vec![0; 512];
    // Critical warning: a namespace refuses writes.
    if namespaces.iter().any(|namespace| namespace.backing.ailment() == Some(crate::backing::Ailment::FlushFailed)) {
        data[0] = 1 << 3;
    }
    // Available spare.
    data[3] = 100;
    for (at, count) in [
        (32, totals.host_read_bytes.div_ceil(UNIT)),
        (48, totals.host_written_bytes.div_ceil(UNIT)),
        (64, requests(Op::Read)),
        (80, requests(Op::Write)),
        (176, controller.errors().1),
    ] {
        put(&mut data, at, &u128::from(count).to_le_bytes());
    }
    Ok(data)
}

/// OCP log C0h, as far as there is such a thing here: media units, free blocks, the page's version and GUID.
fn ocp_smart(subsystem: &Subsystem) -> Result<Vec<u8>, Status> {
    const GUID: u128 = 0xafd5_14c9_7c6f_4f9c_a4f2_bfea_2810_afc5;
    let totals = subsystem.server.totals().map_err(|_| Status::INTERNAL_ERROR)?;
    let mut data = vec![0; 512];
    put(&mut data, 0, &u128::from(totals.media_written_bytes).to_le_bytes());
    put(&mut data, 16, &u128::from(totals.media_read_bytes).to_le_bytes());
    // Version 3 of the page.
    put(&mut data, 494, &3u16.to_le_bytes());
    put(&mut data, 496, &GUID.to_le_bytes());
    Ok(data)
}

/// Endurance Group Information (5.16.1.10), in units of 10^9 bytes, rounded up. Wear is not modelled.
fn endurance_group(subsystem: &Subsystem) -> Result<Vec<u8>, Status> {
    const UNIT: u64 = 1_000_000_000;
    let server = subsystem.server;
    let totals = server.totals().map_err(|_| Status::INTERNAL_ERROR)?;
    let mut data = vec![0; 512];
    // Available spare.
    data[3] = 100;
    for (at, count) in [
        (48, totals.host_read_bytes.div_ceil(UNIT)),
        (64, totals.host_written_bytes.div_ceil(UNIT)),
        (80, totals.media_written_bytes.div_ceil(UNIT)),
        (96, server.answered(Op::Read)),
        (112, server.answered(Op::Write)),
        (160, server.config.capacity_bytes),
        (176, server.unallocated_bytes()),
    ] {
        put(&mut data, at, &u128::from(count).to_le_bytes());
    }
    Ok(data)
}

/// Vendor-specific: over-provisioning, and state of garbage collection. All numbers are little-endian.
///
/// Header of 64 bytes: version 1 (u16), bytes of an entry (u16), entries (u32), bytes of a block (u64), spare blocks
/// (u64), blocks that moves still have to hand over (u64), bytes of a page (u64). Then for each namespace, 64 bytes:
/// NSID (u32), the part of its victims' pages that were valid in millionths (u32: u), OPS blocks (i64), fewest OPS
/// blocks (u64), blocks of its size (u64), pages that hosts wrote (u64), pages that GC copied (u64), victims (u64),
/// valid pages in them (u64).
fn ops(subsystem: &Subsystem) -> Result<Vec<u8>, Status> {
    const ENTRY: usize = 64;
    let fill = |drive: &mut Drive| {
        // With the drive locked, so that each of these namespaces still has its tenant.
        let namespaces = subsystem.server.namespaces();
        let mut data = vec![0; ENTRY * (1 + namespaces.len())];
        put(&mut data, 0, &1u16.to_le_bytes());
        put(&mut data, 2, &exact::<u16>(ENTRY).to_le_bytes());
        put(&mut data, 4, &exact::<u32>(namespaces.len()).to_le_bytes());
        let page_bytes = u64::from(drive.geometry().page_bytes);
        let block_bytes = u64::from(drive.block_pages()) * page_bytes;
        let pending: u64 = drive.pending_moves().iter().map(|(.., blocks)| blocks).sum();
        for (at, count) in [(8, block_bytes), (16, drive.spare_blocks()), (24, pending), (32, page_bytes)] {
            put(&mut data, at, &count.to_le_bytes());
        }
        for (entry, namespace) in data[ENTRY..].chunks_exact_mut(ENTRY).zip(namespaces.iter()) {
            let (space, flash) = (drive.space(namespace.tenant)?, drive.counters(namespace.tenant)?);
            let victim_pages = u128::from(flash.victims) * u128::from(drive.block_pages());
            let valid_millionths = u128::from(flash.victim_valid_pages) * 1_000_000 / victim_pages.max(1);
            put(entry, 0, &namespace.nsid().to_le_bytes());
            put(entry, 4, &exact::<u32>(valid_millionths).to_le_bytes());
            put(entry, 8, &space.ops_blocks.to_le_bytes());
            for (at, count) in [
                (16, space.min_ops_blocks),
                (24, space.logical_blocks),
                (32, flash.host_page_writes),
                (40, flash.gc_page_writes),
                (48, flash.victims),
                (56, flash.victim_valid_pages),
            ] {
                put(entry, at, &count.to_le_bytes());
            }
        }
        Ok::<_, FtlError>(data)
    };
    match subsystem.server.model.with(fill) {
        Ok(Ok(data)) => Ok(data),
        _ => Err(Status::INTERNAL_ERROR),
    }
}

/// Firmware Slot Information (5.16.1.4): one slot.
fn firmware() -> Vec<u8> {
    let mut data = vec![0; 512];
    data[0] = 1;
    put(&mut data, 8, &text::<8>(env!("CARGO_PKG_VERSION")));
    data
}

/// Changed Namespace List (5.16.1.5); an identifier of all ones where they are too many for it.
fn changed_namespaces(controller: &Controller, retain: bool) -> Vec<u8> {
    let mut changed = controller.changed_namespaces(retain);
    if changed.len() > 1024 {
        changed = vec![u32::MAX];
    }
    let mut data: Vec<u8> = changed.into_iter().flat_map(u32::to_le_bytes).collect();
    data.resize(4096, 0);
    data
}

/// Commands Supported and Effects (5.16.1.6): CSUPP; LBCC of those that change data; NIC of those that change which
/// namespaces there are.
fn commands(subsystem: &Subsystem) -> Vec<u8> {
    const CHANGES_DATA: u8 = 1 << 1;
    const CHANGES_NAMESPACES: u8 = 1 << 3;
    let mut data = vec![0; 4096];
    let mut admin = |opcode: u8, effects: u8| data[usize::from(opcode) * 4] = 1 | effects;
    for opcode in admin::ALWAYS {
        admin(opcode, 0);
    }
    if subsystem.permissions.namespaces {
        admin(admin::NAMESPACE_MANAGEMENT, CHANGES_DATA | CHANGES_NAMESPACES);
        admin(admin::NAMESPACE_ATTACHMENT, CHANGES_NAMESPACES);
    }
    if subsystem.permissions.ops {
        admin(admin::MOVE_OPS, 0);
    }
    let mut known = io::opcode::ALWAYS.to_vec();
    if subsystem.places_data() {
        admin(admin::DIRECTIVE_RECEIVE, 0);
        known.extend(io::opcode::OF_PLACEMENT);
    }
    for opcode in known {
        let changes = io::opcode::CHANGING.contains(&opcode);
        data[1024 + usize::from(opcode) * 4] = 1 | if changes { CHANGES_DATA } else { 0 };
    }
    data
}

/// Discovery Log Page (5.16.1.23): the one subsystem there is, at the address by which the host reaches it.
fn discovery(nqn: &str, here: SocketAddr) -> Vec<u8> {
    // Of a host that reaches an IPv6 socket over IPv4 it is an IPv6 address that only this machine understands.
    let address = here.ip().to_canonical();
    let mut data = vec![0; 2048];
    // GENCTR; NUMREC; RECFMT is 0.
    put(&mut data, 0, &1u64.to_le_bytes());
    put(&mut data, 8, &1u64.to_le_bytes());
    let entry = &mut data[1024..];
    // TRTYPE TCP, ADRFAM, SUBTYPE NVM subsystem, TREQ: a secure channel is not required.
    put(entry, 0, &[3, if address.is_ipv4() { 1 } else { 2 }, 2, 2]);
    // PORTID; CNTLID: made when a host connects; ASQSZ.
    put(entry, 4, &1u16.to_le_bytes());
    put(entry, 6, &0xffffu16.to_le_bytes());
    put(entry, 8, &MAX_ENTRIES.to_le_bytes());
    put(entry, 32, &text::<32>(&here.port().to_string()));
    put(entry, 256, nqn.as_bytes());
    put(entry, 512, &text::<256>(&address.to_string()));
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_family_of_the_discovery_log_is_that_of_its_address() {
        for (here, family, address) in
            [("127.0.0.1:4420", 1, "127.0.0.1"), ("[::1]:4420", 2, "::1"), ("[::ffff:192.0.2.7]:4420", 1, "192.0.2.7")]
        {
            let log = discovery("nqn.x", here.parse().unwrap());
            let found = String::from_utf8(log[1024 + 512..].to_vec()).unwrap();
            assert_eq!((log[1025], found.trim_end_matches([' ', '\0'])), (family, address));
        }
    }
}
