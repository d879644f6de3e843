//! `container_logs`.

use oubliette_model::{Access, Mode, ProjectId, WorkspaceId};
use oubliette_runtime::RuntimeError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ContainerScope;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// The project, as `project_list` shows it.
    project_id: ProjectId,
    /// The workspace whose container's log to show, if each workspace has its own; default: the
    /// default workspace.
    workspace_id: Option<WorkspaceId>,
    /// How many of the last lines to show (1 to 10000; default 200).
    lines: Option<u32>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    project_id: ProjectId,
    /// `running` or `stopped`.
    status: &'static str,
    logs: String,
}

#[derive(Debug)]
pub(crate) struct Logs;

impl Operation for Logs {
    const NAME: &'static str = "container_logs";
    const ABOUT: &'static str = "Show the last lines of the container's own log: its start, its end, and warnings of its \
         supervisor. The output of commands is in their results.";
    const ACCESS: Access = Access::Project(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Changes;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach::project(params.project_id)
    }

    async fn run(engine: &Engine, _: &Actor, params: Params, _: Call) -> Result<Output> {
        let project_id = params.project_id;
        let lines = params.lines.unwrap_or(200);
        if !(1..=10_000).contains(&lines) {
            return Err(EngineError::invalid(format!(
                "`lines` is {lines}; it must be 1 to 10000"
            )));
        }
        let project = engine.project(project_id).await?;
        let workspace = params.workspace_id.unwrap_or_default();
        engine.workspaces().require(project_id, &workspace).await?;
        let id = ContainerScope::of_workspace(&project, &workspace).container_id();
        let is_running = engine.containers().is_running(&id).await?;
        let runtime = engine.containers().runtime().await?;
        let logs = match runtime.logs(&id, lines as usize).await {
            // The container was never started.
            Err(RuntimeError::NoContainer(_)) => String::new(),
            logs => logs?,
        };
        Ok(Output {
            project_id,
            status: if is_running { "running" } else { "stopped" },
            logs,
        })
    }
}
