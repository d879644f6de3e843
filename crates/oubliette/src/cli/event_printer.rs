//! Prints a session's events as they arrive: streamed text, and one line for each tool call, or a transcript.

use std::io::IsTerminal;
use std::time::Instant;

use serde_json::Value;

use super::transcript::{Transcript, describe_call, first_line};
use crate::terminal::style::Style;
use crate::terminal::wrap::WordWrap;
use crate::terminal::{self, ProgressLine, output, printable, width};

const SPINNER: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];
/// What the spinner says while nothing else is known.
const WORKING: &str = "the agent is working";
/// The length of a note where there is no terminal.
const MAX_NOTE_COLUMNS: usize = 100;

/// How a turn ended.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Completion {
    pub(super) stop_reason: String,
    pub(super) error: Option<String>,
    /// The final text of the agent.
    pub(super) text: String,
    /// Whether the agent worked without a prompt.
    pub(super) is_background: bool,
}

#[derive(Debug)]
pub(super) struct EventPrinter {
    /// Whether stdout is a terminal, which gets text as it is streamed; otherwise only the final text is printed.
    streams: bool,
    /// Whether texts of the agent are not printed at all.
    pub(super) is_quiet: bool,
    /// Formats everything but streamed text.
    transcript: Transcript,
    /// Whether only the first lines of it are printed, on stderr, not the whole on stdout.
    is_brief: bool,
    line: ProgressLine,
    /// The part of the current message that is printed already, or held back by `wrap`.
    shown: String,
    /// Breaks streamed text between words.
    wrap: WordWrap,
    /// Whether the cursor is behind text.
    mid_line: bool,
    activity_started: Instant,
    frame: usize,
    activity: String,
}

impl Default for EventPrinter {
    fn default() -> Self {
        Self {
            streams: std::io::stdout().is_terminal(),
            is_quiet: false,
            transcript: Transcript::new(Style::of_stderr(), true),
            is_brief: true,
            line: ProgressLine::default(),
            shown: String::new(),
            wrap: WordWrap::default(),
            mid_line: false,
            activity_started: Instant::now(),
            frame: 0,
            activity: "starting the agent".to_owned(),
        }
    }
}

impl EventPrinter {
    /// Continues a transcript.
    pub(super) fn of_transcript(transcript: Transcript) -> Self {
        Self {
            transcript,
            is_brief: false,
            ..Self::default()
        }
    }

    /// Advances the spinner; called while no event arrives.
    pub(super) fn advance_spinner(&mut self) {
        if self.mid_line {
            return;
        }
        self.frame = (self.frame + 1) % SPINNER.len();
        let seconds = self.activity_started.elapsed().as_secs();
        let text = format!("{} {}", SPINNER[self.frame], self.activity);
        self.line.show_with_end(&text, &format!(" {seconds}s"));
    }

    pub(super) fn clear(&mut self) {
        self.line.clear();
    }

    /// Prints a line about the connection or the session itself.
    pub(super) fn print_notice(&mut self, text: &str) {
        self.clear();
        self.end_line();
        eprintln!("  {}", printable(text));
    }

    /// Ends the line of a text that is being streamed.
    pub(super) fn finish_line(&mut self) {
        self.clear();
        self.end_line();
    }

    /// Formats an event of a transcript as whole lines, where text cannot be streamed.
    pub(super) fn format(&mut self, event: &Value) -> String {
        self.transcript.format(event, width::stdout_columns())
    }

    /// Prints an event; returns how the turn ended, if it did.
    pub(super) fn print(&mut self, event: &Value) -> Option<Completion> {
        self.line.clear();
        if self.is_brief {
            self.print_brief(event);
        } else {
            self.print_in_transcript(event);
        }
        self.update_activity(event);
        Completion::of(event)
    }

    /// Says what the spinner shows from this event on.
    fn update_activity(&mut self, event: &Value) {
        let text = |name: &str| event[name].as_str().unwrap_or_default();
        match text("type") {
            "prompt" | "tool_result" => self.set_activity(WORKING),
            "permission_answer" => {
                let tool = self.transcript.running_tool().map(str::to_owned);
                self.set_activity(tool.as_deref().unwrap_or(WORKING));
            }
            "tool_call" => self.set_activity(&describe_call(event)),
            "permission_request" => self.set_activity("waiting for a decision"),
            "caller_tool_request" => self.set_activity(&format!("calling {}", text("tool"))),
            "delta" if event["thought"] == true => self.set_activity("thinking"),
            _ => {}
        }
    }

    fn print_in_transcript(&mut self, event: &Value) {
        let text = |name: &str| event[name].as_str().unwrap_or_default();
        match text("type") {
            "delta" if event["thought"] != true && self.streams => {
                // Some agents begin with empty lines.
                let text = match self.shown.as_str() {
                    "" => text("text").trim_start_matches('\n'),
                    _ => text("text"),
                };
                if text.is_empty() {
                    return;
                }
                if self.transcript.mark_text() {
                    self.line.clear();
                    terminal::print("\n");
                }
                self.print_text(text);
                return;
            }
            "message" if !self.shown.is_empty() => {
                let whole = text("text").trim_start_matches('\n');
                let rest = whole.strip_prefix(self.shown.as_str());
                let rest = rest.unwrap_or_default().to_owned();
                self.print_text(&rest);
                self.shown.clear();
                self.end_line();
                return;
            }
            _ => {}
        }
        let shown = self.format(event);
        if !shown.is_empty() {
            self.end_line();
            terminal::print(&shown);
        }
    }

