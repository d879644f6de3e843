//! The gateway of the gate: agents in containers with the network `policy` get placeholder keys, and the gate, which
//! has the real ones, sends their requests to the models and to git hosts.
//!
//! The engine tells the gate what the placeholders of each running agent stand for. It never stores a placeholder:
//! the store has hashes, with which the next server finds out what a gate that was started again needs.

mod budget;
mod charges;
mod git;
mod ledger;
mod link;
mod prices;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;

use oubliette_agent::{Agent, GatewayModel};
use oubliette_gate::gateway::{Grant, GrantedSecret, Provider, SessionGrants, placeholder_id};
use oubliette_model::{BaseUrl, ProjectId, Secret, SessionId};
use oubliette_runtime::ContainerId;
use oubliette_store::Session;
use oubliette_wire::{FileFormat, HomeFile};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::credentials::SignIn;
use crate::{Engine, EngineError, Result};
pub(crate) use git::{GitHost, set_git_config};
use ledger::Ledger;
pub(crate) use ledger::{CallHold, HeldCall};
use link::Change;

/// For the gate to take what an agent is granted.
const GRANT_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_QUEUED_CHANGES: usize = 256;

/// A placeholder key of a running agent, as the store keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Placeholder {
    /// Its hash.
    pub(crate) id: String,
    /// The name of the credential that it stands for.
    pub(crate) credential: String,
}

/// The placeholders of an agent that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LivePlaceholders {
    project: ProjectId,
    container: String,
    placeholders: Vec<Placeholder>,
}

/// What the engine knows about the gateway.
#[derive(Debug)]
pub(crate) struct GatewayState {
    sessions: Mutex<BTreeMap<SessionId, LivePlaceholders>>,
    changes: mpsc::Sender<Change>,
    /// Taken by the task that speaks to the gate.
    changes_receiver: Mutex<Option<mpsc::Receiver<Change>>>,
    /// Held while charges are counted.
    counting: tokio::sync::Mutex<()>,
    /// Notified when the journal of charges has grown.
    charged: Notify,
    ledger: Mutex<Ledger>,
    /// Notified when calls that are held may have room now, or were refused.
    reconsider: Notify,
}

impl Default for GatewayState {
    fn default() -> Self {
        let (changes, receiver) = mpsc::channel(MAX_QUEUED_CHANGES);
        Self {
            sessions: Mutex::default(),
            changes,
            changes_receiver: Mutex::new(Some(receiver)),
            counting: tokio::sync::Mutex::default(),
            charged: Notify::new(),
            ledger: Mutex::default(),
            reconsider: Notify::new(),
        }
    }
}

/// What an agent gets instead of keys.
#[derive(Debug, Default)]
pub(crate) struct GatewaySignIn {
    pub(crate) placeholders: Vec<Placeholder>,
    /// Settings with models of the gateway.
    pub(crate) file: Option<HomeFile>,
    pub(crate) env: Vec<(String, String)>,
    /// What the agent calls the model that was chosen.
    pub(crate) model_id: Option<String>,
    /// Git hosts that the agent reaches through the gateway.
    pub(crate) git: Vec<GitHost>,
    /// The placeholders themselves, which are redacted as keys are.
    pub(crate) secrets: Vec<Secret>,
}

/// The verbs of the gateway. Cheap to copy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gateway<'a> {
    engine: &'a Engine,
}

impl Engine {
    pub(crate) fn gateway(&self) -> Gateway<'_> {
        Gateway { engine: self }
    }
}

