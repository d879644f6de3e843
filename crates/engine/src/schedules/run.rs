//! One run of a schedule, from its start to its end.
//!
//! A run calls `session_spawn` or `session_message` through [`Engine::call`](crate::Engine::call) with
//! the schedule's token as it is at that moment. The transaction of the call stores the session or
//! message with the run, so that a run that is resumed after a crash does not send its prompt twice.

use std::time::Duration;

use oubliette_model::{Event, RunId, RunStatus, SessionBehavior, SessionId, Status, StopReason};
use oubliette_store::{
    CallTurn, FinishedRun, RunBinding, RunFilter, Schedule, ScheduleRun, ScheduleTarget, Session,
    StopRequest, StoredEvent,
};
use serde_json::{Map, Value, json};

use super::Schedules;
use crate::tokens::authority::TokenEnd;
use crate::{Actor, Call, EngineError, Result, agents};

const MAX_OUTPUT_BYTES: usize = 8 << 10;
const MAX_ERROR_BYTES: usize = 2 << 10;
/// After this many failures in a row a schedule is disabled.
const MAX_FAILURES: u32 = 5;
const MIN_RETRY_DELAY: Duration = Duration::from_secs(1);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(60);
/// How many earlier runs are searched for the last two of a target.
const HISTORY_SEARCHED: u32 = 50;

/// How a run ended.
struct RunOutcome {
    status: RunStatus,
    output: Option<String>,
    truncated: bool,
    error: Option<String>,
    /// What its session does next.
    stop_request: Option<StopRequest>,
}

impl RunOutcome {
    fn failed(why: impl Into<String>) -> Self {
        Self {
            status: RunStatus::Failed,
            output: None,
            truncated: false,
            error: Some(why.into()),
            stop_request: None,
        }
    }
}