    fn print_brief(&mut self, event: &Value) {
        let text = |name: &str| event[name].as_str().unwrap_or_default();
        // Also what is not printed is part of it, for example the start of a tool.
        let columns = width::stderr_columns().map_or(MAX_NOTE_COLUMNS, |it| it.saturating_sub(1));
        let lines = self.transcript.format(event, Some(columns));
        match text("type") {
            "delta" if event["thought"] != true => self.print_text(text("text")),
            "message" => {
                let whole = text("text");
                let rest = whole.strip_prefix(self.shown.as_str()).unwrap_or_default();
                let rest = rest.to_owned();
                self.print_text(&rest);
                self.shown.clear();
                self.end_line();
            }
            "completion" => {
                self.end_line();
                let is_background = event["kind"] == "background";
                if is_background && !self.streams {
                    let line = format!("  · {}", first_line(&printable(text("text"))));
                    self.print_notes(&width::fit(&line, columns), 1);
                } else if !self.streams && !self.is_quiet && !text("text").is_empty() {
                    terminal::print_line(&printable(text("text")));
                }
            }
            "permission_request" => {
                self.end_line();
                eprint!("{}", lines.trim_start_matches('\n'));
            }
            "plan" => self.print_notes(&lines, usize::MAX),
            // The user knows the prompt, and the end of the session is the result of the command.
            "prompt" | "caller_tool_request" => {}
            "status" if event["kind"] != "background" => {}
            _ => self.print_notes(&lines, 1),
        }
    }

    fn set_activity(&mut self, what: &str) {
        self.activity = truncate(what, MAX_NOTE_COLUMNS);
        self.activity_started = Instant::now();
    }

    fn print_text(&mut self, text: &str) {
        if text.is_empty() || !self.streams || self.is_quiet {
            return;
        }
        self.shown.push_str(text);
        // The last column stays empty: some terminals begin a new line there.
        let columns = width::stdout_columns().map(|columns| columns.saturating_sub(1));
        terminal::print(&self.wrap.push(&printable(text), columns));
        self.mid_line = !text.ends_with('\n');
    }

    fn end_line(&mut self) {
        if std::mem::take(&mut self.mid_line) {
            let columns = width::stdout_columns().map(|columns| columns.saturating_sub(1));
            let rest = self.wrap.push("\n", columns);
            terminal::print(&rest);
        }
    }

    /// Prints the first lines on stderr.
    fn print_notes(&mut self, lines: &str, max_lines: usize) {
        if output::is_quiet() {
            return;
        }
        let lines = lines.lines().filter(|line| !line.trim().is_empty());
        for line in lines.take(max_lines) {
            self.end_line();
            eprintln!("{line}");
        }
    }
}

impl Completion {
    /// The end of the turn, if the event is one.
    fn of(event: &Value) -> Option<Self> {
        if event["type"] != "completion" {
            return None;
        }
        let text = |name: &str| event[name].as_str().map(str::to_owned);
        Some(Self {
            stop_reason: text("stop_reason").unwrap_or_default(),
            error: text("error"),
            text: text("text").unwrap_or_default(),
            is_background: event["kind"] == "background",
        })
    }
}

/// The first line of a text, as much of it as fits into `columns`.
fn truncate(text: &str, columns: usize) -> String {
    width::fit(first_line(text), columns)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_completion_reports_how_the_turn_ended() {
        let mut printer = EventPrinter::default();
        assert_eq!(
            printer.print(&json!({ "type": "prompt", "text": "x" })),
            None
        );
        let ended = printer.print(
            &json!({ "type": "completion", "text": "", "stop_reason": "error", "error": "no" }),
        );
        let ended = ended.unwrap();
        assert_eq!(
            (ended.stop_reason.as_str(), ended.error.as_deref()),
            ("error", Some("no"))
        );
    }

    #[test]
    fn after_an_answer_the_spinner_shows_the_tool_that_runs() {
        let mut printer = EventPrinter::default();
        printer.print(&json!({ "type": "tool_call", "tool_call_id": "1", "title": "build" }));
        printer
            .print(&json!({ "type": "permission_request", "request_id": "r", "title": "build" }));
        assert_eq!(printer.activity, "waiting for a decision");
        printer.print(&json!({ "type": "permission_answer", "decision": "allow" }));
        assert_eq!(printer.activity, "build");
        printer.print(&json!({ "type": "tool_result", "tool_call_id": "1" }));
        assert_eq!(printer.activity, WORKING);
    }

    #[test]
    fn a_tool_is_one_short_line() {
        let event = json!({ "title": "bash", "input": { "command": "ls\nrm" } });
        assert_eq!(truncate(&describe_call(&event), 40), "bash: ls");
        assert_eq!(truncate(&"x".repeat(500), 40).chars().count(), 40);
    }
}
