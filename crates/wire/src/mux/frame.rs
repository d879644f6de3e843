//! A frame: a header of nine bytes, and a payload.

use std::io;

pub(super) const MAX_PAYLOAD_BYTES: usize = 32 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameKind {
    Open = 1,
    Data = 2,
    /// The receiver may send this many more bytes.
    Credit = 3,
    /// The sender writes no more bytes.
    End = 4,
    /// The sender neither writes nor reads any more bytes.
    Close = 5,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    pub(super) stream_id: u32,
    /// None for a kind of a newer version.
    pub(super) kind: Option<FrameKind>,
    pub(super) length: usize,
}

impl Header {
    pub(super) const BYTES: usize = 9;

    pub(super) fn parse(bytes: [u8; Self::BYTES]) -> io::Result<Self> {
        let [a, b, c, d, kind, e, f, g, h] = bytes;
        let length = u32::from_be_bytes([e, f, g, h]) as usize;
        if length > MAX_PAYLOAD_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a frame is too long",
            ));
        }
        Ok(Self {
            stream_id: u32::from_be_bytes([a, b, c, d]),
            kind: match kind {
                1 => Some(FrameKind::Open),
                2 => Some(FrameKind::Data),
                3 => Some(FrameKind::Credit),
                4 => Some(FrameKind::End),
                5 => Some(FrameKind::Close),
                _ => None,
            },
            length,
        })
    }
}

#[derive(Debug)]
pub(super) struct Frame<'a> {
    stream_id: u32,
    kind: FrameKind,
    payload: &'a [u8],
}

impl<'a> Frame<'a> {
    pub(super) fn new(stream_id: u32, kind: FrameKind) -> Self {
        Self {
            stream_id,
            kind,
            payload: &[],
        }
    }

    pub(super) fn with_payload(self, payload: &'a [u8]) -> Self {
        Self { payload, ..self }
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.stream_id.to_be_bytes());
        out.push(self.kind as u8);
        out.extend((self.payload.len() as u32).to_be_bytes());
        out.extend(self.payload);
    }
}
