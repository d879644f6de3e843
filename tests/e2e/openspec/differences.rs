//! Where the server answers otherwise than the command, on purpose. `docs/openspec.md` says why; what
//! is not listed there and here is the same.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde_json::{Value, json};
use support::Server;

use super::command::OpenSpec;
use super::corpus::Case;
use super::{list, project, tasks, their_list, theirs};

const DOCUMENT: &str = include_str!("../../../docs/openspec.md");

/// A directory about which the two disagree.
struct Difference {
    /// How the document calls it.
    called: &'static str,
    case: Case,
    /// What is more than a case can hold.
    also: fn(&Path),
    /// What to look at in the answers: of the list, and of the tasks of `c`.
    list: (Value, Value),
    tasks: (Value, Value),
}

const SAME: fn(&Path) = |_| {};

fn differences() -> Vec<Difference> {
    let ready = || json!("ready");
    let blocked = || json!("blocked");
    let failed = || json!("failed");
    let one = |done: u32, total: u32| json!([["c", done, total]]);
    let schema = |generates: &str| {
        format!(
            "name: s\nversion: 1\nartifacts:\n- {{id: a, generates: '{generates}', description: d, \
             template: t}}\napply: {{requires: [a], tracks: '{generates}'}}\n"
        )
    };
    let with_schema = |generates: &str| {
        Case::new("")
            .file("openspec/schemas/s/schema.yaml", schema(generates))
            .file("openspec/config.yaml", "schema: s\n")
            .of_change("a1.md", "- [x] a\n")
    };
    vec![
        Difference {
            called: "Links out of a change",
            case: Case::new("")
                .file("shared.md", "- [x] a\n")
                .link("openspec/changes/c/tasks.md", "../../../shared.md"),
            also: SAME,
            list: (one(0, 0), failed()),
            tasks: (failed(), failed()),
        },
        Difference {
            called: "Links out of a change",
            case: Case::new("").link("openspec/changes/c/tasks.md", "nothing.md"),
            also: SAME,
            list: (one(0, 0), failed()),
            tasks: (failed(), failed()),
        },
        Difference {
            called: "Links out of the workspace",
            case: Case::new("").directory("openspec/specs"),
            also: |top| {
                let outside = top.parent().unwrap().join("outside");
                Case::new("")
                    .file("c/tasks.md", "- [x] a\n")
                    .write(&outside);
                std::os::unix::fs::symlink(&outside, top.join("openspec/changes")).unwrap();
            },
            list: (failed(), one(1, 1)),
            tasks: (failed(), json!("all_done")),
        },
        Difference {
            called: "Names that are not text",
            case: Case::new("").of_change("tasks.md", "- [x] a\n"),
            also: |top| {
                let name = OsStr::from_bytes(b"openspec/changes/\xff");
                std::fs::create_dir(top.join(name)).unwrap();
            },
            list: (one(1, 1), failed()),
            tasks: (json!("all_done"), json!("all_done")),
        },
        Difference {
            called: "Files that are too large",
            case: Case::new("").of_change("tasks.md", format!("- [ ] a\n{}", "x".repeat(8 << 20))),
            also: SAME,
            list: (one(0, 0), one(0, 1)),
            tasks: (blocked(), ready()),
        },
        Difference {
            called: "Patterns",
            case: with_schema("@(a|b)1.md"),
            also: SAME,
            list: (one(0, 0), one(1, 1)),
            tasks: (failed(), json!("all_done")),
        },
        Difference {
            called: "Patterns",
            case: with_schema("a{1..3}.md"),
            also: SAME,
            list: (one(0, 0), one(1, 1)),
            tasks: (failed(), json!("all_done")),
        },
        Difference {
            called: "Names with a backslash",
            case: Case::new("")
                .file("openspec/schemas/s/schema.yaml", schema("*.md"))
                .file("openspec/config.yaml", "schema: s\n")
                .file("openspec/changes/a\\b/x.md", "- [x] a\n"),
            also: SAME,
            list: (json!([["a\\b", 1, 1]]), json!([["a\\b", 0, 0]])),
            tasks: (failed(), failed()),
        },
        Difference {
            called: "Broken YAML",
            case: Case::new("")
                .file(
                    "openspec/config.yaml",
                    "operations: {apply: {guidance: [a], two\nlines: b}}\n",
                )
                .of_change("tasks.md", "- [ ] a\n"),
            also: SAME,
            list: (one(0, 1), one(0, 1)),
            tasks: (json!(["ready", ["a"]]), ready()),
        },
        Difference {
            called: "Stores",
            case: Case::new("")
                .file("openspec/config.yaml", "references: [other]\n")
                .of_change("tasks.md", "- [ ] a\n"),
            also: SAME,
            list: (one(0, 1), one(0, 1)),
            tasks: (ready(), json!(["ready", "references"])),
        },
        Difference {
            called: "Stores",
            case: Case::new("").file("openspec/config.yaml", "store: other\n"),
            also: SAME,
            list: (json!([]), failed()),
            tasks: (failed(), failed()),
        },
        Difference {
            called: "No OpenSpec",
            case: Case::new("").file("README.md", "x"),
            also: SAME,
            list: (json!([]), failed()),
            tasks: (failed(), failed()),
        },
    ]
}

/// Names and numbers of a list.
fn counted(answer: &Value) -> Value {
    match answer["changes"].as_array() {
        Some(changes) => changes
            .iter()
            .map(|change| {
                json!([
                    change["name"],
                    change["completedTasks"],
                    change["totalTasks"]
                ])
            })
            .collect(),
        None => answer.clone(),
    }
}

/// The state, and what only some answers have.
fn state(answer: &Value) -> Value {
    match (answer.get("operationGuidance"), answer.get("references")) {
        _ if answer == "failed" => answer.clone(),
        (Some(guidance), _) => json!([answer["state"], guidance]),
        (None, Some(_)) => json!([answer["state"], "references"]),
        (None, None) => answer["state"].clone(),
    }
}

#[test(needs(openspec))]
async fn answers_differ_only_where_the_document_says_so() {
    let titles: Vec<&str> = DOCUMENT
        .lines()
        .filter_map(|line| line.strip_prefix("- **")?.split_once(".** "))
        .map(|(title, _)| title)
        .collect();
    let differences = differences();
    for title in &titles {
        let is_shown = differences.iter().any(|one| one.called == *title);
        assert!(is_shown, "nothing shows {title:?}");
    }
    let openspec = OpenSpec::find();
    let server = Server::start();
    let admin = server.admin();
    for (index, difference) in differences.iter().enumerate() {
        let called = difference.called;
        assert!(
            titles.contains(&called),
            "{called:?} is not in the document"
        );
        let id = project(&admin, &format!("p{index}")).await;
        let top = server.workspace(&id).canonicalize().unwrap();
        difference.case.write(&top);
        (difference.also)(&top);
        let said = openspec.ask(&[(top.clone(), vec!["c".to_owned()])]).await;
        let place = top.to_str().unwrap();
        let their_answer = match called {
            "No OpenSpec" | "Stores" => theirs(&said[0]["list"], place),
            _ => their_list(&said[0]["list"], place),
        };
        let lists = (counted(&list(&admin, &id).await), counted(&their_answer));
        assert_eq!(lists, difference.list, "{called} {index}");
        let states = (
            state(&tasks(&admin, &id, "c").await),
            state(&theirs(&said[0]["apply"]["c"], place)),
        );
        assert_eq!(states, difference.tasks, "{called} {index}");
    }
}
