//! The part of the configuration that the engine uses. Every field has a default.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use oubliette_model::{
    BranchPattern, GitIdentity, HostPattern, Network, NetworkPolicy, Preset, PresetList,
    ProjectLimits, ToolStyle,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Clock, Credential};

/// The container types that exist without configuration.
pub const BUILT_IN_CONTAINER_TYPES: [&str; 2] = ["base", "dev"];

/// All settings of the engine.
#[derive(Debug, Clone)]
pub struct Settings {
    pub data_dir: PathBuf,
    pub runtime: String,
    pub limits: Limits,
    pub projects: ProjectRules,
    pub tools: ToolSettings,
    pub audit: AuditSettings,
    pub credentials: BTreeMap<String, Credential>,
    pub container_types: BTreeMap<String, ContainerType>,
    pub agents: BTreeMap<String, AgentCommand>,
    pub containers: ContainerSettings,
    pub network: NetworkSettings,
    pub sessions: SessionSettings,
    pub caller_tools: CallerSettings,
    pub schedules: ScheduleSettings,
    /// Prices of models, for agents that report tokens and no cost.
    pub models: BTreeMap<String, Price>,
    /// The static binary that containers get as `oubliette-client`.
    pub client: PathBuf,
    /// The binary with the subcommand that is the gate.
    pub gate: PathBuf,
    pub clock: Clock,
}

impl Settings {
    /// The defaults, with this data directory.
    pub fn defaults(data_dir: &Path) -> Self {
        Self {
            data_dir: data_dir.to_owned(),
            runtime: "auto".to_owned(),
            limits: Limits::default(),
            projects: ProjectRules::default(),
            tools: ToolSettings::default(),
            audit: AuditSettings::default(),
            credentials: BTreeMap::new(),
            container_types: BUILT_IN_CONTAINER_TYPES
                .map(|name| (name.to_owned(), ContainerType::default()))
                .into(),
            agents: BTreeMap::new(),
            containers: ContainerSettings::default(),
            network: NetworkSettings::default(),
            sessions: SessionSettings::default(),
            caller_tools: CallerSettings::default(),
            schedules: ScheduleSettings::default(),
            models: BTreeMap::new(),
            client: PathBuf::from("oubliette-client"),
            gate: PathBuf::from("oubliette"),
            clock: Clock::default(),
        }
    }
}

/// `[containers]`: when containers and their commands are stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ContainerSettings {
    /// Seconds without use after which a container is stopped; the next use starts it.
    pub idle_seconds: u64,
    /// Seconds that processes have to end when their container is stopped.
    pub stop_grace_seconds: u64,
    /// Seconds without a call after which an interactive command, for example a terminal, is killed.
    pub absence_seconds: u64,
    /// Directories and files of the host that every container can read at the same path, for example
    /// toolchains.
    pub read_only_paths: Vec<PathBuf>,
}

impl Default for ContainerSettings {
    fn default() -> Self {
        Self {
            idle_seconds: 1800,
            stop_grace_seconds: 10,
            absence_seconds: 600,
            read_only_paths: Vec::new(),
        }
    }
}

/// `[network]`: the network of containers whose project chooses none, and what those with the network `policy` may
/// reach.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkSettings {
    /// If absent: `policy` where the runtime has it, otherwise `bridge` or `host`.
    pub default: Option<Network>,
    /// `open`: every public host. `strict`: only what the lists allow.
    pub preset: Preset,
    /// Lists of well-known hosts to allow.
    pub presets: Vec<PresetList>,
    /// Hosts to allow: `host`, `*.host`, an address or a range, each with or without `:port`. Addresses that are
    /// not public are reached only if they are here, or for private networks a name that has them.
    pub allow: Vec<HostPattern>,
    /// Hosts to deny; takes precedence over everything that is allowed, also by projects.
    pub deny: Vec<HostPattern>,
    /// Whether callers are asked about hosts that no rule names, where the preset is `strict`.
    pub ask: bool,
    /// The address and port of a name server, instead of the system's resolver.
    pub resolver: Option<SocketAddr>,
    /// Seconds (1800) for which a gate of an earlier version of the server may keep open connections before it is replaced.
    pub gate_replacement_seconds: Option<u32>,
}

