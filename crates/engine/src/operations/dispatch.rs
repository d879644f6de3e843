//! The path of every call: find the operation, check its class, replace names by ids, parse the
//! parameters, look up and filter what they name, check the projects, run, audit.

use std::panic::AssertUnwindSafe;
use std::time::Instant;

use futures_util::FutureExt;
use oubliette_model::{
    AgentPosition, Decision, Mode, ProjectId, ScheduleId, SessionId, agent_may_start_schedule,
    allows, allows_class, allows_restricted_parameter, allows_session, schedule_decision,
    unattached_may,
};
use oubliette_store::{AuditEntry, AuditOutcome, Session, with_reserve};
use serde_json::{Map, Value};

use super::{Entry, Operation, Reach, find};
use crate::sessions::events::Events;
use crate::{Actor, Call, Engine, EngineError, Result};

/// The operations that free space, or stop what fills the disk. They work on a full disk, with the reserve of the
/// store, unless an agent calls them.
const FREES_SPACE: [&str; 7] = [
    "project_delete",
    "workspace_delete",
    "container_exec",
    "container_stop",
    "session_interrupt",
    "session_end",
    "session_cleanup",
];

/// A call that is over.
#[derive(Debug)]
pub(crate) struct FinishedCall {
    pub(crate) operation: &'static str,
    pub(crate) mode: Mode,
    /// For the audit log; the outcome is set when the call is recorded.
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
        let found = find::resolve(actor.scope, name, &mut arguments);
        let is_agent = actor.session.is_some() || actor.unattached;
        let frees_space = matches!(found, Ok(entry) if FREES_SPACE.contains(&entry.name));
        let performing = self.perform_recorded(actor, found, arguments, call);
        if frees_space && !is_agent {
            Box::pin(with_reserve(performing)).await
        } else {
            performing.await
        }
    }

    async fn perform_recorded(
        &self,
        actor: &Actor,
        found: Result<&'static Entry>,
        arguments: Map<String, Value>,
        call: Call,
    ) -> Result<Value> {
        let started = Instant::now();
        let (operation, mode, reach, result) = match found {
            Ok(entry) => {
                let (reach, result) = self.perform(actor, entry, arguments, &call).await;
                (entry.name, entry.access.mode(), reach, result)
            }
            Err(error) => ("unknown", Mode::Read, Reach::everywhere(), Err(error)),
        };
        let finished = FinishedCall {
            operation,
            mode,
            entry: self.audit_entry(actor, operation, reach.project),
            started,
        };
        self.record_call(finished, &result, &call).await;
        result
    }

    /// Counts a call and puts it into the audit log.
    pub(crate) async fn record_call(
        &self,
        finished: FinishedCall,
        result: &Result<Value>,
        call: &Call,
    ) {
        let FinishedCall {
            operation,
            mode,
            entry,
            started,
        } = finished;
        let outcome = outcome(result);
        self.metrics()
            .record_call(operation, outcome, started.elapsed());
        let token = entry.token_id.map(|id| id.to_string()).unwrap_or_default();
        tracing::debug!(operation, outcome = outcome.as_str(), %token, "called");
        if let Err(EngineError::Fault(source)) = result {
            tracing::error!(operation, %token, error = %error_chain(&**source), "internal error");
        }
        let entry = AuditEntry { outcome, ..entry };
        match mode {
            // Operations commit the entry of a success with their effect, if they take it.
            Mode::Write if outcome != AuditOutcome::Ok || call.has_audit_entry() => {
                self.audit_log().write(entry).await;
            }
            Mode::Write => {}
            Mode::Read if outcome == AuditOutcome::Refused => self.audit_log().write(entry).await,
            Mode::Read => self.audit_log().enqueue(entry).await,
        }
    }

    /// The session, if the actor may follow its events on an open stream: the decision is that of a
    /// `session_events` call.
    pub(crate) async fn permit_following(&self, actor: &Actor, id: SessionId) -> Result<Session> {
        let entry = find(<Events as Operation>::NAME)
            .ok_or_else(|| EngineError::fault("no such operation"))?;
        permit_class(actor, entry)?;
        let (reach, session) = self.find_projects(actor, entry, Reach::session(id)).await?;
        permit(actor, entry, &reach)?;
        session.ok_or_else(|| EngineError::session_not_found(id))
    }

    /// Fails if the actor may not call an operation on a project: for work that begins after the call, for
    /// example the transfer of a file.
    pub(crate) async fn permit_project(
        &self,
        actor: &Actor,
        operation: &str,
        project: ProjectId,
    ) -> Result<()> {
        let entry = find(operation).ok_or_else(|| EngineError::fault("no such operation"))?;
        permit_class(actor, entry)?;
        let reach = Reach::project(project);
        permit(actor, entry, &reach)?;
        self.permit_agent(actor, &reach).await
    }

    async fn perform(
        &self,
        actor: &Actor,
        entry: &Entry,
        mut arguments: Map<String, Value>,
        call: &Call,
    ) -> (Reach, Result<Value>) {
        if let Err(error) = permit_class(actor, entry) {
            return (Reach::everywhere(), Err(error));
        }
        if let Err(error) = self.resolve_names(actor, entry, &mut arguments).await {
            return (Reach::everywhere(), Err(error));
        }
        let prepared = match (entry.prepare)(entry, arguments) {
            Ok(prepared) => prepared,
            Err(error) => return (Reach::everywhere(), Err(error)),
        };
        let named = prepared.reach.clone();
        let (reach, session) = match self.find_projects(actor, entry, prepared.reach).await {
            Ok(resolved) => resolved,
            Err(error) => return (named, Err(error)),
        };
        if let Err(error) = permit(actor, entry, &reach) {
            return (reach, Err(error));
        }
        if let Err(error) = self.permit_agent(actor, &reach).await {
            return (reach, Err(error));
        }
        if let Some(session) = &session {
            self.callers().record_call(actor.token_id, session);
        }
        call.set_audit_entry(self.audit_entry(actor, entry.name, reach.project));
        let result = catch_panic((prepared.run)(self, actor, call.clone())).await;
        (reach, result)
    }

    /// Checks that an actor may set a parameter of a project that project tokens may not set, nor agents
    /// for their own tree. For parameters of which that is not known before the project is read.
    pub(crate) async fn permit_restricted(
        &self,
        actor: &Actor,
        project: ProjectId,
        parameter: &'static str,
    ) -> Result<()> {
        if !allows_restricted_parameter(actor.scope) {
            return Err(EngineError::refused_restricted(actor.scope, parameter));
        }
        let reach = Reach {
            restricted: Some(parameter),
            ..Reach::project(project)
        };
        self.permit_agent(actor, &reach).await
    }

    /// Looks up the session or schedule that a call names, and filters it: one that the token may not
    /// reach gives the same error as one that does not exist.
    async fn find_projects(
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
        let found = self.store().session(id).await?;
        let allowed = found.filter(|session| {
            allows_session(actor.scope, entry.access, session.project_id, reach.project)
        });
        let session = allowed.ok_or_else(|| EngineError::session_not_found(id))?;
        let reach = Reach {
            project: Some(session.project_id),
            ..reach
        };
        Ok((reach, Some(session)))
    }

    async fn resolve_schedule(
        &self,
        actor: &Actor,
        entry: &Entry,
        id: ScheduleId,
        reach: Reach,
    ) -> Result<Reach> {
        let schedule = self.schedules().get(id).await?;
        let projects: Vec<ProjectId> = schedule.targets.iter().map(|t| t.project_id).collect();
        match schedule_decision(actor.scope, entry.access, &projects) {
            Decision::Allowed => {}
            Decision::Refused => {
                return Err(EngineError::refused(format!(
                    "`{}` needs access to every target project of the schedule; the scope of this token \
                     is `{}`",
                    entry.name, actor.scope
                )));
            }
            Decision::Hidden => return Err(crate::schedules::not_found(id)),
        }
        let visible = projects.into_iter().find(|project| actor.sees(*project));
        Ok(Reach {
            project: reach.project.or(visible),
            ..reach
        })
    }

    /// Checks what no agent may do in its own tree of sessions, whatever its scope: decide requests of
    /// the tree, change limits that bound it, start sessions outside it; and what it may do only there: see
    /// and continue the work of sessions. An unknown agent may do none of that in any tree.
    async fn permit_agent(&self, actor: &Actor, reach: &Reach) -> Result<()> {
        let Some(own) = actor.session else {
            let parameter = reach.restricted.or(reach.bounds_agents);
            let depends_on_tree = reach.depends_on_tree || reach.is_about_work;
            let allowed = unattached_may(reach.decides, parameter.is_some(), depends_on_tree);
            return if allowed || !actor.unattached {
                Ok(())
            } else {
                Err(EngineError::refused_unattached(parameter))
            };
        };
        if reach.starts_run {
            self.permit_agent_run(own, reach).await?;
        }
        let parameter = reach.restricted.or(reach.bounds_agents);
        if !reach.decides && !reach.is_about_work && parameter.is_none() {
            return Ok(());
        }
        let refused = EngineError::refused_in_own_tree(parameter);
        let store = self.store();
        let Some(own) = store.session(own).await? else {
            return Err(refused);
        };
        let root = store.session(own.root_id).await?;
        let agent = AgentPosition {
            root: own.root_id,
            project: own.project_id,
            root_project: root.map_or(own.project_id, |root| root.project_id),
        };
        let allowed = match reach.session {
            Some(id) => {
                let named = store.session(id).await?;
                let root = named.map(|named| named.root_id);
                if reach.is_about_work && !root.is_some_and(|root| agent.may_see_work(root)) {
                    return Err(EngineError::session_not_found(id));
                }
                !reach.decides || root.is_none_or(|root| agent.may_decide(root))
            }
            None => parameter.is_none() || agent.may_change_limits(reach.project),
        };
        if allowed { Ok(()) } else { Err(refused) }
    }

    async fn permit_agent_run(&self, own: SessionId, reach: &Reach) -> Result<()> {
        let Some(id) = reach.schedule else {
            return Ok(());
        };
        let store = self.store();
        let schedule = store.schedule(id).await?;
        let creator = schedule.and_then(|schedule| schedule.owner_session);
        let root = async |id: Option<SessionId>| -> Result<Option<SessionId>> {
            let Some(id) = id else { return Ok(None) };
            Ok(store.session(id).await?.map(|session| session.root_id))
        };
        if agent_may_start_schedule(root(Some(own)).await?, root(creator).await?) {
            Ok(())
        } else {
            Err(EngineError::refused(
                "an agent may start runs only of schedules that were created in its own tree of \
                 sessions",
            ))
        }
    }

    pub(crate) fn audit_entry(
        &self,
        actor: &Actor,
        operation: &str,
        project_id: Option<ProjectId>,
    ) -> AuditEntry {
        AuditEntry {
            at: self.now(),
            token_id: Some(actor.token_id),
            operation: operation.to_owned(),
            project_id,
            outcome: AuditOutcome::Ok,
            address: actor.address.clone(),
        }
    }
}

