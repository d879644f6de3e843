//! Tokens; their keys only as hashes.

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
    /// The session that it belongs to and ends with.
    pub session_id: Option<SessionId>,
    /// Whether the session's agent was started with it; then it ends with the agent.
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

/// What became of a revocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Revoked {
    Done,
    /// It was not valid any more.
    Already,
    NoSuchToken,
    /// It is the only valid admin token.
    LastAdmin,
}

#[async_trait]
pub trait Tokens {
    /// False if the scope names a project that does not exist.
    async fn add_token(
        &self,
        token: &Token,
        hash: KeyHash,
        audit: Option<AuditEntry>,
    ) -> Result<bool>;

    async fn token_by_hash(&self, hash: KeyHash) -> Result<Option<Token>>;

    async fn token(&self, id: TokenId) -> Result<Option<Token>>;

    /// Tokens in the order of their making, after the cursor of the page before.
    async fn tokens(&self, after: Option<&str>, limit: u32) -> Result<Page<Token>>;

    async fn revoke(
        &self,
        id: TokenId,
        now: Timestamp,
        audit: Option<AuditEntry>,
    ) -> Result<Revoked>;

    async fn has_admin(&self, now: Timestamp) -> Result<bool>;
}
