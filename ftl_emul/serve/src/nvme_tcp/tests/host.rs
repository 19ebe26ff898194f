//! A host that speaks NVMe/TCP, for tests: written from the specifications, sharing nothing with the controller but the
//! checksum.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub const HOST_NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555";

/// A PDU from the controller.
#[derive(Debug)]
pub struct Pdu {
    pub kind: u8,
    pub head: Vec<u8>,
    pub data: Vec<u8>,
}

impl Pdu {
    pub fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.head[at..at + 2].try_into().unwrap())
    }

    pub fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.head[at..at + 4].try_into().unwrap())
    }
}

/// Completion of a command.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    pub id: u16,
    pub result: u64,
    /// SC and SCT, without DNR.
    pub status: u16,
    pub data: Vec<u8>,
}

/// One connection.
pub struct Host {
    pub stream: TcpStream,
    header_digest: bool,
    data_digest: bool,
    pub next_id: u16,
    /// Breaks the digest of the next data that is sent.
    pub damages_data: bool,
    /// Its Host NQN.
    pub nqn: &'static str,
}

/// A submission queue entry.
pub fn entry(opcode: u8, namespace: u32, dwords: &[(usize, u32)]) -> [u8; 64] {
    let mut entry = [0; 64];
    entry[0] = opcode;
    entry[1] = 0x40;
    entry[4..8].copy_from_slice(&namespace.to_le_bytes());
    for &(number, value) in dwords {
        entry[number * 4..number * 4 + 4].copy_from_slice(&value.to_le_bytes());
    }
    entry
}

/// A command on blocks.
pub fn blocks(opcode: u8, namespace: u32, start: u64, count: u32) -> [u8; 64] {
    entry(opcode, namespace, &[(10, start as u32), (11, (start >> 32) as u32), (12, count - 1)])
}

/// Specifies that data is with the host.
pub fn with_host_data(mut entry: [u8; 64], bytes: usize) -> [u8; 64] {
    entry[32..36].copy_from_slice(&(bytes as u32).to_le_bytes());
    entry[39] = 0x5a;
    entry
}

