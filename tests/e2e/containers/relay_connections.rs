//! Connections to a container's relay socket that do not authenticate: they get error replies and nothing
//! else, and do not disturb others. The sockets are the same with every runtime that mounts them, so one runtime
//! is enough where no process in the container matters.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use support::{Modern, Server, server_with};

async fn assert_commands_run(admin: &Modern, id: &str) {
    let call = json!({ "project_id": id, "command": "cat; echo fine", "stdin": "in\n" });
    let ran = admin.call("container_exec", call).await;
    assert_eq!(ran.ok()["stdout"], "in\nfine\n");
}

fn socket(server: &Server, id: &str) -> PathBuf {
    let directory = server.home().join("run/c").join(id.replace('-', ""));
    directory.join("relay.sock")
}

/// A raw connection to a relay socket.
struct Connection(BufReader<UnixStream>);

/// Waits until a server that has just been started lets containers in.
async fn wait_for_socket(server: &Server, id: &str) {
    let open = support::eventually(Duration::from_secs(20), async || {
        UnixStream::connect(socket(server, id)).is_ok()
    });
    assert!(open.await, "the socket is not opened");
}

impl Connection {
    fn open(server: &Server, id: &str) -> Self {
        let stream = UnixStream::connect(socket(server, id)).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        Self(BufReader::new(stream))
    }

    fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    fn read_reply(&mut self) -> Value {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line:?} is not a reply"))
    }

    fn request_code(&mut self, line: &str) -> i64 {
        self.send(line.as_bytes());
        self.send(b"\n");
        self.read_reply()["error"]["code"].as_i64().unwrap()
    }
}

fn handshake(container: &str, key: &str) -> String {
    let params = json!({
        "container_id": container.replace('-', ""), "container_key": key, "boot_id": "x",
    });
    json!({ "id": 0, "method": "supervise", "params": params }).to_string()
}

