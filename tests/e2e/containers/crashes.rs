//! The server is killed at any step of its work with containers. After the next start, everything is as
//! before the step or as after it, repeating the step works, and nothing exists twice.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Modern, Random, Server, binary, eventually, runtime_name, server_with};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Step {
    Create,
    Start,
    Exec,
    Named,
    Workspace,
    Stop,
    Rebuild,
    Delete,
}

impl Step {
    fn call(self, id: &str, name: &str) -> (&'static str, Value) {
        let project = json!({ "project_id": id });
        let with = |more: Value| {
            let mut all = project.clone();
            all.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            all
        };
        match self {
            // The tiny image that Docker is tested with has no git.
            Self::Create => ("project_create", json!({ "name": name, "init_git": false })),
            Self::Start => ("container_start", project),
            Self::Exec => (
                "container_exec",
                with(json!({ "command": "echo a >> times; echo b >> times" })),
            ),
            Self::Named => (
                "container_exec",
                with(json!({ "command": "echo ran >> times; echo done", "exec_id": "x" })),
            ),
            Self::Workspace => (
                "container_exec",
                with(json!({ "command": "pwd", "workspace_id": "w", "create_workspace": true })),
            ),
            Self::Stop => ("container_stop", project),
            Self::Rebuild => ("image_rebuild", with(json!({ "force": true }))),
            Self::Delete => ("project_delete", project),
        }
    }
}

/// A step, and whether the container runs before it.
const ALL: [(Step, bool); 12] = [
    (Step::Create, false),
    (Step::Start, false),
    (Step::Exec, false),
    (Step::Exec, true),
    (Step::Named, false),
    (Step::Named, true),
    (Step::Workspace, false),
    (Step::Workspace, true),
    (Step::Stop, true),
    (Step::Rebuild, true),
    (Step::Delete, false),
    (Step::Delete, true),
];

/// Starts a call and kills the server while it runs.
async fn kill_during(server: &mut Server, tool: &str, arguments: Value, after: Duration) {
    let admin = server.admin();
    let call = json!({ "name": tool, "arguments": arguments });
    let begun = Instant::now();
    let doomed = tokio::spawn(async move { admin.try_send("tools/call", call).await });
    // A busy wait: the moment must be met to the tenth of a millisecond.
    while begun.elapsed() < after && !doomed.is_finished() {
        tokio::task::yield_now().await;
    }
    server.kill();
    let _ = doomed.await;
    server.start_again();
}

async fn is_listed(admin: &Modern, id: &str) -> bool {
    let listed = admin.call("project_list", json!({ "limit": 1000 })).await;
    let projects = listed.ok()["projects"].as_array().unwrap().clone();
    projects.iter().any(|project| project["project_id"] == id)
}

/// A project as a step finds it; its id.
async fn prepare(admin: &Modern, step: Step, is_warm: bool, name: &str) -> String {
    if step == Step::Create {
        return String::new();
    }
    let (tool, arguments) = Step::Create.call("", name);
    // The name is free again when the server has finished the deletion that the kill interrupted.
    let made = support::wait_for("the name is free", async || {
        let made = admin.call(tool, arguments.clone()).await;
        (!made.text.contains("already exists")).then_some(made)
    })
    .await;
    let id = made.ok()["project_id"].as_str().unwrap().to_owned();
    if is_warm {
        let call = json!({ "project_id": id, "command": "echo warm" });
        admin.call("container_exec", call).await.ok();
    }
    id
}

/// How long a step takes without a kill.
async fn measure(admin: &Modern, step: Step, is_warm: bool) -> Duration {
    let id = prepare(admin, step, is_warm, "measured").await;
    let (tool, arguments) = step.call(&id, "measured");
    let begun = Instant::now();
    let done = admin.call(tool, arguments).await;
    let took = begun.elapsed();
    if step != Step::Delete {
        let call = json!({ "project_id": done.ok()["project_id"] });
        let id = if id.is_empty() {
            call
        } else {
            json!({ "project_id": id })
        };
        admin.call("project_delete", id).await.ok();
    }
    took
}

