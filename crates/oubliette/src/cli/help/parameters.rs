//! The help of parameters, and which of them are for programs.

/// Parameters in the words of the command line: of one operation, or of all (`*`).
pub(super) const PARAMETERS: &[(&str, &str, &str)] = &[
    (
        "session_list",
        "project_id",
        "Only sessions of this project",
    ),
    (
        "session_cleanup",
        "project_id",
        "Only sessions of this project",
    ),
    (
        "schedule_list",
        "project_id",
        "Only schedules of this project",
    ),
    (
        "schedule_history",
        "project_id",
        "Only runs in this project",
    ),
    (
        "config_limits",
        "project_id",
        "The project, by name or id; all if omitted",
    ),
    ("audit_list", "project_id", "Only calls about this project"),
    (
        "audit_list",
        "token_id",
        "Only calls made with this token, by name or id",
    ),
    (
        "audit_list",
        "operation",
        "Only calls of this command, for example 'project create'",
    ),
    (
        "image_rebuild",
        "project_id",
        "Only the containers of this project",
    ),
    ("*", "project_id", "The project, by name or id"),
    (
        "*",
        "session_id",
        "The session; see `oubliette session list`",
    ),
    ("*", "schedule_id", "The schedule, by name or id"),
    ("*", "token_id", "The token, by name or id"),
    (
        "session_list",
        "workspace_id",
        "Only sessions in this workspace",
    ),
    (
        "session_list",
        "external_id",
        "Only the session that has this name of yours",
    ),
    (
        "session_fork",
        "workspace_id",
        "The id of the new workspace [default: a new one]",
    ),
    (
        "workspace_create",
        "workspace_id",
        "The id of the new workspace [default: a new one]",
    ),
    (
        "workspace_delete",
        "workspace_id",
        "The workspace, not the default one",
    ),
    (
        "container_stop",
        "workspace_id",
        "Only the container of this workspace, if each has its own",
    ),
    (
        "*",
        "workspace_id",
        "The workspace [default: the default workspace]",
    ),
    (
        "*",
        "create_workspace",
        "Create the workspace if it does not exist; without --workspace, a new one",
    ),
    (
        "*",
        "new_session",
        "Start a new session even if the workspace has one",
    ),
    (
        "project_tasks",
        "change_id",
        "The change; see `oubliette project changes`",
    ),
    (
        "*",
        "change_id",
        "The OpenSpec change; see `oubliette project changes`",
    ),
    (
        "*",
        "limit",
        "Print at most this many (1 to 1000) [default: all]",
    ),
    ("session_list", "agent", "Only sessions of this agent"),
    ("*", "agent", "The agent; see `oubliette agent list`"),
    ("*", "model", "The model that the agent uses"),
    (
        "*",
        "models",
        "The model of another agent, as AGENT=MODEL; may be repeated",
    ),
    (
        "*",
        "scope",
        "admin, admin:ro, read, write, project:NAME or project:NAME:ro",
    ),
    (
        "*",
        "agent_scope",
        "What agents of the project may do with Oubliette itself, not more than your token: admin, read, write, \
         project:NAME or project:NAME:ro; none removes it",
    ),
    (
        "*",
        "command",
        "One argument is run by the shell; several are a program and its arguments",
    ),
    (
        "container_exec",
        "timeout_seconds",
        "Kill the command, with every process it started, after this time [default: 50]",
    ),
    (
        "container_exec",
        "stdin",
        "The standard input of the command",
    ),
    (
        "container_exec",
        "env",
        "Environment variable of the command; without VALUE it is taken from this shell; may be repeated",
    ),
    (
        "*",
        "env",
        "Environment variable of the container; without VALUE it is taken from this shell; may be repeated. Together \
         with --secret, replaces all previous ones. Values are never returned. One that looks like a key, by its \
         name or itself, is also hidden in what agents write. `{\"NAME\": {\"value\": \"…\", \"secret\": false}}` is \
         taken too",
    ),
    (
        "*",
        "tools_allowed",
        "The only tools that the agent may use, by its own names; `*` matches any part of a name",
    ),
    ("*", "tools_disallowed", "Tools that the agent may not use"),
    (
        "session_permit",
        "request_id",
        "The request; see `oubliette session get`",
    ),
    (
        "session_permit",
        "max_cost_usd",
        "For a request about cost: the new limit in US dollars [default: the project's limit once more]. Project \
         tokens cannot set this",
    ),
    (
        "session_events",
        "since_index",
        "Only events after this number",
    ),
    (
        "session_events",
        "max_events",
        "At most this many (1 to 1000) [default: 200]",
    ),
    (
        "session_events",
        "wait_seconds",
        "Wait up to this many seconds (0 to 50) for an event if there is none [default: 0]",
    ),
    (
        "session_events",
        "include_children",
        "Include the events of the sessions below this one, ordered by time",
    ),
    (
        "session_diff",
        "since_review",
        "Only what changed since the last review",
    ),
    (
        "workspace_write",
        "content",
        "The whole content of the file; without it nothing is written, and a URL is printed to send it to",
    ),
    (
        "schedule_create",
        "timezone",
        "The time zone of CRON, for example Europe/Berlin [default: UTC]",
    ),
    (
        "schedule_update",
        "timezone",
        "The time zone, for example Europe/Berlin",
    ),
    (
        "schedule_create",
        "enabled",
        "Whether it runs at its times [default: true]",
    ),
    (
        "project_create",
        "git_credential",
        "The credential to clone with; see `oubliette credential list`",
    ),
    (
        "project_push",
        "branch",
        "The branch to push to; the project says which are allowed [default: oubliette/WORKSPACE]",
    ),
    (
        "project_push",
        "credential",
        "The credential to push with: one of the project's [default: the one it was cloned with]",
    ),
    (
        "*",
        "credential_refs",
        "A credential that its agents may use; see `oubliette credential list`. Project tokens cannot add any",
    ),
    (
        "*",
        "protected_paths",
        "Path, relative to each workspace, that agents can read but not change. One that does not exist becomes an \
         empty directory. A container that is not in use is stopped to apply it",
    ),
    (
        "credential_add",
        "name",
        "What projects call it: 1 to 64 lowercase letters, digits, `.`, `_` or `-`",
    ),
    (
        "token_create",
        "expires_at",
        "When the token expires (RFC 3339) [default: never]",
    ),
    (
        "token_create",
        "expires_in_hours",
        "Hours until the token expires [default: never]",
    ),
    (
        "caller_tool_response",
        "request_id",
        "The request that the agent waits for",
    ),
];

/// Parameters that only programs need: they work, and are not shown.
pub(super) const HIDDEN: &[(&str, &[&str])] = &[
    ("*", &["cursor"]),
    (
        "container_exec",
        &[
            "wait_seconds",
            "terminal",
            "offsets",
            "close_stdin",
            "signal",
            "encoding",
            "exec_id",
        ],
    ),
    (
        "session_spawn",
        &["external_id", "source", "attachments", "context"],
    ),
    (
        "session_message",
        &[
            "project_id",
            "workspace_id",
            "create_workspace",
            "new_session",
            "external_id",
            "source",
            "attachments",
            "context",
            "agent_scope",
            "change_id",
        ],
    ),
    ("workspace_read", &["encoding"]),
    ("workspace_write", &["encoding"]),
];
