//! A session's events on a terminal: text as it is streamed, one line for each tool.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::terminal::{ProgressLine, printable};

const SPINNER: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];
/// The longest line about a tool.
const WIDE: usize = 100;

/// How a turn ended.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Completion {
    pub(super) stop_reason: String,
    pub(super) error: Option<String>,
}

/// Shows events one after the other.
#[derive(Debug)]
pub(super) struct Show {
    /// Whether somebody sees the text as it comes; otherwise only the final text is printed.
    streams: bool,
    colour: bool,
    line: ProgressLine,
    /// What of the current message is on the screen.
    shown: String,
    /// Whether the cursor stands behind text.
    open: bool,
    tool: Option<(String, Instant)>,
    began: Instant,
    frame: usize,
    doing: String,
}

impl Default for Show {
    fn default() -> Self {
        Self {
            streams: std::io::stdout().is_terminal(),
            colour: std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none(),
            line: ProgressLine::default(),
            shown: String::new(),
            open: false,
            tool: None,
            began: Instant::now(),
            frame: 0,
            doing: "starting the agent".to_owned(),
        }
    }
}

impl Show {
    /// Turns the spinner; called now and then while nothing comes.
    pub(super) fn wait(&mut self) {
        if self.open {
            return;
        }
        self.frame = (self.frame + 1) % SPINNER.len();
        let seconds = self.began.elapsed().as_secs();
        let text = format!("{} {} {seconds}s", SPINNER[self.frame], self.doing);
        self.line.show(&text);
    }

    pub(super) fn clear(&mut self) {
        self.line.clear();
    }

    /// Shows an event; how the turn ended, if it did.
    pub(super) fn event(&mut self, event: &Value) -> Option<Completion> {
        self.line.clear();
        let text = |name: &str| event[name].as_str().unwrap_or_default();
        match text("type") {
            "prompt" => self.doing("the agent is at work"),
            "delta" if event["thought"] != true => self.stream(text("text")),
            "delta" => self.doing("thinking"),
            "message" => {
                let whole = text("text");
                let rest = whole.strip_prefix(self.shown.as_str()).unwrap_or_default();
                let rest = rest.to_owned();
                self.stream(&rest);
                self.shown.clear();
                self.end_line();
            }
            "thought" => self.note(&format!("· {}", first_line(text("text")))),
            "tool_call" => {
                let title = describe(event);
                self.doing(&title);
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
                let took = took(since.elapsed());
                self.note(&format!("{mark} {title}{took}"));
                self.doing("the agent is at work");
            }
            "plan" => {
                for entry in event["entries"].as_array().into_iter().flatten() {
                    let mark = match entry["status"].as_str() {
                        Some("completed") => "☑",
                        Some("in_progress") => "▸",
                        _ => "☐",
                    };
                    self.note(&format!(
                        "{mark} {}",
                        entry["content"].as_str().unwrap_or_default()
                    ));
                }
            }
            "permission_request" => {
                self.note(&format!("? {} ({})", text("title"), text("kind")));
                self.doing("waiting for a decision");
            }
            "permission_answer" => {
                self.note(&format!("! {} by {}", text("decision"), text("by")));
                let tool = self.tool.as_ref().map(|(title, _)| title.clone());
                self.doing(tool.as_deref().unwrap_or("the agent is at work"));
            }
            "caller_tool_request" => self.doing(&format!("{} is called", text("tool"))),
            "caller_tool_cancelled" => self.note(&format!("✗ {} was given up", text("tool"))),
            "child_spawned" => {
                self.note(&format!("↳ {} began ({})", text("child_id"), text("agent")));
            }
            "child_ended" => self.note(&format!("↳ {} {}", text("child_id"), text("status"))),
            "error" | "log" => self.note(&format!("· {}", text("message"))),
            "completion" => {
                self.end_line();
                if !self.streams && !text("text").is_empty() {
                    crate::terminal::say(&safe(text("text")));
                }
                return Some(Completion {
                    stop_reason: text("stop_reason").to_owned(),
                    error: event["error"].as_str().map(str::to_owned),
                });
            }
            _ => {}
        }
        None
    }

    fn doing(&mut self, what: &str) {
        self.doing = short(what);
        self.began = Instant::now();
    }

    fn stream(&mut self, text: &str) {
        if text.is_empty() || !self.streams {
            return;
        }
        self.shown.push_str(text);
        let mut stdout = std::io::stdout().lock();
        let _ = stdout.write_all(safe(text).as_bytes());
        let _ = stdout.flush();
        self.open = !text.ends_with('\n');
    }

    fn end_line(&mut self) {
        if std::mem::take(&mut self.open) {
            println_quietly();
        }
    }

    /// A line beside the text.
    fn note(&mut self, text: &str) {
        self.end_line();
        let text = short(&printable(text));
        match self.colour {
            true => eprintln!("\x1b[2m  {text}\x1b[0m"),
            false => eprintln!("  {text}"),
        }
    }
}

fn println_quietly() {
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(b"\n");
    let _ = stdout.flush();
}

/// What a tool does, in one line: its title, or what stands in its input.
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

fn short(text: &str) -> String {
    let line = first_line(text);
    match line.char_indices().nth(WIDE) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

fn took(time: Duration) -> String {
    match time.as_secs_f64() {
        seconds if seconds < 0.1 => String::new(),
        seconds => format!("  {seconds:.1}s"),
    }
}

/// What an agent says may not move the cursor or change colours.
fn safe(text: &str) -> String {
    text.chars()
        .map(|c| {
            if c.is_control() && !matches!(c, '\n' | '\t') {
                ' '
            } else {
                c
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_completion_says_how_the_turn_ended() {
        let mut show = Show::default();
        assert_eq!(show.event(&json!({ "type": "prompt", "text": "x" })), None);
        let ended = show.event(
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
        assert_eq!(short(&describe(&event)), "bash: ls");
        assert!(short(&"x".repeat(500)).chars().count() <= WIDE + 1);
    }
}
