//! The network `policy`: which rules a container has, the gate that enforces them, and the operations about it.

mod agent_bounds;
pub(crate) mod allow;
pub(crate) mod check;
mod denials;
mod gate_link;
pub(crate) mod log;
pub(crate) mod questions;
mod session_hosts;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use oubliette_gate::{GateCommand, JOURNAL_DIR, Registration, Resolver, journal_files};
use oubliette_model::{NetworkPolicy, NetworkRules, ProjectId, ProjectSettings};
use oubliette_runtime::ContainerId;
use oubliette_store::Project;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use crate::{Engine, EngineError, Result, Settings};
use denials::PendingDenials;
use gate_link::Change;
use questions::OpenQuestions;
use session_hosts::SessionHosts;

/// For the gate to take a container: it may have to be started first.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(30);
/// For the gate to take changed rules.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_QUEUED_CHANGES: usize = 64;

/// What the engine knows about the gate.
#[derive(Debug)]
pub(crate) struct NetworkState {
    /// What the gate should have, by container.
    registrations: Mutex<BTreeMap<String, Registration>>,
    changes: mpsc::Sender<Change>,
    /// Taken by the task that speaks to the gate.
    changes_receiver: Mutex<Option<mpsc::Receiver<Change>>>,
    pub(crate) denials: PendingDenials,
    pub(crate) questions: OpenQuestions,
    session_hosts: SessionHosts,
    resolver: Resolver,
}

impl NetworkState {
    pub(crate) fn new(settings: &Settings) -> Self {
        let (changes, receiver) = mpsc::channel(MAX_QUEUED_CHANGES);
        Self {
            registrations: Mutex::default(),
            changes,
            changes_receiver: Mutex::new(Some(receiver)),
            denials: PendingDenials::default(),
            questions: OpenQuestions::default(),
            session_hosts: SessionHosts::default(),
            resolver: Resolver::of_server(settings.network.resolver),
        }
    }
}

/// The verbs of the network `policy`. Cheap to copy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Network<'a> {
    engine: &'a Engine,
}

impl<'a> Network<'a> {
    pub(crate) fn new(engine: &'a Engine) -> Self {
        Self { engine }
    }

    fn state(self) -> &'a NetworkState {
        &self.engine.parts.network
    }

    fn gate_command(self) -> GateCommand {
        let settings = self.engine.settings();
        GateCommand {
            program: settings.gate.clone(),
            data_dir: settings.data_dir.clone(),
        }
    }

    fn journal_dir(self) -> PathBuf {
        self.engine.settings().data_dir.join(JOURNAL_DIR)
    }

    /// What the containers of a project may reach.
    pub(crate) fn rules_of(self, project: &Project) -> NetworkRules {
        self.rules_for(&project.settings)
    }

    fn rules_for(self, settings: &ProjectSettings) -> NetworkRules {
        NetworkRules::combine(
            &self.engine.settings().network.policy(),
            settings.network_policy.as_ref(),
            &settings.network_allowed_by_admin,
        )
    }

    /// Has the gate take the connections of a container, whose directory is that of its sockets. Returns when the
    /// container's socket is there.
    pub(crate) async fn register(
        self,
        id: &ContainerId,
        project: &Project,
        directory: PathBuf,
    ) -> Result<()> {
        self.restore_session_hosts().await?;
        let registration = Registration {
            container: id.to_string(),
            project: project.id.to_string(),
            directory,
            rules: self.rules_of(project),
            version: project.revision,
        };
        let waiting = tokio::time::timeout(REGISTRATION_TIMEOUT, self.send(registration));
        let registered = waiting
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        registered.map_err(|error| {
            EngineError::Failed(format!(
                "the gate, through which containers with the network `policy` reach other hosts, cannot be used: \
                 {error}; use the network `none`, or see `run/gate.log` in the data directory"
            ))
        })
    }

    /// Sends the rules of a project for a container, with the hosts that its sessions may reach besides.
    async fn send(self, mut registration: Registration) -> io::Result<()> {
        let id = registration.container.clone();
        {
            let mut registrations = self.state().registrations.lock();
            registration.rules = self.with_session_hosts(registration.rules, &id);
            let known = registrations.get(&id).map(|known| known.version);
            // Of two updates at the same time, the later one may be here first.
            if known.is_none_or(|known| known <= registration.version) {
                registrations.insert(id.clone(), registration);
            }
        }
        let (reply, done) = oneshot::channel();
        let change = Change::Set { id, reply };
        let gone = || io::Error::other("the server is stopping");
        self.state()
            .changes
            .send(change)
            .await
            .map_err(|_| gone())?;
        done.await.map_err(|_| gone())?
    }

    /// Ends the connections of a container that was stopped or removed.
    pub(crate) async fn unregister(self, id: &ContainerId) {
        self.state().registrations.lock().remove(id.as_str());
        self.state().session_hosts.forget_container(id.as_str());
        // The gate may have it from an earlier server.
        let change = Change::Remove { id: id.to_string() };
        // Without the task, the server is stopping.
        let _ = self.state().changes.send(change).await;
    }

    /// Applies changed rules of a project to its containers that run, and returns when the gate has them: new connections are
    /// decided by them, and open ones end that they do not allow.
    pub(crate) async fn refresh(self, project: &Project) {
        let rules = self.rules_of(project);
        let changed: Vec<Registration> = {
            let registrations = self.state().registrations.lock();
            let of_project = registrations
                .values()
                .filter(|it| it.project == project.id.to_string());
            let changed = of_project
                .filter(|it| it.rules != self.with_session_hosts(rules.clone(), &it.container));
            changed.cloned().collect()
        };
        for registration in changed {
            let registration = Registration {
                rules: rules.clone(),
                version: project.revision,
                ..registration
            };
            let sent = tokio::time::timeout(REFRESH_TIMEOUT, self.send(registration)).await;
            if !matches!(sent, Ok(Ok(()))) {
                tracing::warn!(project = %project.id, "the gate did not confirm changed rules yet");
            }
        }
    }

    /// Removes what the gate wrote about a project.
    pub(crate) fn remove_journal(self, project: ProjectId) -> Result<()> {
        for path in journal_files(&self.journal_dir(), &project.to_string()) {
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }

    /// Refuses a policy that cannot be used.
    pub(crate) fn check_policy(policy: &NetworkPolicy) -> Result<()> {
        match policy.problem() {
            Some(problem) => Err(EngineError::invalid(format!("`network_policy`: {problem}"))),
            None => Ok(()),
        }
    }
}
