//! Protocol data units of the NVMe/TCP Transport Specification 1.0 (sections in brackets are its own): parses the bytes
//! of a host, and creates those of a controller. No function here reads, writes or waits.

#[cfg(test)]
mod tests;

use ftl_core::convert::exact;

/// Bytes of the common header (3.6.1) that every PDU begins with.
pub const COMMON_BYTES: usize = 8;
/// The longest header, of ICReq and ICResp (3.6.2.2).
pub const MAX_HEADER_BYTES: usize = 128;
/// Bytes of a header or data digest (3.3.1.1).
pub const DIGEST_BYTES: usize = 4;
/// Maximum data of one H2CData PDU, MAXH2CDATA of ICResp (3.6.2.3).
pub const MAX_HOST_DATA: u32 = 128 << 10;
/// Data that a command capsule may bring along: what the Admin Queue always has (3.3.2.2.1), and IOCCSZ for the others.
pub const IN_CAPSULE_BYTES: u32 = 8 << 10;

/// PDU types (3.6.1).
mod kind {
    pub const INITIALIZE_REQUEST: u8 = 0x00;
    pub const INITIALIZE_RESPONSE: u8 = 0x01;
    pub const HOST_TERMINATES: u8 = 0x02;
    pub const CONTROLLER_TERMINATES: u8 = 0x03;
    pub const COMMAND: u8 = 0x04;
    pub const RESPONSE: u8 = 0x05;
    pub const HOST_DATA: u8 = 0x06;
    pub const CONTROLLER_DATA: u8 = 0x07;
    pub const READY_TO_TRANSFER: u8 = 0x09;
}

/// FLAGS of the common header (3.6.1): digests are there; data PDUs: it is the last of its transfer.
const HEADER_DIGEST_FLAG: u8 = 1 << 0;
const DATA_DIGEST_FLAG: u8 = 1 << 1;
const LAST_FLAG: u8 = 1 << 2;

/// Reason why a connection has to end: FES and FEI of a C2HTermReq PDU (3.6.2.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// 01h: the field at this byte of the header makes no sense.
    HeaderField(u32),
    /// 02h: not now.
    Sequence,
    /// 03h: wrong header digest.
    HeaderDigest(u32),
    /// 04h: data that was not requested.
    OutOfRange,
    /// 05h: more data in one PDU than MAXH2CDATA.
    TooMuchData,
    /// 06h: the parameter at this byte of an ICReq is not supported.
    Unsupported(u32),
}

impl Fault {
    fn fields(self) -> (u16, u32) {
        match self {
            Self::HeaderField(offset) => (1, offset),
            Self::Sequence => (2, 0),
            Self::HeaderDigest(received) => (3, received),
            Self::OutOfRange => (4, 0),
            Self::TooMuchData => (5, 0),
            Self::Unsupported(offset) => (6, offset),
        }
    }
}

/// Which digests PDUs carry, once both sides have agreed (3.6.2.3, DGST).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Digests {
    /// Header digests.
    pub header: bool,
    /// Data digests.
    pub data: bool,
}

impl Digests {
    fn header_bytes(self) -> usize {
        if self.header { DIGEST_BYTES } else { 0 }
    }

    fn data_bytes(self) -> usize {
        if self.data { DIGEST_BYTES } else { 0 }
    }
}

/// Positions of the parts of a PDU from a host, from its common header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    kind: u8,
    flags: u8,
    /// Bytes of the header, the common one included.
    pub header: usize,
    /// Its digest follows.
    pub header_digest: bool,
    /// Bytes between that and the data.
    pub padding: usize,
    /// Bytes of data.
    pub data: usize,
    /// Its digest follows.
    pub data_digest: bool,
}

