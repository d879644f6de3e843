//! How a clone signs in: a secret that is on disk for as long as the clone runs, readable by us
//! alone, and given only to the host it is meant for. It is never an argument or a variable.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use oubliette_model::{RemoteUrl, Secret, Transport};
use uuid::Uuid;

use crate::{Credential, EngineError, Result};

/// The sign-in of one run of git, and its home directory. Dropping it removes both.
#[derive(Debug)]
pub(super) struct Access {
    home: PathBuf,
    secret: Option<Secret>,
    variables: Vec<(&'static str, OsString)>,
    local: bool,
}

impl Access {
    pub(super) fn none(scratch: &Path) -> Result<Self> {
        let home = scratch.join(Uuid::new_v4().to_string());
        DirBuilder::new().mode(0o700).create(&home)?;
        Ok(Self {
            home,
            secret: None,
            variables: Vec::new(),
            local: true,
        })
    }

    pub(super) fn prepare(
        scratch: &Path,
        url: &RemoteUrl,
        credential: Option<&Credential>,
    ) -> Result<Self> {
        let mut access = Self::none(scratch)?;
        access.local = url.transport() == Transport::Local;
        let Some(credential) = credential else {
            access.ssh(None);
            return Ok(access);
        };
        let secret = credential.read().map_err(|error| {
            EngineError::Failed(format!("the credential named in `git_credential`: {error}"))
        })?;
        match (url.transport(), credential.kind.as_str()) {
            (Transport::Ssh, "ssh_key") => {
                let key = access.home.join("key");
                write_private(&key, 0o600, secret.reveal())?;
                access.ssh(Some(&key));
            }
            (Transport::Https | Transport::Http, "git") => {
                access.askpass(url, credential, &secret)?;
            }
            (_, kind) => {
                return Err(EngineError::invalid(format!(
                    "`git_credential` names a credential of kind `{kind}`, which does not fit this \
                     address; https needs kind `git`, ssh needs kind `ssh_key`"
                )));
            }
        }
        access.secret = Some(secret);
        Ok(access)
    }

    fn ssh(&mut self, key: Option<&Path>) {
        let mut command = OsString::from(
            "ssh -oBatchMode=yes -oConnectTimeout=30 -oStrictHostKeyChecking=accept-new \
             -oUserKnownHostsFile=",
        );
        command.push(shell_quoted(&self.home.join("known_hosts")));
        if let Some(key) = key {
            command.push(" -oIdentitiesOnly=yes -i ");
            command.push(shell_quoted(key));
        }
        self.variables.push(("GIT_SSH_COMMAND", command));
    }

    /// A program that answers git's two questions for exactly this host, and no other: a redirect
    /// to somewhere else must not carry the secret along.
    fn askpass(&mut self, url: &RemoteUrl, credential: &Credential, secret: &Secret) -> Result<()> {
        let user = url
            .user()
            .or_else(|| credential.username.clone())
            .unwrap_or_else(|| "x-access-token".to_owned());
        let scheme = if url.transport() == Transport::Https {
            "https"
        } else {
            "http"
        };
        write_private(&self.home.join("user"), 0o600, &user)?;
        write_private(&self.home.join("secret"), 0o600, secret.reveal())?;
        let place = format!("{scheme}://{}", url.host());
        let place_with_user = format!("{scheme}://{user}@{}", url.host());
        let script = format!(
            "#!/bin/sh\ncase \"$1\" in\n\
             {}) cat {} ;;\n{}) cat {} ;;\n*) exit 1 ;;\nesac\n",
            shell_quoted_text(&format!("Username for '{place}': ")),
            shell_quoted_text(&self.home.join("user").to_string_lossy()),
            shell_quoted_text(&format!("Password for '{place_with_user}': ")),
            shell_quoted_text(&self.home.join("secret").to_string_lossy()),
        );
        let program = self.home.join("askpass");
        write_private(&program, 0o700, &script)?;
        self.variables
            .push(("GIT_ASKPASS", program.into_os_string()));
        Ok(())
    }

    pub(super) fn home(&self) -> &Path {
        &self.home
    }

    pub(super) fn is_local(&self) -> bool {
        self.local
    }

    pub(super) fn variables(&self) -> impl Iterator<Item = (&'static str, &OsString)> {
        self.variables.iter().map(|(name, value)| (*name, value))
    }

    /// Takes the secret out of what git said.
    pub(super) fn redact(&self, error: EngineError) -> EngineError {
        match (error, &self.secret) {
            (EngineError::Failed(text), Some(secret)) => {
                EngineError::Failed(text.replace(secret.reveal(), "****"))
            }
            (error, _) => error,
        }
    }
}

impl Drop for Access {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.home) {
            tracing::warn!(%error, "could not remove what a clone left behind");
        }
    }
}

fn write_private(path: &Path, mode: u32, text: &str) -> Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)?;
    file.write_all(text.as_bytes())?;
    Ok(())
}

fn shell_quoted(path: &Path) -> String {
    shell_quoted_text(&path.to_string_lossy())
}

fn shell_quoted_text(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}