async fn round(server: &mut Server, step: Step, is_warm: bool, after: Duration) {
    let mut id = prepare(&server.admin(), step, is_warm, "cut").await;
    let (tool, arguments) = step.call(&id, "cut");
    eprintln!("{step:?}, warm: {is_warm}, killed after {after:?}");
    kill_during(server, tool, arguments.clone(), after).await;

    let admin = server.admin();
    let again = admin.call(tool, arguments).await;
    match step {
        Step::Create => {
            if again.is_error() {
                assert!(
                    again.sentence().contains("already exists"),
                    "{}",
                    again.text
                );
            }
            let listed = admin.call("project_list", json!({})).await;
            let projects = listed.ok()["projects"].as_array().unwrap().clone();
            assert_eq!(projects.len(), 1, "{}", listed.text);
            id = projects[0]["project_id"].as_str().unwrap().to_owned();
        }
        Step::Delete => {
            if again.is_error() {
                assert!(again.sentence().contains("not found"), "{}", again.text);
            }
            assert!(!is_listed(&admin, &id).await);
            return server.assert_nothing_left().await;
        }
        Step::Exec => assert_eq!(again.ok()["exit_code"], 0),
        Step::Named => assert_eq!(again.ok()["stdout"], "done\n"),
        Step::Workspace => assert_eq!(again.ok()["stdout"], "/workspaces/w\n"),
        Step::Start | Step::Stop | Step::Rebuild => drop(again.ok().clone()),
    }
    if step == Step::Named {
        let times = std::fs::read_to_string(server.workspace(&id).join("times"));
        assert_eq!(times.unwrap(), "ran\n", "it ran another time");
    }
    let call = json!({ "project_id": id, "command": "echo fine" });
    assert_eq!(
        admin.call("container_exec", call).await.ok()["stdout"],
        "fine\n"
    );
    let swept = eventually(Duration::from_secs(10), async || {
        let files = server.leftovers().files;
        !files.iter().any(|file| file.contains("/.new-"))
    });
    assert!(swept.await, "drafts stay:\n{}", server.leftovers());
    let leftovers = server.leftovers();
    let inside = |line: &&String| line.contains("oubliette-client init");
    assert_eq!(
        leftovers.processes.iter().filter(inside).count(),
        1,
        "{leftovers}"
    );
    let call = json!({ "project_id": id });
    admin.call("project_delete", call).await.ok();
    server.assert_nothing_left().await;
}

#[test(runtimes, limit = 300)]
async fn a_step_that_a_kill_interrupts_can_be_repeated_and_leaves_nothing(runtime: &str) {
    let mut random = Random::new();
    let moments = match runtime_name(runtime) {
        "docker" => 1,
        _ => 4,
    };
    let mut server = server_with(runtime, "").await;
    for (step, is_warm) in ALL {
        let whole = measure(&server.admin(), step, is_warm).await;
        for part in 0..moments {
            // A moment of each part of it.
            let after = whole * part / moments + random.duration_below(whole / moments);
            round(&mut server, step, is_warm, after).await;
        }
    }
}

/// The steps of a launch; the product's own binary stops at one that its name asks for.
const LAUNCH: [&str; 7] = [
    "after cgroups",
    "after clone",
    "in build",
    "after build",
    "before pivot",
    "after pivot",
    "before exec",
];

#[test(needs(sandbox))]
async fn a_sandbox_that_is_being_made_dies_with_its_server_at_every_step() {
    let directory = tempfile::tempdir().unwrap();
    let mut server = server_with("sandbox", "").await;
    server.kill();
    for step in LAUNCH {
        let hanging = directory.path().join(format!("hang={step}"));
        std::fs::copy(binary(), &hanging).unwrap();
        server.start_again_as(&hanging);
        let log = server.home().join("run/probe/probe/state/init.log");
        let reached = eventually(Duration::from_secs(20), async || {
            std::fs::read_to_string(&log).is_ok_and(|log| log.contains(step))
        });
        assert!(reached.await, "the launch never reached {step}");
        assert!(!server.leftovers().processes.is_empty());
        server.kill();
        let dead = eventually(Duration::from_secs(20), async || {
            server.leftovers().processes.is_empty()
        });
        assert!(dead.await, "{step}:\n{}", server.leftovers());
    }
    server.start_again();
    let id = server.admin().project("one").await;
    let call = json!({ "project_id": id, "command": "echo fine" });
    let ran = server.admin().call("container_exec", call).await;
    assert_eq!(ran.ok()["stdout"], "fine\n");
    let call = json!({ "project_id": id });
    server.admin().call("project_delete", call).await.ok();
    server.assert_nothing_left().await;
}
