//! Hosts that a caller allowed while a session lives. The store has them with the session; here they are for the rules of
//! the session's container.

use std::collections::BTreeMap;

use oubliette_gate::Registration;
use oubliette_model::{HostPattern, NetworkRules, SessionId};
use oubliette_runtime::ContainerId;
use parking_lot::Mutex;
use tokio::sync::OnceCell;

use super::{Network, REFRESH_TIMEOUT};
use crate::Result;
use crate::sessions::running_agent::RunningAgent;

/// The hosts of sessions whose actors run.
#[derive(Debug, Default)]
pub(super) struct SessionHosts {
    hosts: Mutex<BTreeMap<SessionId, (String, Vec<HostPattern>)>>,
    restored: OnceCell<()>,
}

impl SessionHosts {
    fn of_container(&self, container: &str) -> Vec<HostPattern> {
        let hosts = self.hosts.lock();
        let own = hosts.values().filter(|(own, _)| own == container);
        own.flat_map(|(_, hosts)| hosts.iter().cloned()).collect()
    }

    /// Forgets the hosts of a container that is stopped. A session that goes on in another start of it brings its own again.
    pub(super) fn forget_container(&self, container: &str) {
        self.hosts.lock().retain(|_, (own, _)| own != container);
    }
}

impl Network<'_> {
    /// Rules of a project with the hosts of the sessions in a container. A project that asks no longer has none.
    pub(super) fn with_session_hosts(self, rules: NetworkRules, container: &str) -> NetworkRules {
        if rules.ask {
            rules.with_allowed(self.state().session_hosts.of_container(container))
        } else {
            rules
        }
    }

    /// Reads the hosts of sessions that an earlier server ran, before the first container has its rules: connections that
    /// they allow must not be cut.
    pub(super) async fn restore_session_hosts(self) -> Result<()> {
        let restoring = async || {
            let store = self.engine.store();
            for id in store.unfinished_sessions().await? {
                let Some(session) = store.session(id).await? else {
                    continue;
                };
                if session.choices.network_allowed.is_empty() {
                    continue;
                }
                let Some(project) = store.project(session.project_id).await? else {
                    continue;
                };
                if let Some(agent) = RunningAgent::of_session(&session, &project) {
                    let container = agent.container.to_string();
                    let mut hosts = self.state().session_hosts.hosts.lock();
                    hosts
                        .entry(id)
                        .or_insert((container, session.choices.network_allowed));
                }
            }
            Ok(())
        };
        let restored = &self.state().session_hosts.restored;
        restored.get_or_try_init(restoring).await.map(drop)
    }

    /// Lets a container reach the hosts of a session, and returns when the gate knows it.
    pub(crate) async fn set_session_hosts(
        self,
        session: SessionId,
        container: &ContainerId,
        hosts: Vec<HostPattern>,
    ) {
        let entry = (container.to_string(), hosts);
        let before = {
            let mut all = self.state().session_hosts.hosts.lock();
            if entry.1.is_empty() {
                all.remove(&session)
            } else {
                all.insert(session, entry.clone())
            }
        };
        if before.as_ref() != Some(&entry) && (before.is_some() || !entry.1.is_empty()) {
            self.send_again(container.as_str()).await;
        }
    }

    /// Forgets a session whose actor has ended.
    pub(crate) async fn forget_session(self, session: SessionId) {
        self.release_questions(session).await;
        let removed = self.state().session_hosts.hosts.lock().remove(&session);
        if let Some((container, _)) = removed {
            self.send_again(&container).await;
        }
    }

    /// Sends the rules of a container again, if it is registered.
    async fn send_again(self, container: &str) {
        let known = self.state().registrations.lock().get(container).cloned();
        let Some(known) = known else {
            return;
        };
        let project = known.project.parse();
        let Ok(project) = project else {
            return;
        };
        let Ok(project) = self.engine.project(project).await else {
            return;
        };
        let registration = Registration {
            rules: self.rules_of(&project),
            version: project.revision,
            ..known
        };
        let sent = tokio::time::timeout(REFRESH_TIMEOUT, self.send(registration)).await;
        if !matches!(sent, Ok(Ok(()))) {
            tracing::warn!(project = %project.id, "the gate did not confirm changed rules yet");
        }
    }
}
