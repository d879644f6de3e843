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
    /// Project name or id.
    project_id: ProjectId,
    /// Workspace id.
    ///
    /// Default: `default`.
    workspace_id: Option<WorkspaceId>,
    /// How many lines (200).
    ///
    /// The last ones; 1 to 10000.
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
    const ABOUT: &'static str = "Show its log.\n\n\
         The start and end of the container, warnings of its supervisor, and the output of commands that \
         outlived a restart of the server. The output of other commands is in their results.";
    const ACCESS: Access = Access::Project(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Reads;
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
        let unattended = engine.containers().unattended_log(project_id, &id).await?;
        let logs = last_lines(logs + &unattended, lines as usize);
        Ok(Output {
            project_id,
            status: if is_running { "running" } else { "stopped" },
            logs,
        })
    }
}

fn last_lines(mut text: String, lines: usize) -> String {
    let mut ends = text.trim_end_matches('\n').rmatch_indices('\n');
    if let Some((end, _)) = ends.nth(lines.saturating_sub(1)) {
        text.drain(..=end);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::last_lines;

    #[test]
    fn the_last_lines_are_kept() {
        for (text, lines, expected) in [
            ("a\nb\nc\n", 2, "b\nc\n"),
            ("a\nb\nc", 1, "c"),
            ("a\nb\n", 2, "a\nb\n"),
            ("", 1, ""),
        ] {
            assert_eq!(last_lines(text.to_owned(), lines), expected);
        }
    }
}
