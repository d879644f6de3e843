//! `session_rewind`.

use oubliette_model::{Access, Event, Mode, ProjectId, RewoundPart, SessionId, Status};
use oubliette_store::{Session, SessionFilter, SessionStep, VisibleProjects};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedRwLockWriteGuard, oneshot};

use super::Sessions;
use crate::checkpoints::{Restored, Unfinished, UnfinishedRewind, checkpoint_id};
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
    /// Session id, or the start of it.
    session_id: SessionId,
    /// Turn number.
    ///
    /// 0 is before the first.
    turn: u32,
    /// What to set back.
    what: What,
    /// Also undo work of others there.
    ///
    /// Of sessions that worked in the workspace since.
    #[serde(default)]
    force: bool,
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
    const ABOUT: &'static str = "Set files, conversation or both back to the end of a turn.\n\n\
         A checkpoint of the files as they are is kept first. Files that git ignores stay as they are. \
         Fails while a turn runs in the workspace, and if another session has worked there since.";
    const ACCESS: Access = Access::Project(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Destroys;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach {
            depends_on_tree: true,
            ..Reach::work_of(params.session_id)
        }
    }

    async fn run(engine: &Engine, actor: &Actor, params: Params, call: Call) -> Result<Output> {
        let (checkpoints, sessions) = (engine.checkpoints(), engine.sessions());
        let session = sessions.get(params.session_id).await?;
        if let Some(own) = actor.session {
            sessions.check_below(own, &session).await?;
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
        let blocked = checkpoints.block_turns(project.id, workspace).await;
        sessions.require_idle(&session).await?;
        let mut restored = Restored::default();
        let mut kept = None;
        if what.has_files() {
            if !params.force {
                sessions.require_last(&session, turn).await?;
            }
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
            // Another scan waits for a collection of garbage, and that for this one.
            drop(now);
            kept = Some(checkpoint_id(tree));
            let rewind = UnfinishedRewind {
                session: session.id,
                workspace: workspace.clone(),
                turn,
                what,
                kept: *tree.as_bytes(),
                wanted: *wanted.as_bytes(),
            };
            restored = sessions.rewind_files(project.id, rewind, blocked).await?;
        } else {
            let step = SessionStep {
                at: engine.now(),
                events: vec![Event::Rewound {
                    turn,
                    what,
                    checkpoint_id: None,
                }],
                forget_conversation: true,
                ..SessionStep::default()
            };
            let committed = sessions.commit_step(session.id, step).await?;
            if committed.is_none() {
                return Err(EngineError::session_not_found(session.id));
            }
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

impl Sessions<'_> {
    /// Makes a workspace what a rewind wants. From the first change on that is done whatever happens to the
    /// caller and to this server.
    async fn rewind_files(
        self,
        project: ProjectId,
        rewind: UnfinishedRewind,
        blocked: OwnedRwLockWriteGuard<()>,
    ) -> Result<Restored> {
        let unfinished = Unfinished::Rewind(rewind.clone());
        let checkpoints = self.engine.checkpoints();
        let record = checkpoints.record(project, unfinished).await?;
        let (sender, receiver) = oneshot::channel();
        let engine = self.engine.clone();
        self.engine.spawn(async move {
            let checkpoints = engine.checkpoints();
            let done = checkpoints.finish_rewind(project, &rewind).await;
            let is_over = matches!(done, Ok(_) | Err(EngineError::NotFound { .. }));
            if is_over {
                record.remove();
                drop(blocked);
                let _ = sender.send(done);
            } else {
                let _ = sender.send(done);
                checkpoints
                    .finish_with_retries(project, &rewind, record)
                    .await;
                drop(blocked);
            }
        });
        let done = receiver.await.map_err(EngineError::fault)?;
        done.map_err(|error| match error {
            EngineError::Failed(reason) => EngineError::Failed(format!(
                "the files are not set back yet: {reason}; the server tries it again, and the log of the \
                 session says so if that fails"
            )),
            error => error,
        })
    }

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

    /// Fails if a session of another tree has worked in the workspace since the end of a turn of this one.
    async fn require_last(self, session: &Session, turn: u32) -> Result<()> {
        match self.engine.store().later_work(session.id, turn).await? {
            Some(later) => Err(EngineError::Failed(format!(
                "the session {later} has worked in this workspace since, and its changes would be undone, too; \
                 continue from the turn in a workspace of its own with `session_fork`, or give `force`",
            ))),
            None => Ok(()),
        }
    }
}
