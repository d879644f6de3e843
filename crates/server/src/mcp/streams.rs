//! Streams to clients that cannot hold anything up.

use std::pin::pin;

use futures_util::{Stream, StreamExt, stream};
use tokio::sync::mpsc;

/// Messages that wait for one reader. A reader that is further behind has stopped reading.
const BACKLOG: usize = 256;

/// Moves a stream through a queue of its own, so that a reader that stops reading loses its stream
/// instead of holding up whoever writes to it. It also ends when `end` does.
pub(super) fn queued<T, S, E>(
    inner: S,
    end: E,
) -> impl Stream<Item = T> + Send + Sync + use<T, S, E>
where
    T: Send + 'static,
    S: Stream<Item = T> + Send + 'static,
    E: Future<Output = ()> + Send + 'static,
{
    let (queue, mut messages) = mpsc::channel(BACKLOG);
    tokio::spawn(async move {
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

/// A stream that keeps something alive as long as it lives itself.
pub(super) fn held<S, G>(inner: S, guard: G) -> impl Stream<Item = S::Item> + Send + Sync
where
    S: Stream + Send + Sync,
    G: Send + Sync,
{
    inner.map(move |item| {
        let _held = &guard;
        item
    })
}