impl Layout {
    /// Checks a common header (3.6.1). What passes is bounded: no PDU is longer than this program has room for.
    pub fn of(common: [u8; COMMON_BYTES], digests: Digests) -> Result<Self, Fault> {
        let [kind, flags, header, offset, length @ ..] = common;
        let (header, offset, length) = (usize::from(header), usize::from(offset), exact::<usize>(le32(&length, 0)));
        let (wanted, most_data) = match kind {
            kind::INITIALIZE_REQUEST => (128, 0),
            kind::HOST_TERMINATES => (24, MAX_HEADER_BYTES),
            kind::COMMAND => (72, exact::<usize>(IN_CAPSULE_BYTES)),
            kind::HOST_DATA => (24, exact::<usize>(MAX_HOST_DATA)),
            _ => return Err(Fault::HeaderField(0)),
        };
        if header != wanted {
            return Err(Fault::HeaderField(2));
        }
        // Neither is ever protected (3.6.2.2, 3.6.2.4), nor does a termination say where its data begins.
        let plain = matches!(kind, kind::INITIALIZE_REQUEST | kind::HOST_TERMINATES);
        let digests = if plain { Digests::default() } else { digests };
        if (flags & HEADER_DIGEST_FLAG != 0) != digests.header {
            return Err(Fault::HeaderField(1));
        }
        let after_header = header + digests.header_bytes();
        let layout =
            Self { kind, flags, header, header_digest: digests.header, padding: 0, data: 0, data_digest: false };
        // A PDU without data may still name the place where it would be.
        if length == after_header && kind != kind::HOST_DATA {
            return Ok(layout);
        }
        let data_at = if plain { after_header } else { offset };
        // CPDA is 0: data is aligned to 4 bytes (3.6.2.3).
        if offset != 0 && (data_at < after_header || data_at % 4 != 0) {
            return Err(Fault::HeaderField(3));
        }
        let sealed = digests.data_bytes();
        let data = match length.checked_sub(data_at + sealed) {
            Some(data) if data > 0 && data_at > 0 => data,
            _ => return Err(Fault::HeaderField(4)),
        };
        if (flags & DATA_DIGEST_FLAG != 0) != digests.data {
            return Err(Fault::HeaderField(1));
        }
        if data > most_data {
            return Err(if kind == kind::HOST_DATA { Fault::TooMuchData } else { Fault::HeaderField(4) });
        }
        Ok(Self { padding: data_at - after_header, data, data_digest: digests.data, ..layout })
    }

    /// Bytes between the common header and the data: the rest of the header, its digest, padding.
    pub fn before_data(&self) -> usize {
        self.header - COMMON_BYTES + if self.header_digest { DIGEST_BYTES } else { 0 } + self.padding
    }

    /// Parses a header. `bytes` are the common header and [`Self::before_data`] more.
    pub fn parse(&self, bytes: &[u8]) -> Result<FromHost, Fault> {
        let (header, after) = bytes.split_at(self.header);
        if self.header_digest {
            let received = le32(after, 0);
            if received != crc32c::crc32c(header) {
                return Err(Fault::HeaderDigest(received));
            }
        }
        Ok(match self.kind {
            kind::INITIALIZE_REQUEST => FromHost::Initialize(Initialize::parse(header)?),
            kind::COMMAND => {
                let mut command = [0; 64];
                command.copy_from_slice(&header[COMMON_BYTES..]);
                FromHost::Command(command)
            }
            kind::HOST_DATA => {
                let data = HostData {
                    command_id: le16(header, 8),
                    tag: le16(header, 10),
                    offset: le32(header, 12),
                    length: le32(header, 16),
                    last: self.flags & LAST_FLAG != 0,
                };
                if exact::<usize>(data.length) != self.data {
                    return Err(Fault::HeaderField(16));
                }
                FromHost::Data(data)
            }
            _ => FromHost::Terminate,
        })
    }
}

/// A PDU from a host, without its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromHost {
    /// ICReq.
    Initialize(Initialize),
    /// CapsuleCmd: a submission queue entry.
    Command([u8; 64]),
    /// H2CData.
    Data(HostData),
    /// H2CTermReq: the host terminates the connection.
    Terminate,
}

/// ICReq (3.6.2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Initialize {
    /// HPDA: data of PDUs to the host begins at a multiple of so many bytes.
    pub alignment: usize,
    /// DGST: the digests that the host requests.
    pub digests: Digests,
}

impl Initialize {
    fn parse(header: &[u8]) -> Result<Self, Fault> {
        // PFV 0 is the version of specification 1.0.
        if le16(header, 8) != 0 {
            return Err(Fault::Unsupported(8));
        }
        let (alignment, digests) = (header[10], header[11]);
        if alignment > 31 {
            return Err(Fault::HeaderField(10));
        }
        if digests > 3 {
            return Err(Fault::HeaderField(11));
        }
        let digests = Digests { header: digests & 1 != 0, data: digests & 2 != 0 };
        Ok(Self { alignment: (usize::from(alignment) + 1) * 4, digests })
    }
}

/// Header of H2CData (3.6.2.10).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostData {
    /// CCCID: of the command that the data is for.
    pub command_id: u16,
    /// TTAG of the R2T.
    pub tag: u16,
    /// DATAO: its position in the data of the command.
    pub offset: u32,
    /// DATAL.
    pub length: u32,
    /// `LAST_PDU`: the last data for the R2T.
    pub last: bool,
}

/// Layout of PDUs to a host.
#[derive(Debug, Clone, Copy)]
pub struct Format {
    /// Negotiated digests.
    pub digests: Digests,
    /// Alignment of data, in bytes.
    pub alignment: usize,
}

