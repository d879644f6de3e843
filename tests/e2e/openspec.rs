//! Compares the server's OpenSpec operations with the real `openspec` command.

mod command;
mod corpus;
mod differences;

use std::path::PathBuf;

use command::OpenSpec;
use corpus::Case;
use serde_json::{Map, Value, json};
use support::{Modern, Random, Server, cli, server_with};

/// The number of random directories, besides the handwritten ones.
const RANDOM_CASES: usize = 200;

#[test(needs(openspec))]
async fn every_result_equals_that_of_the_real_command() {
    let openspec = OpenSpec::find();
    let server = Server::start();
    let admin = server.admin();
    let mut cases = corpus::handwritten();
    cases.extend(corpus::random(&mut Random::repeatable(), RANDOM_CASES));
    assert!(cases.len() >= 200);
    let mut projects: Vec<(String, PathBuf)> = Vec::new();
    let mut requests: Vec<(PathBuf, Vec<String>)> = Vec::new();
    for (index, case) in cases.iter().enumerate() {
        let id = project(&admin, &format!("p{index}")).await;
        let top = server.workspace(&id).canonicalize().unwrap();
        case.write(&top);
        requests.push((top.clone(), case.changes(&top)));
        projects.push((id, top));
    }
    let outputs = openspec.inspect(&requests).await;
    let (mut compared, mut failed, mut differences) = (0, 0, Vec::new());
    for (((case, (id, top)), (_, changes)), output) in
        cases.iter().zip(&projects).zip(&requests).zip(outputs)
    {
        let top = top.to_str().unwrap();
        let mut compare = |what: String, ours: Value, theirs: Value| {
            compared += 1;
            failed += usize::from(theirs == "failed");
            if ours != theirs {
                differences.push(format!(
                    "{}: {what}\nours   {ours}\ntheirs {theirs}\n{:?}",
                    case.name,
                    case.yaml_files()
                ));
            }
        };
        let ours = list(&admin, id).await;
        compare("list".to_owned(), ours, expected_list(&output["list"], top));
        for change in changes {
            let ours = tasks(&admin, id, change).await;
            let theirs = expected(&output["apply"][change], top);
            compare(format!("tasks of {change:?}"), ours, theirs);
        }
    }
    let shown: String = differences
        .iter()
        .take(5)
        .map(|text| truncate_lines(text))
        .collect();
    assert!(
        differences.is_empty(),
        "{} of {compared} differ\n{shown}",
        differences.len()
    );
    assert!(
        failed * 2 < compared,
        "{failed} of {compared} are only errors"
    );
    eprintln!(
        "{} directories, {compared} equal results, {failed} of them errors",
        cases.len()
    );
}

#[test(needs(openspec))]
async fn the_command_line_gives_the_same_results() {
    let openspec = OpenSpec::find();
    let server = Server::start();
    let admin = server.admin();
    let cases = corpus::handwritten();
    for name in ["everything done", "a change in a directory", "metadata 7"] {
        let case = cases.iter().find(|case| case.name == name).unwrap();
        let id = project(&admin, name).await;
        let top = server.workspace(&id).canonicalize().unwrap();
        case.write(&top);
        let workspace_path = top.to_str().unwrap();
        let output = openspec.run(&top, &["list", "--json"]).await;
        assert_eq!(
            list(&admin, &id).await,
            expected(&output, workspace_path),
            "{name}"
        );
        for change in case.changes(&top) {
            let arguments = ["instructions", "apply", "--change", &change, "--json"];
            let output = openspec.run(&top, &arguments).await;
            let output = match output.get("status") {
                Some(_) => json!("failed"),
                None => expected(&output, workspace_path),
            };
            assert_eq!(tasks(&admin, &id, &change).await, output, "{name} {change}");
        }
    }
}

const TASKS: &str = "## 1. All\n- [x] 1.1 Begin\n- [ ] 1.2 Go on\n- [ ] 1.3 End\n";

