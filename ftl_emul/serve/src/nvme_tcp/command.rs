//! Submission and completion queue entries. Sections are those of the NVM Express Base Specification 2.0.

use crate::nvme_tcp::pdu::{le16, le32, le64};

/// SC, SCT and DNR of the status field (3.3.3.2.1), without the phase tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status(pub u16);

/// Do not retry.
const DNR: u16 = 1 << 14;
const COMMAND_SPECIFIC: u16 = 1 << 8;
const MEDIA: u16 = 2 << 8;

/// Figures 95 to 98.
impl Status {
    pub const SUCCESS: Self = Self(0);
    pub const INVALID_OPCODE: Self = Self(DNR | 0x01);
    pub const INVALID_FIELD: Self = Self(DNR | 0x02);
    pub const ID_CONFLICT: Self = Self(DNR | 0x03);
    pub const INTERNAL_ERROR: Self = Self(0x06);
    pub const ABORT_REQUESTED: Self = Self(0x07);
    pub const INVALID_NAMESPACE: Self = Self(DNR | 0x0b);
    pub const COMMAND_SEQUENCE: Self = Self(DNR | 0x0c);
    pub const SGL_LENGTH: Self = Self(DNR | 0x0f);
    pub const SGL_TYPE: Self = Self(DNR | 0x11);
    pub const SGL_OFFSET: Self = Self(DNR | 0x16);
    pub const TRANSIENT_TRANSPORT: Self = Self(0x22);
    pub const FDP_DISABLED: Self = Self(DNR | 0x29);
    pub const PLACEMENT_HANDLE_LIST: Self = Self(DNR | 0x2a);
    pub const LBA_OUT_OF_RANGE: Self = Self(DNR | 0x80);
    pub const CAPACITY_EXCEEDED: Self = Self(DNR | 0x81);
    pub const TOO_MANY_EVENT_REQUESTS: Self = Self(DNR | COMMAND_SPECIFIC | 0x05);
    pub const INVALID_LOG_PAGE: Self = Self(DNR | COMMAND_SPECIFIC | 0x09);
    pub const FEATURE_NOT_SAVEABLE: Self = Self(DNR | COMMAND_SPECIFIC | 0x0d);
    pub const FEATURE_NOT_CHANGEABLE: Self = Self(DNR | COMMAND_SPECIFIC | 0x0e);
    pub const INVALID_FORMAT: Self = Self(DNR | COMMAND_SPECIFIC | 0x0a);
    pub const INSUFFICIENT_CAPACITY: Self = Self(DNR | COMMAND_SPECIFIC | 0x15);
    pub const IDENTIFIER_UNAVAILABLE: Self = Self(DNR | COMMAND_SPECIFIC | 0x16);
    pub const ALREADY_ATTACHED: Self = Self(DNR | COMMAND_SPECIFIC | 0x18);
    pub const NOT_ATTACHED: Self = Self(DNR | COMMAND_SPECIFIC | 0x1a);
    pub const THIN_PROVISIONING: Self = Self(DNR | COMMAND_SPECIFIC | 0x1b);
    pub const CONTROLLER_LIST: Self = Self(DNR | COMMAND_SPECIFIC | 0x1c);
    pub const CONNECT_FORMAT: Self = Self(DNR | COMMAND_SPECIFIC | 0x80);
    pub const CONNECT_BUSY: Self = Self(COMMAND_SPECIFIC | 0x81);
    pub const CONNECT_PARAMETERS: Self = Self(DNR | COMMAND_SPECIFIC | 0x82);
    pub const CONNECT_HOST: Self = Self(DNR | COMMAND_SPECIFIC | 0x84);
    pub const WRITE_FAULT: Self = Self(MEDIA | 0x80);
    pub const READ_ERROR: Self = Self(MEDIA | 0x81);
    pub const COMPARE_FAILURE: Self = Self(DNR | MEDIA | 0x85);
}

/// Opcodes of the Admin Command Set (5, Figure 138).
pub mod admin {
    pub const GET_LOG_PAGE: u8 = 0x02;
    pub const IDENTIFY: u8 = 0x06;
    pub const ABORT: u8 = 0x08;
    pub const SET_FEATURES: u8 = 0x09;
    pub const GET_FEATURES: u8 = 0x0a;
    pub const ASYNC_EVENT_REQUEST: u8 = 0x0c;
    pub const NAMESPACE_MANAGEMENT: u8 = 0x0d;
    pub const NAMESPACE_ATTACHMENT: u8 = 0x15;
    pub const KEEP_ALIVE: u8 = 0x18;
    pub const DIRECTIVE_SEND: u8 = 0x19;
    pub const DIRECTIVE_RECEIVE: u8 = 0x1a;
    /// Vendor-specific, without data: moves OPS blocks.
    pub const MOVE_OPS: u8 = 0xc0;
    /// Those that every controller with namespaces has; what the log of supported commands says.
    pub const ALWAYS: [u8; 7] =
        [GET_LOG_PAGE, IDENTIFY, ABORT, SET_FEATURES, GET_FEATURES, ASYNC_EVENT_REQUEST, KEEP_ALIVE];
}

