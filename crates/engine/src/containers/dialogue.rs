//! Commands that are talked to, call by call: a terminal, for one.
//!
//! Nothing of a dialogue lives only here. The supervisor keeps what the command says, by offsets;
//! a call names the offset from which it wants more, which is also the word that everything before
//! it has arrived. So a lost answer is asked for again, and a new server goes on where the last was.

mod attendance;
mod round;
mod talk;
mod voice;

use std::time::{Duration, Instant};

use oubliette_model::{ProjectId, WorkspaceId, quoted};
use oubliette_runtime::ContainerId;
use oubliette_store::Project;
use oubliette_wire::{ExitStatus, ProcessFaultKind, Start, supervisor_methods};

use super::exec::{self, ATTEMPTS, Output, Params, exec_name};
use super::link::LinkError;
use super::process::{Command, Failed};
use super::{Containers, DIALOGUE, Place};
use crate::{Actor, Call, Engine, EngineError, Result};

pub(super) use attendance::Dialogues;
use round::{Halt, Heard};
use talk::Step;
pub(crate) use talk::{Offsets, Talk};
use voice::Voice;

/// What the supervisor keeps of each stream until a caller has it; past it the command waits.
const SPOOL: u64 = 1 << 20;
/// A supervisor whose connection broke comes back within this time, or its container has ended.
const PATIENCE: Duration = Duration::from_secs(10);
/// Before another try on a connection that may be as bad as the last.
const PAUSE: Duration = Duration::from_millis(20);
/// One command that is talked to.
#[derive(Debug)]
struct Partner<'a> {
    engine: &'a Engine,
    project_id: ProjectId,
    workspace: WorkspaceId,
    container: ContainerId,
    /// Its name at the supervisor and in the store.
    process_id: String,
    name: String,
}

/// What a call can tell.
#[derive(Debug)]
enum Told {
    New(Heard),
    /// It has ended, and its end was stored.
    Known(Box<Output>),
}

/// One call of a dialogue: starts the command if it says which, brings it input, and waits until it
/// says something new.
pub(super) async fn step(
    engine: &Engine,
    actor: &Actor,
    project: &Project,
    mut params: Params,
    call: &Call,
) -> Result<Output> {
    let started = Instant::now();
    let mut step = Step::of(&mut params)?;
    let name = exec_name(&step.exec_id)?.to_owned();
    let begins = params.command.is_some();
    let process_id = format!("{DIALOGUE}{name}");
    let workspace = params.workspace_id.clone();
    let workspace = workspace.unwrap_or_else(WorkspaceId::default_one);
    let mut partner = Partner {
        engine,
        project_id: project.id,
        container: Place::of(project, &workspace).container(),
        workspace,
        process_id,
        name,
    };
    engine.containers().dialogues.hear_of(&partner);
    if begins {
        let id = partner.process_id.clone();
        let ready = exec::prepare(engine, project, params, id, call).await?;
        partner.workspace = ready.workspace.clone();
        partner.container = ready.container.clone();
        let begun = partner.begin(project, &ready.command, &step, call).await?;
        if let Some(ended) = begun {
            return Ok(ended);
        }
        step.size = None;
    }
    // A waiting call ends with its caller, its key and its server.
    let outcome = tokio::select! {
        outcome = partner.converse(&mut step) => outcome,
        () = call.cancelled() => Err(EngineError::Cancelled),
        () = engine.token_ended(actor.token_id) => {
            Err(EngineError::Failed("the API key has ended".to_owned()))
        }
        () = engine.draining() => Ok(Told::New(Heard::default())),
    };
    let told = outcome?;
    // One call per keystroke: the log says once a minute that the dialogue goes on.
    if !begins
        && let Some(entry) = call.audit()
        && engine.containers().dialogues.is_due(&partner)
    {
        engine.audit_log().note(entry).await;
    }
    match told {
        Told::Known(output) => Ok(*output),
        Told::New(heard) if heard.ended.is_some() => partner.conclude(&step, heard, started).await,
        Told::New(heard) => Ok(partner.output(&step, heard, started)),
    }
}

