//! The limit of any relay: the same hops as an agent's call of its caller's tool, and nothing at any of
//! them. Lines through the pipes of a process, through a unix socket to a server, from there on a stream
//! of HTTP to the caller, and back by a request of HTTP, the socket and the pipes. A chain that loses
//! nothing besides writes down what passes, and passes it on when that is synced.

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

const SERVER: &str = "--be-the-server";
const LASTING_SERVER: &str = "--be-the-server-that-syncs";
const PIPE: &str = "--be-the-pipe";
const QUEUE: usize = 1024;
/// Bytes of a journal; it is written from the start again when it is full.
const JOURNAL: u64 = 4 << 20;

/// A running chain. Dropping it ends it.
#[derive(Debug)]
pub struct Chain {
    pub url: String,
    pub input: ChildStdin,
    pub output: Lines<BufReader<ChildStdout>>,
    _processes: [Child; 2],
    _place: TempDir,
}

impl Chain {
    /// Starts this program again as its parts; its `main` must call [`run_if_asked`] first.
    pub async fn start() -> Self {
        Self::start_with(SERVER).await
    }

    /// The same, with a server that syncs what it passes on.
    pub async fn start_lasting() -> Self {
        Self::start_with(LASTING_SERVER).await
    }

    async fn start_with(server: &str) -> Self {
        let place = tempfile::tempdir().unwrap();
        let socket = place.path().join("socket");
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
        let mut said = BufReader::new(server.stdout.take().unwrap()).lines();
        let url = said.next_line().await.unwrap().unwrap();
        let mut pipe = start(PIPE);
        Self {
            url,
            input: pipe.stdin.take().unwrap(),
            output: BufReader::new(pipe.stdout.take().unwrap()).lines(),
            _processes: [server, pipe],
            _place: place,
        }
    }
}

/// Is a part of a chain if this process was started for that; whether it was.
pub fn run_if_asked() -> bool {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, part, socket, ..] = arguments.as_slice() else {
        return false;
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    match part.as_str() {
        SERVER => runtime.block_on(serve(socket.as_ref(), None)),
        LASTING_SERVER => {
            let journal = Journal::open(&Path::new(socket).with_extension("journal"));
            runtime.block_on(serve(socket.as_ref(), Some(journal)));
        }
        PIPE => pipe(socket.as_ref()),
        _ => return false,
    }
    true
}

fn pipe(socket: &Path) {
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
    /// Where to the answers go, by id.
    waiting: Mutex<HashMap<u64, mpsc::Sender<String>>>,
    caller: Mutex<Option<mpsc::Sender<String>>>,
    journal: Option<Journal>,
}

impl Server {
    async fn note(&self, line: &str) {
        if let Some(journal) = &self.journal {
            journal.note(line).await;
        }
    }
}

/// A line, and who waits until it is synced.
type Note = (String, oneshot::Sender<()>);

/// What comes while it is synced shares the next sync.
#[derive(Debug)]
struct Journal(std::sync::mpsc::Sender<Note>);

impl Journal {
    fn open(path: &Path) -> Self {
        let file = File::create_new(path).unwrap();
        // As any log that is used for a while, it has its blocks.
        file.write_all_at(&vec![0; JOURNAL as usize], 0).unwrap();
        file.sync_all().unwrap();
        let (queue, notes) = std::sync::mpsc::channel();
        std::thread::spawn(move || keep(&file, &notes));
        Self(queue)
    }

    async fn note(&self, line: &str) {
        let (synced, done) = oneshot::channel();
        self.0.send((line.to_owned(), synced)).unwrap();
        done.await.unwrap();
    }
}

fn keep(file: &File, notes: &std::sync::mpsc::Receiver<Note>) {
    let mut at = 0;
    while let Ok(first) = notes.recv() {
        let mut text = first.0;
        let mut waiting = vec![first.1];
        for (line, synced) in notes.try_iter() {
            text.push_str(&line);
            waiting.push(synced);
        }
        if at + text.len() as u64 > JOURNAL {
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

#[allow(
    clippy::print_stdout,
    reason = "the address is what the parent waits for"
)]
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
            tokio::spawn(hear(accepting.clone(), client));
        }
    });
    let callers = callers.tap_io(|stream| stream.set_nodelay(true).unwrap());
    let router = Router::new().route("/", get(listen).post(answer));
    axum::serve(callers, router.with_state(server))
        .await
        .unwrap();
}

async fn hear(server: Arc<Server>, client: UnixStream) {
    let (reader, mut writer) = client.into_split();
    let (replies, mut waiting) = mpsc::channel::<String>(QUEUE);
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
        server.waiting.lock().unwrap().insert(id, replies.clone());
        let server = server.clone();
        tokio::spawn(async move {
            server.note(&line).await;
            let caller = server.caller.lock().unwrap().clone();
            caller.unwrap().send(line).await.unwrap();
        });
    }
}

async fn listen(State(server): State<Arc<Server>>) -> Body {
    let (caller, requests) = mpsc::channel(QUEUE);
    *server.caller.lock().unwrap() = Some(caller);
    let stream = futures_util::stream::unfold(requests, |mut requests| async {
        let line = requests.recv().await?;
        let event = format!("data: {line}\n\n");
        Some((Ok::<_, std::convert::Infallible>(event), requests))
    });
    Body::from_stream(stream)
}

async fn answer(State(server): State<Arc<Server>>, Json(answer): Json<Value>) -> Json<Value> {
    let id = answer["id"].as_u64().unwrap();
    let waiting = server.waiting.lock().unwrap().remove(&id);
    let answer = answer.to_string();
    server.note(&answer).await;
    waiting.unwrap().send(answer).await.unwrap();
    Json(Value::Bool(true))
}