#[test(needs(sandbox))]
async fn a_change_lists_the_active_sessions_that_work_on_it() {
    let server = server_with("sandbox", "").await;
    let admin = server.admin();
    let id = project(&admin, "one").await;
    let top = server.workspace(&id);
    Case::new("one")
        .file("openspec/changes/add-login/tasks.md", TASKS)
        .file("openspec/changes/other/tasks.md", TASKS)
        .write(&top);
    let active_sessions = async |change: &str| -> Vec<String> {
        let asked = json!({ "project_id": id, "change_id": change });
        let shown = admin.call("project_tasks", asked).await;
        let listed = admin
            .call("project_changes", json!({ "project_id": id }))
            .await;
        let line = listed.ok()["changes"].as_array().unwrap();
        let line = line.iter().find(|line| line["name"] == change).unwrap();
        // Their statuses may change between two calls.
        let names = |shown: &Value| -> Vec<String> {
            let sessions = shown["active_sessions"].as_array().unwrap().iter();
            sessions
                .map(|session| session["session_id"].as_str().unwrap().to_owned())
                .collect()
        };
        assert_eq!(names(line), names(shown.ok()));
        names(line)
    };
    assert!(active_sessions("add-login").await.is_empty());
    let more = json!({ "change_id": "add-login" });
    let session = admin.spawn_with(&id, "/say one", more).await;
    admin.turn(&session, 1).await;
    assert_eq!(active_sessions("add-login").await, [session.as_str()]);
    assert_eq!(admin.session(&session).await["change_id"], "add-login");
    let asked = json!({ "project_id": id, "change_id": "add-login" });
    let found = admin.call("session_list", asked).await;
    assert_eq!(found.ok()["sessions"][0]["session_id"], session.as_str());

    // A change of the files by the agent is visible at once.
    let tick = "/sh sed -i 's/\\[ \\]/[x]/' openspec/changes/add-login/tasks.md";
    admin.message(&session, tick).await;
    admin.turn(&session, 2).await;
    let asked = json!({ "project_id": id, "change_id": "add-login" });
    let shown = admin.call("project_tasks", asked).await;
    assert_eq!(shown.ok()["state"], "all_done", "{}", shown.text);
    assert_eq!(
        shown.ok()["changeDir"],
        "/workspace/openspec/changes/add-login"
    );

    // A message with a `change_id` changes it; a message without one does not.
    let other = json!({ "session_id": session, "prompt": "/say two", "change_id": "other" });
    admin.call("session_message", other).await.ok();
    assert_eq!(active_sessions("other").await, [session.as_str()]);
    assert!(active_sessions("add-login").await.is_empty());
    let joined = json!({ "change_id": "add-login" });
    assert_eq!(admin.spawn_with(&id, "/say three", joined).await, session);
    admin.message(&session, "/say four").await;
    assert_eq!(active_sessions("add-login").await, [session.as_str()]);
    let empty = json!({ "session_id": session, "prompt": "x", "change_id": "" });
    let empty = admin.call("session_message", empty).await;
    assert!(empty.sentence().contains("`change_id` is empty"));
    let ended = json!({ "session_id": session });
    admin.call("session_end", ended).await.ok();
    assert!(active_sessions("add-login").await.is_empty());
}

#[test]
async fn changes_are_paged_and_read_from_the_given_workspace() {
    let server = Server::start();
    let admin = server.admin();
    let id = project(&admin, "one").await;
    let none = admin
        .call("project_changes", json!({ "project_id": id }))
        .await;
    assert_eq!(none.ok(), &json!({ "changes": [] }));
    let tools = admin.tools().await;
    let tool = tools.iter().find(|tool| tool["name"] == "project_changes");
    let required = &tool.unwrap()["outputSchema"]["required"];
    assert_eq!(*required, json!(["changes"]), "clients check it");
    let mut case = Case::new("one");
    for number in 0..25 {
        case = case.file(&format!("openspec/changes/c:{number:02}/tasks.md"), TASKS);
    }
    case.at_times(&[1_700_000_000_000, 1_700_000_001_000])
        .write(&server.workspace(&id));
    let whole = admin
        .call("project_changes", json!({ "project_id": id }))
        .await;
    let (mut pages, mut cursor) = (Vec::new(), Value::Null);
    loop {
        let asked = json!({ "project_id": id, "limit": 7, "cursor": cursor });
        let page = admin.call("project_changes", asked).await;
        pages.extend(page.ok()["changes"].as_array().unwrap().iter().cloned());
        match page.ok().get("next_cursor") {
            Some(next) => cursor = next.clone(),
            None => break,
        }
    }
    assert_eq!(pages.len(), 25);
    assert_eq!(whole.ok()["changes"], json!(pages));
    let foreign = json!({ "project_id": id, "cursor": "changes:x" });
    let foreign = admin.call("project_changes", foreign).await;
    assert!(foreign.sentence().contains("cursor"));
    for tool in ["project_changes", "project_tasks"] {
        let mut asked = json!({ "project_id": id, "workspace_id": "nowhere" });
        if tool == "project_tasks" {
            asked["change_id"] = json!("c:00");
        }
        let refused = admin.call(tool, asked).await;
        assert!(refused.sentence().contains("workspace `nowhere` not found"));
    }
    let missing = json!({ "project_id": id, "change_id": "nothing" });
    let missing = admin.call("project_tasks", missing).await;
    assert!(
        missing
            .sentence()
            .contains("`project_changes` lists the changes")
    );
}

