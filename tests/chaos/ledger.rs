//! What the server accepted, and whether its logs agree.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::StreamExt;
use serde_json::{Value, json};
use support::{Modern, Random, Reply};
use tokio::time::Instant;

/// How long sessions may take to come to rest when no more work arrives.
const REST_TIMEOUT: Duration = Duration::from_secs(240);
/// An agent that hangs is killed only after a while, so sessions are interrupted many at once.
const SESSIONS_AT_ONCE: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    projects: Vec<String>,
    sessions: HashMap<String, SessionEntry>,
    /// How often each operation had each kind of outcome.
    outcomes: BTreeMap<(String, &'static str), u64>,
    defects: Vec<String>,
    markers: u64,
}

#[derive(Debug, Default)]
struct SessionEntry {
    project: String,
    /// Markers of prompts, and whether the server is known to have accepted them.
    prompts: Vec<(String, bool)>,
    /// Something was done that drops queued messages: an end, a deletion of the session or project.
    may_drop: bool,
}

impl Ledger {
    pub(crate) fn next_marker(&self) -> String {
        let mut entries = self.0.lock().unwrap();
        entries.markers += 1;
        format!("marker-{}-", entries.markers)
    }

    pub(crate) fn add_project(&self, id: &str) {
        self.0.lock().unwrap().projects.push(id.to_owned());
    }

    pub(crate) fn project_count(&self) -> usize {
        self.0.lock().unwrap().projects.len()
    }

    pub(crate) fn project(&self, random: &mut Random) -> Option<String> {
        pick(&self.0.lock().unwrap().projects, random).cloned()
    }

    /// Takes a project out for deletion if enough remain.
    pub(crate) fn take_project(&self, random: &mut Random) -> Option<String> {
        let mut entries = self.0.lock().unwrap();
        if entries.projects.len() < 4 {
            return None;
        }
        let index = usize::try_from(random.below(entries.projects.len() as u64)).unwrap();
        let project = entries.projects.swap_remove(index);
        let sessions = entries.sessions.values_mut();
        for session in sessions.filter(|session| session.project == project) {
            session.may_drop = true;
        }
        Some(project)
    }

    pub(crate) fn session(&self, random: &mut Random) -> Option<String> {
        let entries = self.0.lock().unwrap();
        let live = entries.sessions.iter();
        let mut live: Vec<&String> = live
            .filter(|(_, session)| entries.projects.contains(&session.project))
            .map(|(id, _)| id)
            .collect();
        live.sort();
        pick(&live, random).map(|id| (*id).clone())
    }

    pub(crate) fn add_prompt(&self, project: &str, session: &str, marker: &str, accepted: bool) {
        let mut entries = self.0.lock().unwrap();
        let entry = entries.sessions.entry(session.to_owned()).or_default();
        if !project.is_empty() {
            project.clone_into(&mut entry.project);
        }
        entry.prompts.push((marker.to_owned(), accepted));
    }

    pub(crate) fn may_drop(&self, session: &str) {
        let mut entries = self.0.lock().unwrap();
        entries
            .sessions
            .entry(session.to_owned())
            .or_default()
            .may_drop = true;
    }

    /// Counts an outcome. An internal error is a defect.
    pub(crate) fn count(&self, operation: &str, reply: Option<&Reply>) {
        let mut entries = self.0.lock().unwrap();
        let kind = match reply {
            None => "no answer",
            Some(reply) if reply.status == 401 => "401",
            Some(reply) if reply.status >= 500 && reply.status != 503 => {
                let text: String = reply.text.chars().take(300).collect();
                let defect = format!("{operation}: HTTP {} {text}", reply.status);
                entries.defects.push(defect);
                "HTTP 5xx"
            }
            Some(reply) if reply.body["error"]["code"] == -32000 => {
                let defect = format!("{operation}: internal error {}", reply.text);
                entries.defects.push(defect);
                "internal error"
            }
            Some(reply) if reply.body["error"].is_object() => "refused",
            Some(reply) if reply.is_error() => "isError",
            Some(reply) if reply.body["result"].is_object() => "ok",
            Some(_) => "cut off",
        };
        let count = entries.outcomes.entry((operation.to_owned(), kind));
        *count.or_default() += 1;
    }

    pub(crate) fn defect(&self, text: String) {
        self.0.lock().unwrap().defects.push(text);
    }

