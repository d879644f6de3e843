//! Questions about hosts that no rule of the project names, which a program in the container of the session connects to.
//!
//! No level of autonomy answers them.

use oubliette_gate::{Answer, Question};
use oubliette_model::{AwaitedRequestKind, HostPattern, PermissionDecision};
use oubliette_runtime::ContainerId;
use oubliette_store::{AuditEntry, AuditOutcome, PendingDecision};
use serde_json::json;

use super::{ActorError, SessionActor};
use crate::EngineError;
use crate::network::questions::HostQuestion;
use crate::operations::Operation;
use crate::sessions::permit::HostAnswer;

const NOT_ANSWERED: &str = "no caller answered the question about it in time";
const DENIED: &str = "a caller who was asked denied it";
const ALLOWED: &str = "allowed by a caller who was asked";
/// How long a host that was allowed once can be connected to: a program may try again, or open several connections.
const ALLOWED_ONCE_SECONDS: u32 = 60;
/// How long a host that was denied is not asked about again.
const DENIED_SECONDS: u32 = 600;
/// Of one session: more cannot be read by those who allow them.
const MAX_SESSION_HOSTS: usize = 200;

impl SessionActor<'_> {
    /// Asks what the gate asks this session, unless it is asked already.
    pub(super) async fn ask_about_hosts(&mut self) -> Result<(), ActorError> {
        let questions = self
            .engine
            .parts
            .network
            .questions
            .of_session(self.session.id);
        if questions.is_empty() {
            return Ok(());
        }
        let asked = self.engine.store().decisions(self.session.id).await?;
        let asked: Vec<String> = asked
            .iter()
            .filter_map(HostQuestion::of_decision)
            .map(|asked| asked.question)
            .collect();
        for question in questions {
            if asked.contains(&question.id) {
                continue;
            }
            let turn = self.process.turn();
            if turn.is_some_and(|turn| turn.cancelled.is_none()) {
                self.ask_about_host(question).await?;
            } else {
                let network = self.engine.network();
                network
                    .ask_another_session(&question.id, self.session.id)
                    .await;
            }
        }
        Ok(())
    }

    async fn ask_about_host(&mut self, question: Question) -> Result<(), ActorError> {
        if let Some(live) = &mut self.process.live {
            self.step.events.end_text(live);
        }
        let Question { id, host, port, .. } = question;
        let title = format!("Connect to {host}:{port}, which no rule of the project names");
        let options = ["allow", "allow_always", "allow_project", "deny"];
        let input = json!({ "host": host, "port": port, "decisions": options });
        let detail = HostQuestion {
            question: id,
            host,
            port,
        };
        let detail = serde_json::to_string(&detail).map_err(EngineError::fault)?;
        let deadline = self.permission_deadline().min(question.expires_at);
        self.request_decision_until(AwaitedRequestKind::Network, title, input, detail, deadline)
            .await
            .map(drop)
    }

    /// Whether nothing waits for a decision any more.
    pub(super) fn is_withdrawn(&self, decision: &PendingDecision) -> bool {
        let asked = HostQuestion::of_decision(decision);
        let questions = &self.engine.parts.network.questions;
        decision.verdict.is_none()
            && asked.is_some_and(|asked| questions.is_withdrawn(&asked.question))
    }

    /// Tells the gate what was decided; without a verdict, that no caller answered.
    pub(super) async fn apply_host_decision(
        &mut self,
        decision: &PendingDecision,
    ) -> Result<(), ActorError> {
        let Some(asked) = HostQuestion::of_decision(decision) else {
            return Ok(());
        };
        let network = self.engine.network();
        let seconds = match decision.verdict {
            None => {
                network.refuse(&asked.question, NOT_ANSWERED, 0);
                return Ok(());
            }
            Some(PermissionDecision::Deny) => {
                network.refuse(&asked.question, DENIED, DENIED_SECONDS);
                return Ok(());
            }
            Some(PermissionDecision::Allow) => ALLOWED_ONCE_SECONDS,
            Some(PermissionDecision::AllowAlways) => {
                self.allow_for_session(&asked).await;
                0
            }
            Some(PermissionDecision::AllowProject) => {
                self.allow_for_project(&asked, decision.answer.as_deref())
                    .await;
                0
            }
        };
        let answer = Answer {
            is_allowed: true,
            seconds,
            reason: ALLOWED.to_owned(),
        };
        network.answer(&asked.question, answer);
        Ok(())
    }

    /// Whether no program waits for a decision any more because a rule allows the host.
    pub(super) fn is_allowed_by_rule(&self, decision: &PendingDecision) -> bool {
        let live = self.process.live.as_ref();
        let container = live.map(|live| live.container_id(&self.project));
        let asked = HostQuestion::of_decision(decision);
        let network = self.engine.network();
        container.zip(asked).is_some_and(|(container, asked)| {
            network.allows_now(&container, &asked.host, asked.port)
        })
    }

    /// Leaves a question to another session of the same container, because this one's turn is over.
    pub(super) async fn release_host(&self, decision: &PendingDecision) {
        if let Some(asked) = HostQuestion::of_decision(decision) {
            let network = self.engine.network();
            network
                .ask_another_session(&asked.question, self.session.id)
                .await;
        }
    }

    async fn allow_for_session(&mut self, asked: &HostQuestion) {
        let hosts = &mut self.session.choices.network_allowed;
        let Some(pattern) = pattern_of(asked) else {
            return;
        };
        if hosts.contains(&pattern) {
            return;
        }
        if hosts.len() >= MAX_SESSION_HOSTS {
            self.step.events.log(format!(
                "{pattern} is allowed this time only: {MAX_SESSION_HOSTS} hosts are allowed for the session already"
            ));
            return;
        }
        hosts.push(pattern);
        self.step.changes.network_allowed = Some(hosts.clone());
        let live = self.process.live.as_ref();
        if let Some(container) = live.map(|live| live.container_id(&self.project)) {
            self.set_session_hosts(&container).await;
        }
    }

    /// Lets a container reach what this session may.
    pub(super) async fn set_session_hosts(&self, container: &ContainerId) {
        let hosts = self.session.choices.network_allowed.clone();
        let network = self.engine.network();
        network
            .set_session_hosts(self.session.id, container, hosts)
            .await;
    }

    /// Adds a rule to the project, which leads only to public addresses: the agent chose the name.
    async fn allow_for_project(&mut self, asked: &HostQuestion, answer: Option<&str>) {
        let Some(pattern) = pattern_of(asked) else {
            return;
        };
        let by = answer.and_then(|answer| serde_json::from_str::<HostAnswer>(answer).ok());
        let audit = by.map(|by| AuditEntry {
            at: self.engine.now(),
            token_id: Some(by.token_id),
            operation: crate::network::allow::Allow::NAME.to_owned(),
            project_id: Some(self.project.id),
            outcome: AuditOutcome::Ok,
            address: by.address,
        });
        let network = self.engine.network();
        // Who answered was permitted to when the answer was stored.
        let allowed = network
            .allow(self.project.id, pattern, (None, false), audit)
            .await;
        if let Err(error) = allowed {
            let HostQuestion { host, port, .. } = asked;
            self.step.events.log(format!(
                "{host}:{port} is allowed this time, and could not be added to the rules of the project: {error}"
            ));
        }
    }
}

/// The rule that allows what was asked.
fn pattern_of(asked: &HostQuestion) -> Option<HostPattern> {
    let host: HostPattern = asked.host.parse().ok()?;
    Some(host.with_port(asked.port))
}
