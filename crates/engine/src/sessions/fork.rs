//! `session_fork`.

use oubliette_model::{Access, Event, Mode, SessionId, WorkspaceId};
use oubliette_store::{SessionChoices, SessionMessage};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::create::SessionPlan;
use super::message_params::check_prompt;
use crate::checkpoints::{Restored, Unfinished};
use crate::containers::DiskUse;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::workspaces::WorkspaceChoice;
use crate::{Actor, Call, Engine, EngineError, Result};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// Session id, or the start of it.
    session_id: SessionId,
    /// Turn number.
    ///
    /// 0 is before the first; the last one if omitted.
    turn: Option<u32>,
    /// Id of the new workspace.
    workspace_id: Option<WorkspaceId>,
    /// What the agent should do.
    prompt: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    /// The new session.
    session_id: SessionId,
    from_session_id: SessionId,
    workspace_id: WorkspaceId,
    turn: u32,
    #[serde(flatten)]
    restored: Restored,
}

#[derive(Debug)]
pub(crate) struct Fork;

impl Operation for Fork {
    const NAME: &'static str = "session_fork";
    const ABOUT: &'static str = "Continue from a turn in a new session and workspace.\n\n\
         The workspace has the files as they were after that turn, and the agent gets the transcript up \
         to it. A git repository is cloned at the HEAD of the session's workspace, to the branch \
         `oubliette/ID`.";
    const ACCESS: Access = Access::Project(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Adds;
    const OPEN_WORLD: bool = true;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach {
            depends_on_tree: true,
            ..Reach::work_of(params.session_id)
        }
    }

    async fn run(engine: &Engine, actor: &Actor, params: Params, call: Call) -> Result<Output> {
        let checkpoints = engine.checkpoints();
        let source = engine.sessions().get(params.session_id).await?;
        if let Some(prompt) = &params.prompt {
            check_prompt(prompt)?;
        }
        let project = engine.project(source.project_id).await?;
        engine
            .containers()
            .require_disk_space(&project, DiskUse::Message)
            .await?;
        let trees = checkpoints.turn_trees(source.id).await?;
        let turn = params.turn.unwrap_or_else(|| trees.last_turn());
        let wanted = trees.after(turn)?;
        let sessions = engine.sessions();
        let transcript = sessions.transcript_until(&source, turn).await?;
        let origin = sessions.origin(actor).await?;
        let mut choices = SessionChoices {
            external_id: None,
            starts_from_transcript: true,
            network_allowed: Vec::new(),
            ..source.choices.clone()
        };
        sessions
            .limit_choices(&mut choices, &source.agent, &origin, &project)
            .await?;
        // Those who narrowed the key of the source wrote in the transcript that the agent gets.
        choices.granted = match origin.max_scope {
            Some(scope) => sessions.narrow_to_granted(scope, &source).await?,
            None => None,
        };

        let new_id = || WorkspaceId::from_uuid(Uuid::new_v4());
        let workspace_id = params.workspace_id.unwrap_or_else(new_id);
        let found = engine.store().workspace(project.id, &workspace_id).await?;
        if found.is_some() {
            return Err(EngineError::workspace_exists(&workspace_id));
        }
        let unfinished = Unfinished::Fork(workspace_id.clone());
        let record = checkpoints.record(project.id, unfinished).await?;
        let choice = WorkspaceChoice {
            workspace_id: Some(workspace_id.clone()),
            create_workspace: true,
            from: Some(source.workspace_id.clone()),
        };
        let chosen = engine.workspaces().choose(project.id, &choice, &call).await;
        let workspace = match chosen {
            Ok(workspace) if workspace.created => workspace,
            other => {
                record.remove();
                other?;
                return Err(EngineError::workspace_exists(&workspace_id));
            }
        };
        let forked = async {
            let now = checkpoints.scan(&project, &workspace.id).await;
            let now = now.map_err(|reason| {
                EngineError::Failed(format!("the new workspace cannot be read: {reason}"))
            })?;
            let restored = checkpoints
                .restore(&project, &workspace.id, (now.tree, wanted), false)
                .await?;
            let message = params.prompt.map(|text| SessionMessage {
                id: 0,
                text,
                attachments: Vec::new(),
                declaration: None,
                change_id: None,
                sender_scope: origin.max_scope,
                wait_id: None,
                created_at: engine.now(),
            });
            let plan = SessionPlan {
                project: &project,
                origin: &origin,
                workspace: workspace.id.clone(),
                agent: source.agent.clone(),
                choices,
                message,
                join: None,
                run: None,
                events: vec![Event::Forked {
                    from_session_id: source.id,
                    turn,
                    transcript,
                }],
            };
            let stored = sessions.store_new(plan, &call).await?;
            Ok((stored.session, restored))
        };
        let forked: Result<_> = forked.await;
        if forked.is_err() {
            let workspaces = engine.workspaces();
            workspaces.undo_creation(project.id, &workspace.id).await;
        }
        record.remove();
        let (session, restored) = forked?;
        engine.callers().record_call(actor.token_id, &session);
        sessions
            .subscriptions()
            .notify_log(session.id, session.root_id);
        sessions.wake(session.id, project.id);
        Ok(Output {
            session_id: session.id,
            from_session_id: source.id,
            workspace_id: workspace.id,
            turn,
            restored,
        })
    }
}
