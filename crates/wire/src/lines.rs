//! Lines out of bytes as they come, within a bound.

/// The longest line that is taken.
pub const LONGEST_LINE: usize = 16 << 20;

/// A line was longer than allowed; it was skipped to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineTooLong;

/// Collects bytes and gives them back line by line.
#[derive(Debug)]
pub struct Lines {
    bytes: Vec<u8>,
    /// How far `bytes` has been searched for an end of line.
    searched: usize,
    longest: usize,
    skipping: bool,
}

impl Default for Lines {
    fn default() -> Self {
        Self::new(LONGEST_LINE)
    }
}

impl Lines {
    pub fn new(longest: usize) -> Self {
        Self {
            bytes: Vec::new(),
            searched: 0,
            longest,
            skipping: false,
        }
    }

    /// How many bytes wait for the end of their line.
    pub fn waiting(&self) -> usize {
        self.bytes.len()
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole line without its end, if there is one.
    pub fn next_line(&mut self) -> Option<Result<Vec<u8>, LineTooLong>> {
        let found = self.bytes[self.searched..]
            .iter()
            .position(|byte| *byte == b'\n');
        let Some(end) = found.map(|at| self.searched + at) else {
            self.searched = self.bytes.len();
            if self.skipping || self.bytes.len() > self.longest {
                // Let go of it now: the rest may never come.
                self.bytes = Vec::new();
                self.searched = 0;
                self.skipping = true;
            }
            return None;
        };
        let mut line: Vec<u8> = self.bytes.drain(..=end).collect();
        self.searched = 0;
        line.pop();
        let too_long = std::mem::take(&mut self.skipping) || line.len() > self.longest;
        Some(if too_long { Err(LineTooLong) } else { Ok(line) })
    }

    /// How many bytes wait for the end of their line.
    pub fn pending(&self) -> usize {
        self.bytes.len()
    }

    /// What came after the last line, when the stream turns from lines to bytes.
    pub fn into_rest(self) -> Vec<u8> {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_line_that_is_too_long_is_skipped_and_the_next_one_is_taken() {
        let mut lines = Lines::new(4);
        lines.push(b"abcdefgh");
        assert_eq!(lines.next_line(), None);
        lines.push(b"abc");
        assert_eq!(lines.next_line(), None);
        assert_eq!(lines.waiting(), 0, "what is skipped is not kept");
        lines.push(b"ij\nok\nabcde\n");
        assert_eq!(lines.next_line(), Some(Err(LineTooLong)));
        assert_eq!(lines.next_line(), Some(Ok(b"ok".to_vec())));
        assert_eq!(lines.next_line(), Some(Err(LineTooLong)));
        assert_eq!(lines.next_line(), None);
        assert!(lines.into_rest().is_empty());
    }

    proptest! {
        #[test]
        fn however_bytes_arrive_the_lines_are_the_same(
            lines in proptest::collection::vec("[^\n]{0,20}", 0..20),
            cuts in proptest::collection::vec(1usize..7, 1..50),
        ) {
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            let mut parser = Lines::default();
            let (mut rest, mut found) = (text.as_bytes(), Vec::new());
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (now, later) = rest.split_at((*cut).min(rest.len()));
                parser.push(now);
                rest = later;
                while let Some(line) = parser.next_line() {
                    found.push(String::from_utf8(line.unwrap()).unwrap());
                }
            }
            prop_assert_eq!(found, lines);
        }
    }
}
