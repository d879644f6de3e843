//! Workspaces: the directories of a project in which its sessions work.

mod apply;
pub(crate) mod create;
pub(crate) mod delete;
pub(crate) mod files;
pub(crate) mod list;
mod path;
pub(crate) mod read;
pub(crate) mod tickets;
mod transfers;
pub(crate) mod write;

pub use transfers::{Download, DownloadedPieces, TransferError, Transfers, Upload};

use oubliette_model::{ProjectId, WorkspaceId};
use oubliette_runtime::ContainerId;
use oubliette_store::{Project, StoreError, Workspace};
use uuid::Uuid;

use crate::containers::CommandResult;
use crate::containers::{ContainerPlan, ContainerScope, mount};
use crate::files::{Draft, Files, is_disk_full};
use crate::{Call, Engine, EngineError, Result};

/// The path of a workspace in its container.
pub(crate) fn path_in_container(id: &WorkspaceId) -> String {
    if id.is_default() {
        "/workspace".to_owned()
    } else {
        format!("/workspaces/{id}")
    }
}

/// The workspace that a call asks for.
#[derive(Debug, Clone, Default)]
pub(crate) struct WorkspaceChoice {
    pub(crate) workspace_id: Option<WorkspaceId>,
    /// Whether to create the workspace if it does not exist.
    pub(crate) create_workspace: bool,
    /// The workspace that a new one is a clone of; the default one if absent.
    pub(crate) from: Option<WorkspaceId>,
}

/// The workspace that a call uses.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ChosenWorkspace {
    pub(crate) id: WorkspaceId,
    pub(crate) created: bool,
}

/// Handle for the verbs of workspaces.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Workspaces<'a> {
    pub(crate) engine: &'a Engine,
}

