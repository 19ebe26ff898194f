//! The NVM Command Set (specification 1.0, sections in brackets) on a namespace, through the same calls as NBD requests.

use std::io;

use ftl_core::convert::exact;

use crate::model::Model;
use crate::namespace::{Flags, Namespace};
use crate::nvme_tcp::command::{Command, Completion, Status, Transfer};
use crate::nvme_tcp::pdu::{le32, le64};
use crate::nvme_tcp::placement;

/// log2 of the bytes of a logical block: as guests have them over NBD.
pub const BLOCK_SHIFT: u32 = 9;
/// MDTS: data of a command at most, as a power of two of pages of 4 KiB.
pub const MAX_TRANSFER_SHIFT: u8 = 8;
/// The same in bytes.
pub const MAX_TRANSFER_BYTES: usize = 4096 << MAX_TRANSFER_SHIFT;
/// Read at once by a command that moves no data to the host.
const PIECE_BYTES: usize = 128 << 10;
/// Bytes of a range of Dataset Management (3.2.3).
const RANGE_BYTES: usize = 16;

/// Opcodes (3.2).
pub mod opcode {
    pub const FLUSH: u8 = 0x00;
    pub const WRITE: u8 = 0x01;
    pub const READ: u8 = 0x02;
    pub const COMPARE: u8 = 0x05;
    pub const WRITE_ZEROES: u8 = 0x08;
    pub const DATASET_MANAGEMENT: u8 = 0x09;
    pub const VERIFY: u8 = 0x0c;
    pub const MANAGEMENT_RECEIVE: u8 = 0x12;
    pub const MANAGEMENT_SEND: u8 = 0x1d;
    /// Commands of every namespace.
    pub const ALWAYS: [u8; 7] = [FLUSH, WRITE, READ, COMPARE, WRITE_ZEROES, DATASET_MANAGEMENT, VERIFY];
    /// Commands of flexible data placement.
    pub const OF_PLACEMENT: [u8; 2] = [MANAGEMENT_RECEIVE, MANAGEMENT_SEND];
    /// Commands that change data.
    pub const CHANGING: [u8; 3] = [WRITE, WRITE_ZEROES, DATASET_MANAGEMENT];
}

/// Bytes that a command moves; Err for one that is not carried out.
pub fn transfer(command: &Command) -> Result<Transfer, Status> {
    let blocks = range(command).1;
    let none = Transfer::default();
    let moved = match command.opcode() {
        opcode::FLUSH | opcode::WRITE_ZEROES | opcode::VERIFY => none,
        opcode::WRITE | opcode::COMPARE => Transfer { from_host: exact(blocks), ..none },
        opcode::READ => Transfer { to_host: exact(blocks), ..none },
        // NR counts from 0.
        opcode::DATASET_MANAGEMENT => {
            Transfer { from_host: (exact::<usize>(command.dword(10) & 0xff) + 1) * RANGE_BYTES, ..none }
        }
        opcode::MANAGEMENT_RECEIVE | opcode::MANAGEMENT_SEND => placement::transfer(command)?,
        _ => return Err(Status::INVALID_OPCODE),
    };
    // No protection information (PRINFO), no fused operations.
    let has_info = matches!(command.opcode(), opcode::WRITE | opcode::READ | opcode::COMPARE);
    if command.is_fused()
        || moved.from_host.max(moved.to_host) > MAX_TRANSFER_BYTES
        || (has_info && command.dword(12) >> 26 & 0xf != 0)
    {
        return Err(Status::INVALID_FIELD);
    }
    Ok(moved)
}

/// FUA (3.2.4, 3.2.6).
pub fn is_durable(command: &Command) -> bool {
    command.dword(12) & (1 << 30) != 0
}

/// SLBA and NLB, which counts from 0, in bytes.
fn range(command: &Command) -> (u64, u64) {
    (command.start(), (u64::from(command.dword(12) & 0xffff) + 1) << BLOCK_SHIFT)
}

