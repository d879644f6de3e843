//! The lower bound of any relay: the same hops as an agent's call of its caller's tool, without any work
//! at them. Lines go through the pipes of a process and a unix socket to a server, from there on an HTTP
//! stream to the caller, and back by an HTTP request, the socket and the pipes. A durable chain writes each
//! line to a journal and forwards it when it is synced.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::extract::State;
use axum::routing::get;
use axum::serve::ListenerExt;
use axum::{Json, Router};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{mpsc, oneshot};

const SERVER_ARGUMENT: &str = "--chain-server";
const DURABLE_SERVER_ARGUMENT: &str = "--chain-durable-server";
const PIPE_ARGUMENT: &str = "--chain-pipe";
const QUEUE_LENGTH: usize = 1024;
/// A full journal is overwritten from its start.
const JOURNAL_BYTES: u64 = 4 << 20;

/// A running chain. Dropping it ends it.
#[derive(Debug)]
pub struct Chain {
    pub url: String,
    pub input: ChildStdin,
    pub output: Lines<BufReader<ChildStdout>>,
    _processes: [Child; 2],
    _directory: TempDir,
}

impl Chain {
    /// Starts this program again as its parts; its `main` must call [`run_if_requested`] first.
    pub async fn start() -> Self {
        Self::start_with(SERVER_ARGUMENT).await
    }

    /// Starts a chain whose server syncs each line before it forwards it.
    pub async fn start_durable() -> Self {
        Self::start_with(DURABLE_SERVER_ARGUMENT).await
    }

    async fn start_with(server: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        let start = |argument: &str| {
            Command::new(std::env::current_exe().unwrap())
                .arg(argument)
                .arg(&socket)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .kill_on_drop(true)
                .spawn()
                .unwrap()
        };
        let mut server = start(server);
        let mut output = BufReader::new(server.stdout.take().unwrap()).lines();
        let url = output.next_line().await.unwrap().unwrap();
        let mut pipe = start(PIPE_ARGUMENT);
        Self {
            url,
            input: pipe.stdin.take().unwrap(),
            output: BufReader::new(pipe.stdout.take().unwrap()).lines(),
            _processes: [server, pipe],
            _directory: directory,
        }
    }
}

/// Runs a part of a chain if this process was started as one. Returns whether it was.
pub fn run_if_requested() -> bool {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, part, socket, ..] = arguments.as_slice() else {
        return false;
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    match part.as_str() {
        SERVER_ARGUMENT => runtime.block_on(serve(socket.as_ref(), None)),
        DURABLE_SERVER_ARGUMENT => {
            let journal = Journal::open(&Path::new(socket).with_extension("journal"));
            runtime.block_on(serve(socket.as_ref(), Some(journal)));
        }
        PIPE_ARGUMENT => run_pipe(socket.as_ref()),
        _ => return false,
    }
    true
}

fn run_pipe(socket: &Path) {
    let mut writer = std::os::unix::net::UnixStream::connect(socket).unwrap();
    let reader = writer.try_clone().unwrap();
    std::thread::spawn(move || forward(reader, std::io::stdout()));
    forward(std::io::stdin(), &mut writer);
}

fn forward(from: impl std::io::Read, mut to: impl std::io::Write) {
    let mut from = std::io::BufReader::new(from);
    let mut line = String::new();
    while std::io::BufRead::read_line(&mut from, &mut line).is_ok_and(|read| read > 0) {
        to.write_all(line.as_bytes()).unwrap();
        to.flush().unwrap();
        line.clear();
    }
}

#[derive(Debug, Default)]
struct Server {
    /// Where replies go, by id.
    pending: Mutex<HashMap<u64, mpsc::Sender<String>>>,
    caller: Mutex<Option<mpsc::Sender<String>>>,
    journal: Option<Journal>,
}

impl Server {
    async fn record(&self, line: &str) {
        if let Some(journal) = &self.journal {
            journal.record(line).await;
        }
    }
}

