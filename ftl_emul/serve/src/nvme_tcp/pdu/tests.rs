//! Headers as hosts send them, also those that should not be.

use super::*;
use proptest::prelude::*;

/// A PDU of a host, put together independently of the code above.
fn from_host(kind: u8, head: &[u8], data: &[u8], digests: Digests, pad: usize) -> Vec<u8> {
    let mut pdu = vec![kind, 0, (8 + head.len()) as u8, 0, 0, 0, 0, 0];
    let seal = if digests.header { 4 } else { 0 };
    let at = 8 + head.len() + seal + pad;
    let mut length = 8 + head.len() + seal;
    if !data.is_empty() {
        length = at + data.len() + if digests.data { 4 } else { 0 };
        pdu[3] = at as u8;
        pdu[1] |= u8::from(digests.data) << 1;
    }
    pdu[1] |= u8::from(digests.header);
    pdu[4..8].copy_from_slice(&(length as u32).to_le_bytes());
    pdu.extend_from_slice(head);
    if digests.header {
        pdu.extend_from_slice(&crc32c::crc32c(&pdu.clone()).to_le_bytes());
    }
    if !data.is_empty() {
        pdu.resize(at, 0xee);
        pdu.extend_from_slice(data);
        if digests.data {
            pdu.extend_from_slice(&crc32c::crc32c(data).to_le_bytes());
        }
    }
    pdu
}

fn read(pdu: &[u8], digests: Digests) -> Result<(FromHost, Vec<u8>), Fault> {
    let layout = Layout::of(pdu[..8].try_into().unwrap(), digests)?;
    let data_at = 8 + layout.before_data();
    let parsed = layout.parse(&pdu[..data_at])?;
    let sealed = if layout.data_digest { 4 } else { 0 };
    assert_eq!(pdu.len(), data_at + layout.data + sealed, "the whole PDU is accounted for");
    Ok((parsed, pdu[data_at..data_at + layout.data].to_vec()))
}

fn digests() -> impl Strategy<Value = Digests> {
    (any::<bool>(), any::<bool>()).prop_map(|(header, data)| Digests { header, data })
}

proptest! {
    #[test]
    fn commands_and_data_arrive_as_they_were_sent(
        command in prop::collection::vec(any::<u8>(), 64),
        data in prop::collection::vec(any::<u8>(), 0..600),
        digests in digests(),
        pad in (0usize..8).prop_map(|n| n * 4),
    ) {
        let (parsed, carried) = read(&from_host(4, &command, &data, digests, pad), digests).unwrap();
        prop_assert_eq!(parsed, FromHost::Command(command.try_into().unwrap()));
        prop_assert_eq!(carried, data);
    }

    #[test]
    fn any_bytes_are_parsed_or_refused_within_bounds(
        common in any::<[u8; 8]>(),
        rest in prop::collection::vec(any::<u8>(), 512),
        digests in digests(),
        known in 0u8..10,
        short in any::<bool>(),
    ) {
        let mut common = common;
        if short {
            // Near to something sensible.
            common = [known, common[1] & 7, [24, 72, 128][usize::from(common[2] % 3)], common[3], common[4], common[5] % 4, 0, 0];
        }
        if let Ok(layout) = Layout::of(common, digests) {
            prop_assert!(layout.before_data() <= 256);
            prop_assert!(layout.data <= MAX_HOST_DATA as usize);
            let bytes = [&common[..], &rest[..layout.before_data()]].concat();
            let _fault_or_not = layout.parse(&bytes);
        }
    }

    #[test]
    fn bit_flip_in_a_header_with_digest_is_detected(
        command in prop::collection::vec(any::<u8>(), 64), at in 8usize..76, bit in 0u8..8,
    ) {
        let digests = Digests { header: true, data: false };
        let mut pdu = from_host(4, &command, &[], digests, 0);
        pdu[at] ^= 1 << bit;
        prop_assert!(matches!(read(&pdu, digests), Err(Fault::HeaderDigest(_))));
    }
}

#[test]
fn data_to_the_host_has_the_agreed_alignment_and_digest() {
    for (header, data, alignment, data_at) in
        [(false, false, 4, 24), (true, false, 4, 28), (true, true, 16, 32), (false, true, 128, 128)]
    {
        let format = Format { digests: Digests { header, data }, alignment };
        let (mut buffer, digest) = format.around_data(b"123456789", 0x1234);
        assert_eq!(buffer.len(), format.before_data());
        buffer.extend_from_slice(b"123456789");
        buffer.extend(digest.into_iter().flatten());
        assert_eq!(usize::from(buffer[3]), data_at);
        assert_eq!(buffer[0], 7);
        assert_eq!(buffer[1], 4 | u8::from(header) | u8::from(data) << 1);
        assert_eq!(le32(&buffer, 4) as usize, buffer.len());
        assert_eq!((le16(&buffer, 8), le32(&buffer, 12), le32(&buffer, 16)), (0x1234, 0, 9));
        assert_eq!(&buffer[data_at..data_at + 9], b"123456789");
        if header {
            assert_eq!(le32(&buffer, 24), crc32c::crc32c(&buffer[..24]));
        }
        // The check value of CRC-32C.
        let check = 0xe306_9283_u32.to_le_bytes();
        assert_eq!(&buffer[data_at + 9..], if data { &check[..] } else { &[] });
    }
}

#[test]
fn error_names_the_offending_field() {
    let none = Digests::default();
    let command = from_host(4, &[0; 64], &[], none, 0);
    let with = |at: usize, value: u8| {
        let mut pdu = command.clone();
        pdu[at] = value;
        read(&pdu, none).unwrap_err()
    };
    assert_eq!(with(0, 0x05), Fault::HeaderField(0), "a controller's PDU");
    assert_eq!(with(1, 1), Fault::HeaderField(1), "a digest nobody agreed upon");
    assert_eq!(with(2, 71), Fault::HeaderField(2));
    assert_eq!(with(4, 71), Fault::HeaderField(4));
    assert_eq!(with(7, 0xff), Fault::HeaderField(4), "gigabytes");
    let mut unaligned = from_host(4, &[0; 64], &[1; 64], none, 4);
    unaligned[3] = 74;
    assert_eq!(read(&unaligned, none).unwrap_err(), Fault::HeaderField(3));
    let mut data = from_host(6, &[0; 16], &[1; 64], none, 0);
    assert_eq!(read(&data, none).unwrap_err(), Fault::HeaderField(16), "DATAL 0 with data");
    data[6] = 3;
    assert_eq!(read(&data, none).unwrap_err(), Fault::TooMuchData);
    let mut version = from_host(0, &[0; 120], &[], none, 0);
    version[8] = 1;
    assert_eq!(read(&version, none).unwrap_err(), Fault::Unsupported(8));
}

#[test]
fn a_termination_names_the_fault_and_quotes_the_header() {
    let pdu = terminate(Fault::HeaderField(2), &[9; 200]);
    assert_eq!((pdu.len(), pdu[0], le32(&pdu, 4)), (152, 3, 152));
    assert_eq!((le16(&pdu, 8), le32(&pdu, 10)), (1, 2));
    assert!(pdu[24..].iter().all(|&b| b == 9));
}
