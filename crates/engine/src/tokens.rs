//! API tokens: which token a key belongs to, and when it ends.

pub(crate) mod authority;
pub(crate) mod create;
pub(crate) mod list;
pub(crate) mod revoke;

use jiff::Timestamp;
use oubliette_model::{ApiKey, Scope, TokenId};
use oubliette_runtime::ContainerId;
use oubliette_store::{AuditEntry, AuditOutcome, Token};
use tokio::sync::watch;
use uuid::Uuid;

use crate::{Actor, Engine, EngineError, Result};

/// The actor that a valid key stands for, for one call.
#[derive(Debug, Clone)]
pub struct Authenticated {
    pub actor: Actor,
    pub expires_at: Option<Timestamp>,
}

/// A token that is not stored yet, with its key, which is nowhere else in plain text.
#[derive(Debug)]
pub struct NewToken {
    pub token: Token,
    pub key: ApiKey,
}

impl NewToken {
    pub fn generate(
        name: &str,
        scope: Scope,
        now: Timestamp,
        expires_at: Option<Timestamp>,
    ) -> Result<Self> {
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
            key: generate_key()?,
        })
    }
}

/// A random key: of a token, a container or a session.
pub(crate) fn generate_key() -> Result<ApiKey> {
    let mut random = [0; 32];
    getrandom::fill(&mut random).map_err(|error| EngineError::fault(error.to_string()))?;
    Ok(ApiKey::from_random(random))
}

/// Wakes the tasks that wait for the end of a token. The store has the tokens.
#[derive(Debug, Default)]
pub(crate) struct TokenState {
    ended: watch::Sender<()>,
}

/// The verbs about tokens.
#[derive(Debug, Clone, Copy)]
pub struct Tokens<'a> {
    engine: &'a Engine,
}

impl<'a> Tokens<'a> {
    pub(crate) fn new(engine: &'a Engine) -> Self {
        Self { engine }
    }

    /// The actor that a key stands for now; none if the key is unknown, revoked or expired, or if it
    /// belongs to an agent whose giver is. The store is asked at each call, so that a revoked key ends
    /// at once.
    pub async fn authenticate(
        self,
        key: &str,
        address: Option<String>,
    ) -> Result<Option<Authenticated>> {
        let Ok(key) = key.parse::<ApiKey>() else {
            return Ok(None);
        };
        let Some(token) = self.engine.store().token_by_hash(key.hash()).await? else {
            return Ok(None);
        };
        let authority = self.authority(&token).await?;
        Ok(authority.ok().map(|authority| Authenticated {
            actor: Actor {
                token_id: token.id,
                scope: authority.scope,
                session: token.session_id,
                unattached: false,
                address,
            },
            expires_at: authority.expires_at,
        }))
    }

    /// Wakes the tasks that wait for the end of a token, so that they ask the store again.
    pub(crate) fn notify_ended(self) {
        self.engine.parts.tokens.ended.send_replace(());
    }

    /// Returns when a token, or the one that it was given by, is revoked, deleted or expired.
    pub async fn wait_until_ended(self, id: TokenId) {
        let mut changes = self.engine.parts.tokens.ended.subscribe();
        loop {
            changes.mark_unchanged();
            // A store that fails must not keep a stream open.
            let Ok(Some(token)) = self.engine.store().token(id).await else {
                return;
            };
            let Ok(Ok(authority)) = self.authority(&token).await else {
                return;
            };
            let now = self.engine.now();
            let expiry = async {
                match authority.expires_at {
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
            Some(container) => self.engine.store().container(container.as_str()).await,
            None => Ok(None),
        };
        let entry = AuditEntry {
            at: self.engine.now(),
            token_id: None,
            operation: "authenticate".to_owned(),
            project_id: found.ok().flatten().map(|container| container.project_id),
            outcome: AuditOutcome::Unauthenticated,
            address: Some(address),
        };
        self.engine.audit_log().enqueue(entry).await;
    }
}