/// Carries a command out. `data` is from the host, data for the host is put into `out`. `durable`: every write is on
/// stable storage before its answer.
pub fn carry_out(
    namespace: &Namespace,
    model: &Model,
    command: &Command,
    (data, out): (&[u8], &mut [u8]),
    durable: bool,
    gone: &dyn Fn() -> bool,
) -> Completion {
    let flags = Flags { fua: durable || is_durable(command), may_trim: false };
    let done = match command.opcode() {
        opcode::FLUSH => namespace.flush(model, gone).map_err(|e| failed(&e, Status::WRITE_FAULT)),
        opcode::WRITE => within(namespace, command).and_then(|(offset, _)| {
            namespace.write(model, data, offset, flags, gone).map_err(|e| failed(&e, Status::WRITE_FAULT))
        }),
        opcode::READ => within(namespace, command).and_then(|(offset, _)| {
            if is_durable(command) {
                // Data that FUA reads has to be on stable storage (3.2.4).
                namespace.flush(model, gone).map_err(|e| failed(&e, Status::READ_ERROR))?;
            }
            namespace.read(model, out, offset, gone).map_err(|e| failed(&e, Status::READ_ERROR))
        }),
        opcode::COMPARE => within(namespace, command).and_then(|(offset, length)| {
            let mut found = vec![0; exact(length)];
            namespace.read(model, &mut found, offset, gone).map_err(|e| failed(&e, Status::READ_ERROR))?;
            if found == data { Ok(()) } else { Err(Status::COMPARE_FAILURE) }
        }),
        opcode::VERIFY => within(namespace, command).and_then(|range| verify(namespace, model, range, gone)),
        opcode::WRITE_ZEROES => within(namespace, command).and_then(|range| {
            // DEAC (3.2.8).
            let flags = Flags { may_trim: command.dword(12) & (1 << 25) != 0, ..flags };
            let done = namespace.zero_or_write(model, range.0, range.1, flags, gone);
            done.map_err(|e| failed(&e, Status::WRITE_FAULT))
        }),
        opcode::DATASET_MANAGEMENT => deallocate(namespace, model, command, data, gone),
        _ => Err(Status::INVALID_OPCODE),
    };
    done.err().unwrap_or(Status::SUCCESS).into()
}

/// The bytes that a command is about, all of them in the namespace.
pub fn within(namespace: &Namespace, command: &Command) -> Result<(u64, u64), Status> {
    let (start, length) = range(command);
    bytes_within(namespace, start, length)
}

fn bytes_within(namespace: &Namespace, start: u64, length: u64) -> Result<(u64, u64), Status> {
    let offset = start.checked_mul(1 << BLOCK_SHIFT).ok_or(Status::LBA_OUT_OF_RANGE)?;
    let end = offset.checked_add(length).ok_or(Status::LBA_OUT_OF_RANGE)?;
    if end > namespace.size_bytes() { Err(Status::LBA_OUT_OF_RANGE) } else { Ok((offset, length)) }
}

fn verify(
    namespace: &Namespace,
    model: &Model,
    (offset, length): (u64, u64),
    gone: &dyn Fn() -> bool,
) -> Result<(), Status> {
    let mut buffer = vec![0; exact::<usize>(length).min(PIECE_BYTES)];
    let mut done = 0;
    while done < length && !gone() {
        let piece = exact::<usize>(length - done).min(PIECE_BYTES);
        namespace.read(model, &mut buffer[..piece], offset + done, gone).map_err(|e| failed(&e, Status::READ_ERROR))?;
        done += piece as u64;
    }
    Ok(())
}

/// Dataset Management (3.2.3): AD releases ranges, the other attributes are hints. All ranges are checked before the
/// first is released.
fn deallocate(
    namespace: &Namespace,
    model: &Model,
    command: &Command,
    data: &[u8],
    gone: &dyn Fn() -> bool,
) -> Result<(), Status> {
    let of = |range: &[u8]| bytes_within(namespace, le64(range, 8), u64::from(le32(range, 4)) << BLOCK_SHIFT);
    let ranges = data.chunks_exact(RANGE_BYTES).map(of).collect::<Result<Vec<_>, _>>()?;
    if command.dword(11) & (1 << 2) == 0 {
        return Ok(());
    }
    for (offset, length) in ranges.into_iter().filter(|&(_, length)| length > 0) {
        namespace.trim(model, offset, length, Flags::default(), gone).map_err(|e| failed(&e, Status::WRITE_FAULT))?;
    }
    Ok(())
}

/// The status for an error of the backing file.
pub fn failed(error: &io::Error, otherwise: Status) -> Status {
    match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => Status::CAPACITY_EXCEEDED,
        Some(libc::ESHUTDOWN) => Status::ABORT_REQUESTED,
        _ => otherwise,
    }
}
