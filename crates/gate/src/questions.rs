//! Questions about hosts that no rule names: connections wait for the answer, for a bounded time and in bounded
//! number. All connections of a container to the same host and port wait for one question.
//!
//! The server always gets the whole set of open questions, so that none is lost when it is restarted, and one that is
//! missing has been withdrawn.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use oubliette_model::{Host, NetworkRules, Verdict};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;
use tokio::sync::watch;

use crate::container::{ContainerGate, Gate};

/// How long connections wait for an answer.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(120);
/// Open questions of one container.
const MAX_CONTAINER_QUESTIONS: usize = 8;
/// Open questions of all containers.
const MAX_QUESTIONS: usize = 1024;
/// Questions that one container asks in the interval: a program that connects to ever other hosts, and waits for no answer,
/// must not fill the log of a session.
const MAX_RECENT_QUESTIONS: usize = 32;
const RECENT_INTERVAL: Duration = Duration::from_secs(600);
/// Connections of one container that wait for answers.
const MAX_WAITING_CONNECTIONS: usize = 128;
/// Answers of one container that are remembered.
const MAX_REMEMBERED_ANSWERS: usize = 256;
/// Of what a program sends before it is answered.
const MAX_EARLY_BYTES: usize = 64 << 10;

/// A question about a host that no rule names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// No other gate has the same.
    pub id: String,
    pub container: String,
    pub host: String,
    pub port: u16,
    /// The connections that wait are refused then.
    pub expires_at: Timestamp,
}

/// The answer to a question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    pub is_allowed: bool,
    /// For how long the same answer is given to connections to the same host and port.
    #[serde(default)]
    pub seconds: u32,
    /// What decided.
    pub reason: String,
}

/// The questions of one container.
#[derive(Debug, Default)]
pub(crate) struct Questions(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    open: HashMap<(Host, u16), OpenQuestion>,
    /// Of all open questions.
    waiting: usize,
    remembered: HashMap<(Host, u16), (Answer, Instant)>,
    /// When the questions of the last interval were asked, oldest first.
    asked: VecDeque<Instant>,
}

impl State {
    /// Why another question cannot be asked.
    fn refusal(&mut self, now: Instant) -> Option<&'static str> {
        if self.open.len() >= MAX_CONTAINER_QUESTIONS {
            return Some("too many questions of this container are open");
        }
        let is_over = |at: &mut Instant| now.duration_since(*at) >= RECENT_INTERVAL;
        while self.asked.pop_front_if(is_over).is_some() {}
        let has_asked_enough = self.asked.len() >= MAX_RECENT_QUESTIONS;
        has_asked_enough
            .then_some("this container has asked too many questions in the last minutes")
    }
}

#[derive(Debug)]
struct OpenQuestion {
    question: Question,
    /// Connections that wait for it.
    waiting: usize,
    answer: watch::Sender<Option<Answer>>,
}

impl Questions {
    fn open(&self) -> Vec<Question> {
        let state = self.0.lock();
        state.open.values().map(|it| it.question.clone()).collect()
    }

    /// Answers a question and remembers the answer; false if it is not open here.
    fn answer(&self, id: &str, answer: &Answer, now: Instant) -> bool {
        let mut state = self.0.lock();
        let mut open = state.open.iter();
        let Some(key) = open.find_map(|(key, it)| (it.question.id == id).then(|| key.clone()))
        else {
            return false;
        };
        let until = now + Duration::from_secs(answer.seconds.into());
        state.remembered.retain(|_, (_, until)| *until > now);
        if answer.seconds > 0 && state.remembered.len() < MAX_REMEMBERED_ANSWERS {
            state
                .remembered
                .insert(key.clone(), (answer.clone(), until));
        }
        if let Some(answered) = state.open.remove(&key) {
            answered.answer.send_replace(Some(answer.clone()));
        }
        true
    }

    fn remembered(&self, key: &(Host, u16), now: Instant) -> Option<Answer> {
        let state = self.0.lock();
        let (answer, until) = state.remembered.get(key)?;
        (*until > now).then(|| answer.clone())
    }
}

impl Gate {
    /// The open questions of all containers.
    pub(crate) fn open_questions(&self) -> Vec<Question> {
        let containers = self.all_containers();
        let open = containers.iter().flat_map(|it| it.questions.open());
        open.collect()
    }

    /// Answers a question, if it is still open.
    pub(crate) fn answer(&self, id: &str, answer: &Answer) {
        let containers = self.all_containers();
        let now = Instant::now();
        if containers
            .iter()
            .any(|it| it.questions.answer(id, answer, now))
        {
            self.questions_changed.send_replace(());
        }
    }
}

/// A connection that waits for an answer. The question is withdrawn with the last one.
struct Waiting<'a> {
    gate: &'a Gate,
    container: &'a ContainerGate,
    key: (Host, u16),
    id: String,
    expires_at: Timestamp,
    answer: watch::Receiver<Option<Answer>>,
}

