//! The intended differences between the server and the command. `docs/openspec.md` explains them;
//! everything else is the same.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde_json::{Value, json};
use support::Server;

use super::command::OpenSpec;
use super::corpus::Case;
use super::{expected, expected_list, list, project, tasks};

const DOCUMENT: &str = include_str!("../../../docs/openspec.md");

/// A directory for which the results differ.
struct Difference {
    /// Its title in the document.
    title: &'static str,
    case: Case,
    /// Files that a `Case` cannot describe.
    prepare: fn(&Path),
    /// Our result and that of the command for the list, and for the tasks of `c`.
    list: (Value, Value),
    tasks: (Value, Value),
}

const NO_PREPARATION: fn(&Path) = |_| {};

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
            .change_file("a1.md", "- [x] a\n")
    };
    vec![
        Difference {
            title: "Links out of a change",
            case: Case::new("")
                .file("shared.md", "- [x] a\n")
                .link("openspec/changes/c/tasks.md", "../../../shared.md"),
            prepare: NO_PREPARATION,
            list: (one(0, 0), failed()),
            tasks: (failed(), failed()),
        },
        Difference {
            title: "Links out of a change",
            case: Case::new("").link("openspec/changes/c/tasks.md", "nothing.md"),
            prepare: NO_PREPARATION,
            list: (one(0, 0), failed()),
            tasks: (failed(), failed()),
        },
        Difference {
            title: "Links out of the workspace",
            case: Case::new("").directory("openspec/specs"),
            prepare: |top| {
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
            title: "Names that are not UTF-8",
            case: Case::new("").change_file("tasks.md", "- [x] a\n"),
            prepare: |top| {
                let name = OsStr::from_bytes(b"openspec/changes/\xff");
                std::fs::create_dir(top.join(name)).unwrap();
            },
            list: (one(1, 1), failed()),
            tasks: (json!("all_done"), json!("all_done")),
        },
        Difference {
            title: "Large files",
            case: Case::new("")
                .change_file("tasks.md", format!("- [ ] a\n{}", "x".repeat(8 << 20))),
            prepare: NO_PREPARATION,
            list: (one(0, 0), one(0, 1)),
            tasks: (blocked(), ready()),
        },
        Difference {
            title: "Patterns",
            case: with_schema("@(a|b)1.md"),
            prepare: NO_PREPARATION,
            list: (one(0, 0), one(1, 1)),
            tasks: (failed(), json!("all_done")),
        },
        Difference {
            title: "Patterns",
            case: with_schema("a{1..3}.md"),
            prepare: NO_PREPARATION,
            list: (one(0, 0), one(1, 1)),
            tasks: (failed(), json!("all_done")),
        },
        Difference {
            title: "Names with a backslash",
            case: Case::new("")
                .file("openspec/schemas/s/schema.yaml", schema("*.md"))
                .file("openspec/config.yaml", "schema: s\n")
                .file("openspec/changes/a\\b/x.md", "- [x] a\n"),
            prepare: NO_PREPARATION,
            list: (json!([["a\\b", 1, 1]]), json!([["a\\b", 0, 0]])),
            tasks: (failed(), failed()),
        },
        Difference {
            title: "Invalid YAML",
            case: Case::new("")
                .file(
                    "openspec/config.yaml",
                    "operations: {apply: {guidance: [a], two\nlines: b}}\n",
                )
                .change_file("tasks.md", "- [ ] a\n"),
            prepare: NO_PREPARATION,
            list: (one(0, 1), one(0, 1)),
            tasks: (json!(["ready", ["a"]]), ready()),
        },
        Difference {
            title: "Stores",
            case: Case::new("")
                .file("openspec/config.yaml", "references: [other]\n")
                .change_file("tasks.md", "- [ ] a\n"),
            prepare: NO_PREPARATION,
            list: (one(0, 1), one(0, 1)),
            tasks: (ready(), json!(["ready", "references"])),
        },
        Difference {
            title: "Stores",
            case: Case::new("").file("openspec/config.yaml", "store: other\n"),
            prepare: NO_PREPARATION,
            list: (json!([]), failed()),
            tasks: (failed(), failed()),
        },
        Difference {
            title: "No OpenSpec",
            case: Case::new("").file("README.md", "x"),
            prepare: NO_PREPARATION,
            list: (json!([]), failed()),
            tasks: (failed(), failed()),
        },
    ]
}

/// The names and task counts of a list.
fn task_counts(answer: &Value) -> Value {
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

/// The state, and the fields that only some results have.
fn state(answer: &Value) -> Value {
    match (answer.get("operationGuidance"), answer.get("references")) {
        _ if answer == "failed" => answer.clone(),
        (Some(guidance), _) => json!([answer["state"], guidance]),
        (None, Some(_)) => json!([answer["state"], "references"]),
        (None, None) => answer["state"].clone(),
    }
}

#[test(needs(openspec))]
async fn results_differ_as_the_document_describes() {
    let titles: Vec<&str> = DOCUMENT
        .lines()
        .filter_map(|line| line.strip_prefix("- **")?.split_once(".** "))
        .map(|(title, _)| title)
        .collect();
    let differences = differences();
    for title in &titles {
        let is_shown = differences.iter().any(|one| one.title == *title);
        assert!(is_shown, "no case shows {title:?}");
    }
    let openspec = OpenSpec::find();
    let server = Server::start();
    let admin = server.admin();
    for (index, difference) in differences.iter().enumerate() {
        let title = difference.title;
        assert!(titles.contains(&title), "{title:?} is not in the document");
        let id = project(&admin, &format!("p{index}")).await;
        let top = server.workspace(&id).canonicalize().unwrap();
        difference.case.write(&top);
        (difference.prepare)(&top);
        let output = openspec
            .inspect(&[(top.clone(), vec!["c".to_owned()])])
            .await;
        let workspace_path = top.to_str().unwrap();
        let their_answer = match title {
            "No OpenSpec" | "Stores" => expected(&output[0]["list"], workspace_path),
            _ => expected_list(&output[0]["list"], workspace_path),
        };
        let lists = (
            task_counts(&list(&admin, &id).await),
            task_counts(&their_answer),
        );
        assert_eq!(lists, difference.list, "{title} {index}");
        let states = (
            state(&tasks(&admin, &id, "c").await),
            state(&expected(&output[0]["apply"]["c"], workspace_path)),
        );
        assert_eq!(states, difference.tasks, "{title} {index}");
    }
}
