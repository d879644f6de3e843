//! What goes over the stream: a header of nine bytes, and a payload.

use std::io;

/// Most bytes of a payload.
pub(super) const LONGEST: usize = 32 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Open = 1,
    Data = 2,
    /// The other side may send so many bytes more.
    Credit = 3,
    /// No more bytes will come.
    End = 4,
    /// And none are taken.
    Close = 5,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    pub(super) connection: u32,
    /// None if it is not known here.
    pub(super) kind: Option<Kind>,
    pub(super) length: usize,
}

impl Header {
    pub(super) const LENGTH: usize = 9;

    pub(super) fn read(bytes: [u8; Self::LENGTH]) -> io::Result<Self> {
        let [a, b, c, d, kind, e, f, g, h] = bytes;
        let length = u32::from_be_bytes([e, f, g, h]) as usize;
        if length > LONGEST {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a frame that is too long",
            ));
        }
        Ok(Self {
            connection: u32::from_be_bytes([a, b, c, d]),
            kind: match kind {
                1 => Some(Kind::Open),
                2 => Some(Kind::Data),
                3 => Some(Kind::Credit),
                4 => Some(Kind::End),
                5 => Some(Kind::Close),
                _ => None,
            },
            length,
        })
    }
}

#[derive(Debug)]
pub(super) struct Frame<'a> {
    connection: u32,
    kind: Kind,
    payload: &'a [u8],
}

impl<'a> Frame<'a> {
    pub(super) fn new(connection: u32, kind: Kind) -> Self {
        Self {
            connection,
            kind,
            payload: &[],
        }
    }

    pub(super) fn with(self, payload: &'a [u8]) -> Self {
        Self { payload, ..self }
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.connection.to_be_bytes());
        out.push(self.kind as u8);
        out.extend((self.payload.len() as u32).to_be_bytes());
        out.extend(self.payload);
    }
}
