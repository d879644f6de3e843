//! `oubliette mcp setup CLIENT`: adds this server to the MCP configuration of a client. A change is
//! planned first, so that it can be shown, and applied afterwards.
//!
//! Comments, order, unknown keys and formatting of the file stay, and a file that cannot be parsed
//! is not changed. The token is written only to the file, never to a summary or debug output.

mod clients;
mod file;
mod json;
mod merge;
#[cfg(test)]
mod tests;
mod toml;

use std::{
    ffi::OsString,
    fmt, io,
    path::{Path, PathBuf},
};

use clients::{CLIENTS, Client, Format};
use merge::{MergeError, Merged};

/// The name of our entry among a client's servers.
const SERVER: &str = "oubliette";
/// Less similar names (0 to 1) are not suggested.
const MIN_SIMILARITY: f64 = 0.7;

/// Looks up an environment variable, such as `XDG_CONFIG_HOME`, that moves a client's files.
pub(crate) type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// Which of a client's files to write.
#[derive(Debug)]
pub(crate) enum ConfigScope {
    User,
    Project(PathBuf),
}

/// What a client needs to reach the server.
pub(crate) struct Connection {
    pub(crate) url: String,
    pub(crate) token: String,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum SetupError {
    #[error(
        "Unknown client `{name}`. {}The clients are {}.",
        nearest.map(|nearest| format!("Did you mean `{nearest}`? ")).unwrap_or_default(),
        names().collect::<Vec<_>>().join(", ")
    )]
    UnknownClient {
        name: String,
        nearest: Option<&'static str>,
    },

    #[error("The directory {} does not exist, so nothing was written. Choose an existing project.", .path.display())]
    NoProject { path: PathBuf },

    #[error("{} could not be read, so it was not changed. Check its permissions.", .path.display())]
    Read { path: PathBuf, source: io::Error },

    #[error(
        "{} is not valid {format} ({reason}), so it was not changed. Repair it, then run the command again.",
        .path.display()
    )]
    Syntax {
        path: PathBuf,
        format: Format,
        reason: String,
    },

    #[error(
        "In {}, {what} is {found}, but {client} needs a map there, so the file was not changed. Correct it, then run the command again.",
        .path.display()
    )]
    Shape {
        path: PathBuf,
        client: &'static str,
        what: String,
        found: &'static str,
    },

    #[error("{} was changed by another program in the meantime. Run the command again.", .path.display())]
    Changed { path: PathBuf },

    #[error("{} could not be written, so it was not changed. Check the permissions of its directory.", .path.display())]
    Write { path: PathBuf, source: io::Error },
}

/// A planned change of one configuration file.
pub(crate) struct Change {
    client: &'static Client,
    path: PathBuf,
    before: Option<Vec<u8>>,
    after: String,
    edits: Vec<String>,
    note: String,
}

impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Change")
            .field("path", &self.path)
            .field("edits", &self.edits)
            .finish_non_exhaustive()
    }
}

/// The names of the clients, in the order of the table.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    CLIENTS.iter().map(|client| client.name)
}

/// Plans the change without writing anything.
pub(crate) fn plan(
    client: &str,
    scope: &ConfigScope,
    home: &Path,
    environment: Environment<'_>,
    connection: &Connection,
) -> Result<Change, SetupError> {
    let client = find(client)?;
    if let ConfigScope::Project(directory) = scope
        && !directory.is_dir()
    {
        return Err(SetupError::NoProject {
            path: directory.clone(),
        });
    }
    let path = client.path(scope, home, environment);
    let before = file::read(&path).map_err(|source| SetupError::Read {
        path: path.clone(),
        source,
    })?;
    let merged = merge(client, before.as_deref(), connection)
        .map_err(|error| refuse(client, &path, error))?;
    Ok(Change {
        note: client.note(scope),
        client,
        path,
        before,
        after: merged.text,
        edits: merged.edits,
    })
}

impl Change {
    /// Whether the file is already up to date.
    pub(crate) fn is_noop(&self) -> bool {
        self.edits.is_empty()
    }

    /// The changed keys. Not a diff of lines, which may contain the secrets of other servers.
    pub(crate) fn summary(&self) -> String {
        let path = self.path.display();
        if self.is_noop() {
            return format!("{} is already set up in {path}.", self.client.title);
        }
        let old = match self.before {
            Some(_) => path.to_string(),
            None => "/dev/null".to_owned(),
        };
        let key = self.client.servers;
        let edits = self.edits.join("\n");
        format!("--- {old}\n+++ {path}\n@@ {key}.{SERVER} @@\n{edits}")
    }

    /// Writes the file, unless it is up to date. Fails if another program changed it meanwhile.
    pub(crate) fn apply(&self) -> Result<(), SetupError> {
        if self.is_noop() {
            return Ok(());
        }
        let path = || self.path.clone();
        let now = file::read(&self.path).map_err(|source| SetupError::Read {
            path: path(),
            source,
        })?;
        if now != self.before {
            return Err(SetupError::Changed { path: path() });
        }
        file::replace(&self.path, self.after.as_bytes()).map_err(|source| SetupError::Write {
            path: path(),
            source,
        })
    }

    /// What the user should do next.
    pub(crate) fn note(&self) -> &str {
        &self.note
    }
}

fn find(name: &str) -> Result<&'static Client, SetupError> {
    if let Some(client) = CLIENTS.iter().find(|client| client.name == name) {
        return Ok(client);
    }
    let similarity = |client: &str| strsim::jaro_winkler(client, &name.to_lowercase());
    let nearest = names()
        .filter(|client| similarity(client) > MIN_SIMILARITY)
        .max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
    Err(SetupError::UnknownClient {
        name: name.to_owned(),
        nearest,
    })
}

fn merge(
    client: &Client,
    before: Option<&[u8]>,
    connection: &Connection,
) -> Result<Merged, MergeError> {
    let whole = std::str::from_utf8(before.unwrap_or_default())
        .map_err(|_| MergeError::Syntax("it is not UTF-8 text".to_owned()))?;
    let text = whole.trim_start_matches('\u{feff}');
    let mark = &whole[..whole.len() - text.len()];
    let mut merged = match client.format {
        Format::Json => json::merge(text, client, connection),
        Format::Toml => toml::merge(text, client, connection),
    }?;
    merged.text.insert_str(0, mark);
    Ok(merged)
}

fn refuse(client: &'static Client, path: &Path, error: MergeError) -> SetupError {
    let path = path.to_owned();
    match error {
        MergeError::Syntax(reason) => SetupError::Syntax {
            path,
            format: client.format,
            reason,
        },
        MergeError::Shape { what, found } => SetupError::Shape {
            path,
            client: client.title,
            what,
            found,
        },
    }
}
