//! Interactive commands: input and output travel call by call, for example for a terminal.
//!
//! The server keeps nothing that it could lose. The supervisor keeps the output by offsets; a call
//! names the offset from which it wants more, which acknowledges everything before it. So a lost
//! reply can be requested again, and a new server continues where the last one was.

mod exchange;
mod idle_timeout;
mod output;
mod params;

use std::time::{Duration, Instant};

use oubliette_model::{ProjectId, WorkspaceId, quoted};
use oubliette_runtime::ContainerId;
use oubliette_store::{DROPPED_RESULT, Project};
use oubliette_wire::ExitStatus;

use super::command::Command;
use super::exec::{self, MAX_START_ATTEMPTS, Output, Params, check_exec_id};
use super::memory::describe_kills;
use super::named_command::{NamedCommand, Recorded, command_hash, dropped_result, not_found};
use super::process::{Process, ProcessError, ProcessSpec, RETRY_INTERVAL};
use super::{ContainerScope, INTERACTIVE_PREFIX, container_unreachable};
use crate::{Actor, Call, Engine, EngineError, Result};

use exchange::{Received, exchange};
pub(super) use idle_timeout::IdleTimers;
use output::OutputStream;
use params::InteractiveCall;
pub(crate) use params::{InteractiveParams, Offsets};

/// How much of each stream the supervisor keeps until a caller has received it; then the command is
/// blocked.
const MAX_SPOOL_BYTES: u64 = 4 << 20;
/// How long a call waits for a supervisor that is not connected.
const SUPERVISOR_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct InteractiveExec<'a> {
    engine: &'a Engine,
    project_id: ProjectId,
    workspace: WorkspaceId,
    container: ContainerId,
    /// The id of the process at the supervisor and of the command in the store.
    process_id: String,
    /// The `exec_id` that the caller chose.
    name: String,
}

/// What a call can return.
#[derive(Debug)]
enum CallResult {
    Received(Box<Received>),
    /// The command has ended, and its end was stored.
    Stored(Box<Output>),
}

/// Runs one call: starts the command if the call has one, sends input, and waits for new output.
pub(super) async fn run_call(
    engine: &Engine,
    actor: &Actor,
    project: &Project,
    mut params: Params,
    call: &Call,
) -> Result<Output> {
    let started = Instant::now();
    let mut request = InteractiveCall::from_params(&mut params)?;
    let name = check_exec_id(&request.exec_id)?.to_owned();
    let is_start = params.command.is_some();
    let process_id = format!("{INTERACTIVE_PREFIX}{name}");
    let workspace = params.workspace_id.clone().unwrap_or_default();
    let mut exec = InteractiveExec {
        engine,
        project_id: project.id,
        container: ContainerScope::of_workspace(project, &workspace).container_id(),
        workspace,
        process_id,
        name,
    };
    let timers = &engine.container_state().idle_timers;
    timers.record_call(&exec);
    if is_start {
        let process_id = exec.process_id.clone();
        // Without its input, which a repeated call need not have.
        let command_hash = command_hash(&params);
        let prepared = exec::prepare(engine, project, params, process_id, call).await?;
        exec.workspace = prepared.workspace.clone();
        exec.container = prepared.container.clone();
        let started = exec
            .start(project, &prepared.command, command_hash, &request, call)
            .await?;
        if let Some(ended) = started {
            return Ok(ended);
        }
        request.terminal_size = None;
    }
    let result = tokio::select! {
        result = exec.communicate(&mut request) => result,
        () = call.cancelled() => Err(EngineError::Cancelled),
        () = engine.tokens().wait_until_ended(actor.token_id) => {
            Err(EngineError::Failed("the API key has ended".to_owned()))
        }
        () = engine.draining() => Ok(CallResult::Received(Box::default())),
    };
    let result = result?;
    // There is one call per keystroke, so the audit log gets at most one entry per minute.
    if !is_start
        && let Some(entry) = call.take_audit_entry()
        && timers.is_audit_due(&exec)
    {
        engine.audit_log().enqueue(entry).await;
    }
    match result {
        CallResult::Stored(output) => Ok(*output),
        CallResult::Received(received) => {
            let has_ended = received.ended.is_some();
            let mut output = exec.output(&request, *received, started);
            if has_ended {
                let memory_mb = engine.containers().memory_mb(project);
                output.limit_reached = describe_kills(timers.count_memory_kills(&exec), memory_mb);
                exec.store_result(&output).await?;
                let state = engine.container_state();
                state
                    .forget_process(&exec.container, &exec.process_id)
                    .await;
            }
            Ok(output)
        }
    }
}

