//! Event streams to clients. A slow reader never blocks the writer.

use std::pin::pin;

use futures_util::{Stream, StreamExt, stream};
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
