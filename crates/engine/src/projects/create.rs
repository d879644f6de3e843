//! `project_create`.

use oubliette_model::{Access, Mode, ProjectId, ProjectName, ProjectSettings, RemoteUrl};
use oubliette_store::{Project, StoreError};
use schemars::JsonSchema;
use serde::Deserialize;
use uuid::Uuid;

use super::fields::{Fields, known};
use super::view::View;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// The project's name: 1 to 100 letters, digits, spaces, `.`, `_` or `-`; unique.
    name: ProjectName,
    /// A repository to clone: https, http, ssh or `git@host:path`.
    remote_url: Option<RemoteUrl>,
    /// The credential of the server's configuration to clone with, by name.
    git_credential: Option<String>,
    /// Whether a project without `remote_url` starts as an empty git repository; true if absent.
    init_git: Option<bool>,
    /// Whether each workspace gets a container of its own, which sees no other workspace and to
    /// which the limits apply one by one.
    workspace_isolation: Option<bool>,
    #[serde(flatten)]
    fields: Fields,
}

#[derive(Debug)]
pub(crate) struct Create;

impl Operation for Create {
    const NAME: &'static str = "project_create";
    const ABOUT: &'static str = "Create a project: a named place for work with its own files, settings, limits and \
         container. Give `remote_url` to start from a repository; without it the project starts \
         as an empty git repository. The result holds the `project_id` that other calls take.";
    const ACCESS: Access = Access::Global(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Adds;
    type Params = Params;
    type Output = View;

    fn reach(_: &Params) -> Reach {
        Reach::everywhere()
    }

    async fn run(engine: &Engine, actor: &Actor, params: Params, call: Call) -> Result<View> {
        let settings = settings(engine, actor, &params)?;
        let now = engine.now();
        let project = Project {
            id: ProjectId::new(Uuid::new_v4()),
            name: params.name,
            revision: 1,
            settings,
            created_at: now,
            updated_at: now,
        };
        engine
            .store()
            .reserve(&project)
            .await
            .map_err(|error| match error {
                StoreError::Duplicate => EngineError::AlreadyExists { what: "project" },
                other => other.into(),
            })?;
        let init = params.init_git.unwrap_or(true);
        let made = match fill(engine, &project, init, &call).await {
            Ok(()) => {
                engine
                    .store()
                    .confirm(project.id, call.take_audit_entry_for(project.id))
                    .await
            }
            Err(error) => {
                abandon(engine, project.id).await;
                return Err(error);
            }
        };
        match made {
            Ok(true) => Ok(View::of(project, engine.settings())),
            Ok(false) => Err(EngineError::fault("the reservation of a project was lost")),
            Err(error) => {
                abandon(engine, project.id).await;
                Err(error.into())
            }
        }
    }
}

fn settings(engine: &Engine, actor: &Actor, params: &Params) -> Result<ProjectSettings> {
    let mut settings = ProjectSettings {
        remote_url: params.remote_url.clone(),
        git_credential: params.git_credential.clone(),
        workspace_isolation: params.workspace_isolation.unwrap_or(false),
        ..ProjectSettings::default()
    };
    params.fields.apply(engine, actor, &mut settings)?;
    let credentials = &engine.settings().credentials;
    let names: Vec<&str> = credentials.keys().map(String::as_str).collect();
    known("git_credential", params.git_credential.as_deref(), &names)?;
    if let Some(url) = &params.remote_url {
        let credential = params
            .git_credential
            .as_ref()
            .and_then(|name| credentials.get(name));
        engine.git().check(url, credential)?;
    }
    Ok(settings)
}

/// Makes the project's files.
async fn fill(engine: &Engine, project: &Project, init: bool, call: &Call) -> Result<()> {
    let workspace = engine.files().create_project(project.id).await?;
    match &project.settings.remote_url {
        Some(url) => {
            let credentials = &engine.settings().credentials;
            let name = project.settings.git_credential.as_ref();
            let credential = name.and_then(|name| credentials.get(name));
            engine.git().clone(url, credential, &workspace, call).await
        }
        None if init => engine.git().init(&workspace),
        None => Ok(()),
    }
}

/// Takes a project back whose making failed. What cannot be taken back now is tried again.
async fn abandon(engine: &Engine, id: ProjectId) {
    if engine.delete_project_data(id).await.is_err() {
        engine.delete_project_in_background(id);
    }
}
