//! The one path of every call: find, check the class, parse, check the project, run, audit.

use std::panic::AssertUnwindSafe;
use std::time::Instant;

use futures_util::FutureExt;
use oubliette_model::{
    Access, Decision, Mode, ProjectId, ScheduleId, SessionId, allows, allows_class,
};
use oubliette_store::{AuditEntry, Outcome, Session};
use serde_json::{Map, Value};

use super::{Entry, Operation, Reach, lookup};
use crate::sessions::events::Events;
use crate::{Actor, Call, Engine, EngineError, Result};

/// A call that is over.
#[derive(Debug)]
pub(crate) struct Called {
    pub(crate) operation: &'static str,
    pub(crate) mode: Mode,
    /// For the audit log, whatever its outcome says.
    pub(crate) entry: AuditEntry,
    pub(crate) started: Instant,
}

impl Engine {
    /// Calls an operation by its own name, or a noun's tool with an `action`.
    pub async fn call(
        &self,
        actor: &Actor,
        name: &str,
        mut arguments: Map<String, Value>,
        call: Call,
    ) -> Result<Value> {
        let started = Instant::now();
        let (operation, reach, result) = match lookup::resolve(actor.scope, name, &mut arguments) {
            Ok(entry) => {
                let (reach, result) = self.perform(actor, entry, arguments, &call).await;
                (entry.name, reach, result)
            }
            Err(error) => ("unknown", Reach::everywhere(), Err(error)),
        };
        let found = lookup::find(operation);
        let called = Called {
            operation,
            mode: found.map_or(Mode::Read, |entry| entry.access.mode()),
            entry: self.entry(actor, operation, reach.project, Outcome::Ok),
            started,
        };
        self.account(called, &result, &call).await;
        result
    }

    /// Sees that a call is counted, and in the audit log.
    pub(crate) async fn account(&self, called: Called, result: &Result<Value>, call: &Call) {
        let Called {
            operation,
            mode,
            entry,
            started,
        } = called;
        let outcome = outcome(result);
        self.metrics().called(operation, outcome, started.elapsed());
        let token = entry.token_id.map(|id| id.to_string()).unwrap_or_default();
        tracing::debug!(operation, outcome = outcome.as_str(), %token, "called");
        if let Err(EngineError::Fault(source)) = result {
            tracing::error!(operation, %token, error = %chain(&**source), "fault");
        }
        let entry = AuditEntry { outcome, ..entry };
        match mode {
            // A success whose operation did not commit its own entry, and every failure.
            Mode::Write if outcome != Outcome::Ok || call.audit().is_some() => {
                self.audit_log().write(entry).await;
            }
            Mode::Write => {}
            Mode::Read if outcome == Outcome::Refused => self.audit_log().write(entry).await,
            Mode::Read => self.audit_log().note(entry).await,
        }
    }

    /// What somebody may follow on an open stream: the decision is that of a `session_events` call.
    pub(crate) async fn permit_following(&self, actor: &Actor, id: SessionId) -> Result<Session> {
        let entry = lookup::find(<Events as Operation>::NAME)
            .ok_or_else(|| EngineError::fault("no such operation"))?;
        if !allows_class(actor.scope, entry.access) {
            return Err(EngineError::Refused { parameter: None });
        }
        let (reach, session) = self.resolve(actor, entry, Reach::session(id)).await?;
        permit(actor, entry, &reach)?;
        session.ok_or_else(|| EngineError::session_not_found(id))
    }

    async fn perform(
        &self,
        actor: &Actor,
        entry: &Entry,
        arguments: Map<String, Value>,
        call: &Call,
    ) -> (Reach, Result<Value>) {
        if !allows_class(actor.scope, entry.access) {
            return (
                Reach::everywhere(),
                Err(EngineError::Refused { parameter: None }),
            );
        }
        let prepared = match (entry.prepare)(entry, arguments) {
            Ok(prepared) => prepared,
            Err(error) => return (Reach::everywhere(), Err(error)),
        };
        let asked = prepared.reach.clone();
        let (reach, session) = match self.resolve(actor, entry, prepared.reach).await {
            Ok(resolved) => resolved,
            Err(error) => return (asked, Err(error)),
        };
        if let Err(error) = permit(actor, entry, &reach) {
            return (reach, Err(error));
        }
        if let Err(error) = self.restrain(actor, &reach).await {
            return (reach, Err(error));
        }
        // Whoever names its session is there to answer for it.
        if let Some(session) = &session {
            self.note_call(actor, session);
        }
        call.set_audit(self.entry(actor, entry.name, reach.project, Outcome::Ok));
        let result = unpanicked((prepared.run)(self, actor, call.clone())).await;
        (reach, result)
    }

    /// Finds the session that a call names, and its project. A session of a project that the token may
    /// not touch, or of another than the call names too, is the same as none.
    async fn resolve(
        &self,
        actor: &Actor,
        entry: &Entry,
        reach: Reach,
    ) -> Result<(Reach, Option<Session>)> {
        if let Some(id) = reach.schedule {
            let reach = self.resolve_schedule(actor, entry, id, reach).await?;
            return Ok((reach, None));
        }
        let Some(id) = reach.session else {
            return Ok((reach, None));
        };
        let session = self.store().session(id).await?;
        let session = session.filter(|session| {
            let project = session.project_id;
            let named = reach.project.is_none_or(|named| named == project);
            named && allows(actor.scope, entry.access, &[project]) == Decision::Allowed
        });
        let session = session.ok_or_else(|| EngineError::session_not_found(id))?;
        let reach = Reach {
            project: Some(session.project_id),
            ..reach
        };
        Ok((reach, Some(session)))
    }

