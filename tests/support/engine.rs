//! A container engine that can be made to stall, to hang up and to be gone: a socket between the
//! server and the real one.

use std::path::PathBuf;

use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

const REAL: &str = "/var/run/docker.sock";

/// What the engine does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mood {
    /// Answers.
    Fine,
    /// Takes connections and requests, and says nothing.
    Silent,
    /// Hangs up on everybody.
    Gone,
}

/// Stands between. Dropping it is the end of it.
#[derive(Debug)]
pub struct Engine {
    place: TempDir,
    mood: watch::Sender<Mood>,
    serving: JoinHandle<()>,
}

impl Engine {
    pub fn new(mood: Mood) -> Self {
        let place = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(place.path().join("engine.sock")).unwrap();
        let (mood, moods) = watch::channel(mood);
        let serving = tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(client, moods.clone()));
            }
        });
        Self {
            place,
            mood,
            serving,
        }
    }

    pub fn is_now(&self, mood: Mood) {
        self.mood.send_replace(mood);
    }

    fn socket(&self) -> PathBuf {
        self.place.path().join("engine.sock")
    }

    /// The value of `DOCKER_HOST` that leads here.
    pub fn host(&self) -> String {
        format!("unix://{}", self.socket().display())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(client: UnixStream, moods: watch::Receiver<Mood>) {
    let mut gone = moods.clone();
    let Ok(real) = UnixStream::connect(REAL).await else {
        return;
    };
    let (from_client, to_client) = client.into_split();
    let (from_real, to_real) = real.into_split();
    tokio::select! {
        _ = async {
            tokio::join!(
                pass_on(from_client, to_real, moods.clone()),
                pass_on(from_real, to_client, moods.clone()),
            )
        } => {}
        _ = gone.wait_for(|mood| *mood == Mood::Gone) => {}
    }
}

/// Passes bytes on while the engine is in the mood.
async fn pass_on(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut moods: watch::Receiver<Mood>,
) -> std::io::Result<()> {
    let mut chunk = vec![0; 16 << 10];
    loop {
        let read = from.read(&mut chunk).await?;
        if moods.wait_for(|mood| *mood == Mood::Fine).await.is_err() || read == 0 {
            return to.shutdown().await;
        }
        to.write_all(&chunk[..read]).await?;
    }
}
