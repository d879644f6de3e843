//! One run of a schedule, from its beginning to its end.
//!
//! It is a call of `session_spawn` or `session_message` by the token that the schedule belongs to, as
//! that is at this moment, on the one path of every call. What the call makes is noted with the run in
//! the same transaction, so that a run that is taken up again does not ask twice.

use std::time::Duration;

use oubliette_model::{Event, RunId, RunStatus, SessionBehavior, SessionId, Status, StopReason};
use oubliette_store::{
    CallTurn, Finished, Logged, Run, RunFilter, RunMark, Schedule, Session, Target, Wanted,
};
use serde_json::{Map, Value, json};

use crate::{Actor, Call, Engine, EngineError, Result, agents};

/// What is kept of an agent's final text, and of why it failed.
const LONGEST_OUTPUT: usize = 8 << 10;
const LONGEST_ERROR: usize = 2 << 10;
/// After so many failures in a row a schedule is disabled.
const MOST_FAILURES: u32 = 5;
/// How soon, and how seldom in the end, a store is asked again that could not answer.
const PAUSE: Duration = Duration::from_secs(1);
const SELDOM: Duration = Duration::from_secs(60);

/// How a run ended.
struct Outcome {
    status: RunStatus,
    output: Option<String>,
    truncated: bool,
    error: Option<String>,
    /// What is wanted of its session.
    wanted: Option<Wanted>,
}

impl Outcome {
    fn failed(why: impl Into<String>) -> Self {
        Self {
            status: RunStatus::Failed,
            output: None,
            truncated: false,
            error: Some(why.into()),
            wanted: None,
        }
    }
}

impl Engine {
    /// Goes on with a run until its end is recorded, however often the store has to be asked.
    pub(super) async fn see_run_through(&self, run: Run) {
        let mut pause = PAUSE;
        while let Err(error) = self.try_run(&run).await {
            tracing::warn!(run = %run.id, %error, "a run of a schedule could not go on yet");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(SELDOM);
        }
    }

    /// Records that a run failed for a reason that nobody can do something about.
    pub(super) async fn give_up_run(&self, id: RunId) {
        let outcome = Outcome::failed("an internal fault; the server's log has the details");
        if let Err(error) = self.finish(id, outcome).await {
            tracing::error!(run = %id, %error, "the end of a run could not be recorded");
        }
    }

    async fn try_run(&self, run: &Run) -> Result<()> {
        let Some(schedule) = self.store().schedule(run.schedule_id).await? else {
            return Ok(());
        };
        let outcome = tokio::select! {
            outcome = self.outcome(run, &schedule) => outcome?,
            () = self.too_late(run) => Some(self.overdue(&schedule)),
            () = self.run_gone(run.id) => return Ok(()),
        };
        let Some(mut outcome) = outcome else {
            return Ok(());
        };
        if schedule.session_behavior == SessionBehavior::New {
            // Nobody goes on with it; a message would resume it.
            outcome.wanted = Some(Wanted::End);
        }
        self.finish(run.id, outcome).await
    }

    /// What comes of a run; none if it is gone.
    async fn outcome(&self, run: &Run, schedule: &Schedule) -> Result<Option<Outcome>> {
        let before = self.store().run(run.id).await?;
        if before.is_some_and(|run| run.session_id.is_none())
            && let Err(error) = Box::pin(self.deliver_run(run, schedule)).await
        {
            // It may have come so far that there is something to follow.
            let after = self.store().run(run.id).await?;
            if after.is_some_and(|run| run.session_id.is_none()) {
                return Ok(Some(Outcome::failed(error.to_string())));
            }
        }
        self.follow_run(run.id).await
    }

    /// Gives the prompt to the session it is for.
    async fn deliver_run(&self, run: &Run, schedule: &Schedule) -> Result<()> {
        let actor = self.authority(schedule).await?;
        let place = |target: &&Target| {
            target.project_id == run.project_id && target.workspace_id == run.workspace_id
        };
        let Some(target) = schedule.targets.iter().find(place) else {
            return Err(EngineError::invalid(
                "the target was taken from the schedule before the run began",
            ));
        };
        let pin = schedule.session_behavior == SessionBehavior::Resume;
        let mut note = None;
        if pin && let Some(id) = target.session_id {
            match self.hindrance(id, run).await? {
                None => {
                    let mark = RunMark {
                        run: run.id,
                        pin,
                        note: None,
                    };
                    let ask = json!({ "session_id": id, "prompt": schedule.prompt });
                    match self.call_for(&actor, "session_message", ask, mark).await {
                        Err(EngineError::NotFound { .. }) => {
                            note = Some(replaced(id, "was deleted"));
                        }
                        other => return other,
                    }
                }
                Some(why) => note = Some(replaced(id, &why)),
            }
        }
        let mark = RunMark {
            run: run.id,
            pin,
            note,
        };
        let mut ask = json!({
            "project_id": run.project_id,
            "prompt": schedule.prompt,
            "new_session": true,
            "source": format!("schedule {}", schedule.id),
        });
        if let Some(workspace) = &run.workspace_id {
            ask["workspace_id"] = json!(workspace);
        }
        self.call_for(&actor, "session_spawn", ask, mark).await
    }

