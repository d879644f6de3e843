//! The reserve of the store: space that its files have already, kept for writes that free space.
//!
//! On a full disk other writes are refused before they use it. It is never given back to the disk, so no other
//! process can take it, and there is nothing to restore after a crash.

use std::future::Future;

tokio::task_local! {
    static USES_RESERVE: ();
}

/// Lets the writes of a future use the reserve. Those of tasks that it spawns do not.
pub async fn with_reserve<T>(work: impl Future<Output = T>) -> T {
    USES_RESERVE.scope((), work).await
}

/// Whether the current task may use the reserve.
pub(crate) fn is_usable() -> bool {
    USES_RESERVE.try_with(|()| ()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_future_itself_uses_the_reserve() {
        assert!(!is_usable());
        let spawned = with_reserve(async {
            assert!(is_usable());
            tokio::spawn(async { is_usable() }).await.unwrap()
        });
        assert!(!spawned.await);
        assert!(!is_usable());
    }
}
