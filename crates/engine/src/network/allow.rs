//! `network_allow`.

use oubliette_model::{
    Access, HostPattern, MAX_NETWORK_PATTERNS, Mode, ProjectId, may_allow_private_addresses,
};
use oubliette_store::ProjectUpdate;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
        let audit = call.take_audit_entry();
        let by_admin = may_allow_private_addresses(actor.scope, actor.is_agent());
        for _ in 0..MAX_ATTEMPTS {
            let mut project = engine.project(params.project_id).await?;
            let before = project.settings.clone();
            let settings = &mut project.settings;
            let policy = settings.network_policy.get_or_insert_default();
            if !policy.allow.contains(&pattern) {
                if policy.allow.len() >= MAX_NETWORK_PATTERNS {
                    return Err(EngineError::invalid(format!(
                        "the project allows {MAX_NETWORK_PATTERNS} hosts, which is the maximum; remove some with \
                         `project_update`"
                    )));
                }
                policy.allow.push(pattern.clone());
            }
            if by_admin && !settings.network_allowed_by_admin.contains(&pattern) {
                settings.network_allowed_by_admin.push(pattern.clone());
            }
            let network = engine.network();
            network.check_agent_bounds(actor, &before, &project).await?;
            project.updated_at = engine.now();
            let updated = engine
                .store()
                .update_project(&project, audit.clone())
                .await?;
            if let ProjectUpdate::Done(project) = updated {
                engine.network().refresh(&project).await;
                let policy = project.settings.network_policy.unwrap_or_default();
                return Ok(Output {
                    project_id: project.id,
                    allow: policy.allow,
                });
            }
        }
        Err(EngineError::Failed(
            "the project was changed by other calls at the same time; try again".to_owned(),
        ))
    }
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
