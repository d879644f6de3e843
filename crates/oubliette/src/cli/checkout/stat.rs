//! `oubliette diff --stat`: how many lines of each file have changed, and the sum in the words in which `run` and
//! `attach` say it. The numbers are git's or the server's; both look the same.

use serde_json::{Map, Value, json};

use crate::cli::transcript::describe_changed;
use crate::terminal::style::Style;
use crate::terminal::width::{stdout_columns, text_columns};
use crate::terminal::{print_line, printable};

/// The widest bar of `+` and `-`.
const MAX_BAR_COLUMNS: usize = 40;
const MIN_BAR_COLUMNS: usize = 5;
const MIN_NAME_COLUMNS: usize = 16;

/// A changed file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct FileStat {
    path: String,
    /// The former path of a renamed file.
    old_path: Option<String>,
    added: u64,
    removed: u64,
    is_binary: bool,
}

impl FileStat {
    fn name(&self) -> String {
        let name = match &self.old_path {
            Some(old) => format!("{old} => {}", self.path),
            None => self.path.clone(),
        };
        printable(&name).replace(['\n', '\t'], " ")
    }

    fn lines(&self) -> u64 {
        self.added.saturating_add(self.removed)
    }
}

/// Reads the output of `git diff --numstat -z -M100%`.
pub(super) fn from_git(output: &[u8]) -> Vec<FileStat> {
    let mut fields = output
        .split(|byte| *byte == 0)
        .map(|field| String::from_utf8_lossy(field).into_owned());
    let mut files = Vec::new();
    while let Some(field) = fields.next() {
        let mut words = field.splitn(3, '\t');
        let (Some(added), Some(removed), Some(path)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        let count = |text: &str| text.parse::<u64>().unwrap_or(0);
        let mut file = FileStat {
            path: path.to_owned(),
            added: count(added),
            removed: count(removed),
            // A dash in place of the numbers.
            is_binary: added == "-",
            old_path: None,
        };
        if path.is_empty() {
            // Of a renamed file both paths follow.
            file.old_path = fields.next();
            file.path = fields.next().unwrap_or_default();
        }
        files.push(file);
    }
    files
}

/// Reads the `files` of `session_diff`.
pub(super) fn from_server(result: &Map<String, Value>) -> Vec<FileStat> {
    let files = result.get("files").and_then(Value::as_array);
    let read = |file: &Value| {
        let text = |name: &str| file[name].as_str().map(str::to_owned);
        FileStat {
            path: text("path").unwrap_or_default(),
            old_path: text("old_path"),
            added: file["added"].as_u64().unwrap_or(0),
            removed: file["removed"].as_u64().unwrap_or(0),
            is_binary: file["binary"] == true,
        }
    };
    files.into_iter().flatten().map(read).collect()
}

/// The result of `session_diff`: its patch, or without one a line per file and the sum.
pub(in crate::cli) fn describe_diff(result: &Map<String, Value>) -> String {
    match result.get("diff").and_then(Value::as_str) {
        Some(diff) if !diff.is_empty() => printable(diff.trim_end_matches('\n')),
        _ => format(&from_server(result), stdout_columns(), Style::of_stdout()),
    }
}

/// Prints a line per file and the sum, as wide as the terminal at most.
pub(super) fn print(files: &[FileStat]) {
    print_line(&format(files, stdout_columns(), Style::of_stdout()));
}

fn format(files: &[FileStat], columns: Option<usize>, style: Style) -> String {
    let sum = |count: fn(&FileStat) -> u64| files.iter().map(count).sum::<u64>();
    let changed = json!({
        "files": files.len(), "added": sum(|file| file.added), "removed": sum(|file| file.removed),
    });
    let total = describe_changed(&changed).unwrap_or_default();
    let names: Vec<String> = files.iter().map(FileStat::name).collect();
    let counts: Vec<String> = files
        .iter()
        .map(|file| {
            if file.is_binary {
                "binary".to_owned()
            } else {
                file.lines().to_string()
            }
        })
        .collect();
    let widest = |texts: &[String]| texts.iter().map(|text| text_columns(text)).max();
    let (mut name_columns, count_columns) =
        (widest(&names).unwrap_or(0), widest(&counts).unwrap_or(0));
    // Between them are " ", " | " and " ".
    let others = count_columns + 5;
    let mut bar_columns = MAX_BAR_COLUMNS;
    if let Some(columns) = columns {
        let left = columns.saturating_sub(others + MIN_BAR_COLUMNS);
        name_columns = name_columns.min(left.max(MIN_NAME_COLUMNS));
        bar_columns = columns
            .saturating_sub(others + name_columns)
            .clamp(MIN_BAR_COLUMNS, MAX_BAR_COLUMNS);
    }
    let most = files.iter().map(FileStat::lines).max().unwrap_or(0);
    let mut lines: Vec<String> = Vec::new();
    for ((file, name), count) in files.iter().zip(&names).zip(&counts) {
        let name = end_of(name, name_columns);
        let padding = " ".repeat(name_columns.saturating_sub(text_columns(&name)));
        let scaled = |lines: u64| scale(lines, most, bar_columns);
        let bar = style.green(&"+".repeat(scaled(file.added)))
            + &style.red(&"-".repeat(scaled(file.removed)));
        let line = format!(" {name}{padding} | {count:>count_columns$} {bar}");
        lines.push(line.trim_end().to_owned());
    }
    lines.push(total);
    lines.join("\n")
}

/// The part of a bar for a number of lines: all of them if they fit, and at least one sign.
fn scale(lines: u64, most: u64, columns: usize) -> usize {
    let columns = u64::try_from(columns).unwrap_or(u64::MAX);
    let signs = if most <= columns {
        lines
    } else {
        lines.saturating_mul(columns.saturating_sub(1)) / most
    };
    usize::try_from(signs.max(u64::from(lines > 0))).unwrap_or(usize::MAX)
}

/// A path, or as much of its end as fits: that is what tells files apart.
fn end_of(name: &str, columns: usize) -> String {
    if text_columns(name) <= columns {
        return name.to_owned();
    }
    let mut start = name.len();
    for (at, _) in name.char_indices().rev() {
        if text_columns(&name[at..]) + 1 > columns {
            break;
        }
        start = at;
    }
    format!("…{}", &name[start..])
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMBERS: &[u8] = b"3\t1\ta\x00-\t-\tbin\x00100\t0\t\x00old/name\x00new/name\x00";

    #[test]
    fn numbers_of_git_and_of_the_server_look_the_same() {
        let files = json!({ "files": [
            { "path": "a", "status": "modified", "added": 3, "removed": 1, "binary": false },
            { "path": "bin", "status": "modified", "added": 0, "removed": 0, "binary": true },
            { "path": "new/name", "old_path": "old/name", "status": "renamed", "added": 100, "removed": 0,
              "binary": false },
        ] });
        let of_server = from_server(files.as_object().unwrap());
        assert_eq!(of_server, from_git(NUMBERS));
        let shown = format(&of_server, None, Style::PLAIN);
        let bar = "+".repeat(39);
        let expected = format!(
            " a                    |      4 +-\n bin                  | binary\n \
             old/name => new/name |    100 {bar}\n3 files changed, +103 −1"
        );
        assert_eq!(shown, expected);
        assert_eq!(format(&[], None, Style::PLAIN), "no files changed");
    }

    #[test]
    fn lines_fit_the_terminal_and_keep_the_ends_of_paths() {
        let file = FileStat {
            path: "a/very/long/path/to/a/file/that/has/a/name.rs".to_owned(),
            added: 900,
            removed: 100,
            ..FileStat::default()
        };
        for columns in [40, 60, 80] {
            let shown = format(std::slice::from_ref(&file), Some(columns), Style::PLAIN);
            let line = shown.lines().next().unwrap();
            assert!(text_columns(line) <= columns, "{columns}: {line}");
            assert!(line.contains("name.rs |") && line.contains("+-"), "{line}");
        }
        let coloured = format(&[file], Some(80), Style::COLOURED);
        assert!(coloured.contains("\u{1b}[32m+") && coloured.contains("\u{1b}[31m-"));
    }
}
