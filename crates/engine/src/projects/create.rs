//! `project_create`.

use std::path::PathBuf;

use oubliette_model::{
    Access, Mode, ProjectId, ProjectName, ProjectSettings, RemoteUrl, may_mount,
};
use oubliette_store::{Project, StoreError};
use schemars::JsonSchema;
use serde::Deserialize;
use uuid::Uuid;

use super::fields::{SettingsParams, require_known_name};
use super::view::ProjectView;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// Unique name.
    ///
    /// 1 to 100 letters, digits, spaces, `.`, `_` or `-`.
    name: ProjectName,
    /// Repository to clone.
    ///
    /// https, http, ssh or `git@host:path`.
    remote_url: Option<RemoteUrl>,
    /// Credential to clone and push with.
    git_credential: Option<String>,
    /// Directory on the server's machine to work in.
    ///
    /// Instead of one of the server's own. Only admin tokens can set this. It is an absolute path. Agents
    /// change its files directly, and can read everything in it. Agents cannot set this. Cannot be changed
    /// after creation.
    #[schemars(extend("x-unlisted" = true))]
    mount: Option<String>,
    /// Start as a git repository (true).
    ///
    /// Without `remote_url`; it is empty.
    #[schemars(extend("x-unlisted" = true))]
    init_git: Option<bool>,
    /// One container per workspace (false).
    ///
    /// Such a container cannot see other workspaces and has its own limits. Cannot be changed after creation.
    workspace_isolation: Option<bool>,
    #[serde(flatten)]
    settings: SettingsParams,
}

#[derive(Debug)]
pub(crate) struct Create;

impl Operation for Create {
    const NAME: &'static str = "project_create";
    const ABOUT: &'static str = "Create a project; `remote_url` clones a repository.\n\n\
         Without it the project starts as an empty git repository. Other calls take its name or the \
         `project_id` of the result.";
    const ACCESS: Access = Access::Global(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Adds;
    const OPEN_WORLD: bool = true;
    type Params = Params;
    type Output = ProjectView;

    fn reach(params: &Params) -> Reach {
        Reach {
            restricted: params.mount.as_ref().map(|_| "mount"),
            ..Reach::everywhere()
        }
    }

    async fn run(
        engine: &Engine,
        actor: &Actor,
        params: Params,
        call: Call,
    ) -> Result<ProjectView> {
        let mut settings = settings(engine, actor, &params)?;
        let network = engine.network();
        network.bound_new_project(actor, &mut settings).await?;
        let mount = find_mount(engine, actor, &params).await?;
        let now = engine.now();
        let project = Project {
            id: ProjectId::new(Uuid::new_v4()),
            name: params.name,
            revision: 1,
            settings,
            created_at: now,
            updated_at: now,
        };
        match engine.store().reserve_project(&project).await {
            Ok(()) => {}
            Err(StoreError::Duplicate) => {
                return Err(engine.projects().already_exists(actor, &project.name).await);
            }
            Err(error) => return Err(error.into()),
        }
        let init_git = params.init_git.unwrap_or(true);
        let confirmed = async {
            match mount {
                Some(mount) => {
                    engine.files().create_project_dirs(project.id).await?;
                    engine.files().set_mount(project.id, mount).await?;
                }
                None => create_files(engine, &project, init_git, &call).await?,
            }
            let audit = call.take_audit_entry_for(project.id);
            Ok(engine.store().confirm_project(project.id, audit).await?)
        };
        match confirmed.await {
            Ok(true) => Ok(ProjectView::new(project, engine)),
            Ok(false) => Err(EngineError::fault("the reservation of a project was lost")),
            Err(error) => {
                if engine.projects().purge(project.id).await.is_err() {
                    engine.projects().purge_in_background(project.id);
                }
                Err(error)
            }
        }
    }
}

/// The directory of a person that the project works in, if the call names one and may.
async fn find_mount(engine: &Engine, actor: &Actor, params: &Params) -> Result<Option<PathBuf>> {
    let Some(given) = &params.mount else {
        return Ok(None);
    };
    if !may_mount(actor.scope, actor.is_agent()) {
        return Err(EngineError::refused_parameter(
            "mount",
            format!(
                "this token (`{}`) may not set `mount`; an `admin` token that is not an agent's can",
                actor.scope
            ),
        ));
    }
    if params.remote_url.is_some() || params.init_git == Some(true) {
        return Err(EngineError::invalid(
            "`mount` is a directory that exists already; omit `remote_url` and `init_git`",
        ));
    }
    engine.files().find_mountable(given).await.map(Some)
}

fn settings(engine: &Engine, actor: &Actor, params: &Params) -> Result<ProjectSettings> {
    let mut settings = ProjectSettings {
        remote_url: params.remote_url.clone(),
        git_credential: params.git_credential.clone(),
        workspace_isolation: params.workspace_isolation.unwrap_or(false),
        ..ProjectSettings::default()
    };
    params.settings.apply(engine, actor, &mut settings)?;
    let names = engine.credentials().names();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    require_known_name("git_credential", params.git_credential.as_deref(), &names)?;
    if let Some(url) = &params.remote_url {
        let credential = params
            .git_credential
            .as_ref()
            .and_then(|name| engine.credentials().find(name));
        engine.git().check(url, credential.as_ref())?;
    }
    Ok(settings)
}

async fn create_files(
    engine: &Engine,
    project: &Project,
    init_git: bool,
    call: &Call,
) -> Result<()> {
    let workspace = engine.files().create_project_dirs(project.id).await?;
    match &project.settings.remote_url {
        Some(url) => {
            let name = project.settings.git_credential.as_ref();
            let credential = name.and_then(|name| engine.credentials().find(name));
            let git = engine.git();
            git.clone(url, credential.as_ref(), &workspace, call).await
        }
        None if init_git => engine.git().init(&workspace),
        None => Ok(()),
    }
}
