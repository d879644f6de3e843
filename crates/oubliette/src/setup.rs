//! `oubliette mcp setup CLIENT`: writes this server into the MCP configuration of the clients
//! people use. A change is planned first, so that it can be shown, and applied afterwards.
//!
//! It never rewrites what it does not own: comments, order, unknown keys and formatting of a file
//! survive, and a file it cannot understand is left as it is. The token reaches the file and
//! nothing else, neither a summary nor debug output.

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
use merge::{Fault, Merged};

/// The name of our entry among a client's servers.
const SERVER: &str = "oubliette";

/// Looks up an environment variable, such as `XDG_CONFIG_HOME`, that moves a client's files.
pub(crate) type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// Which of a client's files to write.
#[derive(Debug)]
pub(crate) enum Place {
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
        "There is no client called `{name}`. Did you mean `{nearest}`? The clients are {}.",
        names().collect::<Vec<_>>().join(", ")
    )]
    UnknownClient { name: String, nearest: &'static str },

    #[error("There is no directory {}, so nothing was written. Name an existing project.", .path.display())]
    NoProject { path: PathBuf },

    #[error("{} could not be read, so it was left as it is. Check its permissions.", .path.display())]
    Read { path: PathBuf, source: io::Error },

    #[error(
        "{} is not valid {format} ({reason}), so it was left as it is. Repair it, then run the command again.",
        .path.display()
    )]
    Syntax {
        path: PathBuf,
        format: Format,
        reason: String,
    },

    #[error(
        "In {}, {what} is {found}, but {client} needs a map there, so the file was left as it is. Correct it, then run the command again.",
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

    #[error("{} could not be written, so it was left as it is. Check the permissions of its directory.", .path.display())]
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

/// Works out what to change, without changing anything.
pub(crate) fn plan(
    client: &str,
    place: &Place,
    home: &Path,
    environment: Environment<'_>,
    connection: &Connection,
) -> Result<Change, SetupError> {
    let client = find(client)?;
    if let Place::Project(directory) = place
        && !directory.is_dir()
    {
        return Err(SetupError::NoProject {
            path: directory.clone(),
        });
    }
    let path = client.path(place, home, environment);
    let before = file::read(&path).map_err(|source| SetupError::Read {
        path: path.clone(),
        source,
    })?;
    let merged = merge(client, before.as_deref(), connection)
        .map_err(|fault| refuse(client, &path, fault))?;
    Ok(Change {
        note: client.note(place),
        client,
        path,
        before,
        after: merged.text,
        edits: merged.edits,
    })
}

impl Change {
    /// Whether the file already says what it should.
    pub(crate) fn is_noop(&self) -> bool {
        self.edits.is_empty()
    }

    /// What changes, for people: key by key instead of line by line, since the lines around ours
    /// may hold the secrets of other servers.
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

    /// Writes the file, unless there is nothing to change or another program changed it since.
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

    /// What the person should do next.
    pub(crate) fn note(&self) -> &str {
        &self.note
    }
}

fn find(name: &str) -> Result<&'static Client, SetupError> {
    if let Some(client) = CLIENTS.iter().find(|client| client.name == name) {
        return Ok(client);
    }
    let likeness = |client: &str| strsim::jaro_winkler(client, &name.to_lowercase());
    let nearest = names()
        .max_by(|a, b| likeness(a).total_cmp(&likeness(b)))
        .unwrap_or_default();
    Err(SetupError::UnknownClient {
        name: name.to_owned(),
        nearest,
    })
}

fn merge(client: &Client, before: Option<&[u8]>, connection: &Connection) -> Result<Merged, Fault> {
    let whole = std::str::from_utf8(before.unwrap_or_default())
        .map_err(|_| Fault::Syntax("it is not UTF-8 text".to_owned()))?;
    let text = whole.trim_start_matches('\u{feff}');
    let mark = &whole[..whole.len() - text.len()];
    let mut merged = match client.format {
        Format::Json => json::merge(text, client, connection),
        Format::Toml => toml::merge(text, client, connection),
    }?;
    merged.text.insert_str(0, mark);
    Ok(merged)
}

fn refuse(client: &'static Client, path: &Path, fault: Fault) -> SetupError {
    let path = path.to_owned();
    match fault {
        Fault::Syntax(reason) => SetupError::Syntax {
            path,
            format: client.format,
            reason,
        },
        Fault::Shape { what, found } => SetupError::Shape {
            path,
            client: client.title,
            what,
            found,
        },
    }
}