#[test]
async fn files_outside_of_the_workspace_are_not_read() {
    let server = Server::start();
    let admin = server.admin();
    let outside = tempfile::tempdir().unwrap();
    let secret = "- [x] hunter2\n";
    for file in [
        "tasks.md",
        "c/tasks.md",
        "spec.md",
        "schema.yaml",
        "config.yaml",
    ] {
        let path = outside.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, secret).unwrap();
    }
    let out = outside.path().to_str().unwrap();
    let neighbour = project(&admin, "neighbour").await;
    Case::new("")
        .change_file("tasks.md", secret)
        .write(&server.workspace(&neighbour));
    let up = format!("../../../../../{neighbour}/workspace/openspec/changes/c/tasks.md");
    let cases = [
        Case::new("list").link("openspec/changes/c/tasks.md", &format!("{out}/tasks.md")),
        Case::new("up").link("openspec/changes/c/tasks.md", &up),
        Case::new("change").link("openspec/changes/c", &format!("{out}/c")),
        Case::new("changes")
            .directory("openspec/specs")
            .link("openspec/changes", out),
        Case::new("openspec").link("openspec", out),
        Case::new("specs")
            .change_file("tasks.md", "- [ ] a")
            .link("openspec/changes/c/specs", out),
        Case::new("spec")
            .change_file("tasks.md", "- [ ] a")
            .link("openspec/changes/c/specs/a.md", &format!("{out}/spec.md")),
        Case::new("config")
            .change_file("tasks.md", "- [ ] a")
            .link("openspec/config.yaml", &format!("{out}/config.yaml")),
        Case::new("metadata")
            .change_file("tasks.md", "- [ ] a")
            .link(
                "openspec/changes/c/.openspec.yaml",
                &format!("{out}/config.yaml"),
            ),
        Case::new("process").link("openspec/changes/c/tasks.md", "/proc/self/environ"),
        Case::new("device").link("openspec/changes/c/tasks.md", "/dev/zero"),
    ];
    for case in cases {
        let id = project(&admin, &case.name).await;
        case.write(&server.workspace(&id));
        let listed = admin
            .call("project_changes", json!({ "project_id": id }))
            .await;
        let shown = json!({ "project_id": id, "change_id": "c" });
        let shown = admin.call("project_tasks", shown).await;
        for reply in [&listed, &shown] {
            assert!(
                !reply.text.contains("hunter2"),
                "{}: {}",
                case.name,
                reply.text
            );
            assert!(!reply.text.contains(out), "{}: {}", case.name, reply.text);
        }
        if !listed.is_error() {
            let changes = listed.ok()["changes"].as_array().unwrap();
            assert!(changes.iter().all(|change| change["completedTasks"] == 0));
        }
    }
}

