//! Questions of the gate about hosts that no rule names, and which session is asked.
//!
//! A question goes to the session whose turn in that container started last: which program waits is not known. Its actor
//! asks as for other permissions, and another session does when its turn ends first. If no turn runs there, the question
//! is refused at once.

use std::collections::HashMap;

use oubliette_gate::{Answer, Question};
use oubliette_model::{AwaitedRequestKind, Host, SessionId};
use oubliette_runtime::ContainerId;
use oubliette_store::{PendingDecision, Project};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::Network;
use super::gate_link::Change;
use crate::sessions::running_agent::RunningAgent;
use crate::{Engine, Result};

const NO_TURN: &str = "no turn runs in its container whose caller could be asked";

/// A question about a host, stored with its decision.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HostQuestion {
    pub(crate) question: String,
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl HostQuestion {
    pub(crate) fn of_decision(decision: &PendingDecision) -> Option<Self> {
        let is_own = decision.kind == AwaitedRequestKind::Network;
        let detail = is_own.then(|| serde_json::from_str(&decision.detail));
        detail?.ok()
    }
}

/// The questions that the gate has reported as open, and who is asked.
#[derive(Debug)]
pub(crate) struct OpenQuestions {
    reported: watch::Sender<Option<Vec<Question>>>,
    asked: Mutex<HashMap<String, AskedQuestion>>,
}

#[derive(Debug)]
struct AskedQuestion {
    question: Question,
    session: SessionId,
    /// The gate has not taken the answer yet.
    is_answered: bool,
}

impl Default for OpenQuestions {
    fn default() -> Self {
        Self {
            reported: watch::Sender::new(None),
            asked: Mutex::default(),
        }
    }
}

impl OpenQuestions {
    pub(super) fn reports(&self) -> watch::Sender<Option<Vec<Question>>> {
        self.reported.clone()
    }

    /// The questions that a session is asked and has not answered.
    pub(crate) fn of_session(&self, session: SessionId) -> Vec<Question> {
        let asked = self.asked.lock();
        let own = asked
            .values()
            .filter(|it| it.session == session && !it.is_answered);
        own.map(|it| it.question.clone()).collect()
    }

    /// Whether nothing waits for the answer any more. Unknown, and so false, until a gate has said what is open.
    pub(crate) fn is_withdrawn(&self, id: &str) -> bool {
        let reported = self.reported.borrow();
        let open = reported.as_ref();
        open.is_some_and(|open| open.iter().all(|question| question.id != id))
    }

    /// Forgets questions that are no longer open; the sessions that were asked.
    fn retain_open(&self, open: &[Question]) -> Vec<SessionId> {
        let mut asked = self.asked.lock();
        let mut sessions = Vec::new();
        asked.retain(|id, it| {
            let is_open = open.iter().any(|question| question.id == *id);
            if !is_open {
                sessions.push(it.session);
            }
            is_open
        });
        sessions
    }

    /// Takes out a question that has no answer.
    fn take_unanswered(&self, id: &str) -> Option<Question> {
        let mut asked = self.asked.lock();
        let is_open = asked.get(id).is_some_and(|it| !it.is_answered);
        let taken = is_open.then(|| asked.remove(id)).flatten();
        taken.map(|it| it.question)
    }

    pub(crate) fn count(&self) -> usize {
        self.asked.lock().len()
    }

    fn is_asked(&self, id: &str) -> bool {
        self.asked.lock().contains_key(id)
    }

    fn mark_answered(&self, id: &str) {
        if let Some(asked) = self.asked.lock().get_mut(id) {
            asked.is_answered = true;
        }
    }
}

impl Engine {
    /// Has sessions asked about hosts, until the engine stops.
    pub(super) async fn distribute_questions(&self) {
        // The session that was asked before the server was restarted must be found.
        self.wait_until_sessions_recovered().await;
        let questions = &self.parts.network.questions;
        let mut reports = questions.reported.subscribe();
        let mut is_first = true;
        loop {
            let open = reports.borrow_and_update().clone();
            if let Some(open) = open {
                if is_first {
                    // They may have questions of before that are withdrawn.
                    self.sessions().wake_all_running();
                    is_first = false;
                }
                for session in questions.retain_open(&open) {
                    self.sessions().wake_running(session);
                }
                for question in open {
                    if !questions.is_asked(&question.id) {
                        self.network().ask_session(question, None).await;
                    }
                }
            }
            if reports.changed().await.is_err() {
                return;
            }
        }
    }
}

