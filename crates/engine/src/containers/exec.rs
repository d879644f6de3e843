//! `container_exec`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use oubliette_model::{
    Access, EnvValue, Mode, OutputStream, ProjectId, ResourceUri, WorkspaceId, quoted,
};
use oubliette_runtime::ContainerId;
use oubliette_store::Project;
use oubliette_wire::ExitStatus;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::command::{self, AwaitedGuard, Command, Finished, MAX_COMMAND_SPOOL_BYTES};
use super::disk::DiskUse;
use super::git_config::GIT_CONFIG_PATH;
use super::interactive::{self, InteractiveParams, Offsets};
use super::memory::describe_kills;
use super::named_command::run_named;
use super::process::{ProcessError, ProcessSpec};
use super::unattended::UnnamedId;
use super::{ContainerScope, ContainerState, InUseGuard};
use crate::long_text::head_and_tail;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::workspaces::WorkspaceChoice;
use crate::{Actor, Call, Engine, EngineError, Result};

const DEFAULT_TIMEOUT_SECONDS: f64 = 50.0;
pub(super) const MAX_TIMEOUT_SECONDS: f64 = 86_400.0;
/// What the names begin with that results of commands without a name get.
const KEPT_RESULT_PREFIX: &str = "output-";
/// How often a command is tried whose container is stopped each time before the command starts.
pub(super) const MAX_START_ATTEMPTS: usize = 5;

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// Project name or id.
    pub(super) project_id: ProjectId,
    /// Text for the shell, or a list: program and arguments.
    ///
    /// Omit it only to continue an interactive command, or to join the command that has the `exec_id`.
    pub(super) command: Option<CommandLine>,
    /// Workspace id.
    ///
    /// Default: `default`.
    pub(super) workspace_id: Option<WorkspaceId>,
    /// Create the workspace if missing.
    pub(super) create_workspace: Option<bool>,
    /// More variables, `{NAME: value}`.
    ///
    /// In addition to the project's. Never shown again.
    #[serde(default, deserialize_with = "oubliette_model::parse_optional_env")]
    env: Option<BTreeMap<String, EnvValue>>,
    /// Input of the command.
    pub(super) stdin: Option<String>,
    /// Until it is killed (50).
    ///
    /// With every process it started.
    pub(super) timeout_seconds: Option<f64>,
    /// Your name for the command.
    ///
    /// A repeated call with the same name joins the first one instead of running the command again. The same
    /// name with another `command` or `stdin` is an error.
    pub(super) exec_id: Option<String>,
    /// Whole output, up to 1 MiB; long output is shortened otherwise.
    #[schemars(extend("x-unlisted" = true))]
    full: Option<bool>,
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
        schemars::json_schema!({ "anyOf": [
            { "type": "string" },
            { "type": "array", "items": { "type": "string" } },
        ] })
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
    /// Where the whole output is, if it was shortened in the middle: that of `stdout`, or of `stderr` if
    /// only that was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) rest_uri: Option<String>,
    /// Where the whole `stderr` is, if both were shortened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) stderr_rest_uri: Option<String>,
    /// True if an earlier call with the same `exec_id` started the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) joined: Option<bool>,
    /// When the command was started that this call joined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) started_at: Option<String>,
    /// A limit of the project that ended processes of the container meanwhile, and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) limit_reached: Option<String>,
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
    const ABOUT: &'static str = "Run a command; returns exit code and output. With `exec_id` and `wait_seconds` it is \
         interactive: each call sends `stdin` and returns new output.\n\n\
         A repeated call with the same `exec_id` joins the command. A string is run by the shell, a list \
         as a program with arguments. The container is started if it does not run. The command runs on if \
         the server is restarted; one without `exec_id` then has its output in `container_logs`. A \
         command that takes longer than `timeout_seconds` is killed with every process it started, and \
         the result has its output until then. Long output is shortened in the middle; `rest_uri` is all \
         of it. Of an interactive command, each call returns as soon as there is new output, and the next \
         call has the same `exec_id` and the `offsets` of the last result.";
    const ACCESS: Access = Access::Project(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Runs;
    const OPEN_WORLD: bool = true;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach::project(params.project_id)
    }

    async fn run(engine: &Engine, actor: &Actor, params: Params, call: Call) -> Result<Output> {
        let project = engine.project(params.project_id).await?;
        if params.command.is_some() {
            engine
                .containers()
                .require_disk_space(&project, DiskUse::Command)
                .await?;
        }
        if params.interactive.is_requested()? {
            return interactive::run_call(engine, actor, &project, params, &call).await;
        }
        let timeout = timeout(params.timeout_seconds)?;
        let is_full = params.full == Some(true);
        let name = params.exec_id.clone();
        let output = match name.as_deref() {
            Some(name) => {
                let name = check_exec_id(name)?;
                run_named(engine, &project, name, params, timeout, &call).await?
            }
            None => run_unnamed(engine, &project, params, timeout, &call).await?,
        };
        if is_full {
            return Ok(output);
        }
        shorten(engine, output, name).await
    }
}

