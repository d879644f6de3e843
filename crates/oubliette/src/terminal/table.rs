//! Tables: rows as wide as the terminal. On a terminal, ids are as short as the beginning that still names one
//! thing; other columns are cut, and the least important ones left out. Elsewhere everything is whole.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::width::{fit, text_columns};
use super::{is_empty, long_cell};

/// The maximum width of a cell on a terminal, in characters, unless the column is the last one.
const MAX_CELL_CHARS: usize = 60;
/// What a column with text may be cut to.
const MIN_TEXT_COLUMNS: usize = 12;
/// What a column with words of people and agents may be cut to.
const MIN_WORDS_COLUMNS: usize = 20;
/// How much of the random part of an id is shown at least.
const MIN_ID_CHARS: usize = 8;
const GAP: &str = "  ";

/// Columns that tables leave out: `id` repeats for example `project_id`, and `get` commands show the others.
const HIDDEN_COLUMNS: [&str; 4] = ["id", "updated_at", "last_index", "depth"];

/// Ids of which commands take the beginning.
const SHORT_IDS: [&str; 5] = [
    "project_id",
    "session_id",
    "parent_id",
    "schedule_id",
    "token_id",
];

/// Columns with words of people and agents.
const WORDS: [&str; 2] = ["prompt", "now"];

/// Formats rows as a table that is at most `width` wide. `name` is what the rows are, in the plural.
pub(super) fn format(
    name: &str,
    rows: &[&Map<String, Value>],
    width: Option<usize>,
) -> (String, Vec<String>) {
    if rows.is_empty() {
        return (format!("No {name}."), Vec::new());
    }
    let mut columns: Vec<Column> = names_of_columns(name, rows)
        .into_iter()
        .map(|column| Column::new(name, column, rows, width.is_some()))
        .collect();
    let mut left_out = Vec::new();
    if let Some(width) = width {
        while min_width(&columns) > width
            && let Some(at) = least_important(&columns)
        {
            left_out.push(columns.remove(at).title);
        }
        shrink(&mut columns, width);
    }
    let lines = (0..=rows.len()).map(|n| {
        let cells = columns.iter().map(|column| column.padded(n));
        let line = cells.collect::<Vec<_>>().join(GAP);
        line.trim_end().to_owned()
    });
    (lines.collect::<Vec<_>>().join("\n"), left_out)
}

/// A column with its title as the first cell.
struct Column {
    title: String,
    cells: Vec<String>,
    width: usize,
    min_width: usize,
    importance: Importance,
}

/// How late a column is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Importance {
    /// Ids of other things.
    Reference,
    Time,
    Detail,
    Main,
    /// What identifies the row.
    Key,
}

impl Column {
    /// With `shortens`, ids and long texts are shortened.
    fn new(table: &str, column: &str, rows: &[&Map<String, Value>], shortens: bool) -> Self {
        let title = column.to_uppercase().replace('_', " ");
        let mut cells = vec![title.clone()];
        cells.extend(rows.iter().map(|row| cell(row.get(column))));
        if shortens && SHORT_IDS.contains(&column) {
            shorten_ids(&mut cells[1..]);
        } else if shortens && !WORDS.contains(&column) {
            for cell in &mut cells {
                *cell = fit(cell, MAX_CELL_CHARS);
            }
        }
        let width = cells.iter().map(|cell| text_columns(cell)).max();
        let width = width.unwrap_or(0);
        let importance = importance(table, column);
        let values = rows.iter().filter_map(|row| row.get(column));
        let mut texts = values.filter(|value| !value.is_number() && !value.is_boolean());
        let may_be_cut = !column.ends_with("_id") && !is_time(column);
        let min_width = if may_be_cut && texts.next().is_some() {
            width.min(if WORDS.contains(&column) {
                MIN_WORDS_COLUMNS
            } else {
                MIN_TEXT_COLUMNS
            })
        } else {
            width
        };
        Self {
            title,
            cells,
            width,
            min_width,
            importance,
        }
    }

    fn padded(&self, n: usize) -> String {
        let cell = fit(&self.cells[n], self.width);
        let padding = self.width.saturating_sub(text_columns(&cell));
        cell + &" ".repeat(padding)
    }
}

fn is_time(column: &str) -> bool {
    column == "at" || column.ends_with("_at")
}

fn importance(table: &str, column: &str) -> Importance {
    let singular = table.strip_suffix('s').unwrap_or(table);
    match column {
        "name" => Importance::Key,
        column if column.strip_suffix("_id") == Some(singular) => Importance::Key,
        "agent" | "workspace" if table == "sessions" => Importance::Reference,
        "prompt" | "now" | "age" => Importance::Main,
        "status" | "at" | "due_at" | "operation" | "outcome" | "kind" | "type" | "next_run"
        | "project" | "scope" | "result" | "text" | "title" | "problem" => Importance::Main,
        "workspace_id" => Importance::Detail,
        column if column.ends_with("_id") => Importance::Reference,
        column if is_time(column) => Importance::Time,
        _ => Importance::Detail,
    }
}

fn min_width(columns: &[Column]) -> usize {
    let widths: usize = columns.iter().map(|column| column.min_width).sum();
    widths + GAP.len() * columns.len().saturating_sub(1)
}

/// The column to leave out next: of the least important ones, the last.
fn least_important(columns: &[Column]) -> Option<usize> {
    let candidates = columns.iter().enumerate();
    let candidates = candidates.filter(|(_, column)| column.importance < Importance::Key);
    let found = candidates.min_by_key(|(at, column)| (column.importance, usize::MAX - at));
    found.map(|(at, _)| at)
}

