//! The key that an agent gets: its scope, and who gave it.
//!
//! A grant is as alive as its giver. It is computed at each start of an agent and at each call with the
//! agent's key, from what the owner of the tree may do then.

use oubliette_model::{Scope, SessionId, is_below, may_direct, narrow};
use oubliette_store::Session;

use super::Sessions;
use crate::tokens::authority::Authority;
use crate::{EngineError, Result};

impl Sessions<'_> {
    /// The scope that was chosen for a session's agent, or for all agents of the project.
    pub(crate) async fn wanted_scope(self, session: &Session) -> Result<Option<Scope>> {
        if session.choices.agent_scope.is_some() {
            return Ok(session.choices.agent_scope);
        }
        let project = self.engine.store().project(session.project_id).await?;
        Ok(project.and_then(|project| project.settings.agent_scope))
    }

    /// What the key of a session's agent may do now: what was chosen, narrowed to what was granted to
    /// the session and each session above it, and to what the owner of the tree may do now. None if that
    /// is nothing.
    pub(crate) async fn grant(self, session: &Session) -> Result<Option<Authority>> {
        let Some(wanted) = self.wanted_scope(session).await? else {
            return Ok(None);
        };
        let Some(giver) = self.engine.tokens().giver(session.id).await? else {
            return Ok(None);
        };
        let Some(scope) = narrow(wanted, [Some(giver.scope)]) else {
            return Ok(None);
        };
        let scope = self.narrow_to_granted(scope, session).await?;
        Ok(scope.map(|scope| Authority { scope, ..giver }))
    }

    /// What is left of a scope when it is narrowed to what was granted to a session and each session
    /// above it.
    pub(crate) async fn narrow_to_granted(
        self,
        scope: Scope,
        session: &Session,
    ) -> Result<Option<Scope>> {
        let mut granted = vec![session.choices.granted];
        let mut parent = session.parent_id;
        while let Some(id) = parent {
            let Some(above) = self.engine.store().session(id).await? else {
                return Ok(None);
            };
            granted.push(above.choices.granted);
            parent = above.parent_id;
        }
        Ok(narrow(scope, granted))
    }

    /// The scope of the key that a session's agent gets if it is started now.
    pub(crate) async fn agent_scope(self, session: &Session) -> Result<Option<Scope>> {
        let grant = self.grant(session).await?;
        Ok(grant.map(|grant| grant.scope))
    }

    /// Checks that a sender may do everything that the agent of a session may do.
    pub(super) async fn check_sender(self, sender: Option<Scope>, session: &Session) -> Result<()> {
        let Some(scope) = self.agent_scope(session).await? else {
            return Ok(());
        };
        if sender.is_some_and(|sender| may_direct(sender, Some(scope))) {
            return Ok(());
        }
        let own = match sender {
            Some(sender) => format!("which is wider than your scope `{sender}`"),
            None => "and you have none".to_owned(),
        };
        Err(EngineError::invalid(format!(
            "the agent of this session has a key with the scope `{scope}`, {own}; start another \
             session instead (`session_spawn` with `new_session`; as an agent: `session_message` \
             without `session_id`)"
        )))
    }

    /// Checks that a session is below an agent's own.
    pub(crate) async fn check_below(self, own: SessionId, session: &Session) -> Result<()> {
        let refused = EngineError::refused_parameter(
            "session_id",
            "an agent may direct and set back only sessions below its own",
        );
        let own = self.engine.store().session(own).await?;
        let Some(own) = own else { return Err(refused) };
        let ancestors = self.ancestors(session, own.depth).await?;
        if is_below(own.id, &ancestors) {
            Ok(())
        } else {
            Err(refused)
        }
    }

    /// The sessions above a session, from its parent up to the one at a depth.
    pub(super) async fn ancestors(self, session: &Session, depth: u32) -> Result<Vec<SessionId>> {
        let mut ancestors = Vec::new();
        let (mut at, mut parent) = (session.depth, session.parent_id);
        while at > depth
            && let Some(id) = parent
        {
            ancestors.push(id);
            let Some(above) = self.engine.store().session(id).await? else {
                break;
            };
            (at, parent) = (above.depth, above.parent_id);
        }
        Ok(ancestors)
    }
}