/// Leaves out the middle of long output. All of it is kept, as the result of a command with a name.
async fn shorten(engine: &Engine, output: Output, name: Option<String>) -> Result<Output> {
    let short_stdout = head_and_tail(&output.stdout);
    let short_stderr = head_and_tail(&output.stderr);
    if short_stdout.is_none() && short_stderr.is_none() {
        return Ok(output);
    }
    let exec_id = match name {
        Some(name) => name,
        None => keep_result(engine, &output).await?,
    };
    let uri_of = |stream: OutputStream| {
        let uri = ResourceUri::CommandOutput {
            project: output.project_id,
            exec_id: exec_id.clone(),
            stream,
        };
        uri.to_string()
    };
    let stdout_uri = short_stdout.is_some().then(|| uri_of(OutputStream::Stdout));
    let stderr_uri = short_stderr.is_some().then(|| uri_of(OutputStream::Stderr));
    let (rest_uri, stderr_rest_uri) = match stdout_uri {
        Some(uri) => (Some(uri), stderr_uri),
        None => (stderr_uri, None),
    };
    Ok(Output {
        stdout: short_stdout.unwrap_or(output.stdout),
        stderr: short_stderr.unwrap_or(output.stderr),
        rest_uri,
        stderr_rest_uri,
        ..output
    })
}

/// Stores the result of a command without a name, and returns a name for it.
async fn keep_result(engine: &Engine, output: &Output) -> Result<String> {
    let exec_id = format!("{KEPT_RESULT_PREFIX}{}", Uuid::new_v4());
    let exec = oubliette_store::Exec {
        project_id: output.project_id,
        exec_id: exec_id.clone(),
        boot_id: String::new(),
        started_at: engine.now(),
        command_hash: None,
        result: None,
    };
    let result = serde_json::to_string(output).map_err(EngineError::fault)?;
    let store = engine.store();
    store.add_exec(&exec, None).await?;
    store
        .set_exec_result(output.project_id, &exec_id, &result)
        .await?;
    Ok(exec_id)
}

async fn run_unnamed(
    engine: &Engine,
    project: &Project,
    params: Params,
    timeout: Duration,
    call: &Call,
) -> Result<Output> {
    let mut prepared = prepare(engine, project, params, String::new(), call).await?;
    // The id tells the next server what it must know if this one dies.
    let input_bytes = prepared.command.stdin.len() as u64;
    let id = UnnamedId::new(engine.now(), timeout, input_bytes);
    prepared.command.process.process_id = id.to_string();
    let state = engine.container_state();
    let command = &prepared.command;
    let _awaited = AwaitedGuard::new(state, &command.process.process_id);
    let mut attempts = MAX_START_ATTEMPTS;
    let (finished, duration) = loop {
        let containers = engine.containers();
        let container = containers
            .ensure_with_progress(project, &prepared.workspace, call)
            .await?;
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

/// A command with its container, which is in use meanwhile.
#[derive(Debug)]
pub(super) struct PreparedCommand {
    project_id: ProjectId,
    pub(super) workspace: WorkspaceId,
    pub(super) command: Command,
    pub(super) container: ContainerId,
    memory_mb: u32,
    _in_use: InUseGuard,
}

impl PreparedCommand {
    pub(super) async fn forget_process(&self, state: &ContainerState) {
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
        ..WorkspaceChoice::default()
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
        memory_mb: engine.containers().memory_mb(project),
        _in_use: in_use,
    })
}

fn command(
    project: &Project,
    params: Params,
    workspace: &WorkspaceId,
    process_id: String,
) -> Result<Command> {
    let argv = match params.command {
        // It finds the command that has the name, and starts none.
        None if params.exec_id.is_some() => Vec::new(),
        None => {
            return Err(EngineError::invalid(
                "missing parameter `command`: a string that the shell runs, or a list of the program \
                 and its arguments",
            ));
        }
        Some(CommandLine::Shell(text)) => vec!["/bin/sh".to_owned(), "-c".to_owned(), text],
        Some(CommandLine::Program(argv)) if argv.is_empty() => {
            return Err(EngineError::invalid("`command` is an empty list"));
        }
        Some(CommandLine::Program(argv)) => argv,
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
            isolated: false,
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
        ("GIT_CONFIG_SYSTEM", GIT_CONFIG_PATH),
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

pub(super) fn output(prepared: &PreparedCommand, finished: Finished, duration: Duration) -> Output {
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
        rest_uri: None,
        stderr_rest_uri: None,
        joined: None,
        started_at: None,
        limit_reached: finished
            .stop_reason
            .map(|reason| format!("the server stopped the container: {reason}"))
            .or_else(|| describe_kills(finished.memory_kills, prepared.memory_mb)),
        running: None,
        offsets: None,
    }
}

pub(super) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
