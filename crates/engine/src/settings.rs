//! What the configuration decides for the engine. Every field has a default.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use oubliette_model::{ProjectLimits, ToolStyle};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Clock, Credential};

/// All of it.
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
    pub sessions: SessionSettings,
    pub caller_tools: CallerSettings,
    pub schedules: ScheduleSettings,
    /// What models cost, for agents that report tokens only.
    pub models: BTreeMap<String, Price>,
    /// The static binary that containers get as `oubliette-client`.
    pub client: PathBuf,
    pub clock: Clock,
}

impl Settings {
    /// Every setting at its default, on a directory.
    pub fn defaults(data_dir: &Path) -> Self {
        Self {
            data_dir: data_dir.to_owned(),
            runtime: "auto".to_owned(),
            limits: Limits::default(),
            projects: ProjectRules::default(),
            tools: ToolSettings::default(),
            audit: AuditSettings::default(),
            credentials: BTreeMap::new(),
            container_types: BTreeMap::from([("base".to_owned(), ContainerType::default())]),
            agents: BTreeMap::new(),
            containers: ContainerSettings::default(),
            sessions: SessionSettings::default(),
            caller_tools: CallerSettings::default(),
            schedules: ScheduleSettings::default(),
            models: BTreeMap::new(),
            client: PathBuf::from("oubliette-client"),
            clock: Clock::default(),
        }
    }
}

/// `[containers]`: how they live.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ContainerSettings {
    /// A container that nothing uses for so long is stopped; the next use starts it.
    pub idle_seconds: u64,
    /// How long processes may take to end when their container is stopped.
    pub stop_grace_seconds: u64,
    /// A command that is talked to, a terminal for one, is ended when its caller stays away for so
    /// long.
    pub absence_seconds: u64,
    /// Directories and files of the host that every container can read, at the same path:
    /// toolchains and agent programs, for instance.
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

/// `[sessions]`: how long things may take, and how much of a log is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SessionSettings {
    /// The agent of projects and sessions that name none.
    pub default_agent: String,
    /// An agent without a turn for so long is stopped; the next message resumes it.
    pub idle_seconds: u64,
    /// How long an agent may take to start.
    pub start_seconds: u64,
    /// An agent that says nothing for so long in the middle of a turn is taken for dead.
    pub silence_seconds: u64,
    /// How long an agent may take to stop a turn that was cancelled.
    pub cancel_seconds: u64,
    /// How long a decision may take before it is a no.
    pub permission_seconds: u64,
    /// How many children one tree of sessions may get in a minute.
    pub spawns_per_minute: u32,
    /// Events are kept for so many days, and so many of one session.
    pub keep_days: u32,
    pub keep_events: u32,
}

impl Default for SessionSettings {
    fn default() -> Self {
        Self {
            default_agent: "demo".to_owned(),
            idle_seconds: 900,
            start_seconds: 120,
            silence_seconds: 3600,
            cancel_seconds: 10,
            permission_seconds: 600,
            spawns_per_minute: 10,
            keep_days: 90,
            keep_events: 100_000,
        }
    }
}

/// `[caller_tools]`: how long agents wait for their callers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CallerSettings {
    /// How long a caller may take to answer, unless the tool says otherwise.
    pub timeout_seconds: u64,
    /// What becomes of calls when the caller is gone: they fail, or wait for their time to be over.
    pub on_disconnect: OnDisconnect,
    /// A caller is still there for so long after it stopped listening.
    pub grace_seconds: u64,
    /// And for so long after it named the session in a call.
    pub presence_seconds: u64,
    /// How many tools one session may have.
    pub max_tools: u32,
}

/// What becomes of calls when the caller is gone.
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

/// `[schedules]`: how often schedules may run, how many at once, and how much is remembered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ScheduleSettings {
    /// A schedule that would run more often than this is refused.
    pub min_interval_seconds: u32,
    /// So many runs go on at once; the others wait their turn.
    pub max_concurrent_runs: u32,
    /// A run that takes longer is stopped and has failed.
    pub run_seconds: u32,
    /// A run that could not begin for so long after it was due was missed.
    pub grace_seconds: u32,
    /// Runs are remembered for so many days, and so many of one schedule.
    pub keep_days: u32,
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

/// `[models.NAME]`: what a model costs, in US dollars per million tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Price {
    pub input_usd: f64,
    pub output_usd: f64,
    pub cached_usd: f64,
}

/// `[limits]`: what a project gets that does not say otherwise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    pub max_recursion_depth: u32,
    pub max_agents_per_session: u32,
    pub max_cost_usd: f64,
    pub memory_mb: u32,
    pub cpus: f64,
    pub max_processes: u32,
    /// What a project may take on the disk; 0 means without a limit. `project_options` says how far
    /// it holds.
    pub disk_mb: u32,
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
        }
    }
}

impl Limits {
    /// What a project may take on the disk, if that is limited.
    pub(crate) fn disk_of(&self, project: &ProjectLimits) -> Option<u32> {
        project
            .disk_mb
            .or_else(|| (self.disk_mb > 0).then_some(self.disk_mb))
    }
}

/// `[projects]`: how repositories come in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ProjectRules {
    /// Whether `remote_url` may name a repository on the server's own disk.
    pub allow_local_clone: bool,
    pub clone_timeout_seconds: u64,
    pub clone_max_mb: u64,
}

impl Default for ProjectRules {
    fn default() -> Self {
        Self {
            allow_local_clone: false,
            clone_timeout_seconds: 600,
            clone_max_mb: 4096,
        }
    }
}

/// `[tools]`: which names of the operations lists show.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ToolSettings {
    /// Absent: unified names on the endpoint, both inside containers.
    pub style: Option<ToolStyle>,
}

/// `[audit]`: how long the log is kept.
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

/// `[container_types.NAME]`: where its image comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ContainerType {
    pub image: Option<String>,
    pub dockerfile: Option<PathBuf>,
}

/// `[agents.NAME]`: an ACP agent that is not in the catalogue, or changes to one that is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AgentCommand {
    /// The program in the container; may be absent for an agent of the catalogue.
    pub command: Option<String>,
    pub args: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// Files that it needs in its home directory, by their path there; written if they are not.
    pub files: BTreeMap<String, String>,
    /// Which kinds of credentials it takes, and in which environment variable.
    pub credentials: BTreeMap<String, String>,
}
