//! Workspaces: the directories of a project in which sessions work.

pub(crate) mod delete;
pub(crate) mod list;

use oubliette_model::{ProjectId, WorkspaceId};
use oubliette_store::{StoreError, Workspace};
use uuid::Uuid;

use crate::containers::exec::Inside;
use crate::containers::id_of;
use crate::{Call, Engine, EngineError, Result};

/// Where agents and commands see a workspace.
pub(crate) fn path_in_container(id: &WorkspaceId) -> String {
    if id.is_default() {
        "/workspace".to_owned()
    } else {
        format!("/workspaces/{id}")
    }
}

/// Which workspace a call asks for.
#[derive(Debug, Clone, Default)]
pub struct Choice {
    pub workspace_id: Option<WorkspaceId>,
    /// Whether one that does not exist is made.
    pub create_workspace: bool,
}

/// The workspace a call gets.
#[derive(Debug, Clone, PartialEq)]
pub struct Chosen {
    pub id: WorkspaceId,
    pub created: bool,
}

impl Engine {
    /// Finds or makes the workspace that a call asks for: no id means the default one, no id and
    /// `create_workspace` a new one, an id that does not exist an error unless it is to be made.
    ///
    /// The caller has been permitted to use the project.
    pub async fn choose_workspace(
        &self,
        project: ProjectId,
        choice: &Choice,
        call: &Call,
    ) -> Result<Chosen> {
        let id = match (&choice.workspace_id, choice.create_workspace) {
            (None, false) => WorkspaceId::default_one(),
            (None, true) => WorkspaceId::from_uuid(Uuid::new_v4()),
            (Some(id), _) => id.clone(),
        };
        if self.store().workspace(project, &id).await?.is_some() {
            return self.open_workspace(project, id, call).await;
        }
        if !choice.create_workspace {
            return Err(EngineError::NotFound {
                what: "workspace",
                id: id.to_string(),
                hint: "`workspace_list` shows those there are; `create_workspace: true` makes it",
            });
        }
        // The row decides who makes it; a directory that a crash kept from being made is made by
        // the next who asks.
        let workspace = Workspace {
            id: id.clone(),
            created_at: self.now(),
        };
        match self.store().add_workspace(project, &workspace).await {
            Ok(true) => {}
            Ok(false) => return Err(EngineError::project_not_found(project)),
            Err(StoreError::Duplicate) => return self.open_workspace(project, id, call).await,
            Err(error) => return Err(error.into()),
        }
        if let Err(error) = self.make_workspace(project, &id, call).await {
            self.store().remove_workspace(project, &id, None).await?;
            return Err(error);
        }
        Ok(Chosen { id, created: true })
    }

    async fn open_workspace(
        &self,
        project: ProjectId,
        id: WorkspaceId,
        call: &Call,
    ) -> Result<Chosen> {
        if !self.files().has_workspace(project, &id) {
            self.make_workspace(project, &id, call).await?;
        }
        Ok(Chosen { id, created: false })
    }

    /// Makes the directory: a clone of the default workspace at HEAD on a branch of its own, or an
    /// empty one where there is no repository.
    async fn make_workspace(
        &self,
        project: ProjectId,
        id: &WorkspaceId,
        call: &Call,
    ) -> Result<()> {
        if self
            .store()
            .container(id_of(project).as_str())
            .await?
            .is_some()
        {
            return self.make_workspace_inside(project, id).await;
        }
        let source = self
            .files()
            .workspace_dir(project, &WorkspaceId::default_one());
        let draft = self.files().draft_workspace(project).await?;
        let made = if self.files().is_repository(&source) {
            self.git()
                .branch_off(&source, &draft, &format!("oubliette/{id}"), call)
                .await
        } else {
            Ok(())
        };
        match made {
            Ok(()) => self.files().adopt_workspace(project, id, draft).await,
            Err(error) => {
                self.files().discard(draft).await?;
                Err(error)
            }
        }
    }

    /// The same where an agent may have been: there, git runs only in the container.
    async fn make_workspace_inside(&self, project: ProjectId, id: &WorkspaceId) -> Result<()> {
        let stored = self.store().get(project).await?;
        let stored = stored.ok_or_else(|| EngineError::project_not_found(project))?;
        let (container, ..) = self.ensure_container(&stored).await?;
        let draft = format!(".new-{}", Uuid::new_v4());
        let script = "[ -d /workspace/.git ] || exec mkdir \"$1\"\n\
                      git -c safe.directory=* clone -q --no-hardlinks -- /workspace \"$1\" && \
                      git -C \"$1\" checkout -q -b \"$2\"";
        let words = ["/bin/sh", "-c", script, "sh"]
            .map(str::to_owned)
            .into_iter();
        let words = words.chain([format!("/workspaces/{draft}"), format!("oubliette/{id}")]);
        let finished = self
            .run_inside(&container, words.collect(), Vec::new())
            .await?;
        let draft = self
            .files()
            .project_dir(project)
            .join("workspaces")
            .join(draft);
        if let Inside::Failed(said) = finished {
            self.files().discard(draft).await?;
            return Err(EngineError::Failed(format!(
                "the workspace could not be made: {said}"
            )));
        }
        self.files().adopt_workspace(project, id, draft).await
    }
}

#[cfg(test)]
mod tests;
