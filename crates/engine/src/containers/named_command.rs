//! Commands with an `exec_id`: a repeated call joins the first, also after a restart of the server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use oubliette_model::{ProjectId, quoted};
use oubliette_store::{
    self as store, DROPPED_RESULT, MAX_KEPT_RESULT_BYTES, MAX_KEPT_RESULTS, Project,
};
use sha2::{Digest, Sha256};

use super::command;
use super::exec::{self, CommandLine, MAX_START_ATTEMPTS, Output, Params};
use super::process::ProcessError;
use super::state::OperationLock;
use super::{ContainerState, NAMED_PREFIX};
use crate::{Call, Engine, EngineError, Result};

/// A named command that a call would start or join.
#[derive(Debug)]
pub(super) struct NamedCommand<'a> {
    pub(super) project_id: ProjectId,
    /// The `exec_id` that the caller chose.
    pub(super) name: &'a str,
    /// Its id in the store.
    pub(super) stored_id: &'a str,
    /// Tells another command with the same name; none if the call only joins.
    pub(super) command_hash: Option<Vec<u8>>,
}

/// What is known about a named command.
#[derive(Debug)]
pub(super) enum Recorded {
    /// This call recorded it, and must start it.
    New,
    /// An earlier call started it in this boot of the container.
    Started(Timestamp),
    Ended(Box<Output>),
}

/// Runs a command with an `exec_id`, or joins the one that has it. Calls with the same id run one
/// after the other; the later ones find the result.
pub(super) async fn run_named(
    engine: &Engine,
    project: &Project,
    name: &str,
    params: Params,
    timeout: Duration,
    call: &Call,
) -> Result<Output> {
    let state = engine.container_state();
    let lock = NamedCommandLock::new(state, project.id, name);
    let _lock = lock.lock.lock().await;
    let named = NamedCommand {
        project_id: project.id,
        name,
        stored_id: name,
        command_hash: command_hash(&params),
    };
    if named.command_hash.is_none()
        && let Some(ended) = named.find_ended(engine).await?
    {
        return Ok(ended);
    }
    let process_id = format!("{NAMED_PREFIX}{name}");
    let prepared = exec::prepare(engine, project, params, process_id, call).await?;
    let command = &prepared.command;
    let mut attempts = MAX_START_ATTEMPTS;
    let (finished, duration, joined) = loop {
        let containers = engine.containers();
        let container = containers
            .ensure_with_progress(project, &prepared.workspace, call)
            .await?;
        let link = container.link;
        let joined = match named.record(engine, link.boot_id(), call).await? {
            Recorded::Ended(output) => return Ok(*output),
            Recorded::Started(at) => Some(at),
            Recorded::New => None,
        };
        let started = Instant::now();
        // Not cancelled with the call: a later call can join the command.
        let never = std::future::pending();
        let finished = command::run(state, link, command, timeout, never).await;
        let is_unstarted = matches!(
            finished,
            Err(ProcessError::NotSent | ProcessError::Rejected(_))
        );
        if is_unstarted && joined.is_none() {
            // It never started, so a later call must not find an unknown outcome.
            engine
                .store()
                .remove_unstarted_exec(project.id, name)
                .await?;
        }
        match finished {
            Err(ProcessError::NotSent) if attempts > 1 => attempts -= 1,
            finished => break (finished?, started.elapsed(), joined),
        }
    };
    let output = exec::output(&prepared, finished, duration);
    let result = serde_json::to_string(&output).map_err(EngineError::fault)?;
    engine
        .store()
        .set_exec_result(project.id, name, &result)
        .await?;
    // After the result is stored: until then only the supervisor has it.
    prepared.forget_process(state).await;
    Ok(match joined {
        Some(at) => as_joined(output, at),
        None => output,
    })
}

