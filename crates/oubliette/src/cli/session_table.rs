//! Lists of sessions for people: short ids, the name of the project, age, cost and the first words.

use std::time::Duration;

use jiff::Timestamp;
use oubliette_model::WorkspaceId;
use serde_json::{Map, Value, json};

use super::permission::dollars;
use super::transcript::first_line;
use crate::terminal;

/// What is shown for an unknown cost.
const UNKNOWN_COST: &str = "-";

/// The result of `session_list`, in which projects have their names already.
pub(super) fn format(result: &Map<String, Value>) -> String {
    let rows = result.get("sessions").and_then(Value::as_array);
    let rows = rows.into_iter().flatten().filter_map(Value::as_object);
    let rows: Vec<Map<String, Value>> = rows
        .map(|row| {
            let mut shown = common_columns(row);
            let prompt = row.get("prompt").and_then(Value::as_str);
            shown.insert(
                "prompt".to_owned(),
                first_line(prompt.unwrap_or_default()).into(),
            );
            shown
        })
        .collect();
    format_rows(&rows)
}

pub(super) fn format_rows(rows: &[Map<String, Value>]) -> String {
    let rows: Vec<&Map<String, Value>> = rows.iter().collect();
    terminal::fitted_table("sessions", &rows)
}

/// The columns of every list of sessions.
pub(super) fn common_columns(row: &Map<String, Value>) -> Map<String, Value> {
    let field = |name: &str| row.get(name).cloned().unwrap_or_default();
    let workspace = match row.get("workspace_id").and_then(Value::as_str) {
        Some(WorkspaceId::DEFAULT) | None => "",
        Some(other) => other,
    };
    let shown = json!({
        "session_id": field("session_id"), "project": field("project"), "agent": field("agent"),
        "workspace": workspace, "status": field("status"), "age": age(row), "cost": cost(row),
    });
    match shown {
        Value::Object(shown) => shown,
        _ => Map::new(),
    }
}

/// How long ago the session was started.
pub(super) fn age(row: &Map<String, Value>) -> String {
    let created = row.get("created_at").and_then(Value::as_str);
    let created = created.and_then(|text| text.parse::<Timestamp>().ok());
    let age = created.map(|created| Timestamp::now().duration_since(created));
    let age = age.and_then(|age| Duration::try_from(age).ok());
    short_time(age.unwrap_or_default())
}

/// A time with its largest unit only.
fn short_time(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86400),
    }
}

pub(super) fn cost(row: &Map<String, Value>) -> String {
    match row.get("cost_usd").and_then(Value::as_f64) {
        Some(0.0) => "$0".to_owned(),
        Some(cost) => dollars(cost),
        None => UNKNOWN_COST.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_cost_is_not_nothing() {
        let row = |cost: Value| Map::from_iter([("cost_usd".to_owned(), cost)]);
        assert_eq!(cost(&row(Value::Null)), "-");
        assert_eq!(cost(&Map::new()), "-");
        assert_eq!(cost(&row(json!(0.0))), "$0");
        assert_eq!(cost(&row(json!(0.0123))), "$0.0123");
    }

    #[test]
    fn an_age_has_one_unit() {
        let times = [(59, "59s"), (60, "1m"), (7199, "1h"), (200_000, "2d")];
        for (seconds, expected) in times {
            assert_eq!(short_time(Duration::from_secs(seconds)), expected);
        }
    }
}
