//! The streams of a live agent: lines out of its output with their places, bytes into its input, and
//! the last of what it complained about.

use std::collections::VecDeque;
use std::time::Duration;

use oubliette_wire::{ExitStatus, Exited, StreamKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use crate::containers::attachment::Attachment;

/// The longest line of an agent that is taken.
const LONGEST: usize = 16 << 20;
const CHUNK: usize = 16 << 10;
/// What is kept of an agent's complaints.
const LAST_WORDS: usize = 4 << 10;
/// An agent that closes its output ends within this time.
const ENDING: Duration = Duration::from_secs(3);

/// Something in an agent's output, and the place after it.
#[derive(Debug, PartialEq)]
pub(super) enum Frame {
    Line(Vec<u8>, u64),
    /// A line longer than any we take, or a part of one.
    TooLong(u64),
}

/// Lines out of bytes as they come, with their places.
#[derive(Debug, Default)]
pub(super) struct Frames {
    bytes: Vec<u8>,
    /// How far `bytes` has been searched for an end of line.
    searched: usize,
    /// The place of the first of `bytes`.
    at: u64,
    /// Whether `bytes` is in the middle of a line that is too long.
    pub(super) skipping: bool,
    longest: usize,
}

impl Frames {
    pub(super) fn new(at: u64, skipping: bool) -> Self {
        Self {
            at,
            skipping,
            longest: LONGEST,
            ..Self::default()
        }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(super) fn next(&mut self) -> Option<Frame> {
        let found = self.bytes[self.searched..]
            .iter()
            .position(|byte| *byte == b'\n');
        let Some(end) = found.map(|at| self.searched + at) else {
            self.searched = self.bytes.len();
            let rest_of_long = self.skipping && !self.bytes.is_empty();
            if self.bytes.len() <= self.longest && !rest_of_long {
                return None;
            }
            // Let go of it now: the supervisor keeps it until we do.
            self.at += self.bytes.len() as u64;
            self.bytes = Vec::new();
            self.searched = 0;
            self.skipping = true;
            return Some(Frame::TooLong(self.at));
        };
        let mut line: Vec<u8> = self.bytes.drain(..=end).collect();
        self.searched = 0;
        self.at += line.len() as u64;
        line.pop();
        let too_long = std::mem::take(&mut self.skipping) || line.len() > self.longest;
        Some(match too_long {
            true => Frame::TooLong(self.at),
            false => Frame::Line(line, self.at),
        })
    }
}

/// What happened on a connection.
#[derive(Debug, PartialEq)]
pub(super) enum News {
    /// There may be frames.
    Output,
    /// Nothing anybody needs to act on.
    Quiet,
    /// The agent has ended and all it wrote is here.
    Ended,
    /// The agent has closed its output and goes on: nobody will hear of it again.
    Mute,
    /// The connection is gone; another may do better.
    Lost,
}

/// A live agent, as long as the connection to its container lasts.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) attachment: Attachment,
    pub(super) frames: Frames,
    unsent: VecDeque<u8>,
    exited: Option<Exited>,
    words: VecDeque<u8>,
    heard: u64,
    complained: u64,
    /// Since when nothing more comes.
    output_over: Option<Instant>,
    errors_over: bool,
    buffer: Vec<u8>,
}

impl Connection {
    /// `frames` begin where the output of `attachment` does.
    pub(super) fn new(mut attachment: Attachment, mut frames: Frames) -> Self {
        let (heard, complained) = (attachment.stdout.from, attachment.stderr.from);
        let first = std::mem::take(&mut attachment.stdout.rest);
        let complaints = std::mem::take(&mut attachment.stderr.rest);
        frames.push(&first);
        let mut connection = Self {
            attachment,
            frames,
            unsent: VecDeque::new(),
            exited: None,
            words: VecDeque::new(),
            heard: heard + first.len() as u64,
            complained,
            output_over: None,
            errors_over: false,
            buffer: vec![0; CHUNK],
        };
        connection.complain(&complaints);
        connection
    }

    pub(super) fn send(&mut self, bytes: &[u8]) {
        self.unsent.extend(bytes);
    }

    /// What the agent last complained about.
    pub(super) fn last_words(&self) -> String {
        let bytes: Vec<u8> = self.words.iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        let shown = |c: char| c == '\n' || !c.is_control();
        text.chars().filter(|c| shown(*c)).collect::<String>()
    }

    pub(super) fn ended(&self) -> Option<ExitStatus> {
        self.exited.as_ref().map(|exited| exited.ended)
    }

    fn complain(&mut self, bytes: &[u8]) {
        self.complained += bytes.len() as u64;
        self.words.extend(bytes);
        let surplus = self.words.len().saturating_sub(LAST_WORDS);
        self.words.drain(..surplus);
    }

    /// Whether all that the agent wrote before its end is here, its complaints too.
    fn is_over(&self) -> bool {
        let Some(exited) = &self.exited else {
            return false;
        };
        let output = self.output_over.is_some() || self.heard >= exited.stdout_end;
        output && (self.errors_over || self.complained >= exited.stderr_end)
    }

    /// Waits for the next thing to happen. Safe to be dropped at any time.
    pub(super) async fn news(&mut self) -> News {
        if self.is_over() {
            return News::Ended;
        }
        let Self {
            attachment,
            unsent,
            exited,
            output_over,
            errors_over,
            buffer,
            ..
        } = self;
        let link = attachment.link.clone();
        let process = attachment.process_id().to_owned();
        let mut complaints = [0; 1024];
        let mute = output_over.unwrap_or_else(Instant::now) + ENDING;
        tokio::select! {
            read = attachment.stdout.stream.read(buffer), if output_over.is_none() => match read {
                Ok(0) => {
                    // The end of the output, or of the connection; the supervisor knows which.
                    *output_over = Some(Instant::now());
                    News::Quiet
                }
                Ok(read) => {
                    self.heard += read as u64;
                    self.frames.push(&self.buffer[..read]);
                    News::Output
                }
                Err(_) => News::Lost,
            },
            read = attachment.stderr.stream.read(&mut complaints), if !*errors_over => match read {
                Ok(0) | Err(_) => {
                    *errors_over = true;
                    News::Quiet
                }
                Ok(read) => {
                    self.complain(&complaints[..read]);
                    // The last of it stays where the next owner of the session can read it.
                    let done = self.complained.saturating_sub(LAST_WORDS as u64);
                    self.attachment.ack(StreamKind::Stderr, done).await;
                    News::Quiet
                }
            },
            written = attachment.stdin.stream.write(unsent.as_slices().0), if !unsent.is_empty() => {
                match written {
                    Ok(0) | Err(_) => News::Lost,
                    Ok(written) => {
                        unsent.drain(..written);
                        News::Quiet
                    }
                }
            }
            gone = link.exited(&process), if exited.is_none() => match gone {
                Ok(gone) => {
                    *exited = Some(gone);
                    News::Quiet
                }
                Err(_) => News::Lost,
            },
            () = tokio::time::sleep_until(mute), if output_over.is_some() && exited.is_none() => News::Mute,
            () = link.lost() => News::Lost,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn small(longest: usize) -> Frames {
        Frames {
            longest,
            ..Frames::new(0, false)
        }
    }

    #[test]
    fn a_line_that_is_too_long_is_let_go_of_in_pieces() {
        let mut frames = small(4);
        frames.push(b"abcdefgh");
        assert_eq!(frames.next(), Some(Frame::TooLong(8)));
        assert_eq!(frames.next(), None);
        frames.push(b"ij");
        assert_eq!(frames.next(), Some(Frame::TooLong(10)));
        frames.push(b"k\nok\n");
        assert_eq!(frames.next(), Some(Frame::TooLong(12)));
        assert_eq!(frames.next(), Some(Frame::Line(b"ok".to_vec(), 15)));
        assert_eq!(frames.next(), None);
    }

    proptest! {
        #[test]
        fn places_count_every_byte(
            lines in proptest::collection::vec("[^\n]{0,9}", 0..20),
            cuts in proptest::collection::vec(1usize..7, 1..50),
        ) {
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            let mut frames = small(1000);
            let (mut rest, mut end) = (text.as_bytes(), 0);
            let mut found = Vec::new();
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (now, later) = rest.split_at((*cut).min(rest.len()));
                frames.push(now);
                rest = later;
                while let Some(Frame::Line(line, at)) = frames.next() {
                    end += line.len() as u64 + 1;
                    prop_assert_eq!(at, end);
                    found.push(String::from_utf8(line).unwrap());
                }
            }
            prop_assert_eq!(found, lines);
        }
    }
}
