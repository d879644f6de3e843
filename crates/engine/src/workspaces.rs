//! Workspaces: the directories of a project in which sessions work.

pub(crate) mod delete;
pub(crate) mod list;

use oubliette_model::{ProjectId, WorkspaceId};
use oubliette_runtime::ContainerId;
use oubliette_store::{Project, StoreError, Workspace};
use uuid::Uuid;

use crate::containers::{CommandResult, ContainerPlan, ContainerScope, mount};
use crate::files::Draft;
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
        let stored = self.store().get(project).await?;
        let stored = stored.ok_or_else(|| EngineError::project_not_found(project))?;
        let default =
            ContainerScope::of_workspace(&stored, &WorkspaceId::default_one()).container_id();
        if self.store().container(default.as_str()).await?.is_some() {
            return match stored.settings.workspace_isolation {
                true => self.make_workspace_apart(&stored, id).await,
                false => self.make_workspace_inside(&stored, id).await,
            };
        }
        let source = self
            .files()
            .workspace_dir(project, &WorkspaceId::default_one());
        let draft = self.files().draft();
        let directory = self.files().make_draft(project, &draft).await?;
        let made = if self.files().is_repository(&source) {
            self.git()
                .branch_off(&source, &directory, &format!("oubliette/{id}"), call)
                .await
        } else {
            Ok(())
        };
        match made {
            Ok(()) => self.files().adopt_draft(project, id, &draft).await,
            Err(error) => {
                self.files().discard_draft(project, &draft).await?;
                Err(error)
            }
        }
    }

    /// The same where an agent may have been: there, git runs only in the container.
    async fn make_workspace_inside(&self, project: &Project, id: &WorkspaceId) -> Result<()> {
        let default = WorkspaceId::default_one();
        let running = self.containers().ensure(project, &default).await?;
        let draft = self.files().draft();
        let directory = format!("/workspaces/{}", draft.name());
        let argv = cloning(&directory, id);
        let finished = self
            .containers()
            .run_command(&running.id, running.link, argv, Vec::new())
            .await?;
        // The command of a server that died may have begun one after the next server looked for them.
        let files = self.files().clone();
        self.spawn(async move { files.sweep(Vec::new()).await });
        self.accept_draft(project.id, id, &draft, finished).await
    }

    /// The same where no container sees two workspaces: one that lives only for this sees the
    /// default one, which it cannot change, and the new one.
    async fn make_workspace_apart(&self, project: &Project, id: &WorkspaceId) -> Result<()> {
        let draft = self.files().draft();
        let directory = self.files().make_draft(project.id, &draft).await?;
        let source = self
            .files()
            .workspace_dir(project.id, &WorkspaceId::default_one());
        let mounts = vec![
            mount(source, "/workspace", true),
            mount(directory, "/workspaces/new", false),
        ];
        let container = ContainerId::from_bits(Uuid::new_v4().as_u128());
        let default = ContainerScope::of_workspace(project, &WorkspaceId::default_one());
        let plan = ContainerPlan {
            project,
            scope: ContainerScope::of_workspace(project, id),
            id: container.clone(),
            mounts: Some(mounts),
            users_of: Some(default.container_id()),
        };
        let made = async {
            let link = self.containers().create(plan).await?;
            let argv = cloning("/workspaces/new", id);
            self.containers()
                .run_command(&container, link, argv, Vec::new())
                .await
        };
        let made = made.await;
        self.containers().remove(&container).await?;
        match made {
            Ok(finished) => self.accept_draft(project.id, id, &draft, finished).await,
            Err(error) => {
                self.files().discard_draft(project.id, &draft).await?;
                Err(error)
            }
        }
    }

    /// Gives a draft its name, unless making it failed with these words.
    async fn accept_draft(
        &self,
        project: ProjectId,
        id: &WorkspaceId,
        draft: &Draft,
        finished: CommandResult,
    ) -> Result<()> {
        let CommandResult::Failed(said) = finished else {
            return self.files().adopt_draft(project, id, draft).await;
        };
        self.files().discard_draft(project, draft).await?;
        Err(EngineError::Failed(format!(
            "the workspace could not be made: {said}"
        )))
    }

    pub(crate) async fn require_workspace(
        &self,
        project: ProjectId,
        id: &WorkspaceId,
    ) -> Result<()> {
        match self.store().workspace(project, id).await? {
            Some(_) => Ok(()),
            None => Err(EngineError::NotFound {
                what: "workspace",
                id: id.to_string(),
                hint: "`workspace_list` shows those there are",
            }),
        }
    }
}

/// The command that makes a workspace of the default one, or an empty one.
fn cloning(directory: &str, id: &WorkspaceId) -> Vec<String> {
    let script = "cd /workspace || exit\n\
                  [ -d .git ] || exec mkdir -p \"$1\"\n\
                  git -c safe.directory=* clone -q --no-hardlinks -- /workspace \"$1\" && \
                  git -C \"$1\" checkout -q -b \"$2\"";
    let words = ["/bin/sh", "-c", script, "sh", directory].map(str::to_owned);
    let branch = format!("oubliette/{id}");
    words.into_iter().chain([branch]).collect()
}

#[cfg(test)]
mod tests;
