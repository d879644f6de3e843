//! `project_get`.

use oubliette_model::{Access, Mode, ProjectId, WorkspaceId, may_see_host_paths};
use oubliette_runtime::ContainerId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::view::ProjectView;
use crate::containers::DiskUsageView;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::workspaces::path_in_container;
use crate::{Actor, Call, Engine, Result};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// Project name or id.
    project_id: ProjectId,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    #[serde(flatten)]
    project: ProjectView,
    /// The image that is configured for its container type; null if it is Oubliette's own, or the runtime has no
    /// images.
    image: Option<String>,
    /// Where its default workspace is in the container.
    workspace_path: String,
    /// Where its default workspace is on the server's machine; only for admin tokens.
    host_path: Option<String>,
    /// `running` if a container of the project runs, else `stopped`.
    container_status: &'static str,
    /// The disk usage of its files in MB at the last measurement; only if `disk_mb` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    disk_used_mb: Option<u64>,
    /// What takes it; only if `disk_mb` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    disk_usage: Option<DiskUsageView>,
    /// The limit of disk space that was reached, by what, and what to do. A project over it gets no new
    /// messages, and one that is a quarter over it no commands.
    #[serde(skip_serializing_if = "Option::is_none")]
    disk_limit_reached: Option<String>,
    /// With `workspace_isolation`: the containers that have been started.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    containers: Vec<ContainerState>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct ContainerState {
    workspace_id: WorkspaceId,
    status: &'static str,
}

#[derive(Debug)]
pub(crate) struct Get;

impl Operation for Get {
    const NAME: &'static str = "project_get";
    const ABOUT: &'static str = "Show settings, limits and container state.\n\n\
         Values of environment variables are never shown.";
    const ACCESS: Access = Access::Project(Mode::Read);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Reads;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach::project(params.project_id)
    }

    async fn run(engine: &Engine, actor: &Actor, params: Params, _: Call) -> Result<Output> {
        let project = engine.project(params.project_id).await?;
        let status = |running: bool| if running { "running" } else { "stopped" };
        let (mut any_running, mut containers) = (false, Vec::new());
        for stored in engine.store().project_containers(project.id).await? {
            let id = ContainerId::new(stored.id);
            let running = id.is_some_and(|id| engine.containers().is_connected(&id));
            any_running |= running;
            containers.extend(stored.workspace_id.map(|workspace_id| ContainerState {
                workspace_id,
                status: status(running),
            }));
        }
        let project_id = project.id;
        let disk_used_mb = engine
            .containers()
            .disk_usage_bytes(project.id)
            .map(|bytes| bytes >> 20);
        let host_path = may_see_host_paths(actor.scope).then(|| {
            engine
                .files()
                .workspace_dir(project.id, &WorkspaceId::default())
        });
        Ok(Output {
            image: engine.containers().configured_image(&project),
            workspace_path: path_in_container(&WorkspaceId::default()),
            host_path: host_path.map(|path| path.display().to_string()),
            project: ProjectView::new(project, engine),
            container_status: status(any_running),
            disk_used_mb,
            disk_usage: engine.containers().disk_usage_view(project_id),
            disk_limit_reached: engine.containers().disk_limit_reached(project_id),
            containers,
        })
    }
}
