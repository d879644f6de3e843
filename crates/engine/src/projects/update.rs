//! `project_update`.

use oubliette_model::{Access, Mode, ProjectId, ProjectName};
use oubliette_store::{ProjectUpdate, StoreError};
use schemars::JsonSchema;
use serde::Deserialize;

use super::fields::{SettingsParams, changed_container_settings};
use super::view::ProjectView;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result};

/// How often an update is repeated after a concurrent update.
const MAX_ATTEMPTS: usize = 20;

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// Project name or id.
    project_id: ProjectId,
    /// Unique name.
    ///
    /// 1 to 100 letters, digits, spaces, `.`, `_` or `-`. Project tokens cannot set this.
    name: Option<ProjectName>,
    #[serde(flatten)]
    settings: SettingsParams,
}

#[derive(Debug)]
pub(crate) struct Update;

impl Operation for Update {
    const NAME: &'static str = "project_update";
    const ABOUT: &'static str = "Change settings; omitted ones stay.\n\n\
         The repository and `workspace_isolation` cannot be changed after creation. Project tokens cannot \
         change limits, `network`, `network_policy`, `agent_scope` or the name, nor add `credential_refs`. Agents cannot \
         change `autonomy` or `protected_paths` of a project that bounds their own tree.";
    const ACCESS: Access = Access::Project(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Changes;
    type Params = Params;
    type Output = ProjectView;

    fn reach(params: &Params) -> Reach {
        // A project token that could rename would learn which names are taken.
        let renames = params.name.is_some().then_some("name");
        Reach {
            project: Some(params.project_id),
            restricted: params.settings.first_restricted().or(renames),
            bounds_agents: params.settings.first_bound_of_agents(),
            ..Reach::default()
        }
    }

    async fn run(
        engine: &Engine,
        actor: &Actor,
        params: Params,
        call: Call,
    ) -> Result<ProjectView> {
        let audit = call.take_audit_entry();
        for _ in 0..MAX_ATTEMPTS {
            let mut project = engine.project(params.project_id).await?;
            if params.settings.adds_credentials(&project.settings) {
                engine
                    .permit_restricted(actor, project.id, "credential_refs")
                    .await?;
            }
            let before = project.settings.clone();
            params
                .settings
                .apply(engine, actor, &mut project.settings)?;
            let network = engine.network();
            network.check_agent_bounds(actor, &before, &project).await?;
            if let Some(name) = &params.name {
                project.name = name.clone();
            }
            project.updated_at = engine.now();
            match engine.store().update_project(&project, audit.clone()).await {
                Ok(ProjectUpdate::Done(project)) => {
                    let changed = changed_container_settings(&before, &project.settings);
                    let restart_needed = engine
                        .containers()
                        .apply_settings(&project, &before.protected_paths, changed)
                        .await;
                    engine.network().refresh(&project).await;
                    engine.gateway().refresh();
                    let view = ProjectView::new(*project, engine);
                    return Ok(view.with_restart_needed(restart_needed));
                }
                Ok(ProjectUpdate::Stale) => {}
                Err(StoreError::Duplicate) => {
                    return Err(engine.projects().already_exists(actor, &project.name).await);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(EngineError::Failed(
            "the project was changed by other calls at the same time; try again".to_owned(),
        ))
    }
}