impl Default for Format {
    fn default() -> Self {
        Self { digests: Digests::default(), alignment: 4 }
    }
}

impl Format {
    /// A CapsuleResp PDU (3.6.2.7) with a completion queue entry.
    pub fn response(&self, entry: &[u8; 16]) -> Vec<u8> {
        let mut header = common(kind::RESPONSE, 0, 24);
        header.extend_from_slice(entry);
        self.sealed(header)
    }

    /// An R2T PDU (3.6.2.8): the host may send `length` bytes from `offset` on.
    pub fn ready_to_transfer(&self, command_id: u16, tag: u16, offset: u32, length: u32) -> Vec<u8> {
        let mut header = common(kind::READY_TO_TRANSFER, 0, 24);
        header.extend_from_slice(&command_id.to_le_bytes());
        header.extend_from_slice(&tag.to_le_bytes());
        header.extend_from_slice(&offset.to_le_bytes());
        header.extend_from_slice(&length.to_le_bytes());
        header.resize(24, 0);
        self.sealed(header)
    }

    /// Bytes before the data of a C2HData PDU.
    pub fn before_data(&self) -> usize {
        (24 + self.digests.header_bytes()).next_multiple_of(self.alignment)
    }

    /// What comes before and after the data of a C2HData PDU (3.6.2.11), the only one of its command.
    pub fn around_data(&self, data: &[u8], command_id: u16) -> (Vec<u8>, Option<[u8; DIGEST_BYTES]>) {
        let before = self.before_data();
        let flags = LAST_FLAG | if self.digests.data { DATA_DIGEST_FLAG } else { 0 };
        let mut header = common(kind::CONTROLLER_DATA, flags, 24);
        header[3] = exact::<u8>(before);
        header.extend_from_slice(&command_id.to_le_bytes());
        header.extend_from_slice(&[0; 6]);
        header.extend_from_slice(&exact::<u32>(data.len()).to_le_bytes());
        header.resize(24, 0);
        let digest = self.digests.data.then(|| crc32c::crc32c(data).to_le_bytes());
        let mut header = self.sealed_of(header, before + data.len() + self.digests.data_bytes());
        header.resize(before, 0);
        (header, digest)
    }

    fn sealed(&self, header: Vec<u8>) -> Vec<u8> {
        let length = header.len() + self.digests.header_bytes();
        self.sealed_of(header, length)
    }

    /// A header with the length of its PDU, and its digest.
    fn sealed_of(&self, mut header: Vec<u8>, length: usize) -> Vec<u8> {
        header[4..8].copy_from_slice(&exact::<u32>(length).to_le_bytes());
        if self.digests.header {
            header[1] |= HEADER_DIGEST_FLAG;
            let digest = crc32c::crc32c(&header);
            header.extend_from_slice(&digest.to_le_bytes());
        }
        header
    }
}

/// An ICResp PDU (3.6.2.3).
pub fn initialized(digests: Digests) -> Vec<u8> {
    let mut pdu = common(kind::INITIALIZE_RESPONSE, 0, 128);
    // PFV 0; CPDA 0: data from the host is aligned to 4 bytes.
    pdu.extend_from_slice(&[0, 0, 0, u8::from(digests.header) | u8::from(digests.data) << 1]);
    pdu.extend_from_slice(&MAX_HOST_DATA.to_le_bytes());
    pdu.resize(128, 0);
    pdu[4] = 128;
    pdu
}

/// A C2HTermReq PDU (3.6.2.5), with the header that is at fault.
pub fn terminate(fault: Fault, header: &[u8]) -> Vec<u8> {
    let (status, information) = fault.fields();
    let mut pdu = common(kind::CONTROLLER_TERMINATES, 0, 24);
    pdu.extend_from_slice(&status.to_le_bytes());
    pdu.extend_from_slice(&information.to_le_bytes());
    pdu.resize(24, 0);
    pdu.extend_from_slice(&header[..header.len().min(MAX_HEADER_BYTES)]);
    let length = exact::<u32>(pdu.len());
    pdu[4..8].copy_from_slice(&length.to_le_bytes());
    pdu
}

/// The common header, with room for the rest.
fn common(kind: u8, flags: u8, header: u8) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(usize::from(header) + DIGEST_BYTES);
    bytes.extend_from_slice(&[kind, flags, header, 0, 0, 0, 0, 0]);
    bytes
}

/// A little-endian number at an offset.
pub fn le16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Like [`le16`].
pub fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from(le16(bytes, at)) | u32::from(le16(bytes, at + 2)) << 16
}

/// Like [`le16`].
pub fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from(le32(bytes, at)) | u64::from(le32(bytes, at + 4)) << 32
}
