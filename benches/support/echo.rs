//! The lower bound of any JSON endpoint over HTTP: a server in its own process that only echoes.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use axum::extract::Query;
use axum::routing::post;
use axum::serve::ListenerExt;
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::{Call, Client, Connection};

const SERVER_ARGUMENT: &str = "--echo-server";

/// A running echo server. Dropping it ends it.
#[derive(Debug)]
pub struct Echo {
    child: Child,
    address: SocketAddr,
}

impl Echo {
    /// Starts this program again as an echo server; its `main` must call [`run_if_requested`] first.
    pub fn start() -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .arg(SERVER_ARGUMENT)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let address = line.trim().parse().unwrap();
        Self { child, address }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A client whose replies are its requests with `padding` more bytes.
    pub fn client(&self, method: &str, params: &Value, padding: usize) -> Client {
        let head = format!("POST /?padding={padding} HTTP/1.1\r\n");
        Client {
            connection: Connection::open(self.address),
            call: Call::new(&head, method, params, |reply| reply["echo"].is_object()),
        }
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the echo server if this process was started as one. Returns whether it was.
pub fn run_if_requested() -> bool {
    if !std::env::args().any(|argument| argument == SERVER_ARGUMENT) {
        return false;
    }
    // The parent holds its standard input open while it needs the server.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    tokio::runtime::Runtime::new().unwrap().block_on(serve());
    true
}

#[allow(clippy::print_stdout, reason = "the parent reads the address")]
async fn serve() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("{}", listener.local_addr().unwrap());
    let listener = listener.tap_io(|stream| stream.set_nodelay(true).unwrap());
    let router = Router::new().route("/", post(echo));
    axum::serve(listener, router).await.unwrap();
}

#[derive(Deserialize)]
struct EchoQuery {
    padding: usize,
}

async fn echo(Query(query): Query<EchoQuery>, Json(request): Json<Value>) -> Json<Value> {
    let padding = "x".repeat(query.padding);
    Json(json!({ "echo": request, "padding": padding }))
}