impl NamedCommand<'_> {
    /// Records the start of the command, unless it was started before. An error if the name belongs to
    /// another command, or if the result is lost.
    pub(super) async fn record(
        &self,
        engine: &Engine,
        boot_id: &str,
        call: &Call,
    ) -> Result<Recorded> {
        let exec = store::Exec {
            project_id: self.project_id,
            exec_id: self.stored_id.to_owned(),
            boot_id: boot_id.to_owned(),
            started_at: engine.now(),
            command_hash: self.command_hash.clone(),
            result: None,
        };
        let audit = call.take_audit_entry();
        let Some(stored) = engine.store().add_exec(&exec, audit).await? else {
            return Ok(Recorded::New);
        };
        self.require_same_command(&stored)?;
        match self.result_of(&stored)? {
            Some(output) => Ok(Recorded::Ended(Box::new(output))),
            None if stored.boot_id == boot_id => Ok(Recorded::Started(stored.started_at)),
            None => Err(EngineError::Failed(format!(
                "the container ended while {} ran, so its outcome is unknown: check its effects before \
                 you run it again under another `exec_id`",
                quoted(self.name)
            ))),
        }
    }

    /// The result of a command that was started before; none while it runs.
    async fn find_ended(&self, engine: &Engine) -> Result<Option<Output>> {
        let stored = engine.store().exec(self.project_id, self.stored_id).await?;
        let stored = stored.ok_or_else(|| not_found(self.name))?;
        self.result_of(&stored)
    }

    fn result_of(&self, stored: &store::Exec) -> Result<Option<Output>> {
        match stored.result.as_deref() {
            None => Ok(None),
            Some(DROPPED_RESULT) => Err(dropped_result(self.name)),
            Some(result) => {
                let output = serde_json::from_str(result).map_err(EngineError::fault)?;
                Ok(Some(as_joined(output, stored.started_at)))
            }
        }
    }

    /// Commands of older versions have no hash; the name alone tells them.
    fn require_same_command(&self, stored: &store::Exec) -> Result<()> {
        let (Some(own), Some(other)) = (&self.command_hash, &stored.command_hash) else {
            return Ok(());
        };
        if own == other {
            return Ok(());
        }
        let result = stored.result.as_deref().filter(|text| !text.is_empty());
        let output = result.and_then(|text| serde_json::from_str::<Output>(text).ok());
        let state = match (output, &stored.result) {
            (Some(output), _) => match output.exit_code {
                Some(code) => format!("ended with exit code {code}"),
                None => "was killed at its time limit".to_owned(),
            },
            (None, Some(_)) => "has ended".to_owned(),
            (None, None) => "has not ended as far as is known".to_owned(),
        };
        Err(EngineError::invalid(format!(
            "the `exec_id` {} belongs to another command, or the same with another `stdin` or \
             workspace, which was started at {} and {state}; choose a new `exec_id`, or omit `command` \
             to get the result of the other one",
            quoted(self.name),
            stored.started_at
        )))
    }
}

/// Tells whether two calls are about the same command. None if the call has no command.
pub(super) fn command_hash(params: &Params) -> Option<Vec<u8>> {
    let (kind, parts) = match params.command.as_ref()? {
        CommandLine::Shell(text) => ("shell", std::slice::from_ref(text)),
        CommandLine::Program(argv) => ("program", argv.as_slice()),
    };
    let workspace = params.workspace_id.clone().unwrap_or_default();
    let stdin = params.stdin.as_deref().unwrap_or_default();
    let parts = parts.iter().map(String::as_str);
    let mut hash = Sha256::new();
    for part in [kind, workspace.as_str(), stdin].into_iter().chain(parts) {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    Some(hash.finalize().to_vec())
}

fn as_joined(output: Output, started_at: Timestamp) -> Output {
    Output {
        joined: Some(true),
        started_at: Some(started_at.to_string()),
        ..output
    }
}

pub(super) fn not_found(name: &str) -> EngineError {
    EngineError::NotFound {
        what: "command",
        id: name.to_owned(),
        hint: "a call with `command` starts it",
    }
}

/// What a call gets for a command whose result made room for newer ones.
pub(super) fn dropped_result(name: &str) -> EngineError {
    EngineError::Failed(format!(
        "{} has ended, and its result is no longer kept: only the newest {MAX_KEPT_RESULTS} results of a \
         project with {} MB are; check its effects before you run it again under another `exec_id`",
        quoted(name),
        MAX_KEPT_RESULT_BYTES >> 20
    ))
}

/// The lock of a named command, removed from the state by the last call that waits for it.
struct NamedCommandLock<'a> {
    state: &'a ContainerState,
    key: (ProjectId, String),
    lock: OperationLock,
}

impl<'a> NamedCommandLock<'a> {
    fn new(state: &'a ContainerState, project: ProjectId, name: &str) -> Self {
        let key = (project, name.to_owned());
        let mut locks = state.named_commands.lock();
        let lock = locks.entry(key.clone()).or_default().clone();
        Self { state, key, lock }
    }
}

impl Drop for NamedCommandLock<'_> {
    fn drop(&mut self) {
        let mut locks = self.state.named_commands.lock();
        // This clone and the one in the map.
        if Arc::strong_count(&self.lock) <= 2 {
            locks.remove(&self.key);
        }
    }
}
