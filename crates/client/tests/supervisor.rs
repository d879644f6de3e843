//! The real supervisor; the test is the server.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "these are tests")]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command};
use std::time::Duration;

use oubliette_wire::{
    AckOutput, CloseStdin, ExitStatus, Exited, Forget, Message, OpenStream, SignalProcess, Start,
    StreamKind, StreamOpened, Supervise, TerminalSize, supervisor_methods,
};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use serde_json::json;
use tempfile::TempDir;

/// For each connection of the supervisor and each read from it.
const SUPERVISOR_TIMEOUT: Duration = Duration::from_secs(60);

struct Container {
    directory: TempDir,
    listener: UnixListener,
    child: Child,
}

/// The server's side of a control connection.
struct Control {
    reader: BufReader<UnixStream>,
    hello: Supervise,
    next_id: Cell<u64>,
    exits: Vec<Exited>,
}

impl Container {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("relay.sock")).unwrap();
        set_socket_timeout(&listener, Timeout::Recv, Some(SUPERVISOR_TIMEOUT)).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_oubliette-client"))
            .arg("init")
            .env_clear()
            .env("OUBLIETTE_SOCKET", directory.path().join("relay.sock"))
            .env("OUBLIETTE_SPOOLS", directory.path())
            .env("OUBLIETTE_CONTAINER_ID", "c1")
            .env("OUBLIETTE_CONTAINER_KEY", "secret")
            .spawn()
            .unwrap();
        Self {
            directory,
            listener,
            child,
        }
    }

    fn accept(&self) -> BufReader<UnixStream> {
        let (stream, _) = self
            .listener
            .accept()
            .expect("the supervisor does not connect");
        stream.set_read_timeout(Some(SUPERVISOR_TIMEOUT)).unwrap();
        BufReader::new(stream)
    }

    fn accept_control(&self) -> Control {
        let mut reader = self.accept();
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let message: Message = serde_json::from_str(&line).unwrap();
        assert_eq!(
            message.method.as_deref(),
            Some(supervisor_methods::SUPERVISE)
        );
        let hello: Supervise = message.params().unwrap();
        Control {
            reader,
            hello,
            next_id: Cell::new(1),
            exits: Vec::new(),
        }
    }

    /// The next connection that carries bytes, with its first line.
    fn accept_stream(&self) -> (StreamOpened, BufReader<UnixStream>) {
        let mut reader = self.accept();
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let message: Message = serde_json::from_str(&line).unwrap();
        assert_eq!(message.method.as_deref(), Some(supervisor_methods::STREAM));
        (message.params().unwrap(), reader)
    }

    fn read_stream(&self) -> String {
        let (_, mut stream) = self.accept_stream();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Control {
    fn request(&mut self, method: &str, params: &impl serde::Serialize) -> Message {
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        let line = Message::request(id, method, params).to_line();
        self.reader.get_mut().write_all(&line).unwrap();
        loop {
            let message = self.read();
            if message.id == Some(json!(id)) {
                return message;
            }
            self.record_exit(&message);
        }
    }

    fn read(&mut self) -> Message {
        let mut line = String::new();
        assert!(
            self.reader.read_line(&mut line).unwrap() > 0,
            "the supervisor disconnected"
        );
        serde_json::from_str(&line).unwrap()
    }

    fn record_exit(&mut self, message: &Message) {
        if message.method.as_deref() == Some(supervisor_methods::EXITED) {
            self.exits.push(message.params().unwrap());
        }
    }

    fn exit_of(&mut self, id: &str) -> Exited {
        loop {
            if let Some(exited) = self.exits.iter().find(|exited| exited.process_id == id) {
                return exited.clone();
            }
            let message = self.read();
            self.record_exit(&message);
        }
    }
}

fn shell(id: &str, script: &str) -> Start {
    Start {
        process_id: id.to_owned(),
        argv: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
        env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        cwd: "/".to_owned(),
        user: None,
        pty: None,
        spool_limit: 1 << 20,
        isolated: false,
        streams: Vec::new(),
    }
}

fn stream(id: &str, kind: StreamKind, from: u64) -> OpenStream {
    OpenStream {
        stream_id: format!("{id} {kind:?}"),
        process_id: id.to_owned(),
        kind,
        from,
    }
}

#[test]
fn a_command_runs_and_its_output_and_exit_arrive() {
    let container = Container::start();
    let mut control = container.accept_control();
    assert_eq!(
        (
            control.hello.container_id.as_str(),
            control.hello.container_key.as_str()
        ),
        ("c1", "secret")
    );
    let mut start = shell("a", "echo out; echo err >&2; exit 7");
    start.streams = vec![
        stream("a", StreamKind::Stdout, 0),
        stream("a", StreamKind::Stderr, 0),
    ];
    control.request(supervisor_methods::START, &start);
    let mut texts = BTreeMap::new();
    for _ in 0..2 {
        let (opened, mut bytes) = container.accept_stream();
        let mut text = String::new();
        bytes.read_to_string(&mut text).unwrap();
        texts.insert(opened.stream_id, text);
    }
    assert_eq!(texts["a Stdout"], "out\n");
    assert_eq!(texts["a Stderr"], "err\n");
    let exited = control.exit_of("a");
    assert_eq!(
        (exited.ended, exited.stdout_end, exited.stderr_end),
        (ExitStatus::Code(7), 4, 4)
    );
    control.request(
        supervisor_methods::FORGET,
        &Forget {
            process_id: "a".to_owned(),
        },
    );
    let gone = control.request(
        supervisor_methods::OPEN_STREAM,
        &stream("a", StreamKind::Stdout, 0),
    );
    assert_eq!(
        gone.error.unwrap().data,
        Some(json!({ "kind": "no_such_process" }))
    );
}

#[test]
fn a_failed_start_has_the_kind_of_its_fault() {
    let container = Container::start();
    let mut control = container.accept_control();
    let file = container.directory.path().join("plain");
    std::fs::write(&file, "not a program").unwrap();
    for (argv, cwd, kind) in [
        (vec!["/no/such/program".to_owned()], "/", "not_found"),
        (vec![file.to_str().unwrap().to_owned()], "/", "denied"),
        (vec!["/bin/true".to_owned()], "/no/such/place", "other"),
        (vec![], "/", "other"),
    ] {
        let start = Start {
            argv: argv.clone(),
            cwd: cwd.to_owned(),
            ..shell("x", "")
        };
        let reply = control.request(supervisor_methods::START, &start);
        assert_eq!(
            reply.error.unwrap().data,
            Some(json!({ "kind": kind })),
            "{argv:?}"
        );
    }
}

#[test]
fn a_second_start_with_the_same_id_returns_the_first_process() {
    let container = Container::start();
    let mut control = container.accept_control();
    let marker = container.directory.path().join("marker");
    let start = shell("a", &format!("echo x >> {}", marker.display()));
    let first = control.request(supervisor_methods::START, &start).result;
    let second = control.request(supervisor_methods::START, &start).result;
    assert!(first.is_some() && first == second);
    control.exit_of("a");
    assert_eq!(std::fs::read_to_string(marker).unwrap(), "x\n");
}

#[test]
fn input_is_never_written_twice() {
    let container = Container::start();
    let mut control = container.accept_control();
    control.request(supervisor_methods::START, &shell("a", "cat"));
    control.request(
        supervisor_methods::OPEN_STREAM,
        &stream("a", StreamKind::Stdin, 0),
    );
    let (opened, mut input) = container.accept_stream();
    assert_eq!(opened.from, 0);
    input.get_mut().write_all(b"hello ").unwrap();
    control.request(
        supervisor_methods::OPEN_STREAM,
        &stream("a", StreamKind::Stdout, 0),
    );
    let (_, mut output) = container.accept_stream();
    let mut six = [0; 6];
    output.read_exact(&mut six).unwrap();
    drop(input);
    // As after a reconnect: bytes that were received before are sent again.
    control.request(
        supervisor_methods::OPEN_STREAM,
        &stream("a", StreamKind::Stdin, 2),
    );
    let (opened, mut input) = container.accept_stream();
    assert_eq!(opened.from, 6);
    input.get_mut().write_all(b"llo world").unwrap();
    control.request(
        supervisor_methods::CLOSE_STDIN,
        &CloseStdin {
            process_id: "a".to_owned(),
            at: 11,
        },
    );
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert_eq!(
        format!("{}{rest}", String::from_utf8_lossy(&six)),
        "hello world"
    );
    assert_eq!(control.exit_of("a").ended, ExitStatus::Code(0));
}

#[test]
fn output_waits_for_the_server_and_continues_from_any_offset_after_a_disconnect() {
    let container = Container::start();
    let mut control = container.accept_control();
    // Far more than the spool holds: the process is blocked and nothing is lost.
    let script = "i=0; while [ $i -lt 20000 ]; do echo $i; i=$((i+1)); done";
    let start = Start {
        spool_limit: 5000,
        ..shell("a", script)
    };
    control.request(supervisor_methods::START, &start);
    let boot = control.hello.boot_id.clone();
    let expected: String = (0..20_000).map(|n| format!("{n}\n")).collect();
    let mut got = Vec::new();
    let mut chunk = [0; 1777];
    for round in 0.. {
        control.request(
            supervisor_methods::OPEN_STREAM,
            &stream("a", StreamKind::Stdout, got.len() as u64),
        );
        let (opened, mut bytes) = container.accept_stream();
        assert_eq!(opened.from, got.len() as u64);
        let mut ended = false;
        for _ in 0..9 {
            let read = bytes.read(&mut chunk).unwrap();
            got.extend_from_slice(&chunk[..read]);
            ended |= read == 0;
            let ack = AckOutput {
                process_id: "a".to_owned(),
                kind: StreamKind::Stdout,
                offset: got.len() as u64,
            };
            control.request(supervisor_methods::ACK, &ack);
            if ended {
                break;
            }
        }
        if ended {
            break;
        }
        // Both connections break; the supervisor connects again and reports the process.
        drop(bytes);
        drop(control);
        control = container.accept_control();
        assert_eq!(control.hello.boot_id, boot);
        let report = &control.hello.processes[0];
        assert!(
            report.stdout.end - report.stdout.start <= 5000,
            "round {round}: {report:?}"
        );
    }
    assert!(
        got == expected.as_bytes(),
        "bytes were lost, repeated or out of order"
    );
}

#[test]
fn an_exit_without_a_server_is_in_the_next_report() {
    let container = Container::start();
    let mut control = container.accept_control();
    control.request(supervisor_methods::START, &shell("a", "echo done; exit 3"));
    control.exit_of("a");
    drop(control);
    let control = container.accept_control();
    let exited = control.hello.processes[0].exited.clone().unwrap();
    assert_eq!((exited.ended, exited.stdout_end), (ExitStatus::Code(3), 5));
}

#[test]
fn a_command_exits_though_its_children_hold_the_output_open() {
    let container = Container::start();
    let mut control = container.accept_control();
    control.request(
        supervisor_methods::START,
        &shell("a", "echo before; sleep 1000 & exit 0"),
    );
    let exited = control.exit_of("a");
    assert_eq!((exited.ended, exited.stdout_end), (ExitStatus::Code(0), 7));
    // The child still runs, and still belongs to the tree of the process.
    let kill = SignalProcess {
        process_id: "a".to_owned(),
        signal: 9,
        tree: true,
    };
    control.request(supervisor_methods::SIGNAL, &kill);
    control.request(
        supervisor_methods::OPEN_STREAM,
        &stream("a", StreamKind::Stdout, 0),
    );
    assert_eq!(
        container.read_stream(),
        "before\n",
        "the stream ends when the last writer is gone"
    );
}

#[test]
fn killing_a_tree_kills_a_child_in_a_session_of_its_own() {
    let container = Container::start();
    let mut control = container.accept_control();
    let script = "trap '' TERM; setsid sh -c 'trap \"\" TERM; echo ready; while :; do sleep 1; \
                  done' & wait";
    control.request(supervisor_methods::START, &shell("a", script));
    control.request(
        supervisor_methods::OPEN_STREAM,
        &stream("a", StreamKind::Stdout, 0),
    );
    let (_, mut output) = container.accept_stream();
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    control.request(
        supervisor_methods::SIGNAL,
        &SignalProcess {
            process_id: "a".to_owned(),
            signal: 15,
            tree: true,
        },
    );
    control.request(
        supervisor_methods::SIGNAL,
        &SignalProcess {
            process_id: "a".to_owned(),
            signal: 9,
            tree: true,
        },
    );
    assert_eq!(control.exit_of("a").ended, ExitStatus::Signal(9));
    // The stream ends when no process has it open.
    assert_eq!(output.read(&mut [0; 10]).unwrap(), 0);
}

#[test]
fn killing_a_tree_kills_an_orphan_with_another_session_and_environment() {
    let container = Container::start();
    let mut control = container.accept_control();
    // Its parents have exited, its environment is empty, and it has a session of its own.
    let script = "env -i setsid sh -c 'exec setsid sh -c \"trap : TERM; echo ready; while :; do \
                  sleep 1; done\" &' & wait; exec cat";
    control.request(supervisor_methods::START, &shell("a", script));
    control.request(
        supervisor_methods::OPEN_STREAM,
        &stream("a", StreamKind::Stdout, 0),
    );
    let (_, mut output) = container.accept_stream();
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let other = "echo other; exec cat";
    control.request(supervisor_methods::START, &shell("b", other));
    let kill = SignalProcess {
        process_id: "a".to_owned(),
        signal: 9,
        tree: true,
    };
    control.request(supervisor_methods::SIGNAL, &kill);
    assert_eq!(control.exit_of("a").ended, ExitStatus::Signal(9));
    assert_eq!(
        output.read(&mut [0; 10]).unwrap(),
        0,
        "the orphan still runs"
    );
    let end = SignalProcess {
        process_id: "b".to_owned(),
        signal: 15,
        tree: false,
    };
    control.request(supervisor_methods::SIGNAL, &end);
    assert_eq!(
        control.exit_of("b").ended,
        ExitStatus::Signal(15),
        "a process of another tree was killed"
    );
}

#[test]
fn a_process_with_a_terminal_reads_and_writes_it() {
    let container = Container::start();
    let mut control = container.accept_control();
    let start = Start {
        pty: Some(TerminalSize {
            rows: 33,
            columns: 77,
        }),
        ..shell(
            "a",
            "stty size; test -t 0 && test -t 1 && echo tty; read x; echo got $x",
        )
    };
    control.request(supervisor_methods::START, &start);
    control.request(
        supervisor_methods::OPEN_STREAM,
        &stream("a", StreamKind::Stdin, 0),
    );
    let (_, mut input) = container.accept_stream();
    input.get_mut().write_all(b"word\n").unwrap();
    control.request(
        supervisor_methods::OPEN_STREAM,
        &stream("a", StreamKind::Stdout, 0),
    );
    let text = container.read_stream().replace("\r\n", "\n");
    for expected in ["33 77\n", "tty\n", "got word\n"] {
        assert!(text.contains(expected), "{expected:?} is not in {text:?}");
    }
    assert_eq!(control.exit_of("a").ended, ExitStatus::Code(0));
}

#[test]
fn invalid_lines_on_the_control_connection_get_errors_and_do_not_end_it() {
    let container = Container::start();
    let mut control = container.accept_control();
    control
        .reader
        .get_mut()
        .write_all(b"not json\n{\"method\":5}\n\xff\xfe\n")
        .unwrap();
    for code in [-32700, -32600, -32700] {
        assert_eq!(control.read().error.unwrap().code, code);
    }
    let unknown = control.request("fly", &json!({}));
    assert_eq!(unknown.error.unwrap().code, -32601);
    let wrong = control.request(supervisor_methods::START, &json!({ "argv": 5 }));
    assert_eq!(wrong.error.unwrap().code, -32602);
    let ok = control.request(supervisor_methods::START, &shell("a", "exit 0"));
    assert!(ok.result.is_some_and(|result| result["pid"].is_u64()));
    assert_eq!(control.exit_of("a").ended, ExitStatus::Code(0));
}

#[test]
fn requests_of_newer_and_older_servers_are_understood() {
    let container = Container::start();
    let mut control = container.accept_control();
    // A newer server sends fields that this version does not know.
    control
        .reader
        .get_mut()
        .write_all(b"{\"id\":0,\"result\":{\"protocol\":99,\"region\":\"north\"}}\n")
        .unwrap();
    let newer = json!({
        "process_id": "a", "argv": ["/bin/sh", "-c", "echo $HOME; exit 3"], "cwd": "/",
        "spool_limit": 1000, "priority": 5, "env": { "HOME": "/there" },
        "streams": [{ "stream_id": "s", "process_id": "a", "kind": "stdout", "from": 0, "rate": 1 }],
    });
    let started = control
        .request(supervisor_methods::START, &newer)
        .result
        .unwrap();
    assert_eq!(started["streams"], 1);
    assert_eq!(container.read_stream(), "/there\n");
    assert_eq!(control.exit_of("a").ended, ExitStatus::Code(3));
    // The first version sent neither streams nor an environment with a start.
    let older = json!({
        "process_id": "b", "argv": ["/bin/echo", "hi"], "cwd": "/", "spool_limit": 1000,
    });
    let started = control
        .request(supervisor_methods::START, &older)
        .result
        .unwrap();
    assert_eq!(started["streams"], 0);
    control.request(
        supervisor_methods::OPEN_STREAM,
        &stream("b", StreamKind::Stdout, 0),
    );
    assert_eq!(container.read_stream(), "hi\n");
    let unknown = control.request("snapshot", &json!({ "process_id": "b" }));
    assert_eq!(unknown.error.unwrap().code, -32601);
    assert!(control.hello.protocol >= 1 && !control.hello.version.is_empty());
}