    /// The same for the targets of a schedule: to read it is enough to reach one, to write it takes
    /// all of them. Who reaches none cannot tell it from one that does not exist.
    async fn resolve_schedule(
        &self,
        actor: &Actor,
        entry: &Entry,
        id: ScheduleId,
        reach: Reach,
    ) -> Result<Reach> {
        let schedule = self.store().schedule(id).await?;
        let schedule = schedule.ok_or_else(|| Self::schedule_not_found(id))?;
        let projects: Vec<ProjectId> = schedule.targets.iter().map(|t| t.project_id).collect();
        if allows(actor.scope, entry.access, &projects) != Decision::Allowed {
            let seen = projects.iter().any(|project| actor.sees(*project));
            return Err(match seen {
                true => EngineError::Refused { parameter: None },
                false => Self::schedule_not_found(id),
            });
        }
        let seen = projects.into_iter().find(|project| actor.sees(*project));
        Ok(Reach {
            project: reach.project.or(seen),
            ..reach
        })
    }

    /// An agent does not decide about itself, whatever its scope: neither what its tree of sessions
    /// asks for, nor what bounds that tree.
    async fn restrain(&self, actor: &Actor, reach: &Reach) -> Result<()> {
        if reach.begins {
            self.keep_in_tree(actor, reach).await?;
        }
        let bounds = reach.restricted;
        let (Some(own), true) = (actor.session, reach.decides || bounds.is_some()) else {
            return Ok(());
        };
        let refused = EngineError::Refused { parameter: bounds };
        let store = self.store();
        let Some(own) = store.session(own).await? else {
            return Err(refused);
        };
        if let Some(asked) = reach.session
            && let Some(asked) = store.session(asked).await?
            && asked.root_id == own.root_id
        {
            return Err(refused);
        }
        let root = store.session(own.root_id).await?;
        let home = root.map_or(own.project_id, |root| root.project_id);
        let own_bounds = |project| project == own.project_id || project == home;
        if bounds.is_some() && reach.session.is_none() && reach.project.is_none_or(own_bounds) {
            return Err(refused);
        }
        Ok(())
    }

    /// An agent starts no session outside its tree, by way of a schedule neither: the sessions of one
    /// that others made are not below its own.
    async fn keep_in_tree(&self, actor: &Actor, reach: &Reach) -> Result<()> {
        let (Some(own), Some(id)) = (actor.session, reach.schedule) else {
            return Ok(());
        };
        let store = self.store();
        let made_by = store.schedule(id).await?.and_then(|s| s.owner_session);
        let root = async |id: Option<SessionId>| -> Result<Option<SessionId>> {
            let Some(id) = id else { return Ok(None) };
            Ok(store.session(id).await?.map(|session| session.root_id))
        };
        let (own, made_by) = (root(Some(own)).await?, root(made_by).await?);
        match own.is_some() && own == made_by {
            true => Ok(()),
            false => Err(EngineError::Refused { parameter: None }),
        }
    }

    fn entry(
        &self,
        actor: &Actor,
        operation: &str,
        project_id: Option<ProjectId>,
        outcome: Outcome,
    ) -> AuditEntry {
        AuditEntry {
            at: self.now(),
            token_id: Some(actor.token_id),
            operation: operation.to_owned(),
            project_id,
            outcome,
            address: actor.address.clone(),
        }
    }
}

/// A panic in one call is that call's fault, not the server's end.
pub(crate) async fn unpanicked<T>(running: impl Future<Output = Result<T>>) -> Result<T> {
    let outcome = AssertUnwindSafe(running).catch_unwind().await;
    outcome.unwrap_or_else(|panic| Err(EngineError::fault(panic_text(&*panic))))
}

/// Decides before anything is looked up, so that a foreign project and a missing one take the same
/// way to the same answer.
fn permit(actor: &Actor, entry: &Entry, reach: &Reach) -> Result<()> {
    if let Some(parameter) = reach.restricted
        && !allows_class(actor.scope, Access::Global(Mode::Write))
    {
        return Err(EngineError::Refused {
            parameter: Some(parameter),
        });
    }
    for project in reach.project.iter().chain(&reach.targets) {
        match allows(actor.scope, entry.access, &[*project]) {
            Decision::Allowed => {}
            Decision::Refused => return Err(EngineError::Refused { parameter: None }),
            Decision::Hidden => return Err(EngineError::project_not_found(project)),
        }
    }
    Ok(())
}

fn outcome(result: &Result<Value>) -> Outcome {
    match result {
        Ok(_) => Outcome::Ok,
        Err(EngineError::Refused { .. }) => Outcome::Refused,
        Err(EngineError::Fault(_)) => Outcome::Fault,
        Err(_) => Outcome::Error,
    }
}

/// An error and its causes, once, for the log.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    format!("panic: {}", text.unwrap_or_default())
}
