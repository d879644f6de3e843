//! `config_limits`: the limits of trees of agents, and where each comes from.

use oubliette_model::{Access, Mode, ProjectId, ProjectLimits, SessionId};
use oubliette_store::{Project, Session};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result, paging, settings};

const LIST: &str = "limits";

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// Project name or id; default: all.
    project_id: Option<ProjectId>,
    /// Session id: what its tree has used and has left.
    session_id: Option<SessionId>,
    /// 1-1000 (100).
    limit: Option<u32>,
    /// Last `next_cursor`.
    ///
    /// For the next page.
    cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    #[serde(flatten)]
    limits: SessionTreeLimitsView,
    #[serde(flatten)]
    session: Option<SessionUsage>,
    /// The limits of each project, if the call names none.
    #[serde(skip_serializing_if = "Option::is_none")]
    projects: Option<Vec<LimitsView>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// The limits of a tree of agents.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct SessionTreeLimitsView {
    /// The maximum depth of agents that start agents; a session without a parent has depth 0.
    max_recursion_depth: Limit<u32>,
    /// The maximum number of sessions in one tree.
    max_agents_per_session: Limit<u32>,
    /// The maximum cost of one tree in US dollars.
    max_cost_usd: Limit<f64>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct LimitsView {
    project_id: ProjectId,
    name: String,
    #[serde(flatten)]
    limits: SessionTreeLimitsView,
}

/// The place of a session in its tree, and the tree's use of its limits.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct SessionUsage {
    session_id: SessionId,
    /// The number of sessions above it.
    depth: u32,
    /// What its tree has used.
    used: Used,
    /// What remains for sessions below it.
    remaining: Remaining,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Used {
    /// The number of sessions that the tree has had, including the first.
    agents: u32,
    /// Null if the cost of a turn is unknown.
    cost_usd: Option<f64>,
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

/// A limit and where it comes from.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Limit<T> {
    value: T,
    /// `default` or `project`.
    source: &'static str,
}

impl<T> Limit<T> {
    fn new(project: Option<T>, default: T) -> Self {
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

impl SessionTreeLimitsView {
    fn new(project: &ProjectLimits, default: &settings::Limits) -> Self {
        Self {
            max_recursion_depth: Limit::new(
                project.max_recursion_depth,
                default.max_recursion_depth,
            ),
            max_agents_per_session: Limit::new(
                project.max_agents_per_session,
                default.max_agents_per_session,
            ),
            max_cost_usd: Limit::new(project.max_cost_usd, default.max_cost_usd),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Limits;

impl Operation for Limits {
    const NAME: &'static str = "config_limits";
    const ABOUT: &'static str = "Show the limits of agent trees: depth, number, cost.\n\n\
         And whether each is the default or set by the project. With `session_id`: also what its tree has \
         used and what remains. Without either: the defaults and the limits of every project that the \
         token can use.";
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
            let found = engine.store().session(id).await?;
            let session = found.ok_or_else(|| EngineError::session_not_found(id))?;
            return engine.limits_of_session(&session).await;
        }
        if let Some(id) = params.project_id {
            let project = engine.project(id).await?;
            let limits = SessionTreeLimitsView::new(&project.settings.limits, default);
            return Ok(Output {
                limits,
                session: None,
                projects: None,
                next_cursor: None,
            });
        }
        let limit = paging::check_limit(params.limit)?;
        let after = paging::decode_cursor(params.cursor.as_deref(), LIST)?;
        let page = engine
            .store()
            .projects(actor.visible(), after, limit)
            .await?;
        let (projects, next_cursor) = paging::rows_and_cursor(page, LIST);
        let view = |project: Project| LimitsView {
            project_id: project.id,
            name: project.name.to_string(),
            limits: SessionTreeLimitsView::new(&project.settings.limits, default),
        };
        Ok(Output {
            limits: SessionTreeLimitsView::new(&ProjectLimits::default(), default),
            session: None,
            projects: Some(projects.into_iter().map(view).collect()),
            next_cursor,
        })
    }
}

impl Engine {
    /// The limits of a session's tree, which the project of its root sets, and what remains of them.
    pub(crate) async fn limits_of_session(&self, session: &Session) -> Result<Output> {
        let root = self.store().session(session.root_id).await?;
        let project_id = root.map_or(session.project_id, |root| root.project_id);
        let project = self.project(project_id).await?;
        let limits = self.sessions().project_tree_limits(&project);
        let used = self.store().tree_usage(session.root_id, self.now()).await?;
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
            limits: SessionTreeLimitsView::new(&project.settings.limits, &self.settings().limits),
            session: Some(SessionUsage {
                session_id: session.id,
                depth: session.depth,
                used: Used {
                    agents: used.sessions,
                    cost_usd: used.total_cost_usd(),
                    spawned_last_minute: used.spawned_last_minute,
                },
                remaining,
            }),
            projects: None,
            next_cursor: None,
        })
    }
}
