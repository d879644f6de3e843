//! A connection of a container to the gateway, and its requests.

use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::body::{LimitedBody, ResponseBody};
use super::buffer::Buffered;
use super::call::{Api, ModelCall, Purpose};
use super::provider::Provider;
use super::request::{Accepted, Refusal, accept, response_headers};
use super::settlement::Settlement;
use super::usage_filter::UsageFilter;
use super::{MAX_HEAD_BYTES, MAX_HEADERS, RequestBody, git, strict};
use crate::container::{ContainerGate, Gate};
use crate::journal::JournalEvent;

/// For the head of a request; also for the next request of a connection.
const REQUEST_HEAD_TIMEOUT: Duration = Duration::from_secs(300);
/// For a client to close its end.
const LINGER_TIMEOUT: Duration = Duration::from_secs(5);
/// For the whole of a request that is read before it is sent.
const CALL_BODY_TIMEOUT: Duration = Duration::from_secs(300);
/// A compressed request is larger than it seems.
const COMPRESSION_FACTOR: u64 = 8;
/// Larger requests are read by a thread of their own, so that other connections do not wait.
const MAX_INLINE_BYTES: usize = 1 << 20;

pub(super) type Reply = Response<RequestBody>;

/// Serves a connection until it ends. `first` has arrived already.
pub(crate) async fn serve(
    gate: &Arc<Gate>,
    container: &Arc<ContainerGate>,
    stream: UnixStream,
    first: Vec<u8>,
) {
    let linger = Linger::of(&stream);
    let stream = Prefixed { first, stream };
    let service = service_fn(move |request| {
        let (gate, container) = (gate.clone(), container.clone());
        async move { Ok::<_, Infallible>(handle(&gate, &container, request).await) }
    });
    let mut builder = http1::Builder::new();
    let served = builder
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_header_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    // An answer that broke off must not look complete; its connection is reset.
    let is_broken = served.is_err_and(|error| !error.is_parse());
    if let (Ok(linger), false) = (linger, is_broken) {
        linger.until_client_ends().await;
    }
}

/// Keeps a connection open after its last byte, until the client has read it and closes its end: the tunnel takes a
/// connection that is gone for one that broke.
struct Linger(OwnedFd);

impl Linger {
    fn of(stream: &UnixStream) -> io::Result<Self> {
        stream.as_fd().try_clone_to_owned().map(Self)
    }

    async fn until_client_ends(self) {
        // The client may be gone.
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Write);
        let stream = std::os::unix::net::UnixStream::from(self.0);
        let Ok(mut stream) = UnixStream::from_std(stream) else {
            return;
        };
        let reading = async {
            let mut rest = [0; 4096];
            while stream.read(&mut rest).await.is_ok_and(|read| read > 0) {}
        };
        let _ = timeout(LINGER_TIMEOUT, reading).await;
    }
}

async fn handle(
    gate: &Arc<Gate>,
    container: &Arc<ContainerGate>,
    request: Request<Incoming>,
) -> Reply {
    if git::is_git_path(request.uri().path()) {
        return Box::pin(git::handle(gate, container, request)).await;
    }
    // The parts of a request make a large future.
    let replied = Box::pin(try_handle(gate, container, request)).await;
    replied.unwrap_or_else(|refusal| refusal_reply(&refusal))
}

