//! The stored credentials in memory, as they are on the disk.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use oubliette_model::{ProjectId, Secret};
use parking_lot::Mutex;

use super::Credential;
use super::files::{CredentialFiles, Refreshed, Stored};
use crate::{EngineError, Result};

/// Bounds the memory and the files.
const MAX_STORED_CREDENTIALS: usize = 200;
/// Of all projects.
const MAX_REFRESHED_LOGINS: usize = 1000;

#[derive(Debug)]
pub(crate) struct CredentialState {
    files: CredentialFiles,
    known: Mutex<Known>,
    /// Held while files are written and the memory follows.
    writing: tokio::sync::Mutex<()>,
    generation: AtomicU64,
}

#[derive(Debug)]
struct Known {
    stored: Stored,
    refreshed: Refreshed,
}

impl CredentialState {
    pub(crate) fn open(data_dir: &Path) -> Result<Self> {
        let files = CredentialFiles::new(data_dir);
        let (stored, refreshed) = files.load()?;
        Ok(Self {
            files,
            known: Mutex::new(Known { stored, refreshed }),
            writing: tokio::sync::Mutex::default(),
            generation: AtomicU64::new(0),
        })
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub(super) fn stored(&self, name: &str) -> Option<Credential> {
        self.known.lock().stored.get(name).cloned()
    }

    pub(super) fn all_stored(&self) -> Stored {
        self.known.lock().stored.clone()
    }

    /// What an agent of a project has made of the login in a credential.
    pub(super) fn refreshed(&self, project: ProjectId, name: &str) -> Option<Secret> {
        let key = (project, name.to_owned());
        self.known.lock().refreshed.get(&key).cloned()
    }

    /// Stores a credential; returns whether there was one of that name.
    pub(super) async fn put(&self, name: &str, credential: Credential) -> Result<bool> {
        let _writing = self.writing.lock().await;
        let (count, replaces) = {
            let known = self.known.lock();
            (known.stored.len(), known.stored.contains_key(name))
        };
        if !replaces && count >= MAX_STORED_CREDENTIALS {
            return Err(EngineError::invalid(format!(
                "there are {MAX_STORED_CREDENTIALS} stored credentials already; remove one that is not \
                 used first"
            )));
        }
        self.forget_refreshed(|(_, of)| of == name).await?;
        let written = (name.to_owned(), credential.clone());
        self.write(move |files| files.write(&written.0, &written.1))
            .await?;
        self.known.lock().stored.insert(name.to_owned(), credential);
        self.generation.fetch_add(1, Ordering::AcqRel);
        Ok(replaces)
    }

    /// Removes a stored credential; returns whether there was one.
    pub(super) async fn remove(&self, name: &str) -> Result<bool> {
        let _writing = self.writing.lock().await;
        self.forget_refreshed(|(_, of)| of == name).await?;
        let removed = name.to_owned();
        self.write(move |files| files.remove(&removed)).await?;
        let found = self.known.lock().stored.remove(name).is_some();
        self.generation.fetch_add(1, Ordering::AcqRel);
        Ok(found)
    }

    /// Keeps the login that an agent of a project has refreshed, for later agents of that project.
    pub(super) async fn keep_refreshed(
        &self,
        project: ProjectId,
        name: &str,
        text: Secret,
    ) -> Result<()> {
        let _writing = self.writing.lock().await;
        let key = (project, name.to_owned());
        {
            let known = self.known.lock();
            let is_full = known.refreshed.len() >= MAX_REFRESHED_LOGINS;
            if is_full && !known.refreshed.contains_key(&key) {
                return Err(EngineError::Failed(
                    "too many refreshed logins are kept".to_owned(),
                ));
            }
        }
        let written = (key.1.clone(), text.clone());
        self.write(move |files| files.write_refreshed(project, &written.0, &written.1))
            .await?;
        self.known.lock().refreshed.insert(key, text);
        self.generation.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Forgets the logins of a project that is deleted.
    pub(crate) async fn forget_project(&self, project: ProjectId) -> Result<()> {
        let _writing = self.writing.lock().await;
        self.forget_refreshed(|(of, _)| *of == project).await
    }

    async fn forget_refreshed(&self, is_gone: impl Fn(&(ProjectId, String)) -> bool) -> Result<()> {
        let gone: Vec<(ProjectId, String)> = {
            let known = self.known.lock();
            known
                .refreshed
                .keys()
                .filter(|key| is_gone(key))
                .cloned()
                .collect()
        };
        for (project, name) in gone {
            let removed = name.clone();
            self.write(move |files| files.remove_refreshed(project, &removed))
                .await?;
            self.known.lock().refreshed.remove(&(project, name));
        }
        Ok(())
    }

    async fn write(
        &self,
        work: impl FnOnce(&CredentialFiles) -> std::io::Result<()> + Send + 'static,
    ) -> Result<()> {
        let files = Arc::new(self.files.clone());
        let written = tokio::task::spawn_blocking(move || work(&files)).await;
        Ok(written.map_err(EngineError::fault)??)
    }
}
