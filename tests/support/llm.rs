//! A scripted model for real agents: a server on loopback that speaks the providers'
//! protocols and does what the last message of the user says.
//!
//! The language is in `llm/script.rs`. Every request is recorded, so that a test can see what reached
//! the model.

mod chat;
mod conversation;
mod gemini;
mod messages;
mod responses;
mod script;

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use futures_util::{StreamExt, stream};
use oubliette_test_harness::scaled;
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};

use conversation::Conversation;
use script::{Failure, Pause, Reply};

/// How many requests are recorded; a runaway agent must not fill the memory.
const MAX_REQUESTS: usize = 2000;
const MAX_BODY_BYTES: usize = 16 * 1024 * 1024;
/// Far longer than an agent takes to ask its model.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// How long an answer lasts that is cut.
const CUT_DELAY: Duration = Duration::from_millis(50);

/// The usage that the model reports for every call.
pub const INPUT_TOKENS: u64 = 100;
pub const OUTPUT_TOKENS: u64 = 20;

/// A running model. Dropping it closes its connections.
#[derive(Debug)]
pub struct Llm {
    address: SocketAddr,
    recorded: Arc<Recorded>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// One request that reached the model.
#[derive(Debug, Clone, Default)]
pub struct Request {
    pub path: String,
    /// The key or token that came with it.
    pub key: String,
    pub body: Value,
    /// The body as text, for searches: serializing it takes long.
    text: String,
}

impl Request {
    /// Whether the text stands anywhere in it.
    pub fn mentions(&self, text: &str) -> bool {
        let escaped = Value::from(text).to_string();
        self.text.contains(escaped.trim_matches('"'))
    }

