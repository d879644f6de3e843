//! Output for people: tables, details and progress.

pub(crate) mod output;
pub(crate) mod style;
mod table;
pub(crate) mod width;
pub(crate) mod wrap;

use std::io::{self, StdoutLock, Write};
use std::sync::OnceLock;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::{Map, Value};

use crate::failure::Failure;

/// The first error of a write to the standard output, with which the command fails at its end.
static WRITE_ERROR: OnceLock<io::Error> = OnceLock::new();

/// Prints a result.
pub(crate) fn print_line(text: &str) {
    write_output(|stdout| writeln!(stdout, "{text}"));
}

/// Prints text that has its own line ends.
pub(crate) fn print(text: &str) {
    write_output(|stdout| stdout.write_all(text.as_bytes()));
}

fn write_output(write: impl FnOnce(&mut StdoutLock<'_>) -> io::Result<()>) {
    let mut stdout = io::stdout().lock();
    if let Err(error) = write(&mut stdout).and_then(|()| stdout.flush()) {
        note_write_error(error);
    }
}

/// Remembers that the standard output could not be written. A reader such as `head` may close the pipe early.
pub(crate) fn note_write_error(error: io::Error) {
    if error.kind() != io::ErrorKind::BrokenPipe {
        let _ = WRITE_ERROR.set(error);
    }
}

/// The failure of a command whose output was lost.
pub(crate) fn write_failure() -> Option<Failure> {
    let error = WRITE_ERROR.get()?;
    Some(Failure::with_cause("cannot write the output", error))
}

/// Prints a result as JSON.
pub(crate) fn print_json(result: &impl serde::Serialize) {
    print_line(&json_text(result));
}

/// A result as JSON that cannot control a terminal.
pub(crate) fn json_text(result: &impl serde::Serialize) -> String {
    escape_json(&serde_json::to_string_pretty(result).unwrap_or_default())
}

/// Escapes what JSON leaves as it is and terminals act on: control characters above ASCII's first, and those that change
/// the direction of text. They are only in strings.
pub(crate) fn escape_json(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        if matches!(c, '\u{7f}'..='\u{9f}') || is_bidi_control(c) {
            escaped.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            escaped.push(c);
        }
    }
    escaped
}

/// Before the lines of a list inside a single object.
const INDENT: &str = "    ";

/// Formats a result: a table for a list, one line per field for a single object.
pub(crate) fn render(result: &Map<String, Value>) -> String {
    let list = result.iter().find_map(|(name, value)| {
        let rows = value.as_array()?;
        let objects: Option<Vec<_>> = rows.iter().map(Value::as_object).collect();
        Some((name, objects?))
    });
    // An object may contain a list; a list result has at most one other field.
    let others = result
        .keys()
        .filter(|name| *name != "next_cursor")
        .count()
        .saturating_sub(1);
    match list {
        Some((name, rows)) if others <= usize::from(!rows.is_empty()) => table(name, &rows),
        _ => details(result, width::stdout_columns()),
    }
}

/// Formats rows as a table, as wide as the terminal at most.
pub(crate) fn table(name: &str, rows: &[&Map<String, Value>]) -> String {
    table_within(name, rows, width::stdout_columns())
}

/// Formats rows as a table, as wide as the terminal at most. What does not fit is left out without a word.
pub(crate) fn fitted_table(name: &str, rows: &[&Map<String, Value>]) -> String {
    table::format(name, rows, width::stdout_columns()).0
}

fn table_within(name: &str, rows: &[&Map<String, Value>], width: Option<usize>) -> String {
    let (table, left_out) = table::format(name, rows, width);
    if left_out.is_empty() {
        return table;
    }
    let left_out = left_out.join(", ").to_lowercase();
    format!("{table}\n(too narrow for: {left_out}; --json shows everything)")
}

/// One line per field; longer texts are broken between words where the terminal ends.
fn details(result: &Map<String, Value>, columns: Option<usize>) -> String {
    let shown: Vec<(&String, &Value)> = result
        .iter()
        .filter(|(name, value)| *name != "id" && *name != "next_cursor" && !is_empty(value))
        .collect();
    let width = shown.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let line = |(name, value): &(&String, &Value)| match value {
        Value::Array(items) if items.iter().all(Value::is_object) && !items.is_empty() => {
            let rows: Vec<_> = items.iter().filter_map(Value::as_object).collect();
            let width = columns.map(|columns| columns.saturating_sub(INDENT.len()));
            let indented: Vec<String> = table_within(name, &rows, width)
                .lines()
                .map(|line| format!("{INDENT}{line}"))
                .collect();
            format!("{name}\n{}", indented.join("\n"))
        }
        value => {
            // Lines of one text stay together.
            let next_line = format!("\n{:width$}  ", "");
            let columns = columns.map(|columns| columns.saturating_sub(width + 2));
            let mut text = long_cell(value);
            // Lines of a file stay as they are.
            if !text.contains('\n') {
                text = wrap::wrapped(&text, columns);
            }
            format!("{name:width$}  {}", text.replace('\n', &next_line))
        }
    };
    shown.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

fn long_cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => printable(&local_time(text).unwrap_or_else(|| text.clone())),
        // For example a limit and its source.
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| match name.as_str() {
                "value" => long_cell(value),
                "source" => format!("({})", long_cell(value)),
                name => format!("{name}={}", long_cell(value)),
            })
            .collect::<Vec<_>>()
            .join(" "),
        Value::Array(items) => items.iter().map(long_cell).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

