//! Changes files of a workspace. A program in the container does it: there the files get the right owner,
//! and a protected path or a link leads nowhere that the agent could not go.

use oubliette_model::WorkspaceId;
use oubliette_store::Project;
use oubliette_wire::{
    APPLY_FILES, AppliedFiles, CLIENT_PATH, FileAction, FileChange, FileChangeHead,
};

use super::{Workspaces, path_in_container};
use crate::containers::{CommandInput, CommandResult};
use crate::{EngineError, Result};

/// How much is sent with one command, unless one file is larger.
const MAX_BATCH_BYTES: usize = 16 << 20;

/// The changes that could not be made, each with the reason.
pub(crate) type FailedChanges = Vec<(FileChange, String)>;

impl Workspaces<'_> {
    /// Makes changes of files in order, as far as possible. `next` returns the changes one after the
    /// other; starts the container if it does not run.
    pub(crate) async fn apply(
        self,
        project: &Project,
        workspace: &WorkspaceId,
        mut next: impl FnMut() -> Result<Option<FileChange>>,
    ) -> Result<FailedChanges> {
        let mut failed = Vec::new();
        let mut is_done = false;
        while !is_done {
            let (mut input, mut batch) = (Vec::new(), Vec::new());
            while input.len() < MAX_BATCH_BYTES {
                let Some(mut change) = next()? else {
                    is_done = true;
                    break;
                };
                change.encode(&mut input);
                if let FileAction::Write { content, .. } = &mut change.action {
                    *content = Vec::new();
                }
                batch.push(change);
            }
            if batch.is_empty() {
                break;
            }
            let report = self.run_apply(project, workspace, input).await?;
            let count = batch.len() as u64;
            let is_complete = report.applied + report.failures.len() as u64 == count;
            for (position, reason) in report.failures {
                let position = usize::try_from(position).unwrap_or(usize::MAX);
                if let Some(change) = batch.get(position) {
                    failed.push((change.clone(), reason));
                }
            }
            if !is_complete {
                break;
            }
        }
        Ok(failed)
    }

    async fn run_apply(
        self,
        project: &Project,
        workspace: &WorkspaceId,
        input: Vec<u8>,
    ) -> Result<AppliedFiles> {
        let containers = self.engine.containers();
        let running = containers.ensure(project, workspace).await?;
        let ended = containers
            .run_command(&running.id, running.link, apply_command(workspace), input)
            .await?;
        read_report(ended)
    }

    /// Writes one file: the whole content, or nothing. Starts the container if it does not run.
    ///
    /// Must not be dropped before it returns.
    pub(crate) async fn write_streamed(
        self,
        project: &Project,
        workspace: &WorkspaceId,
        head: &FileChangeHead,
        content: &mut impl CommandInput,
    ) -> Result<()> {
        let containers = self.engine.containers();
        let running = containers.ensure(project, workspace).await?;
        let mut bytes = Vec::new();
        head.encode(&mut bytes);
        let mut input = WithHead {
            head: Some(bytes),
            content,
        };
        let argv = apply_command(workspace);
        let ended = containers
            .run_with_input(&running.id, running.link, argv, &mut input)
            .await?;
        match read_report(ended)?.failures.into_iter().next() {
            Some((_, reason)) => Err(EngineError::Failed(format!(
                "the file was not written: {reason}"
            ))),
            None => Ok(()),
        }
    }
}

/// The beginning of a change, and then its content.
struct WithHead<'a, C> {
    head: Option<Vec<u8>>,
    content: &'a mut C,
}

impl<C: CommandInput> CommandInput for WithHead<'_, C> {
    async fn next(&mut self) -> Result<Option<Vec<u8>>> {
        match self.head.take() {
            Some(head) => Ok(Some(head)),
            None => self.content.next().await,
        }
    }
}

fn apply_command(workspace: &WorkspaceId) -> Vec<String> {
    let directory = path_in_container(workspace);
    [CLIENT_PATH, APPLY_FILES, &directory]
        .map(str::to_owned)
        .into()
}

fn read_report(ended: CommandResult) -> Result<AppliedFiles> {
    match ended {
        CommandResult::Succeeded(report) => serde_json::from_str(&report)
            .map_err(|error| EngineError::Failed(format!("the files were not written: {error}"))),
        CommandResult::Failed(reason) if reason.starts_with("usage:") => Err(EngineError::Failed(
            "the container was started by an older version, which cannot write files; stop it \
             with `container_stop` and try again"
                .to_owned(),
        )),
        CommandResult::Failed(reason) => Err(EngineError::Failed(format!(
            "the files were not written: {reason}"
        ))),
    }
}
