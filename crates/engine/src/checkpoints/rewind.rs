//! `session_rewind`.

use oubliette_model::{Access, Event, Mode, RewoundPart, SessionId, Status};
use oubliette_store::{Session, SessionFilter, SessionStep, VisibleProjects};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::restore::Restored;
use super::{Checkpoints, checkpoint_id};
use crate::containers::DiskUse;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result};

/// What is set back.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum What {
    Files,
    Conversation,
    Both,
}

impl From<What> for RewoundPart {
    fn from(what: What) -> Self {
        match what {
            What::Files => Self::Files,
            What::Conversation => Self::Conversation,
            What::Both => Self::Both,
        }
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// The session's id, from `session_list`.
    session_id: SessionId,
    /// The turn whose end is restored; 0 is before the first one.
    turn: u32,
    /// `files` of the workspace, `conversation` of the agent, or `both`.
    what: What,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    session_id: SessionId,
    turn: u32,
    what: &'static str,
    /// The checkpoint of the files as they were before.
    #[serde(skip_serializing_if = "Option::is_none")]
    checkpoint_id: Option<String>,
    #[serde(flatten)]
    restored: Restored,
}

#[derive(Debug)]
pub(crate) struct Rewind;

impl Operation for Rewind {
    const NAME: &'static str = "session_rewind";
    const ABOUT: &'static str = "Set a session back to where it was after a turn: the files of its workspace, the \
         conversation of its agent, or both. A checkpoint of the files as they are is kept first. Files that \
         git ignores stay as they are. Fails while a turn runs in the workspace.";
    const ACCESS: Access = Access::Project(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Destroys;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach {
            depends_on_tree: true,
            ..Reach::session(params.session_id)
        }
    }

    async fn run(engine: &Engine, actor: &Actor, params: Params, call: Call) -> Result<Output> {
        let checkpoints = engine.checkpoints();
        let session = engine.sessions().get(params.session_id).await?;
        if let Some(own) = actor.session {
            engine.sessions().check_below(own, &session).await?;
        }
        let what = RewoundPart::from(params.what);
        let turn = params.turn;
        if turn > session.turns {
            return Err(EngineError::invalid(format!(
                "`turn` is {turn}; the session has had {} turns",
                session.turns
            )));
        }
        let project = engine.project(session.project_id).await?;
        let workspace = &session.workspace_id;
        let _blocked = checkpoints.block_turns(project.id, workspace).await;
        checkpoints.require_idle(&session).await?;
        let mut restored = Restored::default();
        let mut kept = None;
        if what.has_files() {
            let wanted = checkpoints.turn_trees(session.id).await?.after(turn)?;
            engine
                .workspaces()
                .open_existing(project.id, workspace, &call)
                .await?;
            engine
                .containers()
                .require_disk_space(&project, DiskUse::Command)
                .await?;
            let now = checkpoints.scan(&project, workspace).await;
            let now = now.map_err(|reason| {
                EngineError::Failed(format!(
                    "nothing was changed, because the workspace cannot be kept first: {reason}"
                ))
            })?;
            let store = engine.store();
            let (tree, at) = (now.tree, engine.now());
            store.keep_tree(session.id, *tree.as_bytes(), at).await?;
            kept = Some(checkpoint_id(tree));
            restored = checkpoints
                .restore(&project, workspace, (tree, wanted), true)
                .await?;
        }
        let step = SessionStep {
            at: engine.now(),
            events: vec![Event::Rewound {
                turn,
                what,
                checkpoint_id: kept.clone(),
            }],
            forget_conversation: what.has_conversation(),
            ..SessionStep::default()
        };
        let committed = engine.sessions().commit_step(session.id, step).await?;
        if committed.is_none() {
            return Err(EngineError::session_not_found(session.id));
        }
        Ok(Output {
            session_id: session.id,
            turn,
            what: match what {
                RewoundPart::Files => "files",
                RewoundPart::Conversation => "conversation",
                RewoundPart::Both => "both",
            },
            checkpoint_id: kept,
            restored,
        })
    }
}

impl Checkpoints<'_> {
    /// Fails while a turn runs in the workspace of a session. The caller keeps others from starting.
    async fn require_idle(self, session: &Session) -> Result<()> {
        for status in [Status::Running, Status::Waiting] {
            let filter = SessionFilter {
                workspace_id: Some(session.workspace_id.clone()),
                status: Some(status),
                ..SessionFilter::default()
            };
            let visible = VisibleProjects::Only(session.project_id);
            let store = self.engine.store();
            let busy = store.sessions(visible, &filter, None, 1).await?.rows.pop();
            if let Some(busy) = busy {
                return Err(EngineError::Failed(format!(
                    "a turn of the session {} runs in the workspace; wait for its end, or stop it with \
                     `session_interrupt`",
                    busy.id
                )));
            }
        }
        Ok(())
    }

    /// Fails if an agent names a session outside of its own tree.
    pub(super) async fn check_tree(self, actor: &Actor, session: &Session) -> Result<()> {
        let Some(own) = actor.session else {
            return Ok(());
        };
        let own = self.engine.store().session(own).await?;
        if own.is_some_and(|own| oubliette_model::is_in_tree(own.root_id, session.root_id)) {
            Ok(())
        } else {
            Err(EngineError::session_not_found(session.id))
        }
    }
}
