//! Events of a session as text for people: prompts, texts, tool calls with their output, questions, and a
//! mark at the end of each turn.
//!
//! Agents and tools wrote most of it: every text goes through `printable`.

mod request;

use std::collections::HashMap;

use jiff::Timestamp;
use oubliette_model::Status;
use serde_json::Value;

use super::permission::dollars;
use crate::terminal::printable;
use crate::terminal::style::Style;
use crate::terminal::width::fit;
use crate::terminal::wrap::wrapped;
use request::describe_request;

/// How many lines of a tool's output a terminal shows.
pub(super) const FOLDED_OUTPUT_LINES: usize = 5;
/// How many lines of a prompt a terminal shows.
const FOLDED_PROMPT_LINES: usize = 20;
/// The width of the mark at the end of a turn where there is no terminal.
const DEFAULT_COLUMNS: usize = 80;
const PROMPT_MARK: &str = "›";

/// Formats events one after another.
#[derive(Debug)]
pub(super) struct Transcript {
    style: Style,
    /// Whether long output and long lines are cut.
    folds: bool,
    /// What was printed last.
    last: Option<Block>,
    /// Calls without a result yet, by their ids.
    tools: HashMap<String, Tool>,
    /// Whether a question is open.
    is_asking: bool,
    turn_started: Option<Timestamp>,
    /// The number of the turn that a checkpoint was made of.
    turn: Option<u64>,
    /// The cost of the session so far, and before this turn, as far as they are known.
    cost_usd: Option<f64>,
    cost_before_usd: Option<f64>,
    /// The error that was shown last: a turn that fails a session has it in three events.
    last_error: Option<String>,
}

#[derive(Debug)]
struct Tool {
    title: String,
    started: Option<Timestamp>,
}

/// Kinds of text that are separated by an empty line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Block {
    Prompt,
    Text,
    Note,
    TurnEnd,
}

impl Transcript {
    pub(super) fn new(style: Style, folds: bool) -> Self {
        Self {
            style,
            folds,
            last: None,
            tools: HashMap::new(),
            is_asking: false,
            turn_started: None,
            turn: None,
            cost_usd: None,
            cost_before_usd: None,
            last_error: None,
        }
    }