    /// Whether it is a step of a turn, and not a question for a title or the like.
    pub fn is_step(&self) -> bool {
        let has_tools = |list: &Value| list.as_array().is_some_and(|tools| !tools.is_empty());
        let items = self.body["input"].as_array().into_iter().flatten();
        let wants_title = self.body["text"]["format"]["type"] == "json_schema";
        has_tools(&self.body["tools"])
            || (!wants_title && items.into_iter().any(|item| has_tools(&item["tools"])))
    }
}

#[derive(Debug, Default)]
struct Recorded {
    requests: Mutex<Vec<Request>>,
    changed: Condvar,
    /// The status of the error with which every request is answered.
    failing: Mutex<Option<u16>>,
    /// How many requests have failed, by the message that made them fail.
    failed: Mutex<HashMap<String, usize>>,
    /// Changes when answers that `hold` delays may continue.
    released: watch::Sender<()>,
}

impl Llm {
    /// Starts a model on a free port of 127.0.0.1, on a thread of its own.
    pub fn start() -> Self {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let recorded = Arc::new(Recorded::default());
        let (stop, stopped) = oneshot::channel();
        let state = recorded.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let router = Router::new()
                    .fallback(any(handle_request))
                    .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
                    .with_state(state);
                tokio::select! {
                    served = async { axum::serve(listener, router).await } => served.unwrap(),
                    _ = stopped => {}
                }
            });
            // A reply that was stalled on purpose has no end to wait for.
            runtime.shutdown_background();
        });
        Self {
            address,
            recorded,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// The address without a path, as Anthropic's and Google's clients want it.
    pub fn base(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The address with `/v1`, as clients of OpenAI's protocols want it.
    pub fn v1(&self) -> String {
        format!("{}/v1", self.base())
    }

    /// The address and port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets every answer continue that a `hold` delays now.
    pub fn release(&self) {
        self.recorded.released.send_replace(());
    }

    /// Answers every request with this error from now on, or none.
    pub fn fail_with(&self, status: Option<u16>) {
        *self.recorded.failing.lock().unwrap() = status;
    }

    /// Every request so far, in order.
    pub fn requests(&self) -> Vec<Request> {
        self.recorded.requests.lock().unwrap().clone()
    }

    /// The requests so far that are steps of a turn.
    pub fn steps(&self) -> Vec<Request> {
        let mut requests = self.requests();
        requests.retain(Request::is_step);
        requests
    }

    /// How many requests so far mention this text.
    pub fn count_requests(&self, text: &str) -> usize {
        let requests = self.recorded.requests.lock().unwrap();
        requests.iter().filter(|one| one.mentions(text)).count()
    }

    /// How many steps so far mention this text.
    pub fn count_steps(&self, text: &str) -> usize {
        let requests = self.recorded.requests.lock().unwrap();
        let is_wanted = |request: &&Request| request.is_step() && request.mentions(text);
        requests.iter().filter(is_wanted).count()
    }

    /// The last step that mentions this text.
    pub fn last_step(&self, text: &str) -> Option<Request> {
        let requests = self.recorded.requests.lock().unwrap();
        let is_wanted = |request: &&Request| request.is_step() && request.mentions(text);
        requests.iter().rfind(is_wanted).cloned()
    }

    /// Waits for a step whose request mentions this text. Blocks the thread.
    ///
    /// # Panics
    /// If no such request arrives in time.
    pub fn wait_for(&self, text: &str) -> Request {
        let deadline = Instant::now() + scaled(REQUEST_TIMEOUT);
        let mut requests = self.recorded.requests.lock().unwrap();
        loop {
            let found = requests
                .iter()
                .find(|request| request.is_step() && request.mentions(text));
            if let Some(request) = found {
                return request.clone();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "no request mentions {text:?}");
            (requests, _) = self.recorded.changed.wait_timeout(requests, left).unwrap();
        }
    }
}

impl Drop for Llm {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn key_of(headers: &HeaderMap) -> String {
    let names = ["x-api-key", "x-goog-api-key", "authorization"];
    let mut keys = names.into_iter().filter_map(|name| headers.get(name));
    let key = keys.next().and_then(|key| key.to_str().ok());
    let key = key.unwrap_or_default();
    key.strip_prefix("Bearer ").unwrap_or(key).to_owned()
}

async fn handle_request(
    State(recorded): State<Arc<Recorded>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let path = uri.path();
    if method == Method::GET && path.ends_with("/responses") {
        // Codex asks for a WebSocket first, and uses HTTP after this answer.
        return error_response(StatusCode::UPGRADE_REQUIRED, "there are no WebSockets");
    }
    // Subscribed before the request is recorded, so that no release is missed.
    let mut released = recorded.released.subscribe();
    let Ok(body) = serde_json::from_slice::<Value>(&body) else {
        return error_response(StatusCode::BAD_REQUEST, "the body is not JSON");
    };
    let request = Request {
        path: path.to_owned(),
        key: key_of(&headers),
        text: body.to_string(),
        body: body.clone(),
    };
    {
        let mut requests = recorded.requests.lock().unwrap();
        if requests.len() >= MAX_REQUESTS {
            return error_response(
                StatusCode::TOO_MANY_REQUESTS,
                "too many requests for one test",
            );
        }
        requests.push(request);
        recorded.changed.notify_all();
    }
    if path.ends_with("/messages/count_tokens") {
        return json_body(&json!({ "input_tokens": INPUT_TOKENS }));
    }
    let (read, write): (Read, Write) = match path {
        path if path.ends_with("/chat/completions") => (chat::read, chat::write),
        path if path.ends_with("/messages") => (messages::read, messages::write),
        path if path.ends_with("/responses") => (responses::read, responses::write),
        path if path.contains("enerateContent") => (gemini::read, gemini::write),
        _ => return error_response(StatusCode::NOT_FOUND, "no provider has this path"),
    };
    let conversation = Conversation {
        body: body.clone(),
        ..read(&body)
    };
    let failing = *recorded.failing.lock().unwrap();
    let failing = failing.map(|status| Failure {
        status,
        times: None,
    });
    let reply = {
        let mut failed = recorded.failed.lock().unwrap();
        let failed = failed.entry(script::message(&conversation)).or_default();
        let mut reply = script::reply(&conversation, *failed);
        reply.model = requested_model(path, &body);
        *failed += usize::from(reply.fail.is_some());
        reply
    };
    if let Some(failure) = failing.or(reply.fail) {
        let status = StatusCode::from_u16(failure.status);
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        return error_response(status, provider_message(failure.status));
    }
    if let Some(Pause::Silence) = reply.pause {
        return std::future::pending().await;
    }
    let wire = write(&reply);
    let streamed = body["stream"] == true || path.contains(":streamGenerateContent");
    let mut events = wire.events;
    if !streamed && reply.pause.is_none_or(|pause| pause == Pause::Hold) {
        return json_body(&wire.whole);
    }
    let rest = match reply.pause {
        Some(_) => events.split_off(wire.opening),
        None => Vec::new(),
    };
    let rest = stream::once(async move {
        match reply.pause {
            Some(Pause::Stall) => std::future::pending().await,
            // It fails if the model is dropped.
            Some(Pause::Hold) => drop(released.changed().await),
            Some(Pause::Cut) => {
                // What comes before it is sent, and not dropped with the connection.
                tokio::time::sleep(CUT_DELAY).await;
                return stream::iter(vec![Err(ErrorKind::ConnectionReset)]);
            }
            Some(Pause::Silence) | None => {}
        }
        stream::iter(rest.into_iter().map(Ok).collect::<Vec<_>>())
    });
    let stream = stream::iter(events.into_iter().map(Ok)).chain(rest.flatten());
    let stream = stream.map(|piece| piece.map_err(io::Error::from));
    let kind = [(header::CONTENT_TYPE, "text/event-stream")];
    (kind, Body::from_stream(stream)).into_response()
}

/// The model that a request names, in its body or its path.
fn requested_model(path: &str, body: &Value) -> String {
    let in_path = path.rsplit_once("/models/").map(|(_, rest)| rest);
    let in_path = in_path.and_then(|rest| rest.split(':').next());
    let named = body["model"].as_str().or(in_path);
    named.unwrap_or("mock-model").to_owned()
}

type Read = fn(&Value) -> Conversation;
type Write = fn(&Reply) -> Wire;

/// A reply in a provider's words.
struct Wire {
    events: Vec<String>,
    /// The number of events before the end of the text.
    opening: usize,
    whole: Value,
}

/// An event as OpenAI and Google send it.
fn data(value: &Value) -> String {
    format!("data: {value}\n\n")
}

/// An event with a name, which is also in it.
fn event(value: &Value) -> String {
    let name = value["type"].as_str().unwrap_or_default();
    format!("event: {name}\ndata: {value}\n\n")
}

fn json_body(value: &Value) -> Response {
    let kind = [(header::CONTENT_TYPE, "application/json")];
    (kind, value.to_string()).into_response()
}

/// An error as a provider sends it; the parts of all of them in one.
fn error_response(status: StatusCode, why: &str) -> Response {
    let (kind, name) = match status.as_u16() {
        400 => ("invalid_request_error", "INVALID_ARGUMENT"),
        401 => ("authentication_error", "UNAUTHENTICATED"),
        403 => ("permission_error", "PERMISSION_DENIED"),
        429 => ("rate_limit_error", "RESOURCE_EXHAUSTED"),
        503 | 529 => ("overloaded_error", "UNAVAILABLE"),
        _ => ("api_error", "INTERNAL"),
    };
    let code = status.as_u16();
    let mut error = json!({ "type": kind, "code": code, "status": name, "message": why });
    let is_limit = matches!(code, 429 | 503 | 529);
    if is_limit {
        let kind = "type.googleapis.com/google.rpc.RetryInfo";
        error["details"] = json!([{ "@type": kind, "retryDelay": "1s" }]);
    }
    let error = json!({ "type": "error", "error": error });
    let mut response = (status, json_body(&error)).into_response();
    if is_limit {
        let headers = response.headers_mut();
        headers.insert(header::RETRY_AFTER, header::HeaderValue::from_static("1"));
    }
    response
}

/// What providers say with a status.
fn provider_message(status: u16) -> &'static str {
    match status {
        400 => "The request has a field that this model does not know",
        401 => "Incorrect API key provided",
        403 => "You do not have access to this model",
        429 => "Rate limit reached for requests",
        503 | 529 => "The model is overloaded",
        _ => "The server had an error while processing your request",
    }
}
