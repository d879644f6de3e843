//! Tokens: who a key belongs to, and when it ends.

pub(crate) mod create;
pub(crate) mod list;
pub(crate) mod revoke;

use jiff::Timestamp;
use oubliette_model::{ApiKey, Scope, TokenId};
use oubliette_runtime::ContainerId;
use oubliette_store::{AuditEntry, Outcome, Token};
use tokio::sync::watch;
use uuid::Uuid;

use crate::{Actor, Engine, EngineError, Result};

/// A key that was recognised, for one call.
#[derive(Debug, Clone)]
pub struct Authenticated {
    pub actor: Actor,
    pub expires_at: Option<Timestamp>,
}

/// A token and its key, which exists in clear only here.
#[derive(Debug)]
pub struct Minted {
    pub token: Token,
    pub key: ApiKey,
}

impl Minted {
    /// Draws a key. Nothing is stored yet.
    pub fn draw(
        name: &str,
        scope: Scope,
        now: Timestamp,
        expires_at: Option<Timestamp>,
    ) -> Result<Self> {
        let mut random = [0; 32];
        getrandom::fill(&mut random).map_err(|e| EngineError::fault(e.to_string()))?;
        let token = Token {
            id: TokenId::new(Uuid::new_v4()),
            name: name.to_owned(),
            scope,
            session_id: None,
            minted: false,
            created_at: now,
            expires_at,
            revoked_at: None,
        };
        Ok(Self {
            token,
            key: ApiKey::from_random(random),
        })
    }
}

impl Engine {
    /// Who a key belongs to at this moment; none if it is unknown, revoked or expired. Nothing is
    /// remembered between calls.
    pub async fn authenticate(
        &self,
        key: &str,
        address: Option<String>,
    ) -> Result<Option<Authenticated>> {
        let Ok(key) = key.parse::<ApiKey>() else {
            return Ok(None);
        };
        let token = self.store().token_by_hash(key.hash()).await?;
        Ok(token
            .filter(|token| token.is_valid(self.now()))
            .map(|token| Authenticated {
                actor: Actor {
                    token_id: token.id,
                    scope: token.scope,
                    session: token.session_id,
                    address,
                },
                expires_at: token.expires_at,
            }))
    }

    /// Returns when the token is no longer valid: revoked, deleted or expired.
    pub async fn token_ended(&self, id: TokenId) {
        let mut changes = self.token_watch().subscribe();
        loop {
            changes.mark_unchanged();
            let now = self.now();
            let token = match self.store().token(id).await {
                Ok(Some(token)) if token.is_valid(now) => token,
                // A store that cannot answer must not keep a stream open.
                Ok(_) | Err(_) => return,
            };
            let expiry = async {
                match token.expires_at {
                    Some(end) => {
                        let left = end.duration_since(now).unsigned_abs();
                        tokio::time::sleep(left).await;
                    }
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = expiry => {}
                changed = changes.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Records in the audit log that a request showed no valid key. `container` is where it came
    /// from, if it came from one.
    pub async fn record_authentication_failure(
        &self,
        address: String,
        container: Option<&ContainerId>,
    ) {
        let found = match container {
            Some(container) => self.store().container(container.as_str()).await,
            None => Ok(None),
        };
        let entry = AuditEntry {
            at: self.now(),
            token_id: None,
            operation: "authenticate".to_owned(),
            project_id: found.ok().flatten().map(|container| container.project_id),
            outcome: Outcome::Unauthenticated,
            address: Some(address),
        };
        self.audit_log().note(entry).await;
    }
}

/// Wakes those who must know that some token ended. It carries no state: the store has that.
#[derive(Debug)]
pub(crate) struct Watch(watch::Sender<()>);

impl Default for Watch {
    fn default() -> Self {
        Self(watch::Sender::new(()))
    }
}

impl Watch {
    pub(crate) fn wake(&self) {
        self.0.send_replace(());
    }

    fn subscribe(&self) -> watch::Receiver<()> {
        self.0.subscribe()
    }
}
