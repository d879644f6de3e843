//! `session_cleanup`.

use jiff::SignedDuration;
use oubliette_model::{Access, Mode, ProjectId, SessionId};
use oubliette_store::VisibleProjects;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result};

const DEFAULT_AGE_HOURS: f64 = 24.0;
const MAX_AGE_HOURS: f64 = 876_000.0;

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// Project name or id.
    ///
    /// All projects that the token can use if absent.
    project_id: Option<ProjectId>,
    /// Ended this long ago (24).
    ///
    /// At least; 0 to 876000.
    max_age_hours: Option<f64>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    /// The sessions that were deleted.
    deleted: Vec<SessionId>,
}

#[derive(Debug)]
pub(crate) struct Cleanup;

impl Operation for Cleanup {
    const NAME: &'static str = "session_cleanup";
    const ABOUT: &'static str = "Delete ended sessions with their logs.";
    const ACCESS: Access = Access::Project(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Destroys;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach {
            project: params.project_id,
            ..Reach::default()
        }
    }

    async fn run(engine: &Engine, actor: &Actor, params: Params, call: Call) -> Result<Output> {
        let hours = params.max_age_hours.unwrap_or(DEFAULT_AGE_HOURS);
        if !(0.0..=MAX_AGE_HOURS).contains(&hours) {
            return Err(EngineError::invalid(format!(
                "`max_age_hours` is {hours}; it must be 0 to {MAX_AGE_HOURS}"
            )));
        }
        let visible = match params.project_id {
            Some(id) => {
                if engine.store().project(id).await?.is_none() {
                    return Err(EngineError::project_not_found(id));
                }
                VisibleProjects::Only(id)
            }
            None => actor.visible(),
        };
        let age = SignedDuration::from_millis((hours * 3_600_000.0) as i64);
        // With an age of 0, sessions that have just ended are deleted, too.
        let before = engine.now() - age + SignedDuration::from_millis(1);
        let deleted = engine
            .store()
            .remove_ended_sessions(visible, before, call.take_audit_entry())
            .await?;
        if !deleted.is_empty() {
            let projects = match visible {
                VisibleProjects::Only(id) => vec![id],
                VisibleProjects::All => engine.checkpoints().projects_with_checkpoints().await,
            };
            engine.checkpoints().collect_garbage_in_background(projects);
            engine.spawn_until_stopping(move |engine| async move {
                engine.sessions().remove_orphaned_homes(visible).await;
            });
        }
        Ok(Output { deleted })
    }
}
