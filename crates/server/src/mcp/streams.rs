//! Event streams to clients. A slow reader never blocks the writer.

use std::pin::pin;

use futures_util::{Stream, StreamExt, stream};
use rmcp::transport::streamable_http_server::session::ServerSseMessage;
use tokio::sync::mpsc;

use crate::tasks::Tasks;

/// A reader that is further behind has stopped reading and loses its stream.
const MAX_QUEUED_MESSAGES: usize = 256;

/// Moves a stream through a queue of its own, so that a reader that stops reading loses its stream
/// instead of blocking the writer. The stream also ends when `end` completes.
pub(super) fn through_queue<T, S, E>(
    tasks: &Tasks,
    inner: S,
    end: E,
) -> impl Stream<Item = T> + Send + Sync + use<T, S, E>
where
    T: Send + 'static,
    S: Stream<Item = T> + Send + 'static,
    E: Future<Output = ()> + Send + 'static,
{
    let (queue, mut messages) = mpsc::channel(MAX_QUEUED_MESSAGES);
    tasks.spawn(async move {
        let mut inner = pin!(inner);
        let mut end = pin!(end);
        loop {
            tokio::select! {
                message = inner.next() => {
                    let sent = message.is_some_and(|message| queue.try_send(message).is_ok());
                    if !sent {
                        return;
                    }
                }
                () = queue.closed() => return,
                () = &mut end => return,
            }
        }
    });
    stream::poll_fn(move |context| messages.poll_recv(context))
}

/// A stream without events that have no data, unless the client understands those.
pub(super) fn understood_by<S>(
    empty_events: bool,
    inner: S,
) -> impl Stream<Item = ServerSseMessage> + use<S>
where
    S: Stream<Item = ServerSseMessage>,
{
    inner.filter(move |event| std::future::ready(empty_events || event.message.is_some()))
}

/// A stream that keeps `guard` alive until it is dropped itself.
pub(super) fn with_guard<S, G>(inner: S, guard: G) -> impl Stream<Item = S::Item> + Send + Sync
where
    S: Stream + Send + Sync,
    G: Send + Sync,
{
    inner.map(move |item| {
        let _guard = &guard;
        item
    })
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_reader_that_is_too_far_behind_loses_its_stream() {
        let tasks = Tasks::default();
        let endless = stream::iter(0..).then(|n| async move {
            tokio::task::yield_now().await;
            n
        });
        let mut queued = pin!(through_queue(&tasks, endless, std::future::pending()));
        assert_eq!(queued.next().await, Some(0));
        // The writer goes on while nothing is read, until the queue is full, and then it ends.
        tasks.wait_for_all().await;
        let read: Vec<usize> = queued.collect().await;
        assert!((MAX_QUEUED_MESSAGES - 1..=MAX_QUEUED_MESSAGES).contains(&read.len()));
        assert_eq!(read, (1..=read.len()).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn a_stream_ends_with_its_reader_and_with_its_end() {
        let tasks = Tasks::default();
        let silent = through_queue(&tasks, stream::pending::<()>(), std::future::pending());
        let mut ended = pin!(through_queue(
            &tasks,
            stream::pending::<()>(),
            std::future::ready(())
        ));
        assert_eq!(ended.next().await, None);
        assert!(tasks.wait_for_all().now_or_never().is_none());
        drop(silent);
        tasks.wait_for_all().await;
    }
}
