//! `project_options`.

use oubliette_agent::ToolEnforcement;
use oubliette_model::{Access, Mode, Scope};
use oubliette_runtime::Capabilities;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::operations::{Effect, Face, Operation, Reach};
use crate::settings::Limits;
use crate::{Actor, Call, Engine, Result, agents};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    /// The agents that a project can use.
    agents: Vec<AgentOption>,
    /// Models with a price in the server's configuration; agents may offer others.
    models: Vec<String>,
    /// Credentials for `git_credential` and `credential_refs`.
    accounts: Vec<CredentialOption>,
    container_types: Vec<String>,
    /// The configured runtime.
    runtime: String,
    /// The container runtime in use and its capabilities; empty if there is none.
    runtimes: Vec<Capabilities>,
    token_scopes: Vec<&'static str>,
    /// The default limits of a project.
    limits: Limits,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct AgentOption {
    name: String,
    about: String,
    /// Whether it was installed with `oubliette agent install` or needs no installation. If false,
    /// the image of the container may still contain it.
    installed: bool,
    /// Whether a session can choose its model.
    takes_model: bool,
    /// Whether a session can choose its reasoning effort.
    takes_reasoning: bool,
    /// Whether a session can choose its tools.
    takes_tools: bool,
    /// The kinds of credentials it takes.
    credentials: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct CredentialOption {
    name: String,
    kind: String,
}

#[derive(Debug)]
pub(crate) struct Options;

impl Operation for Options {
    const NAME: &'static str = "project_options";
    const ABOUT: &'static str = "Show the choices for a project: agents, models, credential names, container types, \
         runtime, token scopes, and the default limits.";
    const ACCESS: Access = Access::Global(Mode::Read);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Reads;
    type Params = Params;
    type Output = Output;

    fn reach(_: &Params) -> Reach {
        Reach::everywhere()
    }

    async fn run(engine: &Engine, _: &Actor, _: Params, _: Call) -> Result<Output> {
        let settings = engine.settings();
        let account = |(name, credential): (&String, &crate::Credential)| CredentialOption {
            name: name.clone(),
            kind: credential.kind.clone(),
        };
        let runtimes = engine
            .containers()
            .runtime()
            .await
            .ok()
            .map(|runtime| runtime.capabilities().clone());
        let agent = |agent: oubliette_agent::Agent| AgentOption {
            installed: agents::is_installed(settings, &agent) || agent.package.is_none(),
            name: agent.name,
            about: agent.about,
            takes_model: agent.takes_model,
            takes_reasoning: agent.takes_reasoning,
            takes_tools: !matches!(agent.tool_enforcement, ToolEnforcement::Unsupported(_)),
            credentials: agent.credentials.into_keys().collect(),
        };
        Ok(Output {
            agents: agents::all(settings).into_iter().map(agent).collect(),
            models: settings.models.keys().cloned().collect(),
            accounts: settings.credentials.iter().map(account).collect(),
            container_types: settings.container_types.keys().cloned().collect(),
            runtime: settings.runtime.clone(),
            runtimes: runtimes.into_iter().collect(),
            token_scopes: Scope::FORMS.to_vec(),
            limits: settings.limits.clone(),
        })
    }
}
