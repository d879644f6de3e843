//! The handshake before the first frame. The server proves that it knows the container's key without
//! sending it, because another process in the container could be listening instead of the supervisor.

use std::io;

use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The first bytes of a challenge.
const MAGIC: &[u8; 8] = b"OUBLCAR1";

/// The hash under which the server stores a container's key.
pub fn hash_key(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

fn proof(hash: &[u8; 32], nonce: &[u8; 32]) -> [u8; 32] {
    let digest = Sha256::new()
        .chain_update(b"oubliette carries")
        .chain_update(hash)
        .chain_update(nonce);
    digest.finalize().into()
}

/// The container's side: requests the proof and checks it. `nonce` must be random.
pub async fn challenge_server<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    hash: &[u8; 32],
    nonce: [u8; 32],
) -> io::Result<()> {
    stream.write_all(MAGIC).await?;
    stream.write_all(&nonce).await?;
    stream.flush().await?;
    let mut answer = [0; 32];
    stream.read_exact(&mut answer).await?;
    if answer == proof(hash, &nonce) {
        return Ok(());
    }
    Err(io::ErrorKind::PermissionDenied.into())
}

/// The server's side: sends the proof.
pub async fn answer_challenge<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    hash: &[u8; 32],
) -> io::Result<()> {
    let mut magic = [0; MAGIC.len()];
    stream.read_exact(&mut magic).await?;
    if magic != *MAGIC {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "expected a challenge",
        ));
    }
    let mut nonce = [0; 32];
    stream.read_exact(&mut nonce).await?;
    stream.write_all(&proof(hash, &nonce)).await?;
    stream.flush().await
}
