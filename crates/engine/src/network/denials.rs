//! Refused connections in the logs of sessions: of those whose turns run in the container, and not more than a reader
//! wants to know.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use oubliette_gate::Denial;
use oubliette_model::SessionId;
use oubliette_runtime::ContainerId;
use parking_lot::Mutex;

use super::Network;

/// The same host and port are in the log of a session again after this time.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);
/// Of one session in that time.
const MAX_DENIALS: usize = 20;

/// Denials that the actors of sessions have not taken yet.
#[derive(Debug, Default)]
pub(crate) struct PendingDenials {
    sessions: Mutex<HashMap<SessionId, SessionDenials>>,
}

#[derive(Debug, Default)]
struct SessionDenials {
    waiting: Vec<Denial>,
    logged: HashMap<(String, u16, String), Instant>,
}

impl PendingDenials {
    /// Whether the denial is news for the session.
    fn add(&self, session: SessionId, denial: &Denial, now: Instant) -> bool {
        let mut sessions = self.sessions.lock();
        let own = sessions.entry(session).or_default();
        own.logged
            .retain(|_, at| now.duration_since(*at) < REPEAT_INTERVAL);
        let key = (denial.host.clone(), denial.port, denial.reason.clone());
        if own.logged.len() >= MAX_DENIALS || own.logged.contains_key(&key) {
            return false;
        }
        own.logged.insert(key, now);
        own.waiting.push(denial.clone());
        true
    }

    /// The denials for a session that were not taken yet.
    pub(crate) fn take(&self, session: SessionId) -> Vec<Denial> {
        let mut sessions = self.sessions.lock();
        let own = sessions.get_mut(&session);
        own.map(|own| std::mem::take(&mut own.waiting))
            .unwrap_or_default()
    }

    /// Forgets a session whose actor has ended.
    pub(crate) fn forget(&self, session: SessionId) {
        self.sessions.lock().remove(&session);
    }
}

impl Network<'_> {
    /// Tells the sessions of a project that a connection was refused. Their actors know whether it is about them.
    pub(super) async fn record_denial(self, denial: Denial) {
        let Some(container) = ContainerId::new(denial.container.clone()) else {
            return;
        };
        let Ok(Some(project)) = self.engine.containers().project_of(&container).await else {
            return;
        };
        let project = project.id;
        for session in self.engine.sessions().live_in_project(project) {
            if self.state().denials.add(session, &denial, Instant::now()) {
                self.engine.sessions().wake(session, project);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_of_refused_connections_does_not_flood_the_log() {
        let (denials, session) = (PendingDenials::default(), SessionId::new(uuid::Uuid::nil()));
        let denial = |host: String| Denial {
            container: "c".to_owned(),
            host,
            port: 443,
            reason: "preset strict".to_owned(),
        };
        let now = Instant::now();
        for _ in 0..100 {
            denials.add(session, &denial("a.org".to_owned()), now);
        }
        assert_eq!(denials.take(session).len(), 1);
        let push = Denial {
            reason: "git push".to_owned(),
            ..denial("a.org".to_owned())
        };
        assert!(denials.add(session, &push, now), "another reason is news");
        denials.take(session);
        for number in 0..1000 {
            denials.add(session, &denial(format!("{number}.org")), now);
        }
        assert_eq!(denials.take(session).len(), MAX_DENIALS - 2);
        let later = now + REPEAT_INTERVAL;
        assert!(denials.add(session, &denial("a.org".to_owned()), later));
        denials.forget(session);
        assert!(denials.take(session).is_empty());
    }
}
