//! The limit of any relay: the same hops as an agent's call of its caller's tool, and nothing at any of
//! them. Lines through the pipes of a process, through a unix socket to a server, from there on a stream
//! of HTTP to the caller, and back by a request of HTTP, the socket and the pipes.

use std::collections::HashMap;
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
use tokio::sync::mpsc;

const SERVER: &str = "--be-the-server";
const PIPE: &str = "--be-the-pipe";
const QUEUE: usize = 1024;

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
        let mut server = start(SERVER);
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
        SERVER => runtime.block_on(serve(socket.as_ref())),
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
}

#[allow(
    clippy::print_stdout,
    reason = "the address is what the parent waits for"
)]
async fn serve(socket: &Path) {
    let server = Arc::new(Server::default());
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
        let caller = server.caller.lock().unwrap().clone();
        caller.unwrap().send(line).await.unwrap();
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
    waiting.unwrap().send(answer.to_string()).await.unwrap();
    Json(Value::Bool(true))
}
