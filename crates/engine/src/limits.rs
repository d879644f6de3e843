//! `config_limits`: which limits hold, and where each comes from.

use oubliette_model::{Access, Mode, ProjectId, ProjectLimits, SessionId};
use oubliette_store::Session;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result, paging, settings};

const LIST: &str = "limits";

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// The project; all projects that the token can use if absent.
    project_id: Option<ProjectId>,
    /// A session: the limits of its tree, what the tree has used of them and what remains.
    session_id: Option<SessionId>,
    /// How many to return (1 to 1000; 100 if absent).
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    #[serde(flatten)]
    limits: TreeLimits,
    #[serde(flatten)]
    of_session: Option<OfSession>,
    /// The limits of each project, when none was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    projects: Option<Vec<OfProject>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// The limits of a tree of agents.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct TreeLimits {
    /// How deep agents may start agents; a session without a parent has depth 0.
    max_recursion_depth: Limit<u32>,
    /// How many sessions one tree may have in all.
    max_agents_per_session: Limit<u32>,
    /// What one tree may cost.
    max_cost_usd: Limit<f64>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct OfProject {
    project_id: ProjectId,
    name: String,
    #[serde(flatten)]
    limits: TreeLimits,
}

/// Where a session stands in its tree.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct OfSession {
    session_id: SessionId,
    /// How many sessions are above it.
    depth: u32,
    /// What its tree has used.
    used: Used,
    /// What is left for sessions below it.
    remaining: Remaining,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Used {
    /// Sessions that the tree has had, the first included.
    agents: u32,
    cost_usd: f64,
    spawned_last_minute: u32,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Remaining {
    depth: u32,
    agents: u32,
    cost_usd: f64,
    spawns_this_minute: u32,
}

/// A limit and who set it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Limit<T> {
    value: T,
    /// `default` or `project`.
    source: &'static str,
}

impl<T> Limit<T> {
    fn of(project: Option<T>, default: T) -> Self {
        match project {
            Some(value) => Self {
                value,
                source: "project",
            },
            None => Self {
                value: default,
                source: "default",
            },
        }
    }
}

impl TreeLimits {
    fn of(project: &ProjectLimits, default: &settings::Limits) -> Self {
        Self {
            max_recursion_depth: Limit::of(
                project.max_recursion_depth,
                default.max_recursion_depth,
            ),
            max_agents_per_session: Limit::of(
                project.max_agents_per_session,
                default.max_agents_per_session,
            ),
            max_cost_usd: Limit::of(project.max_cost_usd, default.max_cost_usd),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Limits;

impl Operation for Limits {
    const NAME: &'static str = "config_limits";
    const ABOUT: &'static str = "Show the limits of a project's trees of agents (depth, number, cost) and whether each is \
         the default or the project's own. With `session_id`: also what its tree has used and what \
         remains. Without either: the defaults, and every project that the token can use.";
    const ACCESS: Access = Access::Project(Mode::Read);
    const FACE: Face = Face::Standalone;
    const EFFECT: Effect = Effect::Reads;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach {
            project: params.project_id,
            session: params.session_id,
            ..Reach::default()
        }
    }

    async fn run(engine: &Engine, actor: &Actor, params: Params, _: Call) -> Result<Output> {
        let default = &engine.settings().limits;
        if let Some(id) = params.session_id {
            let session = engine.store().session(id).await?;
            let session = session.ok_or_else(|| EngineError::session_not_found(id))?;
            return engine.limits_of_session(&session).await;
        }
        if let Some(id) = params.project_id {
            let project = engine.store().get(id).await?;
            let project = project.ok_or_else(|| EngineError::project_not_found(id))?;
            let limits = TreeLimits::of(&project.settings.limits, default);
            return Ok(Output {
                limits,
                of_session: None,
                projects: None,
                next_cursor: None,
            });
        }
        let limit = paging::limit(params.limit)?;
        let after = paging::open(params.cursor.as_deref(), LIST)?;
        let page = engine.store().page(actor.visible(), after, limit).await?;
        let (projects, next_cursor) = paging::close(page, LIST);
        let of_project = |project: oubliette_store::Project| OfProject {
            project_id: project.id,
            name: project.name.to_string(),
            limits: TreeLimits::of(&project.settings.limits, default),
        };
        Ok(Output {
            limits: TreeLimits::of(&ProjectLimits::default(), default),
            of_session: None,
            projects: Some(projects.into_iter().map(of_project).collect()),
            next_cursor,
        })
    }
}

impl Engine {
    /// The limits of a session's tree, which its root's project sets, and what is left of them.
    pub(crate) async fn limits_of_session(&self, session: &Session) -> Result<Output> {
        let root = self.store().session(session.root_id).await?;
        let project = root.map_or(session.project_id, |root| root.project_id);
        let project = self.store().get(project).await?;
        let project = project.ok_or_else(|| EngineError::project_not_found(session.project_id))?;
        let limits = self.sessions().project_tree_limits(&project);
        let used = self.store().tree_use(session.root_id, self.now()).await?;
        let cost_limit = used.cost_limit.unwrap_or(limits.cost_usd);
        let remaining = Remaining {
            depth: limits.depth.saturating_sub(session.depth),
            agents: limits.sessions.saturating_sub(used.sessions),
            cost_usd: (cost_limit - used.cost_usd).max(0.0),
            spawns_this_minute: limits
                .spawns_per_minute
                .saturating_sub(used.spawned_last_minute),
        };
        Ok(Output {
            limits: TreeLimits::of(&project.settings.limits, &self.settings().limits),
            of_session: Some(OfSession {
                session_id: session.id,
                depth: session.depth,
                used: Used {
                    agents: used.sessions,
                    cost_usd: used.cost_usd,
                    spawned_last_minute: used.spawned_last_minute,
                },
                remaining,
            }),
            projects: None,
            next_cursor: None,
        })
    }
}
