//! A reverse proxy that adds the key to each request, which the suite cannot send, and translates calls of
//! tools that the server does not have.

use std::net::SocketAddr;

use axum::body::{Body, to_bytes};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_LENGTH, HeaderValue};
use hyper::{Request, client, server};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};

/// The suite sends nothing that is larger.
const MAX_BODY_BYTES: usize = 16 << 20;

/// Changes a message that calls a tool which the server does not have; the name of the tool that it calls
/// then.
pub(crate) type Translate = fn(&mut Value) -> Option<&'static str>;

/// Starts it in front of a server; the address to use instead of the server's.
pub(crate) async fn start(upstream: SocketAddr, key: &str) -> SocketAddr {
    start_translating(upstream, key, |_| None).await
}

/// Starts one that translates messages.
pub(crate) async fn start_translating(
    upstream: SocketAddr,
    key: &str,
    translate: Translate,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let authorization: HeaderValue = format!("Bearer {key}").parse().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(carry(stream, upstream, authorization.clone(), translate));
        }
    });
    address
}

/// One connection, on one of its own to the server: when either ends, so does the other.
async fn carry(
    stream: TcpStream,
    upstream: SocketAddr,
    authorization: HeaderValue,
    translate: Translate,
) {
    stream.set_nodelay(true).unwrap();
    let beyond = TcpStream::connect(upstream).await.unwrap();
    beyond.set_nodelay(true).unwrap();
    let (sender, connection) = client::conn::http1::handshake(TokioIo::new(beyond))
        .await
        .unwrap();
    let sender = tokio::sync::Mutex::new(sender);
    let service = hyper::service::service_fn(async |request: Request<Incoming>| {
        let (mut head, body) = request.into_parts();
        let mut body = to_bytes(Body::new(body), MAX_BODY_BYTES).await.unwrap();
        head.headers.insert(AUTHORIZATION, authorization.clone());
        let message = serde_json::from_slice(&body).ok();
        if let Some(mut message) = message
            && let Some(tool) = translate(&mut message)
        {
            body = Bytes::from(message.to_string());
            head.headers.insert(CONTENT_LENGTH, body.len().into());
            head.headers
                .insert("mcp-name", HeaderValue::from_static(tool));
        }
        let request = Request::from_parts(head, Body::from(body));
        let mut sender = sender.lock().await;
        sender.ready().await?;
        sender.send_request(request).await
    });
    let serving =
        server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    // Its client sees when a connection breaks.
    tokio::select! {
        _ = serving => {}
        _ = connection => {}
    }
}
