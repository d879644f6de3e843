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
    /// Agents that a project can name.
    agents: Vec<Agent>,
    /// Models whose prices the server's configuration knows; agents may offer others.
    models: Vec<String>,
    /// Names of the credentials that `git_credential` and `credential_refs` can name.
    accounts: Vec<Account>,
    container_types: Vec<String>,
    /// The runtime the server is set to use.
    runtime: String,
    /// What makes containers here, and what it can do; empty if nothing does.
    runtimes: Vec<Capabilities>,
    token_scopes: Vec<&'static str>,
    /// What a project gets that does not say otherwise.
    limits: Limits,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Agent {
    name: String,
    about: String,
    /// Whether `oubliette agent install` has put it there, or it needs no installing. One that is
    /// not may still be in the container's image.
    installed: bool,
    /// Whether a session can choose its model, and how hard it thinks.
    takes_model: bool,
    takes_reasoning: bool,
    /// Whether a session can choose its tools.
    takes_tools: bool,
    /// Which kinds of credentials it takes.
    credentials: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Account {
    name: String,
    kind: String,
}

#[derive(Debug)]
pub(crate) struct Options;

impl Operation for Options {
    const NAME: &'static str = "project_options";
    const ABOUT: &'static str = "Show what a project can be made of: agents, credentials by name, container types, token \
         scopes, and the default of every limit.";
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
        let account = |(name, credential): (&String, &crate::Credential)| Account {
            name: name.clone(),
            kind: credential.kind.clone(),
        };
        let runtimes = engine
            .containers()
            .runtime()
            .await
            .ok()
            .map(|r| r.capabilities().clone());
        let agent = |agent: oubliette_agent::Agent| Agent {
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