impl Partner<'_> {
    fn containers(&self) -> &Containers {
        self.engine.containers()
    }

    /// Starts the command, or finds that it runs; its result if it has ended already.
    async fn begin(
        &self,
        project: &Project,
        command: &Command,
        step: &Step,
        call: &Call,
    ) -> Result<Option<Output>> {
        let start = self.start(command, step);
        let mut attempts = ATTEMPTS;
        let mut is_said = false;
        let (code, why) = loop {
            attempts -= 1;
            let (_, link, _) = self
                .engine
                .ensure_container(project, &self.workspace)
                .await?;
            let (id, boot) = (&self.process_id, link.boot_id());
            if let Some(ended) = exec::join(self.engine, self.project_id, id, boot, call).await? {
                return Ok(Some(ended));
            }
            self.engine.attend(self, boot)?;
            match link.ask(supervisor_methods::START, &start).await {
                Ok(_) => return Ok(None),
                Err(LinkError::Told {
                    kind: ProcessFaultKind::NotFound,
                    why,
                }) => break (127, why),
                Err(LinkError::Told {
                    kind: ProcessFaultKind::Denied,
                    why,
                }) => break (126, why),
                // The next round starts it again, which is the same start if it was heard.
                Err(LinkError::Lost) => is_said = true,
                Err(
                    LinkError::Unsaid
                    | LinkError::Told {
                        kind: ProcessFaultKind::Stopping,
                        ..
                    },
                ) => {
                    if !is_said {
                        self.disclaim().await?;
                    }
                    if attempts == 0 {
                        return Err(Failed::Unsaid.into());
                    }
                }
                Err(LinkError::Told { why, .. }) => {
                    self.disclaim().await?;
                    return Err(EngineError::Failed(why));
                }
            }
            if attempts == 0 {
                return Err(super::unreachable_container());
            }
            tokio::time::sleep(PAUSE).await;
        };
        let heard = Heard {
            ended: Some(ExitStatus::Code(code)),
            ..Heard::default()
        };
        let mut output = self.output(step, heard, Instant::now());
        output.stderr = step.encode(format!("{why}\n").as_bytes());
        self.remember(&output).await?;
        Ok(Some(output))
    }

    fn start(&self, command: &Command, step: &Step) -> Start {
        let mut env = command.env.clone();
        if step.size.is_some() {
            env.entry("TERM".to_owned())
                .or_insert_with(|| "xterm".to_owned());
        }
        Start {
            process_id: self.process_id.clone(),
            argv: command.argv.clone(),
            env,
            cwd: command.cwd.clone(),
            user: None,
            pty: step.size,
            spool_limit: SPOOL,
            streams: Vec::new(),
        }
    }

    /// It never ran, so nobody must be told that its outcome is unknown.
    async fn disclaim(&self) -> Result<()> {
        self.containers().dialogues.finish(self);
        let store = self.engine.store();
        Ok(store.forget_exec(self.project_id, &self.process_id).await?)
    }

    /// Brings and takes, through any loss of the connection, until there is something to tell.
    async fn converse(&self, step: &mut Step) -> Result<Told> {
        let begun = tokio::time::Instant::now();
        let mut link = match self.containers().link(&self.container, PATIENCE).await {
            Ok(link) => link,
            Err(error) => return self.recall(Some(error)).await,
        };
        loop {
            match self.round(&link, step, begun).await {
                Ok(heard) => return Ok(Told::New(heard)),
                Err(Halt::Failed(error)) => return Err(error),
                Err(Halt::Gone) => return self.recall(None).await,
                Err(Halt::Lost) => tokio::time::sleep(PAUSE).await,
            }
            link = match self.containers().relink(&self.container, &link).await {
                Ok(link) => link,
                Err(error) => return self.recall(Some(error)).await,
            };
        }
    }

    /// What is known of a command that the supervisor does not have.
    async fn recall(&self, otherwise: Option<EngineError>) -> Result<Told> {
        let Some(known) = self
            .engine
            .store()
            .exec(self.project_id, &self.process_id)
            .await?
        else {
            return Err(EngineError::NotFound {
                what: "command",
                id: self.name.clone(),
                hint: "a call with `command` starts it",
            });
        };
        match known.result {
            Some(result) => serde_json::from_str(&result)
                .map(|output| Told::Known(Box::new(output)))
                .map_err(EngineError::fault),
            None => Err(otherwise.unwrap_or_else(|| {
                EngineError::Failed(format!(
                    "the container ended while {} ran",
                    quoted(&self.name)
                ))
            })),
        }
    }

    fn output(&self, step: &Step, heard: Heard, started: Instant) -> Output {
        let ended = heard.ended;
        let truncated = [&heard.stdout, &heard.stderr]
            .into_iter()
            .flatten()
            .any(Voice::missed_something);
        let mut offsets = step.offsets;
        offsets.stdin = heard.stdin.or(step.offsets.stdin);
        let text = |voice: Option<Voice>, offset: &mut Option<u64>| match voice {
            Some(voice) => {
                let (text, next) = step.render(voice.into_parts(), ended.is_some());
                *offset = Some(next);
                text
            }
            None => String::new(),
        };
        Output {
            project_id: self.project_id,
            workspace_id: Some(self.workspace.clone()),
            exit_code: ended.map(exec::exit_code),
            stdout: text(heard.stdout, &mut offsets.stdout),
            stderr: text(heard.stderr, &mut offsets.stderr),
            truncated,
            timed_out: false,
            duration_ms: exec::milliseconds(started.elapsed()),
            running: Some(ended.is_none()),
            offsets: Some(offsets),
        }
    }

    /// Stores how it ended, so that the answer can be asked for again, and lets go of it.
    async fn conclude(&self, step: &Step, heard: Heard, started: Instant) -> Result<Output> {
        let output = self.output(step, heard, started);
        self.remember(&output).await?;
        if let Ok(link) = self
            .containers()
            .link(&self.container, Duration::ZERO)
            .await
        {
            link.forget(&self.process_id).await;
        }
        Ok(output)
    }

    async fn remember(&self, output: &Output) -> Result<()> {
        let result = serde_json::to_string(output).map_err(EngineError::fault)?;
        let store = self.engine.store();
        store
            .end_exec(self.project_id, &self.process_id, &result)
            .await?;
        self.containers().dialogues.finish(self);
        Ok(())
    }
}
