//! A proxy between the server and the Docker engine that can delay and close connections.

use std::path::PathBuf;

use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

const DOCKER_SOCKET: &str = "/var/run/docker.sock";

/// What the proxy does with connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DockerState {
    /// Passes everything on.
    Works,
    /// Accepts connections and requests, and passes nothing on.
    Hangs,
    /// Closes every connection.
    Closed,
}

/// A running proxy. Dropping it stops it.
#[derive(Debug)]
pub struct DockerProxy {
    directory: TempDir,
    state: watch::Sender<DockerState>,
    serving: JoinHandle<()>,
}

impl DockerProxy {
    pub fn new(state: DockerState) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("docker.sock")).unwrap();
        let (state, states) = watch::channel(state);
        let serving = tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(client, states.clone()));
            }
        });
        Self {
            directory,
            state,
            serving,
        }
    }

    pub fn set(&self, state: DockerState) {
        self.state.send_replace(state);
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("docker.sock")
    }

    /// The value of `DOCKER_HOST` of this proxy.
    pub fn host(&self) -> String {
        format!("unix://{}", self.socket().display())
    }
}

impl Drop for DockerProxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(client: UnixStream, states: watch::Receiver<DockerState>) {
    let mut gone = states.clone();
    let Ok(real) = UnixStream::connect(DOCKER_SOCKET).await else {
        return;
    };
    let (from_client, to_client) = client.into_split();
    let (from_real, to_real) = real.into_split();
    tokio::select! {
        _ = async {
            tokio::join!(
                pass_on(from_client, to_real, states.clone()),
                pass_on(from_real, to_client, states.clone()),
            )
        } => {}
        _ = gone.wait_for(|state| *state == DockerState::Closed) => {}
    }
}

/// Passes bytes on while the proxy works.
async fn pass_on(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut states: watch::Receiver<DockerState>,
) -> std::io::Result<()> {
    let mut chunk = vec![0; 16 << 10];
    loop {
        let read = from.read(&mut chunk).await?;
        if states
            .wait_for(|state| *state == DockerState::Works)
            .await
            .is_err()
            || read == 0
        {
            return to.shutdown().await;
        }
        to.write_all(&chunk[..read]).await?;
    }
}
