//! One HTTP/1.1 keep-alive connection, written by hand so that the client costs almost nothing.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    /// Its first `filled` bytes have been read.
    buffer: Vec<u8>,
    filled: usize,
    body: Vec<u8>,
}

/// A reply, with its body in one piece.
#[derive(Debug)]
pub struct Reply<'a> {
    pub status: u16,
    head: &'a str,
    pub body: &'a [u8],
}

impl Connection {
    pub fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(REPLY_TIMEOUT)).unwrap();
        Self {
            stream,
            buffer: vec![0; 64 << 10],
            filled: 0,
            body: Vec::new(),
        }
    }

    /// Sends a whole request and reads the whole reply.
    pub fn send(&mut self, request: &[u8]) -> Reply<'_> {
        self.stream.write_all(request).unwrap();
        self.filled = 0;
        self.body.clear();
        let head = self.read_past(0, b"\r\n\r\n");
        let text = std::str::from_utf8(&self.buffer[..head]).unwrap();
        let length = header(text, "content-length").map(|length| length.parse().unwrap());
        let is_chunked = header(text, "transfer-encoding").is_some();
        if is_chunked {
            self.read_chunks(head);
        } else {
            let end = head + length.unwrap_or(0);
            self.fill(end);
            self.body.extend_from_slice(&self.buffer[head..end]);
        }
        let head = std::str::from_utf8(&self.buffer[..head]).unwrap();
        Reply {
            status: head[9..12].parse().unwrap(),
            head,
            body: &self.body,
        }
    }

    fn read_chunks(&mut self, mut at: usize) {
        loop {
            let start = self.read_past(at, b"\r\n");
            let size = std::str::from_utf8(&self.buffer[at..start - 2]).unwrap();
            let size = usize::from_str_radix(size, 16).unwrap();
            let end = start + size;
            self.fill(end + 2);
            if size == 0 {
                return;
            }
            self.body.extend_from_slice(&self.buffer[start..end]);
            at = end + 2;
        }
    }

    /// Reads until `mark` occurs after `at`. Returns the position after it.
    fn read_past(&mut self, at: usize, mark: &[u8]) -> usize {
        let mut searched = at;
        loop {
            let unsearched = &self.buffer[searched..self.filled.max(searched)];
            if let Some(found) = position(unsearched, mark) {
                return searched + found + mark.len();
            }
            searched = self.filled.saturating_sub(mark.len() - 1).max(at);
            self.fill(self.filled + 1);
        }
    }

    /// Reads until the buffer has `wanted` bytes.
    fn fill(&mut self, wanted: usize) {
        if self.buffer.len() < wanted + 1024 {
            self.buffer.resize(wanted * 2, 0);
        }
        while self.filled < wanted {
            let read = self.stream.read(&mut self.buffer[self.filled..]).unwrap();
            assert!(
                read > 0,
                "the server closed the connection in the middle of a reply"
            );
            self.filled += read;
        }
    }
}

impl<'a> Reply<'a> {
    pub fn header(&self, name: &str) -> Option<&'a str> {
        header(self.head, name)
    }

    /// The JSON in the body: all of it, or the last message of an event stream.
    pub fn message(&self) -> &'a [u8] {
        let kind = self.header("content-type").unwrap_or_default();
        if !kind.starts_with("text/event-stream") {
            return self.body;
        }
        let lines = self.body.split(|byte| *byte == b'\n');
        let messages = lines.filter_map(|line| line.strip_prefix(b"data:"));
        let last = messages.map(<[u8]>::trim_ascii).rfind(|m| !m.is_empty());
        last.unwrap_or_default()
    }
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let fields = head.lines().filter_map(|line| line.split_once(':'));
    let mut values = fields.filter(|(field, _)| field.eq_ignore_ascii_case(name));
    values.next().map(|(_, value)| value.trim())
}

/// The position of `part` in `whole`.
pub(crate) fn position(whole: &[u8], part: &[u8]) -> Option<usize> {
    whole.windows(part.len()).position(|window| window == part)
}
