//! What a permission request is about: the command, the files and the changes, in full.

use std::time::{Duration, Instant};

use serde_json::Value;
use similar::{Algorithm, ChangeTag, DiffOp};

use crate::cli::permission::dollars;
use crate::terminal::printable;
use crate::terminal::style::Style;

const INDENT: &str = "    ";
const CONTEXT_LINES: usize = 3;
/// A longer comparison shows more lines as changed than have changed.
const MAX_DIFF_TIME: Duration = Duration::from_millis(300);

/// Formats a `permission_request` event: what is asked, and everything that a yes would do.
pub(in crate::cli) fn describe_request(event: &Value, style: Style) -> String {
    let title = printable(event["title"].as_str().unwrap_or_default());
    let input = &event["input"];
    let mut lines: Vec<String> = Vec::new();
    for (n, line) in title.lines().enumerate() {
        let mark = if n == 0 { "?" } else { " " };
        lines.push(format!("  {} {}", style.yellow(mark), style.bold(line)));
    }
    if event["kind"] == "budget" {
        let amount = |name: &str| input[name].as_f64().map(dollars);
        if let (Some(cost), Some(limit)) = (amount("cost_usd"), amount("max_cost_usd")) {
            lines.push(format!("{INDENT}the session has cost {cost} of {limit}"));
        }
        return lines.join("\n");
    }
    if event["kind"] == "network" {
        // The title names the host and the port.
        return lines.join("\n");
    }
    let mut known = Vec::new();
    if let Some(command) = input["command"].as_str() {
        known.push("command");
        if title.trim() != printable(command).trim() {
            let command = printable(command);
            lines.extend(command.lines().map(|line| format!("{INDENT}$ {line}")));
        }
    }
    if let Some(paths) = input["paths"].as_array() {
        known.push("paths");
        let paths = paths.iter().filter_map(Value::as_str);
        lines.extend(paths.map(|path| format!("{INDENT}{}", printable(path))));
    }
    if let Some(changes) = input["changes"].as_array() {
        known.push("changes");
        for change in changes {
            lines.extend(describe_change(change, style));
        }
    }
    for (name, value) in input.as_object().into_iter().flatten() {
        if known.contains(&name.as_str()) || value.is_null() {
            continue;
        }
        let value = match value {
            Value::String(text) => printable(text),
            other => printable(&other.to_string()),
        };
        let mut parts = value.lines();
        let first = parts.next().unwrap_or_default();
        lines.push(format!(
            "{INDENT}{} {first}",
            style.dim(&format!("{}:", printable(name)))
        ));
        lines.extend(parts.map(|line| format!("{INDENT}  {line}")));
    }
    lines.join("\n")
}

/// The diff of one file.
fn describe_change(change: &Value, style: Style) -> Vec<String> {
    let text = |name: &str| printable(change[name].as_str().unwrap_or_default());
    let (path, old, new) = (text("path"), text("old_text"), text("new_text"));
    let what = match (old.is_empty(), new.is_empty()) {
        (true, false) => " (new text)",
        (false, true) => " (removed)",
        _ => "",
    };
    let mut lines = vec![format!("{INDENT}{}{}", style.bold(&path), style.dim(what))];
    let old: Vec<&str> = old.lines().collect();
    let new: Vec<&str> = new.lines().collect();
    let deadline = Some(Instant::now() + MAX_DIFF_TIME);
    let operations = similar::capture_diff_slices_deadline(Algorithm::Myers, &old, &new, deadline);
    for (n, group) in similar::group_diff_ops(operations, CONTEXT_LINES)
        .iter()
        .enumerate()
    {
        if n > 0 {
            lines.push(format!("{INDENT}{}", style.dim("⋯")));
        }
        lines.extend(
            group
                .iter()
                .flat_map(|operation| describe_lines(operation, &old, &new, style)),
        );
    }
    if change["truncated"] == true {
        lines.push(format!(
            "{INDENT}{}",
            style.yellow("(the text was too long and is not shown in full)")
        ));
    }
    lines
}

fn describe_lines(operation: &DiffOp, old: &[&str], new: &[&str], style: Style) -> Vec<String> {
    let changes = operation.iter_changes(old, new);
    let lines = changes.map(|change| {
        let line = change.value();
        let line = match change.tag() {
            ChangeTag::Equal => format!("  {line}"),
            ChangeTag::Delete => style.red(&format!("- {line}")),
            ChangeTag::Insert => style.green(&format!("+ {line}")),
        };
        format!("{INDENT}{line}")
    });
    lines.collect()
}
