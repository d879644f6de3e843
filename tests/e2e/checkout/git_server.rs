//! A git server over HTTP with a password: `git http-backend` behind a small CGI server.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use axum::body::{Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::io::AsyncWriteExt;

/// What the server does and has seen.
#[derive(Clone)]
struct Site {
    root: PathBuf,
    password: String,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Requests that pushed, with the password.
    pub(super) pushes: usize,
    /// Command lines of the machine that had the password during a push.
    pub(super) exposed: Vec<String>,
}

/// Serves the bare repositories of a directory; the address, and what was seen.
pub(super) async fn serve(root: &Path, password: &str) -> (String, Arc<Mutex<Seen>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let site = Site {
        root: root.to_owned(),
        password: password.to_owned(),
        seen: Arc::default(),
    };
    let seen = site.seen.clone();
    let app = axum::Router::new().fallback(answer).with_state(site);
    tokio::spawn(async move { axum::serve(listener, app).await });
    (format!("http://{address}"), seen)
}

async fn answer(State(site): State<Site>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let expected = STANDARD.encode(format!("x-access-token:{}", site.password));
    let given = header_text(&parts.headers, header::AUTHORIZATION.as_str());
    if given != format!("Basic {expected}") {
        let realm = [(header::WWW_AUTHENTICATE, "Basic realm=\"git\"")];
        return (StatusCode::UNAUTHORIZED, realm).into_response();
    }
    let path = parts.uri.path().to_owned();
    let body = to_bytes(body, 64 << 20).await.unwrap();
    if parts.method == "POST" && path.ends_with("/git-receive-pack") {
        // The client waits for the answer meanwhile.
        let exposed = command_lines_with(&site.password);
        let mut seen = site.seen.lock().unwrap();
        seen.pushes += 1;
        seen.exposed.extend(exposed);
    }
    let mut backend = tokio::process::Command::new("git");
    backend
        .arg("http-backend")
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("GIT_PROJECT_ROOT", &site.root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("REMOTE_USER", "agent")
        .env("REMOTE_ADDR", "127.0.0.1")
        .env("REQUEST_METHOD", parts.method.as_str())
        .env("PATH_INFO", path)
        .env("QUERY_STRING", parts.uri.query().unwrap_or_default())
        .env("CONTENT_TYPE", header_text(&parts.headers, "content-type"))
        .env("CONTENT_LENGTH", body.len().to_string())
        .env(
            "HTTP_CONTENT_ENCODING",
            header_text(&parts.headers, "content-encoding"),
        )
        .env("GIT_PROTOCOL", header_text(&parts.headers, "git-protocol"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = backend.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let sending = async move {
        let _ = stdin.write_all(&body).await;
    };
    let (output, ()) = tokio::join!(child.wait_with_output(), sending);
    to_response(&output.unwrap().stdout)
}

fn header_text(headers: &HeaderMap, name: &str) -> String {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    value.unwrap_or_default().to_owned()
}

/// The response that a CGI program has printed.
fn to_response(output: &[u8]) -> Response {
    let end = output
        .windows(4)
        .position(|window| window == b"\r\n\r\n")
        .expect("a CGI program prints a header");
    let head = String::from_utf8_lossy(&output[..end]).into_owned();
    let mut response = Bytes::copy_from_slice(&output[end + 4..]).into_response();
    for line in head.lines() {
        let (name, value) = line.split_once(": ").unwrap();
        if name.eq_ignore_ascii_case("status") {
            let code = value.split(' ').next().unwrap();
            *response.status_mut() = code.parse().unwrap();
        } else {
            let name = header::HeaderName::from_bytes(name.as_bytes()).unwrap();
            response.headers_mut().insert(name, value.parse().unwrap());
        }
    }
    response
}

/// The command lines of all processes that contain a text.
fn command_lines_with(text: &str) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines
        .map(|line| String::from_utf8_lossy(&line).into_owned())
        .filter(|line| line.contains(text))
        .collect()
}
