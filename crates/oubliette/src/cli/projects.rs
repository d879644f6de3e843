//! Formats a project: which variables are hidden in what agents write, and which limits do not hold here.

use serde_json::{Map, Value, json};

const NOT_ENFORCED: &str = "(not enforced here: see `oubliette doctor`)";

/// The fields to display of a project.
pub(super) fn for_display(result: &Map<String, Value>) -> Map<String, Value> {
    let mut shown = Map::new();
    for (name, value) in result {
        match name.as_str() {
            "env_names" => {
                let hidden = texts(result, "hidden_env_names");
                let mark = |name: &str| {
                    let is_hidden = hidden.contains(&name);
                    format!("{name} ({})", if is_hidden { "hidden" } else { "shown" })
                };
                let names: Vec<String> = texts(result, "env_names").into_iter().map(mark).collect();
                shown.insert("env".to_owned(), json!(names));
            }
            "hidden_env_names" | "not_enforced" | "restart_needed" | "warnings" => {}
            name if texts(result, "not_enforced").contains(&name) => {
                shown.insert(name.to_owned(), json!(format!("{value} {NOT_ENFORCED}")));
            }
            _ => drop(shown.insert(name.clone(), value.clone())),
        }
    }
    shown
}

/// The variables of a project that an update has removed.
pub(super) fn removed_variables(
    before: &Map<String, Value>,
    after: &Map<String, Value>,
) -> Vec<String> {
    let kept = texts(after, "env_names");
    let removed = texts(before, "env_names")
        .into_iter()
        .filter(|name| !kept.contains(name));
    removed.map(str::to_owned).collect()
}

fn texts<'a>(result: &'a Map<String, Value>, name: &str) -> Vec<&'a str> {
    let values = result.get(name).and_then(Value::as_array);
    let values = values.into_iter().flatten();
    values.filter_map(Value::as_str).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_variables_and_limits_that_do_not_hold_are_marked() {
        let project = json!({
            "name": "app", "memory_mb": 64, "cpus": 2.0, "env_names": ["API_KEY", "DEBUG"],
            "hidden_env_names": ["API_KEY"], "not_enforced": ["memory_mb"], "warnings": ["x"],
        });
        assert_eq!(
            Value::Object(for_display(project.as_object().unwrap())),
            json!({
                "name": "app", "cpus": 2.0, "env": ["API_KEY (hidden)", "DEBUG (shown)"],
                "memory_mb": "64 (not enforced here: see `oubliette doctor`)",
            })
        );
    }
}