impl NetworkSettings {
    pub(crate) fn policy(&self) -> NetworkPolicy {
        NetworkPolicy {
            preset: Some(self.preset),
            presets: Some(self.presets.clone()),
            allow: self.allow.clone(),
            deny: self.deny.clone(),
            ask: self.ask,
        }
    }
}

/// `[sessions]`: timeouts of agents, and how much of a session's log is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SessionSettings {
    /// The agent of sessions that name none, in projects that name none.
    pub default_agent: String,
    /// Seconds without a turn after which an agent is stopped; the next message resumes its session.
    pub idle_seconds: u64,
    /// Seconds that an agent has to start.
    pub start_seconds: u64,
    /// Seconds without output during a turn after which an agent counts as dead.
    pub silence_seconds: u64,
    /// Seconds without output during a turn, and without a running tool, after which the log says so.
    pub silence_notice_seconds: u64,
    /// Seconds without output during a turn, while no tool runs and nothing is awaited, after which the
    /// turn is ended as failed; 0 means no limit.
    pub stalled_seconds: u64,
    /// Seconds that an agent has to end a cancelled turn.
    pub cancel_seconds: u64,
    /// Seconds after which a permission request that has no answer is denied.
    pub permission_seconds: u64,
    /// Seconds that a call of a model waits for a higher budget, or for others to cost less than they could, before it
    /// is refused.
    pub budget_hold_seconds: u64,
    /// The maximum number of child sessions that one tree starts per minute.
    pub spawns_per_minute: u32,
    /// Days that events are kept.
    pub keep_days: u32,
    /// The maximum number of events kept per session.
    pub keep_events: u32,
}

impl Default for SessionSettings {
    fn default() -> Self {
        Self {
            default_agent: "demo".to_owned(),
            idle_seconds: 900,
            start_seconds: 120,
            silence_seconds: 3600,
            silence_notice_seconds: 30,
            stalled_seconds: 600,
            cancel_seconds: 10,
            permission_seconds: 600,
            budget_hold_seconds: 120,
            spawns_per_minute: 10,
            keep_days: 90,
            keep_events: 100_000,
        }
    }
}

/// `[caller_tools]`: how long agents wait for responses of their callers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CallerSettings {
    /// Seconds that a caller has to respond, if the tool declares no timeout.
    pub timeout_seconds: u64,
    /// What pending calls do when the caller disconnects: `fail`, or `wait` until their timeout.
    pub on_disconnect: OnDisconnect,
    /// Seconds after a caller stopped listening for which it still counts as connected.
    pub grace_seconds: u64,
    /// Seconds after a call about the session for which its caller counts as connected.
    pub presence_seconds: u64,
    /// The maximum number of tools declared per session.
    pub max_tools: u32,
}

/// What pending calls do when the caller disconnects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnDisconnect {
    Fail,
    Wait,
}

impl Default for CallerSettings {
    fn default() -> Self {
        Self {
            timeout_seconds: 60,
            on_disconnect: OnDisconnect::Fail,
            grace_seconds: 3,
            presence_seconds: 30,
            max_tools: 500,
        }
    }
}

/// `[schedules]`: how often schedules may run, how many runs at once, and how much history is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ScheduleSettings {
    /// The minimum number of seconds between two runs of a schedule; a shorter interval is rejected.
    pub min_interval_seconds: u32,
    /// The maximum number of runs at once; others are queued.
    pub max_concurrent_runs: u32,
    /// Seconds after which a run is stopped and counts as failed.
    pub run_seconds: u32,
    /// Seconds after its due time after which a run that could not start counts as missed.
    pub grace_seconds: u32,
    /// Days that runs are kept.
    pub keep_days: u32,
    /// The maximum number of runs kept per schedule.
    pub keep_runs: u32,
}

impl Default for ScheduleSettings {
    fn default() -> Self {
        Self {
            min_interval_seconds: 60,
            max_concurrent_runs: 8,
            run_seconds: 3600,
            grace_seconds: 60,
            keep_days: 90,
            keep_runs: 1000,
        }
    }
}

