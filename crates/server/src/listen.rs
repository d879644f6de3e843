//! Accepting connections, and letting go of them at the end.

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

/// A client that connects must say what it wants within this time.
const HEADERS: Duration = Duration::from_secs(15);
/// A peer that vanished without a word is noticed within this time.
const SILENCE: Duration = Duration::from_secs(60);
/// After accepting fails, which means that the machine is short of something.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves until `shutdown`, then lets calls in flight finish for the configured time.
pub async fn serve(
    listener: TcpListener,
    app: App,
    settings: &ServerSettings,
    shutdown: CancellationToken,
) {
    let connections = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(settings.max_connections));
    loop {
        // A place first: past the bound, connections wait in the kernel's queue.
        let place = tokio::select! {
            place = places.clone().acquire_owned() => place,
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
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        if let Err(error) = tune(&stream) {
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
                .header_read_timeout(HEADERS)
                .serve_connection(TokioIo::new(stream), service),
        );
        tokio::spawn(async move {
            let _place = place;
            if let Err(error) = connection.await {
                tracing::debug!(%error, %peer, "connection ended");
            }
        });
    }
    drop(listener);
    // Streams that would never end by themselves end now; calls go on.
    app.drain();
    let grace = Duration::from_secs(settings.drain_seconds);
    if tokio::time::timeout(grace, connections.shutdown())
        .await
        .is_err()
    {
        tracing::warn!("calls still in flight after the grace period were cut off");
    }
    app.close();
}

/// Small answers must leave at once, and a dead peer must be noticed.
fn tune(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, SILENCE / 2)?;
    sockopt::set_tcp_keepintvl(stream, SILENCE / 6)?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    #[cfg(target_os = "linux")]
    sockopt::set_tcp_user_timeout(stream, SILENCE.as_millis() as u32)?;
    Ok(())
}
