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

use super::dialogue::{self, Offsets, Talk};
use super::link::Link;
use super::process::{self, Command, Failed, Finished};
use super::{Containers, InUse, NAMED, Place, Turn, UNNAMED, lock};
use crate::operations::{Effect, Face, Operation, Reach};
use crate::workspaces::Choice;
use crate::{Actor, Call, Engine, EngineError, Result};

const LONGEST: f64 = 86_400.0;
/// For commands of our own.
const OWN: Duration = Duration::from_secs(300);
/// Attempts at a command whose container is stopped each time before the command reaches it.
pub(super) const ATTEMPTS: usize = 5;

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// The project, as `project_list` shows it.
    pub(super) project_id: ProjectId,
    /// A string that the shell runs, or a list of the program and its arguments. Only a call that
    /// goes on with a dialogue has none.
    pub(super) command: Option<Line>,
    /// The workspace to run it in; the default one if absent.
    pub(super) workspace_id: Option<WorkspaceId>,
    /// Whether a workspace that does not exist is made.
    pub(super) create_workspace: Option<bool>,
    /// Environment variables besides the project's own, `{"NAME": "value"}`. Never shown again.
    env: Option<BTreeMap<String, Secret>>,
    /// What the command reads on its standard input.
    pub(super) stdin: Option<String>,
    /// Seconds until the command is ended with everything it started (50 if absent).
    pub(super) timeout_seconds: Option<f64>,
    /// A name of the caller's choosing: a repeated call with the same name joins the first instead
    /// of running the command again.
    pub(super) exec_id: Option<String>,
    #[serde(flatten)]
    pub(super) talk: Talk,
}

/// A command as a caller writes it.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a string or a list of strings")]
pub(super) enum Line {
    Shell(String),
    Program(Vec<String>),
}

impl JsonSchema for Line {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Line".into()
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
    /// Null if the command was ended because its time was over, and while it runs.
    pub(super) exit_code: Option<i32>,
    pub(super) stdout: String,
    pub(super) stderr: String,
    /// Whether a stream was longer than 1 MiB and the rest is not here.
    pub(super) truncated: bool,
    pub(super) timed_out: bool,
    pub(super) duration_ms: u64,
    /// In a dialogue: whether the command runs or has more to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) running: Option<bool>,
    /// In a dialogue: where the next call goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) offsets: Option<Offsets>,
}

#[derive(Debug)]
pub(crate) struct Exec;

impl Operation for Exec {
    const NAME: &'static str = "container_exec";
    const ABOUT: &'static str = "Run a command in a project's container and return its output and exit code. A string is \
         run by the shell, a list as it is. The container is started if it does not run. A command \
         that takes longer than `timeout_seconds` is ended with everything it started, and the \
         result holds what it had said. With `wait_seconds` and `exec_id` it becomes a dialogue: \
         each call returns as soon as the command has said something, the command goes on, and \
         the next call with the same `exec_id` and the `offsets` of the last result brings it \
         input or waits for more.";
    const ACCESS: Access = Access::Project(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Destroys;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach::project(params.project_id)
    }

    async fn run(engine: &Engine, actor: &Actor, params: Params, call: Call) -> Result<Output> {
        let project = engine.store().get(params.project_id).await?;
        let project = project.ok_or_else(|| EngineError::project_not_found(params.project_id))?;
        if params.talk.is_wanted()? {
            return dialogue::step(engine, actor, &project, params, &call).await;
        }
        let timeout = timeout(params.timeout_seconds)?;
        match params.exec_id.clone() {
            Some(name) => named(engine, &project, exec_name(&name)?, params, timeout, &call).await,
            None => unnamed(engine, &project, params, timeout, &call).await,
        }
    }
}

async fn unnamed(
    engine: &Engine,
    project: &Project,
    params: Params,
    timeout: Duration,
    call: &Call,
) -> Result<Output> {
    let id = format!("{UNNAMED}{}", Uuid::new_v4());
    let ready = prepare(engine, project, params, id, call).await?;
    let (container, command) = (&ready.container, &ready.command);
    let mut attempts = ATTEMPTS;
    let (finished, took) = loop {
        let (_, link, _) = engine.ensure_container(project, &ready.workspace).await?;
        // Before it begins: what it does is not undone by a crash, so neither is the entry.
        if let Some(entry) = call.audit() {
            engine.store().append_audit(vec![entry]).await?;
        }
        let started = Instant::now();
        let containers = engine.containers();
        let wanted = call.cancelled();
        let ran = process::run(containers, container, link, command, timeout, wanted).await;
        match ran {
            Err(Failed::Unsaid) if attempts > 1 => attempts -= 1,
            ran => break (ran?, started.elapsed()),
        }
    };
    process::forget(engine.containers(), container, &command.process_id).await;
    match finished.unwanted {
        true => Err(EngineError::Cancelled),
        false => Ok(output(&ready, finished, took)),
    }
}

