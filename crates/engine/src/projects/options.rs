//! `project_options`.

use std::collections::BTreeSet;

use oubliette_agent::ToolEnforcement;
use oubliette_model::{Access, Mode, Network, ProjectSettings, Scope};
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
    /// The models that the agents offer and those with a price in the server's configuration; `agents`
    /// has those of each agent.
    models: BTreeSet<String>,
    /// Credentials for `git_credential` and `credential_refs`; for a project token only those of its
    /// project.
    accounts: Vec<CredentialOption>,
    container_types: Vec<String>,
    /// The configured runtime.
    runtime: String,
    /// The network of projects that choose none.
    #[serde(skip_serializing_if = "Option::is_none")]
    default_network: Option<Network>,
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
    /// The models that it offers, as it said when it was installed or started last; it may take others.
    models: Vec<String>,
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
    const ABOUT: &'static str = "Show agents, models, credentials, container types and default limits.\n\n\
         Also runtimes with what they can do, and the forms of scopes.";
    const ACCESS: Access = Access::Global(Mode::Read);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Reads;
    type Params = Params;
    type Output = Output;

    fn reach(_: &Params) -> Reach {
        Reach::everywhere()
    }

    async fn run(engine: &Engine, actor: &Actor, _: Params, _: Call) -> Result<Output> {
        let settings = engine.settings();
        let own_project = match actor.scope.project() {
            Some(id) => Some(engine.project(id).await?.settings),
            None => None,
        };
        let is_visible = |name: &String| {
            own_project.as_ref().is_none_or(|project| {
                project.credential_refs.contains(name)
                    || project.git_credential.as_ref() == Some(name)
            })
        };
        let runtimes = engine
            .containers()
            .runtime()
            .await
            .ok()
            .map(|runtime| runtime.capabilities().clone());
        let agent = |agent: oubliette_agent::Agent| AgentOption {
            installed: agents::is_installed(settings, &agent) || agent.package.is_none(),
            models: agents::stored_models(&settings.data_dir, &agent.name),
            credentials: agent.credential_kinds().map(str::to_owned).collect(),
            name: agent.name,
            about: agent.about,
            takes_model: agent.takes_model,
            takes_reasoning: agent.takes_reasoning,
            takes_tools: !matches!(agent.tool_enforcement, ToolEnforcement::Unsupported(_)),
        };
        let agents: Vec<AgentOption> = agents::all(settings).into_iter().map(agent).collect();
        let offered = agents.iter().flat_map(|agent| &agent.models);
        let accounts = engine.credentials().all().into_iter();
        Ok(Output {
            models: settings.models.keys().chain(offered).cloned().collect(),
            agents,
            accounts: accounts
                .filter(|(name, ..)| is_visible(name))
                .map(|(name, credential, _)| CredentialOption {
                    name,
                    kind: credential.kind,
                })
                .collect(),
            container_types: settings.container_types.keys().cloned().collect(),
            runtime: settings.runtime.clone(),
            default_network: engine
                .containers()
                .known_network(&ProjectSettings::default()),
            runtimes: runtimes.into_iter().collect(),
            token_scopes: Scope::FORMS.to_vec(),
            limits: settings.limits.clone(),
        })
    }
}
