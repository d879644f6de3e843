//! Makes a workspace what it was in a checkpoint.

use std::sync::Arc;

use oubliette_checkpoints::{Hash, ObjectStore, RestoreAction, RestoreStep, restore_plan};
use oubliette_model::{WorkspaceId, path_to_text};
use oubliette_store::Project;
use oubliette_wire::{FileAction, FileChange};
use schemars::JsonSchema;
use serde::Serialize;

use super::Checkpoints;
use crate::{EngineError, Result};

const MAX_REPORTED_FILES: usize = 100;

/// What was done to the files of a workspace.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct Restored {
    /// How many files were written and removed.
    files_written: u64,
    files_removed: u64,
    /// Files that are not what they were, for example because they were too large to be kept.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_restored: Vec<NotRestored>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct NotRestored {
    path: String,
    reason: String,
}

impl Checkpoints<'_> {
    /// Changes what differs between two trees, of which the first is the workspace as it is now. `.git`
    /// is left alone if `with_git` is false.
    pub(crate) async fn restore(
        self,
        project: &Project,
        workspace: &WorkspaceId,
        (now, wanted): (Hash, Hash),
        with_git: bool,
    ) -> Result<Restored> {
        let objects = self.objects(project.id).await?;
        let reading = objects.clone();
        let plan = tokio::task::spawn_blocking(move || restore_plan(&reading, now, wanted));
        let plan = plan
            .await
            .map_err(EngineError::fault)?
            .map_err(unreadable)?;
        let is_wanted = |path: &[u8]| {
            let mut names = path.split(|byte| *byte == b'/');
            with_git || !names.any(|name| name == b".git")
        };
        let mut restored = Restored::default();
        let mut steps = plan.steps;
        steps.retain(|step| is_wanted(&step.path));
        let mut steps = steps.into_iter();
        let next = || {
            let Some(step) = steps.next() else {
                return Ok(None);
            };
            match step.action {
                RestoreAction::Remove => restored.files_removed += 1,
                RestoreAction::WriteFile { .. } | RestoreAction::WriteLink { .. } => {
                    restored.files_written += 1;
                }
                RestoreAction::CreateDirectory | RestoreAction::RemoveDirectory => {}
            }
            file_change(&objects, step).map(Some).map_err(unreadable)
        };
        let failed = self
            .engine
            .workspaces()
            .apply(project, workspace, next)
            .await?;
        let not_kept = plan.not_kept.into_iter().filter(|path| is_wanted(path));
        let not_kept = not_kept.map(|path| NotRestored {
            path: path_to_text(&path),
            reason: "it was larger than 10 MB, and was not kept".to_owned(),
        });
        let failed = failed.into_iter().map(|(change, reason)| NotRestored {
            path: path_to_text(&change.path),
            reason,
        });
        let not_restored = not_kept.chain(failed).take(MAX_REPORTED_FILES).collect();
        Ok(Restored {
            not_restored,
            ..restored
        })
    }
}

fn unreadable(error: std::io::Error) -> EngineError {
    EngineError::Failed(format!("the checkpoint cannot be read: {error}"))
}

fn file_change(objects: &Arc<ObjectStore>, step: RestoreStep) -> std::io::Result<FileChange> {
    Ok(FileChange {
        path: step.path,
        action: match step.action {
            RestoreAction::WriteFile { content, mode } => FileAction::Write {
                content: objects.read(content)?,
                mode: Some(mode),
            },
            RestoreAction::WriteLink { target } => FileAction::Link {
                target: objects.read(target)?,
            },
            RestoreAction::CreateDirectory => FileAction::CreateDirectory,
            RestoreAction::RemoveDirectory => FileAction::RemoveDirectory,
            RestoreAction::Remove => FileAction::Remove,
        },
    })
}