/// Turns a panic in a call into an error of that call.
pub(crate) async fn catch_panic<T>(running: impl Future<Output = Result<T>>) -> Result<T> {
    let outcome = AssertUnwindSafe(running).catch_unwind().await;
    outcome.unwrap_or_else(|panic| Err(EngineError::fault(panic_text(&*panic))))
}

/// Checks that the scope allows operations of this class at all.
fn permit_class(actor: &Actor, entry: &Entry) -> Result<()> {
    if allows_class(actor.scope, entry.access) {
        Ok(())
    } else {
        Err(refused_class(actor, entry))
    }
}

fn refused_class(actor: &Actor, entry: &Entry) -> EngineError {
    EngineError::refused_operation(actor.scope, entry.name, entry.access)
}

/// Decides about the projects of a call before any is looked up, so that a project that the token may
/// not reach and one that does not exist give the same error after the same work.
fn permit(actor: &Actor, entry: &Entry, reach: &Reach) -> Result<()> {
    if let Some(parameter) = reach.restricted
        && !allows_restricted_parameter(actor.scope)
    {
        return Err(EngineError::refused_restricted(actor.scope, parameter));
    }
    for project in reach.project.iter().chain(&reach.targets) {
        match allows(actor.scope, entry.access, &[*project]) {
            Decision::Allowed => {}
            Decision::Refused => return Err(refused_class(actor, entry)),
            Decision::Hidden => return Err(EngineError::project_not_found(project)),
        }
    }
    Ok(())
}

fn outcome(result: &Result<Value>) -> AuditOutcome {
    match result {
        Ok(_) => AuditOutcome::Ok,
        Err(EngineError::Refused { .. }) => AuditOutcome::Refused,
        Err(EngineError::Fault(_)) => AuditOutcome::Fault,
        Err(_) => AuditOutcome::Error,
    }
}

/// An error and its causes, for the log.
fn error_chain(error: &dyn std::error::Error) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_that_free_space_exist() {
        for name in FREES_SPACE {
            assert!(find(name).is_some(), "{name}");
        }
    }
}
