//! Formats OpenSpec changes and their tasks, with progress bars.

use serde_json::{Map, Value};

use crate::terminal::{printable, table};

const BAR_WIDTH: u64 = 20;

/// `project_changes`.
pub(super) fn format_changes(result: &Map<String, Value>) -> String {
    let rows: Vec<Map<String, Value>> = objects(result, "changes").map(row).collect();
    let rows: Vec<_> = rows.iter().collect();
    let mut text = table("changes", &rows);
    for warning in objects(result, "warnings") {
        text += &format!("\n\n{}", printable(text_field(warning, "message")));
    }
    text
}

fn row(change: &Map<String, Value>) -> Map<String, Value> {
    let count = |name: &str| change.get(name).and_then(Value::as_u64).unwrap_or(0);
    let sessions = change.get("active_sessions").and_then(Value::as_array);
    let sessions = sessions.map_or(0, Vec::len);
    let cells = [
        ("name", Value::from(text_field(change, "name"))),
        (
            "progress",
            Value::from(bar(count("completedTasks"), count("totalTasks"))),
        ),
        ("status", Value::from(text_field(change, "status"))),
        ("changed", Value::from(text_field(change, "lastModified"))),
        ("sessions", Value::from(sessions)),
    ];
    cells
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// `project_tasks`.
pub(super) fn format_tasks(result: &Map<String, Value>) -> String {
    let progress = result.get("progress");
    let count = |name: &str| progress.and_then(|all| all[name].as_u64()).unwrap_or(0);
    let mut lines = vec![
        format!(
            "{}  {}  {}",
            printable(text_field(result, "changeName")),
            bar(count("complete"), count("total")),
            text_field(result, "state"),
        ),
        String::new(),
    ];
    for task in objects(result, "tasks") {
        let mark = match task.get("done") {
            Some(Value::Bool(true)) => "☑",
            _ => "☐",
        };
        lines.push(format!(
            "  {mark} {}",
            printable(text_field(task, "description"))
        ));
    }
    if lines.len() > 2 {
        lines.push(String::new());
    }
    let warnings = result.get("warnings").and_then(Value::as_array);
    let warnings = warnings.into_iter().flatten().filter_map(Value::as_str);
    let notes = warnings.flat_map(|warning| ["Warning: ", warning, "\n"]);
    let notes: String = notes.chain([text_field(result, "instruction")]).collect();
    lines.extend(notes.lines().map(printable));
    for session in objects(result, "active_sessions") {
        let (id, status) = (
            text_field(session, "session_id"),
            text_field(session, "status"),
        );
        lines.push(format!("{id} is working on it ({status})"));
    }
    lines.join("\n")
}

/// `████░░░░  2/4`, or `-` without tasks.
fn bar(done: u64, total: u64) -> String {
    if total == 0 {
        return "-".to_owned();
    }
    let filled = (done.min(total) * BAR_WIDTH / total) as usize;
    let empty = BAR_WIDTH as usize - filled;
    format!(
        "{}{}  {done}/{total}",
        "█".repeat(filled),
        "░".repeat(empty)
    )
}

fn objects<'a>(
    result: &'a Map<String, Value>,
    name: &str,
) -> impl Iterator<Item = &'a Map<String, Value>> {
    let rows = result.get(name).and_then(Value::as_array);
    rows.into_iter().flatten().filter_map(Value::as_object)
}

fn text_field<'a>(object: &'a Map<String, Value>, name: &str) -> &'a str {
    object.get(name).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_full_only_when_all_tasks_are_done() {
        assert_eq!(bar(0, 0), "-");
        assert_eq!(
            bar(1, 2),
            format!("{}{}  1/2", "█".repeat(10), "░".repeat(10))
        );
        assert!(bar(99_999, 100_000).contains('░'));
        assert!(!bar(3, 3).contains('░'));
    }
}