impl Schedules<'_> {
    /// Executes a run until its end is stored, with retries when the store fails.
    pub(super) async fn execute_run(self, run: ScheduleRun) {
        let mut delay = MIN_RETRY_DELAY;
        while let Err(error) = self.try_run(&run).await {
            tracing::warn!(run = %run.id, %error, "a run of a schedule failed; trying again");
            tokio::time::sleep(delay).await;
            delay = (delay * 2).min(MAX_RETRY_DELAY);
        }
    }

    /// Stores that a run failed because of an internal error.
    pub(super) async fn fail_run(self, id: RunId) {
        let outcome = RunOutcome::failed("an internal error; the server's log has the details");
        if let Err(error) = self.store_outcome(id, outcome).await {
            tracing::error!(run = %id, %error, "could not store the end of a run");
        }
    }

    async fn try_run(self, run: &ScheduleRun) -> Result<()> {
        let Some(schedule) = self.engine.store().schedule(run.schedule_id).await? else {
            return Ok(());
        };
        let outcome = tokio::select! {
            outcome = self.send_and_follow(run, &schedule) => outcome?,
            () = self.wait_for_deadline(run) => Some(self.timed_out(&schedule)),
            () = self.wait_until_deleted(run.id) => return Ok(()),
        };
        let Some(mut outcome) = outcome else {
            return Ok(());
        };
        if schedule.session_behavior == SessionBehavior::New {
            // No later run continues the session.
            outcome.stop_request = Some(StopRequest::End);
        }
        self.store_outcome(run.id, outcome).await
    }

    /// Sends the prompt, unless an earlier server did, and waits for the outcome; none if the run was
    /// deleted.
    async fn send_and_follow(
        self,
        run: &ScheduleRun,
        schedule: &Schedule,
    ) -> Result<Option<RunOutcome>> {
        let store = self.engine.store();
        let before = store.schedule_run(run.id).await?;
        if before.is_some_and(|run| run.session_id.is_none())
            && let Err(error) = Box::pin(self.send_prompt(run, schedule)).await
        {
            // The call can fail after its session was stored.
            let after = store.schedule_run(run.id).await?;
            if after.is_some_and(|run| run.session_id.is_none()) {
                return Ok(Some(RunOutcome::failed(error.to_string())));
            }
        }
        self.follow_run(run.id).await
    }

    async fn send_prompt(self, run: &ScheduleRun, schedule: &Schedule) -> Result<()> {
        let actor = self.actor(schedule).await?;
        let is_target = |target: &&ScheduleTarget| {
            target.project_id == run.project_id && target.workspace_id == run.workspace_id
        };
        let Some(target) = schedule.targets.iter().find(is_target) else {
            return Err(EngineError::invalid(
                "the target was removed from the schedule before the run started",
            ));
        };
        let pin = schedule.session_behavior == SessionBehavior::Resume;
        let mut note = None;
        if pin && let Some(id) = target.session_id {
            match self.blocked_reason(id, run).await? {
                None => {
                    let mark = RunBinding {
                        run: run.id,
                        pin,
                        note: None,
                    };
                    let parameters = json!({ "session_id": id, "prompt": schedule.prompt });
                    match self.call(&actor, "session_message", parameters, mark).await {
                        Err(EngineError::NotFound { .. }) => {
                            note = Some(replacement_note(id, "was deleted"));
                        }
                        other => return other,
                    }
                }
                Some(why) => note = Some(replacement_note(id, &why)),
            }
        }
        let mark = RunBinding {
            run: run.id,
            pin,
            note,
        };
        let mut parameters = json!({
            "project_id": run.project_id,
            "prompt": schedule.prompt,
            "new_session": true,
            "source": format!("schedule {}", schedule.id),
        });
        if let Some(workspace) = &run.workspace_id {
            parameters["workspace_id"] = json!(workspace);
        }
        self.call(&actor, "session_spawn", parameters, mark).await
    }

    async fn call(
        self,
        actor: &Actor,
        name: &str,
        parameters: Value,
        mark: RunBinding,
    ) -> Result<()> {
        let arguments = match parameters {
            Value::Object(arguments) => arguments,
            _ => Map::new(),
        };
        let call = Call::new().for_schedule_run(mark);
        match self.engine.call(actor, name, arguments, call).await {
            Ok(_) => Ok(()),
            Err(EngineError::Refused { .. }) => Err(EngineError::invalid(
                "the schedule's token may not write to this project; call `schedule_update` with a \
                 token that may, which then becomes the schedule's token",
            )),
            Err(error) => Err(error),
        }
    }

    /// The actor of a run: the schedule's token as it is now. A schedule that an agent created has the
    /// agent's restrictions and ends with its session.
    async fn actor(self, schedule: &Schedule) -> Result<Actor> {
        let ended = |what: &str| {
            EngineError::invalid(format!(
                "{what}; call `schedule_update` with another token, which then becomes the schedule's \
                 token"
            ))
        };
        let ended_token = |end: TokenEnd| ended(&format!("the schedule's token {}", end.reason()));
        let token = self.engine.store().token(schedule.owner_id).await?;
        let token = token.ok_or_else(|| ended_token(TokenEnd::Deleted))?;
        let authority = self.engine.tokens().authority(&token).await?;
        let authority = authority.map_err(ended_token)?;
        let session = token.session_id.or(schedule.owner_session);
        if let Some(id) = session {
            let found = self.engine.store().session(id).await?;
            if found.is_none_or(|session| session.status.is_ended()) {
                return Err(ended(&format!(
                    "the session {id}, whose agent created the schedule, has ended"
                )));
            }
        }
        Ok(Actor {
            token_id: token.id,
            scope: authority.scope,
            session,
            unattached: false,
            address: Some(format!("schedule {}", schedule.id)),
        })
    }

    /// Why the next run cannot continue a session, if it cannot.
    async fn blocked_reason(self, id: SessionId, run: &ScheduleRun) -> Result<Option<String>> {
        let store = self.engine.store();
        let Some(session) = store.session(id).await? else {
            return Ok(Some("was deleted".to_owned()));
        };
        if agents::find(self.engine.settings(), &session.agent).is_err() {
            return Ok(Some(format!(
                "uses the agent `{}`, which no longer exists",
                session.agent
            )));
        }
        let (project, workspace) = (session.project_id, &session.workspace_id);
        if store.workspace(project, workspace).await?.is_none() {
            return Ok(Some("has no workspace any more".to_owned()));
        }
        let limit = self.engine.sessions().tree_limits(&session).await?.cost_usd;
        let now = self.engine.now();
        let used = store.tree_usage(session.root_id, now).await?;
        if used.cost_usd >= used.cost_limit.unwrap_or(limit) {
            return Ok(Some("has reached its `max_cost_usd`".to_owned()));
        }
        if session.status == Status::Failed && self.failed_twice(&session, run).await? {
            return Ok(Some("failed twice in a row".to_owned()));
        }
        Ok(None)
    }

    /// Whether the last two runs of a target that were not skipped failed in this session.
    async fn failed_twice(self, session: &Session, run: &ScheduleRun) -> Result<bool> {
        let filter = RunFilter {
            project_id: Some(run.project_id),
        };
        let store = self.engine.store();
        let page = store.schedule_runs(run.schedule_id, &filter, None, HISTORY_SEARCHED);
        let mut ended = page.await?.rows.into_iter().filter(|other| {
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
    async fn follow_run(self, id: RunId) -> Result<Option<RunOutcome>> {
        let store = self.engine.store();
        let mut changes = None;
        loop {
            let Some(run) = store.schedule_run(id).await? else {
                return Ok(None);
            };
            let turn = store.run_turn(id).await?;
            let (Some(turn), Some(session)) = (turn, run.session_id) else {
                let why = "its session was deleted before the agent had finished";
                return Ok(Some(RunOutcome::failed(why)));
            };
            match turn {
                CallTurn::Answered(logged) => return outcome_of_turn(&logged).map(Some),
                CallTurn::Dropped => {
                    let why = "its session was ended before the prompt was sent to the agent";
                    return Ok(Some(RunOutcome::failed(why)));
                }
                CallTurn::Queued | CallTurn::Running => {}
            }
            // Subscribed to only now, so the store has to be read again.
            let Some(subscription) = &mut changes else {
                changes = Some(self.engine.sessions().subscriptions().log(session));
                continue;
            };
            subscription.changed().await;
        }
    }

    async fn wait_for_deadline(self, run: &ScheduleRun) {
        let Some(deadline) = run.deadline else {
            return std::future::pending().await;
        };
        while self.engine.now() < deadline {
            self.engine.clock().sleep_until(deadline).await;
        }
    }

    fn timed_out(self, schedule: &Schedule) -> RunOutcome {
        let seconds = self.engine.settings().schedules.run_seconds;
        let stop_request = match schedule.session_behavior {
            SessionBehavior::Resume => StopRequest::Interrupt,
            SessionBehavior::New => StopRequest::End,
        };
        RunOutcome {
            stop_request: Some(stop_request),
            ..RunOutcome::failed(format!(
                "it took longer than {seconds} seconds (`schedules.run_seconds` of the server's \
                 configuration) and was stopped"
            ))
        }
    }

    /// Returns when a run was deleted, with its schedule or its project.
    async fn wait_until_deleted(self, id: RunId) {
        let mut changes = self.state().changes.subscribe();
        loop {
            changes.mark_unchanged();
            if let Ok(None) = self.engine.store().schedule_run(id).await {
                return;
            }
            if changes.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    async fn store_outcome(self, id: RunId, outcome: RunOutcome) -> Result<()> {
        let store = self.engine.store();
        let wakes_session = outcome.stop_request.is_some();
        let finished = FinishedRun {
            at: self.engine.now(),
            status: outcome.status,
            output: outcome.output,
            truncated: outcome.truncated,
            error: outcome.error.map(|mut error| {
                error.truncate(error.floor_char_boundary(MAX_ERROR_BYTES));
                error
            }),
            stop_request: outcome.stop_request,
            max_failures: MAX_FAILURES,
            disable_reason: format!(
                "{MAX_FAILURES} runs in a row failed; `schedule_history` shows why. \
                 `schedule_update` enables the schedule again"
            ),
        };
        let disabled = store.finish_run(id, finished).await?;
        let Some(run) = store.schedule_run(id).await? else {
            return Ok(());
        };
        if disabled == Some(true) {
            tracing::warn!(
                schedule = %run.schedule_id,
                error = run.error.as_deref().unwrap_or_default(),
                "schedule disabled after {MAX_FAILURES} failed runs in a row"
            );
        }
        if wakes_session && let Some(session) = run.session_id {
            self.engine.sessions().wake(session, run.project_id);
        }
        Ok(())
    }
}

fn replacement_note(id: SessionId, why: &str) -> String {
    format!("the previous session, {id}, {why}; this is a new one")
}

fn outcome_of_turn(logged: &StoredEvent) -> Result<RunOutcome> {
    let event = serde_json::from_str(&logged.body).map_err(EngineError::fault)?;
    let Event::Completion {
        mut text,
        stop_reason,
        error,
        ..
    } = event
    else {
        return Err(EngineError::fault("a completion was expected"));
    };
    let why = match stop_reason {
        StopReason::EndTurn => None,
        StopReason::Cancelled => Some("the turn was interrupted"),
        StopReason::Refused => Some("the model refused to continue"),
        StopReason::Limit => Some("a limit was reached"),
        StopReason::Error => Some("the turn failed"),
    };
    let truncated = text.len() > MAX_OUTPUT_BYTES;
    text.truncate(text.floor_char_boundary(MAX_OUTPUT_BYTES));
    Ok(RunOutcome {
        status: match why {
            None => RunStatus::Success,
            Some(_) => RunStatus::Failed,
        },
        output: Some(text).filter(|text| !text.is_empty()),
        truncated,
        error: why.map(|why| error.unwrap_or_else(|| why.to_owned())),
        stop_request: None,
    })
}