impl Workspaces<'_> {
    /// Finds or creates the workspace that a call asks for. Without an id that is the default one,
    /// or a new one with `create_workspace`. An unknown id is an error without `create_workspace`.
    ///
    /// The caller must have checked the permission for the project.
    pub(crate) async fn choose(
        self,
        project: ProjectId,
        choice: &WorkspaceChoice,
        call: &Call,
    ) -> Result<ChosenWorkspace> {
        let id = match (&choice.workspace_id, choice.create_workspace) {
            (None, false) => WorkspaceId::default(),
            (None, true) => WorkspaceId::from_uuid(Uuid::new_v4()),
            (Some(id), _) => id.clone(),
        };
        if self.engine.store().workspace(project, &id).await?.is_some() {
            return self.open(project, id, choice, call).await;
        }
        if !choice.create_workspace {
            return Err(EngineError::NotFound {
                what: "workspace",
                id: id.to_string(),
                hint: "`workspace_list` lists the workspaces; `create_workspace: true` creates it",
            });
        }
        // The call that adds the row creates the directory. If a crash prevents that, the next call
        // for the workspace creates it.
        let workspace = Workspace {
            id: id.clone(),
            created_at: self.engine.now(),
        };
        let max_workspaces = self.engine.settings().limits.max_workspaces;
        let store = self.engine.store();
        let added = store.add_workspace(project, &workspace, max_workspaces);
        match added.await {
            Ok(true) => {}
            Ok(false) => return Err(EngineError::project_not_found(project)),
            Err(StoreError::Duplicate) => return self.open(project, id, choice, call).await,
            Err(error) => return Err(error.into()),
        }
        if let Err(error) = self.create(project, &id, choice, call).await {
            self.discard(project, &id).await;
            return Err(error);
        }
        Ok(ChosenWorkspace { id, created: true })
    }

    async fn open(
        self,
        project: ProjectId,
        id: WorkspaceId,
        choice: &WorkspaceChoice,
        call: &Call,
    ) -> Result<ChosenWorkspace> {
        if !self.files().has_workspace(project, &id) {
            self.create(project, &id, choice, call).await?;
        }
        Ok(ChosenWorkspace { id, created: false })
    }

    /// Creates the directory of a workspace that has a row, and protects its paths.
    async fn create(
        self,
        project: ProjectId,
        id: &WorkspaceId,
        choice: &WorkspaceChoice,
        call: &Call,
    ) -> Result<()> {
        let created = match self.create_directory(project, id, choice, call).await {
            Ok(()) => self.protect(project, id).await,
            failed => failed,
        };
        let store = self.engine.store();
        if let Err(error) = created {
            // A deletion of the project takes the files and the container away at any point.
            return Err(match store.project(project).await {
                Ok(None) => EngineError::project_not_found(project),
                _ => error,
            });
        }
        if store.workspace(project, id).await?.is_some() {
            return Ok(());
        }
        // Deleted meanwhile, perhaps before there was a directory to remove.
        self.files().remove_workspace(project, id).await?;
        Err(not_found(id))
    }

    /// Removes a workspace whose id no caller knows, in the background if that fails now.
    pub(crate) async fn undo_creation(self, project: ProjectId, id: &WorkspaceId) {
        let Err(error) = self.remove_unused(project, id).await else {
            return;
        };
        tracing::warn!(%project, workspace = %id, %error, "could not remove a workspace; trying again");
        let id = id.clone();
        self.engine.spawn_until_stopping(|engine| async move {
            let what = format!("unused workspace {id} of {project}");
            let remove = || engine.workspaces().remove_unused(project, &id);
            engine.retry(&what, remove).await;
        });
    }

    async fn remove_unused(self, project: ProjectId, id: &WorkspaceId) -> Result<()> {
        let store = self.engine.store();
        match store.remove_workspace(project, id, None).await {
            Ok(_) => self.files().remove_workspace(project, id).await,
            Err(StoreError::InUse) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the row of a workspace whose directory could not be created, in the background if the
    /// store fails now, for example because the disk is full.
    async fn discard(self, project: ProjectId, id: &WorkspaceId) {
        let Err(error) = self.remove_row(project, id).await else {
            return;
        };
        tracing::warn!(%project, workspace = %id, %error, "could not discard a workspace; trying again");
        let id = id.clone();
        self.engine.spawn_until_stopping(|engine| async move {
            let what = format!("discarded workspace {id} of {project}");
            let remove = || engine.workspaces().remove_row(project, &id);
            engine.retry(&what, remove).await;
        });
    }

    /// Removes the row of a workspace unless another call has created its directory.
    async fn remove_row(self, project: ProjectId, id: &WorkspaceId) -> Result<()> {
        if self.files().has_workspace(project, id) {
            return Ok(());
        }
        let store = self.engine.store();
        match store.remove_workspace(project, id, None).await {
            Ok(_) | Err(StoreError::InUse) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Fails if a workspace does not exist. Its directory does, afterwards.
    pub(crate) async fn open_existing(
        self,
        project: ProjectId,
        id: &WorkspaceId,
        call: &Call,
    ) -> Result<()> {
        self.engine.project(project).await?;
        self.require(project, id).await?;
        let choice = WorkspaceChoice::default();
        self.open(project, id.clone(), &choice, call).await?;
        Ok(())
    }

    /// Protects the paths of a new workspace, or removes it.
    async fn protect(self, project: ProjectId, id: &WorkspaceId) -> Result<()> {
        let stored = self.engine.project(project).await?;
        let protected = self
            .engine
            .containers()
            .protect_workspace(&stored, id)
            .await;
        if protected.is_err() {
            self.files().remove_workspace(project, id).await?;
        }
        protected
    }

    /// Creates the directory: a clone of the source at HEAD on its own branch, or empty if the source is
    /// not a repository.
    async fn create_directory(
        self,
        project: ProjectId,
        id: &WorkspaceId,
        choice: &WorkspaceChoice,
        call: &Call,
    ) -> Result<()> {
        let stored = self.engine.project(project).await?;
        let source = choice.from.clone().unwrap_or_default();
        let default = ContainerScope::default_container_id(project);
        let _permit = tokio::select! {
            permit = self.engine.container_state().permit_workspace_creation(&default) => permit?,
            () = call.cancelled() => return Err(EngineError::Cancelled),
        };
        // Another call may have created it meanwhile.
        if self.files().has_workspace(project, id)
            || (source.is_default() && self.create_on_host(&stored, &default, id, call).await?)
        {
            return Ok(());
        }
        if stored.settings.workspace_isolation {
            self.clone_in_temporary_container(&stored, &source, id)
                .await
        } else {
            self.clone_in_project_container(&stored, &source, id).await
        }
    }

    /// Creates the directory on the host if no container has ever seen the default workspace; whether
    /// it did. The lock keeps the container from starting meanwhile, which would give the files to
    /// other user ids, and to processes that could name programs for git to run.
    async fn create_on_host(
        self,
        project: &Project,
        default_container: &ContainerId,
        id: &WorkspaceId,
        call: &Call,
    ) -> Result<bool> {
        let _lock = self
            .engine
            .container_state()
            .lock_container(default_container)
            .await;
        let store = self.engine.store();
        // Agents of other projects may have written to a person's directory, too.
        if self.files().mounted_path(project.id).is_some()
            || store.container(default_container.as_str()).await?.is_some()
        {
            return Ok(false);
        }
        // A deletion needs the lock, too, before it moves the files away.
        self.engine.project(project.id).await?;
        let source = self
            .files()
            .workspace_dir(project.id, &WorkspaceId::default());
        let draft = self.files().new_draft();
        let directory = self.files().create_draft_dir(project.id, &draft).await?;
        let cloned = if self.files().is_git_repository(&source) {
            self.engine
                .git()
                .clone_to_branch(&source, &directory, &format!("oubliette/{id}"), call)
                .await
        } else {
            Ok(())
        };
        match cloned {
            Ok(()) => self.files().publish_draft(project.id, id, &draft).await?,
            Err(error) => {
                self.files().remove_draft(project.id, &draft).await?;
                return Err(error);
            }
        }
        Ok(true)
    }

    /// Clones where an agent may have written: there, git runs only in the container.
    async fn clone_in_project_container(
        self,
        project: &Project,
        source: &WorkspaceId,
        id: &WorkspaceId,
    ) -> Result<()> {
        let default = WorkspaceId::default();
        let running = self.engine.containers().ensure(project, &default).await?;
        let draft = self.files().new_draft();
        let directory = format!("/workspaces/{}", draft.name());
        let outcome = self
            .engine
            .containers()
            .run_command(
                &running.id,
                running.link,
                clone_command(&path_in_container(source), &directory, id),
                Vec::new(),
            )
            .await?;
        // The command of a server that died may have created a draft after this server's start, when
        // leftover drafts were removed.
        let files = self.files().clone();
        self.engine
            .spawn(async move { files.purge_trash(Vec::new()).await });
        self.publish_draft(project.id, id, &draft, outcome).await
    }

    /// Clones where no container sees two workspaces: a temporary container sees the source, read-only, and
    /// the new one.
    async fn clone_in_temporary_container(
        self,
        project: &Project,
        source: &WorkspaceId,
        id: &WorkspaceId,
    ) -> Result<()> {
        let mounted = self
            .engine
            .containers()
            .mount_workspace(project, source, "/workspace", true)
            .await?;
        let draft = self.files().new_draft();
        let directory = self.files().create_draft_dir(project.id, &draft).await?;
        // The files belong to the users of the container that last had them.
        let own = ContainerScope::of_workspace(project, source).container_id();
        let has_run = self.engine.store().container(own.as_str()).await?.is_some();
        let users_of = if has_run {
            own
        } else {
            ContainerScope::default_container_id(project.id)
        };
        let mounts = vec![mounted, mount(directory, "/workspaces/new", false)];
        let container = ContainerId::from_bits(Uuid::new_v4().as_u128());
        let plan = ContainerPlan {
            project,
            scope: ContainerScope::of_workspace(project, id),
            id: container.clone(),
            mounts: Some(mounts),
            users_of: Some(users_of),
        };
        let clone = async {
            let link = {
                // A deletion of the project must not remove the container while it is created.
                let state = self.engine.container_state();
                let _lock = state.lock_container(&container).await;
                self.engine.containers().create(plan).await?
            };
            let argv = clone_command("/workspace", "/workspaces/new", id);
            self.engine
                .containers()
                .run_command(&container, link, argv, Vec::new())
                .await
        };
        let cloned = clone.await;
        self.engine.containers().remove_or_retry(&container).await;
        match cloned {
            Ok(outcome) => self.publish_draft(project.id, id, &draft, outcome).await,
            Err(error) => {
                self.files().remove_draft(project.id, &draft).await?;
                Err(error)
            }
        }
    }

    /// Renames a draft to its workspace, or removes it if the command failed.
    async fn publish_draft(
        self,
        project: ProjectId,
        id: &WorkspaceId,
        draft: &Draft,
        outcome: CommandResult,
    ) -> Result<()> {
        let CommandResult::Failed(reason) = outcome else {
            return self.files().publish_draft(project, id, draft).await;
        };
        let is_full = is_disk_full(self.files().project_dir(project)).await;
        self.files().remove_draft(project, draft).await?;
        if is_full {
            return Err(EngineError::disk_full());
        }
        Err(EngineError::Failed(format!(
            "the workspace could not be created: {reason}"
        )))
    }

    /// Fails if a workspace does not exist.
    pub(crate) async fn require(self, project: ProjectId, id: &WorkspaceId) -> Result<()> {
        match self.engine.store().workspace(project, id).await? {
            Some(_) => Ok(()),
            None => Err(not_found(id)),
        }
    }

    fn files(&self) -> &Files {
        self.engine.files()
    }
}

fn not_found(id: &WorkspaceId) -> EngineError {
    EngineError::NotFound {
        what: "workspace",
        id: id.to_string(),
        hint: "`workspace_list` lists the workspaces",
    }
}

/// The command that clones a workspace, or creates an empty directory if it is not a repository.
fn clone_command(source: &str, directory: &str, id: &WorkspaceId) -> Vec<String> {
    let script = "cd \"$4\" || exit\n\
                  [ -d .git ] || exec mkdir -p \"$1\"\n\
                  git -c safe.directory=* clone -q --no-hardlinks -- \"$4\" \"$1\" && \
                  git -C \"$1\" checkout -q -b \"$2\" || exit\n\
                  hook=$1/.git/hooks/prepare-commit-msg\n\
                  mkdir -p \"${hook%/*}\" && printf %s \"$3\" > \"$hook\" && chmod 755 \"$hook\"";
    let branch = format!("oubliette/{id}");
    let hook = crate::git::COMMIT_MESSAGE_HOOK;
    let arguments = ["sh", directory, &branch, hook, source];
    let words = ["/bin/sh", "-c", script].into_iter().chain(arguments);
    words.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests;
