//! What a call says in a dialogue, as its parameters have it.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use oubliette_wire::TerminalSize;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::containers::exec::Params;
use crate::{EngineError, Result};

/// Like every wait of a call.
const LONGEST_WAIT: f64 = 50.0;

/// The parameters of a dialogue.
#[derive(Debug, Default, Deserialize, JsonSchema)]
pub(crate) struct Talk {
    /// Makes it a dialogue: the call returns when the command has said something new or has ended,
    /// and at the latest after so many seconds (0 to 50), while the command goes on. Needs
    /// `exec_id`. A command whose caller stays away for too long (ten minutes, unless the server is
    /// set otherwise) is ended.
    wait_seconds: Option<f64>,
    /// In a dialogue: gives the command a terminal of this size, or changes its size. Output then
    /// is all in `stdout`.
    terminal: Option<Terminal>,
    /// In a dialogue: where to go on, as the last result said. What a call leaves out of it (all of
    /// its output, for one, while another call waits for that) it does not want.
    offsets: Option<Offsets>,
    /// In a dialogue: whether no more input comes after that of this call.
    close_stdin: Option<bool>,
    /// In a dialogue: a signal for the command and everything it started.
    signal: Option<Signal>,
    /// In a dialogue: whether `stdin`, `stdout` and `stderr` are `text` (if absent) or `base64`.
    encoding: Option<Encoding>,
}

/// How large a terminal is.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
struct Terminal {
    rows: u16,
    columns: u16,
}

/// How many bytes of each stream came before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub(crate) struct Offsets {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) stdin: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) stdout: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) stderr: Option<u64>,
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum Signal {
    Hangup,
    Interrupt,
    Terminate,
    Kill,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum Encoding {
    #[default]
    Text,
    Base64,
}

impl Talk {
    /// Whether the call is part of a dialogue; an error if it only looks so.
    pub(crate) fn is_wanted(&self) -> Result<bool> {
        if self.wait_seconds.is_some() {
            return Ok(true);
        }
        let given = [
            ("terminal", self.terminal.is_some()),
            ("offsets", self.offsets.is_some()),
            ("close_stdin", self.close_stdin.is_some()),
            ("signal", self.signal.is_some()),
            ("encoding", self.encoding.is_some()),
        ];
        match given.into_iter().find(|(_, given)| *given) {
            Some((name, _)) => Err(EngineError::invalid(format!(
                "`{name}` belongs to a dialogue; give `wait_seconds` and `exec_id` too"
            ))),
            None => Ok(false),
        }
    }
}

/// One call's part of a dialogue, checked.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) exec_id: String,
    pub(super) offsets: Offsets,
    pub(super) input: Vec<u8>,
    pub(super) close_stdin: bool,
    pub(super) signal: Option<i32>,
    pub(super) size: Option<TerminalSize>,
    pub(super) wait: Duration,
    encoding: Encoding,
}

impl Step {
    pub(super) fn of(params: &mut Params) -> Result<Self> {
        let talk = std::mem::take(&mut params.talk);
        let exec_id = params.exec_id.clone().ok_or_else(|| {
            EngineError::invalid("a dialogue needs `exec_id`, a name by which it goes on")
        })?;
        if params.timeout_seconds.is_some() {
            return Err(EngineError::invalid(
                "a dialogue has no `timeout_seconds`; end it with `signal`",
            ));
        }
        let wait = talk.wait_seconds.unwrap_or_default();
        if !(0.0..=LONGEST_WAIT).contains(&wait) {
            return Err(EngineError::invalid(format!(
                "`wait_seconds` is {wait}; it must be 0 to {LONGEST_WAIT}"
            )));
        }
        let size = match talk.terminal {
            Some(Terminal { rows, columns }) if rows == 0 || columns == 0 => {
                return Err(EngineError::invalid(
                    "a `terminal` has at least one row and one column",
                ));
            }
            size => size.map(|Terminal { rows, columns }| TerminalSize { rows, columns }),
        };
        let encoding = talk.encoding.unwrap_or_default();
        let input = params.stdin.take().unwrap_or_default();
        let input = match encoding {
            Encoding::Text => input.into_bytes(),
            Encoding::Base64 => STANDARD
                .decode(input)
                .map_err(|error| EngineError::invalid(format!("`stdin` is not base64: {error}")))?,
        };
        // From the start, unless it says otherwise.
        let offsets = talk.offsets.unwrap_or(Offsets {
            stdin: Some(0),
            stdout: Some(0),
            stderr: Some(0),
        });
        Ok(Self {
            exec_id,
            offsets,
            input,
            close_stdin: talk.close_stdin.unwrap_or(false),
            signal: talk.signal.map(|signal| match signal {
                Signal::Hangup => 1,
                Signal::Interrupt => 2,
                Signal::Kill => 9,
                Signal::Terminate => 15,
            }),
            size,
            wait: Duration::from_secs_f64(wait),
            encoding,
        })
    }

    pub(super) fn encode(&self, bytes: &[u8]) -> String {
        match self.encoding {
            Encoding::Text => String::from_utf8_lossy(bytes).into_owned(),
            Encoding::Base64 => STANDARD.encode(bytes),
        }
    }

    /// Bytes that begin at an offset as a result has them, and where the next ones begin. Text ends
    /// between two characters, unless no more will come.
    pub(super) fn render(&self, (from, bytes): (u64, Vec<u8>), ended: bool) -> (String, u64) {
        let mut end = bytes.len();
        if self.encoding == Encoding::Text && !ended {
            let whole = end - unfinished(&bytes);
            // A beginning without an end that is all there is would be asked for again and again.
            end = if whole == 0 { end } else { whole };
        }
        (self.encode(&bytes[..end]), from + end as u64)
    }
}

/// How many bytes at the end are the beginning of a character.
fn unfinished(bytes: &[u8]) -> usize {
    let tail = bytes.len().saturating_sub(3);
    let lead = bytes[tail..].iter().rposition(|byte| byte & 0xC0 != 0x80);
    let Some(lead) = lead.map(|at| tail + at) else {
        return 0;
    };
    let length = match bytes[lead] {
        0xC2..=0xDF => 2,
        0xE0..=0xEF => 3,
        0xF0..=0xF4 => 4,
        _ => 1,
    };
    let there = bytes.len() - lead;
    if there < length { there } else { 0 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::unfinished;

    proptest! {
        #[test]
        fn text_that_is_cut_anywhere_is_whole_again_when_the_rest_comes(
            text in "\\PC{0,20}",
            cut in 0usize..60,
        ) {
            let bytes = text.as_bytes();
            let cut = cut.min(bytes.len());
            let whole = cut - unfinished(&bytes[..cut]);
            prop_assert!(text.is_char_boundary(whole));
            prop_assert!(cut - whole < 4);
        }

        #[test]
        fn bytes_that_are_no_text_are_held_back_by_three_at_most(
            bytes in proptest::collection::vec(any::<u8>(), 0..10),
        ) {
            prop_assert!(unfinished(&bytes) <= 3.min(bytes.len()));
        }
    }
}
