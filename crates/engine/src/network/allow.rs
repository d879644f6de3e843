//! `network_allow`.

use oubliette_model::{
    Access, HostPattern, MAX_NETWORK_PATTERNS, Mode, NetworkPolicy, ProjectId,
    may_allow_private_addresses,
};
use oubliette_store::{AuditEntry, Project, ProjectUpdate};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Network;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result};

/// How often it is repeated after a concurrent update of the project.
const MAX_ATTEMPTS: usize = 20;

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// Project name or id.
    project_id: ProjectId,
    /// `host[:port]`.
    ///
    /// A name, `*.name`, an address or a range; without a port all of them.
    host: String,
    /// Port; default: all.
    #[schemars(extend("x-unlisted" = true))]
    port: Option<u16>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    project_id: ProjectId,
    /// The project's `allow` list.
    allow: Vec<HostPattern>,
}

#[derive(Debug)]
pub(crate) struct Allow;

impl Operation for Allow {
    const NAME: &'static str = "network_allow";
    const ABOUT: &'static str = "Allow a host.\n\n\
         Adds it to `network_policy` of the project, for new connections of its containers with the network \
         `policy`, at once. Addresses that are not public are reached only by rules that an admin token makes. Project tokens and agents cannot call this.";
    // Not of the class of projects: tokens of projects may not call it, so that their lists do not show it.
    const ACCESS: Access = Access::Global(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Changes;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach {
            restricted: Some("network_policy"),
            ..Reach::project(params.project_id)
        }
    }

    async fn run(engine: &Engine, actor: &Actor, params: Params, call: Call) -> Result<Output> {
        let pattern = parse_pattern(&params)?;
        let by_admin = may_allow_private_addresses(actor.scope, actor.is_agent());
        let audit = call.take_audit_entry();
        let project = engine
            .network()
            .allow(params.project_id, pattern, (Some(actor), by_admin), audit)
            .await?;
        let policy = project.settings.network_policy.unwrap_or_default();
        Ok(Output {
            project_id: project.id,
            allow: policy.allow,
        })
    }
}

impl Network<'_> {
    /// Adds a host to the `allow` list of a project. The bounds of an agent are checked if an actor is given.
    pub(crate) async fn allow(
        self,
        project: ProjectId,
        pattern: HostPattern,
        (actor, by_admin): (Option<&Actor>, bool),
        audit: Option<AuditEntry>,
    ) -> Result<Project> {
        let engine = self.engine;
        for _ in 0..MAX_ATTEMPTS {
            let mut project = engine.project(project).await?;
            let before = project.settings.clone();
            let settings = &mut project.settings;
            let policy = settings.network_policy.get_or_insert_default();
            if !policy.allow.contains(&pattern) {
                check_room(policy)?;
                policy.allow.push(pattern.clone());
            }
            if by_admin && !settings.network_allowed_by_admin.contains(&pattern) {
                settings.network_allowed_by_admin.push(pattern.clone());
            }
            if let Some(actor) = actor {
                self.check_agent_bounds(actor, &before, &project).await?;
            }
            project.updated_at = engine.now();
            let updated = engine
                .store()
                .update_project(&project, audit.clone())
                .await?;
            if let ProjectUpdate::Done(project) = updated {
                self.refresh(&project).await;
                return Ok(*project);
            }
        }
        Err(EngineError::Failed(
            "the project was changed by other calls at the same time; try again".to_owned(),
        ))
    }
}

/// Refuses another entry of a full list.
pub(crate) fn check_room(policy: &NetworkPolicy) -> Result<()> {
    if policy.allow.len() < MAX_NETWORK_PATTERNS {
        return Ok(());
    }
    Err(EngineError::invalid(format!(
        "the project allows {MAX_NETWORK_PATTERNS} hosts, which is the maximum; remove some with `project_update`"
    )))
}

fn parse_pattern(params: &Params) -> Result<HostPattern> {
    let invalid = |why| EngineError::invalid(format!("`host`: {why}"));
    let pattern: HostPattern = params.host.parse().map_err(invalid)?;
    match params.port {
        None => Ok(pattern),
        Some(0) => Err(EngineError::invalid("`port` must be 1 to 65535")),
        Some(port) if pattern.port().is_none_or(|own| own == port) => Ok(pattern.with_port(port)),
        Some(_) => Err(EngineError::invalid(
            "`host` and `port` name different ports",
        )),
    }
}
