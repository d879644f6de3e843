//! Packets of git's protocol: a length of four hexadecimal digits, which counts itself, and as many bytes.

/// Of a packet with its length.
pub(super) const MAX_PACKET_BYTES: usize = 65_520;
const LENGTH_BYTES: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packet<'a> {
    Line(&'a [u8]),
    /// The end of a list.
    Flush,
}

/// Bytes that are no packet that a push has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InvalidPacket;

/// The first packet, and how many bytes it has; none if more bytes are needed.
pub(super) fn first_packet(bytes: &[u8]) -> Result<Option<(Packet<'_>, usize)>, InvalidPacket> {
    let mut length = 0;
    for digit in bytes.iter().take(LENGTH_BYTES) {
        let digit = char::from(*digit).to_digit(16).ok_or(InvalidPacket)?;
        length = length * 16 + digit as usize;
    }
    if bytes.len() < LENGTH_BYTES {
        return Ok(None);
    }
    if length == 0 {
        return Ok(Some((Packet::Flush, LENGTH_BYTES)));
    }
    // Lengths up to three are for other versions of the protocol, and a packet without a byte is none of a push.
    if length <= LENGTH_BYTES || length > MAX_PACKET_BYTES {
        return Err(InvalidPacket);
    }
    let line = bytes.get(LENGTH_BYTES..length);
    Ok(line.map(|line| (Packet::Line(line), length)))
}

/// Appends a packet. `content` has at most `MAX_PACKET_BYTES` with the length.
pub(super) fn push_packet(bytes: &mut Vec<u8>, content: &[u8]) {
    let length = content.len() + LENGTH_BYTES;
    bytes.extend(format!("{length:04x}").as_bytes());
    bytes.extend(content);
}

pub(super) fn push_flush(bytes: &mut Vec<u8>) {
    bytes.extend(b"0000");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_packet_is_its_length_and_its_bytes() {
        let line = |text: &'static str, length| Ok(Some((Packet::Line(text.as_bytes()), length)));
        assert_eq!(first_packet(b"0006a\nrest"), line("a\n", 6));
        assert_eq!(first_packet(b"0005a0000"), line("a", 5));
        assert_eq!(first_packet(b"000Aabcdef"), line("abcdef", 10));
        assert_eq!(first_packet(b"0000PACK"), Ok(Some((Packet::Flush, 4))));
        for incomplete in ["", "0", "000", "0006", "0006a", "fff0"] {
            assert_eq!(first_packet(incomplete.as_bytes()), Ok(None));
        }
        for invalid in [
            "0001", "0002", "0003", "0004", "fff1", "ffff", "+005a", "-005", " 005", "0x05", "g",
            "00\0",
        ] {
            assert_eq!(first_packet(invalid.as_bytes()), Err(InvalidPacket));
        }
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(content in prop::collection::vec(any::<u8>(), 1..2000), rest in any::<Vec<u8>>()) {
            let mut bytes = Vec::new();
            push_packet(&mut bytes, &content);
            let whole = bytes.len();
            bytes.extend(rest);
            prop_assert_eq!(first_packet(&bytes), Ok(Some((Packet::Line(&content), whole))));
            prop_assert_eq!(first_packet(&bytes[..whole - 1]), Ok(None));
        }

        #[test]
        fn no_input_is_read_beyond_its_end(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            if let Ok(Some((_, used))) = first_packet(&bytes) {
                prop_assert!(used <= bytes.len() && used >= LENGTH_BYTES);
            }
        }
    }
}
