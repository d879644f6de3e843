//! The clients, one row each: the path of their configuration, the entry for a server with Streamable
//! HTTP, and the entry for a program that they start. A new client is a new row.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use super::{ConfigScope, Connection, Environment};

#[derive(Debug)]
pub(super) struct Client {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    /// Possible paths of the user's file: the first that exists is used, else the last is created.
    user: &'static [ConfigPath],
    /// Possible paths of a project's file, relative to the project's directory.
    project: &'static [&'static str],
    pub(super) format: Format,
    /// The top-level key of the map of servers.
    pub(super) servers: &'static str,
    /// The fields of our entry for a URL; none if the client only starts programs.
    pub(super) entry: &'static [Field],
    /// The fields of our entry for a program.
    pub(super) stdio: &'static [Field],
    /// Keys that would make the client refuse our entry for a URL or override its fields.
    pub(super) conflicting_keys: &'static [Key],
    next_step: &'static str,
    /// Additional steps for a project's file.
    next_step_in_project: &'static str,
}

/// A file below the home directory, or below the directory in an environment variable.
#[derive(Debug)]
struct ConfigPath {
    home: &'static str,
    moved: Option<(&'static str, &'static str)>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Format {
    Json,
    Toml,
}

/// A key of our entry, or of a map within it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Key {
    pub(super) within: Option<&'static str>,
    pub(super) name: &'static str,
}

#[derive(Debug)]
pub(super) struct Field {
    pub(super) key: Key,
    pub(super) content: Content,
}

