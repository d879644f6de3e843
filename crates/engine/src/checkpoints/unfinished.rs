//! What a rewind or a fork has begun, on the disk, so that no workspace stays half of one: a rewind is finished
//! and a fork is undone, also if the server dies or the caller leaves.
//!
//! Each is a file beside the project's objects, complete or absent. It is written before the first file
//! of a workspace changes, and removed after the session knows about it.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use oubliette_checkpoints::Hash;
use oubliette_model::{Event, ProjectId, RewoundPart, SessionId, WorkspaceId};
use oubliette_store::SessionStep;
use serde::{Deserialize, Serialize};
use tokio::sync::OwnedRwLockWriteGuard;
use uuid::Uuid;

use super::restore::Restored;
use super::{Checkpoints, OBJECTS_DIR, checkpoint_id};
use crate::{Engine, EngineError, Result};

const PREFIX: &str = "unfinished-";
/// Removed by the object store when it is opened.
const DRAFT_PREFIX: &str = "new-";
const MAX_ATTEMPTS: u32 = 4;
const FIRST_RETRY_DELAY: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unfinished {
    Rewind(UnfinishedRewind),
    /// The new workspace, which has no session yet.
    Fork(WorkspaceId),
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct UnfinishedRewind {
    pub(crate) session: SessionId,
    pub(crate) workspace: WorkspaceId,
    pub(crate) turn: u32,
    pub(crate) what: RewoundPart,
    /// The trees of the workspace before and after.
    pub(crate) kept: [u8; 32],
    pub(crate) wanted: [u8; 32],
}

/// The file of something unfinished.
#[derive(Debug)]
pub(crate) struct Record {
    path: PathBuf,
}

impl Record {
    fn write(directory: &Path, unfinished: &Unfinished) -> io::Result<Self> {
        match DirBuilder::new().mode(0o700).create(directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let id = Uuid::new_v4();
        let draft = directory.join(format!("{DRAFT_PREFIX}{id}"));
        let path = directory.join(format!("{PREFIX}{id}"));
        let write = || {
            let mut file = File::create_new(&draft)?;
            file.write_all(&serde_json::to_vec(unfinished)?)?;
            file.sync_all()?;
            fs::rename(&draft, &path)?;
            File::open(directory)?.sync_all()
        };
        if let Err(error) = write() {
            let _ = fs::remove_file(&draft);
            return Err(error);
        }
        Ok(Self { path })
    }

    /// The records of a project. One that cannot be read is left alone.
    fn read_all(directory: &Path) -> io::Result<Vec<(Self, Unfinished)>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            if !name.is_some_and(|name| name.starts_with(PREFIX)) {
                continue;
            }
            match serde_json::from_slice(&fs::read(&path)?) {
                Ok(unfinished) => found.push((Self { path }, unfinished)),
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "cannot read what was unfinished");
                }
            }
        }
        Ok(found)
    }

    pub(crate) fn remove(self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "could not remove a record");
        }
    }
}

/// A rewind of a dead server. Turns do not start in its workspace until it is finished.
#[derive(Debug)]
pub(crate) struct PendingRewind {
    project: ProjectId,
    rewind: UnfinishedRewind,
    record: Record,
    blocked: OwnedRwLockWriteGuard<()>,
}

