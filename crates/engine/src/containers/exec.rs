//! `container_exec`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use oubliette_model::{Access, Mode, ProjectId, Secret, WorkspaceId, quoted};
use oubliette_runtime::ContainerId;
use oubliette_store::{self as store, Project};
use oubliette_wire::ExitStatus;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::command::{self, Command, Finished, MAX_COMMAND_SPOOL_BYTES};
use super::interactive::{self, InteractiveParams, Offsets};
use super::process::{ProcessError, ProcessSpec};
use super::state::OperationLock;
use super::{ContainerScope, ContainerState, InUseGuard, NAMED_PREFIX, UNNAMED_PREFIX};
use crate::operations::{Effect, Face, Operation, Reach};
use crate::workspaces::WorkspaceChoice;
use crate::{Actor, Call, Engine, EngineError, Result};

const DEFAULT_TIMEOUT_SECONDS: f64 = 50.0;
const MAX_TIMEOUT_SECONDS: f64 = 86_400.0;
/// How often a command is tried whose container is stopped each time before the command starts.
pub(super) const MAX_START_ATTEMPTS: usize = 5;

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// The project, as `project_list` shows it.
    pub(super) project_id: ProjectId,
    /// A string that the shell runs, or a list of the program and its arguments. Omit it only to
    /// continue an interactive command.
    pub(super) command: Option<CommandLine>,
    /// The workspace to run it in; default: the default workspace.
    pub(super) workspace_id: Option<WorkspaceId>,
    /// Create the workspace if it does not exist.
    pub(super) create_workspace: Option<bool>,
    /// Environment variables in addition to the project's, `{"NAME": "value"}`. Never shown again.
    env: Option<BTreeMap<String, Secret>>,
    /// The standard input of the command.
    pub(super) stdin: Option<String>,
    /// Seconds until the command is killed with every process it started (default 50).
    pub(super) timeout_seconds: Option<f64>,
    /// A name that the caller chooses: a repeated call with the same name joins the first one
    /// instead of running the command again.
    pub(super) exec_id: Option<String>,
    #[serde(flatten)]
    pub(super) interactive: InteractiveParams,
}

/// A command as a caller writes it.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a string or a list of strings")]
pub(super) enum CommandLine {
    Shell(String),
    Program(Vec<String>),
}

impl JsonSchema for CommandLine {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "CommandLine".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": ["string", "array"], "items": { "type": "string" } })
    }
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Output {
    pub(super) project_id: ProjectId,
    /// The workspace it ran in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) workspace_id: Option<WorkspaceId>,
    /// Null if the command timed out, and while it runs.
    pub(super) exit_code: Option<i32>,
    pub(super) stdout: String,
    pub(super) stderr: String,
    /// Whether bytes are missing, for example because a stream was longer than 1 MiB.
    pub(super) truncated: bool,
    pub(super) timed_out: bool,
    pub(super) duration_ms: u64,
    /// Interactive: whether the command still runs or has unread output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) running: Option<bool>,
    /// Interactive: the `offsets` of the next call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) offsets: Option<Offsets>,
}

#[derive(Debug)]
pub(crate) struct Exec;

impl Operation for Exec {
    const NAME: &'static str = "container_exec";
    const ABOUT: &'static str = "Run a command in a project's container and return its output and exit code. A string is \
         run by the shell, a list as a program with arguments. The container is started if it does \
         not run. A command that takes longer than `timeout_seconds` is killed with every process it \
         started, and the result holds its output until then. With `wait_seconds` and `exec_id` the \
         command is interactive: each call returns as soon as there is new output, the command keeps \
         running, and the next call with the same `exec_id` and the `offsets` of the last result \
         sends input or waits for more output.";
    const ACCESS: Access = Access::Project(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Destroys;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach::project(params.project_id)
    }

    async fn run(engine: &Engine, actor: &Actor, params: Params, call: Call) -> Result<Output> {
        let project = engine.project(params.project_id).await?;
        if params.interactive.is_requested()? {
            return interactive::run_call(engine, actor, &project, params, &call).await;
        }
        let timeout = timeout(params.timeout_seconds)?;
        match params.exec_id.clone() {
            Some(name) => {
                run_named(
                    engine,
                    &project,
                    check_exec_id(&name)?,
                    params,
                    timeout,
                    &call,
                )
                .await
            }
            None => run_unnamed(engine, &project, params, timeout, &call).await,
        }
    }
}