    /// Calls an operation for a run, like any caller.
    async fn call_for(&self, actor: &Actor, name: &str, ask: Value, mark: RunMark) -> Result<()> {
        let parameters = match ask {
            Value::Object(parameters) => parameters,
            _ => Map::new(),
        };
        let call = Call::new().for_run(mark);
        match self.call(actor, name, parameters, call).await {
            Ok(_) => Ok(()),
            Err(EngineError::Refused { .. }) => Err(EngineError::invalid(
                "the token that the schedule acts with may not write to this project; \
                 `schedule_update` with one that may makes that one the schedule's",
            )),
            Err(error) => Err(error),
        }
    }

    /// Who a run acts for: the schedule's token, as it is now. What an agent made is held to what holds
    /// for the agent, and ends with it.
    async fn authority(&self, schedule: &Schedule) -> Result<Actor> {
        let ended = |what: &str| {
            EngineError::invalid(format!(
                "{what}; `schedule_update` with another token makes that one the schedule's"
            ))
        };
        let token = self.store().token(schedule.owner_id).await?;
        let why = match &token {
            None => Some("does not exist any more"),
            Some(token) if token.revoked_at.is_some() => Some("was revoked"),
            Some(token) if !token.is_valid(self.now()) => Some("has expired"),
            Some(_) => None,
        };
        let (Some(token), None) = (token, why) else {
            let why = why.unwrap_or_default();
            return Err(ended(&format!(
                "the token that the schedule acts with {why}"
            )));
        };
        let session = token.session_id.or(schedule.owner_session);
        if let Some(id) = session {
            let found = self.store().session(id).await?;
            if found.is_none_or(|session| session.status.is_ended()) {
                return Err(ended(&format!(
                    "the session {id}, whose agent made the schedule, has ended"
                )));
            }
        }
        Ok(Actor {
            token_id: token.id,
            scope: token.scope,
            session,
            address: Some(format!("schedule {}", schedule.id)),
        })
    }

    /// Why a session cannot go on with the next run, if it cannot.
    async fn hindrance(&self, id: SessionId, run: &Run) -> Result<Option<String>> {
        let Some(session) = self.store().session(id).await? else {
            return Ok(Some("was deleted".to_owned()));
        };
        if agents::find(self.settings(), &session.agent).is_err() {
            return Ok(Some(format!(
                "has the agent `{}`, which is not there any more",
                session.agent
            )));
        }
        let workspace = &session.workspace_id;
        let workspace = self
            .store()
            .workspace(session.project_id, workspace)
            .await?;
        if workspace.is_none() {
            return Ok(Some("has lost its workspace".to_owned()));
        }
        let limit = self.sessions().tree_limits(&session).await?.cost_usd;
        let used = self.store().tree_use(session.root_id, self.now()).await?;
        if used.cost_usd >= used.cost_limit.unwrap_or(limit) {
            return Ok(Some("has reached its `max_cost_usd`".to_owned()));
        }
        if session.status == Status::Failed && self.failed_twice(&session, run).await? {
            return Ok(Some("failed twice in a row".to_owned()));
        }
        Ok(None)
    }

    /// Whether the last two runs of a target that were carried out failed in this session.
    async fn failed_twice(&self, session: &Session, run: &Run) -> Result<bool> {
        let filter = RunFilter {
            project_id: Some(run.project_id),
        };
        let runs = self.store().runs(run.schedule_id, &filter, None, 50);
        let mut ended = runs.await?.rows.into_iter().filter(|other| {
            other.workspace_id == run.workspace_id
                && matches!(other.status, RunStatus::Success | RunStatus::Failed)
        });
        let mut failed_here = || {
            ended.next().is_some_and(|run| {
                run.status == RunStatus::Failed && run.session_id == Some(session.id)
            })
        };
        Ok(failed_here() && failed_here())
    }

