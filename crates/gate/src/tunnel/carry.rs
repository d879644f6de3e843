//! Copies the bytes of a connection between a program and the gate.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use super::listeners::reset;

/// Of each direction.
const BUFFER_BYTES: usize = 32 << 10;

/// Copies bytes both ways until both sides have sent everything. `first` has arrived from the gate already.
pub(super) async fn carry(mut client: TcpStream, mut gate: UnixStream, first: Vec<u8>) {
    if copy_both_ways(&mut client, &mut gate, &first)
        .await
        .is_err()
    {
        reset(&client);
    }
}

async fn copy_both_ways(
    client: &mut TcpStream,
    gate: &mut UnixStream,
    first: &[u8],
) -> io::Result<()> {
    let (mut from_client, mut to_client) = client.split();
    let (mut from_gate, mut to_gate) = gate.split();
    let has_client_ended = AtomicBool::new(false);
    let outgoing = async {
        copy(&mut from_client, &mut to_gate).await?;
        has_client_ended.store(true, Ordering::Relaxed);
        to_gate.shutdown().await
    };
    let incoming = async {
        to_client.write_all(first).await?;
        copy(&mut from_gate, &mut to_client).await?;
        // After the host's last byte, the gate keeps its end open for the client's. If it does not, the connection
        // broke, and the program must not take what it has for everything.
        if !has_client_ended.load(Ordering::Relaxed) && is_closed(from_gate.as_ref()) {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        to_client.shutdown().await
    };
    tokio::try_join!(outgoing, incoming).map(drop)
}

/// Whether the other end is closed, and not only its direction to here.
pub(super) fn is_closed(stream: &UnixStream) -> bool {
    let mut fds = [PollFd::new(stream, PollFlags::empty())];
    let polled = poll(&mut fds, Some(&Timespec::default()));
    polled.is_ok() && fds[0].revents().contains(PollFlags::HUP)
}

pub(super) async fn copy(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        to.write_all(&buffer[..read]).await?;
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// A program's connection that is carried, and the gate's end.
    async fn carried() -> (TcpStream, UnixStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let program = TcpStream::connect(listener.local_addr().unwrap());
        let (program, accepted) = tokio::join!(program, listener.accept());
        let (gate, ours) = UnixStream::pair().unwrap();
        tokio::spawn(carry(accepted.unwrap().0, ours, b"first ".to_vec()));
        (program.unwrap(), gate)
    }

    #[tokio::test]
    async fn the_end_of_a_host_is_an_end_and_the_end_of_the_gate_is_an_error() {
        let (mut program, mut gate) = carried().await;
        gate.write_all(b"whole").await.unwrap();
        gate.shutdown().await.unwrap();
        let mut text = String::new();
        program.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "first whole");

        let (mut program, mut gate) = carried().await;
        gate.write_all(b"part").await.unwrap();
        drop(gate);
        let mut text = String::new();
        assert!(program.read_to_string(&mut text).await.is_err());

        // A program that has sent its last byte before.
        let (mut program, mut gate) = carried().await;
        program.shutdown().await.unwrap();
        assert_eq!(gate.read(&mut [0; 1]).await.unwrap(), 0);
        gate.write_all(b"whole").await.unwrap();
        drop(gate);
        let mut text = String::new();
        program.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "first whole");
    }
}
