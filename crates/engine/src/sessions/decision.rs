//! Decisions that somebody outside takes while a session waits.

use jiff::SignedDuration;
use oubliette_agent::{AutonomyPolicy, PermissionRequest, ToolEnforcement};
use oubliette_model::{Event, Happening, Status, Verdict, Waiting, WaitingKind, quoted};
use oubliette_store::Decision;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;
use uuid::Uuid;

use super::owner::{Owner, Stop};
use crate::EngineError;

/// What the owner needs to carry out the answer to an agent's question.
#[derive(Debug, Serialize, Deserialize)]
struct Question {
    /// An agent's ids begin again with its process.
    process_id: String,
    permission: PermissionRequest,
}

impl Owner<'_> {
    /// The agent asks whether it may do something.
    pub(super) async fn hear_question(&mut self, id: &str, params: &Value) -> Result<(), Stop> {
        let permission = PermissionRequest::parse(id, params);
        let cancelled = self
            .live
            .as_ref()
            .and_then(|live| live.turn.as_ref()?.cancelled);
        if cancelled.is_some() {
            self.send(permission.cancelled_response());
            return Ok(());
        }
        let asks_for_all = matches!(
            self.agent.tool_enforcement,
            ToolEnforcement::PermissionRequests { .. }
        );
        if asks_for_all && !self.tools().permits(permission.tool_name()) {
            let tool = quoted(permission.tool_name());
            if let Some(live) = &mut self.live {
                self.scribe.close(live);
            }
            self.scribe.events.push(Event::log(format!(
                "the tool {tool} is not one of those that the session may use, and was denied"
            )));
            self.send(permission.response(Verdict::Deny));
            return Ok(());
        }
        if AutonomyPolicy(self.autonomy()).allows(&permission) {
            self.send(permission.response(Verdict::Allow));
            return Ok(());
        }
        let Some(live) = &mut self.live else {
            return Ok(());
        };
        self.scribe.close(live);
        if let Some(id) = &permission.tool_call_id {
            self.scribe.tell(live, id);
        }
        // What some agents leave out here they have said when the tool was announced.
        let known = permission
            .tool_call_id
            .as_ref()
            .and_then(|id| live.tools.get(id));
        let title = match (permission.title.is_empty(), known) {
            (true, Some(tool)) => tool.title.clone(),
            _ => permission.title.clone(),
        };
        let question = Question {
            process_id: live.process_id.clone(),
            permission,
        };
        let detail = serde_json::to_string(&question).map_err(EngineError::fault)?;
        let input = question.permission.input;
        self.ask(WaitingKind::Permission, title, input, detail)
            .await
    }

    /// Has somebody decide something, and waits for it.
    pub(super) async fn ask(
        &mut self,
        kind: WaitingKind,
        title: String,
        input: Value,
        detail: String,
    ) -> Result<(), Stop> {
        let seconds = self.engine.settings().sessions.permission_seconds;
        let seconds = i64::try_from(seconds).unwrap_or(i64::MAX / 1000);
        let until = self.engine.now() + SignedDuration::from_secs(seconds);
        let request_id = Uuid::new_v4().to_string();
        self.scribe.events.push(Event::PermissionRequest {
            request_id: request_id.clone(),
            kind,
            title,
            input,
            expires_at: until,
        });
        self.step.decisions.push(Decision {
            request_id: request_id.clone(),
            kind,
            detail,
            deadline: until,
            verdict: None,
            answer: None,
        });
        self.wait_for(Waiting {
            kind,
            request_id,
            until,
        });
        self.commit().await
    }

    pub(super) fn wait_for(&mut self, waiting: Waiting) {
        let Some(status) = self.session.status.after(Happening::Asked) else {
            return;
        };
        if self.session.status == Status::Waiting && self.session.waiting.is_some() {
            return;
        }
        self.session.status = status;
        self.session.waiting = Some(waiting.clone());
        self.step.status = Some(status);
        self.step.waiting = Some(Some(waiting.clone()));
        self.scribe.events.push(Event::Status {
            status,
            waiting_for: Some(waiting),
            error: None,
        });
    }

    /// Carries out decisions that were taken, or that took too long.
    pub(super) async fn settle_decisions(&mut self) -> Result<(), Stop> {
        let now = self.engine.now();
        let all = self.engine.store().decisions(self.session.id).await?;
        let (due, open): (Vec<Decision>, Vec<Decision>) = all
            .into_iter()
            .partition(|decision| decision.verdict.is_some() || decision.deadline <= now);
        if due.is_empty() {
            return Ok(());
        }
        for decision in due {
            let (verdict, by) = match decision.verdict {
                Some(verdict) => (verdict, "caller"),
                None => (Verdict::Deny, "deadline"),
            };
            match decision.kind {
                WaitingKind::Permission => self.answer(&decision.detail, Some(verdict)),
                WaitingKind::Budget => self.decide_budget(verdict, decision.answer).await?,
                WaitingKind::CallerTool => {}
            }
            self.scribe.events.push(Event::PermissionAnswer {
                request_id: decision.request_id.clone(),
                decision: verdict,
                by: by.to_owned(),
            });
            self.step.decisions_done.push(decision.request_id);
        }
        match open.into_iter().next() {
            Some(next) => {
                self.session.waiting = None;
                self.wait_for(Waiting {
                    kind: next.kind,
                    request_id: next.request_id,
                    until: next.deadline,
                });
            }
            None => {
                let in_turn = self.live.as_ref().is_some_and(|live| live.turn.is_some());
                self.become_status(match in_turn {
                    true => Happening::Settled,
                    false => Happening::TurnEnded,
                });
            }
        }
        self.last_sign = Instant::now();
        self.commit().await
    }

    /// Answers a question of the agent that still runs; `None` takes the question back.
    pub(super) fn answer(&mut self, detail: &str, verdict: Option<Verdict>) {
        let Ok(question) = serde_json::from_str::<Question>(detail) else {
            return;
        };
        let live = self.live.as_ref();
        if live.is_some_and(|live| live.process_id == question.process_id) {
            self.send(match verdict {
                Some(verdict) => question.permission.response(verdict),
                None => question.permission.cancelled_response(),
            });
        }
    }

    /// Takes back every open question: what asked it is over.
    pub(super) async fn withdraw_decisions(&mut self, by: &str) -> Result<(), Stop> {
        for decision in self.engine.store().decisions(self.session.id).await? {
            if decision.kind == WaitingKind::Permission {
                self.answer(&decision.detail, None);
            }
            self.scribe.events.push(Event::PermissionAnswer {
                request_id: decision.request_id.clone(),
                decision: Verdict::Deny,
                by: by.to_owned(),
            });
            self.step.decisions_done.push(decision.request_id);
        }
        Ok(())
    }
}
