//! The parameters of a call of an interactive command.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use oubliette_wire::TerminalSize;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::containers::exec::Params;
use crate::{EngineError, Result};

const MAX_WAIT_SECONDS: f64 = 50.0;

#[derive(Debug, Default, Deserialize, JsonSchema)]
pub(crate) struct InteractiveParams {
    /// Interactive: wait for output (0-50).
    ///
    /// The call returns when there is new output or the command has ended, and the command keeps running. Needs
    /// `exec_id`. A command is killed if its caller makes no call for ten minutes (configurable).
    wait_seconds: Option<f64>,
    /// Interactive: terminal of this size.
    ///
    /// Or resizes it. All output is then in `stdout`.
    #[schemars(extend("x-unlisted" = true))]
    terminal: Option<Terminal>,
    /// Interactive: from the last result.
    ///
    /// Omit a stream to receive nothing from it, for example while another call is reading output.
    offsets: Option<Offsets>,
    /// Interactive: close `stdin`.
    ///
    /// After the `stdin` of this call.
    close_stdin: Option<bool>,
    /// Interactive: signal to send.
    ///
    /// It goes to the command and every process it started.
    signal: Option<Signal>,
    /// Of `stdin`, `stdout` and `stderr`.
    ///
    /// Default: `text`. Interactive commands only.
    #[schemars(extend("x-unlisted" = true))]
    encoding: Option<Encoding>,
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
struct Terminal {
    rows: u16,
    columns: u16,
}

/// How many bytes of each stream the caller has sent or received.
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

impl InteractiveParams {
    /// Whether the call is interactive; an error if it has parameters that only interactive calls have.
    pub(crate) fn is_requested(&self) -> Result<bool> {
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
        match given.into_iter().find(|(_, is_given)| *is_given) {
            Some((name, _)) => Err(EngineError::invalid(format!(
                "`{name}` is for interactive commands; give `wait_seconds` and `exec_id` too"
            ))),
            None => Ok(false),
        }
    }
}

/// A call of an interactive command with checked parameters.
#[derive(Debug)]
pub(super) struct InteractiveCall {
    pub(super) exec_id: String,
    pub(super) offsets: Offsets,
    pub(super) input: Vec<u8>,
    pub(super) close_stdin: bool,
    pub(super) signal: Option<i32>,
    pub(super) terminal_size: Option<TerminalSize>,
    pub(super) wait: Duration,
    encoding: Encoding,
}

impl InteractiveCall {
    /// How many bytes of a stream the call returns at most: more for programs than for models.
    pub(super) fn max_output_bytes(&self) -> usize {
        match self.encoding {
            Encoding::Text => 128 << 10,
            Encoding::Base64 => 2 << 20,
        }
    }

    pub(super) fn from_params(params: &mut Params) -> Result<Self> {
        let interactive = std::mem::take(&mut params.interactive);
        let exec_id = params.exec_id.clone().ok_or_else(|| {
            EngineError::invalid(
                "an interactive command needs `exec_id`, the name by which later calls continue it",
            )
        })?;
        if params.timeout_seconds.is_some() {
            return Err(EngineError::invalid(
                "an interactive command has no `timeout_seconds`; end it with `signal`",
            ));
        }
        let wait = interactive.wait_seconds.unwrap_or_default();
        if !(0.0..=MAX_WAIT_SECONDS).contains(&wait) {
            return Err(EngineError::invalid(format!(
                "`wait_seconds` is {wait}; it must be 0 to {MAX_WAIT_SECONDS}"
            )));
        }
        let terminal_size = match interactive.terminal {
            Some(Terminal { rows, columns }) if rows == 0 || columns == 0 => {
                return Err(EngineError::invalid(
                    "`terminal` needs at least one row and one column",
                ));
            }
            size => size.map(|Terminal { rows, columns }| TerminalSize { rows, columns }),
        };
        let encoding = interactive.encoding.unwrap_or_default();
        let stdin = params.stdin.take().unwrap_or_default();
        let input = match encoding {
            Encoding::Text => stdin.into_bytes(),
            Encoding::Base64 => STANDARD
                .decode(stdin)
                .map_err(|error| EngineError::invalid(format!("`stdin` is not base64: {error}")))?,
        };
        let offsets = interactive.offsets.unwrap_or(Offsets {
            stdin: Some(0),
            stdout: Some(0),
            stderr: Some(0),
        });
        Ok(Self {
            exec_id,
            offsets,
            input,
            close_stdin: interactive.close_stdin.unwrap_or(false),
            signal: interactive.signal.map(|signal| match signal {
                Signal::Hangup => 1,
                Signal::Interrupt => 2,
                Signal::Kill => 9,
                Signal::Terminate => 15,
            }),
            terminal_size,
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

    /// Encodes bytes that start at an offset, and returns the offset after them. Text is cut between
    /// two characters, unless the command has ended.
    pub(super) fn render(&self, (from, bytes): (u64, Vec<u8>), ended: bool) -> (String, u64) {
        let mut end = bytes.len();
        if self.encoding == Encoding::Text && !ended {
            let complete = end - incomplete_char_bytes(&bytes);
            // Bytes that never become a character must not be requested again for ever.
            end = if complete == 0 { end } else { complete };
        }
        (self.encode(&bytes[..end]), from + end as u64)
    }
}

/// How many bytes at the end are the start of a UTF-8 character without its end.
fn incomplete_char_bytes(bytes: &[u8]) -> usize {
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
    let present = bytes.len() - lead;
    if present < length { present } else { 0 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::incomplete_char_bytes;

    proptest! {
        #[test]
        fn text_is_cut_between_two_characters(
            text in "\\PC{0,20}",
            cut in 0usize..60,
        ) {
            let bytes = text.as_bytes();
            let cut = cut.min(bytes.len());
            let complete = cut - incomplete_char_bytes(&bytes[..cut]);
            prop_assert!(text.is_char_boundary(complete));
            prop_assert!(cut - complete < 4);
        }

        #[test]
        fn at_most_three_bytes_are_held_back(
            bytes in proptest::collection::vec(any::<u8>(), 0..10),
        ) {
            prop_assert!(incomplete_char_bytes(&bytes) <= 3.min(bytes.len()));
        }
    }
}
