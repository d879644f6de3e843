//! The reply of a host to a request that came by the proxy. The connection is for that one request: the next one of the program may
//! be for another host, and would be sent to this one if the program used the connection again. So the program is told that
//! the connection ends, whatever the host says, and nothing is sent to the host after the request.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use super::carry::{copy, is_closed};
use super::http_request::{Body, head_end};
use super::listeners::reset;

/// Of a reply's headers. Longer ones are passed on as they are.
const MAX_HEAD_BYTES: usize = 256 << 10;

/// Carries the rest of one request, and its reply. `first` has arrived from the gate already, `rest` from the program.
pub(super) async fn carry_request(
    mut client: TcpStream,
    mut gate: UnixStream,
    first: Vec<u8>,
    rest: &[u8],
    body: Body,
) {
    let carried = {
        let (mut from_client, mut to_client) = client.split();
        let (mut from_gate, mut to_gate) = gate.split();
        let outgoing = async {
            send_body(&mut from_client, &mut to_gate, rest, body).await?;
            to_gate.shutdown().await?;
            // The program has sent its last byte, or is gone; the reply ends the connection.
            std::future::pending::<io::Result<()>>().await
        };
        let incoming = async {
            send_reply(&mut from_gate, &mut to_client, first).await?;
            if is_closed(from_gate.as_ref()) {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            to_client.shutdown().await
        };
        tokio::select! {
            result = outgoing => result,
            result = incoming => result,
        }
    };
    if carried.is_err() {
        reset(&client);
    }
}

/// Sends the body, and returns when the program has sent its last byte. What follows the body is dropped.
async fn send_body(
    client: &mut (impl AsyncRead + Unpin),
    host: &mut (impl AsyncWrite + Unpin),
    rest: &[u8],
    body: Body,
) -> io::Result<()> {
    let mut source = rest.chain(client);
    match body {
        Body::Bytes(length) => {
            copy(&mut (&mut source).take(length), host).await?;
            copy(&mut source, &mut tokio::io::sink()).await
        }
        Body::Chunked => copy(&mut source, host).await,
    }
}

async fn send_reply(
    host: &mut (impl AsyncRead + Unpin),
    client: &mut (impl AsyncWrite + Unpin),
    mut received: Vec<u8>,
) -> io::Result<()> {
    loop {
        if let Some(end) = head_end(&received) {
            let rest = received.split_off(end);
            let is_final = !received.starts_with(b"HTTP/1.1 1") || is_switch(&received);
            let head = if is_final {
                with_close(&received)
            } else {
                received
            };
            client.write_all(&head).await?;
            received = rest;
            if is_final {
                break;
            }
            continue;
        }
        if received.len() > MAX_HEAD_BYTES || host.read_buf(&mut received).await? == 0 {
            break;
        }
    }
    client.write_all(&received).await?;
    copy(host, client).await
}

fn is_switch(head: &[u8]) -> bool {
    head.starts_with(b"HTTP/1.1 101")
}

/// The head of a reply after which the connection ends.
fn with_close(head: &[u8]) -> Vec<u8> {
    if !head.starts_with(b"HTTP/1.") || is_switch(head) {
        return head.to_vec();
    }
    let mut closing = Vec::with_capacity(head.len() + 32);
    let lines = head[..head.len() - 2].split_inclusive(|byte| *byte == b'\n');
    for line in lines {
        let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
        let is_about_connection = ["connection", "keep-alive", "proxy-connection"]
            .iter()
            .any(|it| name.eq_ignore_ascii_case(it.as_bytes()));
        if !is_about_connection {
            closing.extend_from_slice(line);
        }
    }
    closing.extend_from_slice(b"Connection: close\r\n\r\n");
    closing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_says_that_the_connection_ends_whatever_the_host_says() {
        for (head, expected) in [
            (
                "HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nKeep-Alive: timeout=5\r\nA: b\r\n\r\n",
                "HTTP/1.1 200 OK\r\nA: b\r\nConnection: close\r\n\r\n",
            ),
            (
                "HTTP/1.1 204 No Content\r\n\r\n",
                "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n",
            ),
            (
                "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\r\n",
                "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\r\n",
            ),
        ] {
            let closing = with_close(head.as_bytes());
            assert_eq!(String::from_utf8(closing).unwrap(), expected);
        }
    }

    #[tokio::test]
    async fn replies_before_the_last_one_are_passed_on() {
        let reply =
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".to_vec();
        for cut in 0..reply.len() {
            let (mut sent, first) = (Vec::new(), reply[..cut].to_vec());
            send_reply(&mut &reply[cut..], &mut sent, first)
                .await
                .unwrap();
            assert_eq!(
                String::from_utf8(sent).unwrap(),
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
            );
        }
        let (mut sent, bare) = (Vec::new(), b"not http".to_vec());
        send_reply(&mut &b" at all"[..], &mut sent, bare)
            .await
            .unwrap();
        assert_eq!(sent, b"not http at all");
    }

    #[tokio::test]
    async fn nothing_is_sent_to_the_host_after_the_request() {
        let mut sent = Vec::new();
        let mut client = &b"dyGET http://other.org/ HTTP/1.1\r\n\r\n"[..];
        send_body(&mut client, &mut sent, b"bo", Body::Bytes(4))
            .await
            .unwrap();
        assert_eq!(sent, b"body");
        let mut sent = Vec::new();
        let mut client = &b"GET http://other.org/ HTTP/1.1\r\n\r\n"[..];
        send_body(&mut client, &mut sent, b"", Body::Bytes(0))
            .await
            .unwrap();
        assert!(sent.is_empty());
    }
}
