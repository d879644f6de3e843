//! The locks of containers. A lock exists while it is held or waited for, so none is left of containers
//! that are gone, and two users of one container never have different locks.

use std::collections::HashMap;
use std::sync::Arc;

use oubliette_runtime::ContainerId;
use parking_lot::Mutex;
use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

use super::state::OperationLock;
use crate::{EngineError, Result};

const MAX_WORKSPACES_IN_CREATION: usize = 4;

/// The locks of all containers.
#[derive(Debug, Default)]
pub(super) struct ContainerLocks {
    locks: Arc<Mutex<HashMap<ContainerId, Arc<Locks>>>>,
}

/// The locks of one container.
#[derive(Debug)]
struct Locks {
    /// One start, stop or removal of a container runs at a time.
    operation: OperationLock,
    /// How many workspaces are created at once.
    workspaces: Arc<Semaphore>,
}

impl Default for Locks {
    fn default() -> Self {
        Self {
            operation: OperationLock::default(),
            workspaces: Arc::new(Semaphore::new(MAX_WORKSPACES_IN_CREATION)),
        }
    }
}

/// A user of a container's locks, who waits for one or holds it.
#[derive(Debug)]
struct LockUser {
    all: Arc<Mutex<HashMap<ContainerId, Arc<Locks>>>>,
    id: ContainerId,
    locks: Arc<Locks>,
}

impl Drop for LockUser {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        // This user and the map. Others are added only while the map is locked.
        if Arc::strong_count(&self.locks) <= 2 {
            all.remove(&self.id);
        }
    }
}

/// Held during an operation on a container. The fields are dropped in this order.
#[derive(Debug)]
pub(crate) struct ContainerGuard {
    _operation: OwnedMutexGuard<()>,
    _user: LockUser,
}

/// Held while a workspace is created from a container's files. The fields are dropped in this order.
#[derive(Debug)]
pub(crate) struct WorkspacePermit {
    _permit: OwnedSemaphorePermit,
    _user: LockUser,
}

impl ContainerLocks {
    fn user(&self, id: &ContainerId) -> LockUser {
        let mut all = self.locks.lock();
        LockUser {
            all: self.locks.clone(),
            id: id.clone(),
            locks: all.entry(id.clone()).or_default().clone(),
        }
    }

    pub(super) async fn lock(&self, id: &ContainerId) -> ContainerGuard {
        let user = self.user(id);
        ContainerGuard {
            _operation: user.locks.operation.clone().lock_owned().await,
            _user: user,
        }
    }

    pub(super) async fn permit_workspace(&self, id: &ContainerId) -> Result<WorkspacePermit> {
        let user = self.user(id);
        let permit = user.locks.workspaces.clone().acquire_owned().await;
        Ok(WorkspacePermit {
            _permit: permit.map_err(EngineError::fault)?,
            _user: user,
        })
    }

    pub(super) fn count(&self) -> usize {
        self.locks.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_lock_exists_while_it_is_held_or_waited_for() {
        let locks = Arc::new(ContainerLocks::default());
        let id = ContainerId::from_bits(1);
        let held = locks.lock(&id).await;
        let permit = locks.permit_workspace(&id).await.unwrap();
        let mut waiting = Box::pin(locks.lock(&id));
        assert!(futures_util::poll!(&mut waiting).is_pending());
        drop((held, permit));
        assert_eq!(locks.count(), 1, "another user waits for it");
        let mut later = Box::pin(locks.lock(&id));
        let held = waiting.await;
        assert!(
            futures_util::poll!(&mut later).is_pending(),
            "both have the same lock"
        );
        drop((held, later));
        assert_eq!(locks.count(), 0);
    }
}
