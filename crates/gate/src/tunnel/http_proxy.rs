//! The HTTP proxy of a container, for programs that prefer one, and for every port.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::carry::carry;
use super::gate_connection::Refusal;
use super::http_request::{MAX_HEAD_BYTES, ProxyRequest, head_end};
use super::http_response::carry_request;
use super::{Tunnel, listeners};
use crate::protocol::{RefusalKind, Way};

const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves the proxy.
pub(super) fn start(tunnel: &Rc<Tunnel>, listener: std::net::TcpListener) -> io::Result<()> {
    listeners::accept(tunnel, listener, async |tunnel, client| {
        serve(&tunnel, client).await;
    })
}

async fn serve(tunnel: &Tunnel, mut client: TcpStream) {
    let read = timeout(HEAD_TIMEOUT, read_head(&mut client)).await;
    let Ok(Ok((head, rest))) = read else {
        return;
    };
    let request = match ProxyRequest::parse(&head) {
        Ok(request) => request,
        Err(why) => return reply(&mut client, 400, "Bad Request", why).await,
    };
    let target = (request.host.as_str(), request.port);
    let opened = tunnel.gate.open(&client, target, Way::Proxy).await;
    let (mut server, first) = match opened {
        None => return,
        Some(Ok(opened)) => opened,
        Some(Err(refusal)) => return refuse(&mut client, &request, &refusal).await,
    };
    match &request.head {
        None => {
            let established = b"HTTP/1.1 200 Connection established\r\n\r\n";
            let begun = client.write_all(established).await;
            if begun.is_ok() && server.write_all(&rest).await.is_ok() {
                carry(client, server, first).await;
            }
        }
        Some((head, body)) => {
            if server.write_all(head).await.is_ok() {
                carry_request(client, server, first, &rest, *body).await;
            }
        }
    }
}

/// The head of a request, and what follows it.
async fn read_head(client: &mut TcpStream) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = head_end(&bytes) {
            let rest = bytes.split_off(end);
            return Ok((bytes, rest));
        }
        if bytes.len() > MAX_HEAD_BYTES {
            reply(
                client,
                431,
                "Request Header Fields Too Large",
                "the headers are too long",
            )
            .await;
            return Err(io::ErrorKind::InvalidData.into());
        }
        if client.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

async fn refuse(client: &mut TcpStream, request: &ProxyRequest, refusal: &Refusal) {
    let ProxyRequest { host, port, .. } = request;
    let reason = &refusal.reason;
    let (status, phrase, text) = match refusal.kind {
        RefusalKind::Denied => (
            403,
            "Denied by network policy",
            format!(
                "The network policy does not allow {host}:{port}: {reason}. An operator can allow it with \
                 `oubliette network allow PROJECT {host}:{port}`.\n"
            ),
        ),
        RefusalKind::Limit => (503, "Too many connections", format!("{reason}\n")),
        RefusalKind::Failed => (502, "Bad Gateway", format!("{reason}\n")),
    };
    reply(client, status, phrase, &text).await;
}

async fn reply(client: &mut TcpStream, status: u16, phrase: &str, text: &str) {
    let length = text.len();
    let message = format!(
        "HTTP/1.1 {status} {phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{text}"
    );
    let _ = timeout(REPLY_TIMEOUT, client.write_all(message.as_bytes())).await;
    let _ = client.shutdown().await;
}
