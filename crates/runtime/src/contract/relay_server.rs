//! The suite's relay server: a listening socket and the supervisors' connections.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use oubliette_wire::{
    ExitStatus, Exited, Forget, Message, OpenStream, SignalProcess, Start, StreamKind,
    StreamOpened, Supervise, User, supervisor_methods,
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::within_timeout;

type Connection = BufReader<UnixStream>;
/// Data streams that were requested and have not connected yet, by id.
type Expected = Arc<Mutex<HashMap<String, oneshot::Sender<Connection>>>>;

/// A listening relay socket.
#[derive(Debug)]
pub struct RelayServer {
    supervisors: mpsc::Receiver<Supervisor>,
    accepting: JoinHandle<()>,
}

/// The control connection of one container.
#[derive(Debug)]
pub struct Supervisor {
    pub handshake: Supervise,
    connection: Connection,
    expected: Expected,
    exits: Vec<Exited>,
    next_request_id: u64,
}

/// The exit and the output of a command.
#[derive(Debug)]
pub struct CommandOutput {
    pub ended: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl RelayServer {
    /// Listens in a directory that containers mount; replaces an old socket.
    pub fn open(directory: &Path) -> Self {
        let socket = directory.join("relay.sock");
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).unwrap();
        // Root in the container may be any user on the host; the permissions of the directory
        // protect the socket.
        std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o666)).unwrap();
        let (sender, supervisors) = mpsc::channel(64);
        Self {
            supervisors,
            accepting: tokio::spawn(accept(listener, sender)),
        }
    }

    /// Waits for the next supervisor to connect.
    pub async fn supervisor(&mut self) -> Supervisor {
        within_timeout("a supervisor", self.supervisors.recv())
            .await
            .expect("the server listens")
    }

    /// Whether a supervisor has connected that `supervisor` has not returned yet.
    pub fn has_connection(&self) -> bool {
        !self.supervisors.is_empty()
    }
}

impl Drop for RelayServer {
    fn drop(&mut self) {
        // The socket stays, as it does when a server is killed.
        self.accepting.abort();
    }
}

async fn accept(listener: UnixListener, supervisors: mpsc::Sender<Supervisor>) {
    let expected = Expected::default();
    while let Ok((stream, _)) = listener.accept().await {
        let mut connection = BufReader::new(stream);
        // A container may be killed after it connects and before it sends anything.
        let Some(message) = read(&mut connection).await else {
            continue;
        };
        match message.method.as_deref() {
            Some(supervisor_methods::SUPERVISE) => {
                let supervisor = Supervisor {
                    handshake: message.params().unwrap(),
                    connection,
                    expected: expected.clone(),
                    exits: Vec::new(),
                    next_request_id: 1,
                };
                if supervisors.send(supervisor).await.is_err() {
                    return;
                }
            }
            Some(supervisor_methods::STREAM) => {
                let opened: StreamOpened = message.params().unwrap();
                let receiver = expected.lock().remove(&opened.stream_id);
                if let Some(receiver) = receiver {
                    let _ = receiver.send(connection);
                }
            }
            other => panic!("the first message of a connection is {other:?}"),
        }
    }
}

async fn read(connection: &mut Connection) -> Option<Message> {
    let mut line = String::new();
    match connection.read_line(&mut line).await {
        Ok(1..) => Some(serde_json::from_str(&line).unwrap()),
        _ => None,
    }
}

impl Supervisor {
    /// Runs a shell script to its end.
    pub async fn run(&mut self, script: &str) -> CommandOutput {
        self.run_as(script, None).await
    }

    pub async fn run_as(&mut self, script: &str, user: Option<User>) -> CommandOutput {
        let (id, outputs) = self.start_script(script, user).await;
        let texts = within_timeout("the output of a command to end", async {
            let mut texts = Vec::new();
            for mut output in outputs {
                let mut text = String::new();
                output.read_to_string(&mut text).await.unwrap();
                texts.push(text);
            }
            texts
        });
        let [stdout, stderr] = texts.await.try_into().unwrap();
        let ended = within_timeout("a command's exit", self.wait_for_exit(&id))
            .await
            .ended;
        self.request(supervisor_methods::FORGET, &Forget { process_id: id })
            .await;
        CommandOutput {
            ended,
            stdout,
            stderr,
        }
    }

