//! `project_push`.

use std::time::Duration;

use oubliette_model::{Access, BranchName, Mode, ProjectId, ProjectSettings, WorkspaceId, quoted};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::containers::{CommandResult, OutputLimits};
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Credential, Engine, EngineError, Result};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// Project name or id.
    project_id: ProjectId,
    /// Workspace id.
    ///
    /// Default: `default`.
    workspace_id: Option<WorkspaceId>,
    /// Target branch.
    ///
    /// Default: `oubliette/` and the id of the workspace. `push_branches` of the project says which are
    /// allowed.
    branch: Option<BranchName>,
    /// Credential to push with.
    ///
    /// One of the project's `credential_refs`; default: its `git_credential`.
    credential: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    project_id: ProjectId,
    workspace_id: WorkspaceId,
    branch: BranchName,
    /// The commit that the branch has now.
    commit: String,
    remote_url: String,
}

#[derive(Debug)]
pub(crate) struct Push;

impl Operation for Push {
    const NAME: &'static str = "project_push";
    const ABOUT: &'static str = "Push the commits of a workspace to the project's repository.\n\n\
         The server pushes HEAD of the workspace with its own credential, which the container never sees, \
         to a branch that `push_branches` of the project allows. Files that are not committed are not \
         pushed.";
    const ACCESS: Access = Access::Project(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Changes;
    const OPEN_WORLD: bool = true;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach::project(params.project_id)
    }

    async fn run(engine: &Engine, _: &Actor, params: Params, call: Call) -> Result<Output> {
        let project = engine.project(params.project_id).await?;
        let workspace = params.workspace_id.unwrap_or_default();
        engine.workspaces().require(project.id, &workspace).await?;
        let settings = &project.settings;
        let Some(url) = &settings.remote_url else {
            return Err(EngineError::invalid(
                "the project has no `remote_url`, so there is nothing to push to; `oubliette fetch` takes its \
                 work where it was started",
            ));
        };
        let branch = match params.branch {
            Some(branch) => branch,
            None => format!("oubliette/{workspace}")
                .parse()
                .map_err(|error| EngineError::invalid(format!("{error}; give `branch`")))?,
        };
        require_allowed_branch(engine, settings, &branch)?;
        let credential = credential(engine, settings, params.credential.as_deref())?;
        // Before the container is asked for anything.
        engine.git().check(url, credential.as_ref())?;
        let container = engine.containers().ensure(&project, &workspace).await?;
        let rules = &engine.settings().projects;
        let limits = OutputLimits {
            max_time: Duration::from_secs(rules.clone_timeout_seconds),
            max_bytes: rules.clone_max_mb.saturating_mul(1 << 20),
        };
        let directory = engine.git().push_directory(&call).await?;
        let mut file = tokio::fs::File::create_new(directory.bundle()).await?;
        let argv = ["git", "bundle", "create", "--version=2", "-", "HEAD"].map(str::to_owned);
        let bundled = engine
            .containers()
            .save_output(
                &container,
                &workspace,
                argv.into(),
                &mut file,
                limits,
                &call,
            )
            .await?;
        if let CommandResult::Failed(reason) = bundled {
            return Err(EngineError::Failed(format!(
                "the commits of the workspace could not be read: {reason}"
            )));
        }
        // Before the push: a crash does not undo it.
        if let Some(entry) = call.take_audit_entry() {
            engine.store().append_audit(vec![entry]).await?;
        }
        let commit = engine
            .git()
            .push(&directory, url, credential.as_ref(), &branch, &call)
            .await?;
        Ok(Output {
            project_id: project.id,
            workspace_id: workspace,
            branch,
            commit,
            remote_url: url.to_string(),
        })
    }
}

fn require_allowed_branch(
    engine: &Engine,
    settings: &ProjectSettings,
    branch: &BranchName,
) -> Result<()> {
    let default = &engine.settings().projects.push_branches;
    let allowed = settings.push_branches.as_ref().unwrap_or(default);
    if allowed.iter().any(|pattern| pattern.matches(branch)) {
        return Ok(());
    }
    let allowed: Vec<String> = allowed
        .iter()
        .map(|pattern| format!("`{pattern}`"))
        .collect();
    Err(EngineError::invalid(format!(
        "the project does not allow to push to `{branch}`, only to {}; `push_branches` of the project \
         says which",
        if allowed.is_empty() {
            "no branch".to_owned()
        } else {
            allowed.join(", ")
        }
    )))
}

/// The credential of the project that a call names, or its own. Others are not the project's to use.
fn credential(
    engine: &Engine,
    settings: &ProjectSettings,
    given: Option<&str>,
) -> Result<Option<Credential>> {
    let own = settings.git_credential.as_deref();
    let Some(name) = given.or(own) else {
        return Ok(None);
    };
    let is_allowed =
        own == Some(name) || settings.credential_refs.iter().any(|other| other == name);
    let found = engine.credentials().find(name).filter(|_| is_allowed);
    found.map(Some).ok_or_else(|| {
        EngineError::invalid(format!(
            "`credential`: {} is not a credential of this project; it must be its `git_credential` or one of \
             its `credential_refs`",
            quoted(name)
        ))
    })
}
