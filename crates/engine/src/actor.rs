//! The caller of an operation.

use oubliette_model::{ProjectId, Scope, SessionId, TokenId, sees};
use oubliette_store::VisibleProjects;

use crate::{Engine, Result};

/// The token of a call, as it was when the call was made.
#[derive(Debug, Clone)]
pub struct Actor {
    pub token_id: TokenId,
    pub scope: Scope,
    /// The session whose agent calls: the token belongs to it, or the connection is attached to it.
    pub session: Option<SessionId>,
    /// Whether the call comes from a container, on a connection that is attached to no session, with a
    /// key that belongs to none: which agent calls is unknown.
    pub unattached: bool,
    /// The address of the caller, for the audit log.
    pub address: Option<String>,
}

impl Actor {
    /// Whether an agent calls, as far as is known.
    pub(crate) fn is_agent(&self) -> bool {
        self.session.is_some() || self.unattached
    }

    /// The projects that lists show to this actor.
    pub fn visible(&self) -> VisibleProjects {
        self.scope
            .project()
            .map_or(VisibleProjects::All, VisibleProjects::Only)
    }

    pub fn sees(&self, project: ProjectId) -> bool {
        sees(self.scope, project)
    }
}

impl Engine {
    /// The projects that a list shows: the named one, or all that the actor can see.
    pub(crate) async fn visible(
        &self,
        actor: &Actor,
        project: Option<ProjectId>,
    ) -> Result<VisibleProjects> {
        match project {
            Some(id) => Ok(VisibleProjects::Only(self.project(id).await?.id)),
            None => Ok(actor.visible()),
        }
    }
}
