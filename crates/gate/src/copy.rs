//! Copies the bytes of a connection both ways, and checks the server name of TLS on the way out.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use oubliette_model::Host;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use crate::client_hello::{FirstBytes, inspect};

/// Of each direction of a connection.
const BUFFER_BYTES: usize = 32 << 10;
/// From the first byte of TLS to the end of the client's first message.
const CLIENT_HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Without a byte, after one side has sent its last.
const HALF_CLOSED_TIMEOUT: Duration = Duration::from_secs(600);
/// A fatal alert: the server name is not known here.
const UNRECOGNIZED_NAME_ALERT: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

/// How many bytes went each way.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
}

/// Why a connection ended early.
#[derive(Debug)]
pub(crate) enum CopyError {
    /// The client asked for another server by TLS than for the connection.
    Denied(String),
    /// One side is gone.
    Broken,
}

impl From<io::Error> for CopyError {
    fn from(_: io::Error) -> Self {
        Self::Broken
    }
}

/// Copies until both sides have sent everything. `first` is what the client has sent already; `may_name` says
/// whether a server name of TLS is allowed.
pub(crate) async fn copy_both_ways<C, S>(
    client: C,
    server: S,
    first: Vec<u8>,
    counters: &Counters,
    may_name: impl Fn(Option<&str>) -> Result<(), String>,
) -> Result<(), CopyError>
where
    C: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_server, mut to_server) = tokio::io::split(server);
    let outgoing = async {
        let checked = read_first_bytes(&mut from_client, first, may_name).await?;
        to_server.write_all(&checked).await?;
        add(&counters.sent, checked.len());
        copy(&mut from_client, &mut to_server, &counters.sent).await?;
        to_server.shutdown().await?;
        Ok::<(), CopyError>(())
    };
    let incoming = async {
        copy(&mut from_server, &mut to_client, &counters.received).await?;
        to_client.shutdown().await?;
        Ok::<(), CopyError>(())
    };
    let result = {
        tokio::pin!(outgoing, incoming);
        tokio::select! {
            result = &mut outgoing => match result {
                Ok(()) => until_idle(&mut incoming, &counters.received).await,
                Err(error) => Err(error),
            },
            result = &mut incoming => match result {
                Ok(()) => until_idle(&mut outgoing, &counters.sent).await,
                Err(error) => Err(error),
            },
        }
    };
    if matches!(result, Err(CopyError::Denied(_))) {
        // The client may be gone.
        let _ = to_client.write_all(&UNRECOGNIZED_NAME_ALERT).await;
        let _ = to_client.shutdown().await;
    }
    result
}

/// Waits for the other direction while bytes arrive.
async fn until_idle(
    direction: &mut (impl Future<Output = Result<(), CopyError>> + Unpin),
    counter: &AtomicU64,
) -> Result<(), CopyError> {
    loop {
        let before = counter.load(Ordering::Relaxed);
        match timeout(HALF_CLOSED_TIMEOUT, &mut *direction).await {
            Ok(result) => return result,
            Err(_) if counter.load(Ordering::Relaxed) == before => {
                return Err(io::Error::from(io::ErrorKind::TimedOut).into());
            }
            Err(_) => {}
        }
    }
}

/// Reads until it is known which server the client asks for by TLS, or that it does not speak TLS.
async fn read_first_bytes(
    client: &mut (impl AsyncRead + Unpin),
    mut bytes: Vec<u8>,
    may_name: impl Fn(Option<&str>) -> Result<(), String>,
) -> Result<Vec<u8>, CopyError> {
    // In some protocols the client waits for the server's first bytes, for any time.
    if bytes.is_empty() && client.read_buf(&mut bytes).await? == 0 {
        return Ok(bytes);
    }
    let reading = async {
        loop {
            match inspect(&bytes) {
                FirstBytes::NotTls => return Ok(bytes),
                FirstBytes::ClientHello(name) => {
                    may_name(name.as_deref()).map_err(CopyError::Denied)?;
                    return Ok(bytes);
                }
                FirstBytes::Invalid(why) => return Err(CopyError::Denied(why.to_owned())),
                FirstBytes::Incomplete => {}
            }
            if client.read_buf(&mut bytes).await? == 0 {
                let why = "a client that stopped in its first message of TLS".to_owned();
                return Err(CopyError::Denied(why));
            }
        }
    };
    timeout(CLIENT_HELLO_TIMEOUT, reading)
        .await
        .unwrap_or_else(|_| {
            let why = "a client that did not finish its first message of TLS in time".to_owned();
            Err(CopyError::Denied(why))
        })
}

async fn copy(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    counter: &AtomicU64,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        to.write_all(&buffer[..read]).await?;
        add(counter, read);
    }
}

fn add(counter: &AtomicU64, bytes: usize) {
    counter.fetch_add(bytes as u64, Ordering::Relaxed);
}

/// Whether a server name of TLS is that of the connection. `is_allowed` decides about names where the connection was
/// asked for by address.
pub(crate) fn check_server_name(
    asked: &Host,
    named: Option<&str>,
    is_allowed: impl Fn(&Host) -> bool,
) -> Result<(), String> {
    let Some(named) = named else {
        return match asked {
            Host::Address(_) => Ok(()),
            Host::Name(name) => Err(format!(
                "the TLS client names no server, and the connection is for {name}"
            )),
        };
    };
    let shown = oubliette_model::quoted(named);
    let Ok(host) = named.parse::<Host>() else {
        return Err(format!(
            "the TLS client names the server {shown}, which is not a host"
        ));
    };
    let is_right = match asked {
        Host::Name(_) => host == *asked,
        Host::Address(_) => host == *asked || is_allowed(&host),
    };
    if is_right {
        return Ok(());
    }
    Err(format!(
        "the TLS client names the server {shown}, and the connection is for {asked}"
    ))
}