    /// Formats an event as whole lines; empty if there is nothing to show. `columns` is the width of the
    /// terminal, if there is one.
    pub(super) fn format(&mut self, event: &Value, columns: Option<usize>) -> String {
        let columns = columns.filter(|_| self.folds);
        let text = |name: &str| printable(event[name].as_str().unwrap_or_default());
        let style = self.style;
        match event["type"].as_str().unwrap_or_default() {
            "prompt" => {
                self.turn_started = timestamp(event);
                self.cost_before_usd = self.cost_usd;
                self.prompt(event, columns)
            }
            "message" => {
                let text = wrapped(text("text").trim_matches('\n').trim_end(), columns);
                self.block(Block::Text, &text)
            }
            "thought" => {
                let thought = format!("· {}", first_line(&text("text")));
                self.note(&cut(&thought, columns, 2), Style::dim)
            }
            "tool_call" => {
                let id = text("tool_call_id");
                let title = printable(&describe_call(event));
                let started = timestamp(event);
                self.tools.insert(id, Tool { title, started });
                String::new()
            }
            "tool_result" => self.tool_result(event, columns),
            "plan" => self.plan(event, columns),
            "permission_request" => {
                self.is_asking = true;
                let question = describe_request(event, style);
                self.block(Block::Note, &question)
            }
            "permission_answer" => {
                self.is_asking = false;
                let answer = describe_answer(event);
                let by_style = match event["decision"].as_str() {
                    Some("deny") => Style::red,
                    _ => Style::green,
                };
                self.block(Block::Note, &format!("  {}", by_style(style, &answer)))
            }
            "caller_tool_request" => {
                let call = format!(
                    "▸ {} {}",
                    text("tool"),
                    printable(&event["arguments"].to_string())
                );
                self.note(&cut(&call, columns, 2), Style::dim)
            }
            "caller_tool_response" => {
                let outcome = text("outcome");
                let mark = if outcome == "answered" { "✓" } else { "✗" };
                let error = match text("error") {
                    error if error.is_empty() => String::new(),
                    error => format!(": {}", first_line(&error)),
                };
                let line = format!("{mark} {} {outcome}{error}", text("tool"));
                self.note(&cut(&line, columns, 2), Style::dim)
            }
            "caller_tool_cancelled" => {
                let line = format!("✗ {} was cancelled", text("tool"));
                self.note(&cut(&line, columns, 2), Style::dim)
            }
            "child_spawned" => {
                let line = format!("↳ started {} ({})", text("child_id"), text("agent"));
                self.note(&line, Style::dim)
            }
            "child_ended" => {
                let line = format!("↳ {} {}", text("child_id"), text("status"));
                self.note(&line, Style::dim)
            }
            "usage" => {
                self.cost_usd = event["cost_usd"].as_f64();
                String::new()
            }
            "checkpoint" => {
                self.turn = event["turn"].as_u64();
                String::new()
            }
            "rewound" => {
                let turn = event["turn"].as_u64().unwrap_or_default();
                let line = format!("↺ set back to turn {turn}: {}", text("what"));
                self.note(&line, Style::yellow)
            }
            "forked" => {
                let turn = event["turn"].as_u64().unwrap_or_default();
                let line = format!("⑂ continues {} after turn {turn}", text("from_session_id"));
                self.note(&line, Style::yellow)
            }
            "network_denied" => {
                let port = event["port"].as_u64().map(|port| format!(":{port}"));
                let (host, reason) = (text("host"), text("reason"));
                let port = port.unwrap_or_default();
                self.note(
                    &format!("· network: {host}{port} was denied ({reason})"),
                    Style::yellow,
                )
            }
            "mode" => self.note(&format!("· mode {}", text("mode")), Style::dim),
            "log" => {
                let line = format!("· {}", first_line(&text("message")));
                self.note(&cut(&line, columns, 2), Style::dim)
            }
            "error" if self.last_error.as_ref() == Some(&text("message")) => String::new(),
            "error" => self.note(&format!("✗ {}", text("message")), Style::red),
            "status" => self.status(event),
            "completion" => self.turn_end(event, columns),
            _ => String::new(),
        }
    }

    /// The tools that run now, if none of them waits for an answer.
    pub(super) fn unfinished(&mut self, columns: Option<usize>) -> String {
        if self.is_asking {
            return String::new();
        }
        let mut titles: Vec<String> = self.tools.values().map(|tool| tool.title.clone()).collect();
        titles.sort();
        let lines = titles.iter().map(|title| {
            let line = format!("▸ {} …", first_line(title));
            self.note(&cut(&line, columns, 2), Style::dim)
        });
        lines.collect::<Vec<_>>().concat()
    }

    /// The title of the tool that was started last, of those that run now.
    pub(super) fn running_tool(&self) -> Option<&str> {
        let last = self.tools.values().max_by_key(|tool| tool.started);
        last.map(|tool| tool.title.as_str())
    }

    /// Says that text was printed elsewhere, so that it is separated from what comes next.
    pub(super) fn mark_text(&mut self) -> bool {
        let separates = self.last.is_some_and(|last| last != Block::Text);
        self.last = Some(Block::Text);
        separates
    }

    /// A prompt as it was given.
    fn prompt(&mut self, event: &Value, columns: Option<usize>) -> String {
        let style = self.style;
        let text = printable(event["text"].as_str().unwrap_or_default());
        // Two columns are before each line, and the last one stays empty.
        let text = wrapped(&text, columns.map(|columns| columns.saturating_sub(3)));
        let (shown, more) = self.folded(text.trim_end().lines().collect(), FOLDED_PROMPT_LINES);
        let mut lines: Vec<String> = Vec::new();
        for (n, line) in shown.iter().enumerate() {
            let mark = if n == 0 { PROMPT_MARK } else { " " };
            lines.push(format!("{} {}", style.cyan(mark), style.bold(line)));
        }
        if more > 0 {
            lines.push(style.dim(&format!("  … {more} more lines")));
        }
        let files = event["attachments"].as_array().into_iter().flatten();
        for file in files.filter_map(Value::as_str) {
            lines.push(style.dim(&format!("  + {}", printable(file))));
        }
        self.block(Block::Prompt, &lines.join("\n"))
    }

