//! Prints a session's events: streamed text, and one line for each tool call.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::terminal::{ProgressLine, printable};

const SPINNER: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];
const MAX_NOTE_CHARS: usize = 100;
/// How many files, and lines of each, a permission request shows.
const MAX_SHOWN_FILES: usize = 10;
const MAX_SHOWN_LINES: usize = 20;

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
    colour: bool,
    line: ProgressLine,
    /// The part of the current message that is printed already.
    shown: String,
    /// Whether the cursor is behind text.
    mid_line: bool,
    tool: Option<(String, Instant)>,
    activity_started: Instant,
    frame: usize,
    activity: String,
}

impl Default for EventPrinter {
    fn default() -> Self {
        Self {
            streams: std::io::stdout().is_terminal(),
            is_quiet: false,
            colour: std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none(),
            line: ProgressLine::default(),
            shown: String::new(),
            mid_line: false,
            tool: None,
            activity_started: Instant::now(),
            frame: 0,
            activity: "starting the agent".to_owned(),
        }
    }
}

impl EventPrinter {
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

    /// Prints an event; returns how the turn ended, if it did.
    pub(super) fn print(&mut self, event: &Value) -> Option<Completion> {
        self.line.clear();
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
                let title = describe(event);
                self.set_activity(&title);
                self.tool = Some((title, Instant::now()));
            }
            "tool_result" => {
                let (title, since) = self
                    .tool
                    .take()
                    .unwrap_or_else(|| ("a tool".to_owned(), Instant::now()));
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
                self.print_note(&format!("? {} ({})", text("title"), text("kind")));
                self.print_input(&event["input"]);
                self.set_activity("waiting for a decision");
            }
            "permission_answer" => {
                self.print_note(&format!("! {} by {}", text("decision"), text("by")));
                let tool = self.tool.as_ref().map(|(title, _)| title.clone());
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
                    crate::terminal::print_line(&printable(text("text")));
                }
                return Some(Completion {
                    stop_reason: text("stop_reason").to_owned(),
                    error: event["error"].as_str().map(str::to_owned),
                    text: text("text").to_owned(),
                    is_background,
                });
            }
            _ => {}
        }
        None
    }

    /// Prints what permission is requested for: commands, files and the new text of edits.
    fn print_input(&mut self, input: &Value) {
        if let Some(command) = input["command"].as_str() {
            self.print_note(&format!("    {command}"));
        }
        let paths = input["paths"].as_array().into_iter().flatten();
        for path in paths.filter_map(Value::as_str).take(MAX_SHOWN_FILES) {
            self.print_note(&format!("    {path}"));
        }
        let changes = input["changes"].as_array().into_iter().flatten();
        for change in changes.take(MAX_SHOWN_FILES) {
            self.print_note(&format!(
                "    {}",
                change["path"].as_str().unwrap_or_default()
            ));
            for (name, mark) in [("old_text", "-"), ("new_text", "+")] {
                let text = change[name].as_str().unwrap_or_default();
                for line in text.lines().take(MAX_SHOWN_LINES) {
                    self.print_note(&format!("    {mark} {line}"));
                }
                let more = text.lines().count().saturating_sub(MAX_SHOWN_LINES);
                if more > 0 {
                    self.print_note(&format!("    {mark} and {more} more lines"));
                }
            }
        }
    }

    fn set_activity(&mut self, what: &str) {
        self.activity = truncate(what);
        self.activity_started = Instant::now();
    }

    fn print_text(&mut self, text: &str) {
        if text.is_empty() || !self.streams || self.is_quiet {
            return;
        }
        self.shown.push_str(text);
        let mut stdout = std::io::stdout().lock();
        let _ = stdout.write_all(printable(text).as_bytes());
        let _ = stdout.flush();
        self.mid_line = !text.ends_with('\n');
    }

    fn end_line(&mut self) {
        if std::mem::take(&mut self.mid_line) {
            print_newline();
        }
    }

    /// Prints a line on stderr.
    fn print_note(&mut self, text: &str) {
        self.end_line();
        let text = truncate(&printable(text));
        if self.colour {
            eprintln!("\x1b[2m  {text}\x1b[0m");
        } else {
            eprintln!("  {text}");
        }
    }
}

fn print_newline() {
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(b"\n");
    let _ = stdout.flush();
}

/// A tool call in one line: its title, with the command if the title does not contain it.
fn describe(event: &Value) -> String {
    let title = event["title"].as_str().unwrap_or_default();
    let command = event["input"]["command"].as_str();
    match command {
        Some(command) if !title.contains(command) => format!("{title}: {command}"),
        _ => title.to_owned(),
    }
}

fn first_line(text: &str) -> &str {
    text.lines()
        .find(|line| !line.trim().is_empty())
        .unwrap_or_default()
}

fn truncate(text: &str) -> String {
    let line = first_line(text);
    match line.char_indices().nth(MAX_NOTE_CHARS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
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
        assert_eq!(truncate(&describe(&event)), "bash: ls");
        assert!(truncate(&"x".repeat(500)).chars().count() <= MAX_NOTE_CHARS + 1);
    }
}
