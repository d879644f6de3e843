//! Named secrets: those of the configuration, and those that `credential_add` stores. A reference to a
//! variable or a file is read at each use, so that it can be rotated.

pub(crate) mod add;
mod files;
pub(crate) mod list;
pub(crate) mod remove;
mod sign_in;
mod state;

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};

use oubliette_model::{BaseUrl, Secret};
use oubliette_store::VisibleProjects;
use schemars::JsonSchema;
use serde::Deserialize;

pub(crate) use sign_in::{GivenLogin, SignIn, sign_in_advice};
pub(crate) use state::CredentialState;

use crate::{Engine, Result, Settings, agents};

/// Of a key, a login file or a private key.
pub(crate) const MAX_VALUE_BYTES: usize = 64 << 10;
/// Kinds of credentials that are for git, not for agents.
pub const GIT_KINDS: [&str; 2] = ["git", "ssh_key"];
const PROJECT_PAGE: u32 = 500;

/// `[credentials.NAME]`: a secret, from one of `env`, `file` and `value`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Credential {
    /// `git` for a password or token over https, `ssh_key` for a private key, otherwise a kind that an
    /// agent takes: the name of a model provider, or a login of the agent.
    pub kind: String,
    /// The user name, for example for `git`.
    pub username: Option<String>,
    /// The environment variable of the server that contains the secret.
    pub env: Option<String>,
    /// The file that contains the secret.
    pub file: Option<PathBuf>,
    /// The secret itself.
    pub value: Option<Secret>,
    /// The address of a gateway that is used instead of the provider's; for `git` the only address that
    /// the secret is sent to.
    pub base_url: Option<BaseUrl>,
}

/// Why a credential cannot be used. The text never contains the secret.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    #[error("it needs exactly one of `env`, `file` and `value`")]
    Ambiguous,
    #[error("the environment variable {0} of the server is not set")]
    Unset(String),
    #[error("the file {} cannot be read", .0.display())]
    Unreadable(PathBuf, #[source] std::io::Error),
    #[error("it has more than {} KiB", MAX_VALUE_BYTES >> 10)]
    TooLong,
    #[error("it is empty")]
    Empty,
}

impl Credential {
    pub fn read(&self) -> Result<Secret, CredentialError> {
        let content = match (&self.env, &self.file, &self.value) {
            (Some(name), None, None) => {
                std::env::var(name).map_err(|_| CredentialError::Unset(name.clone()))?
            }
            (None, Some(path), None) => {
                read_file(path).map_err(|error| CredentialError::Unreadable(path.clone(), error))?
            }
            (None, None, Some(value)) => value.reveal().to_owned(),
            _ => return Err(CredentialError::Ambiguous),
        };
        if content.len() > MAX_VALUE_BYTES {
            return Err(CredentialError::TooLong);
        }
        // A private key needs its last newline; other secrets must not have one.
        let text = if self.kind == "ssh_key" {
            content
        } else {
            content.trim().to_owned()
        };
        if text.is_empty() {
            Err(CredentialError::Empty)
        } else {
            Ok(Secret::new(text))
        }
    }
}

/// Reads a file, at most one byte more than a value may have.
fn read_file(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    let file = std::fs::File::open(path)?;
    file.take(MAX_VALUE_BYTES as u64 + 1)
        .read_to_string(&mut text)?;
    Ok(text)
}

/// Every kind of credential that something uses.
pub fn credential_kinds(settings: &Settings) -> BTreeSet<String> {
    let agents = agents::all(settings);
    agents
        .iter()
        .flat_map(|agent| agent.credential_kinds())
        .chain(GIT_KINDS)
        .map(str::to_owned)
        .collect()
}

/// The verbs about credentials.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Credentials<'a> {
    engine: &'a Engine,
}

impl<'a> Credentials<'a> {
    pub(crate) fn new(engine: &'a Engine) -> Self {
        Self { engine }
    }

    fn state(self) -> &'a CredentialState {
        &self.engine.parts.credentials
    }

    /// The credential with this name. One of the configuration hides a stored one.
    pub(crate) fn find(self, name: &str) -> Option<Credential> {
        let configured = self.engine.settings().credentials.get(name);
        configured.cloned().or_else(|| self.state().stored(name))
    }

    /// Every credential, by name, with whether it is one of the configuration.
    pub(crate) fn all(self) -> Vec<(String, Credential, bool)> {
        let configured = &self.engine.settings().credentials;
        let stored = self.state().all_stored().into_iter();
        let stored = stored.filter(|(name, _)| !configured.contains_key(name));
        let own = configured
            .iter()
            .map(|(name, credential)| (name.clone(), credential.clone(), true));
        let mut all: Vec<_> = own
            .chain(stored.map(|(name, credential)| (name, credential, false)))
            .collect();
        all.sort_by(|one, other| one.0.cmp(&other.0));
        all
    }

    pub(crate) fn names(self) -> Vec<String> {
        self.all().into_iter().map(|(name, ..)| name).collect()
    }

    /// Changes with every change of a stored credential.
    pub(crate) fn generation(self) -> u64 {
        self.state().generation()
    }

    /// The projects that refer to credentials, as names of a credential and a project.
    async fn references(self) -> Result<Vec<(String, String)>> {
        let mut references = Vec::new();
        let mut after: Option<String> = None;
        loop {
            let store = self.engine.store();
            let page = store.projects(VisibleProjects::All, after.as_deref(), PROJECT_PAGE);
            let page = page.await?;
            for project in &page.rows {
                let settings = &project.settings;
                let names = settings
                    .credential_refs
                    .iter()
                    .chain(&settings.git_credential);
                let names: BTreeSet<&String> = names.collect();
                references.extend(
                    names
                        .into_iter()
                        .map(|name| (name.clone(), project.name.to_string())),
                );
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(references),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credential() -> Credential {
        Credential {
            kind: "git".to_owned(),
            username: None,
            env: None,
            file: None,
            value: None,
            base_url: None,
        }
    }

    #[test]
    fn a_credential_has_one_source_and_is_read_at_each_use() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let from_file = Credential {
            file: Some(path.clone()),
            ..credential()
        };
        assert!(matches!(
            from_file.read(),
            Err(CredentialError::Unreadable(..))
        ));
        std::fs::write(&path, "first\n").unwrap();
        assert_eq!(from_file.read().unwrap().reveal(), "first");
        std::fs::write(&path, "second\n").unwrap();
        assert_eq!(from_file.read().unwrap().reveal(), "second");
        std::fs::write(&path, " \n").unwrap();
        assert!(matches!(from_file.read(), Err(CredentialError::Empty)));
        std::fs::write(&path, "x".repeat(MAX_VALUE_BYTES + 1)).unwrap();
        assert!(matches!(from_file.read(), Err(CredentialError::TooLong)));

        assert!(matches!(
            credential().read(),
            Err(CredentialError::Ambiguous)
        ));
        let both = Credential {
            value: Some(Secret::new("x")),
            ..from_file
        };
        assert!(matches!(both.read(), Err(CredentialError::Ambiguous)));
    }
}