/// Runs a command that its caller named, or joins the one that has the name. One call at a time: the
/// others wait and find its result.
async fn named(
    engine: &Engine,
    project: &Project,
    name: &str,
    params: Params,
    timeout: Duration,
    call: &Call,
) -> Result<Output> {
    let turn = NamedTurn::of(engine, project.id, name);
    let _turn = turn.turn.lock().await;
    let id = format!("{NAMED}{name}");
    let ready = prepare(engine, project, params, id, call).await?;
    let (container, command) = (&ready.container, &ready.command);
    let mut attempts = ATTEMPTS;
    let (finished, took) = loop {
        let (_, link, _) = engine.ensure_container(project, &ready.workspace).await?;
        if let Some(output) = join(engine, project.id, name, link.boot_id(), call).await? {
            return Ok(output);
        }
        let started = Instant::now();
        let containers = engine.containers();
        // It can be joined again, so its caller may leave.
        let nobody = std::future::pending();
        let ran = process::run(containers, container, link, command, timeout, nobody).await;
        if let Err(Failed::Unsaid | Failed::Refused(_)) = ran {
            // It never ran, so nobody must be told that its outcome is unknown.
            engine.store().forget_exec(project.id, name).await?;
        }
        match ran {
            Err(Failed::Unsaid) if attempts > 1 => attempts -= 1,
            ran => break (ran?, started.elapsed()),
        }
    };
    let output = output(&ready, finished, took);
    let result = serde_json::to_string(&output).map_err(EngineError::fault)?;
    engine.store().end_exec(project.id, name, &result).await?;
    // Only now: until the result is stored, the supervisor is the one who knows it.
    process::forget(engine.containers(), container, &command.process_id).await;
    Ok(output)
}

/// The turn of a named command, let go by the last who waits for it.
struct NamedTurn {
    containers: Arc<Containers>,
    key: (ProjectId, String),
    turn: Turn,
}

impl NamedTurn {
    fn of(engine: &Engine, project: ProjectId, name: &str) -> Self {
        let containers = engine.containers().clone();
        let key = (project, name.to_owned());
        let turn = lock(&containers.named)
            .entry(key.clone())
            .or_default()
            .clone();
        Self {
            containers,
            key,
            turn,
        }
    }
}

impl Drop for NamedTurn {
    fn drop(&mut self) {
        let mut turns = lock(&self.containers.named);
        // This one, and that of the map.
        if Arc::strong_count(&self.turn) <= 2 {
            turns.remove(&self.key);
        }
    }
}

/// What is run and where; its container is not stopped as idle meanwhile.
#[derive(Debug)]
pub(super) struct Ready {
    project_id: ProjectId,
    pub(super) workspace: WorkspaceId,
    pub(super) command: Command,
    pub(super) container: ContainerId,
    _use: InUse,
}

/// Finds or makes the workspace, and says what is run in it.
pub(super) async fn prepare(
    engine: &Engine,
    project: &Project,
    params: Params,
    process_id: String,
    call: &Call,
) -> Result<Ready> {
    let choice = Choice {
        workspace_id: params.workspace_id.clone(),
        create_workspace: params.create_workspace.unwrap_or(false),
    };
    let workspace = engine.choose_workspace(project.id, &choice, call).await?.id;
    let command = command(project, params, &workspace, process_id)?;
    let container = Place::of(project, &workspace).container();
    let in_use = engine.containers().using(&container);
    Ok(Ready {
        project_id: project.id,
        workspace,
        command,
        container,
        _use: in_use,
    })
}

/// What a command of our own came to, with what it said.
#[derive(Debug)]
pub(crate) enum Inside {
    Done(String),
    Failed(String),
}

