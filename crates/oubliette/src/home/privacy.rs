//! Whether a data directory belongs to one user who alone can write to it. Any other user who can could
//! replace what is in it, also the socket to which commands send the key.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::process::geteuid;

use super::Home;
use crate::failure::Failure;

impl Home {
    /// The owner of the directory, of its directory `run` and of the admin token: one user, and no other
    /// one can write to the two directories. What does not exist yet is left out.
    pub(crate) fn owner(&self) -> Result<Option<u32>, Failure> {
        let Some(top) = self.find_metadata(self.path())? else {
            return Ok(None);
        };
        self.require_private(self.path(), &top)?;
        let run = self.run_dir();
        if let Some(meta) = self.find_metadata(&run)? {
            self.require_private(&run, &meta)?;
            self.require_owner(&run, &meta, top.uid())?;
        }
        let token = self.admin_token_file();
        if let Some(meta) = self.find_metadata(&token)? {
            self.require_owner(&token, &meta, top.uid())?;
        }
        Ok(Some(top.uid()))
    }

    /// Fails unless the directory, if it exists, belongs to the user of this process alone.
    pub(crate) fn require_own(&self) -> Result<(), Failure> {
        let user = geteuid().as_raw();
        match self.owner()? {
            Some(owner) if owner != user => Err(Failure::new(format!(
                "{} belongs to user {owner}, but the server would run as user {user}; run it as user \
                 {owner}, choose another directory with --data-dir, or take this one with `chown -R {user}` \
                 before",
                self.path().display()
            ))),
            _ => Ok(()),
        }
    }

    /// The link itself if `path` is one, except for the data directory, which may be a link of the user's.
    fn find_metadata(&self, path: &Path) -> Result<Option<Metadata>, Failure> {
        let found = if path == self.path() {
            fs::metadata(path)
        } else {
            fs::symlink_metadata(path)
        };
        match found {
            Ok(meta) => Ok(Some(meta)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Failure::with_cause(
                format!("cannot use {}", path.display()),
                &error,
            )),
        }
    }

    fn require_private(&self, path: &Path, meta: &Metadata) -> Result<(), Failure> {
        if meta.is_dir() && meta.mode() & 0o022 == 0 {
            return Ok(());
        }
        let path = path.display();
        Err(Failure::new(if meta.is_dir() {
            format!(
                "other users can write to {path}, and so put another server in the place of this one or \
                 read its keys; run `chmod 700 {path}`"
            )
        } else {
            format!("{path} is not a directory; remove it")
        }))
    }

    fn require_owner(&self, path: &Path, meta: &Metadata, owner: u32) -> Result<(), Failure> {
        if meta.uid() == owner {
            return Ok(());
        }
        Err(Failure::new(format!(
            "{} belongs to user {owner}, but {} to user {}, so its server gets no key; if all of it is \
             yours, give it one owner with `chown`",
            self.path().display(),
            path.display(),
            meta.uid()
        )))
    }
}
