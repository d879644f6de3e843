//! A reverse proxy that adds the key to each request and changes nothing else: the suite cannot
//! send one.

use std::net::SocketAddr;

use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::{Request, client, server};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

/// Starts it in front of a server; the address to use instead of the server's.
pub(crate) async fn start(upstream: SocketAddr, key: &str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let authorization: HeaderValue = format!("Bearer {key}").parse().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(carry(stream, upstream, authorization.clone()));
        }
    });
    address
}

/// One connection, on one of its own to the server: when either ends, so does the other.
async fn carry(stream: TcpStream, upstream: SocketAddr, authorization: HeaderValue) {
    stream.set_nodelay(true).unwrap();
    let beyond = TcpStream::connect(upstream).await.unwrap();
    beyond.set_nodelay(true).unwrap();
    let (sender, connection) = client::conn::http1::handshake(TokioIo::new(beyond))
        .await
        .unwrap();
    let sender = tokio::sync::Mutex::new(sender);
    let service = hyper::service::service_fn(async |mut request: Request<Incoming>| {
        let headers = request.headers_mut();
        headers.insert(AUTHORIZATION, authorization.clone());
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