/// A line, and the signal that it is synced.
type JournalEntry = (String, oneshot::Sender<()>);

/// Lines that arrive during a sync share the next one.
#[derive(Debug)]
struct Journal(std::sync::mpsc::Sender<JournalEntry>);

impl Journal {
    fn open(path: &Path) -> Self {
        let file = File::create_new(path).unwrap();
        // Its blocks are allocated, as in a log that has been used for a while.
        file.write_all_at(&vec![0; JOURNAL_BYTES as usize], 0)
            .unwrap();
        file.sync_all().unwrap();
        let (queue, entries) = std::sync::mpsc::channel();
        std::thread::spawn(move || write_entries(&file, &entries));
        Self(queue)
    }

    async fn record(&self, line: &str) {
        let (synced, done) = oneshot::channel();
        self.0.send((line.to_owned(), synced)).unwrap();
        done.await.unwrap();
    }
}

fn write_entries(file: &File, entries: &std::sync::mpsc::Receiver<JournalEntry>) {
    let mut at = 0;
    while let Ok(first) = entries.recv() {
        let mut text = first.0;
        let mut waiting = vec![first.1];
        for (line, synced) in entries.try_iter() {
            text.push_str(&line);
            waiting.push(synced);
        }
        if at + text.len() as u64 > JOURNAL_BYTES {
            at = 0;
        }
        file.write_all_at(text.as_bytes(), at).unwrap();
        file.sync_data().unwrap();
        at += text.len() as u64;
        for synced in waiting {
            let _ = synced.send(());
        }
    }
}

#[allow(clippy::print_stdout, reason = "the parent reads the address")]
async fn serve(socket: &Path, journal: Option<Journal>) {
    let server = Arc::new(Server {
        journal,
        ..Server::default()
    });
    let clients = UnixListener::bind(socket).unwrap();
    let callers = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("http://{}/", callers.local_addr().unwrap());
    let accepting = server.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = clients.accept().await {
            tokio::spawn(serve_client(accepting.clone(), client));
        }
    });
    let callers = callers.tap_io(|stream| stream.set_nodelay(true).unwrap());
    let router = Router::new().route("/", get(stream_requests).post(take_reply));
    axum::serve(callers, router.with_state(server))
        .await
        .unwrap();
}

async fn serve_client(server: Arc<Server>, client: UnixStream) {
    let (reader, mut writer) = client.into_split();
    let (replies, mut waiting) = mpsc::channel::<String>(QUEUE_LENGTH);
    tokio::spawn(async move {
        while let Some(line) = waiting.recv().await {
            writer
                .write_all(format!("{line}\n").as_bytes())
                .await
                .unwrap();
        }
    });
    let mut lines = BufReader::new(reader).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let request: Value = serde_json::from_str(&line).unwrap();
        let id = request["id"].as_u64().unwrap();
        server.pending.lock().unwrap().insert(id, replies.clone());
        let server = server.clone();
        tokio::spawn(async move {
            server.record(&line).await;
            let caller = server.caller.lock().unwrap().clone();
            caller.unwrap().send(line).await.unwrap();
        });
    }
}

async fn stream_requests(State(server): State<Arc<Server>>) -> Body {
    let (caller, requests) = mpsc::channel(QUEUE_LENGTH);
    *server.caller.lock().unwrap() = Some(caller);
    let stream = futures_util::stream::unfold(requests, |mut requests| async {
        let line = requests.recv().await?;
        let event = format!("data: {line}\n\n");
        Some((Ok::<_, std::convert::Infallible>(event), requests))
    });
    Body::from_stream(stream)
}

async fn take_reply(State(server): State<Arc<Server>>, Json(reply): Json<Value>) -> Json<Value> {
    let id = reply["id"].as_u64().unwrap();
    let client = server.pending.lock().unwrap().remove(&id);
    let line = reply.to_string();
    server.record(&line).await;
    client.unwrap().send(line).await.unwrap();
    Json(Value::Bool(true))
}
