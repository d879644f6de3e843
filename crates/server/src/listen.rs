//! Accepts HTTP connections, and drains them at shutdown.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use futures_util::future::join_all;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::connection_limits::{Connection, ConnectionLimits};
use crate::{App, ServerSettings};

const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(15);
/// A peer that no longer acknowledges anything is disconnected within this time.
const DEAD_PEER_TIMEOUT: Duration = Duration::from_secs(60);
/// `accept` fails when the machine is short of a resource, for example of file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Connections of the user who runs the server. No connection over the network takes their places.
const MAX_LOCAL_CONNECTIONS: usize = 512;

/// Where a server accepts connections.
#[derive(Debug)]
pub struct Listeners {
    pub network: Vec<TcpListener>,
    /// A socket that only the user of this server and root can reach.
    pub local: Option<UnixListener>,
}

impl From<TcpListener> for Listeners {
    fn from(listener: TcpListener) -> Self {
        Self {
            network: vec![listener],
            local: None,
        }
    }
}

/// Serves until `shutdown`, then lets calls in flight finish for the configured time.
pub async fn serve(
    listeners: impl Into<Listeners>,
    app: App,
    settings: &ServerSettings,
    shutdown: CancellationToken,
) {
    let acceptor = Acceptor {
        app: &app,
        connections: GracefulShutdown::new(),
        limits: ConnectionLimits::new(settings, app.connection_counts().clone()),
    };
    let Listeners { network, local } = listeners.into();
    let accepting = async {
        tokio::join!(
            join_all(network.into_iter().map(|it| acceptor.accept_network(it))),
            join_all(local.into_iter().map(|it| acceptor.accept_local(it))),
        )
    };
    shutdown.run_until_cancelled(accepting).await;
    app.drain();
    let drain_timeout = Duration::from_secs(settings.drain_seconds);
    if tokio::time::timeout(drain_timeout, acceptor.connections.shutdown())
        .await
        .is_err()
    {
        tracing::warn!("cutting off calls still in flight after the drain timeout");
    }
    app.tasks().shut_down().await;
}

struct Acceptor<'a> {
    app: &'a App,
    connections: GracefulShutdown,
    limits: Arc<ConnectionLimits>,
}

impl Acceptor<'_> {
    async fn accept_network(&self, listener: TcpListener) -> Infallible {
        loop {
            let Some((stream, peer)) = accepted(listener.accept().await).await else {
                continue;
            };
            if let Err(error) = set_socket_options(&stream) {
                tracing::debug!(%error, %peer, "could not set socket options");
            }
            let connection = self.limits.admit(peer.ip()).await;
            self.spawn_connection(stream, connection, ());
        }
    }

    async fn accept_local(&self, listener: UnixListener) -> Infallible {
        let permits = Arc::new(Semaphore::new(MAX_LOCAL_CONNECTIONS));
        loop {
            let permit = permits.clone().acquire_owned().await;
            let Some((stream, _)) = accepted(listener.accept().await).await else {
                continue;
            };
            if is_own_user(&stream) {
                let connection = Connection::local(self.app.connection_counts().clone());
                self.spawn_connection(stream, connection, permit);
            }
        }
    }

    fn spawn_connection<S, P>(&self, stream: S, connection: Arc<Connection>, permit: P)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
        P: Send + 'static,
    {
        let router = self.app.router();
        let origin = connection.clone();
        let service = hyper::service::service_fn(move |request: http::Request<Incoming>| {
            let mut request: Request = request.map(axum::body::Body::new);
            request.extensions_mut().insert(origin.clone());
            router.clone().oneshot(request)
        });
        let serving = self.connections.watch(
            http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_READ_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service),
        );
        self.app.tasks().spawn(async move {
            let _permit = permit;
            tokio::select! {
                ended = serving => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, origin = %connection.origin(), "connection ended");
                    }
                }
                () = connection.evicted() => {
                    tracing::debug!(origin = %connection.origin(), "evicted a connection without a key");
                }
            }
        });
    }
}

/// A connection, or none after a pause if none could be accepted.
async fn accepted<T>(result: io::Result<T>) -> Option<T> {
    match result {
        Ok(accepted) => Some(accepted),
        Err(error) => {
            tracing::warn!(%error, "could not accept a connection");
            tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            None
        }
    }
}

fn is_own_user(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid().as_raw();
    let peer = stream.peer_cred();
    peer.is_ok_and(|peer| peer.uid() == own || peer.uid() == 0)
}

/// Sends small responses at once, and detects dead peers.
fn set_socket_options(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, DEAD_PEER_TIMEOUT / 2)?;
    sockopt::set_tcp_keepintvl(stream, DEAD_PEER_TIMEOUT / 6)?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    #[cfg(target_os = "linux")]
    sockopt::set_tcp_user_timeout(stream, DEAD_PEER_TIMEOUT.as_millis() as u32)?;
    Ok(())
}
