//! What a token may do now. A token of an agent is only as good as the token that it was given by.

use jiff::Timestamp;
use oubliette_model::{Scope, SessionId, narrow};
use oubliette_store::Token;

use super::Tokens;
use crate::{EngineError, Result};

/// What a token may do, and until when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Authority {
    pub(crate) scope: Scope,
    pub(crate) expires_at: Option<Timestamp>,
}

/// Why a token may do nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenEnd {
    Deleted,
    Revoked,
    Expired,
    /// It belongs to an agent, and the token that owns the agent's tree is no longer valid or may not
    /// do any of it.
    GiverEnded,
}

impl TokenEnd {
    /// The end of a sentence about the token.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Deleted => "was deleted",
            Self::Revoked => "was revoked",
            Self::Expired => "has expired",
            Self::GiverEnded => {
                "belongs to an agent whose key came from a token that is no longer valid"
            }
        }
    }
}

impl Tokens<'_> {
    /// What a token may do now. This is the one place that decides it, for calls with a key and for
    /// scheduled runs.
    pub(crate) async fn authority(self, token: &Token) -> Result<Result<Authority, TokenEnd>> {
        if token.revoked_at.is_some() {
            return Ok(Err(TokenEnd::Revoked));
        }
        if !token.is_valid(self.engine.now()) {
            return Ok(Err(TokenEnd::Expired));
        }
        let Some(session) = token.session_id else {
            return Ok(Ok(Authority {
                scope: token.scope,
                expires_at: token.expires_at,
            }));
        };
        let given = self.given(token, session).await?;
        let scope = given.and_then(|given| narrow(token.scope, [Some(given.scope)]));
        let (Some(given), Some(scope)) = (given, scope) else {
            return Ok(Err(TokenEnd::GiverEnded));
        };
        let ends = [token.expires_at, given.expires_at];
        Ok(Ok(Authority {
            scope,
            expires_at: ends.into_iter().flatten().min(),
        }))
    }

    /// What the agent of a session may do now, which bounds its key and the tokens that it created.
    async fn given(self, token: &Token, session: SessionId) -> Result<Option<Authority>> {
        let sessions = self.engine.sessions();
        let Some(session) = self.engine.store().session(session).await? else {
            return Ok(None);
        };
        if token.minted || sessions.wanted_scope(&session).await?.is_some() {
            return sessions.grant(&session).await;
        }
        // The agent got no key of its own, and used one from its environment.
        self.giver(session.id).await
    }

    /// Fails if the token that owns a session's tree has ended: the tree then starts no more work.
    pub(crate) async fn require_owner(self, session: SessionId) -> Result<()> {
        let owner = self.engine.store().tree_owner(session).await?;
        match owner {
            Some(owner) if !owner.is_valid(self.engine.now()) => Err(EngineError::Failed(
                "the token that this session was started with is no longer valid, so the session \
                 cannot start or continue others; finish without them"
                    .to_owned(),
            )),
            _ => Ok(()),
        }
    }

    /// What the owner of a session's tree may do now, which bounds everything that the agents of the
    /// tree may do; none if its token is no longer valid.
    pub(crate) async fn giver(self, session: SessionId) -> Result<Option<Authority>> {
        let owner = self.engine.store().tree_owner(session).await?;
        let now = self.engine.now();
        // The root of a tree is never started by an agent, so its owner has no giver of its own.
        let owner = owner.filter(|owner| owner.session_id.is_none() && owner.is_valid(now));
        Ok(owner.map(|owner| Authority {
            scope: owner.scope,
            expires_at: owner.expires_at,
        }))
    }
}
