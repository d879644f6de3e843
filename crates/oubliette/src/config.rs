//! The configuration: `DIR/oubliette.toml` and `OUBLIETTE_*` variables over defaults.
//!
//! Unknown keys are refused with the nearest known one, in the file and in variables.

mod keys;
mod variables;

use std::collections::BTreeMap;
use std::path::Path;

use oubliette_engine::{
    AgentCommand, AuditSettings, BUILT_IN_CONTAINER_TYPES, CallerSettings, Clock,
    ContainerSettings, ContainerType, Credential, Limits, NetworkSettings, Price, ProjectRules,
    ScheduleSettings, SessionSettings, Settings, ToolSettings,
};
use oubliette_runtime::DockerSettings;
use oubliette_server::{McpSettings, ServerSettings};
use schemars::JsonSchema;
use serde::Deserialize;
use toml::Table;

use crate::client_binary;
use crate::failure::Failure;

/// The whole configuration.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    /// `auto`, `none`, or the name of a runtime.
    pub(crate) runtime: String,
    pub(crate) autostart: AutostartSettings,
    pub(crate) server: ServerSettings,
    pub(crate) mcp: McpSettings,
    pub(crate) tools: ToolSettings,
    pub(crate) limits: Limits,
    pub(crate) projects: ProjectRules,
    pub(crate) audit: AuditSettings,
    pub(crate) credentials: BTreeMap<String, Credential>,
    pub(crate) container_types: BTreeMap<String, ContainerType>,
    pub(crate) agents: BTreeMap<String, AgentCommand>,
    pub(crate) containers: ContainerSettings,
    pub(crate) network: NetworkSettings,
    pub(crate) docker: DockerSettings,
    pub(crate) sessions: SessionSettings,
    pub(crate) caller_tools: CallerSettings,
    pub(crate) schedules: ScheduleSettings,
    pub(crate) models: BTreeMap<String, Price>,
}

/// `[autostart]`
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct AutostartSettings {
    /// Whether commands start a server in the background when none is running.
    pub(crate) enabled: bool,
    /// Such a server ends itself after this time without a client, an agent, a container and a schedule.
    /// 0: never.
    pub(crate) idle_seconds: u64,
}

impl Default for AutostartSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            idle_seconds: 12 * 60 * 60,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            runtime: "auto".to_owned(),
            autostart: AutostartSettings::default(),
            server: ServerSettings::default(),
            mcp: McpSettings::default(),
            tools: ToolSettings::default(),
            limits: Limits::default(),
            projects: ProjectRules::default(),
            audit: AuditSettings::default(),
            credentials: BTreeMap::new(),
            container_types: BTreeMap::new(),
            agents: BTreeMap::new(),
            containers: ContainerSettings::default(),
            network: NetworkSettings::default(),
            docker: DockerSettings::default(),
            sessions: SessionSettings::default(),
            caller_tools: CallerSettings::default(),
            schedules: ScheduleSettings::default(),
            models: BTreeMap::new(),
        }
    }
}

impl Config {
    /// Reads the file, if it exists, and then the variables.
    pub(crate) fn load(
        file: &Path,
        variables: impl Iterator<Item = (String, String)>,
    ) -> Result<Self, Failure> {
        let text = match std::fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => {
                return Err(Failure::with_cause(
                    format!("cannot read {}", file.display()),
                    &error,
                ));
            }
        };
        Self::parse(&text, variables)
            .map_err(|why| Failure::new(format!("{}: {why}", file.display())))
    }

    fn parse(
        text: &str,
        variables: impl Iterator<Item = (String, String)>,
    ) -> Result<Self, String> {
        let mut table: Table = toml::from_str(text).map_err(|error| one_line(&error))?;
        let schema = keys::schema::<Self>();
        keys::check(&table, &schema)?;
        variables::apply(&mut table, &schema, variables)?;
        let mut config: Self = table.try_into().map_err(|error| one_line(&error))?;
        for name in BUILT_IN_CONTAINER_TYPES {
            config.container_types.entry(name.to_owned()).or_default();
        }
        Ok(config)
    }

    /// The engine's settings.
    pub(crate) fn settings(&self, data_dir: &Path) -> Settings {
        Settings {
            data_dir: data_dir.to_owned(),
            runtime: self.runtime.clone(),
            limits: self.limits.clone(),
            projects: self.projects.clone(),
            tools: self.tools.clone(),
            audit: self.audit.clone(),
            credentials: self.credentials.clone(),
            container_types: self.container_types.clone(),
            agents: self.agents.clone(),
            containers: self.containers.clone(),
            network: self.network.clone(),
            sessions: self.sessions.clone(),
            caller_tools: self.caller_tools.clone(),
            schedules: self.schedules.clone(),
            models: self.models.clone(),
            // If it is missing, opening the runtime fails and reports why.
            client: client_binary::find().unwrap_or_default(),
            gate: std::env::current_exe().unwrap_or_default(),
            clock: Clock::default(),
        }
    }
}