#[test(each(sandbox))]
async fn nonsense_is_answered_and_ends_no_connection(runtime: &str) {
    let server = server_with(runtime, "").await;
    let admin = server.admin();
    let id = admin.project("one").await;
    assert_commands_run(&admin, &id).await;
    let mut connection = Connection::open(&server, &id);
    assert_eq!(connection.request_code("garbage"), -32700);
    connection.send(b"\xff\xfe\0\x01\n");
    assert_eq!(connection.read_reply()["error"]["code"], -32700);
    assert_eq!(connection.request_code("[1, 2]"), -32600);
    assert_eq!(connection.request_code(r#"{"id":1}"#), -32600);
    assert_eq!(
        connection.request_code(r#"{"id":1,"method":"fly"}"#),
        -32601
    );
    // Only the first message of a connection can make it a supervisor's.
    assert_eq!(
        connection.request_code(r#"{"id":1,"method":"supervise"}"#),
        -32601
    );
    let mut other = Connection::open(&server, &id);
    assert_eq!(
        other.request_code(r#"{"id":1,"method":"supervise"}"#),
        -32602
    );
    assert_eq!(connection.request_code(&"[".repeat(100_000)), -32700);
    // A notification gets no reply, so the next answer is that of the request after it.
    connection.send(b"{\"method\":\"fly\"}\n{\"method\":\"supervise\"}\n");
    connection.send(b"{\"id\":\"after\",\"method\":\"fly\"}\n");
    assert_eq!(connection.read_reply()["id"], "after");
    // Half a line now, half a line later.
    connection.send(b"{\"id\":2,\"meth");
    assert_commands_run(&admin, &id).await;
    connection.send(b"od\":\"fly\"}\n");
    assert_eq!(connection.read_reply()["id"], 2);
    assert_commands_run(&admin, &id).await;
}

#[test(each(sandbox))]
async fn an_endless_line_is_refused_and_uses_little_memory(runtime: &str) {
    let server = server_with(runtime, "").await;
    let admin = server.admin();
    let id = admin.project("one").await;
    assert_commands_run(&admin, &id).await;
    let block = vec![b'x'; 1 << 20];
    let before = resident(&server);
    let mut connection = Connection::open(&server, &id);
    for _ in 0..40 {
        connection.send(&block);
    }
    connection.send(b"\n");
    let answer = connection.read_reply();
    assert_eq!(answer["error"]["code"], -32700);
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("16 MiB"), "{message}");
    // As long as a line may be.
    let mut max_line = br#"{"id":1,"method":"fly","params":{"x":""#.to_vec();
    max_line.resize((16 << 20) - 3, b'y');
    max_line.extend(b"\"}}");
    assert_eq!(
        connection.request_code(std::str::from_utf8(&max_line).unwrap()),
        -32601
    );
    assert_commands_run(&admin, &id).await;
    drop(connection);

    // Many connections at once that begin a long line and do not end it.
    let mut connections: Vec<Connection> =
        (0..30).map(|_| Connection::open(&server, &id)).collect();
    let quarter = vec![b'x'; 256 << 10];
    for connection in &mut connections {
        // What does not fit into the socket's buffer is not sent.
        let stream = connection.0.get_mut();
        stream.set_nonblocking(true).unwrap();
        let _ = stream.write(&quarter);
    }
    assert_commands_run(&admin, &id).await;
    let grown = resident(&server).saturating_sub(before);
    assert!(grown < 120 << 20, "{grown} bytes more than before");
}

fn resident(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kilobytes = line.unwrap().split_ascii_whitespace().nth(1).unwrap();
    kilobytes.parse::<u64>().unwrap() << 10
}

#[test(mounted_runtimes)]
async fn hundreds_of_silent_connections_do_not_block_commands(runtime: &str) {
    let mut server = server_with(runtime, "").await;
    let admin = server.admin();
    let id = admin.project("one").await;
    assert_commands_run(&admin, &id).await;
    let silent: Vec<Connection> = (0..700).map(|_| Connection::open(&server, &id)).collect();
    assert_commands_run(&admin, &id).await;
    drop(silent);
    // Nor do they block a supervisor that reconnects to a restarted server.
    server.kill();
    server.start_again();
    wait_for_socket(&server, &id).await;
    let silent: Vec<Connection> = (0..700).map(|_| Connection::open(&server, &id)).collect();
    assert_commands_run(&server.admin(), &id).await;
    // The server closed the connections that stayed silent.
    let mut gone = 0;
    for mut connection in silent {
        connection.0.get_mut().set_nonblocking(true).unwrap();
        match connection.0.read(&mut [0]) {
            Ok(0) => gone += 1,
            Err(error) if error.kind() != ErrorKind::WouldBlock => gone += 1,
            _ => {}
        }
    }
    assert!(gone >= 500, "{gone} of 700 were closed");
}

#[test(mounted_runtimes)]
async fn wrong_keys_are_refused_and_limited_and_right_ones_are_accepted(runtime: &str) {
    let mut server = server_with(runtime, "").await;
    let admin = server.admin();
    let (one, two) = (admin.project("one").await, admin.project("two").await);
    assert_commands_run(&admin, &one).await;
    assert_commands_run(&admin, &two).await;
    // A key that is valid somewhere else: at the endpoint, and at another container's socket.
    let elsewhere = match runtime {
        "sandbox" => key_of(&server, &two),
        _ => admin.token("admin").await,
    };
    let unknown_key = format!("oub_{}", "A".repeat(43));
    let mut connection = Connection::open(&server, &one);
    for key in [
        unknown_key.as_str(),
        "",
        "nonsense",
        &elsewhere,
        &server.admin_key(),
    ] {
        for container in [&one, &two] {
            let answer = connection.request_code(&handshake(container, key));
            assert_eq!(answer, -32001, "{runtime}: {key}");
        }
    }
    // Many more, on many connections at once.
    let mut too_many = 0;
    for _ in 0..20 {
        let mut connection = Connection::open(&server, &one);
        for _ in 0..5 {
            connection.send(handshake(&one, &unknown_key).as_bytes());
            connection.send(b"\n");
            let answer = connection.read_reply();
            assert_eq!(answer["error"]["code"], -32001);
            let message = answer["error"]["message"].as_str().unwrap();
            too_many += usize::from(message.contains("too many"));
        }
    }
    assert!(too_many > 50, "{too_many}");
    // Only attempts before the limit are in the log, with their project.
    let filter = json!({ "operation": "authenticate", "limit": 1000 });
    let written = support::eventually(Duration::from_secs(30), async || {
        let log = admin.call("audit_list", filter.clone()).await;
        let entries = log.ok()["entries"].as_array().unwrap().clone();
        let of_project = entries
            .iter()
            .filter(|entry| entry["project_id"] == one.as_str());
        (15..40).contains(&of_project.count())
    });
    assert!(written.await);
    // Meanwhile, connections with the right key are accepted, also at the other socket.
    assert_commands_run(&admin, &one).await;
    assert_commands_run(&admin, &two).await;
    server.kill();
    server.start_again();
    wait_for_socket(&server, &one).await;
    let mut connection = Connection::open(&server, &one);
    for _ in 0..30 {
        connection.request_code(&handshake(&one, &unknown_key));
    }
    assert_commands_run(&server.admin(), &one).await;
    assert_commands_run(&server.admin(), &two).await;
    // A connection without a valid stream id gets no stream.
    let mut connection = Connection::open(&server, &one);
    connection.send(b"{\"method\":\"stream\",\"params\":{\"stream_id\":\"x\",\"from\":0}}\n");
    let mut rest = Vec::new();
    assert_eq!(connection.0.read_to_end(&mut rest).unwrap(), 0);
}

/// The key of a container as its own record has it.
fn key_of(server: &Server, id: &str) -> String {
    let state = server.home().join("run/s").join(id.replace('-', ""));
    let record = std::fs::read_to_string(state.join("container.json")).unwrap();
    let begin = record.find("oub_").unwrap();
    let key: String = record[begin..]
        .chars()
        .take_while(|c| c.is_ascii_alphanumeric() || "_-".contains(*c))
        .collect();
    key
}
