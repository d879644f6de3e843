//! Connections to providers: the addresses of the name, TCP, and TLS unless an admin's address is plain HTTP.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use rustls_platform_verifier::Verifier;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tower_service::Service;

use crate::resolver::Resolver;

/// For each address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// For the name, all addresses and TLS together.
const ALL_CONNECTS_TIMEOUT: Duration = Duration::from_secs(30);
/// A provider that does not answer for so long is asked whether it still knows the connection.
const KEEPALIVE_TIME: Duration = Duration::from_secs(30);

/// Connects to providers. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Connector {
    resolver: Resolver,
    tls: Arc<ClientConfig>,
}

impl Connector {
    pub(crate) fn new(resolver: Resolver) -> io::Result<Self> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = Verifier::new(provider.clone()).map_err(io::Error::other)?;
        let mut tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            // It verifies with the authorities of this machine; see crates/tls-roots.
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self {
            resolver,
            tls: Arc::new(tls),
        })
    }

    async fn connect(self, uri: Uri) -> io::Result<TokioIo<ProviderStream>> {
        let connecting = async {
            let host = uri.host().unwrap_or_default();
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let is_tls = uri.scheme_str() != Some("http");
            let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
            let addresses = match host.parse::<IpAddr>() {
                Ok(address) => vec![address],
                Err(_) => self.resolver.lookup(host).await.map_err(io::Error::other)?,
            };
            let stream = connect_first(&addresses, port).await?;
            if !is_tls {
                return Ok::<_, io::Error>(ProviderStream::Plain(stream));
            }
            let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
            let stream = TlsConnector::from(self.tls.clone()).connect(name, stream);
            Ok(ProviderStream::Tls(Box::new(stream.await?)))
        };
        let connected = timeout(ALL_CONNECTS_TIMEOUT, connecting).await;
        let stream = connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
        Ok(TokioIo::new(stream))
    }
}

async fn connect_first(addresses: &[IpAddr], port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::other("the host has no address");
    for address in addresses {
        let connecting = TcpStream::connect(SocketAddr::new(*address, port));
        match timeout(CONNECT_TIMEOUT, connecting).await {
            Ok(Ok(stream)) => {
                // Both only help; a connection works without them.
                let _ = stream.set_nodelay(true);
                let _ = rustix::net::sockopt::set_socket_keepalive(&stream, true);
                let _ = rustix::net::sockopt::set_tcp_keepidle(&stream, KEEPALIVE_TIME);
                return Ok(stream);
            }
            Ok(Err(error)) => last = error,
            Err(_) => last = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(last)
}

impl Service<Uri> for Connector {
    type Response = TokioIo<ProviderStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(self.clone().connect(uri))
    }
}

/// A connection to a provider.
pub(crate) enum ProviderStream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connection for ProviderStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for ProviderStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for ProviderStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