impl Engine {
    /// Runs a command of our own in a container.
    pub(crate) async fn run_inside(
        &self,
        container: &ContainerId,
        link: Arc<Link>,
        argv: Vec<String>,
        stdin: Vec<u8>,
    ) -> Result<Inside> {
        let command = Command {
            process_id: format!("{UNNAMED}{}", Uuid::new_v4()),
            argv,
            env: usual_environment(),
            cwd: "/".to_owned(),
            stdin,
        };
        let _use = self.containers().using(container);
        let containers = self.containers();
        let nobody = std::future::pending();
        let finished = process::run(containers, container, link, &command, OWN, nobody).await?;
        process::forget(containers, container, &command.process_id).await;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        Ok(match finished.ended == Some(ExitStatus::Code(0)) {
            true => Inside::Done(text(&finished.stdout)),
            false => Inside::Failed(text(&finished.stderr)),
        })
    }
}

/// What a command of this name came to, if it has; an error if nobody can know.
pub(super) async fn join(
    engine: &Engine,
    project_id: ProjectId,
    name: &str,
    boot_id: &str,
    call: &Call,
) -> Result<Option<Output>> {
    let begun = store::Exec {
        project_id,
        exec_id: name.to_owned(),
        boot_id: boot_id.to_owned(),
        started_at: engine.now(),
        result: None,
    };
    let Some(known) = engine.store().begin_exec(&begun, call.audit()).await? else {
        return Ok(None);
    };
    match known.result {
        Some(result) => serde_json::from_str(&result)
            .map(Some)
            .map_err(EngineError::fault),
        None if known.boot_id == boot_id => Ok(None),
        None => Err(EngineError::Failed(format!(
            "the container ended while {} ran, so its outcome is unknown: look before you repeat \
             it under another name",
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
    let line = params.command.ok_or_else(|| {
        EngineError::invalid(
            "missing parameter `command`: a string that the shell runs, or a list of the program \
             and its arguments",
        )
    })?;
    let argv = match line {
        Line::Shell(text) => vec!["/bin/sh".to_owned(), "-c".to_owned(), text],
        Line::Program(argv) if argv.is_empty() => {
            return Err(EngineError::invalid("`command` is an empty list"));
        }
        Line::Program(argv) => argv,
    };
    if argv.iter().any(|argument| argument.contains('\0')) {
        return Err(EngineError::invalid("`command` contains a NUL character"));
    }
    let mut env = usual_environment();
    let given = params.env.unwrap_or_default();
    for (name, value) in project.settings.env.iter().chain(&given) {
        if name.is_empty() || name.contains(['=', '\0']) || value.reveal().contains('\0') {
            return Err(EngineError::invalid(format!(
                "`env`: {} is not a usable variable",
                quoted(name)
            )));
        }
        env.insert(name.clone(), value.reveal().to_owned());
    }
    Ok(Command {
        process_id,
        argv,
        env,
        cwd: crate::workspaces::path_in_container(workspace),
        stdin: params.stdin.unwrap_or_default().into_bytes(),
    })
}

pub(crate) fn usual_environment() -> BTreeMap<String, String> {
    let usual = [
        (
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        ),
        ("HOME", "/root"),
        ("LANG", "C.UTF-8"),
    ];
    usual
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
}

fn timeout(seconds: Option<f64>) -> Result<Duration> {
    let seconds = seconds.unwrap_or(50.0);
    if !(seconds > 0.0 && seconds <= LONGEST) {
        return Err(EngineError::invalid(format!(
            "`timeout_seconds` is {seconds}; it must be more than 0 and at most {LONGEST}"
        )));
    }
    Ok(Duration::from_secs_f64(seconds))
}

pub(super) fn exec_name(name: &str) -> Result<&str> {
    let plain = |c: u8| c.is_ascii_graphic();
    if (1..=100).contains(&name.len()) && name.bytes().all(plain) {
        return Ok(name);
    }
    Err(EngineError::invalid(format!(
        "{} is not an `exec_id`; use 1 to 100 printable characters without spaces",
        quoted(name)
    )))
}

/// The number that stands for an end, as a shell would say it.
pub(super) fn exit_code(ended: ExitStatus) -> i32 {
    match ended {
        ExitStatus::Code(code) => code,
        ExitStatus::Signal(signal) => 128 + signal,
    }
}

fn output(ready: &Ready, finished: Finished, duration: Duration) -> Output {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Output {
        project_id: ready.project_id,
        workspace_id: Some(ready.workspace.clone()),
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
