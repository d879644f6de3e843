//! The credential of a git command: a private file that exists while the command runs and is given
//! only to the host it is meant for. It is never an argument or an environment variable.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use oubliette_model::{RemoteUrl, Secret, Transport};
use uuid::Uuid;

use crate::{Credential, EngineError, Result};

/// The credential and the home directory of one git command. Dropping it removes both.
#[derive(Debug)]
pub(super) struct GitAccess {
    home: PathBuf,
    secret: Option<Secret>,
    variables: Vec<(&'static str, OsString)>,
    local: bool,
}

impl GitAccess {
    pub(super) fn without_credential(scratch: &Path) -> Result<Self> {
        let home = scratch.join(Uuid::new_v4().to_string());
        DirBuilder::new().mode(0o700).create(&home)?;
        Ok(Self {
            home,
            secret: None,
            variables: Vec::new(),
            local: true,
        })
    }

    pub(super) fn for_remote(
        scratch: &Path,
        url: &RemoteUrl,
        credential: Option<&Credential>,
    ) -> Result<Self> {
        let mut access = Self::without_credential(scratch)?;
        access.local = url.transport() == Transport::Local;
        let Some(credential) = credential else {
            access.set_ssh_command(None);
            return Ok(access);
        };
        let secret = credential.read().map_err(|error| {
            EngineError::Failed(format!(
                "the credential of `git_credential` cannot be read: {error}"
            ))
        })?;
        match (url.transport(), credential.kind.as_str()) {
            (Transport::Ssh, "ssh_key") => {
                let key = access.home.join("key");
                write_private(&key, 0o600, secret.reveal())?;
                access.set_ssh_command(Some(&key));
            }
            (Transport::Https | Transport::Http, "git") => {
                access.write_askpass(url, credential, &secret)?;
            }
            (_, kind) => {
                return Err(EngineError::invalid(format!(
                    "the credential of `git_credential` has the kind `{kind}`; https needs the kind \
                     `git`, ssh needs `ssh_key`"
                )));
            }
        }
        access.secret = Some(secret);
        Ok(access)
    }

    fn set_ssh_command(&mut self, key: Option<&Path>) {
        let mut command = OsString::from(
            "ssh -oBatchMode=yes -oConnectTimeout=30 -oStrictHostKeyChecking=accept-new \
             -oUserKnownHostsFile=",
        );
        command.push(quote_path(&self.home.join("known_hosts")));
        if let Some(key) = key {
            command.push(" -oIdentitiesOnly=yes -i ");
            command.push(quote_path(key));
        }
        self.variables.push(("GIT_SSH_COMMAND", command));
    }

    /// Writes a program that answers git's prompts for this host only: a redirect to another host
    /// must not get the secret.
    fn write_askpass(
        &mut self,
        url: &RemoteUrl,
        credential: &Credential,
        secret: &Secret,
    ) -> Result<()> {
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
        let origin = format!("{scheme}://{}", url.host());
        let origin_with_user = format!("{scheme}://{user}@{}", url.host());
        let script = format!(
            "#!/bin/sh\ncase \"$1\" in\n\
             {}) cat {} ;;\n{}) cat {} ;;\n*) exit 1 ;;\nesac\n",
            quote_for_shell(&format!("Username for '{origin}': ")),
            quote_for_shell(&self.home.join("user").to_string_lossy()),
            quote_for_shell(&format!("Password for '{origin_with_user}': ")),
            quote_for_shell(&self.home.join("secret").to_string_lossy()),
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

    /// Removes the secret from the output of git.
    pub(super) fn redact(&self, error: EngineError) -> EngineError {
        match (error, &self.secret) {
            (EngineError::Failed(text), Some(secret)) => {
                EngineError::Failed(text.replace(secret.reveal(), "****"))
            }
            (error, _) => error,
        }
    }
}

impl Drop for GitAccess {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.home) {
            tracing::warn!(%error, "could not remove the files of a git command");
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

fn quote_path(path: &Path) -> String {
    quote_for_shell(&path.to_string_lossy())
}

fn quote_for_shell(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}