/// The parser's message without the excerpt, which could be a secret.
fn one_line(error: &toml::de::Error) -> String {
    error.message().replace('\n', " ")
}

/// The names of the variables that change settings.
pub(crate) fn variable_names(variables: impl Iterator<Item = (String, String)>) -> Vec<String> {
    let names = variables.map(|(name, _)| name);
    names
        .filter(|name| variables::setting(name).is_some())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, variables: &[(&str, &str)]) -> Result<Config, String> {
        let variables = variables
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        Config::parse(text, variables)
    }

    #[test]
    fn an_empty_file_is_a_configuration() {
        let config = parse("", &[]).unwrap();
        assert_eq!(config.runtime, "auto");
        assert_eq!(config.server.listen.to_string(), "127.0.0.1:7433");
        assert_eq!(config.limits.max_recursion_depth, 3);
        assert!(config.container_types.contains_key("base"));
    }

    #[test]
    fn unknown_keys_are_refused_with_the_nearest_known_one() {
        for (text, expected) in [
            ("runtme = \"x\"", "`runtime`"),
            ("[server]\nlissen = \"x\"", "`server.listen`"),
            (
                "[credentials.github]\nkind = \"git\"\nfiel = \"x\"",
                "`credentials.github.file`",
            ),
        ] {
            let error = parse(text, &[]).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn variables_override_the_file_and_unrelated_ones_are_ignored() {
        let variables = [
            ("OUBLIETTE_RUNTIME", "docker"),
            ("OUBLIETTE_SERVER__LISTEN", "127.0.0.1:0"),
            ("OUBLIETTE_LIMITS__MAX_COST_USD", "2.5"),
            ("OUBLIETTE_SERVER__ALLOWED_HOSTS", "[\"example.org\"]"),
            ("OUBLIETTE_PROJECTS__ALLOW_LOCAL_CLONE", "true"),
            ("OUBLIETTE_TOKEN", "oub_x"),
            ("OUBLIETTE_WHATEVER", "x"),
        ];
        let config = parse("runtime = \"sandbox\"", &variables).unwrap();
        assert_eq!(config.runtime, "docker");
        assert_eq!(config.server.listen.port(), 0);
        assert_eq!(config.limits.max_cost_usd, 2.5);
        assert_eq!(config.server.allowed_hosts, ["example.org"]);
        assert!(config.projects.allow_local_clone);
        let error = parse("", &[("OUBLIETTE_SERVER__LISEN", "x")]).unwrap_err();
        assert!(error.contains("server.listen"), "{error}");
    }

    /// Every key of a table, with those of the tables in it.
    fn keys(schema: &serde_json::Value, found: &mut Vec<String>) {
        let properties = schema
            .get("properties")
            .and_then(serde_json::Value::as_object);
        for (name, inner) in properties.into_iter().flatten() {
            found.push(name.clone());
            keys(inner, found);
            keys(&inner["additionalProperties"], found);
        }
    }

    #[test]
    fn the_document_shows_every_key_and_is_itself_a_configuration() {
        let page = include_str!("../../../docs/configuration.md");
        let example = page
            .split("```toml")
            .nth(1)
            .unwrap()
            .split("```")
            .next()
            .unwrap();
        parse(example, &[]).unwrap();
        let mut names = Vec::new();
        keys(&keys::schema::<Config>(), &mut names);
        assert!(names.len() > 30);
        for name in names {
            assert!(
                example.contains(&name),
                "docs/configuration.md does not show `{name}`"
            );
        }
    }

    #[test]
    fn a_secret_of_the_wrong_type_is_not_repeated() {
        let text = "[credentials.x]\nkind = \"git\"\nvalue = { hunter2 = 1 }";
        let error = parse(text, &[]).unwrap_err();
        assert!(!error.contains("hunter2"), "{error}");
    }
}
