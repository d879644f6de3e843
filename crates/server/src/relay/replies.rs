//! The lines to one client: a queue with a bound on the bytes that all clients of a container have
//! not read.

use std::sync::Arc;
use std::time::Duration;

use oubliette_engine::Stream;
use oubliette_wire::{MAX_LINE_BYTES, Message, RpcError, codes};
use serde_json::Value;
use tokio::io::{AsyncWriteExt, WriteHalf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::methods::RpcResult;

const MAX_QUEUED_LINES_PER_CONNECTION: usize = 32;
pub(super) const MAX_UNREAD_KIB_PER_CONTAINER: usize = 64 << 10;
/// A peer that does not read a line within this time is disconnected.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// A line, and its share of the container's unread bytes until it is written.
type QueuedLine = (Vec<u8>, OwnedSemaphorePermit);

/// Queues lines to a client. Cheap to clone.
#[derive(Clone)]
pub(super) struct ReplySender {
    queue: mpsc::Sender<QueuedLine>,
    unread_kib: Arc<Semaphore>,
}

pub(super) struct ReplyReceiver(mpsc::Receiver<QueuedLine>);

pub(super) fn channel(unread_kib: Arc<Semaphore>) -> (ReplySender, ReplyReceiver) {
    let (queue, lines) = mpsc::channel(MAX_QUEUED_LINES_PER_CONNECTION);
    (ReplySender { queue, unread_kib }, ReplyReceiver(lines))
}

impl ReplySender {
    /// Counts lines from now on for another limit.
    pub(super) fn set_unread_limit(&mut self, unread_kib: Arc<Semaphore>) {
        self.unread_kib = unread_kib;
    }

    pub(super) async fn reply(&self, id: Value, result: RpcResult) -> Option<()> {
        self.send(reply_line(id, result)).await
    }

    /// Queues a line as soon as the bound allows it. None if the connection is closed.
    pub(super) async fn send(&self, line: Vec<u8>) -> Option<()> {
        // A line larger than the whole bound would wait for ever.
        let kib = (line.len() / 1024 + 1).min(MAX_UNREAD_KIB_PER_CONTAINER);
        let permit = self
            .unread_kib
            .clone()
            .acquire_many_owned(u32::try_from(kib).ok()?)
            .await
            .ok()?;
        self.queue.send((line, permit)).await.ok()
    }
}

impl ReplyReceiver {
    /// Writes lines until all senders are gone or the peer stops reading.
    pub(super) async fn write_to(mut self, mut writer: WriteHalf<Box<dyn Stream>>) {
        while let Some((line, _permit)) = self.0.recv().await {
            let written = tokio::time::timeout(WRITE_TIMEOUT, writer.write_all(&line)).await;
            if !matches!(written, Ok(Ok(()))) {
                return;
            }
        }
    }
}

/// A reply as a line. The peer would skip a line that is too long and wait for ever, so such a reply
/// becomes an error.
fn reply_line(id: Value, result: RpcResult) -> Vec<u8> {
    let message = Message::reply(id, result);
    let line = message.to_line();
    let bytes = line.len() - 1;
    if bytes <= MAX_LINE_BYTES {
        return line;
    }
    let reason = format!(
        "the result has {bytes} bytes, more than the maximum of {MAX_LINE_BYTES}, and was dropped; ask \
         for less: one page, a smaller limit, or have it written to a file"
    );
    let error = RpcError::new(codes::FAILED, reason);
    Message::reply(message.id.unwrap_or_default(), Err(error)).to_line()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_that_is_too_long_becomes_an_error() {
        let fits = reply_line(Value::from(7), Ok("a".repeat(1000).into()));
        assert!(fits.len() > 1000);
        let line = reply_line(Value::from(7), Ok("a".repeat(MAX_LINE_BYTES).into()));
        let message: Message = serde_json::from_slice(&line).unwrap();
        assert_eq!(message.id, Some(Value::from(7)));
        assert_eq!(message.error.unwrap().code, codes::FAILED);
    }

    #[tokio::test]
    async fn queued_lines_count_as_unread_until_they_are_written() {
        const MAX: usize = MAX_UNREAD_KIB_PER_CONTAINER;
        let unread_kib = Arc::new(Semaphore::new(MAX));
        let (replies, mut lines) = channel(unread_kib.clone());
        // Larger than the whole bound.
        replies.send(vec![0; (MAX + 1) << 10]).await.unwrap();
        assert_eq!(unread_kib.available_permits(), 0);
        let mut next = std::pin::pin!(replies.send(vec![0; 10]));
        tokio::select! {
            biased;
            _ = &mut next => panic!("the line was queued past the bound"),
            () = std::future::ready(()) => {}
        }
        drop(lines.0.recv().await);
        next.await.unwrap();
        assert_eq!(unread_kib.available_permits(), MAX - 1);
        drop(lines.0.recv().await);
        assert_eq!(unread_kib.available_permits(), MAX);
    }
}
