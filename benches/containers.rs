//! The time to start a container and to run a command in it, in the product's sandbox and in Docker,
//! compared with `docker run`, `docker exec` and `bwrap`.
//!
//! `OUBLIETTE_TEST_RUNTIMES` lists the available runtimes, as for the tests.

#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first failure")]
#![allow(clippy::print_stdout, reason = "it prints what it needs")]

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use oubliette_benches::statistics::median;
use oubliette_benches::table::format_time;
use oubliette_benches::{Table, Targets, is_quick};
use serde_json::json;
use support::{Modern, Server, needs, server_with};

/// A project's container, measured through the MCP endpoint.
struct MeasuredContainer {
    server: Server,
    admin: Modern,
    project: String,
}

impl MeasuredContainer {
    async fn create(runtime: &str) -> Self {
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
        let started = Instant::now();
        self.admin.call(operation, arguments).await.ok();
        started.elapsed().as_secs_f64()
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

    /// Private memory of the supervisor of an idle container, in MB.
    fn idle_memory_mb(&self) -> f64 {
        let id = self.project.replace('-', "");
        let supervisor = std::fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .find_map(|entry| {
                let environment = std::fs::read(entry.path().join("environ")).ok()?;
                let is_ours = String::from_utf8_lossy(&environment).contains(&id);
                let command = std::fs::read(entry.path().join("cmdline")).ok()?;
                let is_supervisor = String::from_utf8_lossy(&command).contains("oubliette-client");
                (is_ours && is_supervisor).then(|| entry.path())
            });
        let rollup = std::fs::read_to_string(supervisor.unwrap().join("smaps_rollup")).unwrap();
        let private = rollup.lines().filter(|line| line.starts_with("Private_"));
        let kilobytes =
            private.filter_map(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok());
        kilobytes.sum::<f64>() / 1e3
    }
}

/// Seconds that a command takes.
fn time_command(program: &str, arguments: &[&str]) -> f64 {
    let started = Instant::now();
    let status = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success(), "{program} {arguments:?}");
    started.elapsed().as_secs_f64()
}

#[derive(Default)]
struct Times {
    start: Vec<f64>,
    exec: Vec<f64>,
}

impl Times {
    fn row(&self, name: &str) -> [String; 3] {
        let show = |times: &[f64]| match times {
            [] => "-".to_owned(),
            times => format_time(Duration::from_secs_f64(median(times.iter().copied()))),
        };
        [name.to_owned(), show(&self.start), show(&self.exec)]
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let rounds = if is_quick() { 5 } else { 30 };
    let missing = needs::missing("sandbox").or(needs::missing("docker"));
    if missing.is_some() {
        println!("set OUBLIETTE_TEST_RUNTIMES=sandbox,docker (tests/docker starts an engine)");
        return;
    }
    let (sandbox, docker) = (
        MeasuredContainer::create("sandbox").await,
        MeasuredContainer::create("docker").await,
    );
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
    time_command("docker", &run);
    let (mut in_sandbox, mut in_docker, mut docker_cli, mut bwrap) = (
        Times::default(),
        Times::default(),
        Times::default(),
        Times::default(),
    );
    for _ in 0..rounds {
        in_sandbox.start.push(sandbox.start().await);
        in_docker.start.push(docker.start().await);
        docker_cli.start.push(time_command(
            "docker",
            &["run", "--rm", "--network", "none", &image, "/bin/true"],
        ));
        bwrap.start.push(time_command(
            "bwrap",
            &["--ro-bind", "/", "/", "--unshare-all", "/bin/true"],
        ));
        for _ in 0..5 {
            in_sandbox.exec.push(sandbox.exec().await);
            in_docker.exec.push(docker.exec().await);
        }
        docker_cli
            .exec
            .push(time_command("docker", &["exec", &name, "/bin/true"]));
    }
    time_command("docker", &["rm", "-f", &name]);
    let mut table = Table::new(["", "start", "exec"]);
    table.row(in_sandbox.row("sandbox, through the endpoint"));
    table.row(in_docker.row("supervisor in Docker, through the endpoint"));
    table.row(docker_cli.row("docker run, docker exec"));
    table.row(bwrap.row("bwrap (no supervisor, no overlay)"));
    table.print();
    let median_of = |times: &[f64]| median(times.iter().copied());
    let speedup = |slow: &[f64], fast: &[f64]| median_of(slow) / median_of(fast);
    let mut targets = Targets::default();
    targets.at_least(
        "start, speedup over docker run",
        speedup(&docker_cli.start, &in_sandbox.start),
        10.0,
        "×",
    );
    targets.at_least(
        "exec, speedup over docker exec",
        speedup(&docker_cli.exec, &in_sandbox.exec),
        30.0,
        "×",
    );
    let docker_speedup = speedup(&docker_cli.exec, &in_docker.exec);
    targets.at_least(
        "exec in Docker, speedup over docker exec",
        docker_speedup,
        15.0,
        "×",
    );
    targets.at_most(
        "memory of an idle container",
        sandbox.idle_memory_mb(),
        2.0,
        " MB",
    );
    targets.print();
    drop((sandbox.server, docker.server));
}
