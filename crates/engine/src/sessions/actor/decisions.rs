//! Decisions that a session waits for: permissions for tools, hosts that may be reached, and a higher cost limit.

use jiff::{SignedDuration, Timestamp};
use oubliette_agent::{AutonomyDecision, AutonomyPolicy, PermissionRequest, ToolEnforcement};
use oubliette_model::{
    AwaitedRequest, AwaitedRequestKind, Event, Level, PermissionDecision, Status, Transition,
    quoted,
};
use oubliette_store::PendingDecision;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use super::budget::is_held_request;
use super::event_builder::input_of;
use super::{ActorError, RESTORE_PAGE_BYTES, RESTORE_PAGE_EVENTS, SessionActor};
use crate::EngineError;
use crate::workspaces::path_in_container;

/// A permission request of an agent, stored with its decision.
#[derive(Debug, Serialize, Deserialize)]
struct PermissionDetail {
    /// Request ids are only unique within one process.
    process_id: String,
    permission: PermissionRequest,
}

impl SessionActor<'_> {
    /// Answers a permission request of the agent, or stores it for a caller to decide.
    pub(super) async fn handle_permission_request(
        &mut self,
        id: &str,
        params: &Value,
    ) -> Result<(), ActorError> {
        let mut permission = PermissionRequest::parse(id, params);
        let turn = self.process.turn();
        if turn.is_some_and(|turn| turn.cancelled.is_some()) {
            self.send(permission.cancelled_response());
            return Ok(());
        }
        self.ensure_turn();
        self.describe_permission(&mut permission).await?;
        let asks_for_all = matches!(
            self.agent.tool_enforcement,
            ToolEnforcement::PermissionRequests { .. }
        );
        if asks_for_all && !self.tools().permits(permission.tool_name()) {
            let tool = quoted(permission.tool_name());
            if let Some(live) = &mut self.process.live {
                self.step.events.end_text(live);
            }
            self.step.events.log(format!(
                "the tool {tool} was denied: the session may not use it"
            ));
            self.send(permission.response(PermissionDecision::Deny));
            return Ok(());
        }
        if self.is_allowed_by_level(&permission).await {
            self.send(permission.response(PermissionDecision::Allow));
            return Ok(());
        }
        let Some(live) = &mut self.process.live else {
            return Ok(());
        };
        self.step.events.end_text(live);
        self.step.events.add_requested_call(live, &permission);
        let title = permission.title.clone();
        let detail = PermissionDetail {
            process_id: live.process_id.clone(),
            permission,
        };
        let stored = serde_json::to_string(&detail).map_err(EngineError::fault)?;
        let input = detail.permission.input;
        self.request_decision(AwaitedRequestKind::Permission, title, input, stored)
            .await
    }

    /// Whether the level of autonomy allows a request, which is logged then.
    async fn is_allowed_by_level(&mut self, permission: &PermissionRequest) -> bool {
        let level = self.autonomy();
        if level == Level::High {
            return true;
        }
        let workspace = &self.session.workspace_id;
        let policy = AutonomyPolicy {
            level,
            agent: &self.agent,
            workspace: &path_in_container(workspace),
        };
        let allowed = match policy.decide(permission) {
            // Not by an option that allows more than this call.
            _ if !permission.can_allow_once() => false,
            AutonomyDecision::Allow => true,
            AutonomyDecision::Ask => false,
            AutonomyDecision::AllowEdit(paths) => {
                let files = self.engine.files();
                !files
                    .leads_through_link(self.project.id, workspace, paths)
                    .await
            }
        };
        if allowed {
            if let Some(live) = &mut self.process.live {
                self.step.events.end_text(live);
            }
            let title = quoted(&permission.title);
            self.step
                .events
                .log(format!("allowed at the level `{level}`: {title}"));
        }
        allowed
    }

    /// Adds to a request what the agent said about the tool call when it announced it.
    async fn describe_permission(
        &mut self,
        permission: &mut PermissionRequest,
    ) -> Result<(), ActorError> {
        let Some(live) = &self.process.live else {
            return Ok(());
        };
        if !self.step.events.complete_request(live, permission) {
            return Ok(());
        }
        let (Some(turn), Some(id)) = (&live.turn, &permission.tool_call_id) else {
            return Ok(());
        };
        let mut since = turn.start_index - 1;
        loop {
            let (limit, bytes) = (RESTORE_PAGE_EVENTS, RESTORE_PAGE_BYTES);
            let store = self.engine.store();
            let page = store.events(self.session.id, since, limit, bytes).await?;
            let Some(last) = page.last() else {
                return Ok(());
            };
            since = last.index;
            for event in page {
                let event = serde_json::from_str(&event.body).map_err(EngineError::fault)?;
                if let Some(input) = input_of(&event, id) {
                    permission.input = input;
                    return Ok(());
                }
            }
        }
    }

    /// Asks callers to decide something; the session waits for that.
    pub(super) async fn request_decision(
        &mut self,
        kind: AwaitedRequestKind,
        title: String,
        input: Value,
        detail: String,
    ) -> Result<(), ActorError> {
        let deadline = self.permission_deadline();
        self.request_decision_until(kind, title, input, detail, deadline)
            .await
            .map(drop)
    }

    pub(super) fn permission_deadline(&self) -> Timestamp {
        let timeout_seconds = self.engine.settings().sessions.permission_seconds;
        let seconds = i64::try_from(timeout_seconds).unwrap_or(i64::MAX / 1000);
        self.engine.now() + SignedDuration::from_secs(seconds)
    }

    /// The same with another deadline; the id of the request.
    pub(super) async fn request_decision_until(
        &mut self,
        kind: AwaitedRequestKind,
        title: String,
        input: Value,
        detail: String,
        deadline: Timestamp,
    ) -> Result<String, ActorError> {
        let request_id = Uuid::new_v4().to_string();
        self.step.events.push(Event::PermissionRequest {
            request_id: request_id.clone(),
            kind,
            title,
            input,
            expires_at: deadline,
        });
        self.step.changes.decisions.push(PendingDecision {
            request_id: request_id.clone(),
            kind,
            detail,
            deadline,
            verdict: None,
            answer: None,
        });
        if self.session.status != Status::Waiting || self.session.waiting.is_none() {
            self.wait_for_decision(AwaitedRequest {
                kind,
                request_id: request_id.clone(),
                until: deadline,
            });
        }
        self.commit().await?;
        Ok(request_id)
    }

    fn wait_for_decision(&mut self, waiting: AwaitedRequest) {
        if let Some(status) = self.session.status.after(Transition::WaitStarted) {
            self.set_status(status, Some(waiting), None);
        }
    }

    /// Applies decisions that were taken or whose deadline is over.
    pub(super) async fn apply_decisions(&mut self) -> Result<(), ActorError> {
        let now = self.engine.now();
        let all = self.engine.store().decisions(self.session.id).await?;
        let (due, open): (Vec<PendingDecision>, Vec<PendingDecision>) =
            all.into_iter().partition(|decision| {
                let is_decided = decision.verdict.is_some() || decision.deadline <= now;
                is_decided || self.is_withdrawn(decision)
            });
        if due.is_empty() {
            return Ok(());
        }
        let mut is_raised = false;
        let mut refuses_calls = false;
        for decision in due {
            let (verdict, by) = match decision.verdict {
                Some(verdict) => (verdict, "caller"),
                None if decision.deadline <= now => (PermissionDecision::Deny, "deadline"),
                None if self.is_allowed_by_rule(&decision) => (PermissionDecision::Allow, "rule"),
                None => (PermissionDecision::Deny, "withdrawn"),
            };
            match decision.kind {
                AwaitedRequestKind::Permission => {
                    self.answer_permission(&decision.detail, Some(verdict));
                }
                AwaitedRequestKind::Budget => {
                    let is_of_turn = is_held_request(&decision);
                    if verdict != PermissionDecision::Deny {
                        is_raised = true;
                        self.raise_budget(decision.answer).await?;
                    } else if is_of_turn {
                        refuses_calls = true;
                    } else {
                        self.end_queued_messages().await?;
                    }
                    if is_of_turn {
                        self.held_request = None;
                    }
                }
                AwaitedRequestKind::Network => {
                    let outcome = if by == "caller" { verdict.as_str() } else { by };
                    self.engine.metrics().record_host_answer(outcome);
                    self.apply_host_decision(&decision).await?;
                }
                AwaitedRequestKind::CallerTool => {}
            }
            self.close_decision(decision.request_id, verdict, by);
        }
        if refuses_calls {
            self.engine.gateway().refuse_held(self.session.id);
        }
        self.wait_for_next_decision(open);
        self.commit().await?;
        if is_raised {
            self.engine.gateway().budget_raised(self.session.root_id);
        }
        Ok(())
    }

    /// Waits for the next of the decisions that are open, or no longer for any.
    fn wait_for_next_decision(&mut self, open: Vec<PendingDecision>) {
        match open.into_iter().next() {
            Some(next) => self.wait_for_decision(AwaitedRequest {
                kind: next.kind,
                request_id: next.request_id,
                until: next.deadline,
            }),
            None if self.process.in_turn() => self.transition(Transition::WaitEnded),
            None => self.transition(Transition::TurnEnded),
        }
        self.deadlines.record_progress();
    }

    /// Closes a decision that nothing waits for any more.
    pub(super) async fn withdraw_decision(
        &mut self,
        request_id: String,
        decision: PermissionDecision,
    ) -> Result<(), ActorError> {
        let mut open = self.engine.store().decisions(self.session.id).await?;
        let count = open.len();
        open.retain(|other| other.request_id != request_id);
        if open.len() == count {
            return Ok(());
        }
        self.close_decision(request_id, decision, "withdrawn");
        self.wait_for_next_decision(open);
        self.commit().await
    }

    /// Answers a permission request if the process that sent it still runs; without a verdict, the
    /// request is withdrawn.
    fn answer_permission(&mut self, detail: &str, verdict: Option<PermissionDecision>) {
        let Ok(detail) = serde_json::from_str::<PermissionDetail>(detail) else {
            return;
        };
        let live = self.process.live.as_ref();
        if live.is_some_and(|live| live.process_id == detail.process_id) {
            self.send(match verdict {
                Some(verdict) => detail.permission.response(verdict),
                None => detail.permission.cancelled_response(),
            });
        }
    }

    fn close_decision(&mut self, request_id: String, decision: PermissionDecision, by: &str) {
        self.step.events.push(Event::PermissionAnswer {
            request_id: request_id.clone(),
            decision,
            by: by.to_owned(),
        });
        self.step.changes.removed_decisions.push(request_id);
    }

    /// Withdraws every open decision because its turn is over.
    pub(super) async fn withdraw_decisions(&mut self) -> Result<(), ActorError> {
        for decision in self.engine.store().decisions(self.session.id).await? {
            if decision.kind == AwaitedRequestKind::Permission {
                self.answer_permission(&decision.detail, None);
            }
            if decision.kind == AwaitedRequestKind::Network {
                self.engine.metrics().record_host_answer("interrupt");
                self.release_host(&decision).await;
            }
            self.close_decision(decision.request_id, PermissionDecision::Deny, "interrupt");
        }
        self.held_request = None;
        Ok(())
    }
}