/// Fabrics commands (6): this opcode, and their types.
pub mod fabrics {
    pub const OPCODE: u8 = 0x7f;
    pub const PROPERTY_SET: u8 = 0x00;
    pub const CONNECT: u8 = 0x01;
    pub const PROPERTY_GET: u8 = 0x04;
    pub const DISCONNECT: u8 = 0x08;
}

/// Bytes that a command moves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Transfer {
    /// To this program.
    pub from_host: usize,
    /// To the host.
    pub to_host: usize,
}

/// Location of a command's data (4.1.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In its capsule, from a byte on.
    Capsule(usize),
    /// With the host, which sends or receives it in separate PDUs.
    Host,
}

/// A submission queue entry (3.3.3.1).
#[derive(Debug, Clone, Copy)]
pub struct Command(pub [u8; 64]);

impl Command {
    /// OPC.
    pub fn opcode(&self) -> u8 {
        self.0[0]
    }

    /// CID.
    pub fn id(&self) -> u16 {
        le16(&self.0, 2)
    }

    /// NSID; of Fabrics commands its first byte is FCTYPE.
    pub fn namespace(&self) -> u32 {
        le32(&self.0, 4)
    }

    /// FCTYPE (6), where this is a Fabrics command.
    pub fn fabrics_type(&self) -> Option<u8> {
        (self.opcode() == fabrics::OPCODE).then_some(self.0[4])
    }

    /// Command Dword 10 to 15.
    pub fn dword(&self, number: usize) -> u32 {
        le32(&self.0, number * 4)
    }

    /// Command Dwords 10 and 11.
    pub fn start(&self) -> u64 {
        le64(&self.0, 40)
    }

    /// Whether FUSE requests a fused operation (Figure 86).
    pub fn is_fused(&self) -> bool {
        self.0[1] & 0b11 != 0
    }

    /// Where the data is, of which `bytes` are needed (4.1.2; NVMe/TCP 3.3.2.1). PSDT has to say SGL.
    pub fn place(&self, bytes: usize, in_capsule: usize) -> Result<Place, Status> {
        let (address, length) = (le64(&self.0, 24), le32(&self.0, 32));
        if !matches!(self.0[1] >> 6, 1 | 2) {
            return Err(Status::INVALID_FIELD);
        }
        let place = match self.0[39] {
            // Data Block, its address an offset in the capsule.
            0x01 => {
                let offset = usize::try_from(address).ok().filter(|&at| at <= in_capsule).ok_or(Status::SGL_OFFSET)?;
                if in_capsule - offset < bytes {
                    return Err(Status::SGL_LENGTH);
                }
                Place::Capsule(offset)
            }
            // Transport SGL Data Block, subtype NVMe Transport Specific.
            0x5a => Place::Host,
            _ => return Err(Status::SGL_TYPE),
        };
        if u64::from(length) < bytes as u64 { Err(Status::SGL_LENGTH) } else { Ok(place) }
    }
}

/// Status of a command in its completion queue entry (3.3.3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// Dwords 0 and 1.
    pub result: u64,
    /// Its status.
    pub status: Status,
}

impl From<Status> for Completion {
    fn from(status: Status) -> Self {
        Self { result: 0, status }
    }
}

impl Completion {
    /// Success with a result.
    pub fn of(result: u64) -> Self {
        Self { result, status: Status::SUCCESS }
    }

    /// The entry; `head` is the submission queue's.
    pub fn entry(&self, head: u16, queue: u16, command: u16) -> [u8; 16] {
        let mut entry = [0; 16];
        entry[..8].copy_from_slice(&self.result.to_le_bytes());
        entry[8..10].copy_from_slice(&head.to_le_bytes());
        entry[10..12].copy_from_slice(&queue.to_le_bytes());
        entry[12..14].copy_from_slice(&command.to_le_bytes());
        entry[14..].copy_from_slice(&(self.status.0 << 1).to_le_bytes());
        entry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_sgl(kind: u8, address: u64, length: u32) -> Command {
        let mut bytes = [0; 64];
        bytes[1] = 0x40;
        bytes[24..32].copy_from_slice(&address.to_le_bytes());
        bytes[32..36].copy_from_slice(&length.to_le_bytes());
        bytes[39] = kind;
        Command(bytes)
    }

    #[test]
    fn invalid_data_descriptor_is_refused() {
        assert_eq!(with_sgl(0x01, 8, 16).place(16, 24), Ok(Place::Capsule(8)));
        assert_eq!(with_sgl(0x01, 9, 16).place(16, 24), Err(Status::SGL_LENGTH));
        assert_eq!(with_sgl(0x01, u64::MAX, 16).place(16, 24), Err(Status::SGL_OFFSET));
        assert_eq!(with_sgl(0x5a, 0, 4096).place(4096, 0), Ok(Place::Host));
        assert_eq!(with_sgl(0x5a, 0, 4095).place(4096, 0), Err(Status::SGL_LENGTH));
        assert_eq!(with_sgl(0x40, 0, 4096).place(4096, 0), Err(Status::SGL_TYPE), "keyed");
        assert_eq!(Command([0; 64]).place(0, 0), Err(Status::INVALID_FIELD), "PRPs");
    }
}
