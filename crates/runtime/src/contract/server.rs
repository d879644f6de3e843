//! The suite in the place of the server: the relay socket and the supervisor's connections.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use oubliette_wire::{
    ExitStatus, Exited, Forget, Message, OpenStream, SignalProcess, Start, StreamKind,
    StreamOpened, Supervise, User, supervisor_methods,
};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::soon;

type Connection = BufReader<UnixStream>;
/// Connections for bytes that were asked for and did not come yet.
type Expected = Arc<Mutex<HashMap<String, oneshot::Sender<Connection>>>>;

/// A listening relay socket.
#[derive(Debug)]
pub struct Server {
    supervisors: mpsc::Receiver<Supervisor>,
    accepting: JoinHandle<()>,
}

/// The control connection of one container.
#[derive(Debug)]
pub struct Supervisor {
    pub hello: Supervise,
    connection: Connection,
    expected: Expected,
    exits: Vec<Exited>,
    next: u64,
}

/// A command that has ended, and what it wrote.
#[derive(Debug)]
pub struct Finished {
    pub ended: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Server {
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
        let coming = soon("a supervisor", self.supervisors.recv());
        coming.await.expect("the server listens")
    }

    /// Whether a supervisor has said hello that nobody asked for yet.
    pub fn has_news(&self) -> bool {
        !self.supervisors.is_empty()
    }
}

impl Drop for Server {
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
            Some(supervisor_methods::SUPERVISE) => {
                let supervisor = Supervisor {
                    hello: message.params().unwrap(),
                    connection,
                    expected: expected.clone(),
                    exits: Vec::new(),
                    next: 1,
                };
                if supervisors.send(supervisor).await.is_err() {
                    return;
                }
            }
            Some(supervisor_methods::STREAM) => {
                let opened: StreamOpened = message.params().unwrap();
                let waiting = expected.lock().unwrap().remove(&opened.stream_id);
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
    pub async fn run(&mut self, script: &str) -> Finished {
        self.run_as(script, None).await
    }

    pub async fn run_as(&mut self, script: &str, user: Option<User>) -> Finished {
        let (id, outputs) = self.begin(script, user).await;
        let texts = soon("the end of a command", async {
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
        let ended = soon("a command's exit", self.exit_of(&id)).await.ended;
        self.ask(supervisor_methods::FORGET, &Forget { process_id: id })
            .await;
        Finished {
            ended,
            stdout,
            stderr,
        }
    }

    /// Starts a shell script and waits until it has written `lines` lines; its name.
    pub async fn start(&mut self, script: &str, lines: usize) -> String {
        let (id, mut outputs) = self.begin(script, None).await;
        for _ in 0..lines {
            let mut line = String::new();
            let reading = outputs[0].read_line(&mut line);
            let read = soon("a line of a command", reading).await.unwrap();
            assert!(read > 0, "{script:?} ended before it wrote its lines");
        }
        id
    }

    /// Kills a process and all it started.
    pub async fn kill(&mut self, id: &str) {
        let kill = SignalProcess {
            process_id: id.to_owned(),
            signal: 9,
            tree: true,
        };
        self.ask(supervisor_methods::SIGNAL, &kill).await;
        soon("the exit of what was killed", self.exit_of(id)).await;
    }

    /// How a process ended, once it has.
    pub async fn exit_of(&mut self, id: &str) -> Exited {
        loop {
            if let Some(at) = self.exits.iter().position(|exited| exited.process_id == id) {
                return self.exits.swap_remove(at);
            }
            self.listen().await;
        }
    }

    /// Returns when the supervisor has gone.
    pub async fn gone(mut self) {
        soon("a supervisor's end", async {
            while read(&mut self.connection).await.is_some() {}
        })
        .await;
    }

    async fn begin(&mut self, script: &str, user: Option<User>) -> (String, Vec<Connection>) {
        let id = uuid::Uuid::new_v4().to_string();
        let mut coming = Vec::new();
        let streams = [StreamKind::Stdout, StreamKind::Stderr].map(|kind| {
            let stream_id = uuid::Uuid::new_v4().to_string();
            let (sender, receiver) = oneshot::channel();
            self.expected
                .lock()
                .unwrap()
                .insert(stream_id.clone(), sender);
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
        let reply = self.ask(supervisor_methods::START, &start).await;
        assert!(reply.error.is_none(), "{script:?}: {reply:?}");
        let mut outputs = Vec::new();
        for receiver in coming {
            outputs.push(soon("a command's output", receiver).await.unwrap());
        }
        (id, outputs)
    }

    async fn ask(&mut self, method: &str, params: &impl serde::Serialize) -> Message {
        let id = self.next;
        self.next += 1;
        let line = Message::request(id, method, params).to_line();
        let writing = self.connection.get_mut().write_all(&line);
        soon("room to ask", writing).await.unwrap();
        soon("an answer", async {
            loop {
                if let Some(reply) = self.listen().await
                    && reply.id == Some(json!(id))
                {
                    return reply;
                }
            }
        })
        .await
    }

    /// The next message, if it is not the news of an exit, which is kept.
    async fn listen(&mut self) -> Option<Message> {
        let message = read(&mut self.connection).await;
        let message = message.expect("the supervisor stays");
        if message.method.as_deref() == Some(supervisor_methods::EXITED) {
            self.exits.push(message.params().unwrap());
            return None;
        }
        Some(message)
    }
}
