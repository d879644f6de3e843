//! The server's background tasks. Every task is tracked, and shutdown waits for all of them.

use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Cheap to clone; clones share their tasks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tasks {
    tracker: TaskTracker,
    shutdown: CancellationToken,
}

impl Tasks {
    /// Runs a task until it ends or [`Tasks::shut_down`] drops it.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        let until_shutdown = self.shutdown.clone().run_until_cancelled_owned(task);
        self.tracker.spawn(until_shutdown).abort_handle()
    }

    #[cfg(test)]
    pub(crate) async fn wait_for_all(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }

    /// Cancelled when the tasks are shut down.
    pub(crate) fn shutdown_token(&self) -> &CancellationToken {
        &self.shutdown
    }

    /// Drops all tasks and returns when none is left.
    pub(crate) async fn shut_down(&self) {
        self.shutdown.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn shutdown_drops_every_task_before_it_returns() {
        let tasks = Tasks::default();
        let (held, mut released) = tokio::sync::mpsc::channel::<()>(1);
        for _ in 0..3 {
            let held = held.clone();
            tasks.spawn(async move {
                let _held = held;
                std::future::pending::<()>().await;
            });
        }
        drop(held);
        tasks.shut_down().await;
        let released = released.try_recv().unwrap_err();
        assert_eq!(
            released,
            tokio::sync::mpsc::error::TryRecvError::Disconnected
        );
    }
}