#[test]
async fn progress_is_shown_on_the_terminal() {
    let server = Server::start();
    let id = project(&server.admin(), "my app").await;
    Case::new("one")
        .file("openspec/changes/add login/tasks.md", TASKS)
        .file("openspec/changes/area/inner/tasks.md", TASKS)
        .write(&server.workspace(&id));
    let home = server.home().to_owned();
    let run = async |arguments: &[&str]| {
        let (home, arguments) = (home.clone(), arguments.iter().map(ToString::to_string));
        let arguments: Vec<String> = arguments.collect();
        let ran = tokio::task::spawn_blocking(move || cli(&home, arguments));
        let ran = ran.await.unwrap();
        assert!(
            ran.status.success(),
            "{}",
            String::from_utf8_lossy(&ran.stderr)
        );
        String::from_utf8_lossy(&ran.stdout).into_owned()
    };
    let changes = run(&["project", "changes", "my app"]).await;
    let bar = "██████░░░░░░░░░░░░░░  1/3";
    let line = changes.lines().find(|line| line.starts_with("add login"));
    assert!(line.unwrap().contains(bar), "{changes}");
    assert!(changes.contains("\"area\" is not a change"), "{changes}");
    let tasks = run(&["project", "tasks", "my app", "add login"]).await;
    assert!(
        tasks.starts_with(&format!("add login  {bar}  ready")),
        "{tasks}"
    );
    assert!(
        tasks.contains("☑ 1.1 Begin") && tasks.contains("☐ 1.3 End"),
        "{tasks}"
    );
    let json = run(&["project", "changes", "my app", "--json"]).await;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["changes"].as_array().unwrap().len(), 2);
    project(&server.admin(), "empty").await;
    assert_eq!(run(&["project", "changes", "empty"]).await, "No changes.\n");
}

async fn project(admin: &Modern, name: &str) -> String {
    let made = admin
        .call("project_create", json!({ "name": name, "init_git": false }))
        .await;
    made.ok()["project_id"].as_str().unwrap().to_owned()
}

/// The result of `project_changes` without the fields that the command does not have.
async fn list(admin: &Modern, id: &str) -> Value {
    let reply = admin
        .call(
            "project_changes",
            json!({ "project_id": id, "limit": 1000 }),
        )
        .await;
    if reply.is_error() {
        return json!("failed");
    }
    let mut ours = reply.ok().clone();
    for change in ours["changes"].as_array_mut().unwrap() {
        let sessions = change.as_object_mut().unwrap().remove("active_sessions");
        assert_eq!(sessions, Some(json!([])));
    }
    ours
}

async fn tasks(admin: &Modern, id: &str, change: &str) -> Value {
    let reply = admin
        .call(
            "project_tasks",
            json!({ "project_id": id, "change_id": change }),
        )
        .await;
    if reply.is_error() {
        return json!("failed");
    }
    let mut ours = reply.ok().clone();
    let sessions = ours.as_object_mut().unwrap().remove("active_sessions");
    assert_eq!(sessions, Some(json!([])));
    ours
}

/// A project without OpenSpec has no changes, where the command fails. So has a project with only an
/// unreadable configuration.
fn expected_list(output: &Value, top: &str) -> Value {
    match output["code"].as_str() {
        Some("no_openspec_root" | "invalid_store_pointer") => json!({ "changes": [] }),
        _ => expected(output, top),
    }
}

/// The output of the command without the directory it ran in.
fn expected(output: &Value, top: &str) -> Value {
    if output.get("error").is_some() {
        return json!("failed");
    }
    let mut output = output.clone();
    output.as_object_mut().unwrap().remove("root");
    with_container_paths(&output, top)
}

/// Replaces the paths of the host with those in the container.
fn with_container_paths(value: &Value, top: &str) -> Value {
    match value {
        Value::String(text) => Value::String(text.replace(top, "/workspace")),
        Value::Array(items) => items
            .iter()
            .map(|item| with_container_paths(item, top))
            .collect(),
        Value::Object(pairs) => {
            let pairs = pairs.iter();
            let pairs: Map<String, Value> = pairs
                .map(|(name, value)| (name.clone(), with_container_paths(value, top)))
                .collect();
            Value::Object(pairs)
        }
        other => other.clone(),
    }
}

fn truncate_lines(text: &str) -> String {
    let short = |line: &str| line.chars().take(1500).collect::<String>();
    text.lines().map(|line| short(line) + "\n").collect()
}
