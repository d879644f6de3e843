//! The real supervisor, with the test in the place of the server.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "these are tests")]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command};

use oubliette_wire::{
    Ack, CloseStdin, Ended, Exited, Message, Named, OpenStream, Opened, Size, Start, StreamKind,
    Supervise, ToSignal, methods,
};
use serde_json::json;
use tempfile::TempDir;

struct Container {
    directory: TempDir,
    listener: UnixListener,
    child: Child,
}

/// A control connection, as the server has it.
struct Control {
    reader: BufReader<UnixStream>,
    hello: Supervise,
    next: Cell<u64>,
    exits: Vec<Exited>,
}

impl Container {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("relay.sock")).unwrap();
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

    fn control(&self) -> Control {
        let (stream, _) = self.listener.accept().unwrap();
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let message: Message = serde_json::from_str(&line).unwrap();
        assert_eq!(message.method.as_deref(), Some(methods::SUPERVISE));
        let hello: Supervise = message.params().unwrap();
        Control {
            reader,
            hello,
            next: Cell::new(1),
            exits: Vec::new(),
        }
    }

    /// The next connection that carries bytes: which one, and from where.
    fn stream(&self) -> (Opened, BufReader<UnixStream>) {
        let (stream, _) = self.listener.accept().unwrap();
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let message: Message = serde_json::from_str(&line).unwrap();
        assert_eq!(message.method.as_deref(), Some(methods::STREAM));
        (message.params().unwrap(), reader)
    }

    fn output(&self) -> String {
        let (_, mut stream) = self.stream();
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
    fn ask(&mut self, method: &str, params: &impl serde::Serialize) -> Message {
        let id = self.next.get();
        self.next.set(id + 1);
        let line = Message::request(id, method, params).line();
        self.reader.get_mut().write_all(&line).unwrap();
        loop {
            let message = self.read();
            if message.id == Some(json!(id)) {
                return message;
            }
            self.note(&message);
        }
    }

    fn read(&mut self) -> Message {
        let mut line = String::new();
        assert!(
            self.reader.read_line(&mut line).unwrap() > 0,
            "the supervisor left"
        );
        serde_json::from_str(&line).unwrap()
    }

    fn note(&mut self, message: &Message) {
        if message.method.as_deref() == Some(methods::EXITED) {
            self.exits.push(message.params().unwrap());
        }
    }

    fn exit_of(&mut self, id: &str) -> Exited {
        loop {
            if let Some(exited) = self.exits.iter().find(|exited| exited.process_id == id) {
                return exited.clone();
            }
            let message = self.read();
            self.note(&message);
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
    let mut control = container.control();
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
    control.ask(methods::START, &start);
    let mut texts = BTreeMap::new();
    for _ in 0..2 {
        let (opened, mut bytes) = container.stream();
        let mut text = String::new();
        bytes.read_to_string(&mut text).unwrap();
        texts.insert(opened.stream_id, text);
    }
    assert_eq!(texts["a Stdout"], "out\n");
    assert_eq!(texts["a Stderr"], "err\n");
    let exited = control.exit_of("a");
    assert_eq!(
        (exited.ended, exited.stdout_end, exited.stderr_end),
        (Ended::Code(7), 4, 4)
    );
    control.ask(
        methods::FORGET,
        &Named {
            process_id: "a".to_owned(),
        },
    );
    let gone = control.ask(methods::OPEN_STREAM, &stream("a", StreamKind::Stdout, 0));
    assert_eq!(
        gone.error.unwrap().data,
        Some(json!({ "kind": "no_such_process" }))
    );
}

#[test]
fn what_cannot_be_started_says_why() {
    let container = Container::start();
    let mut control = container.control();
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
        let reply = control.ask(methods::START, &start);
        assert_eq!(
            reply.error.unwrap().data,
            Some(json!({ "kind": kind })),
            "{argv:?}"
        );
    }
}

#[test]
fn a_second_start_of_the_same_name_is_the_same_start() {
    let container = Container::start();
    let mut control = container.control();
    let marker = container.directory.path().join("marker");
    let start = shell("a", &format!("echo x >> {}", marker.display()));
    let first = control.ask(methods::START, &start).result;
    let second = control.ask(methods::START, &start).result;
    assert!(first.is_some() && first == second);
    control.exit_of("a");
    assert_eq!(std::fs::read_to_string(marker).unwrap(), "x\n");
}

#[test]
fn input_carries_offsets_and_is_never_taken_twice() {
    let container = Container::start();
    let mut control = container.control();
    control.ask(methods::START, &shell("a", "cat"));
    control.ask(methods::OPEN_STREAM, &stream("a", StreamKind::Stdin, 0));
    let (opened, mut input) = container.stream();
    assert_eq!(opened.from, 0);
    input.get_mut().write_all(b"hello ").unwrap();
    control.ask(methods::OPEN_STREAM, &stream("a", StreamKind::Stdout, 0));
    let (_, mut output) = container.stream();
    let mut six = [0; 6];
    output.read_exact(&mut six).unwrap();
    drop(input);
    // As after a reconnect that does not know how far it came: the first bytes come again.
    control.ask(methods::OPEN_STREAM, &stream("a", StreamKind::Stdin, 2));
    let (opened, mut input) = container.stream();
    assert_eq!(opened.from, 6);
    input.get_mut().write_all(b"llo world").unwrap();
    control.ask(
        methods::CLOSE_STDIN,
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
    assert_eq!(control.exit_of("a").ended, Ended::Code(0));
}

#[test]
fn output_waits_for_the_server_and_goes_on_from_any_offset_after_a_disconnect() {
    let container = Container::start();
    let mut control = container.control();
    // Far more than the spool holds: the process must wait, and lose nothing.
    let script = "i=0; while [ $i -lt 20000 ]; do echo $i; i=$((i+1)); done";
    let start = Start {
        spool_limit: 5000,
        ..shell("a", script)
    };
    control.ask(methods::START, &start);
    let boot = control.hello.boot_id.clone();
    let expected: String = (0..20_000).map(|n| format!("{n}\n")).collect();
    let mut got = Vec::new();
    let mut chunk = [0; 1777];
    for round in 0.. {
        control.ask(
            methods::OPEN_STREAM,
            &stream("a", StreamKind::Stdout, got.len() as u64),
        );
        let (opened, mut bytes) = container.stream();
        assert_eq!(opened.from, got.len() as u64);
        let mut ended = false;
        for _ in 0..9 {
            let read = bytes.read(&mut chunk).unwrap();
            got.extend_from_slice(&chunk[..read]);
            ended |= read == 0;
            let ack = Ack {
                process_id: "a".to_owned(),
                kind: StreamKind::Stdout,
                offset: got.len() as u64,
            };
            control.ask(methods::ACK, &ack);
            if ended {
                break;
            }
        }
        if ended {
            break;
        }
        // Both connections break; the supervisor comes back and knows everything.
        drop(bytes);
        drop(control);
        control = container.control();
        assert_eq!(control.hello.boot_id, boot);
        let report = &control.hello.processes[0];
        assert!(
            report.stdout.end - report.stdout.start <= 5000,
            "round {round}: {report:?}"
        );
    }
    assert!(
        got == expected.as_bytes(),
        "bytes were lost, doubled or out of order"
    );
}

#[test]
fn an_exit_while_nobody_listens_is_in_the_next_report() {
    let container = Container::start();
    let mut control = container.control();
    control.ask(methods::START, &shell("a", "echo done; exit 3"));
    control.exit_of("a");
    drop(control);
    let control = container.control();
    let exited = control.hello.processes[0].exited.clone().unwrap();
    assert_eq!((exited.ended, exited.stdout_end), (Ended::Code(3), 5));
}

#[test]
fn a_command_ends_though_its_children_hold_the_output_open() {
    let container = Container::start();
    let mut control = container.control();
    control.ask(
        methods::START,
        &shell("a", "echo before; sleep 1000 & exit 0"),
    );
    let exited = control.exit_of("a");
    assert_eq!((exited.ended, exited.stdout_end), (Ended::Code(0), 7));
    // The child is still there, and still belongs to the process that left it.
    let kill = ToSignal {
        process_id: "a".to_owned(),
        signal: 9,
        tree: true,
    };
    control.ask(methods::SIGNAL, &kill);
    control.ask(methods::OPEN_STREAM, &stream("a", StreamKind::Stdout, 0));
    assert_eq!(
        container.output(),
        "before\n",
        "the stream ends when the last writer is gone"
    );
}

#[test]
fn killing_a_tree_reaches_what_moved_to_a_session_of_its_own() {
    let container = Container::start();
    let mut control = container.control();
    let script = "trap '' TERM; setsid sh -c 'trap \"\" TERM; echo ready; while :; do sleep 1; \
                  done' & wait";
    control.ask(methods::START, &shell("a", script));
    control.ask(methods::OPEN_STREAM, &stream("a", StreamKind::Stdout, 0));
    let (_, mut output) = container.stream();
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    control.ask(
        methods::SIGNAL,
        &ToSignal {
            process_id: "a".to_owned(),
            signal: 15,
            tree: true,
        },
    );
    control.ask(
        methods::SIGNAL,
        &ToSignal {
            process_id: "a".to_owned(),
            signal: 9,
            tree: true,
        },
    );
    assert_eq!(control.exit_of("a").ended, Ended::Signal(9));
    // The stream's end shows that nobody holds it any more.
    assert_eq!(output.read(&mut [0; 10]).unwrap(), 0);
}

#[test]
fn a_terminal_is_one() {
    let container = Container::start();
    let mut control = container.control();
    let start = Start {
        pty: Some(Size {
            rows: 33,
            columns: 77,
        }),
        ..shell(
            "a",
            "stty size; test -t 0 && test -t 1 && echo tty; read x; echo got $x",
        )
    };
    control.ask(methods::START, &start);
    control.ask(methods::OPEN_STREAM, &stream("a", StreamKind::Stdin, 0));
    let (_, mut input) = container.stream();
    input.get_mut().write_all(b"word\n").unwrap();
    control.ask(methods::OPEN_STREAM, &stream("a", StreamKind::Stdout, 0));
    let text = container.output().replace("\r\n", "\n");
    for expected in ["33 77\n", "tty\n", "got word\n"] {
        assert!(text.contains(expected), "{expected:?} is not in {text:?}");
    }
    assert_eq!(control.exit_of("a").ended, Ended::Code(0));
}

#[test]
fn garbage_on_the_control_connection_gets_errors_and_ends_nothing() {
    let container = Container::start();
    let mut control = container.control();
    control
        .reader
        .get_mut()
        .write_all(b"not json\n{\"method\":5}\n\xff\xfe\n")
        .unwrap();
    for code in [-32700, -32600, -32700] {
        assert_eq!(control.read().error.unwrap().code, code);
    }
    let unknown = control.ask("fly", &json!({}));
    assert_eq!(unknown.error.unwrap().code, -32601);
    let wrong = control.ask(methods::START, &json!({ "argv": 5 }));
    assert_eq!(wrong.error.unwrap().code, -32602);
    let ok = control.ask(methods::START, &shell("a", "exit 0"));
    assert!(ok.result.is_some_and(|result| result["pid"].is_u64()));
    assert_eq!(control.exit_of("a").ended, Ended::Code(0));
}

#[test]
fn a_server_of_another_version_is_understood() {
    let container = Container::start();
    let mut control = container.control();
    // The answer of one that says nothing of itself, and that of one that says more than is known.
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
    let started = control.ask(methods::START, &newer).result.unwrap();
    assert_eq!(started["streams"], 1);
    assert_eq!(container.output(), "/there\n");
    assert_eq!(control.exit_of("a").ended, Ended::Code(3));
    // The first version had neither streams in a start nor an environment that had to be there.
    let older = json!({
        "process_id": "b", "argv": ["/bin/echo", "hi"], "cwd": "/", "spool_limit": 1000,
    });
    let started = control.ask(methods::START, &older).result.unwrap();
    assert_eq!(started["streams"], 0);
    control.ask(methods::OPEN_STREAM, &stream("b", StreamKind::Stdout, 0));
    assert_eq!(container.output(), "hi\n");
    let unknown = control.ask("snapshot", &json!({ "process_id": "b" }));
    assert_eq!(unknown.error.unwrap().code, -32601);
    assert!(control.hello.protocol >= 1 && !control.hello.version.is_empty());
}