async fn run_unnamed(
    engine: &Engine,
    project: &Project,
    params: Params,
    timeout: Duration,
    call: &Call,
) -> Result<Output> {
    let process_id = format!("{UNNAMED_PREFIX}{}", Uuid::new_v4());
    let prepared = prepare(engine, project, params, process_id, call).await?;
    let state = engine.container_state();
    let command = &prepared.command;
    let mut attempts = MAX_START_ATTEMPTS;
    let (finished, duration) = loop {
        let containers = engine.containers();
        let container = containers.ensure(project, &prepared.workspace).await?;
        // Before the start: a crash does not undo the effects of the command.
        if let Some(entry) = call.take_audit_entry() {
            engine.store().append_audit(vec![entry]).await?;
        }
        let started = Instant::now();
        let cancelled = call.cancelled();
        let finished = command::run(state, container.link, command, timeout, cancelled).await;
        match finished {
            Err(ProcessError::NotSent) if attempts > 1 => attempts -= 1,
            finished => break (finished?, started.elapsed()),
        }
    };
    prepared.forget_process(state).await;
    if finished.cancelled {
        return Err(EngineError::Cancelled);
    }
    Ok(output(&prepared, finished, duration))
}

/// Runs a command with an `exec_id`, or joins the one that has it. Calls with the same id run one
/// after the other; the later ones find the result.
async fn run_named(
    engine: &Engine,
    project: &Project,
    name: &str,
    params: Params,
    timeout: Duration,
    call: &Call,
) -> Result<Output> {
    let state = engine.container_state();
    let named = NamedCommandLock::new(state, project.id, name);
    let _lock = named.lock.lock().await;
    let process_id = format!("{NAMED_PREFIX}{name}");
    let prepared = prepare(engine, project, params, process_id, call).await?;
    let command = &prepared.command;
    let mut attempts = MAX_START_ATTEMPTS;
    let (finished, duration) = loop {
        let containers = engine.containers();
        let link = containers.ensure(project, &prepared.workspace).await?.link;
        if let Some(output) = find_result(engine, project.id, name, link.boot_id(), call).await? {
            return Ok(output);
        }
        let started = Instant::now();
        // Not cancelled with the call: a later call can join the command.
        let never = std::future::pending();
        let finished = command::run(state, link, command, timeout, never).await;
        if let Err(ProcessError::NotSent | ProcessError::Rejected(_)) = finished {
            // It never started, so a later call must not find an unknown outcome.
            engine
                .store()
                .remove_unstarted_exec(project.id, name)
                .await?;
        }
        match finished {
            Err(ProcessError::NotSent) if attempts > 1 => attempts -= 1,
            finished => break (finished?, started.elapsed()),
        }
    };
    let output = output(&prepared, finished, duration);
    let result = serde_json::to_string(&output).map_err(EngineError::fault)?;
    engine
        .store()
        .set_exec_result(project.id, name, &result)
        .await?;
    // After the result is stored: until then only the supervisor has it.
    prepared.forget_process(state).await;
    Ok(output)
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

/// A command with its container, which is in use meanwhile.
#[derive(Debug)]
pub(super) struct PreparedCommand {
    project_id: ProjectId,
    pub(super) workspace: WorkspaceId,
    pub(super) command: Command,
    pub(super) container: ContainerId,
    _in_use: InUseGuard,
}

impl PreparedCommand {
    async fn forget_process(&self, state: &ContainerState) {
        let process_id = &self.command.process.process_id;
        state.forget_process(&self.container, process_id).await;
    }
}

/// Finds or creates the workspace of a command, and checks the command.
pub(super) async fn prepare(
    engine: &Engine,
    project: &Project,
    params: Params,
    process_id: String,
    call: &Call,
) -> Result<PreparedCommand> {
    let choice = WorkspaceChoice {
        workspace_id: params.workspace_id.clone(),
        create_workspace: params.create_workspace.unwrap_or(false),
    };
    let workspace = engine
        .workspaces()
        .choose(project.id, &choice, call)
        .await?
        .id;
    let command = command(project, params, &workspace, process_id)?;
    let container = ContainerScope::of_workspace(project, &workspace).container_id();
    let in_use = engine.containers().mark_in_use(&container);
    Ok(PreparedCommand {
        project_id: project.id,
        workspace,
        command,
        container,
        _in_use: in_use,
    })
}

/// Records the start of a named command; its result if it was started before and has ended, an error
/// if its result is lost.
pub(super) async fn find_result(
    engine: &Engine,
    project_id: ProjectId,
    name: &str,
    boot_id: &str,
    call: &Call,
) -> Result<Option<Output>> {
    let exec = store::Exec {
        project_id,
        exec_id: name.to_owned(),
        boot_id: boot_id.to_owned(),
        started_at: engine.now(),
        result: None,
    };
    let Some(stored) = engine
        .store()
        .add_exec(&exec, call.take_audit_entry())
        .await?
    else {
        return Ok(None);
    };
    match stored.result {
        Some(result) => serde_json::from_str(&result)
            .map(Some)
            .map_err(EngineError::fault),
        None if stored.boot_id == boot_id => Ok(None),
        None => Err(EngineError::Failed(format!(
            "the container ended while {} ran, so its outcome is unknown: check its effects before \
             you run it again under another `exec_id`",
            quoted(name)
        ))),
    }
}

fn command(
    project: &Project,
    params: Params,
    workspace: &WorkspaceId,
    process_id: String,
) -> Result<Command> {
    let command_line = params.command.ok_or_else(|| {
        EngineError::invalid(
            "missing parameter `command`: a string that the shell runs, or a list of the program \
             and its arguments",
        )
    })?;
    let argv = match command_line {
        CommandLine::Shell(text) => vec!["/bin/sh".to_owned(), "-c".to_owned(), text],
        CommandLine::Program(argv) if argv.is_empty() => {
            return Err(EngineError::invalid("`command` is an empty list"));
        }
        CommandLine::Program(argv) => argv,
    };
    if argv.iter().any(|argument| argument.contains('\0')) {
        return Err(EngineError::invalid("`command` contains a NUL character"));
    }
    let mut env = default_environment();
    let own_env = params.env.unwrap_or_default();
    for (name, value) in project.settings.env.iter().chain(&own_env) {
        if name.is_empty() || name.contains(['=', '\0']) || value.reveal().contains('\0') {
            return Err(EngineError::invalid(format!(
                "`env`: {} is not a valid variable",
                quoted(name)
            )));
        }
        env.insert(name.clone(), value.reveal().to_owned());
    }
    Ok(Command {
        process: ProcessSpec {
            process_id,
            argv,
            env,
            cwd: crate::workspaces::path_in_container(workspace),
            terminal: None,
            max_spool_bytes: MAX_COMMAND_SPOOL_BYTES,
        },
        stdin: params.stdin.unwrap_or_default().into_bytes(),
    })
}

pub(crate) fn default_environment() -> BTreeMap<String, String> {
    [
        (
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        ),
        ("HOME", "/root"),
        ("LANG", "C.UTF-8"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into()
}

fn timeout(seconds: Option<f64>) -> Result<Duration> {
    let seconds = seconds.unwrap_or(DEFAULT_TIMEOUT_SECONDS);
    if !(seconds > 0.0 && seconds <= MAX_TIMEOUT_SECONDS) {
        return Err(EngineError::invalid(format!(
            "`timeout_seconds` is {seconds}; it must be more than 0 and at most {MAX_TIMEOUT_SECONDS}"
        )));
    }
    Ok(Duration::from_secs_f64(seconds))
}

pub(super) fn check_exec_id(name: &str) -> Result<&str> {
    let is_printable = |c: u8| c.is_ascii_graphic();
    if (1..=100).contains(&name.len()) && name.bytes().all(is_printable) {
        return Ok(name);
    }
    Err(EngineError::invalid(format!(
        "{} is not a valid `exec_id`; use 1 to 100 printable characters without spaces",
        quoted(name)
    )))
}

/// The exit code as a shell reports it.
pub(super) fn exit_code(ended: ExitStatus) -> i32 {
    match ended {
        ExitStatus::Code(code) => code,
        ExitStatus::Signal(signal) => 128 + signal,
    }
}

fn output(prepared: &PreparedCommand, finished: Finished, duration: Duration) -> Output {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Output {
        project_id: prepared.project_id,
        workspace_id: Some(prepared.workspace.clone()),
        exit_code: finished.ended.map(exit_code),
        stdout: text(finished.stdout),
        stderr: text(finished.stderr),
        truncated: finished.truncated,
        timed_out: finished.timed_out,
        duration_ms: milliseconds(duration),
        running: None,
        offsets: None,
    }
}

pub(super) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