#[derive(Debug)]
pub(super) enum Content {
    Text(&'static str),
    Flag(bool),
    Url,
    Bearer,
    /// The path of the program.
    Program,
    /// The program's arguments.
    Arguments,
    /// The program and its arguments in one list.
    CommandLine,
}

/// The entry for a program, as most clients write it.
const PROGRAM: &[Field] = &[
    field(top("command"), Content::Program),
    field(top("args"), Content::Arguments),
];
const TYPED_PROGRAM: &[Field] = &[
    field(top("type"), Content::Text("stdio")),
    field(top("command"), Content::Program),
    field(top("args"), Content::Arguments),
];

pub(super) const CLIENTS: &[Client] = &[
    Client {
        name: "claude",
        title: "Claude Code",
        // The first is an older name; Claude Code still prefers it where it exists.
        user: &[
            moved("CLAUDE_CONFIG_DIR", ".config.json", ".claude/.config.json"),
            moved("CLAUDE_CONFIG_DIR", ".claude.json", ".claude.json"),
        ],
        project: &[".mcp.json"],
        format: Format::Json,
        servers: "mcpServers",
        entry: &[
            field(top("type"), Content::Text("http")),
            field(top("url"), Content::Url),
            field(within("headers", "Authorization"), Content::Bearer),
        ],
        stdio: TYPED_PROGRAM,
        conflicting_keys: &[],
        next_step: "Restart Claude Code and type /mcp to see the server.",
        next_step_in_project: "Claude Code asks once whether to trust the servers of a project.",
    },
    Client {
        name: "codex",
        title: "Codex",
        user: &[moved("CODEX_HOME", "config.toml", ".codex/config.toml")],
        project: &[".codex/config.toml"],
        format: Format::Toml,
        servers: "mcp_servers",
        entry: &[
            field(top("url"), Content::Url),
            field(within("http_headers", "Authorization"), Content::Bearer),
            field(top("enabled"), Content::Flag(true)),
        ],
        stdio: &[
            field(top("command"), Content::Program),
            field(top("args"), Content::Arguments),
            field(top("enabled"), Content::Flag(true)),
        ],
        // Beside a url Codex refuses the keys of a local server, and with them the whole file;
        // the last two would replace our header.
        conflicting_keys: &[
            top("command"),
            top("args"),
            top("env"),
            top("env_vars"),
            top("cwd"),
            top("bearer_token"),
            top("bearer_token_env_var"),
            within("env_http_headers", "Authorization"),
        ],
        next_step: "Restart Codex and type /mcp to see the server.",
        next_step_in_project: "Codex reads the file of a project only if you trust the project.",
    },
    Client {
        name: "opencode",
        title: "opencode",
        // It reads both and lets the first overrule the second.
        user: &[
            moved(
                "XDG_CONFIG_HOME",
                "opencode/opencode.jsonc",
                ".config/opencode/opencode.jsonc",
            ),
            moved(
                "XDG_CONFIG_HOME",
                "opencode/opencode.json",
                ".config/opencode/opencode.json",
            ),
        ],
        project: &[
            ".opencode/opencode.jsonc",
            ".opencode/opencode.json",
            "opencode.jsonc",
            "opencode.json",
        ],
        format: Format::Json,
        servers: "mcp",
        // Without the last, a refused token sends opencode looking for an OAuth login.
        entry: &[
            field(top("type"), Content::Text("remote")),
            field(top("url"), Content::Url),
            field(within("headers", "Authorization"), Content::Bearer),
            field(top("enabled"), Content::Flag(true)),
            field(top("oauth"), Content::Flag(false)),
        ],
        stdio: &[
            field(top("type"), Content::Text("local")),
            field(top("command"), Content::CommandLine),
            field(top("enabled"), Content::Flag(true)),
        ],
        conflicting_keys: &[],
        next_step: "Restart opencode; `opencode mcp list` shows whether it is connected.",
        next_step_in_project: "",
    },
    Client {
        name: "droid",
        title: "Factory Droid",
        user: &[moved(
            "FACTORY_HOME_OVERRIDE",
            ".factory/mcp.json",
            ".factory/mcp.json",
        )],
        project: &[".factory/mcp.json"],
        format: Format::Json,
        servers: "mcpServers",
        // Without the last, Droid also calls without the token to ask for an OAuth login, which
        // the server counts as a failed authentication.
        entry: &[
            field(top("type"), Content::Text("http")),
            field(top("url"), Content::Url),
            field(within("headers", "Authorization"), Content::Bearer),
            field(top("disabled"), Content::Flag(false)),
            field(top("oauth"), Content::Flag(false)),
        ],
        stdio: &[
            field(top("type"), Content::Text("stdio")),
            field(top("command"), Content::Program),
            field(top("args"), Content::Arguments),
            field(top("disabled"), Content::Flag(false)),
        ],
        conflicting_keys: &[],
        next_step: "Restart droid; `droid mcp list` shows whether it is connected.",
        next_step_in_project: "",
    },
    Client {
        name: "gemini",
        title: "Gemini CLI",
        user: &[moved(
            "GEMINI_CLI_HOME",
            ".gemini/settings.json",
            ".gemini/settings.json",
        )],
        project: &[".gemini/settings.json"],
        format: Format::Json,
        servers: "mcpServers",
        entry: &[
            field(top("type"), Content::Text("http")),
            field(top("url"), Content::Url),
            field(within("headers", "Authorization"), Content::Bearer),
        ],
        stdio: PROGRAM,
        // The deprecated spelling of url, which wins where both are given.
        conflicting_keys: &[top("httpUrl")],
        next_step: "Restart Gemini CLI in a folder you trust and type /mcp to see the server.",
        next_step_in_project: "",
    },
    Client {
        name: "cursor",
        title: "Cursor",
        user: &[home(".cursor/mcp.json")],
        project: &[".cursor/mcp.json"],
        format: Format::Json,
        servers: "mcpServers",
        entry: &[
            field(top("url"), Content::Url),
            field(within("headers", "Authorization"), Content::Bearer),
        ],
        stdio: PROGRAM,
        // A command makes it a local server; a type can force the older SSE transport.
        conflicting_keys: &[top("command"), top("type")],
        next_step: "Restart Cursor; its settings list the server under MCP.",
        next_step_in_project: "",
    },
    Client {
        name: "vscode",
        title: "Visual Studio Code",
        user: VSCODE_USER,
        project: &[".vscode/mcp.json"],
        format: Format::Json,
        servers: "servers",
        entry: &[
            field(top("type"), Content::Text("http")),
            field(top("url"), Content::Url),
            field(within("headers", "Authorization"), Content::Bearer),
        ],
        stdio: TYPED_PROGRAM,
        conflicting_keys: &[],
        next_step: "In Visual Studio Code run the command `MCP: List Servers` and start the server.",
        next_step_in_project: "",
    },
    Client {
        name: "zed",
        title: "Zed",
        user: &[moved(
            "XDG_CONFIG_HOME",
            "zed/settings.json",
            ".config/zed/settings.json",
        )],
        project: &[".zed/settings.json"],
        format: Format::Json,
        servers: "context_servers",
        entry: &[],
        // Some versions need the first.
        stdio: &[
            field(top("source"), Content::Text("custom")),
            field(top("command"), Content::Program),
            field(top("args"), Content::Arguments),
            field(top("enabled"), Content::Flag(true)),
        ],
        conflicting_keys: &[],
        next_step: "In Zed open the settings of the agent panel to see the server.",
        next_step_in_project: "Zed starts servers of a project only if you trust the project.",
    },
    Client {
        name: "claude-desktop",
        title: "Claude Desktop",
        user: CLAUDE_DESKTOP_USER,
        project: &[],
        format: Format::Json,
        servers: "mcpServers",
        entry: &[],
        stdio: PROGRAM,
        conflicting_keys: &[],
        next_step: "Quit and start Claude Desktop; its settings list the server under Developer.",
        next_step_in_project: "",
    },
];

const CLAUDE_DESKTOP_USER: &[ConfigPath] = if cfg!(target_os = "macos") {
    &[home(
        "Library/Application Support/Claude/claude_desktop_config.json",
    )]
} else {
    &[moved(
        "XDG_CONFIG_HOME",
        "Claude/claude_desktop_config.json",
        ".config/Claude/claude_desktop_config.json",
    )]
};

const VSCODE_USER: &[ConfigPath] = if cfg!(target_os = "macos") {
    &[home("Library/Application Support/Code/User/mcp.json")]
} else {
    &[moved(
        "XDG_CONFIG_HOME",
        "Code/User/mcp.json",
        ".config/Code/User/mcp.json",
    )]
};

const fn home(home: &'static str) -> ConfigPath {
    ConfigPath { home, moved: None }
}

const fn moved(variable: &'static str, below: &'static str, home: &'static str) -> ConfigPath {
    ConfigPath {
        home,
        moved: Some((variable, below)),
    }
}

const fn top(name: &'static str) -> Key {
    Key { within: None, name }
}

const fn within(map: &'static str, name: &'static str) -> Key {
    Key {
        within: Some(map),
        name,
    }
}

const fn field(key: Key, content: Content) -> Field {
    Field { key, content }
}

impl Client {
    /// Whether the client takes only programs that it starts.
    pub(super) fn is_stdio_only(&self) -> bool {
        self.entry.is_empty()
    }