impl Gateway<'_> {
    fn state(&self) -> &GatewayState {
        &self.engine.parts.gateway
    }

    /// Replaces the keys that an agent would get by placeholders, and the addresses of their providers by that of the
    /// gateway. Keys that the agent cannot be told another address for stay as they are.
    pub(crate) fn replace_keys(
        self,
        agent: &Agent,
        model: Option<&str>,
        sign_in: &mut SignIn,
    ) -> Result<GatewaySignIn> {
        let mut replaced = GatewaySignIn::default();
        for key in sign_in.keys.clone() {
            let takes_address = agent
                .sign_in
                .gateways
                .iter()
                .any(|row| row.kind == key.kind);
            let Some(provider) = Provider::of_kind(&key.kind).filter(|_| takes_address) else {
                continue;
            };
            let placeholder = replaced.mint(&key.name)?;
            for (variable, secret) in &mut sign_in.env {
                if *variable == key.variable {
                    *secret = placeholder.clone();
                }
            }
            sign_in.set_address(&key, local_url(provider)?);
        }
        let models = agent.sign_in.gateway_models;
        let key = sign_in.model_keys.first();
        if let (Some(models), Some(key), None) = (models, key, &sign_in.login)
            && let Some(provider) = Provider::of_kind(&key.kind)
            && !model.is_some_and(|model| is_own_model(agent, model))
        {
            let Some(model) = model else {
                return Err(EngineError::Failed(format!(
                    "the agent `{}` uses the credential `{}` only for a model that is named: set `model` of the \
                     project or of the session",
                    agent.name, key.name
                )));
            };
            let placeholder = replaced.mint(&key.name)?;
            let settings = (models.settings)(&GatewayModel {
                kind: &key.kind,
                model,
                url: local_url(provider)?.as_str(),
                key: placeholder.reveal(),
                is_provider: key.base_url.is_none(),
            });
            let file = HomeFile::new(models.path, FileFormat::Json, settings.to_string());
            replaced.file = Some(file);
            replaced.model_id = Some((models.id)(model));
            if sign_in.keys.is_empty() {
                let env = models.env.iter();
                replaced.env = env
                    .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                    .collect();
            }
        }
        Ok(replaced)
    }

    /// Has the gate send the requests with an agent's placeholders, and with no others of its session. Returns when
    /// the gate knows.
    pub(crate) async fn grant(
        self,
        session: &Session,
        container: &ContainerId,
        placeholders: Vec<Placeholder>,
    ) -> Result<()> {
        let (reply, done) = oneshot::channel();
        self.insert(session, container, placeholders);
        let session = session.id;
        let granting = async {
            let gone = || io::Error::other("the server is stopping");
            let change = Change {
                session,
                reply: Some(reply),
            };
            self.state()
                .changes
                .send(change)
                .await
                .map_err(|_| gone())?;
            done.await.map_err(|_| gone())
        };
        let granted = tokio::time::timeout(GRANT_TIMEOUT, granting).await;
        let granted = granted.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        granted.map_err(|error| {
            EngineError::Failed(format!(
                "the gate, through which agents reach their models, cannot be used: {error}; see `run/gate.log` in \
                 the data directory"
            ))
        })
    }

    /// The agent of an earlier server goes on with its placeholders.
    pub(crate) fn restore(
        self,
        session: &Session,
        container: &ContainerId,
        placeholders: &[Placeholder],
    ) {
        if placeholders.is_empty() {
            return;
        }
        self.insert(session, container, placeholders.to_vec());
        self.notify(session.id);
    }

    /// An agent has ended: its placeholders stand for nothing from now on.
    pub(crate) fn revoke(self, session: SessionId) {
        let removed = self.state().sessions.lock().remove(&session);
        if removed.is_some() {
            self.notify(session);
        }
    }

    /// Credentials, or what projects refer to, have changed: requests use the new ones at once.
    pub(crate) fn refresh(self) {
        let sessions: Vec<SessionId> = self.state().sessions.lock().keys().copied().collect();
        for session in sessions {
            self.notify(session);
        }
        self.state().reconsider.notify_one();
    }

    fn insert(self, session: &Session, container: &ContainerId, placeholders: Vec<Placeholder>) {
        let live = LivePlaceholders {
            project: session.project_id,
            container: container.to_string(),
            placeholders,
        };
        self.state().sessions.lock().insert(session.id, live);
    }

    fn notify(self, session: SessionId) {
        let change = Change {
            session,
            reply: None,
        };
        let changes = self.state().changes.clone();
        if let Err(mpsc::error::TrySendError::Full(change)) = changes.try_send(change) {
            self.engine.spawn_until_stopping(|_| async move {
                // Without a receiver the server is stopping.
                let _ = changes.send(change).await;
            });
        }
    }

    /// The sessions with placeholders.
    fn sessions(self) -> BTreeSet<SessionId> {
        self.state().sessions.lock().keys().copied().collect()
    }

    /// What the gate has to know about a session: nothing if its agent has ended. A credential that does not exist any
    /// more, that the project no longer refers to, or that cannot be read, is not granted.
    async fn grants_of(self, session: SessionId) -> Result<SessionGrants> {
        let live = self.state().sessions.lock().get(&session).cloned();
        let mut granted = SessionGrants {
            session: session.to_string(),
            container: String::new(),
            grants: Vec::new(),
            git: Vec::new(),
            budget: None,
        };
        let Some(live) = live else {
            return Ok(granted);
        };
        granted.container = live.container;
        let Some(project) = self.engine.store().project(live.project).await? else {
            return Ok(granted);
        };
        let credentials = self.engine.credentials();
        for placeholder in &live.placeholders {
            let credential = credentials.find(&placeholder.credential);
            let grant = credential.and_then(|it| self.git_grant(&project, placeholder, &it));
            granted.git.extend(grant);
        }
        let grants = live.placeholders.into_iter().filter_map(|placeholder| {
            let name = &placeholder.credential;
            let is_used = project.settings.credential_refs.contains(name);
            let credential = credentials.find(name).filter(|_| is_used)?;
            let provider = Provider::of_kind(&credential.kind)?;
            let secret = credential.read().ok()?;
            Some(Grant {
                placeholder: placeholder.id,
                provider,
                upstream: provider.upstream(credential.base_url.as_ref()),
                secret: GrantedSecret::new(secret.reveal()),
            })
        });
        granted.grants = grants.collect();
        granted.budget = self.budget_waits(session).await?;
        Ok(granted)
    }
}

impl GatewaySignIn {
    /// A new placeholder for a credential.
    fn mint(&mut self, credential: &str) -> Result<Secret> {
        let minted = crate::tokens::generate_key()?;
        self.placeholders.push(Placeholder {
            id: placeholder_id(&minted),
            credential: credential.to_owned(),
        });
        let secret = Secret::new(minted.reveal());
        self.secrets.push(secret.clone());
        Ok(secret)
    }
}

/// Whether the user has added a model to the agent's own settings, with a key that the gateway does not know.
pub(crate) fn is_own_model(agent: &Agent, model: &str) -> bool {
    agent
        .sign_in
        .own_models
        .is_some_and(|own| (own.is_own)(model))
}

fn local_url(provider: Provider) -> Result<BaseUrl> {
    provider.local_url().parse().map_err(EngineError::fault)
}
