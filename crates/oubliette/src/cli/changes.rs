//! OpenSpec changes and their tasks for people: how far they are, at a glance.

use serde_json::{Map, Value};

use crate::terminal::{printable, table};

const WIDE: u64 = 20;

/// `project_changes`.
pub(super) fn changes(result: &Map<String, Value>) -> String {
    let rows: Vec<Map<String, Value>> = objects(result, "changes").map(row).collect();
    let rows: Vec<_> = rows.iter().collect();
    let mut text = table("changes", &rows);
    for warning in objects(result, "warnings") {
        text += &format!("\n\n{}", printable(words(warning, "message")));
    }
    text
}

fn row(change: &Map<String, Value>) -> Map<String, Value> {
    let count = |name: &str| change.get(name).and_then(Value::as_u64).unwrap_or(0);
    let sessions = change.get("active_sessions").and_then(Value::as_array);
    let sessions = sessions.map_or(0, Vec::len);
    let cells = [
        ("name", Value::from(words(change, "name"))),
        (
            "progress",
            Value::from(bar(count("completedTasks"), count("totalTasks"))),
        ),
        ("status", Value::from(words(change, "status"))),
        ("changed", Value::from(words(change, "lastModified"))),
        ("sessions", Value::from(sessions)),
    ];
    cells
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// `project_tasks`.
pub(super) fn tasks(result: &Map<String, Value>) -> String {
    let progress = result.get("progress");
    let count = |name: &str| progress.and_then(|all| all[name].as_u64()).unwrap_or(0);
    let mut lines = vec![
        format!(
            "{}  {}  {}",
            printable(words(result, "changeName")),
            bar(count("complete"), count("total")),
            words(result, "state"),
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
            printable(words(task, "description"))
        ));
    }
    if lines.len() > 2 {
        lines.push(String::new());
    }
    let warnings = result.get("warnings").and_then(Value::as_array);
    let warnings = warnings.into_iter().flatten().filter_map(Value::as_str);
    let said = warnings.flat_map(|warning| ["Warning: ", warning, "\n"]);
    let said: String = said.chain([words(result, "instruction")]).collect();
    lines.extend(said.lines().map(printable));
    for session in objects(result, "active_sessions") {
        let (id, status) = (words(session, "session_id"), words(session, "status"));
        lines.push(format!("{id} works on it ({status})"));
    }
    lines.join("\n")
}

/// `████░░░░  2/4`; nothing if there is nothing to do.
fn bar(done: u64, total: u64) -> String {
    if total == 0 {
        return "-".to_owned();
    }
    let filled = (done.min(total) * WIDE / total) as usize;
    let empty = WIDE as usize - filled;
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

fn words<'a>(of: &'a Map<String, Value>, name: &str) -> &'a str {
    of.get(name).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_full_only_when_all_is_done() {
        assert_eq!(bar(0, 0), "-");
        assert_eq!(
            bar(1, 2),
            format!("{}{}  1/2", "█".repeat(10), "░".repeat(10))
        );
        assert!(bar(99_999, 100_000).contains('░'));
        assert!(!bar(3, 3).contains('░'));
    }
}