    /// Starts a shell script, waits until it has written `lines` lines, and returns its process id.
    pub async fn start(&mut self, script: &str, lines: usize) -> String {
        let (id, mut outputs) = self.start_script(script, None).await;
        for _ in 0..lines {
            let mut line = String::new();
            let reading = outputs[0].read_line(&mut line);
            let read = within_timeout("a line of a command", reading)
                .await
                .unwrap();
            assert!(read > 0, "{script:?} ended before it wrote its lines");
        }
        id
    }

    /// Kills a process and its descendants.
    pub async fn kill(&mut self, id: &str) {
        let kill = SignalProcess {
            process_id: id.to_owned(),
            signal: 9,
            tree: true,
        };
        self.request(supervisor_methods::SIGNAL, &kill).await;
        within_timeout("the exit of a killed process", self.wait_for_exit(id)).await;
    }

    /// Waits for a process to exit.
    pub async fn wait_for_exit(&mut self, id: &str) -> Exited {
        loop {
            if let Some(index) = self.exits.iter().position(|exited| exited.process_id == id) {
                return self.exits.swap_remove(index);
            }
            self.next_message().await;
        }
    }

    /// Waits until the supervisor has closed its connection.
    pub async fn wait_until_disconnected(mut self) {
        within_timeout("a supervisor to disconnect", async {
            while read(&mut self.connection).await.is_some() {}
        })
        .await;
    }

    async fn start_script(
        &mut self,
        script: &str,
        user: Option<User>,
    ) -> (String, Vec<Connection>) {
        let id = uuid::Uuid::new_v4().to_string();
        let mut receivers = Vec::new();
        let streams = [StreamKind::Stdout, StreamKind::Stderr].map(|kind| {
            let stream_id = uuid::Uuid::new_v4().to_string();
            let (sender, receiver) = oneshot::channel();
            self.expected.lock().insert(stream_id.clone(), sender);
            receivers.push(receiver);
            OpenStream {
                stream_id,
                process_id: id.clone(),
                kind,
                from: 0,
            }
        });
        let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        let start = Start {
            process_id: id.clone(),
            argv: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
            env: BTreeMap::from([("PATH".to_owned(), path.to_owned())]),
            cwd: "/workspace".to_owned(),
            user,
            pty: None,
            spool_limit: 1 << 20,
            isolated: false,
            streams: streams.to_vec(),
        };
        let reply = self.request(supervisor_methods::START, &start).await;
        assert!(reply.error.is_none(), "{script:?}: {reply:?}");
        let mut outputs = Vec::new();
        for receiver in receivers {
            outputs.push(
                within_timeout("a command's output", receiver)
                    .await
                    .unwrap(),
            );
        }
        (id, outputs)
    }

    async fn request(&mut self, method: &str, params: &impl serde::Serialize) -> Message {
        let id = self.next_request_id;
        self.next_request_id += 1;
        let line = Message::request(id, method, params).to_line();
        let writing = self.connection.get_mut().write_all(&line);
        within_timeout("sending a request", writing).await.unwrap();
        within_timeout("a reply", async {
            loop {
                if let Some(reply) = self.next_message().await
                    && reply.id == Some(json!(id))
                {
                    return reply;
                }
            }
        })
        .await
    }

    /// Reads the next message; stores it and returns none if it reports an exit.
    async fn next_message(&mut self) -> Option<Message> {
        let message = read(&mut self.connection)
            .await
            .expect("the supervisor closed its connection");
        if message.method.as_deref() == Some(supervisor_methods::EXITED) {
            self.exits.push(message.params().unwrap());
            return None;
        }
        Some(message)
    }
}
