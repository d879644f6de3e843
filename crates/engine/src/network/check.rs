//! `network_check`.

use oubliette_model::{Access, Host, HostPattern, Mode, Network as NetworkSetting, ProjectId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result};

const DEFAULT_PORT: u16 = 443;

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// Project name or id.
    project_id: ProjectId,
    /// `host[:port]`.
    ///
    /// A name or an address.
    host: String,
    /// Port (443).
    #[schemars(extend("x-unlisted" = true))]
    port: Option<u16>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    project_id: ProjectId,
    host: String,
    port: u16,
    /// `allow`, `deny`, or `ask`: a caller would be asked.
    decision: &'static str,
    /// The rule that decides.
    rule: String,
}

#[derive(Debug)]
pub(crate) struct Check;

impl Operation for Check {
    const NAME: &'static str = "network_check";
    const ABOUT: &'static str = "Whether containers may reach a host.\n\n\
         The result names the rule that decides. Connects to nothing. A name that the rules allow is looked up, because its addresses are decided about, too.";
    const ACCESS: Access = Access::Project(Mode::Read);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Reads;
    const OPEN_WORLD: bool = true;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach::project(params.project_id)
    }

    async fn run(engine: &Engine, _: &Actor, params: Params, _: Call) -> Result<Output> {
        let project = engine.project(params.project_id).await?;
        let (host, port) = parse_host(&params.host, params.port)?;
        let port = port.unwrap_or(DEFAULT_PORT);
        let network = engine.network();
        let verdict = match engine.containers().network_setting(&project).await? {
            NetworkSetting::Policy => {
                let rules = network.rules_of(&project);
                let resolver = &network.state().resolver;
                let checked = oubliette_gate::check(&rules, resolver, &host, port).await;
                checked.map(|verdict| {
                    let decision = match (verdict.is_allowed, verdict.is_askable) {
                        (true, _) => "allow",
                        (false, true) => "ask",
                        (false, false) => "deny",
                    };
                    (decision, verdict.rule)
                })
            }
            NetworkSetting::None => Ok(("deny", "the project's network is `none`".to_owned())),
            NetworkSetting::Host => Ok(("allow", unchecked("host"))),
            NetworkSetting::Bridge => Ok(("allow", unchecked("bridge"))),
        };
        let (decision, rule) = verdict.map_err(EngineError::Failed)?;
        Ok(Output {
            project_id: project.id,
            host: host.to_string(),
            port,
            decision,
            rule,
        })
    }
}

fn unchecked(network: &str) -> String {
    format!("the project's network is `{network}`, which no policy applies to")
}

/// A host with or without a port.
fn parse_host(text: &str, port: Option<u16>) -> Result<(Host, Option<u16>)> {
    if let Ok(host) = text.parse::<Host>() {
        return Ok((host, port));
    }
    let pattern: HostPattern = text
        .parse()
        .map_err(|why| EngineError::invalid(format!("`host`: {why}")))?;
    let host = pattern.host().ok_or_else(|| {
        EngineError::invalid("`host` must be one name or address, without `*` and `/`")
    })?;
    Ok((host, port.or(pattern.port())))
}
