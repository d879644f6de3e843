//! The domain types of Oubliette: ids, names, scopes, and the permission decision.
//!
//! Pure functions and plain data. Nothing here does I/O, reads a clock or awaits.

mod access;
mod branch;
mod credential;
mod env_value;
mod event;
mod file_tree;
mod git_identity;
mod ids;
mod key;
mod name;
mod nearest;
mod network;
mod path_text;
mod project;
mod remote;
mod resource_uri;
mod schedule;
mod scope;
mod secret;
mod session;
mod string_type;

pub use access::{
    Access, AgentPosition, Decision, Mode, agent_may_start_schedule, allows, allows_class,
    allows_restricted_parameter, allows_session, autonomy_below, is_below,
    may_allow_private_addresses, may_answer_about_host, may_choose_network, may_direct, may_grant,
    may_mount, may_read_metrics, may_respond_as_caller, may_see_host_paths, narrow,
    network_is_within, owns_session, schedule_decision, sees, unattached_may,
};
pub use branch::{BranchName, BranchPattern};
pub use credential::{BaseUrl, CredentialName};
pub use env_value::{EnvValue, MIN_SECRET_BYTES, parse_env, parse_optional_env};
pub use event::{Changed, Event, RewoundPart};
pub use file_tree::{FileEntry, FileKind, FileTree, Found, ReadError};
pub use git_identity::GitIdentity;
pub use ids::{ProjectId, RunId, ScheduleId, SessionId, TokenId, WorkspaceId};
pub use key::{ApiKey, KeyHash};
pub use name::ProjectName;
pub use nearest::nearest;
pub use network::{
    AllowRule, Host, HostPattern, MAX_NAME_BYTES, MAX_NETWORK_PATTERNS, NetworkPolicy,
    NetworkRules, Preset, PresetList, Verdict, canonical_address, special_range,
};
pub use path_text::{path_from_text, path_to_text, quote_path};
pub use project::{Level, McpServer, Network, ProjectLimits, ProjectSettings, ToolStyle};
pub use remote::{RemoteUrl, Transport};
pub use resource_uri::{OutputStream, ResourceUri};
pub use schedule::{CronSchedule, MissedRuns, Overlap, RunCause, RunStatus, SessionBehavior};
pub use scope::Scope;
pub use secret::Secret;
pub use session::{
    AwaitedRequest, AwaitedRequestKind, CallerToolOutcome, PermissionDecision, Status, StopReason,
    Transition, TurnKind, Usage,
};

/// Why an input was refused: a full sentence that says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidValue(pub String);

/// Quotes an input for a message: shortened, without control characters.
pub fn quoted(value: &str) -> String {
    const MAX_QUOTED_CHARS: usize = 60;
    let mut shown: String = value
        .chars()
        .take(MAX_QUOTED_CHARS)
        .flat_map(char::escape_debug)
        .collect();
    if value.chars().nth(MAX_QUOTED_CHARS).is_some() {
        shown.push('…');
    }
    format!("`{shown}`")
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn quoted_values_are_short_and_printable() {
        assert_eq!(quoted("a\0b"), "`a\\0b`");
        assert_eq!(quoted("\u{1b}[31m"), "`\\u{1b}[31m`");
        assert!(quoted(&"x".repeat(10_000)).len() < 70);
    }
}