impl Network<'_> {
    /// Has the actor of a session ask about a host.
    async fn ask_session(self, question: Question, except: Option<SessionId>) {
        match self.session_to_ask(&question, except).await {
            Ok(Some((session, project))) => {
                let questions = &self.state().questions;
                let asked = AskedQuestion {
                    question: question.clone(),
                    session,
                    is_answered: false,
                };
                questions.asked.lock().insert(question.id, asked);
                self.engine.sessions().wake(session, project.id);
            }
            Ok(None) => {
                self.engine.metrics().record_host_answer("no_turn");
                self.refuse(&question.id, NO_TURN, 0);
            }
            Err(error) => {
                tracing::warn!(%error, "could not find a session to ask about a host");
                self.refuse(&question.id, "the server failed to ask", 0);
            }
        }
    }

    /// Has another session of the same container ask, because the turn of the one that asked is over. The program that
    /// waits may be the other one's.
    pub(crate) async fn ask_another_session(self, question: &str, asked: SessionId) {
        // Without an entry, the gate has not reported it yet, and it is asked anew when it does.
        let open = self.state().questions.take_unanswered(question);
        if let Some(question) = open {
            self.ask_session(question, Some(asked)).await;
        }
    }

    /// The session that is asked already, or whose turn in the container started last.
    async fn session_to_ask(
        self,
        question: &Question,
        except: Option<SessionId>,
    ) -> Result<Option<(SessionId, Project)>> {
        let Some(container) = ContainerId::new(question.container.clone()) else {
            return Ok(None);
        };
        let Some(project) = self.engine.containers().project_of(&container).await? else {
            return Ok(None);
        };
        let store = self.engine.store();
        let mut newest = None;
        for id in self.engine.sessions().live_in_project(project.id) {
            let Some(session) = store.session(id).await? else {
                continue;
            };
            if except == Some(id) {
                continue;
            }
            let agent = RunningAgent::of_session(&session, &project);
            let agent = agent.filter(|agent| agent.container == container && agent.is_in_turn);
            let Some(agent) = agent else {
                continue;
            };
            let asked = store.decisions(id).await?;
            let mut asked = asked.iter().filter_map(HostQuestion::of_decision);
            if asked.any(|it| it.question == question.id) {
                return Ok(Some((id, project)));
            }
            let order = (agent.turn_started_at, session.created_at, id);
            newest = newest.max(Some(order));
        }
        Ok(newest.map(|(.., id)| (id, project)))
    }

    pub(crate) fn answer(self, question: &str, answer: Answer) {
        self.state().questions.mark_answered(question);
        let change = Change::Answer {
            question: question.to_owned(),
            answer,
        };
        // Without room, the gate is away or stuck: the connections that wait are refused when their time is over.
        if self.state().changes.try_send(change).is_err() {
            tracing::warn!(question, "an answer to the gate was dropped");
        }
    }

    /// Refuses the connections that wait for a question, and those of the next seconds.
    pub(crate) fn refuse(self, question: &str, reason: &str, seconds: u32) {
        let answer = Answer {
            is_allowed: false,
            seconds,
            reason: reason.to_owned(),
        };
        self.answer(question, answer);
    }

    /// Has others ask what a session without an actor cannot ask any more.
    pub(super) async fn release_questions(self, session: SessionId) {
        for question in self.state().questions.of_session(session) {
            self.ask_another_session(&question.id, session).await;
        }
    }

    /// Whether the rules that a container has now allow a host.
    pub(crate) fn allows_now(self, container: &ContainerId, host: &str, port: u16) -> bool {
        let registrations = self.state().registrations.lock();
        let rules = registrations.get(container.as_str()).map(|it| &it.rules);
        let (Some(rules), Ok(host)) = (rules, host.parse::<Host>()) else {
            return false;
        };
        rules.decide(&host, port).is_allowed
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn question(id: &str) -> Question {
        Question {
            id: id.to_owned(),
            container: "c".to_owned(),
            host: "new.org".to_owned(),
            port: 443,
            expires_at: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn a_question_is_withdrawn_only_when_a_gate_says_so() {
        let questions = OpenQuestions::default();
        assert!(!questions.is_withdrawn("1"));
        questions.reports().send_replace(Some(vec![question("1")]));
        assert!(!questions.is_withdrawn("1") && questions.is_withdrawn("2"));
        questions.reports().send_replace(Some(Vec::new()));
        assert!(questions.is_withdrawn("1"));
    }

    #[test]
    fn an_answered_question_is_not_asked_again_while_the_gate_still_has_it() {
        let questions = OpenQuestions::default();
        let session = SessionId::new(uuid::Uuid::nil());
        let asked = AskedQuestion {
            question: question("1"),
            session,
            is_answered: false,
        };
        questions.asked.lock().insert("1".to_owned(), asked);
        assert_eq!(questions.of_session(session), [question("1")]);
        questions.mark_answered("1");
        assert!(questions.of_session(session).is_empty() && questions.is_asked("1"));
        assert_eq!(questions.take_unanswered("1"), None);
        assert_eq!(questions.retain_open(&[question("1")]), []);
        assert_eq!(questions.retain_open(&[]), [session]);
        assert!(!questions.is_asked("1"));
    }
}
