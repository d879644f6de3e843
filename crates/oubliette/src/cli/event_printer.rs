//! Prints a session's events as they arrive: streamed text, and one line for each tool call, or a transcript.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::transcript::{Transcript, describe_answer, describe_call, describe_request, first_line};
use crate::terminal::style::Style;
use crate::terminal::wrap::WordWrap;
use crate::terminal::{self, ProgressLine, output, printable, width};

const SPINNER: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];
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
    style: Style,
    /// Formats everything but streamed text, on stdout; without it only notes are printed, on stderr.
    transcript: Option<Transcript>,
    line: ProgressLine,
    /// The part of the current message that is printed already, or held back by `wrap`.
    shown: String,
    /// Breaks streamed text between words.
    wrap: WordWrap,
    /// Whether the cursor is behind text.
    mid_line: bool,
    /// Calls without a result yet: their ids, titles and starts.
    tools: Vec<(String, String, Instant)>,
    activity_started: Instant,
    frame: usize,
    activity: String,
}

impl Default for EventPrinter {
    fn default() -> Self {
        Self {
            streams: std::io::stdout().is_terminal(),
            is_quiet: false,
            style: Style::of_stderr(),
            transcript: None,
            line: ProgressLine::default(),
            shown: String::new(),
            wrap: WordWrap::default(),
            mid_line: false,
            tools: Vec::new(),
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
            transcript: Some(transcript),
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
        match &mut self.transcript {
            Some(transcript) => transcript.format(event, width::stdout_columns()),
            None => String::new(),
        }
    }

    /// Prints an event; returns how the turn ended, if it did.
    pub(super) fn print(&mut self, event: &Value) -> Option<Completion> {
        self.line.clear();
        if self.transcript.is_some() {
            self.print_in_transcript(event);
            return Completion::of(event);
        }
        self.print_brief(event);
        Completion::of(event)
    }

    fn print_in_transcript(&mut self, event: &Value) {
        let text = |name: &str| event[name].as_str().unwrap_or_default();
        match text("type") {
            "prompt" | "permission_answer" | "tool_result" => {
                self.set_activity("the agent is working");
            }
            "tool_call" => self.set_activity(&describe_call(event)),
            "permission_request" => self.set_activity("waiting for a decision"),
            "caller_tool_request" => self.set_activity(&format!("calling {}", text("tool"))),
            "delta" if event["thought"] == true => self.set_activity("thinking"),
            "delta" if self.streams => {
                // Some agents begin with empty lines.
                let text = match self.shown.as_str() {
                    "" => text("text").trim_start_matches('\n'),
                    _ => text("text"),
                };
                if text.is_empty() {
                    return;
                }
                let is_separated = self.transcript.as_mut().is_some_and(Transcript::mark_text);
                if is_separated {
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
        match text("type") {
            "prompt" => self.set_activity("the agent is working"),
            "status" if event["kind"] == "background" => {
                self.print_note("· the agent works without a prompt");
            }
            "delta" if event["thought"] != true => self.print_text(text("text")),
            "delta" => self.set_activity("thinking"),
            "message" => {
                let whole = text("text");
                let rest = whole.strip_prefix(self.shown.as_str()).unwrap_or_default();
                let rest = rest.to_owned();
                self.print_text(&rest);
                self.shown.clear();
                self.end_line();
            }
            "thought" => self.print_note(&format!("· {}", first_line(text("text")))),
            "tool_call" => {
                let title = describe_call(event);
                self.set_activity(&title);
                let id = text("tool_call_id").to_owned();
                self.tools.push((id, title, Instant::now()));
            }
            "tool_result" => {
                let id = text("tool_call_id");
                let at = self.tools.iter().position(|(other, ..)| other == id);
                let (title, since) = match at.map(|at| self.tools.remove(at)) {
                    Some((_, title, since)) => (title, since),
                    None => ("a tool".to_owned(), Instant::now()),
                };
                let mark = if event["status"] == "completed" {
                    "✓"
                } else {
                    "✗"
                };
                let elapsed = elapsed_suffix(since.elapsed());
                self.print_note(&format!("{mark} {title}{elapsed}"));
                self.set_activity("the agent is working");
            }
            "plan" => {
                for entry in event["entries"].as_array().into_iter().flatten() {
                    let mark = match entry["status"].as_str() {
                        Some("completed") => "☑",
                        Some("in_progress") => "▸",
                        _ => "☐",
                    };
                    self.print_note(&format!(
                        "{mark} {}",
                        entry["content"].as_str().unwrap_or_default()
                    ));
                }
            }
            "permission_request" => {
                self.end_line();
                eprintln!("{}", describe_request(event, self.style));
                self.set_activity("waiting for a decision");
            }
            "permission_answer" => {
                self.print_note(&format!("! {}", describe_answer(event)));
                let tool = self.tools.last().map(|(_, title, _)| title.clone());
                self.set_activity(tool.as_deref().unwrap_or("the agent is working"));
            }
            "caller_tool_request" => self.set_activity(&format!("calling {}", text("tool"))),
            "caller_tool_cancelled" => {
                self.print_note(&format!("✗ {} was cancelled", text("tool")));
            }
            "child_spawned" => {
                self.print_note(&format!(
                    "↳ {} started ({})",
                    text("child_id"),
                    text("agent")
                ));
            }
            "child_ended" => self.print_note(&format!("↳ {} {}", text("child_id"), text("status"))),
            "error" | "log" => self.print_note(&format!("· {}", text("message"))),
            "completion" => {
                self.end_line();
                let is_background = event["kind"] == "background";
                if is_background && !self.streams {
                    self.print_note(&format!("· {}", first_line(text("text"))));
                } else if !self.streams && !self.is_quiet && !text("text").is_empty() {
                    terminal::print_line(&printable(text("text")));
                }
            }
            _ => {}
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

    /// Prints a line on stderr.
    fn print_note(&mut self, text: &str) {
        if output::is_quiet() {
            return;
        }
        self.end_line();
        // Two columns are before it, and the last one stays empty.
        let columns = width::stderr_columns().map(|columns| columns.saturating_sub(3));
        let text = truncate(&printable(text), columns.unwrap_or(MAX_NOTE_COLUMNS));
        eprintln!("{}", self.style.dim(&format!("  {text}")));
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

fn elapsed_suffix(time: Duration) -> String {
    match time.as_secs_f64() {
        seconds if seconds < 0.1 => String::new(),
        seconds => format!("  {seconds:.1}s"),
    }
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
    fn a_tool_is_one_short_line() {
        let event = json!({ "title": "bash", "input": { "command": "ls\nrm" } });
        assert_eq!(truncate(&describe_call(&event), 40), "bash: ls");
        assert_eq!(truncate(&"x".repeat(500), 40).chars().count(), 40);
    }
}
