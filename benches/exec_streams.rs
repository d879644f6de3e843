//! How fast `oubliette container exec` passes on a command's input and output, compared with a pipe between two
//! processes.
//!
//! `OUBLIETTE_TEST_RUNTIMES` lists the available runtimes, as for the tests.

#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first failure")]
#![allow(clippy::print_stdout, reason = "it prints what it needs")]

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use oubliette_benches::statistics::median;
use oubliette_benches::table::format_time;
use oubliette_benches::{Table, Targets, is_quick};
use support::{Server, binary, needs, server_with};

const BUFFER_BYTES: usize = 1 << 20;

fn cli(server: &Server, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command
        .env("OUBLIETTE_HOME", server.home())
        .args(["container", "exec"])
        .args(arguments);
    command
}

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

fn start(mut command: Command) -> Child {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Seconds until a command has printed this many bytes.
fn time_output(command: Command, bytes: u64) -> f64 {
    let started = Instant::now();
    let mut child = start(command);
    drop(child.stdin.take());
    let mut output = child.stdout.take().unwrap();
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut received = 0;
    while let Ok(read @ 1..) = output.read(&mut buffer) {
        received += read as u64;
    }
    assert!(child.wait().unwrap().success());
    assert_eq!(received, bytes);
    started.elapsed().as_secs_f64()
}

/// Seconds until a command has read this many bytes; it prints how many it has read.
fn time_input(command: Command, bytes: u64) -> f64 {
    let started = Instant::now();
    let mut child = start(command);
    let mut input = child.stdin.take().unwrap();
    let chunk = vec![7; BUFFER_BYTES];
    for _ in 0..bytes / BUFFER_BYTES as u64 {
        input.write_all(&chunk).unwrap();
    }
    drop(input);
    let ended = child.wait_with_output().unwrap();
    let counted = String::from_utf8_lossy(&ended.stdout).trim().to_owned();
    assert_eq!(counted, bytes.to_string());
    started.elapsed().as_secs_f64()
}

struct Measured {
    name: &'static str,
    output: Vec<f64>,
    input: Vec<f64>,
    /// The time of a command that prints nothing.
    empty: Vec<f64>,
}

impl Measured {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            output: Vec::new(),
            input: Vec::new(),
            empty: Vec::new(),
        }
    }

    fn rate(times: &[f64], bytes: u64) -> f64 {
        bytes as f64 / 1e6 / median(times.iter().copied())
    }

    fn row(&self, bytes: u64) -> [String; 4] {
        let empty = Duration::from_secs_f64(median(self.empty.iter().copied()));
        [
            self.name.to_owned(),
            format!("{:.0} MB/s", Self::rate(&self.output, bytes)),
            format!("{:.0} MB/s", Self::rate(&self.input, bytes)),
            format_time(empty),
        ]
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let (rounds, bytes) = if is_quick() {
        (2, 32 * BUFFER_BYTES as u64)
    } else {
        (7, 256 * BUFFER_BYTES as u64)
    };
    if needs::missing("sandbox").is_some() {
        println!("the sandbox does not work here");
        return;
    }
    let server = server_with("sandbox", "").await;
    server.admin().project("app").await;
    let produce = format!("head -c {bytes} /dev/zero");
    let (mut pipe, mut exec) = (Measured::new("pipe"), Measured::new("container exec"));
    // Starts the container.
    time_output(cli(&server, &["app", "true"]), 0);
    for _ in 0..rounds {
        pipe.output.push(time_output(shell(&produce), bytes));
        exec.output
            .push(time_output(cli(&server, &["app", &produce]), bytes));
        pipe.input.push(time_input(shell("wc -c"), bytes));
        exec.input
            .push(time_input(cli(&server, &["-i", "app", "wc -c"]), bytes));
        pipe.empty.push(time_output(shell("true"), 0));
        exec.empty
            .push(time_output(cli(&server, &["app", "true"]), 0));
    }
    let mut table = Table::new(["", "output", "input (-i)", "a command without output"]);
    table.row(pipe.row(bytes));
    table.row(exec.row(bytes));
    table.print();
    let mut targets = Targets::default();
    let rate = Measured::rate(&exec.output, bytes);
    targets.at_least("output of a command", rate, 200.0, " MB/s");
    let rate = Measured::rate(&exec.input, bytes);
    targets.at_least("input of a command", rate, 200.0, " MB/s");
    targets.print();
    drop(server);
}