impl Checkpoints<'_> {
    /// When it returns, the record is on the disk.
    pub(crate) async fn record(self, project: ProjectId, unfinished: Unfinished) -> Result<Record> {
        let directory = self.engine.files().project_dir(project).join(OBJECTS_DIR);
        let written = tokio::task::spawn_blocking(move || Record::write(&directory, &unfinished));
        Ok(written.await.map_err(EngineError::fault)??)
    }

    /// Makes a workspace what a rewind wants, and tells the session. It can be repeated.
    pub(crate) async fn finish_rewind(
        self,
        project: ProjectId,
        rewind: &UnfinishedRewind,
    ) -> Result<Restored> {
        let stored = self.engine.project(project).await?;
        let now = self.scan(&stored, &rewind.workspace).await;
        let now = now.map_err(|reason| {
            EngineError::Failed(format!("the workspace cannot be read: {reason}"))
        })?;
        let trees = (now.tree, Hash::from_bytes(rewind.wanted));
        let restored = self
            .restore(&stored, &rewind.workspace, trees, true)
            .await?;
        let step = SessionStep {
            at: self.engine.now(),
            events: vec![Event::Rewound {
                turn: rewind.turn,
                what: rewind.what,
                checkpoint_id: Some(checkpoint_id(Hash::from_bytes(rewind.kept))),
            }],
            forget_conversation: rewind.what.has_conversation(),
            ..SessionStep::default()
        };
        let committed = self
            .engine
            .sessions()
            .commit_step(rewind.session, step)
            .await?;
        if committed.is_none() {
            return Err(EngineError::session_not_found(rewind.session));
        }
        Ok(restored)
    }

    /// Tries a rewind until it is finished, or gives up and tells the session.
    pub(crate) async fn finish_with_retries(
        self,
        project: ProjectId,
        rewind: &UnfinishedRewind,
        record: Record,
    ) {
        let mut delay = FIRST_RETRY_DELAY;
        for attempt in 1.. {
            let reason = match self.finish_rewind(project, rewind).await {
                Ok(_) | Err(EngineError::NotFound { .. }) => break,
                Err(error) => error,
            };
            tracing::warn!(session = %rewind.session, %reason, attempt, "could not finish a rewind");
            if attempt == MAX_ATTEMPTS {
                self.report_unfinished(rewind, &reason).await;
                break;
            }
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                // The next server goes on.
                () = self.engine.stopping() => return,
            }
            delay *= 2;
        }
        record.remove();
    }

    async fn report_unfinished(self, rewind: &UnfinishedRewind, reason: &EngineError) {
        let kept = checkpoint_id(Hash::from_bytes(rewind.kept));
        let step = SessionStep {
            at: self.engine.now(),
            events: vec![Event::log(format!(
                "the files could not be set back to the end of turn {}, and may be so in part: {reason}; \
                 `session_rewind` tries it again; the files as they were before are in the checkpoint {kept}",
                rewind.turn
            ))],
            ..SessionStep::default()
        };
        if let Err(error) = self
            .engine
            .sessions()
            .commit_step(rewind.session, step)
            .await
        {
            tracing::warn!(session = %rewind.session, %error, "could not report a rewind");
        }
    }

    /// Finds what a dead server left. Forks are undone, and workspaces of rewinds are blocked.
    pub(crate) async fn recover_unfinished(self) -> Vec<PendingRewind> {
        let mut pending = Vec::new();
        for project in self.projects_with_checkpoints().await {
            let directory = self.engine.files().project_dir(project).join(OBJECTS_DIR);
            let read = tokio::task::spawn_blocking(move || Record::read_all(&directory)).await;
            let records = match read {
                Ok(Ok(records)) => records,
                Ok(Err(error)) => {
                    tracing::warn!(%project, %error, "could not look for unfinished rewinds");
                    continue;
                }
                Err(_) => continue,
            };
            for (record, unfinished) in records {
                match unfinished {
                    Unfinished::Fork(workspace) => {
                        let workspaces = self.engine.workspaces();
                        workspaces.undo_creation(project, &workspace).await;
                        record.remove();
                    }
                    Unfinished::Rewind(rewind) => {
                        let blocked = self.block_turns(project, &rewind.workspace).await;
                        pending.push(PendingRewind {
                            project,
                            rewind,
                            record,
                            blocked,
                        });
                    }
                }
            }
        }
        pending
    }

    /// Finishes rewinds of a dead server in the background.
    pub(crate) fn finish_rewinds(self, pending: Vec<PendingRewind>) {
        for one in pending {
            self.engine
                .spawn_until_stopping(|engine: Engine| async move {
                    let checkpoints = engine.checkpoints();
                    checkpoints
                        .finish_with_retries(one.project, &one.rewind, one.record)
                        .await;
                    drop(one.blocked);
                });
        }
    }
}