    /// Waits for the turn of a run to end.
    async fn follow_run(&self, id: RunId) -> Result<Option<Outcome>> {
        let mut news = None;
        loop {
            let Some(run) = self.store().run(id).await? else {
                return Ok(None);
            };
            let turn = self.store().run_turn(id).await?;
            let (Some(turn), Some(session)) = (turn, run.session_id) else {
                let why = "its session was deleted before the agent was done";
                return Ok(Some(Outcome::failed(why)));
            };
            match turn {
                CallTurn::Answered(logged) => return answered(&logged).map(Some),
                CallTurn::Dropped => {
                    let why = "its session was ended before it came to the prompt";
                    return Ok(Some(Outcome::failed(why)));
                }
                CallTurn::Queued | CallTurn::Running => {}
            }
            // The first look was before anybody told of news.
            let Some(listening) = &mut news else {
                news = Some(self.sessions().subscriptions().log(session));
                continue;
            };
            if listening.changed().await.is_err() {
                news = None;
            }
        }
    }

    /// Returns when a run has taken too long.
    async fn too_late(&self, run: &Run) {
        let Some(deadline) = run.deadline else {
            return std::future::pending().await;
        };
        while self.now() < deadline {
            self.clock().until(deadline).await;
        }
    }

    fn overdue(&self, schedule: &Schedule) -> Outcome {
        let seconds = self.settings().schedules.run_seconds;
        let wanted = match schedule.session_behavior {
            SessionBehavior::Resume => Wanted::Interrupt,
            SessionBehavior::New => Wanted::End,
        };
        Outcome {
            wanted: Some(wanted),
            ..Outcome::failed(format!(
                "it took longer than {seconds} seconds (`schedules.run_seconds` of the server's \
                 configuration) and was stopped"
            ))
        }
    }

    /// Returns when a run has been deleted with its schedule or its project.
    async fn run_gone(&self, id: RunId) {
        let mut changes = self.schedules().changes.subscribe();
        loop {
            changes.mark_unchanged();
            if let Ok(None) = self.store().run(id).await {
                return;
            }
            if changes.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    async fn finish(&self, id: RunId, outcome: Outcome) -> Result<()> {
        let wants = outcome.wanted.is_some();
        let finished = Finished {
            at: self.now(),
            status: outcome.status,
            output: outcome.output,
            truncated: outcome.truncated,
            error: outcome.error.map(|mut error| {
                error.truncate(error.floor_char_boundary(LONGEST_ERROR));
                error
            }),
            wanted: outcome.wanted,
            most_failures: MOST_FAILURES,
            disabled: format!(
                "{MOST_FAILURES} runs in a row failed; `schedule_history` says why. \
                 `schedule_update` enables it again"
            ),
        };
        let disabled = self.store().finish_run(id, finished).await?;
        let Some(run) = self.store().run(id).await? else {
            return Ok(());
        };
        if disabled == Some(true) {
            tracing::warn!(
                schedule = %run.schedule_id,
                error = run.error.as_deref().unwrap_or_default(),
                "a schedule was disabled because {MOST_FAILURES} of its runs failed in a row"
            );
        }
        if let (Some(session), true) = (run.session_id, wants) {
            self.sessions().wake(session, run.project_id);
        }
        Ok(())
    }
}

fn replaced(id: SessionId, why: &str) -> String {
    format!("the session before, {id}, {why}; this is a new one")
}

/// How a run ended whose turn has.
fn answered(logged: &Logged) -> Result<Outcome> {
    let event = serde_json::from_str(&logged.body).map_err(EngineError::fault)?;
    let Event::Completion {
        mut text,
        stop_reason,
        error,
    } = event
    else {
        return Err(EngineError::fault("a completion was expected"));
    };
    let why = match stop_reason {
        StopReason::EndTurn => None,
        StopReason::Cancelled => Some("the turn was interrupted"),
        StopReason::Refused => Some("the model refused to go on"),
        StopReason::Limit => Some("a limit was reached"),
        StopReason::Error => Some("the turn failed"),
    };
    let truncated = text.len() > LONGEST_OUTPUT;
    text.truncate(text.floor_char_boundary(LONGEST_OUTPUT));
    Ok(Outcome {
        status: match why {
            None => RunStatus::Success,
            Some(_) => RunStatus::Failed,
        },
        output: Some(text).filter(|text| !text.is_empty()),
        truncated,
        error: why.map(|why| error.unwrap_or_else(|| why.to_owned())),
        wanted: None,
    })
}
