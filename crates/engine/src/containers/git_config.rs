//! The configuration of git in a container: an author, so that commits work at once.
//!
//! It takes the place of the system's configuration, which it includes: whatever the user, the repository
//! or the command line sets takes precedence.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use oubliette_model::GitIdentity;
use oubliette_runtime::Mount;
use oubliette_store::Project;

use super::{Containers, mount};
use crate::Result;

/// Where containers see the directory of the file.
const DIR_IN_CONTAINER: &str = "/opt/oubliette/git";
/// The value of `GIT_CONFIG_SYSTEM` in containers.
pub(crate) const GIT_CONFIG_PATH: &str = "/opt/oubliette/git/config";

impl Containers<'_> {
    /// Writes the file, and mounts its directory.
    pub(super) fn mount_git_config(self, project: &Project) -> Result<Mount> {
        let directory = self.engine.files().git_config_dir(project.id);
        fs::create_dir_all(&directory)?;
        // User ids inside a container differ from the server's; the parent keeps other users out.
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755))?;
        write(&directory, &self.git_config(project))?;
        Ok(mount(directory, DIR_IN_CONTAINER, true))
    }

    /// Writes the file again if settings have changed, for a container that has it mounted.
    pub(super) fn refresh_git_config(self, project: &Project) -> Result<()> {
        let directory = self.engine.files().git_config_dir(project.id);
        match fs::read_to_string(directory.join("config")) {
            Ok(text) if text != self.git_config(project) => {
                Ok(write(&directory, &self.git_config(project))?)
            }
            _ => Ok(()),
        }
    }

    fn git_config(self, project: &Project) -> String {
        let default = &self.engine.settings().projects.git_identity;
        render(project.settings.git_identity.as_ref().unwrap_or(default))
    }
}

fn render(identity: &GitIdentity) -> String {
    // Files of a workspace can belong to another user id than the process: the container is the boundary.
    format!(
        "[user]\n\tname = {}\n\temail = {}\n[safe]\n\tdirectory = *\n[include]\n\tpath = /etc/gitconfig\n",
        quote(identity.name()),
        quote(identity.email())
    )
}

/// A value in the syntax of git's configuration; identities have no control characters.
fn quote(value: &str) -> String {
    format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Replaces the file: readers see the old or the new one.
fn write(directory: &Path, text: &str) -> io::Result<()> {
    let new = directory.join(format!(".{}", uuid::Uuid::new_v4()));
    fs::write(&new, text)?;
    fs::set_permissions(&new, fs::Permissions::from_mode(0o644))?;
    fs::rename(&new, directory.join("config"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn git_reads_the_identity_as_it_was_given() {
        let identity: GitIdentity = "Ada \\ \"L\" #; x <a@b>".parse().unwrap();
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), &render(&identity)).unwrap();
        let read = std::process::Command::new("git")
            .env("GIT_CONFIG_SYSTEM", directory.path().join("config"))
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .current_dir(directory.path())
            .args(["config", "user.name"])
            .output();
        // Projects can be created without git, but then there is nothing to compare with.
        if let Ok(read) = read {
            let name = String::from_utf8_lossy(&read.stdout).into_owned();
            assert_eq!(name.trim_end(), identity.name());
        }
    }
}
