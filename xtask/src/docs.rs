//! `cargo xtask docs`: pages that are generated from the code, and the check that they are up to date.

use std::fmt::Write;

use oubliette_engine::operations::{self, Effect, Entry, Face};
use serde_json::Value;

use crate::root;

const GUIDE: &str = "CONTRIBUTING.md";
/// In the guide, the line before a Rust block: `<!-- quoted from PATH -->`.
const QUOTE_START: &str = "<!-- quoted from ";
const QUOTE_END: &str = " -->\n```rust\n";

/// Writes the pages, or with `check` fails if one of them would change.
pub(crate) fn run(check: bool) -> Result<(), String> {
    let root = root();
    let read = |name: &str| {
        std::fs::read_to_string(root.join(name)).map_err(|error| format!("{name}: {error}"))
    };
    let guide = with_quotes(&read(GUIDE)?, read)?;
    for (name, text) in [("docs/operations.md", operations_page()), (GUIDE, guide)] {
        let current = read(name).unwrap_or_default();
        if current == text {
            continue;
        }
        if check {
            return Err(format!(
                "{name} is out of date; run `cargo xtask docs` and commit it"
            ));
        }
        std::fs::write(root.join(name), text).map_err(|error| format!("{name}: {error}"))?;
    }
    Ok(())
}

/// The guide with every quoted block replaced by the code of its file.
fn with_quotes(
    guide: &str,
    read: impl Fn(&str) -> Result<String, String>,
) -> Result<String, String> {
    let (first, quotes) = guide
        .split_once(QUOTE_START)
        .ok_or_else(|| format!("{GUIDE} quotes no file"))?;
    let mut page = first.to_owned();
    for quote in quotes.split(QUOTE_START) {
        let parts = quote
            .split_once(QUOTE_END)
            .and_then(|(path, block)| Some((path, block.split_once("```\n")?.1)));
        let (path, after) = parts.ok_or_else(|| {
            format!("{GUIDE}: `{QUOTE_START}` needs a path and a Rust block after it")
        })?;
        let source = read(path)?;
        let code: Vec<&str> = source
            .lines()
            .skip_while(|line| line.starts_with("//!"))
            .collect();
        let code = code.join("\n");
        let _ = write!(
            page,
            "{QUOTE_START}{path}{QUOTE_END}{}\n```\n{after}",
            code.trim()
        );
    }
    Ok(page)
}

fn operations_page() -> String {
    let mut page = String::from(
        "# Operations\n\nAll operations of Oubliette. `cargo xtask docs` generates this page \
         from the registry.\n\nEach operation can be called by its own name, or as \
         an `action` of its noun's tool: `project_create {\"name\": \"x\"}` is `project \
         {\"action\": \"create\", \"name\": \"x\"}`. On the command line it is `oubliette project \
         create x`.\n\n| operation | access | effect |\n| --- | --- | --- |\n",
    );
    for entry in operations::all() {
        let _ = writeln!(
            page,
            "| [`{}`](#{}) | {} | {} |",
            entry.name,
            entry.name,
            access(entry),
            effect(entry.effect)
        );
    }
    for entry in operations::all() {
        let _ = write!(page, "\n## {}\n\n{}\n", entry.name, entry.about);
        let face = match entry.face {
            Face::Action => format!("`{}` with `action: \"{}\"`", entry.noun(), entry.verb()),
            Face::Standalone => "a tool of its own".to_owned(),
        };
        let _ = writeln!(
            page,
            "\nIn lists of unified tools: {face}. Access: {}.",
            access(entry)
        );
        let parameters: Vec<(&str, &Value)> = entry.properties().collect();
        if !parameters.is_empty() {
            page.push_str("\n| parameter | type | meaning |\n| --- | --- | --- |\n");
        }
        for (name, schema) in parameters {
            let required = if entry.requires(name) {
                ", required"
            } else {
                ""
            };
            let about = schema["description"].as_str().unwrap_or_default();
            let about = about.replace("\n\n", " ").replace('|', "\\|");
            let _ = writeln!(page, "| `{name}` | {}{required} | {about} |", kind(schema));
        }
        let fields: Vec<&str> = entry
            .output
            .get("properties")
            .and_then(Value::as_object)
            .into_iter()
            .flat_map(|properties| properties.keys().map(String::as_str))
            .collect();
        let _ = writeln!(page, "\nResult: `{}`.", fields.join("`, `"));
    }
    page
}

fn access(entry: &Entry) -> String {
    format!("{:?}", entry.access)
        .to_lowercase()
        .replace('(', ", ")
        .replace(')', "")
}

fn effect(effect: Effect) -> &'static str {
    match effect {
        Effect::Reads => "reads",
        Effect::Adds => "adds",
        Effect::Changes => "changes",
        Effect::Destroys => "destroys",
        Effect::Runs => "runs",
    }
}

fn kind(schema: &Value) -> String {
    if let Some(values) = schema["enum"].as_array() {
        let values: Vec<&str> = values.iter().filter_map(Value::as_str).collect();
        return format!("`{}`", values.join("`, `"));
    }
    schema["type"].as_str().unwrap_or("any").to_owned()
}
