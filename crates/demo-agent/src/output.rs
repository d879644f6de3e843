//! Standard output. One writer, so that `/garbage` cannot split a message, and a count of the updates
//! that are not written yet, because the SDK's queues are unbounded.

use std::io;
use std::sync::Arc;

use futures_util::{Sink, SinkExt};
use tokio::io::AsyncWriteExt;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::{CancellationToken, PollSender};

const MAX_UNWRITTEN_UPDATES: usize = 1024;
const MAX_LINES_PER_WRITE: usize = 64;

/// Part of every line with an update, near its start.
const UPDATE_MARKER: &str = "\"method\":\"session/update\"";

#[derive(Debug)]
pub(crate) struct Output {
    lines: mpsc::Sender<String>,
    unwritten: watch::Sender<usize>,
    finish: CancellationToken,
}

impl Output {
    /// The output, the sink for the SDK's messages, and the future that writes them.
    pub(crate) fn open() -> (
        Arc<Self>,
        impl Sink<String, Error = io::Error> + Send + 'static,
        impl Future<Output = io::Result<()>>,
    ) {
        let (lines, queue) = mpsc::channel(MAX_LINES_PER_WRITE);
        let output = Arc::new(Self {
            lines: lines.clone(),
            unwritten: watch::Sender::new(0),
            finish: CancellationToken::new(),
        });
        let sink = PollSender::new(lines).sink_map_err(io::Error::other);
        let writer = write(queue, output.clone());
        (output, sink, writer)
    }

    /// Ends the writer after the lines that are queued.
    pub(crate) fn finish(&self) {
        self.finish.cancel();
    }

    /// Waits until another update may be sent, and counts it.
    pub(crate) async fn reserve_update(&self) {
        self.wait_for(|unwritten| unwritten < MAX_UNWRITTEN_UPDATES)
            .await;
        self.unwritten.send_modify(|unwritten| *unwritten += 1);
    }

    /// Waits until every update is written.
    pub(crate) async fn flush(&self) {
        self.wait_for(|unwritten| unwritten == 0).await;
    }

    /// Writes a line that is not a message.
    pub(crate) async fn write_garbage(&self, line: String) {
        self.flush().await;
        let _ = self.lines.send(line).await;
    }

    async fn wait_for(&self, condition: impl Fn(usize) -> bool) {
        let mut unwritten = self.unwritten.subscribe();
        // Fails only without a sender, and `self` has it.
        let _ = unwritten.wait_for(|count| condition(*count)).await;
    }
}

async fn write(mut queue: mpsc::Receiver<String>, output: Arc<Output>) -> io::Result<()> {
    let mut stdout = tokio::io::stdout();
    let mut lines = Vec::with_capacity(MAX_LINES_PER_WRITE);
    loop {
        let read = tokio::select! {
            biased;
            read = queue.recv_many(&mut lines, MAX_LINES_PER_WRITE) => read,
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
            .unwritten
            .send_modify(|unwritten| *unwritten = unwritten.saturating_sub(updates));
    }
}

fn is_update(line: &str) -> bool {
    let start = &line.as_bytes()[..line.len().min(64)];
    start
        .windows(UPDATE_MARKER.len())
        .any(|part| part == UPDATE_MARKER.as_bytes())
}
