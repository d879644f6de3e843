//! Whether the program at the other end of a connection is still there.

use std::net::{SocketAddr, SocketAddrV4};
use std::time::Duration;

use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::sleep;

/// How often a program that sends nothing more is looked for.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
const SOCKETS: &str = "/proc/self/net/tcp";
/// The columns of the local and the remote address, and of the inode.
const LOCAL: usize = 1;
const REMOTE: usize = 2;
const INODE: usize = 9;

/// Waits until no program has the other end. One that has only said that it sends nothing more is still there: some do that
/// after their request, and wait for the reply.
pub(super) async fn wait_until_gone(stream: &TcpStream) {
    // Ready when the other end sends nothing more: urgent data is not listened for.
    let _ = stream.ready(Interest::PRIORITY).await;
    let (Ok(SocketAddr::V4(own)), Ok(SocketAddr::V4(peer))) =
        (stream.local_addr(), stream.peer_addr())
    else {
        // A connection that was reset has no peer.
        return;
    };
    loop {
        let table = std::fs::read_to_string(SOCKETS);
        // Without the table it cannot be known.
        if table.is_ok_and(|table| is_gone(&table, peer, own)) {
            return;
        }
        sleep(CHECK_INTERVAL).await;
    }
}

/// Whether the socket with these addresses belongs to no program, by the kernel's table.
fn is_gone(table: &str, local: SocketAddrV4, remote: SocketAddrV4) -> bool {
    let (local, remote) = (in_table(local), in_table(remote));
    let mut rows = table.lines().map(|line| line.split_ascii_whitespace());
    !rows.any(|mut row| {
        // Each call goes on behind the last one.
        let is_this = row.nth(LOCAL) == Some(local.as_str())
            && row.nth(REMOTE - LOCAL - 1) == Some(remote.as_str());
        is_this
            && row
                .nth(INODE - REMOTE - 1)
                .is_some_and(|inode| inode != "0")
    })
}

/// As the table writes an address: its bytes as a number of the machine.
fn in_table(address: SocketAddrV4) -> String {
    let number = u32::from_ne_bytes(address.ip().octets());
    format!("{number:08X}:{:04X}", address.port())
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn a_program_that_only_stops_sending_is_there_and_one_that_closes_is_gone() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let program = TcpStream::connect(listener.local_addr().unwrap());
        let (program, accepted) = tokio::join!(program, listener.accept());
        let (mut program, stream) = (program.unwrap(), accepted.unwrap().0);
        program.write_all(b"request").await.unwrap();
        let short = Duration::from_millis(300);
        assert!(timeout(short, wait_until_gone(&stream)).await.is_err());
        program.shutdown().await.unwrap();
        assert!(timeout(short, wait_until_gone(&stream)).await.is_err());
        drop(program);
        let long = Duration::from_secs(20);
        assert!(timeout(long, wait_until_gone(&stream)).await.is_ok());
    }
}