    fn tool_result(&mut self, event: &Value, columns: Option<usize>) -> String {
        let style = self.style;
        let id = printable(event["tool_call_id"].as_str().unwrap_or_default());
        let tool = self.tools.remove(&id);
        let title = tool.as_ref().map_or("a tool", |tool| &tool.title);
        let started = tool.as_ref().and_then(|tool| tool.started);
        let time = elapsed(started, timestamp(event)).filter(|time| *time >= 0.1);
        let time = time.map_or(String::new(), |time| format!("  {}", duration(time)));
        let mark = if event["status"] == "completed" {
            style.green("✓")
        } else {
            style.red("✗")
        };
        let title = cut(first_line(title), columns, 4 + time.len());
        let mut lines = vec![format!("  {mark} {title}{}", style.dim(&time))];
        let output = printable(event["output"].as_str().unwrap_or_default());
        let output: Vec<&str> = output.trim_end().lines().collect();
        let (shown, more) = self.folded(output, FOLDED_OUTPUT_LINES);
        for line in shown {
            let line = cut(&line.replace('\t', "    "), columns, 6);
            lines.push(style.dim(&format!("    │ {line}")));
        }
        if more > 0 {
            lines.push(style.dim(&format!("    │ … {more} more lines")));
        } else if event["truncated"] == true {
            lines.push(style.dim("    │ … the rest was not kept"));
        }
        self.block(Block::Note, &lines.join("\n"))
    }

    fn plan(&mut self, event: &Value, columns: Option<usize>) -> String {
        let entries = event["entries"].as_array().into_iter().flatten();
        let lines: Vec<String> = entries
            .map(|entry| {
                let mark = match entry["status"].as_str() {
                    Some("completed") => "☑",
                    Some("in_progress") => "▸",
                    _ => "☐",
                };
                let content = printable(entry["content"].as_str().unwrap_or_default());
                let line = format!("{mark} {}", first_line(&content));
                format!("  {}", cut(&line, columns, 2))
            })
            .collect();
        self.block(Block::Note, &lines.join("\n"))
    }

    fn status(&mut self, event: &Value) -> String {
        if event["kind"] == "background" {
            self.turn_started = timestamp(event);
            return self.note("· the agent works without a prompt", Style::dim);
        }
        let status = event["status"].as_str().unwrap_or_default();
        if !status.parse().is_ok_and(Status::is_ended) {
            return String::new();
        }
        match event["error"].as_str().map(printable) {
            Some(error) if self.last_error.as_ref() == Some(&error) => {
                self.note(&format!("✗ the session {status}"), Style::red)
            }
            Some(error) => {
                let line = format!("✗ the session {status}: {error}");
                self.note(&line, Style::red)
            }
            None => self.note(&format!("· the session ended: {status}"), Style::dim),
        }
    }

    /// The mark at the end of a turn: how it ended, what it took and what it changed.
    fn turn_end(&mut self, event: &Value, columns: Option<usize>) -> String {
        self.tools.clear();
        let mut parts = Vec::new();
        let turn = match self.turn.take() {
            Some(turn) => format!("turn {turn}"),
            None => "turn".to_owned(),
        };
        let (how, is_good) = match event["stop_reason"].as_str() {
            Some("end_turn") | None => ("done", true),
            Some("cancelled") => ("interrupted", false),
            Some("refused") => ("refused", false),
            Some("limit") => ("stopped at a limit", false),
            Some(_) => ("failed", false),
        };
        parts.push(format!("{turn} {how}"));
        let time = elapsed(self.turn_started.take(), timestamp(event));
        parts.extend(time.filter(|time| *time >= 0.1).map(duration));
        let before = self.cost_before_usd.unwrap_or(0.0);
        let cost = self.cost_usd.map(|cost| cost - before);
        parts.extend(cost.filter(|cost| *cost > 0.0).map(dollars));
        parts.extend(describe_changed(&event["changed"]));
        let line = parts.join(" · ");
        let columns = columns.unwrap_or(DEFAULT_COLUMNS);
        let used = crate::terminal::width::text_columns(&line) + 4;
        let rule = "─".repeat(columns.saturating_sub(used + 1).min(DEFAULT_COLUMNS));
        let line = format!("── {line} {rule}");
        let mut shown = String::new();
        if let Some(error) = event["error"].as_str() {
            shown = self.note(&format!("✗ {}", printable(error)), Style::red);
        }
        self.last_error = event["error"].as_str().map(printable);
        let line = if is_good {
            self.style.dim(&line)
        } else {
            self.style.red(&line)
        };
        shown + &self.block(Block::TurnEnd, &line)
    }