    /// The fields of our entry for a connection, and those for the other kind.
    pub(super) fn fields(&self, connection: &Connection) -> (&'static [Field], &'static [Field]) {
        match connection {
            Connection::Http { .. } => (self.entry, self.stdio),
            Connection::Stdio { .. } => (self.stdio, self.entry),
        }
    }

    /// The path of the file; none if the client has none for a project.
    pub(super) fn path(
        &self,
        scope: &ConfigScope,
        home: &Path,
        environment: Environment<'_>,
    ) -> Option<PathBuf> {
        let mut paths: Vec<PathBuf> = match scope {
            ConfigScope::User => self
                .user
                .iter()
                .map(|path| path.path(home, environment))
                .collect(),
            ConfigScope::Project(directory) => self
                .project
                .iter()
                .map(|file| directory.join(file))
                .collect(),
        };
        // `symlink_metadata`, because the client also uses a link whose target does not exist yet.
        let used = paths
            .iter()
            .position(|path| path.symlink_metadata().is_ok());
        let last = paths.len().checked_sub(1)?;
        Some(paths.swap_remove(used.unwrap_or(last)))
    }

    pub(super) fn note(&self, scope: &ConfigScope, has_token: bool) -> String {
        match scope {
            ConfigScope::User => self.next_step.to_owned(),
            ConfigScope::Project(_) => {
                let secret = if has_token {
                    "The file holds a token: keep it out of version control."
                } else {
                    ""
                };
                [self.next_step, self.next_step_in_project, secret]
                    .into_iter()
                    .filter(|sentence| !sentence.is_empty())
                    .collect::<Vec<_>>()
                    .join(" ")
            }
        }
    }
}

impl ConfigPath {
    fn path(&self, home: &Path, environment: Environment<'_>) -> PathBuf {
        self.moved
            .and_then(|(variable, below)| {
                let directory = environment(variable).filter(|value| !value.is_empty())?;
                Some(Path::new(&directory).join(below))
            })
            .unwrap_or_else(|| home.join(self.home))
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Json => "JSON",
            Self::Toml => "TOML",
        })
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.within {
            Some(map) => write!(f, "{map}.{}", self.name),
            None => f.write_str(self.name),
        }
    }
}
