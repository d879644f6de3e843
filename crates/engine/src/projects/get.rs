//! `project_get`.

use oubliette_model::{Access, Mode, ProjectId, WorkspaceId};
use oubliette_runtime::ContainerId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::view::View;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// The project, as `project_list` shows it.
    project_id: ProjectId,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    #[serde(flatten)]
    project: View,
    /// Whether the project's container, or one of them, is `running`; else `stopped`.
    container_status: &'static str,
    /// What its files took on the disk when they were last measured; only where `disk_mb` limits it.
    #[serde(skip_serializing_if = "Option::is_none")]
    disk_used_mb: Option<u64>,
    /// Where each workspace has a container of its own: those that were ever started.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    containers: Vec<ContainerLine>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct ContainerLine {
    workspace_id: WorkspaceId,
    status: &'static str,
}

#[derive(Debug)]
pub(crate) struct Get;

impl Operation for Get {
    const NAME: &'static str = "project_get";
    const ABOUT: &'static str = "Show a project: its settings and limits, and whether its container runs. Values of \
         environment variables are never shown.";
    const ACCESS: Access = Access::Project(Mode::Read);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Reads;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach::project(params.project_id)
    }

    async fn run(engine: &Engine, _: &Actor, params: Params, _: Call) -> Result<Output> {
        let project = engine.store().get(params.project_id).await?;
        let project = project.ok_or_else(|| EngineError::project_not_found(params.project_id))?;
        let status = |running: bool| if running { "running" } else { "stopped" };
        let (mut any, mut containers) = (false, Vec::new());
        for stored in engine.store().containers_of(project.id).await? {
            let id = ContainerId::new(stored.id);
            let running = id.is_some_and(|id| engine.containers().is_connected(&id));
            any |= running;
            containers.extend(stored.workspace_id.map(|workspace_id| ContainerLine {
                workspace_id,
                status: status(running),
            }));
        }
        let disk_used_mb = engine
            .containers()
            .disk_usage_bytes(project.id)
            .map(|bytes| bytes >> 20);
        Ok(Output {
            project: View::of(project, engine.settings()),
            container_status: status(any),
            disk_used_mb,
            containers,
        })
    }
}
