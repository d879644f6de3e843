//! Named secrets of the configuration, read at each use so that they can be rotated.

use std::path::PathBuf;

use oubliette_model::Secret;
use schemars::JsonSchema;
use serde::Deserialize;

/// `[credentials.NAME]`: a secret, from one of `env`, `file` and `value`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Credential {
    /// `git` for a password or token over https, `ssh_key` for a private key, otherwise the name of
    /// the model provider.
    pub kind: String,
    /// The user name, for example for `git`.
    pub username: Option<String>,
    /// The environment variable of the server that contains the secret.
    pub env: Option<String>,
    /// The file that contains the secret.
    pub file: Option<PathBuf>,
    /// The secret itself.
    pub value: Option<Secret>,
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
    #[error("it is empty")]
    Empty,
}

impl Credential {
    pub fn read(&self) -> Result<Secret, CredentialError> {
        let content = match (&self.env, &self.file, &self.value) {
            (Some(name), None, None) => {
                std::env::var(name).map_err(|_| CredentialError::Unset(name.clone()))?
            }
            (None, Some(path), None) => std::fs::read_to_string(path)
                .map_err(|error| CredentialError::Unreadable(path.clone(), error))?,
            (None, None, Some(value)) => value.reveal().to_owned(),
            _ => return Err(CredentialError::Ambiguous),
        };
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
