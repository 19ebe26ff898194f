//! Fields of the NBD protocol. Sections are those of its specification, doc/proto.md of the reference implementation
//! (github.com/NetworkBlockDevice/nbd). All numbers are big-endian ("Conventions").

use std::io;

use ftl_core::convert::exact;

/// "Newstyle negotiation": the first bytes from a server, and the beginning of an option.
pub const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// "Fixed newstyle negotiation": the beginning of the reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

/// "Handshake flags", and the "Client flags" with the same bits.
pub const FIXED_NEWSTYLE: u16 = 1 << 0;
pub const NO_ZEROES: u16 = 1 << 1;

/// "Option types".
pub mod option {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const STARTTLS: u32 = 5;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
}

/// "Option reply types".
pub mod reply {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    pub const ERR_UNSUP: u32 = 1 << 31 | 1;
    pub const ERR_INVALID: u32 = 1 << 31 | 3;
    pub const ERR_TLS_REQD: u32 = 1 << 31 | 5;
    pub const ERR_UNKNOWN: u32 = 1 << 31 | 6;
    pub const ERR_TOO_BIG: u32 = 1 << 31 | 9;
}

/// "Option reply types", `NBD_REP_INFO`.
pub mod info {
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

/// "Transmission flags".
pub mod transmission {
    pub const HAS_FLAGS: u16 = 1 << 0;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const ROTATIONAL: u16 = 1 << 4;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const SEND_DF: u16 = 1 << 7;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// "Request types".
pub mod command {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISC: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;
}

/// "Command flags".
pub mod flag {
    pub const FUA: u16 = 1 << 0;
    pub const NO_HOLE: u16 = 1 << 1;
    pub const DF: u16 = 1 << 2;
    pub const REQ_ONE: u16 = 1 << 3;
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// "Structured reply types", and the only one of the "Structured reply flags".
mod chunk {
    pub const OFFSET_DATA: u16 = 1;
    pub const BLOCK_STATUS: u16 = 5;
    pub const ERROR: u16 = 1 << 15 | 1;
    pub const DONE: u16 = 1 << 0;
}

/// "`base:allocation` metadata context".
pub const STATE_HOLE: u32 = 1 << 0;
pub const STATE_ZERO: u32 = 1 << 1;
pub const ALLOCATION: &[u8] = b"base:allocation";
/// "Metadata querying": any number that distinguishes it from others, of which there are none.
pub const ALLOCATION_ID: u32 = 1;

/// "Size constraints": payload of a request at most. Clients that do not ask take it to be this.
pub const MAX_PAYLOAD_BYTES: u32 = 32 << 20;

/// "Request message".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    pub flags: u16,
    pub command: u16,
    pub cookie: u64,
    pub offset: u64,
    pub length: u32,
}

impl Request {
    pub const BYTES: usize = 28;
    const MAGIC: u32 = 0x2560_9513;

    /// None for an invalid request, after which the stream cannot be parsed.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let is_request = fields.u32() == Some(Self::MAGIC);
        let request = Self {
            flags: fields.u16()?,
            command: fields.u16()?,
            cookie: fields.u64()?,
            offset: fields.u64()?,
            length: fields.u32()?,
        };
        is_request.then_some(request)
    }

    /// True when data follows.
    #[must_use]
    pub fn has_payload(&self) -> bool {
        self.command == command::WRITE
    }

    /// Whether the flag is set.
    #[must_use]
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// "Command flags": those that a client must not set for the command. FUA may come with any.
    #[must_use]
    pub fn has_wrong_flags(&self, structured: bool) -> bool {
        let right = match self.command {
            command::READ if structured => flag::DF,
            command::WRITE_ZEROES => flag::NO_HOLE | flag::FAST_ZERO,
            command::BLOCK_STATUS => flag::REQ_ONE,
            _ => 0,
        };
        self.flags & !(right | flag::FUA) != 0
    }
}

/// Reads the fields of a message in order; None if it ends before.
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    pub fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A string with its length before it, as names and queries are.
    pub fn string(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()?;
        self.bytes(length as usize)
    }
}

/// "Fixed newstyle negotiation": a reply to an option.
#[must_use]
pub fn option_reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let head = [&OPTION_REPLY_MAGIC.to_be_bytes()[..], &option.to_be_bytes(), &kind.to_be_bytes()].concat();
    [&head[..], &exact::<u32>(data.len()).to_be_bytes(), data].concat()
}

