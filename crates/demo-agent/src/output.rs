//! Stdout. One writer, so that noise made on purpose cannot tear a message, and a count of the
//! updates on their way to it, because the SDK's queues have no bound of their own.

use std::io;
use std::sync::Arc;

use futures_util::{Sink, SinkExt};
use tokio::io::AsyncWriteExt;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::{CancellationToken, PollSender};

/// How many updates may wait for the client to read.
const MOST_WAITING: usize = 1024;
/// How many lines one write carries at most.
const MOST_AT_ONCE: usize = 64;

/// How the SDK begins the line of an update.
const UPDATE: &str = "\"method\":\"session/update\"";

#[derive(Debug)]
pub(crate) struct Output {
    lines: mpsc::Sender<String>,
    waiting: watch::Sender<usize>,
    finish: CancellationToken,
}

impl Output {
    /// The output, the sink for the SDK's messages, and the work of writing, to be driven.
    pub(crate) fn open() -> (
        Arc<Self>,
        impl Sink<String, Error = io::Error> + Send + 'static,
        impl Future<Output = io::Result<()>>,
    ) {
        let (lines, queue) = mpsc::channel(MOST_AT_ONCE);
        let output = Arc::new(Self {
            lines: lines.clone(),
            waiting: watch::Sender::new(0),
            finish: CancellationToken::new(),
        });
        let sink = PollSender::new(lines).sink_map_err(io::Error::other);
        let writer = write(queue, output.clone());
        (output, sink, writer)
    }

    /// Lets the writer end once it has written what is there.
    pub(crate) fn finish(&self) {
        self.finish.cancel();
    }

    /// Waits until another update may be sent, and counts it.
    pub(crate) async fn admit(&self) {
        self.wait(|waiting| waiting < MOST_WAITING).await;
        self.waiting.send_modify(|waiting| *waiting += 1);
    }

    /// Waits until every update that was admitted is written.
    pub(crate) async fn written(&self) {
        self.wait(|waiting| waiting == 0).await;
    }

    /// Writes a line that is no message at all.
    pub(crate) async fn noise(&self, line: String) {
        self.written().await;
        let _ = self.lines.send(line).await;
    }

    async fn wait(&self, enough: impl Fn(usize) -> bool) {
        let mut waiting = self.waiting.subscribe();
        // The sender is `self`: this cannot fail.
        let _ = waiting.wait_for(|waiting| enough(*waiting)).await;
    }
}

async fn write(mut queue: mpsc::Receiver<String>, output: Arc<Output>) -> io::Result<()> {
    let mut stdout = tokio::io::stdout();
    let mut lines = Vec::with_capacity(MOST_AT_ONCE);
    loop {
        let read = tokio::select! {
            biased;
            read = queue.recv_many(&mut lines, MOST_AT_ONCE) => read,
            () = output.finish.cancelled(), if !queue.is_closed() => {
                queue.close();
                continue;
            }
        };
        if read == 0 {
            return Ok(());
        }
        let updates = lines.iter().filter(|line| is_update(line)).count();
        let mut bytes = Vec::new();
        for line in lines.drain(..) {
            bytes.extend_from_slice(line.as_bytes());
            bytes.push(b'\n');
        }
        stdout.write_all(&bytes).await?;
        stdout.flush().await?;
        output
            .waiting
            .send_modify(|waiting| *waiting = waiting.saturating_sub(updates));
    }
}

fn is_update(line: &str) -> bool {
    let start = &line.as_bytes()[..line.len().min(64)];
    start
        .windows(UPDATE.len())
        .any(|part| part == UPDATE.as_bytes())
}
