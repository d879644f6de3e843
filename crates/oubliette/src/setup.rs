//! The MCP configuration files of clients: adds this server to one, removes it, and finds it there. A change
//! is planned first, so that it can be shown, and applied afterwards.
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
pub(crate) use merge::FoundEntry;
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
pub(crate) enum Connection {
    Http {
        url: String,
        token: String,
    },
    /// A program that passes messages on.
    Stdio {
        program: String,
        arguments: Vec<String>,
    },
}

impl Connection {
    fn url(&self) -> &str {
        match self {
            Self::Http { url, .. } => url,
            Self::Stdio { .. } => "",
        }
    }

    fn token(&self) -> &str {
        match self {
            Self::Http { token, .. } => token,
            Self::Stdio { .. } => "",
        }
    }

    fn program(&self) -> &str {
        match self {
            Self::Http { .. } => "",
            Self::Stdio { program, .. } => program,
        }
    }

    fn arguments(&self) -> &[String] {
        match self {
            Self::Http { .. } => &[],
            Self::Stdio { arguments, .. } => arguments,
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http { url, .. } => f
                .debug_struct("Http")
                .field("url", url)
                .finish_non_exhaustive(),
            Self::Stdio { program, arguments } => f
                .debug_struct("Stdio")
                .field("program", program)
                .field("arguments", arguments)
                .finish(),
        }
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

    #[error("{client} has no configuration of its own for a project. Leave out --project.")]
    NoProjectFile { client: &'static str },

    #[error(
        "{} is a link, which may lead out of the project, so nothing was written. Replace it by what it leads to.",
        .path.display()
    )]
    Link { path: PathBuf },

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
    /// Whether the file has a key of ours then.
    has_key: bool,
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

/// Whether a client takes only programs that it starts.
pub(crate) fn is_stdio_only(client: &str) -> Result<bool, SetupError> {
    Ok(find(client)?.is_stdio_only())
}

/// The name of a client for people.
pub(crate) fn title(client: &str) -> Result<&'static str, SetupError> {
    Ok(find(client)?.title)
}

/// A client's file as it is.
struct ConfigFile {
    client: &'static Client,
    path: PathBuf,
    contents: Option<Vec<u8>>,
}

impl ConfigFile {
    fn read(
        client: &str,
        scope: &ConfigScope,
        home: &Path,
        environment: Environment<'_>,
    ) -> Result<Self, SetupError> {
        let client = find(client)?;
        if let ConfigScope::Project(directory) = scope
            && !directory.is_dir()
        {
            return Err(SetupError::NoProject {
                path: directory.clone(),
            });
        }
        let path = client
            .path(scope, home, environment)
            .ok_or(SetupError::NoProjectFile {
                client: client.title,
            })?;
        let contents = file::read(&path).map_err(|source| SetupError::Read {
            path: path.clone(),
            source,
        })?;
        Ok(Self {
            client,
            path,
            contents,
        })
    }

    /// The text and the byte order mark before it.
    fn text(&self) -> Result<(&str, &str), MergeError> {
        let whole = std::str::from_utf8(self.contents.as_deref().unwrap_or_default())
            .map_err(|_| MergeError::Syntax("it is not UTF-8 text".to_owned()))?;
        let text = whole.trim_start_matches('\u{feff}');
        Ok((&whole[..whole.len() - text.len()], text))
    }

    fn merge(&self, connection: &Connection) -> Result<Merged, MergeError> {
        let (mark, text) = self.text()?;
        let mut merged = match self.client.format {
            Format::Json => json::merge(text, self.client, connection),
            Format::Toml => toml::merge(text, self.client, connection),
        }?;
        merged.text.insert_str(0, mark);
        Ok(merged)
    }

    /// The text without our entry; none if it has none.
    fn without_entry(&self) -> Result<Option<String>, MergeError> {
        let (mark, text) = self.text()?;
        let removed = match self.client.format {
            Format::Json => json::remove(text, self.client),
            Format::Toml => toml::remove(text, self.client),
        }?;
        Ok(removed.map(|text| format!("{mark}{text}")))
    }

    fn entry(&self) -> Result<Option<FoundEntry>, MergeError> {
        let (_, text) = self.text()?;
        match self.client.format {
            Format::Json => json::find_entry(text, self.client),
            Format::Toml => toml::find_entry(text, self.client),
        }
    }
}

/// Finds our entry in the file of a client.
pub(crate) fn inspect(
    client: &str,
    scope: &ConfigScope,
    home: &Path,
    environment: Environment<'_>,
) -> Result<(PathBuf, Option<FoundEntry>), SetupError> {
    let file = ConfigFile::read(client, scope, home, environment)?;
    let entry = file
        .entry()
        .map_err(|error| refuse(file.client, &file.path, error))?;
    Ok((file.path, entry))
}

/// Plans the change without writing anything.
pub(crate) fn plan(
    client: &str,
    scope: &ConfigScope,
    home: &Path,
    environment: Environment<'_>,
    connection: &Connection,
) -> Result<Change, SetupError> {
    let file = ConfigFile::read(client, scope, home, environment)?;
    if let ConfigScope::Project(directory) = scope
        && let Some(path) = find_link(directory, &file.path)
    {
        return Err(SetupError::Link { path });
    }
    let merged = file
        .merge(connection)
        .map_err(|error| refuse(file.client, &file.path, error))?;
    let has_key = matches!(connection, Connection::Http { .. });
    let mut edits = merged.edits;
    if has_key && let Some(mode) = file::shared_mode(&file.path) {
        let private = mode & 0o600;
        edits.push(format!("- permissions: {mode:04o}"));
        edits.push(format!(
            "+ permissions: {private:04o}, because the file has a key"
        ));
    }
    Ok(Change {
        note: file.client.note(scope, has_key),
        has_key,
        client: file.client,
        path: file.path,
        before: file.contents,
        after: merged.text,
        edits,
    })
}

/// Plans the removal of our entry without writing anything.
pub(crate) fn plan_removal(
    client: &str,
    scope: &ConfigScope,
    home: &Path,
    environment: Environment<'_>,
) -> Result<Change, SetupError> {
    let file = ConfigFile::read(client, scope, home, environment)?;
    let after = file
        .without_entry()
        .map_err(|error| refuse(file.client, &file.path, error))?;
    let edit = format!("- {}.{SERVER}", file.client.servers);
    Ok(Change {
        note: format!("Restart {} to end its connection.", file.client.title),
        edits: after.is_some().then_some(edit).into_iter().collect(),
        after: after.unwrap_or_default(),
        has_key: false,
        client: file.client,
        path: file.path,
        before: file.contents,
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
        let replaced = file::replace(&self.path, self.after.as_bytes(), self.has_key);
        replaced.map_err(|source| SetupError::Write {
            path: path(),
            source,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// One line for each changed key, without secrets.
    pub(crate) fn edits(&self) -> &[String] {
        &self.edits
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

/// The first link on the way from a directory to a file in it. The files of a project may be those of others.
fn find_link(directory: &Path, file: &Path) -> Option<PathBuf> {
    let mut path = directory.to_owned();
    let below = file.strip_prefix(directory).ok()?;
    below.components().find_map(|name| {
        path.push(name);
        path.is_symlink().then(|| path.clone())
    })
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