    fn note(&mut self, text: &str, marked: fn(Style, &str) -> String) -> String {
        let lines: Vec<String> = text
            .lines()
            .map(|line| format!("  {}", marked(self.style, line)))
            .collect();
        self.block(Block::Note, &lines.join("\n"))
    }

    /// Lines that are separated from another kind of text before them.
    fn block(&mut self, block: Block, text: &str) -> String {
        if text.is_empty() {
            return String::new();
        }
        let separated = self.last.is_some_and(|last| last != block);
        self.last = Some(block);
        let before = if separated { "\n" } else { "" };
        format!("{before}{text}\n")
    }

    /// The lines to show, and how many more there are. One more line is shown rather than counted.
    fn folded<'a>(&self, mut lines: Vec<&'a str>, max_lines: usize) -> (Vec<&'a str>, usize) {
        if !self.folds || lines.len() <= max_lines + 1 {
            return (lines, 0);
        }
        let more = lines.len() - max_lines;
        lines.truncate(max_lines);
        (lines, more)
    }
}

/// A tool call in one line: its title, with the command if the title does not contain it.
pub(super) fn describe_call(event: &Value) -> String {
    let title = event["title"].as_str().unwrap_or_default();
    match event["input"]["command"].as_str() {
        Some(command) if !title.contains(command) => format!("{title}: {command}"),
        _ => title.to_owned(),
    }
}

/// What was changed, as `completion` events have it; none if it is not known.
pub(super) fn describe_changed(changed: &Value) -> Option<String> {
    let files = changed["files"].as_u64()?;
    let files = match files {
        0 => return Some("no files changed".to_owned()),
        1 => "1 file changed".to_owned(),
        files => format!("{files} files changed"),
    };
    let lines = changed["added"].as_u64().zip(changed["removed"].as_u64());
    Some(match lines {
        Some((added, removed)) => format!("{files}, +{added} −{removed}"),
        None => files,
    })
}

/// The answer to a permission request, in words.
fn describe_answer(event: &Value) -> String {
    let decision = match event["decision"].as_str() {
        Some("allow") => "allowed",
        Some("allow_always") => "allowed, also next time",
        Some("allow_project") => "allowed for the project",
        _ => "denied",
    };
    match event["by"].as_str() {
        Some("deadline") => format!("{decision}: it was not answered in time"),
        Some("withdrawn") if decision == "allowed" => {
            "no longer needed: the call went on".to_owned()
        }
        Some("withdrawn") => "not needed any more: nothing waits for it".to_owned(),
        Some("interrupt") => format!("{decision}: the turn was interrupted"),
        Some("rule") => format!("{decision}: a rule allows it now"),
        _ => decision.to_owned(),
    }
}

pub(super) fn first_line(text: &str) -> &str {
    let line = text.lines().find(|line| !line.trim().is_empty());
    line.unwrap_or_default()
}

/// A line that fits behind `taken` columns.
fn cut(line: &str, columns: Option<usize>, taken: usize) -> String {
    match columns {
        Some(columns) => fit(line, columns.saturating_sub(taken)),
        None => line.to_owned(),
    }
}

fn timestamp(event: &Value) -> Option<Timestamp> {
    event["timestamp"].as_str()?.parse().ok()
}

fn elapsed(from: Option<Timestamp>, to: Option<Timestamp>) -> Option<f64> {
    let seconds = to?.duration_since(from?).as_secs_f64();
    Some(seconds.max(0.0))
}

/// A time in seconds as people read it.
pub(super) fn duration(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        0..10 => format!("{seconds:.1}s"),
        10..60 => format!("{whole}s"),
        60..3600 => format!("{}m{:02}s", whole / 60, whole % 60),
        _ => format!("{}h{:02}m", whole / 3600, whole % 3600 / 60),
    }
}

#[cfg(test)]
mod tests;
