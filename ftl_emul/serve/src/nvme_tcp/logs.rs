//! Log pages (NVM Express Base Specification 2.0, section 5.16.1; OCP Datacenter NVMe SSD Specification 2.0, section
//! 4.8.6).

use std::net::SocketAddr;

use ftl_core::{Drive, FtlError, Op};

use crate::namespace::Namespace;
use crate::nvme_tcp::command::{Command, Status, admin};
use crate::nvme_tcp::controller::{Controller, ERROR_BYTES, ERROR_ENTRIES};
use crate::nvme_tcp::identify::{put, text};
use crate::nvme_tcp::io;
use crate::nvme_tcp::pdu::le64;
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
    pub const DISCOVERY: u8 = 0x70;
    /// OCP: SMART / Health Information Extended.
    pub const OCP_SMART: u8 = 0xc0;
}

/// Of a controller with namespaces.
const PAGES: [u8; 7] = [
    page::SUPPORTED,
    page::ERRORS,
    page::SMART,
    page::FIRMWARE,
    page::CHANGED_NAMESPACES,
    page::COMMANDS,
    page::OCP_SMART,
];
/// Of a discovery controller.
const DISCOVERY_PAGES: [u8; 2] = [page::SUPPORTED, page::DISCOVERY];

/// Get Log Page (5.16): `bytes` of a page from the offset on that the command names; beyond its end there are zeroes.
/// `here` is the address that the host has reached.
pub fn read(
    subsystem: &Subsystem,
    controller: &Controller,
    command: &Command,
    here: SocketAddr,
    bytes: usize,
) -> Result<Vec<u8>, Status> {
    let (id, offset) = (command.dword(10).to_le_bytes()[0], le64(&command.0, 48));
    let known = if controller.is_discovery { &DISCOVERY_PAGES[..] } else { &PAGES[..] };
    if !known.contains(&id) {
        return Err(Status::INVALID_LOG_PAGE);
    }
    // OT: not from the entry of an index on.
    if offset % 4 != 0 || command.dword(14) & (1 << 23) != 0 {
        return Err(Status::INVALID_FIELD);
    }
    let (whole_device, retain) = (matches!(command.namespace(), 0 | u32::MAX), command.dword(10) & (1 << 15) != 0);
    let found = match id {
        page::SUPPORTED => supported(known),
        page::ERRORS => errors(controller),
        page::SMART if whole_device => smart(subsystem, &subsystem.server.namespaces, controller)?,
        page::SMART => {
            let namespace = subsystem.namespace(command.namespace()).ok_or(Status::INVALID_NAMESPACE)?;
            smart(subsystem, std::slice::from_ref(namespace), controller)?
        }
        page::FIRMWARE => firmware(),
        page::CHANGED_NAMESPACES => changed_namespaces(controller, retain),
        page::COMMANDS => commands(),
        page::DISCOVERY => discovery(subsystem, here),
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

/// What flash has done for some namespaces, in pages, and requests of hosts since the start.
#[derive(Debug, Default)]
struct Done {
    host_bytes_read: u64,
    host_bytes_written: u64,
    media_bytes_read: u64,
    media_bytes_written: u64,
    reads: u64,
    writes: u64,
}

fn done(subsystem: &Subsystem, namespaces: &[Namespace]) -> Result<Done, Status> {
    let mut done = Done::default();
    for namespace in namespaces {
        done.reads += namespace.answered.requests(Op::Read);
        done.writes += namespace.answered.requests(Op::Write);
    }
    let Ok(flash) = subsystem.server.config.flash() else {
        // Disks have no placement: what is written is what hosts write.
        let of = |op| namespaces.iter().map(|namespace| namespace.answered.bytes(op)).sum();
        (done.host_bytes_read, done.host_bytes_written) = (of(Op::Read), of(Op::Write));
        (done.media_bytes_read, done.media_bytes_written) = (done.host_bytes_read, done.host_bytes_written);
        return Ok(done);
    };
    let page = u64::from(flash.geometry.page_bytes);
    let count = |drive: &mut Drive| {
        for namespace in namespaces {
            let (pages, map) = (drive.counters(namespace.tenant)?, drive.mapping_counters(namespace.tenant)?);
            done.host_bytes_read += pages.host_page_reads * page;
            done.host_bytes_written += pages.host_page_writes * page;
            done.media_bytes_read +=
                (pages.host_page_reads + pages.rmw_page_reads + pages.gc_page_writes + map.map_reads) * page;
            done.media_bytes_written += (pages.host_page_writes + pages.gc_page_writes + map.map_writes) * page;
        }
        Ok::<_, FtlError>(())
    };
    match subsystem.server.model.with(count) {
        Ok(Ok(())) => Ok(done),
        _ => Err(Status::INTERNAL_ERROR),
    }
}

/// SMART / Health Information (5.16.1.3). Not modelled, and 0: temperature, times, power cycles.
fn smart(subsystem: &Subsystem, namespaces: &[Namespace], controller: &Controller) -> Result<Vec<u8>, Status> {
    /// Units are thousands of 512 bytes, rounded up.
    const UNIT: u64 = 512_000;
    let done = done(subsystem, namespaces)?;
    let mut data = vec![0; 512];
    // Critical warning: a namespace takes no more writes.
    if namespaces.iter().any(|namespace| namespace.backing.ailment() == Some(crate::backing::Ailment::FlushFailed)) {
        data[0] = 1 << 3;
    }
    // Available spare.
    data[3] = 100;
    for (at, count) in [
        (32, done.host_bytes_read.div_ceil(UNIT)),
        (48, done.host_bytes_written.div_ceil(UNIT)),
        (64, done.reads),
        (80, done.writes),
        (176, controller.errors().1),
    ] {
        put(&mut data, at, &u128::from(count).to_le_bytes());
    }
    Ok(data)
}

/// OCP log C0h, as far as there is such a thing here: media units, free blocks, the page's version and GUID.
fn ocp_smart(subsystem: &Subsystem) -> Result<Vec<u8>, Status> {
    const GUID: u128 = 0xafd5_14c9_7c6f_4f9c_a4f2_bfea_2810_afc5;
    let done = done(subsystem, &subsystem.server.namespaces)?;
    let mut data = vec![0; 512];
    put(&mut data, 0, &u128::from(done.media_bytes_written).to_le_bytes());
    put(&mut data, 16, &u128::from(done.media_bytes_read).to_le_bytes());
    // Version 3 of the page.
    put(&mut data, 494, &3u16.to_le_bytes());
    put(&mut data, 496, &GUID.to_le_bytes());
    Ok(data)
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

/// Commands Supported and Effects (5.16.1.6): CSUPP, and LBCC of those that change data.
fn commands() -> Vec<u8> {
    let mut data = vec![0; 4096];
    for opcode in admin::ALL {
        data[usize::from(opcode) * 4] = 1;
    }
    for opcode in io::opcode::ALL {
        let changes = io::opcode::CHANGING.contains(&opcode);
        data[1024 + usize::from(opcode) * 4] = 1 | u8::from(changes) << 1;
    }
    data
}

/// Discovery Log Page (5.16.1.23): the one subsystem there is, at the address that the host has reached.
fn discovery(subsystem: &Subsystem, here: SocketAddr) -> Vec<u8> {
    let mut data = vec![0; 2048];
    // GENCTR; NUMREC; RECFMT is 0.
    put(&mut data, 0, &1u64.to_le_bytes());
    put(&mut data, 8, &1u64.to_le_bytes());
    let entry = &mut data[1024..];
    // TRTYPE TCP, ADRFAM, SUBTYPE NVM subsystem, TREQ: a secure channel is not required.
    put(entry, 0, &[3, if here.is_ipv4() { 1 } else { 2 }, 2, 2]);
    // PORTID; CNTLID: made when a host connects; ASQSZ.
    put(entry, 4, &1u16.to_le_bytes());
    put(entry, 6, &0xffffu16.to_le_bytes());
    put(entry, 8, &MAX_ENTRIES.to_le_bytes());
    put(entry, 32, &text::<32>(&here.port().to_string()));
    put(entry, 256, subsystem.nqn.as_bytes());
    put(entry, 512, &text::<256>(&here.ip().to_canonical().to_string()));
    data
}