/// Form of replies that a connection has negotiated.
#[derive(Debug, Clone, Copy, Default)]
pub struct Replies {
    pub structured: bool,
}

impl Replies {
    /// Writes the header before the data of a successful read.
    pub fn before_data(self, into: &mut Vec<u8>, request: &Request) {
        if self.structured {
            put_chunk(into, request, chunk::OFFSET_DATA, 8 + request.length);
            into.extend_from_slice(&request.offset.to_be_bytes());
        } else {
            put_simple(into, request, 0);
        }
    }

    /// Puts the reply to a request that returns no data, or failed.
    pub fn done(self, into: &mut Vec<u8>, request: &Request, result: &io::Result<()>) {
        let error = result.as_ref().map_or_else(error_value, |()| 0);
        if error != 0 && self.structured && matches!(request.command, command::READ | command::BLOCK_STATUS) {
            put_chunk(into, request, chunk::ERROR, 6);
            into.extend_from_slice(&error.to_be_bytes());
            // Length of a message for users, which is empty.
            into.extend_from_slice(&0u16.to_be_bytes());
        } else {
            put_simple(into, request, error);
        }
    }
}

/// "Structured reply types", `NBD_REPLY_TYPE_BLOCK_STATUS`: lengths and states of extents one after the other.
#[must_use]
pub fn block_status(request: &Request, extents: &[(u32, u32)]) -> Vec<u8> {
    let mut reply = Vec::with_capacity(32 + 8 * extents.len());
    put_chunk(&mut reply, request, chunk::BLOCK_STATUS, exact::<u32>(4 + 8 * extents.len()));
    reply.extend_from_slice(&ALLOCATION_ID.to_be_bytes());
    for (length, state) in extents {
        reply.extend_from_slice(&length.to_be_bytes());
        reply.extend_from_slice(&state.to_be_bytes());
    }
    reply
}

/// "Simple reply message".
fn put_simple(into: &mut Vec<u8>, request: &Request, error: u32) {
    into.extend_from_slice(&0x6744_6698u32.to_be_bytes());
    into.extend_from_slice(&error.to_be_bytes());
    into.extend_from_slice(&request.cookie.to_be_bytes());
}

/// "Structured reply chunk message": the only one of a reply, without its payload.
fn put_chunk(into: &mut Vec<u8>, request: &Request, kind: u16, length: u32) {
    into.extend_from_slice(&0x668e_33efu32.to_be_bytes());
    into.extend_from_slice(&chunk::DONE.to_be_bytes());
    into.extend_from_slice(&kind.to_be_bytes());
    into.extend_from_slice(&request.cookie.to_be_bytes());
    into.extend_from_slice(&length.to_be_bytes());
}

/// "Error values": errnos of Linux, of which the protocol defines only some.
fn error_value(error: &io::Error) -> u32 {
    let errno = match error.raw_os_error() {
        Some(libc::EROFS | libc::EPERM | libc::EACCES) => libc::EPERM,
        Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => libc::ENOSPC,
        Some(known @ (libc::ENOMEM | libc::EINVAL | libc::EOVERFLOW | libc::ESHUTDOWN)) => known,
        Some(libc::EOPNOTSUPP) => libc::ENOTSUP,
        _ => libc::EIO,
    };
    exact::<u32>(errno)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_valid_requests_are_parsed() {
        let mut bytes = [0; Request::BYTES];
        bytes[..4].copy_from_slice(&[0x25, 0x60, 0x95, 0x13]);
        bytes[5] = 2;
        bytes[7] = 6;
        bytes[15] = 9;
        bytes[23] = 8;
        bytes[26] = 1;
        let request = Request { flags: 2, command: command::WRITE_ZEROES, cookie: 9, offset: 8, length: 256 };
        assert_eq!(Request::parse(&bytes), Some(request));
        bytes[0] = 0;
        assert_eq!(Request::parse(&bytes), None);
    }

    #[test]
    fn flags_are_checked_by_command() {
        let wrong = |command, flags, structured| {
            Request { flags, command, cookie: 0, offset: 0, length: 1 }.has_wrong_flags(structured)
        };
        assert!(!wrong(command::READ, flag::DF | flag::FUA, true));
        assert!(wrong(command::READ, flag::DF, false));
        assert!(!wrong(command::WRITE_ZEROES, flag::NO_HOLE | flag::FAST_ZERO | flag::FUA, false));
        assert!(wrong(command::WRITE, flag::NO_HOLE, true));
        assert!(wrong(command::TRIM, 1 << 5, true));
    }
}