/// `[models.NAME]`: the price of a model, in US dollars per million tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Price {
    pub input_usd: f64,
    pub output_usd: f64,
    pub cached_usd: f64,
    /// The most tokens (128000) of an answer, for requests that name no maximum.
    pub max_output_tokens: Option<u64>,
}

/// `[limits]`: the limits of projects that do not set their own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    pub max_recursion_depth: u32,
    pub max_agents_per_session: u32,
    pub max_cost_usd: f64,
    pub memory_mb: u32,
    pub cpus: f64,
    pub max_processes: u32,
    /// The maximum disk use of a project in MB; 0 means no limit. `project_options` shows whether it
    /// is enforced.
    pub disk_mb: u32,
    /// The maximum size in MB of what the database has of a project: event logs, waiting messages,
    /// prompts of schedules, results of commands.
    pub log_mb: u32,
    /// The maximum size in MB of what is kept of a project's workspaces after each turn, for
    /// `session_diff`, `session_rewind` and `session_fork`; 0 keeps nothing. It counts in `disk_mb`, too.
    pub checkpoint_mb: u32,
    /// The maximum number of workspaces of a project, each of which may have a container of its own.
    pub max_workspaces: u32,
    /// The maximum size in MB of a file that is uploaded by its own request (`workspace_write` without
    /// `content`).
    pub max_upload_mb: u32,
}

impl Default for Limits {
    fn default() -> Self {
        let host = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            max_recursion_depth: 3,
            max_agents_per_session: 50,
            max_cost_usd: 10.0,
            memory_mb: 4096,
            cpus: host.min(4) as f64,
            max_processes: 4096,
            disk_mb: 0,
            log_mb: 2048,
            checkpoint_mb: 4096,
            max_workspaces: 200,
            max_upload_mb: 4096,
        }
    }
}

impl Limits {
    /// The maximum disk use of a project in MB, if it is limited.
    pub(crate) fn disk_of(&self, project: &ProjectLimits) -> Option<u32> {
        Some(project.disk_mb.unwrap_or(self.disk_mb)).filter(|limit| *limit > 0)
    }
}

/// `[projects]`: limits for cloning repositories.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ProjectRules {
    /// Whether `remote_url` may name a repository on the server's own disk.
    pub allow_local_clone: bool,
    pub clone_timeout_seconds: u64,
    pub clone_max_mb: u64,
    /// The author of commits in containers, `Name <address>`, unless the project has another.
    pub git_identity: GitIdentity,
    /// The branches that `project_push` may push, unless the project has others.
    pub push_branches: Vec<BranchPattern>,
}

impl Default for ProjectRules {
    fn default() -> Self {
        Self {
            allow_local_clone: false,
            clone_timeout_seconds: 600,
            clone_max_mb: 4096,
            git_identity: GitIdentity::default(),
            push_branches: "oubliette/*".parse().into_iter().collect(),
        }
    }
}

/// `[tools]`: the names of tools in lists.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ToolSettings {
    /// If absent: unified names on the MCP endpoint, both inside containers.
    pub style: Option<ToolStyle>,
}

/// `[audit]`: how long the audit log is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AuditSettings {
    pub keep_days: u32,
}

impl Default for AuditSettings {
    fn default() -> Self {
        Self { keep_days: 90 }
    }
}

/// `[container_types.NAME]`: the image of a container type.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ContainerType {
    /// The name of an image. Without it and without `dockerfile`, `base` and `dev` are built from
    /// Dockerfiles of Oubliette's own.
    pub image: Option<String>,
    pub dockerfile: Option<PathBuf>,
    /// Build arguments of the Dockerfile; `BASE` is the base image of Oubliette's own.
    pub build_args: BTreeMap<String, String>,
}

/// `[agents.NAME]`: an additional ACP agent, or changes to one of the catalogue.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AgentCommand {
    /// The program in the container; optional for an agent of the catalogue.
    pub command: Option<String>,
    pub args: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// Files in the agent's home directory, by path; written at each start.
    pub files: BTreeMap<String, String>,
    /// The environment variable for each kind of credential that the agent uses.
    pub credentials: BTreeMap<String, String>,
    /// The command that signs it in for `oubliette agent login`, instead of its own.
    pub login: Vec<String>,
}
