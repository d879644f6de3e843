//! Who calls.

use oubliette_model::{ProjectId, Scope, SessionId, TokenId, sees};
use oubliette_store::Visible;

use crate::{Engine, EngineError, Result};

/// The token a call was made with, as it was at that moment.
#[derive(Debug, Clone)]
pub struct Actor {
    pub token_id: TokenId,
    pub scope: Scope,
    /// The session that calls, if it is one: whose agent has the token, or speaks on the connection.
    pub session: Option<SessionId>,
    /// Where the call came from, for the audit log.
    pub address: Option<String>,
}

impl Actor {
    /// What lists show to this actor.
    pub fn visible(&self) -> Visible {
        self.scope.project().map_or(Visible::All, Visible::Only)
    }

    pub fn sees(&self, project: ProjectId) -> bool {
        sees(self.scope, project)
    }
}

impl Engine {
    /// What a list shows that may be of one project.
    pub(crate) async fn visible(
        &self,
        actor: &Actor,
        project: Option<ProjectId>,
    ) -> Result<Visible> {
        match project {
            Some(id) if self.store().get(id).await?.is_none() => {
                Err(EngineError::project_not_found(id))
            }
            Some(id) => Ok(Visible::Only(id)),
            None => Ok(actor.visible()),
        }
    }
}
