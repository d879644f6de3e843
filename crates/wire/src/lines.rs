//! Splits bytes into lines as they arrive, within a limit on the length of a line.

/// The limit on the length of a line, unless a reader sets another one.
pub const MAX_LINE_BYTES: usize = 16 << 20;

/// A line, or a piece of one, was dropped because the line is longer than the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineTooLong;

/// Collects bytes and returns them line by line.
#[derive(Debug)]
pub struct LineReader {
    bytes: Vec<u8>,
    /// How far `bytes` has been searched for the end of a line.
    searched: usize,
    /// The offset of the first of `bytes` in the stream.
    offset: u64,
    max_line_bytes: usize,
    inside_long_line: bool,
}

impl Default for LineReader {
    fn default() -> Self {
        Self::new(MAX_LINE_BYTES)
    }
}

impl LineReader {
    pub fn new(max_line_bytes: usize) -> Self {
        Self {
            bytes: Vec::new(),
            searched: 0,
            offset: 0,
            max_line_bytes,
            inside_long_line: false,
        }
    }

    /// Reads a stream from an offset on, which may be inside a line that is too long.
    pub fn resume(offset: u64, inside_long_line: bool) -> Self {
        Self {
            offset,
            inside_long_line,
            ..Self::default()
        }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole line without its end. A line that is too long is reported once, at its end.
    pub fn next_line(&mut self) -> Option<Result<Vec<u8>, LineTooLong>> {
        loop {
            let (line, _) = self.next_piece()?;
            if line.is_ok() || !self.inside_long_line {
                return Some(line);
            }
        }
    }

    /// The next whole line, or the next piece of a line that is too long, with the offset after it.
    pub fn next_piece(&mut self) -> Option<(Result<Vec<u8>, LineTooLong>, u64)> {
        let newline = self.bytes[self.searched..]
            .iter()
            .position(|byte| *byte == b'\n');
        let Some(end) = newline.map(|at| self.searched + at) else {
            self.searched = self.bytes.len();
            self.inside_long_line |= self.bytes.len() > self.max_line_bytes;
            if !self.inside_long_line || self.bytes.is_empty() {
                return None;
            }
            // Dropped before the end of the line arrives, which may be never.
            self.offset += self.bytes.len() as u64;
            self.bytes = Vec::new();
            self.searched = 0;
            return Some((Err(LineTooLong), self.offset));
        };
        let mut line: Vec<u8> = self.bytes.drain(..=end).collect();
        self.searched = 0;
        self.offset += line.len() as u64;
        line.pop();
        let too_long =
            std::mem::take(&mut self.inside_long_line) || line.len() > self.max_line_bytes;
        let line = if too_long { Err(LineTooLong) } else { Ok(line) };
        Some((line, self.offset))
    }

    /// Whether the bytes that come next belong to a line that is too long.
    pub fn is_inside_long_line(&self) -> bool {
        self.inside_long_line
    }

    /// How many bytes wait for the end of their line.
    pub fn buffered_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes after the last line, for a stream that changes from lines to raw bytes.
    pub fn into_rest(self) -> Vec<u8> {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_line_that_is_too_long_is_skipped_and_the_next_one_is_read() {
        let mut lines = LineReader::new(4);
        lines.push(b"abcdefgh");
        assert_eq!(lines.next_line(), None);
        lines.push(b"abc");
        assert_eq!(lines.next_line(), None);
        assert_eq!(lines.buffered_bytes(), 0, "skipped bytes are not kept");
        lines.push(b"ij\nok\nabcde\n");
        assert_eq!(lines.next_line(), Some(Err(LineTooLong)));
        assert_eq!(lines.next_line(), Some(Ok(b"ok".to_vec())));
        assert_eq!(lines.next_line(), Some(Err(LineTooLong)));
        assert_eq!(lines.next_line(), None);
        assert!(lines.into_rest().is_empty());
    }

    #[test]
    fn a_line_that_is_too_long_is_reported_in_pieces_with_offsets() {
        let mut lines = LineReader::new(4);
        lines.push(b"abcdefgh");
        assert_eq!(lines.next_piece(), Some((Err(LineTooLong), 8)));
        assert_eq!(lines.next_piece(), None);
        lines.push(b"ij");
        assert_eq!(lines.next_piece(), Some((Err(LineTooLong), 10)));
        assert!(lines.is_inside_long_line());
        lines.push(b"k\nok\n");
        assert_eq!(lines.next_piece(), Some((Err(LineTooLong), 12)));
        assert_eq!(lines.next_piece(), Some((Ok(b"ok".to_vec()), 15)));
        assert_eq!(lines.next_piece(), None);
    }

    #[test]
    fn a_resumed_reader_drops_the_rest_of_a_long_line() {
        let mut lines = LineReader::resume(10, true);
        assert_eq!(lines.next_piece(), None);
        lines.push(b"k\nok\n");
        assert_eq!(lines.next_piece(), Some((Err(LineTooLong), 12)));
        assert_eq!(lines.next_piece(), Some((Ok(b"ok".to_vec()), 15)));
    }

    proptest! {
        #[test]
        fn lines_and_offsets_do_not_depend_on_how_bytes_arrive(
            lines in proptest::collection::vec("[^\n]{0,20}", 0..20),
            cuts in proptest::collection::vec(1usize..7, 1..50),
        ) {
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            let mut reader = LineReader::default();
            let (mut rest, mut end) = (text.as_bytes(), 0);
            let mut found = Vec::new();
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (now, later) = rest.split_at((*cut).min(rest.len()));
                reader.push(now);
                rest = later;
                while let Some((line, offset)) = reader.next_piece() {
                    let line = line.unwrap();
                    end += line.len() as u64 + 1;
                    prop_assert_eq!(offset, end);
                    found.push(String::from_utf8(line).unwrap());
                }
            }
            prop_assert_eq!(found, lines);
        }

        #[test]
        fn next_line_and_next_piece_agree_on_which_lines_are_too_long(
            lines in proptest::collection::vec("[^\n]{0,20}", 0..20),
            cuts in proptest::collection::vec(1usize..7, 1..50),
        ) {
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            let mut reader = LineReader::new(8);
            let mut rest = text.as_bytes();
            let mut found = Vec::new();
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (now, later) = rest.split_at((*cut).min(rest.len()));
                reader.push(now);
                rest = later;
                while let Some(line) = reader.next_line() {
                    found.push(line);
                }
            }
            let expected = lines.iter().map(|line| match line.len() {
                0..=8 => Ok(line.clone().into_bytes()),
                _ => Err(LineTooLong),
            });
            prop_assert_eq!(found, expected.collect::<Vec<_>>());
        }
    }
}
