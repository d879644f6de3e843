//! Runs a command for the server itself and writes its output into a file: more than fits into memory.

use std::time::Duration;

use oubliette_model::WorkspaceId;
use oubliette_wire::{ExitStatus, StreamKind};
use tokio::fs::File;
use tokio::io::AsyncWriteExt;
use uuid::Uuid;

use super::command::AwaitedGuard;
use super::exec::default_environment;
use super::lifecycle::RunningContainer;
use super::process::{OutputReader, Process, ProcessError, ProcessSpec};
use super::{CommandResult, Containers, UNNAMED_PREFIX};
use crate::workspaces::path_in_container;
use crate::{Call, EngineError, Result};

const MAX_SPOOL_BYTES: u64 = 4 << 20;
const READ_BYTES: usize = 256 << 10;
const MAX_STDERR_BYTES: usize = 16 << 10;
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// When a command is killed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OutputLimits {
    pub(crate) max_time: Duration,
    pub(crate) max_bytes: u64,
}

impl Containers<'_> {
    /// Runs a command in a workspace. Fails if the server loses the container meanwhile.
    pub(crate) async fn save_output(
        self,
        container: &RunningContainer,
        workspace: &WorkspaceId,
        argv: Vec<String>,
        file: &mut File,
        limits: OutputLimits,
        call: &Call,
    ) -> Result<CommandResult> {
        let process_id = format!("{UNNAMED_PREFIX}{}", Uuid::new_v4());
        let spec = ProcessSpec {
            process_id: process_id.clone(),
            argv,
            env: default_environment(),
            cwd: path_in_container(workspace),
            terminal: None,
            max_spool_bytes: MAX_SPOOL_BYTES,
            isolated: false,
        };
        let _in_use = self.state().mark_in_use(&container.id);
        let _awaited = AwaitedGuard::new(self.state(), &process_id);
        let process = self.process(container.link.clone(), &process_id);
        let outcome = tokio::select! {
            outcome = save(&process, &spec, file, limits.max_bytes) => outcome,
            () = tokio::time::sleep(limits.max_time) => Err(EngineError::Failed(format!(
                "it took longer than {} seconds and was stopped", limits.max_time.as_secs()
            ))),
            () = call.cancelled() => Err(EngineError::Cancelled),
        };
        match &outcome {
            Ok(_) => process.forget().await,
            Err(_) => process.terminate(KILL_TIMEOUT).await,
        }
        outcome
    }
}

async fn save(
    process: &Process,
    spec: &ProcessSpec,
    file: &mut File,
    max_bytes: u64,
) -> Result<CommandResult> {
    process.start(spec).await?;
    process.close_stdin(0).await;
    let mut errors = Vec::new();
    let stdout = async {
        let mut reader = process.open_output(StreamKind::Stdout, 0).await?;
        let mut chunk = Vec::new();
        while read(process, &mut reader, &mut chunk).await? {
            file.write_all(&chunk).await.map_err(EngineError::from)?;
            chunk.clear();
            process
                .acknowledge(StreamKind::Stdout, reader.offset())
                .await;
            if reader.offset() > max_bytes {
                return Err(ProcessError::Failed(EngineError::Failed(format!(
                    "it is larger than {} MB (`projects.clone_max_mb` in oubliette.toml)",
                    max_bytes >> 20
                ))));
            }
        }
        file.flush().await.map_err(EngineError::from)?;
        Ok(())
    };
    let stderr = async {
        let mut reader = process.open_output(StreamKind::Stderr, 0).await?;
        while read(process, &mut reader, &mut errors).await? {
            process
                .acknowledge(StreamKind::Stderr, reader.offset())
                .await;
            let excess = errors.len().saturating_sub(MAX_STDERR_BYTES);
            errors.drain(..excess);
        }
        Ok(())
    };
    tokio::try_join!(stdout, stderr)?;
    let exited = process.exited().await?;
    Ok(if exited.ended == ExitStatus::Code(0) {
        CommandResult::Succeeded(String::new())
    } else {
        CommandResult::Failed(String::from_utf8_lossy(&errors).trim().to_owned())
    })
}

/// Appends what the process writes next; false if it has exited and everything was read.
async fn read(
    process: &Process,
    reader: &mut OutputReader,
    into: &mut Vec<u8>,
) -> std::result::Result<bool, ProcessError> {
    tokio::select! {
        biased;
        read = reader.read(into, READ_BYTES) => {
            if read? > 0 {
                return Ok(true);
            }
        }
        exited = process.exited() => {
            if reader.is_complete(&exited?) {
                return Ok(false);
            }
            return Ok(reader.read(into, READ_BYTES).await? > 0);
        }
    }
    let exited = process.exited().await?;
    if reader.is_complete(&exited) {
        Ok(false)
    } else {
        Err(ProcessError::ConnectionLost)
    }
}

impl From<EngineError> for ProcessError {
    fn from(error: EngineError) -> Self {
        Self::Failed(error)
    }
}
