//! Small reads and writes that wait neither for the modelled drive nor for a disk: the thread that reads a connection
//! carries them out itself, as handing them over would take longer, and sends their answers together.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::namespace::Flags;
use crate::nvme_tcp::command::{Command, Completion, Status, Transfer};
use crate::nvme_tcp::controller::Controller;
use crate::nvme_tcp::io as nvm;
use crate::nvme_tcp::placement;
use crate::nvme_tcp::queue::Queue;
use crate::nvme_tcp::subsystem::Subsystem;

/// Largest quick reads and writes.
const QUICK_BYTES: usize = 64 << 10;

/// Whether a command may be carried out so, where the device has no clock and its writes are not durable by themselves.
pub fn is_quick(command: &Command, transfer: Transfer) -> bool {
    matches!(command.opcode(), nvm::opcode::READ | nvm::opcode::WRITE)
        && transfer.from_host.max(transfer.to_host) <= QUICK_BYTES
        && !nvm::is_durable(command)
}

/// Carries out a quick command of I/O queue `id`, whose data is all there, and answers it. False where others have to:
/// the disk would be waited for, or the command is refused.
pub fn carry_out(
    subsystem: &Subsystem,
    queue: &Queue,
    (controller, id): (&Controller, u16),
    (command, data): (&Command, &[u8]),
) -> io::Result<bool> {
    let Some(namespace) = subsystem.attached(controller, command.namespace()) else { return Ok(false) };
    let Ok((offset, length)) = nvm::within(&namespace, command) else { return Ok(false) };
    let model = &subsystem.server.model;
    if command.opcode() == nvm::opcode::READ {
        let bytes = ftl_core::convert::exact(length);
        return queue.answer_filled(command.id(), bytes, |out| namespace.read_now(model, out, offset));
    }
    if placement::check_write(subsystem, &namespace, command).is_err() {
        return Ok(false);
    }
    let write = || namespace.write(model, data, offset, Flags::default(), || queue.is_closed());
    // A panic fails this command only.
    let status = match catch_unwind(AssertUnwindSafe(write)) {
        Ok(Ok(())) => Status::SUCCESS,
        Ok(Err(e)) => nvm::failed(&e, Status::WRITE_FAULT),
        Err(_) => Status::INTERNAL_ERROR,
    };
    if status != Status::SUCCESS {
        controller.note_error(id, command, status);
    }
    queue.answer_with_others(command.id(), Completion::from(status))?;
    Ok(true)
}