impl Host {
    /// Connects, and agrees on digests.
    pub fn dial(address: SocketAddr, header_digest: bool, data_digest: bool) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut host =
            Self { stream, header_digest: false, data_digest: false, next_id: 0, damages_data: false, nqn: HOST_NQN };
        let mut request = vec![0; 128];
        request[2] = 128;
        request[4] = 128;
        request[11] = u8::from(header_digest) | u8::from(data_digest) << 1;
        host.stream.write_all(&request).unwrap();
        let answer = host.receive();
        assert_eq!((answer.kind, answer.head[11]), (1, request[11]));
        (host.header_digest, host.data_digest) = (header_digest, data_digest);
        host
    }

    /// A PDU with data, or without.
    fn pdu(&mut self, kind: u8, flags: u8, head: &[u8], data: &[u8]) -> Vec<u8> {
        let seal = if self.header_digest { 4 } else { 0 };
        let mut pdu = vec![kind, flags | u8::from(self.header_digest), 8 + head.len() as u8, 0, 0, 0, 0, 0];
        pdu.extend_from_slice(head);
        let mut length = pdu.len() + seal;
        if !data.is_empty() {
            pdu[3] = length as u8;
            pdu[1] |= u8::from(self.data_digest) << 1;
            length += data.len() + if self.data_digest { 4 } else { 0 };
        }
        pdu[4..8].copy_from_slice(&(length as u32).to_le_bytes());
        if self.header_digest {
            let digest = crc32c::crc32c(&pdu);
            pdu.extend_from_slice(&digest.to_le_bytes());
        }
        pdu.extend_from_slice(data);
        if self.data_digest && !data.is_empty() {
            let digest = crc32c::crc32c(data) ^ u32::from(std::mem::take(&mut self.damages_data));
            pdu.extend_from_slice(&digest.to_le_bytes());
        }
        pdu
    }

    /// The next PDU.
    pub fn receive(&mut self) -> Pdu {
        let mut common = [0; 8];
        self.stream.read_exact(&mut common).unwrap();
        let length = u32::from_le_bytes(common[4..].try_into().unwrap()) as usize;
        let mut pdu = common.to_vec();
        pdu.resize(length, 0);
        self.stream.read_exact(&mut pdu[8..]).unwrap();
        let header = usize::from(common[2]);
        if self.header_digest && common[0] != 3 {
            assert_eq!(common[1] & 1, 1);
            assert_eq!(pdu[header..header + 4], crc32c::crc32c(&pdu[..header]).to_le_bytes());
        }
        let mut data = if common[0] == 3 { pdu[header..].to_vec() } else { Vec::new() };
        if common[3] > 0 {
            data = pdu[usize::from(common[3])..].to_vec();
            if self.data_digest {
                assert_eq!(common[1] & 2, 2);
                let digest = data.split_off(data.len() - 4);
                assert_eq!(digest, crc32c::crc32c(&data).to_le_bytes());
            }
        }
        pdu.truncate(header);
        Pdu { kind: common[0], head: pdu, data }
    }

    /// Sends a command, with its data in the capsule or kept until requested; returns its identifier.
    pub fn submit(&mut self, entry: [u8; 64], in_capsule: &[u8]) -> u16 {
        let pdu = self.capsule(entry, in_capsule);
        self.stream.write_all(&pdu).unwrap();
        self.next_id
    }

    /// The same, not sent yet.
    pub fn capsule(&mut self, mut entry: [u8; 64], in_capsule: &[u8]) -> Vec<u8> {
        self.next_id += 1;
        entry[2..4].copy_from_slice(&self.next_id.to_le_bytes());
        if !in_capsule.is_empty() {
            entry[32..36].copy_from_slice(&(in_capsule.len() as u32).to_le_bytes());
            entry[39] = 0x01;
        }
        self.pdu(4, 0, &entry, in_capsule)
    }

    /// Sends a part of the data that an R2T requested.
    pub fn send_data(&mut self, asked: &Pdu, offset: u32, part: &[u8], last: bool) {
        let mut head = asked.head[8..12].to_vec();
        head.extend_from_slice(&offset.to_le_bytes());
        head.extend_from_slice(&(part.len() as u32).to_le_bytes());
        head.extend_from_slice(&[0; 4]);
        let pdu = self.pdu(6, u8::from(last) << 2, &head, part);
        self.stream.write_all(&pdu).unwrap();
    }

    /// Waits for the next answer; `data` is for any command that requests data.
    pub fn answer(&mut self, data: &[u8]) -> Answer {
        let mut received = Vec::new();
        loop {
            let pdu = self.receive();
            match pdu.kind {
                5 => {
                    let (id, status) = (pdu.u16(20), pdu.u16(22) >> 1 & 0x7ff);
                    let result = u64::from_le_bytes(pdu.head[8..16].try_into().unwrap());
                    return Answer { id, result, status, data: received };
                }
                7 => {
                    assert_eq!(pdu.u32(12) as usize, received.len());
                    received.extend_from_slice(&pdu.data);
                }
                9 => {
                    let (offset, length) = (pdu.u32(12) as usize, pdu.u32(16) as usize);
                    let asked = &data[offset..offset + length];
                    let parts = asked.len().div_ceil(128 << 10);
                    for (number, part) in asked.chunks(128 << 10).enumerate() {
                        self.send_data(&pdu, (offset + number * (128 << 10)) as u32, part, number + 1 == parts);
                    }
                }
                kind => panic!("PDU {kind}: {pdu:?}"),
            }
        }
    }

    /// A command without data, or with data for the host.
    pub fn run(&mut self, entry: [u8; 64]) -> Answer {
        let id = self.submit(with_host_data(entry, 1 << 20), &[]);
        let answer = self.answer(&[]);
        assert_eq!(answer.id, id);
        answer
    }

    /// A command with data from the host, which is requested.
    pub fn run_with(&mut self, entry: [u8; 64], data: &[u8]) -> Answer {
        self.submit(with_host_data(entry, data.len()), &[]);
        self.answer(data)
    }

    /// A command with data in its capsule.
    pub fn run_with_capsule(&mut self, entry: [u8; 64], data: &[u8]) -> Answer {
        self.submit(entry, data);
        self.answer(&[])
    }

    /// Connect.
    pub fn connect(&mut self, queue: u16, controller: u16, subsystem: &str, keep_alive_ms: u32) -> Answer {
        let mut data = vec![0; 1024];
        data[..16].fill(7);
        data[16..18].copy_from_slice(&controller.to_le_bytes());
        data[256..256 + subsystem.len()].copy_from_slice(subsystem.as_bytes());
        data[512..512 + self.nqn.len()].copy_from_slice(self.nqn.as_bytes());
        let queue_and_size = (10, u32::from(queue) << 16);
        let entry = entry(0x7f, 1, &[queue_and_size, (11, 31), (12, keep_alive_ms)]);
        self.run_with_capsule(entry, &data)
    }

    /// Property Get.
    pub fn property(&mut self, offset: u32, is_wide: bool) -> u64 {
        let answer = self.run(entry(0x7f, 4, &[(10, u32::from(is_wide)), (11, offset)]));
        assert_eq!(answer.status, 0);
        answer.result
    }

    /// Property Set of CC.
    pub fn configure(&mut self, cc: u32) -> Answer {
        self.run(entry(0x7f, 0, &[(11, 0x14), (12, cc)]))
    }

    /// Identify.
    pub fn identify(&mut self, structure: u32, namespace: u32) -> Answer {
        self.run(entry(0x06, namespace, &[(10, structure)]))
    }

    /// Get Log Page.
    pub fn log(&mut self, page: u32, bytes: u32) -> Answer {
        self.run(entry(0x02, u32::MAX, &[(10, page | (bytes / 4 - 1) << 16)]))
    }

    /// Get Log Page of an endurance group.
    pub fn log_of(&mut self, page: u32, group: u32, bytes: u32) -> Answer {
        self.run(entry(0x02, 0, &[(10, page | (bytes / 4 - 1) << 16), (11, group << 16)]))
    }
}
