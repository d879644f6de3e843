//! Stored credentials on the disk: a directory that only its owner can read, and a file for each.
//!
//! `NAME.json` is a credential, `refreshed/PROJECT/NAME.json` what an agent of one project has made of its
//! login. Neither is in the database or in a backup.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use oubliette_model::{BaseUrl, CredentialName, ProjectId, Secret};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Credential;

const REFRESHED_DIR: &str = "refreshed";
/// The start of the names of files that are being written.
const STAGED_PREFIX: &str = ".new-";

/// A file. Not `Debug`: it has the value.
#[derive(Serialize, Deserialize)]
struct StoredFile {
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    username: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    env: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base_url: Option<BaseUrl>,
}

#[derive(Debug, Clone)]
pub(super) struct CredentialFiles {
    directory: PathBuf,
}

pub(super) type Stored = BTreeMap<String, Credential>;
pub(super) type Refreshed = BTreeMap<(ProjectId, String), Secret>;

impl CredentialFiles {
    pub(super) fn new(data_dir: &Path) -> Self {
        Self {
            directory: data_dir.join("credentials"),
        }
    }

    /// Everything that is stored. A damaged file is reported and left alone.
    pub(super) fn load(&self) -> io::Result<(Stored, Refreshed)> {
        let mut stored = Stored::new();
        for path in json_files(&self.directory)? {
            let Some(name) = credential_name(&path) else {
                continue;
            };
            match fs::read(&path).map(|bytes| serde_json::from_slice::<StoredFile>(&bytes)) {
                Ok(Ok(file)) => drop(stored.insert(name, file.into())),
                // Not the error, which may quote a part of the file.
                _ => tracing::warn!(path = %path.display(), "a stored credential cannot be read"),
            }
        }
        let mut refreshed = Refreshed::new();
        let projects = match fs::read_dir(self.directory.join(REFRESHED_DIR)) {
            Ok(projects) => projects,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok((stored, refreshed)),
            Err(error) => return Err(error),
        };
        for entry in projects {
            let entry = entry?;
            let project = entry.file_name();
            let Some(Ok(project)) = project.to_str().map(str::parse::<ProjectId>) else {
                continue;
            };
            for path in json_files(&entry.path())? {
                if let (Some(name), Ok(text)) = (credential_name(&path), fs::read_to_string(&path))
                {
                    refreshed.insert((project, name), Secret::new(text));
                }
            }
        }
        Ok((stored, refreshed))
    }

    pub(super) fn write(&self, name: &str, credential: &Credential) -> io::Result<()> {
        let file = StoredFile {
            kind: credential.kind.clone(),
            username: credential.username.clone(),
            env: credential.env.clone(),
            file: credential.file.clone(),
            value: credential
                .value
                .as_ref()
                .map(|value| value.reveal().to_owned()),
            base_url: credential.base_url.clone(),
        };
        write_private(&self.directory, name, &serde_json::to_vec(&file)?)
    }

    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        remove_file(&self.directory.join(format!("{name}.json")))?;
        sync_dir(&self.directory)
    }

    pub(super) fn write_refreshed(
        &self,
        project: ProjectId,
        name: &str,
        text: &Secret,
    ) -> io::Result<()> {
        write_private(&self.refreshed_dir(project), name, text.reveal().as_bytes())
    }

    pub(super) fn remove_refreshed(&self, project: ProjectId, name: &str) -> io::Result<()> {
        let directory = self.refreshed_dir(project);
        remove_file(&directory.join(format!("{name}.json")))?;
        // It stays if it has other files.
        let _ = fs::remove_dir(directory);
        Ok(())
    }

    fn refreshed_dir(&self, project: ProjectId) -> PathBuf {
        self.directory.join(REFRESHED_DIR).join(project.to_string())
    }
}

impl From<StoredFile> for Credential {
    fn from(file: StoredFile) -> Self {
        Self {
            kind: file.kind,
            username: file.username,
            env: file.env,
            file: file.file,
            value: file.value.map(Secret::new),
            base_url: file.base_url,
        }
    }
}

/// The files with a name that ends in `.json`; removes what a server that died was writing.
fn json_files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if name.is_some_and(|name| name.starts_with(STAGED_PREFIX)) {
            remove_file(&path)?;
        } else if path.extension().is_some_and(|end| end == "json") {
            files.push(path);
        }
    }
    Ok(files)
}

fn credential_name(path: &Path) -> Option<String> {
    let name = path.file_stem()?.to_str()?;
    name.parse::<CredentialName>().ok()?;
    Some(name.to_owned())
}

/// Writes a file that has its name only when it is complete.
fn write_private(directory: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)?;
    let staged = directory.join(format!("{STAGED_PREFIX}{}", Uuid::new_v4()));
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&staged)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&staged, directory.join(format!("{name}.json"))));
    if written.is_err() {
        let _ = fs::remove_file(&staged);
    }
    written.and_then(|()| sync_dir(directory))
}

fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn sync_dir(directory: &Path) -> io::Result<()> {
    match File::open(directory) {
        Ok(directory) => directory.sync_all(),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn files_are_private_and_complete_or_absent() {
        let home = tempfile::tempdir().unwrap();
        let files = CredentialFiles::new(home.path());
        assert!(files.load().unwrap().0.is_empty());
        let credential = Credential {
            kind: "anthropic".to_owned(),
            username: None,
            env: None,
            file: None,
            value: Some(Secret::new("sk-first-value")),
            base_url: None,
        };
        files.write("work", &credential).unwrap();
        let project = ProjectId::new(Uuid::new_v4());
        let newer = Secret::new("newer");
        files.write_refreshed(project, "work", &newer).unwrap();
        let directory = home.path().join("credentials");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&directory), 0o700);
        assert_eq!(mode(&directory.join("work.json")), 0o600);
        let refreshed = directory.join(REFRESHED_DIR).join(project.to_string());
        assert_eq!(mode(&refreshed), 0o700);
        assert_eq!(mode(&refreshed.join("work.json")), 0o600);

        fs::write(directory.join(".new-x"), "half").unwrap();
        fs::write(directory.join("damaged.json"), "{\"kind\":").unwrap();
        fs::write(directory.join("UPPER.json"), "{\"kind\":\"x\"}").unwrap();
        let (stored, copies) = files.load().unwrap();
        assert_eq!(stored.keys().collect::<Vec<_>>(), ["work"]);
        assert_eq!(stored["work"].read().unwrap().reveal(), "sk-first-value");
        assert_eq!(copies[&(project, "work".to_owned())], newer);
        assert!(!directory.join(".new-x").exists());

        files.remove("work").unwrap();
        files.remove("work").unwrap();
        files.remove_refreshed(project, "work").unwrap();
        let (stored, copies) = files.load().unwrap();
        assert!(stored.is_empty() && copies.is_empty());
    }
}