impl<'a> Waiting<'a> {
    /// Joins the question about a host, or asks it.
    fn start(
        gate: &'a Gate,
        container: &'a ContainerGate,
        key: (Host, u16),
    ) -> Result<Self, &'static str> {
        let is_new = !container.questions.0.lock().open.contains_key(&key);
        // Counted before this container's questions are locked. The number may be passed by as many as ask at this moment.
        if is_new && gate.open_questions().len() >= MAX_QUESTIONS {
            return Err("too many questions are open on this server");
        }
        let mut state = container.questions.0.lock();
        if state.waiting >= MAX_WAITING_CONNECTIONS {
            return Err("too many connections of this container wait for an answer");
        }
        if !state.open.contains_key(&key) {
            let now = Instant::now();
            if let Some(why) = state.refusal(now) {
                return Err(why);
            }
            state.asked.push_back(now);
        }
        let open = state.open.entry(key.clone()).or_insert_with(|| {
            let timeout = SignedDuration::try_from(QUESTION_TIMEOUT).unwrap_or_default();
            let question = Question {
                id: format!("{}-{}", gate.gateway.id, gate.next_connection_number()),
                container: container.id.clone(),
                host: key.0.to_string(),
                port: key.1,
                expires_at: Timestamp::now() + timeout,
            };
            OpenQuestion {
                question,
                waiting: 0,
                answer: watch::Sender::new(None),
            }
        });
        open.waiting += 1;
        let is_first = open.waiting == 1;
        let (id, expires_at) = (open.question.id.clone(), open.question.expires_at);
        let answer = open.answer.subscribe();
        state.waiting += 1;
        drop(state);
        if is_first {
            gate.questions_changed.send_replace(());
        }
        Ok(Self {
            gate,
            container,
            key,
            id,
            expires_at,
            answer,
        })
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.container.questions.0.lock();
        state.waiting -= 1;
        let Some(open) = state.open.get_mut(&self.key) else {
            return;
        };
        // Another one about the same host may have been asked since this one was answered.
        if open.question.id != self.id {
            return;
        }
        open.waiting -= 1;
        if open.waiting == 0 {
            state.open.remove(&self.key);
            drop(state);
            self.gate.questions_changed.send_replace(());
        }
    }
}

/// What came of a question.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The rules allow it now.
    ByRules,
    /// An answer allows it.
    Allowed(String),
    Refused(String),
    /// The program has closed its connection.
    Gone,
}

/// Asks whether a host that the rules do not name may be reached, and waits for the answer, for other rules or for the
/// end of the program. `early` gets what the program sends meanwhile.
pub(crate) async fn ask(
    gate: &Gate,
    container: &ContainerGate,
    (host, port): (&Host, u16),
    miss: &Verdict,
    (program, early): (&UnixStream, &mut Vec<u8>),
) -> Outcome {
    let refused = |why: &str| {
        let rule = &miss.rule;
        Outcome::Refused(format!(
            "{rule}, and {why}; `network_allow` of {host}:{port} allows it"
        ))
    };
    let outcome_of = |answer: Answer| {
        if answer.is_allowed {
            Outcome::Allowed(answer.reason)
        } else {
            refused(&answer.reason)
        }
    };
    let key = (host.clone(), port);
    if let Some(answer) = container.questions.remembered(&key, Instant::now()) {
        return outcome_of(answer);
    }
    let mut waiting = match Waiting::start(gate, container, key) {
        Ok(waiting) => waiting,
        Err(why) => return refused(why),
    };
    let left = Timestamp::now().duration_until(waiting.expires_at);
    let left = Duration::try_from(left).unwrap_or_default();
    let answered = async {
        match waiting.answer.wait_for(Option::is_some).await {
            Ok(answer) => answer.clone().map_or(Outcome::Gone, outcome_of),
            // The sender was dropped without an answer.
            Err(_) => Outcome::Gone,
        }
    };
    tokio::select! {
        outcome = answered => outcome,
        outcome = rules_that_decide(container.rules(), host, port) => outcome,
        () = until_closed(program, early) => Outcome::Gone,
        () = tokio::time::sleep(left) => refused("no caller answered the question about it in time"),
    }
}

/// Waits for rules that name the host.
async fn rules_that_decide(
    mut changes: watch::Receiver<Arc<NetworkRules>>,
    host: &Host,
    port: u16,
) -> Outcome {
    loop {
        // The rules may have changed since they were read for this connection.
        let verdict = changes.borrow_and_update().decide(host, port);
        if verdict.is_allowed {
            return Outcome::ByRules;
        }
        if !verdict.is_askable {
            return Outcome::Refused(verdict.rule);
        }
        if changes.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// Waits until the other end is closed. What it sends is kept, up to a maximum; after that nothing is noticed.
async fn until_closed(stream: &UnixStream, early: &mut Vec<u8>) {
    let mut buffer = [0; 4096];
    while early.len() < MAX_EARLY_BYTES {
        if stream.readable().await.is_err() {
            return;
        }
        match stream.try_read(&mut buffer) {
            Ok(0) => return,
            Ok(read) => early.extend_from_slice(&buffer[..read]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
    std::future::pending::<()>().await;
}

#[cfg(test)]
mod tests;