async fn try_handle(
    gate: &Arc<Gate>,
    container: &Arc<ContainerGate>,
    request: Request<Incoming>,
) -> Result<Reply, Refusal> {
    let gateway = &gate.gateway;
    let (head, body) = request.into_parts();
    let mut accepted = accept(&head, &container.id, &gateway.grants)?;
    let provider = accepted.grant.grant.provider;
    let purpose = Purpose::of(&accepted.method, &accepted.path);
    let refuse = |status, message: &str| Refusal::new(provider, status, message);
    // An upstream that does not expect a body would take it for the next request.
    if accepted.method != Method::POST && !body.is_end_stream() {
        let message = "only POST requests have a body";
        return Err(refuse(StatusCode::BAD_REQUEST, message));
    }
    let is_compressed = head.headers.contains_key(CONTENT_ENCODING);
    let has_budget = accepted.grant.budget.is_some();
    // Held until the response has begun.
    let mut buffered = None;
    let (call, body) = match purpose {
        Purpose::Unknown => {
            let message =
                "the gateway passes on calls of models, embeddings and lists of models only";
            return Err(refuse(StatusCode::NOT_FOUND, message));
        }
        Purpose::Uncountable => {
            let message =
                "batches are not available: what they cost is known only when they have ended";
            return Err(refuse(StatusCode::FORBIDDEN, message));
        }
        Purpose::Free => (None, stream_body(gate, body)),
        Purpose::Call(_) if is_compressed && has_budget => {
            let message = "a compressed request cannot be sent: what it can cost is not known";
            return Err(refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
        Purpose::Call(Api::Other) => {
            let size = body.size_hint();
            if size.exact().is_none() && has_budget {
                let message = "the request must have a `Content-Length`";
                return Err(refuse(StatusCode::LENGTH_REQUIRED, message));
            }
            let bytes = size.lower();
            let call = ModelCall::of_size(Api::Other, &accepted.path, bytes);
            (Some(call), stream_body(gate, body))
        }
        Purpose::Call(api) => {
            let reading = read_body(gate, container, provider, body);
            let read = timeout(CALL_BODY_TIMEOUT, reading).await;
            let (bytes, held) = read.unwrap_or_else(|_| {
                let message = "the request did not arrive in time";
                Err(refuse(StatusCode::REQUEST_TIMEOUT, message))
            })?;
            buffered = Some(held);
            let (call, bytes) = if is_compressed {
                let counted = bytes.len() as u64 * COMPRESSION_FACTOR;
                (ModelCall::of_size(api, &accepted.path, counted), bytes)
            } else {
                let path = accepted.path.clone();
                read_call(api, path, bytes, has_budget)
                    .await
                    .map_err(|why| refuse(StatusCode::BAD_REQUEST, &why))?
            };
            (Some(call), whole_body(bytes))
        }
    };
    let hides_usage = call.as_ref().is_some_and(|call| call.hides_usage);
    let host = provider_host(&accepted);
    let grant = accepted.grant.clone();
    let mut settlement = Settlement::new(gate, container, grant.clone(), host);
    if let Some(call) = call {
        let reserving = gateway.reservations.reserve(&grant, &call);
        let reserved = reserving.await.inspect_err(|_| {
            settlement.record(JournalEvent::Failed, "budget");
        })?;
        // The agent may have ended meanwhile, or the credential changed.
        accepted = accept(&head, &container.id, &gateway.grants)?;
        settlement.start_call(call, reserved);
    }
    let response = send(gate, container, accepted, body, settlement, hides_usage).await;
    drop(buffered);
    response
}

/// What a body asks for, and the body to send. With a budget, the error says why it cannot be sent.
async fn read_call(
    api: Api,
    path: String,
    bytes: Bytes,
    has_budget: bool,
) -> Result<(ModelCall, Bytes), String> {
    let is_large = bytes.len() > MAX_INLINE_BYTES;
    let read = move || {
        if has_budget {
            strict::check(&bytes)?;
        }
        let (call, changed) = ModelCall::read(api, &path, &bytes);
        Ok((call, changed.map_or(bytes, Bytes::from)))
    };
    if is_large {
        let reading = tokio::task::spawn_blocking(read).await;
        reading.unwrap_or_else(|error| Err(error.to_string()))
    } else {
        read()
    }
}

async fn send(
    gate: &Arc<Gate>,
    container: &ContainerGate,
    accepted: Accepted,
    body: RequestBody,
    mut settlement: Settlement,
    hides_usage: bool,
) -> Result<Reply, Refusal> {
    let gateway = &gate.gateway;
    let provider = accepted.grant.grant.provider;
    let mut request = Request::new(body);
    *request.method_mut() = accepted.method;
    *request.uri_mut() = accepted.uri;
    *request.headers_mut() = accepted.headers;
    let sending = container.upstream.request(request);
    let failed = |status: StatusCode, message: String| Refusal::new(provider, status, message);
    let response = match timeout(gateway.limits.response_head, sending).await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => {
            let reason = reason_of(&error);
            if error.is_connect() {
                settlement.set_free();
            }
            settlement.record(JournalEvent::Failed, &reason);
            let message = format!("the provider cannot be reached: {reason}");
            return Err(failed(StatusCode::BAD_GATEWAY, message));
        }
        Err(_) => {
            settlement.record(JournalEvent::Failed, "no response");
            let message = "the provider did not answer in time".to_owned();
            return Err(failed(StatusCode::GATEWAY_TIMEOUT, message));
        }
    };
    let (head, body) = response.into_parts();
    let mut headers = response_headers(&head.headers, accepted.grant.grant.secret.reveal());
    let mut filter = None;
    if head.status.is_success() {
        let content_type = headers.get(CONTENT_TYPE).and_then(|it| it.to_str().ok());
        let content_type = content_type.unwrap_or_default().to_owned();
        settlement.start_meter(&content_type);
        if hides_usage && content_type.starts_with("text/event-stream") {
            filter = Some(UsageFilter::default());
            headers.remove(CONTENT_LENGTH);
        }
    } else {
        // Providers do not charge for errors.
        settlement.set_free();
    }
    let body = LimitedBody::new(body, gateway.limits.response);
    let body = ResponseBody::new(body, Some(settlement), filter);
    let mut reply = Response::new(body.boxed_unsync());
    *reply.status_mut() = head.status;
    *reply.headers_mut() = headers;
    Ok(reply)
}

/// Reads a whole body, within what the container and the gate may hold.
async fn read_body(
    gate: &Arc<Gate>,
    container: &ContainerGate,
    provider: Provider,
    body: Incoming,
) -> Result<(Bytes, Buffered), Refusal> {
    let gateway = &gate.gateway;
    let max = gateway.limits.max_call_bytes;
    let too_large = || {
        let message = format!("the request has more than {} MiB", max >> 20);
        Refusal::new(provider, StatusCode::PAYLOAD_TOO_LARGE, message)
    };
    if body.size_hint().lower() > max as u64 {
        return Err(too_large());
    }
    let busy = || {
        let message = "too many large requests are on their way; try again";
        Refusal::new(provider, StatusCode::SERVICE_UNAVAILABLE, message)
    };
    let mut held = Buffered::new(gate, container);
    let mut bytes = Vec::new();
    let mut body = LimitedBody::new(body, gateway.limits.request);
    while let Some(frame) = body.frame().await {
        let broken = |error: io::Error| {
            let message = format!("the request cannot be read: {error}");
            Refusal::new(provider, StatusCode::REQUEST_TIMEOUT, message)
        };
        let data = frame.map_err(broken)?.into_data().unwrap_or_default();
        if bytes.len() + data.len() > max {
            return Err(too_large());
        }
        if !held.grow_to(bytes.len() + data.len()) {
            return Err(busy());
        }
        bytes.extend_from_slice(&data);
    }
    Ok((bytes.into(), held))
}

fn stream_body(gate: &Gate, body: Incoming) -> RequestBody {
    LimitedBody::new(body, gate.gateway.limits.request).boxed_unsync()
}

pub(super) fn whole_body(bytes: Bytes) -> RequestBody {
    Full::new(bytes)
        .map_err(|never| match never {})
        .boxed_unsync()
}

fn provider_host(accepted: &Accepted) -> (String, u16) {
    let uri = &accepted.uri;
    let default = if uri.scheme_str() == Some("http") {
        80
    } else {
        443
    };
    let host = uri.host().unwrap_or_default().to_owned();
    (host, uri.port_u16().unwrap_or(default))
}

/// The innermost reason: the others say that a request failed.
pub(super) fn reason_of(error: &dyn Error) -> String {
    let mut reason = error;
    while let Some(source) = reason.source() {
        reason = source;
    }
    let text = reason.to_string();
    text.chars().filter(|c| !c.is_control()).take(300).collect()
}

fn refusal_reply(refusal: &Refusal) -> Reply {
    let provider = refusal.provider.unwrap_or(Provider::OpenAi);
    let body = provider.error_body(refusal.status, &refusal.message);
    let mut reply = Response::new(whole_body(Bytes::from(body.to_string())));
    *reply.status_mut() = refusal.status;
    let json = HeaderValue::from_static("application/json");
    reply.headers_mut().insert(CONTENT_TYPE, json);
    reply
}

/// A stream of which some bytes have been read already.
struct Prefixed {
    first: Vec<u8>,
    stream: UnixStream,
}

impl AsyncRead for Prefixed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let count = self.first.len().min(buffer.remaining());
        let rest = self.first.split_off(count);
        buffer.put_slice(&self.first);
        self.first = rest;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Prefixed {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
