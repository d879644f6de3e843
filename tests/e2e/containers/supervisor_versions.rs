//! A server that was replaced while containers ran, with supervisors of other versions.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use support::{Server, server_with};

const OUTPUT: &str = "from another time\n";

/// A supervisor of the first version: it opens no streams before a request and does not send its
/// version.
struct FirstVersion {
    socket: PathBuf,
    control: BufReader<UnixStream>,
}

impl FirstVersion {
    /// Connects in place of the container's supervisor.
    fn connect(server: &Server, project: &str, more: Value) -> Self {
        let id = project.replace('-', "");
        let record = server.home().join("run/s").join(&id).join("container.json");
        let record: Value = serde_json::from_slice(&std::fs::read(record).unwrap()).unwrap();
        let variables = record["spec"]["init"]["env"].as_array().unwrap();
        let key = variables
            .iter()
            .find(|pair| pair[0] == "OUBLIETTE_CONTAINER_KEY")
            .unwrap();
        let socket = server.home().join("run/c").join(&id).join("relay.sock");
        let stream = UnixStream::connect(&socket).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        let mut first = Self {
            socket,
            control: BufReader::new(stream),
        };
        let mut hello =
            json!({ "container_id": id, "container_key": key[1], "boot_id": "another life" });
        hello
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        first.send(&json!({ "id": 0, "method": "supervise", "params": hello }));
        let greeting = first.receive();
        assert_eq!(greeting["id"], 0);
        assert!(greeting["result"].is_object(), "{greeting}");
        first
    }

    fn send(&mut self, message: &Value) {
        let line = format!("{message}\n");
        self.control.get_mut().write_all(line.as_bytes()).unwrap();
    }

    fn receive(&mut self) -> Value {
        let mut line = String::new();
        assert!(
            self.control.read_line(&mut line).unwrap() > 0,
            "the server left"
        );
        serde_json::from_str(&line).unwrap()
    }

    /// Dials the connection for the bytes of a stream.
    fn open(&self, asked: &Value) {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        let opened = json!({ "stream_id": asked["stream_id"], "from": 0 });
        let line = json!({ "method": "stream", "params": opened });
        stream.write_all(format!("{line}\n").as_bytes()).unwrap();
        match asked["kind"].as_str().unwrap() {
            "stdin" => drop(stream.read_to_end(&mut Vec::new())),
            "stdout" => stream.write_all(OUTPUT.as_bytes()).unwrap(),
            _ => {}
        }
    }

    /// Answers as the first version did, until a command has ended.
    fn serve(&mut self) {
        let mut opened = 0;
        loop {
            let message = self.receive();
            let (id, params) = (message["id"].clone(), message["params"].clone());
            let answer = match message["method"].as_str() {
                Some("start") => json!({ "id": id, "result": { "pid": 7 } }),
                Some("open_stream") => {
                    self.send(&json!({ "id": id, "result": {} }));
                    self.open(&params);
                    opened += u32::from(params["kind"] != "stdin");
                    if opened == 2 {
                        let exited = json!({
                            "process_id": params["process_id"], "ended": { "code": 5 },
                            "stdout_end": OUTPUT.len(), "stderr_end": 0,
                        });
                        self.send(&json!({ "method": "exited", "params": exited }));
                    }
                    continue;
                }
                Some("forget") => return,
                Some(_) if id.is_null() => continue,
                _ => {
                    let error = json!({ "code": -32601, "message": "there is no such method" });
                    json!({ "id": id, "error": error })
                }
            };
            self.send(&answer);
        }
    }
}

#[test(each(sandbox))]
async fn a_supervisor_of_the_first_version_runs_commands(runtime: &str) {
    let server = server_with(runtime, "").await;
    let admin = server.admin();
    let id = admin.project("one").await;
    admin
        .call("container_start", json!({ "project_id": id }))
        .await
        .ok();
    let mut first = FirstVersion::connect(&server, &id, json!({}));
    let playing = tokio::task::spawn_blocking(move || first.serve());
    let call = json!({ "project_id": id, "command": "echo new", "stdin": "in" });
    let ran = admin.call("container_exec", call).await;
    assert_eq!(ran.ok()["stdout"], OUTPUT);
    assert_eq!(ran.ok()["exit_code"], 5);
    playing.await.unwrap();
}

#[test(each(sandbox))]
async fn a_supervisor_of_a_newer_version_gets_errors_for_unknown_methods_and_runs_commands(
    runtime: &str,
) {
    let server = server_with(runtime, "").await;
    let admin = server.admin();
    let id = admin.project("one").await;
    admin
        .call("container_start", json!({ "project_id": id }))
        .await
        .ok();
    let newer = json!({ "protocol": 99, "version": "9.9.9", "load": [0.5, 1] });
    let mut next = FirstVersion::connect(&server, &id, newer);
    next.send(&json!({ "method": "weather", "params": { "sun": true } }));
    next.send(&json!({ "id": "q-1", "method": "borrow", "params": {} }));
    let answer = next.receive();
    assert_eq!(
        (&answer["id"], &answer["error"]["code"]),
        (&json!("q-1"), &json!(-32601)),
        "{answer}"
    );
    let playing = tokio::task::spawn_blocking(move || next.serve());
    let call = json!({ "project_id": id, "command": "echo new" });
    assert_eq!(
        admin.call("container_exec", call).await.ok()["stdout"],
        OUTPUT
    );
    playing.await.unwrap();
}