/// Text from elsewhere, for a terminal: it must not move the cursor, change colours or titles, or reorder
/// what is shown. Lines and tabs stay.
pub(crate) fn printable(text: &str) -> String {
    let visible = text.chars().filter(|c| !is_bidi_control(*c));
    visible
        .map(|c| {
            if c.is_control() && !matches!(c, '\n' | '\t') {
                ' '
            } else {
                c
            }
        })
        .collect()
}

/// Characters that change the direction of the text after them, across the rest of the line.
fn is_bidi_control(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn local_time(text: &str) -> Option<String> {
    let looks_like_time = text.len() >= 20 && text.ends_with('Z') && text.as_bytes()[10] == b'T';
    let at: Timestamp = if looks_like_time {
        text.parse().ok()?
    } else {
        return None;
    };
    Some(
        at.to_zoned(TimeZone::system())
            .strftime("%Y-%m-%d %H:%M")
            .to_string(),
    )
}

/// The day and the time of day of a timestamp, where the user is.
pub(crate) fn day_and_time(text: &str) -> Option<(String, String)> {
    let at = text.parse::<Timestamp>().ok()?.to_zoned(TimeZone::system());
    Some((
        at.strftime("%Y-%m-%d").to_string(),
        at.strftime("%H:%M:%S").to_string(),
    ))
}

/// One line on stderr that is rewritten; only if stderr is a terminal, and as wide as that is now.
#[derive(Debug, Default)]
pub(crate) struct ProgressLine {
    shown: bool,
}

impl ProgressLine {
    pub(crate) fn show(&mut self, text: &str) {
        self.show_with_end(text, "");
    }

    /// Shows a text that is cut where the terminal is too narrow, and behind it an end that is not.
    pub(crate) fn show_with_end(&mut self, text: &str, end: &str) {
        if output::is_quiet() {
            return;
        }
        // The last column stays empty: some terminals begin a new line there.
        let Some(columns) = width::stderr_columns().map(|columns| columns.saturating_sub(1)) else {
            return;
        };
        let line = |text: &str| printable(text).replace(['\n', '\t'], " ");
        let (text, end) = (line(text), width::fit(&line(end), columns));
        let text = width::fit(&text, columns - width::text_columns(&end));
        let mut stderr = io::stderr();
        let _ = write!(stderr, "\r\x1b[K{text}{end}");
        let _ = stderr.flush();
        self.shown = true;
    }

    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

/// So that an error is not printed behind it.
impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn json_cannot_control_a_terminal_and_means_the_same() {
        let value = serde_json::json!({ "a\u{9b}b": "\u{1b}[31m\u{7f}\u{85}\u{202e}é\u{2066}\\" });
        let text = json_text(&value);
        let is_raw = |c: char| c.is_control() && c != '\n' || is_bidi_control(c);
        assert!(!text.contains(is_raw), "{text:?}");
        assert!(text.contains('é'));
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
    }

    fn rendered(value: &Value) -> String {
        render(value.as_object().unwrap())
    }

    #[test]
    fn lists_are_tables_with_names_first_and_ids_last() {
        let text = rendered(&json!({ "projects": [
            { "id": "1", "project_id": "1", "name": "a", "description": "x\u{1b}[31m" },
            { "id": "2", "project_id": "2", "name": "longer", "agent": "demo" },
        ]}));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "NAME    DESCRIPTION  AGENT  PROJECT ID");
        assert!(lines[2].starts_with("longer"), "{text}");
        assert!(!text.contains('\u{1b}'));
        assert_eq!(rendered(&json!({ "tokens": [] })), "No tokens.");
    }

    #[test]
    fn text_from_elsewhere_cannot_control_the_terminal() {
        let hostile =
            "a\u{1b}]0;title\u{7}\u{9b}31m\r\u{7f}b\tc\nd \u{202e}yned\u{202c} \u{2066}x\u{2069}";
        assert_eq!(printable(hostile), "a ]0;title  31m  b\tc\nd yned x");
    }

    #[test]
    fn empty_and_nested_fields_are_not_columns() {
        let text = rendered(&json!({ "sessions": [
            { "session_id": "1", "status": "idle", "usage": { "input_tokens": 1 }, "error": null },
        ]}));
        assert_eq!(text, "SESSION ID  STATUS\n1           idle");
    }

    #[test]
    fn single_objects_are_lines() {
        let text = rendered(&json!({ "id": "1", "project_id": "1", "env_names": ["A", "B"] }));
        assert_eq!(text, "project_id  1\nenv_names   A, B");
        let status =
            json!({ "pid": 1, "no_url_reason": "another program has the port 7433 already" });
        assert_eq!(
            details(status.as_object().unwrap(), Some(40)),
            "pid            1\nno_url_reason  another program has the\n               port 7433 already"
        );
    }
}