/// Makes the widest columns narrower until the table fits.
fn shrink(columns: &mut [Column], width: usize) {
    let gaps = GAP.len() * columns.len().saturating_sub(1);
    loop {
        let total: usize = columns.iter().map(|column| column.width).sum();
        if total + gaps <= width {
            return;
        }
        let can_shrink = columns
            .iter_mut()
            .filter(|column| column.width > column.min_width);
        match can_shrink.max_by_key(|column| column.width) {
            Some(widest) => widest.width -= 1,
            None => return,
        }
    }
}

/// Name first, ids last; without a name, the row's own id is first.
fn names_of_columns<'a>(table: &str, rows: &[&'a Map<String, Value>]) -> Vec<&'a str> {
    let mut columns: Vec<&str> = Vec::new();
    for row in rows {
        for (name, value) in *row {
            let hidden = match value {
                Value::Array(_) => true,
                Value::Object(fields) => !fields.contains_key("value"),
                _ => HIDDEN_COLUMNS.contains(&name.as_str()) || is_empty(value),
            };
            if !hidden && !columns.contains(&name.as_str()) {
                columns.push(name);
            }
        }
    }
    let has_name = columns.contains(&"name");
    let rank = |name: &str| match name {
        "name" => 0,
        name if !has_name && importance(table, name) == Importance::Key => 0,
        name if name.ends_with("_id") => 2,
        _ => 1,
    };
    columns.sort_by_key(|name| rank(name));
    columns
}

fn cell(value: Option<&Value>) -> String {
    let text = value.map(long_cell).unwrap_or_default();
    text.lines().next().unwrap_or_default().replace('\t', " ")
}

/// Cuts ids to the shortest beginnings that differ.
fn shorten_ids(ids: &mut [String]) {
    let all: BTreeSet<String> = ids.iter().cloned().collect();
    for id in ids {
        let prefix = id.find('_').map_or(0, |at| at + 1);
        let is_random = |c: char| c.is_ascii_hexdigit() || c == '-';
        // Other ids, for example those of the future, stay as they are.
        if id.len() < prefix + 32 || !id[prefix..].chars().all(is_random) {
            continue;
        }
        let mut length = prefix + MIN_ID_CHARS;
        while all
            .iter()
            .any(|other| other != id && other.starts_with(&id[..length]))
        {
            length += 1;
        }
        id.truncate(length);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ID: &str = "1b4e28ba-2fa1-41d2-883f-0016d3cca427";

    fn formatted(name: &str, rows: &[Value], width: usize) -> (String, Vec<String>) {
        let rows: Vec<_> = rows.iter().filter_map(Value::as_object).collect();
        format(name, &rows, Some(width))
    }

    #[test]
    fn a_table_fits_the_terminal_and_keeps_the_id_of_each_row() {
        let rows = [
            json!({ "name": "a".repeat(70), "description": "b".repeat(50), "agent": "demo",
                "created_at": "2027-01-04T05:00:00Z", "project_id": ID }),
            json!({ "name": "漢".repeat(40), "description": "", "agent": "opencode", "project_id": ID }),
        ];
        for width in [50, 60, 80, 120] {
            let (text, left_out) = formatted("projects", &rows, width);
            for line in text.lines() {
                assert!(text_columns(line) <= width, "{width}: {line}");
            }
            assert_eq!(text.matches(&ID[..8]).count(), 2, "{text}");
            assert_eq!(left_out.contains(&"CREATED AT".to_owned()), width <= 60);
        }
        let (text, left_out) = formatted("projects", &rows, 300);
        assert!(left_out.is_empty() && text.contains(&"b".repeat(50)));
    }

    #[test]
    fn without_a_terminal_nothing_is_cut() {
        let row = json!({ "name": "a".repeat(300), "project_id": ID });
        let rows = [row.as_object().unwrap()];
        let (text, _) = format("projects", &rows, None);
        assert!(
            text.contains(&"a".repeat(300)) && text.contains(ID),
            "{text}"
        );
    }

    #[test]
    fn ids_of_other_things_are_left_out_first() {
        let rows = [json!({
            "at": "2027-01-04T05:00:00Z", "operation": "project_create", "outcome": "ok",
            "token_id": ID, "project_id": ID, "address": "127.0.0.1",
        })];
        let (text, left_out) = formatted("entries", &rows, 55);
        assert_eq!(left_out, ["PROJECT ID", "TOKEN ID"]);
        assert!(text.contains("project_create") && text.contains("127.0.0.1"));
    }

    #[test]
    fn ids_are_cut_to_beginnings_that_differ() {
        let same = format!("{}0{}", &ID[..12], &ID[13..]);
        let mut ids = [
            ID,
            &same,
            "gogol_00112233445566778899aabbccddeeff",
            "name",
            "",
        ]
        .map(str::to_owned);
        shorten_ids(&mut ids);
        assert_eq!(
            ids,
            [
                "1b4e28ba-2fa1",
                "1b4e28ba-2fa0",
                "gogol_00112233",
                "name",
                ""
            ]
        );
    }

    #[test]
    fn a_terminal_that_is_too_narrow_for_an_id_gets_the_whole_id() {
        let rows = [json!({ "status": "idle", "session_id": ID })];
        let (text, _) = formatted("sessions", &rows, 9);
        assert_eq!(text, "SESSION ID\n1b4e28ba");
    }
}
