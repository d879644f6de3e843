//! The suite in the place of the server: the relay socket and the supervisor's connections.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use oubliette_wire::{
    Ended, Exited, Message, Named, OpenStream, Opened, Start, StreamKind, Supervise, ToSignal,
    User, methods,
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::within_timeout;

type Connection = BufReader<UnixStream>;
/// Connections for bytes that were asked for and did not come yet.
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
    next: u64,
}

/// A command that has ended, and what it wrote.
#[derive(Debug)]
pub struct CommandOutput {
    pub ended: Ended,
    pub stdout: String,
    pub stderr: String,
}

impl RelayServer {
    /// Listens in a directory that containers mount; a socket of before is replaced.
    pub fn open(directory: &Path) -> Self {
        let socket = directory.join("relay.sock");
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).unwrap();
        // Whoever root in the container is out here, the container's own directory is what
        // keeps others away.
        std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o666)).unwrap();
        let (sender, supervisors) = mpsc::channel(64);
        Self {
            supervisors,
            accepting: tokio::spawn(accept(listener, sender)),
        }
    }

    /// The next supervisor that says hello.
    pub async fn supervisor(&mut self) -> Supervisor {
        let coming = within_timeout("a supervisor", self.supervisors.recv());
        coming.await.expect("the server listens")
    }

    /// Whether a supervisor has said hello that nobody asked for yet.
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
        // A container that is killed between dialling and speaking is none of our concern.
        let Some(message) = read(&mut connection).await else {
            continue;
        };
        match message.method.as_deref() {
            Some(methods::SUPERVISE) => {
                let supervisor = Supervisor {
                    handshake: message.params().unwrap(),
                    connection,
                    expected: expected.clone(),
                    exits: Vec::new(),
                    next: 1,
                };
                if supervisors.send(supervisor).await.is_err() {
                    return;
                }
            }
            Some(methods::STREAM) => {
                let opened: Opened = message.params().unwrap();
                let waiting = expected.lock().remove(&opened.stream_id);
                if let Some(waiting) = waiting {
                    let _ = waiting.send(connection);
                }
            }
            other => panic!("a connection began with {other:?}"),
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
        let texts = within_timeout("the end of a command", async {
            let mut texts = Vec::new();
            for mut output in outputs {
                let mut text = String::new();
                output.read_to_string(&mut text).await.unwrap();
                texts.push(text);
            }
            texts
        });
        let texts: [String; 2] = texts.await.try_into().unwrap();
        let [stdout, stderr] = texts;
        let ended = within_timeout("a command's exit", self.wait_for_exit(&id))
            .await
            .ended;
        self.request(methods::FORGET, &Named { process_id: id })
            .await;
        CommandOutput {
            ended,
            stdout,
            stderr,
        }
    }

    /// Starts a shell script and waits until it has written `lines` lines; its name.
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

    /// Kills a process and all it started.
    pub async fn kill(&mut self, id: &str) {
        let kill = ToSignal {
            process_id: id.to_owned(),
            signal: 9,
            tree: true,
        };
        self.request(methods::SIGNAL, &kill).await;
        within_timeout("the exit of what was killed", self.wait_for_exit(id)).await;
    }

    /// How a process ended, once it has.
    pub async fn wait_for_exit(&mut self, id: &str) -> Exited {
        loop {
            if let Some(at) = self.exits.iter().position(|exited| exited.process_id == id) {
                return self.exits.swap_remove(at);
            }
            self.next_message().await;
        }
    }

    /// Returns when the supervisor has gone.
    pub async fn wait_until_disconnected(mut self) {
        within_timeout("a supervisor's end", async {
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
        let mut coming = Vec::new();
        let streams = [StreamKind::Stdout, StreamKind::Stderr].map(|kind| {
            let stream_id = uuid::Uuid::new_v4().to_string();
            let (sender, receiver) = oneshot::channel();
            self.expected.lock().insert(stream_id.clone(), sender);
            coming.push(receiver);
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
            streams: streams.to_vec(),
        };
        let reply = self.request(methods::START, &start).await;
        assert!(reply.error.is_none(), "{script:?}: {reply:?}");
        let mut outputs = Vec::new();
        for receiver in coming {
            outputs.push(
                within_timeout("a command's output", receiver)
                    .await
                    .unwrap(),
            );
        }
        (id, outputs)
    }

    async fn request(&mut self, method: &str, params: &impl serde::Serialize) -> Message {
        let id = self.next;
        self.next += 1;
        let line = Message::request(id, method, params).line();
        let writing = self.connection.get_mut().write_all(&line);
        within_timeout("container to ask", writing).await.unwrap();
        within_timeout("an answer", async {
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

    /// The next message, if it is not the news of an exit, which is kept.
    async fn next_message(&mut self) -> Option<Message> {
        let message = read(&mut self.connection).await;
        let message = message.expect("the supervisor stays");
        if message.method.as_deref() == Some(methods::EXITED) {
            self.exits.push(message.params().unwrap());
            return None;
        }
        Some(message)
    }
}
