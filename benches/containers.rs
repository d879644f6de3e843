//! How long it takes to start a container and to run a command in it, through the product's sandbox
//! and through its supervisor in Docker, beside `docker run`, `docker exec` and `bwrap` in one run.
//!
//! `OUBLIETTE_TEST_RUNTIMES` says which runtimes are there, as for the tests.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on stops")]
#![allow(clippy::print_stdout, reason = "it says what it needs")]

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use oubliette_benches::figures::median;
use oubliette_benches::table::time;
use oubliette_benches::{Aims, Table, is_quick};
use serde_json::json;
use support::{Modern, Server, needs, server_with};

/// A project's container, measured through the endpoint as any caller sees it.
struct Ours {
    server: Server,
    admin: Modern,
    project: String,
}

impl Ours {
    async fn with(runtime: &str) -> Self {
        let server = server_with(runtime, "").await;
        let admin = server.admin().kept_alive();
        let project = admin.project("measured").await;
        Self {
            server,
            admin,
            project,
        }
    }

    async fn call(&self, operation: &str, arguments: serde_json::Value) -> f64 {
        let begun = Instant::now();
        self.admin.call(operation, arguments).await.ok();
        begun.elapsed().as_secs_f64()
    }

    async fn start(&self) -> f64 {
        let project = json!({ "project_id": self.project });
        self.call("container_stop", project.clone()).await;
        self.call("container_start", project).await
    }

    async fn exec(&self) -> f64 {
        let exec = json!({ "project_id": self.project, "command": ["/bin/true"] });
        self.call("container_exec", exec).await
    }

    /// Memory that is there only because of one idle container, in MB.
    fn idle_memory(&self) -> f64 {
        let id = self.project.replace('-', "");
        let supervisor = std::fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .find_map(|entry| {
                let environment = std::fs::read(entry.path().join("environ")).ok()?;
                let ours = String::from_utf8_lossy(&environment).contains(&id);
                let command = std::fs::read(entry.path().join("cmdline")).ok()?;
                let init = String::from_utf8_lossy(&command).contains("oubliette-client");
                (ours && init).then(|| entry.path())
            });
        let rollup = std::fs::read_to_string(supervisor.unwrap().join("smaps_rollup")).unwrap();
        let private = rollup.lines().filter(|line| line.starts_with("Private_"));
        let kilobytes =
            private.filter_map(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok());
        kilobytes.sum::<f64>() / 1e3
    }
}

/// The engine's own command line.
fn timed(program: &str, arguments: &[&str]) -> f64 {
    let begun = Instant::now();
    let status = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success(), "{program} {arguments:?}");
    begun.elapsed().as_secs_f64()
}

#[derive(Default)]
struct Times {
    start: Vec<f64>,
    exec: Vec<f64>,
}

impl Times {
    fn row(&self, name: &str) -> [String; 3] {
        let shown = |times: &[f64]| match times {
            [] => "-".to_owned(),
            times => time(Duration::from_secs_f64(median(times.iter().copied()))),
        };
        [name.to_owned(), shown(&self.start), shown(&self.exec)]
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let rounds = if is_quick() { 5 } else { 30 };
    if needs::missing("sandbox")
        .or(needs::missing("docker"))
        .is_some()
    {
        println!("set OUBLIETTE_TEST_RUNTIMES=sandbox,docker (tests/docker starts an engine)");
        return;
    }
    let (sandbox, docker) = (Ours::with("sandbox").await, Ours::with("docker").await);
    let built = docker
        .admin
        .call("image_rebuild", json!({ "container_type": "base" }))
        .await;
    let image = built.ok()["image"].as_str().unwrap().to_owned();
    let name = format!("oubliette-bench-{}", std::process::id());
    let run = [
        "run",
        "-d",
        "--network",
        "none",
        "--name",
        &name,
        &image,
        "/bin/sleep",
        "1000",
    ];
    timed("docker", &run);
    let (mut ours, mut inside, mut engine, mut bwrap) = (
        Times::default(),
        Times::default(),
        Times::default(),
        Times::default(),
    );
    for _ in 0..rounds {
        ours.start.push(sandbox.start().await);
        inside.start.push(docker.start().await);
        engine.start.push(timed(
            "docker",
            &["run", "--rm", "--network", "none", &image, "/bin/true"],
        ));
        bwrap.start.push(timed(
            "bwrap",
            &["--ro-bind", "/", "/", "--unshare-all", "/bin/true"],
        ));
        for _ in 0..5 {
            ours.exec.push(sandbox.exec().await);
            inside.exec.push(docker.exec().await);
        }
        engine
            .exec
            .push(timed("docker", &["exec", &name, "/bin/true"]));
    }
    timed("docker", &["rm", "-f", &name]);
    let mut table = Table::new(["", "start", "exec"]);
    table.row(ours.row("our sandbox, through the endpoint"));
    table.row(inside.row("our supervisor in Docker, through the endpoint"));
    table.row(engine.row("docker run, docker exec"));
    table.row(bwrap.row("bwrap (no supervisor, no overlay)"));
    table.print();
    let middle = |times: &[f64]| median(times.iter().copied());
    let times_faster = |slow: &[f64], fast: &[f64]| middle(slow) / middle(fast);
    let mut aims = Aims::default();
    aims.at_least(
        "start against docker run",
        times_faster(&engine.start, &ours.start),
        10.0,
        "×",
    );
    aims.at_least(
        "exec against docker exec",
        times_faster(&engine.exec, &ours.exec),
        30.0,
        "×",
    );
    let within = times_faster(&engine.exec, &inside.exec);
    aims.at_least("exec in Docker against docker exec", within, 15.0, "×");
    aims.at_most(
        "memory of an idle container",
        sandbox.idle_memory(),
        2.0,
        " MB",
    );
    aims.print();
    drop((sandbox.server, docker.server));
}
