//! Storage of tokens. Keys are stored only as hashes.

use async_trait::async_trait;
use jiff::Timestamp;
use oubliette_model::{KeyHash, Scope, SessionId, TokenId};

use crate::{AuditEntry, Page, Result};

/// A token as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    pub id: TokenId,
    pub name: String,
    pub scope: Scope,
    /// The session that the token belongs to; the token is revoked when the session ends.
    pub session_id: Option<SessionId>,
    /// Whether the token was created for the session's agent; it is deleted when the agent stops.
    pub minted: bool,
    pub created_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    pub revoked_at: Option<Timestamp>,
}

impl Token {
    pub fn is_valid(&self, now: Timestamp) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|end| now < end)
    }
}

/// The outcome of [`TokenStore::revoke_token`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RevokeOutcome {
    Done,
    /// The token was already expired or revoked.
    Already,
    NoSuchToken,
    /// The token is the only valid admin token, so it was not revoked.
    LastAdmin,
}

#[async_trait]
pub trait TokenStore {
    /// Adds a token. False if its scope names a project that does not exist.
    async fn add_token(
        &self,
        token: &Token,
        hash: KeyHash,
        audit: Option<AuditEntry>,
    ) -> Result<bool>;

    async fn token_by_hash(&self, hash: KeyHash) -> Result<Option<Token>>;

    async fn token(&self, id: TokenId) -> Result<Option<Token>>;

    /// Returns the token that owns the tree of a session, valid or not.
    async fn tree_owner(&self, session: SessionId) -> Result<Option<Token>>;

    /// Lists tokens, oldest first. `after` is the cursor of the previous page.
    async fn tokens(&self, after: Option<&str>, limit: u32) -> Result<Page<Token>>;

    async fn revoke_token(
        &self,
        id: TokenId,
        now: Timestamp,
        audit: Option<AuditEntry>,
    ) -> Result<RevokeOutcome>;

    /// Whether a valid admin token exists that does not belong to a session.
    async fn has_admin_token(&self, now: Timestamp) -> Result<bool>;
}
