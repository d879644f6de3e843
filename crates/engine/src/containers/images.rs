//! Images that are built or pulled when the first container needs them.

use std::sync::Arc;

use oubliette_model::WorkspaceId;
use oubliette_runtime::{ContainerSpec, RuntimeError};
use oubliette_store::Project;
use tokio::sync::broadcast;

use super::lifecycle::RunningContainer;
use super::spec::container_type;
use super::state::OperationLock;
use super::{ContainerState, Containers};
use crate::{Call, Progress, Result};

/// Lines of a build that a slow listener may be behind.
const MAX_QUEUED_LINES: usize = 256;

/// The builds that run now.
#[derive(Debug)]
pub(super) struct ImageBuilds {
    /// One build of a container type runs at a time.
    locks: parking_lot::Mutex<std::collections::HashMap<String, OperationLock>>,
    /// The container type and a line of its build.
    lines: broadcast::Sender<(Arc<str>, Arc<str>)>,
}

impl Default for ImageBuilds {
    fn default() -> Self {
        Self {
            locks: parking_lot::Mutex::default(),
            lines: broadcast::Sender::new(MAX_QUEUED_LINES),
        }
    }
}

impl ContainerState {
    pub(super) async fn lock_image(
        &self,
        container_type: &str,
    ) -> tokio::sync::OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.image_builds.locks.lock();
            locks.entry(container_type.to_owned()).or_default().clone()
        };
        lock.lock_owned().await
    }
}

impl Containers<'_> {
    /// Creates a container whose image does not exist, and builds or pulls the image unless another
    /// call does.
    pub(super) async fn create_with_new_image(self, spec: &ContainerSpec) -> Result<()> {
        let name: Arc<str> = spec.image.name.as_str().into();
        let runtime = self.runtime().await?;
        let _lock = self.state().lock_image(&name).await;
        match runtime.create(spec).await {
            Err(RuntimeError::NoImage(_)) => {}
            created => return Ok(created?),
        }
        tracing::info!(container_type = %name, "building or pulling an image");
        let lines = &self.state().image_builds.lines;
        let on_line = |line: &str| {
            tracing::debug!(container_type = %name, line, "building");
            // An error means that no call listens.
            let _ = lines.send((name.clone(), line.into()));
        };
        runtime.build_image(&spec.image, &on_line).await?;
        Ok(runtime.create(spec).await?)
    }

    /// Does what [`Self::ensure`] does, and reports the lines of a build that it waits for.
    pub(crate) async fn ensure_with_progress(
        self,
        project: &Project,
        workspace: &WorkspaceId,
        call: &Call,
    ) -> Result<RunningContainer> {
        let mut lines = self.state().image_builds.lines.subscribe();
        let container_type = container_type(project);
        let mut count = 0.0;
        let mut ensuring = std::pin::pin!(self.ensure(project, workspace));
        loop {
            let line = tokio::select! {
                ensured = &mut ensuring => return ensured,
                line = lines.recv() => line,
            };
            // A listener that is behind only misses lines.
            if let Ok((name, line)) = line
                && *name == *container_type
            {
                count += 1.0;
                call.progress(Progress {
                    done: count,
                    total: None,
                    message: line.to_string(),
                });
            }
        }
    }
}