impl InteractiveExec<'_> {
    /// Starts the command, or finds that it runs; its result if it has ended already.
    async fn start(
        &self,
        project: &Project,
        command: &Command,
        command_hash: Option<Vec<u8>>,
        request: &InteractiveCall,
        call: &Call,
    ) -> Result<Option<Output>> {
        let spec = process_spec(command, request);
        let named = NamedCommand {
            project_id: self.project_id,
            name: &self.name,
            stored_id: &self.process_id,
            command_hash,
        };
        let containers = self.engine.containers();
        let mut attempts = MAX_START_ATTEMPTS;
        let mut is_sent = false;
        let (code, message) = loop {
            attempts -= 1;
            let container = containers
                .ensure_with_progress(project, &self.workspace, call)
                .await?;
            let link = container.link;
            let (id, boot_id) = (&self.process_id, link.boot_id());
            match named.record(self.engine, boot_id, call).await? {
                Recorded::Ended(ended) => return Ok(Some(*ended)),
                Recorded::Started(_) => is_sent = true,
                Recorded::New => {}
            }
            containers.start_idle_timer(self, boot_id)?;
            let kills = containers.watch_memory_kills(&link).await;
            let timers = &self.engine.container_state().idle_timers;
            timers.set_memory_kills(self, kills);
            match containers.process(link, id).start(&spec).await {
                Ok(()) => return Ok(None),
                Err(ProcessError::ProgramNotFound(message)) => break (127, message),
                Err(ProcessError::ProgramNotExecutable(message)) => break (126, message),
                // The next attempt finds the command if it was started.
                Err(ProcessError::ConnectionLost) => is_sent = true,
                Err(ProcessError::NotSent) => {
                    if !is_sent {
                        self.forget_start().await?;
                    }
                    if attempts == 0 {
                        return Err(ProcessError::NotSent.into());
                    }
                }
                Err(error) => {
                    if !is_sent {
                        self.forget_start().await?;
                    }
                    return Err(error.into());
                }
            }
            if attempts == 0 {
                return Err(container_unreachable());
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        };
        let received = Received {
            ended: Some(ExitStatus::Code(code)),
            ..Received::default()
        };
        let mut output = self.output(request, received, Instant::now());
        output.stderr = request.encode(format!("{message}\n").as_bytes());
        self.store_result(&output).await?;
        Ok(Some(output))
    }

    /// Removes the record of a command that never ran, so that a later call finds no unknown outcome.
    async fn forget_start(&self) -> Result<()> {
        self.engine.container_state().idle_timers.finish(self);
        let store = self.engine.store();
        Ok(store
            .remove_unstarted_exec(self.project_id, &self.process_id)
            .await?)
    }

    /// Sends and receives, through any loss of the connection, until there is something to return.
    async fn communicate(&self, request: &mut InteractiveCall) -> Result<CallResult> {
        let started = tokio::time::Instant::now();
        let state = self.engine.container_state();
        let connected = state.connect_process(
            &self.container,
            &self.process_id,
            SUPERVISOR_CONNECT_TIMEOUT,
        );
        let mut process: Process = match connected.await {
            Ok(process) => process,
            Err(error) => return self.stored_result(Some(error)).await,
        };
        loop {
            match exchange(&process, request, started).await {
                Ok(received) => return Ok(CallResult::Received(Box::new(received))),
                Err(ProcessError::Gone) => return self.stored_result(None).await,
                Err(error) if error.is_connection_lost() => {
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
                Err(error) => return Err(error.into()),
            }
            match process.reconnect().await {
                Ok(()) => {}
                Err(ProcessError::Gone) => return self.stored_result(None).await,
                Err(error) => return self.stored_result(Some(error.into())).await,
            }
        }
    }

    /// The stored result of a command that the supervisor does not have, or the error.
    async fn stored_result(&self, error: Option<EngineError>) -> Result<CallResult> {
        let store = self.engine.store();
        let Some(stored) = store.exec(self.project_id, &self.process_id).await? else {
            return Err(not_found(&self.name));
        };
        match stored.result {
            Some(result) if result == DROPPED_RESULT => Err(dropped_result(&self.name)),
            Some(result) => serde_json::from_str(&result)
                .map(|output| CallResult::Stored(Box::new(output)))
                .map_err(EngineError::fault),
            None => Err(error.unwrap_or_else(|| {
                let name = quoted(&self.name);
                EngineError::Failed(format!("the container ended while {name} ran"))
            })),
        }
    }

    fn output(&self, request: &InteractiveCall, received: Received, started: Instant) -> Output {
        let ended = received.ended;
        let truncated = [&received.stdout, &received.stderr]
            .into_iter()
            .flatten()
            .any(OutputStream::is_missing_bytes);
        let mut offsets = request.offsets;
        offsets.stdin = received.stdin.or(request.offsets.stdin);
        let text = |stream: Option<OutputStream>, offset: &mut Option<u64>| match stream {
            Some(stream) => {
                let (text, next) = request.render(stream.into_parts(), ended.is_some());
                *offset = Some(next);
                text
            }
            None => String::new(),
        };
        Output {
            project_id: self.project_id,
            workspace_id: Some(self.workspace.clone()),
            exit_code: ended.map(exec::exit_code),
            stdout: text(received.stdout, &mut offsets.stdout),
            stderr: text(received.stderr, &mut offsets.stderr),
            truncated,
            timed_out: false,
            duration_ms: exec::milliseconds(started.elapsed()),
            rest_uri: None,
            stderr_rest_uri: None,
            joined: None,
            started_at: None,
            limit_reached: None,
            running: Some(ended.is_none()),
            offsets: Some(offsets),
        }
    }

    /// Stores the end of the command, so that a later call can return it again.
    async fn store_result(&self, output: &Output) -> Result<()> {
        let result = serde_json::to_string(output).map_err(EngineError::fault)?;
        let store = self.engine.store();
        store
            .set_exec_result(self.project_id, &self.process_id, &result)
            .await?;
        self.engine.container_state().idle_timers.finish(self);
        Ok(())
    }
}

fn process_spec(command: &Command, request: &InteractiveCall) -> ProcessSpec {
    let mut spec = command.process.clone();
    if request.terminal_size.is_some() {
        let term = spec.env.entry("TERM".to_owned());
        term.or_insert_with(|| "xterm".to_owned());
    }
    spec.terminal = request.terminal_size;
    spec.max_spool_bytes = MAX_SPOOL_BYTES;
    spec
}