    /// Waits until no session works, and compares every log with the accepted prompts.
    pub(crate) async fn check(&self, admin: &Modern) -> Vec<String> {
        let (projects, sessions) = {
            let mut entries = self.0.lock().unwrap();
            let sessions = std::mem::take(&mut entries.sessions);
            (entries.projects.clone(), sessions)
        };
        let deadline = Instant::now() + REST_TIMEOUT;
        let mut defects = Vec::new();
        let kept = sessions
            .iter()
            .filter(|(_, entry)| projects.contains(&entry.project));
        let rested = futures_util::stream::iter(kept)
            .map(|(id, entry)| async move { (id, entry, self.rest(admin, id, deadline).await) })
            .buffer_unordered(SESSIONS_AT_ONCE);
        let rested: Vec<_> = rested.collect().await;
        for (id, entry, outcome) in rested {
            match outcome {
                Ok(Some(queued)) => {
                    defects.extend(check_log(id, entry, queued, &admin.log(id).await));
                }
                Ok(None) if entry.may_drop => {}
                Ok(None) => defects.push(format!("{id}: the session is gone")),
                Err(state) => defects.push(format!("{id}: does not come to rest: {state}")),
            }
        }
        let mut entries = self.0.lock().unwrap();
        entries.sessions = sessions;
        defects.append(&mut entries.defects);
        defects
    }

    /// Waits until a session works no more. Returns how many messages are still queued, as they may be in
    /// a session that failed; none if it was deleted.
    async fn rest(
        &self,
        admin: &Modern,
        id: &str,
        deadline: Instant,
    ) -> Result<Option<u64>, Value> {
        loop {
            let reply = admin
                .call_until_answered("session_get", json!({ "session_id": id }))
                .await;
            if reply.is_error() {
                return Ok(None);
            }
            let state = reply.ok().clone();
            let working = ["created", "running", "waiting"].map(Value::from);
            let queued = state["queued_messages"] != 0 && state["status"] == "idle";
            if !working.contains(&state["status"]) && !queued {
                return Ok(state["queued_messages"].as_u64());
            }
            if Instant::now() > deadline {
                return Err(state);
            }
            let interrupt = json!({ "session_id": id });
            let reply = admin
                .call_until_answered("session_interrupt", interrupt)
                .await;
            self.count("session_interrupt", Some(&reply));
        }
    }

    pub(crate) async fn delete_projects(&self, admin: &Modern) {
        loop {
            let listed = admin.call_until_answered("project_list", json!({})).await;
            let projects = listed.ok()["projects"].as_array().unwrap().clone();
            let Some(project) = projects.first() else {
                return;
            };
            let id = json!({ "project_id": project["project_id"] });
            let reply = admin.call_until_answered("project_delete", id).await;
            assert!(!reply.is_error(), "{}", reply.text);
        }
    }
}

/// Compares one log with the prompts that were accepted for it.
fn check_log(id: &str, entry: &SessionEntry, mut queued: u64, log: &[Value]) -> Vec<String> {
    let mut defects = Vec::new();
    let trimmed = log.len() > 1 && log[1]["index"] != 1;
    for pair in log[usize::from(trimmed)..].windows(2) {
        if pair[1]["index"].as_i64() != pair[0]["index"].as_i64().map(|index| index + 1) {
            defects.push(format!("{id}: a gap after index {}", pair[0]["index"]));
        }
    }
    let count = |kind: &str| log.iter().filter(|event| event["type"] == kind).count();
    let (prompts, completions) = (count("prompt"), count("completion"));
    if prompts != completions && !trimmed {
        defects.push(format!(
            "{id}: {prompts} prompts, {completions} completions"
        ));
    }
    for (marker, accepted) in &entry.prompts {
        let has_marker = |event: &&Value| {
            let text = event["text"].as_str().unwrap_or_default();
            event["type"] == "prompt" && text.contains(marker.as_str())
        };
        let turns = log.iter().filter(has_marker).count();
        let may_miss = !accepted || entry.may_drop || trimmed;
        if turns == 0 && !may_miss && queued > 0 {
            queued -= 1;
        } else if turns > 1 || (turns == 0 && !may_miss) {
            defects.push(format!("{id}: {marker} has {turns} turns"));
        }
    }
    defects
}

fn pick<'a, T>(from: &'a [T], random: &mut Random) -> Option<&'a T> {
    if from.is_empty() {
        return None;
    }
    from.get(usize::try_from(random.below(from.len() as u64)).unwrap())
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.0.lock().unwrap();
        let prompts: usize = entries.sessions.values().map(|one| one.prompts.len()).sum();
        writeln!(f, "{} sessions, {prompts} prompts", entries.sessions.len())?;
        for ((operation, kind), count) in &entries.outcomes {
            writeln!(f, "{count:>8}  {operation}: {kind}")?;
        }
        Ok(())
    }
}
