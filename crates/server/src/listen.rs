//! Accepts HTTP connections, and drains them at shutdown.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{ConnectInfo, Request};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::{App, ServerSettings};

const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(15);
/// A peer that no longer acknowledges anything is disconnected within this time.
const DEAD_PEER_TIMEOUT: Duration = Duration::from_secs(60);
/// `accept` fails when the machine is short of a resource, for example of file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Serves until `shutdown`, then lets calls in flight finish for the configured time.
pub async fn serve(
    listener: TcpListener,
    app: App,
    settings: &ServerSettings,
    shutdown: CancellationToken,
) {
    let connections = GracefulShutdown::new();
    let permits = Arc::new(Semaphore::new(settings.max_connections));
    loop {
        // The permit comes first: past the maximum, connections wait in the kernel's queue.
        let permit = tokio::select! {
            permit = permits.clone().acquire_owned() => permit,
            () = shutdown.cancelled() => break,
        };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shutdown.cancelled() => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "could not accept a connection");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        if let Err(error) = set_socket_options(&stream) {
            tracing::debug!(%error, %peer, "could not set socket options");
        }
        let router = app.router();
        let service = hyper::service::service_fn(move |request: http::Request<Incoming>| {
            let mut request: Request = request.map(axum::body::Body::new);
            request.extensions_mut().insert(ConnectInfo(peer));
            router.clone().oneshot(request)
        });
        let connection = connections.watch(
            http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_READ_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service),
        );
        app.tasks().spawn(async move {
            let _permit = permit;
            if let Err(error) = connection.await {
                tracing::debug!(%error, %peer, "connection ended");
            }
        });
    }
    drop(listener);
    app.drain();
    let drain_timeout = Duration::from_secs(settings.drain_seconds);
    if tokio::time::timeout(drain_timeout, connections.shutdown())
        .await
        .is_err()
    {
        tracing::warn!("cutting off calls still in flight after the drain timeout");
    }
    app.tasks().shut_down().await;
}

/// Sends small responses at once, and detects dead peers.
fn set_socket_options(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, DEAD_PEER_TIMEOUT / 2)?;
    sockopt::set_tcp_keepintvl(stream, DEAD_PEER_TIMEOUT / 6)?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    #[cfg(target_os = "linux")]
    sockopt::set_tcp_user_timeout(stream, DEAD_PEER_TIMEOUT.as_millis() as u32)?;
    Ok(())
}
