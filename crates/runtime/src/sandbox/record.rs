//! What is stored about a container between `create` and `remove`.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use oubliette_sandbox as sandbox;
use serde::{Deserialize, Serialize};

const RECORD_FILE: &str = "container.json";

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) project: String,
    pub(super) spec: sandbox::Spec,
    /// Not in the specification, so that an earlier version can read it.
    #[serde(default)]
    pub(super) protected: Vec<sandbox::ProtectedPath>,
    /// The ports that it could not bind when it was last started. Not in the specification, because the server may
    /// have others when it starts the container again.
    #[serde(default)]
    pub(super) refused_ports: Vec<u16>,
}

impl Record {
    /// None also for a record that cannot be parsed: such a container is created again.
    pub(super) fn read(state_dir: &Path) -> io::Result<Option<Self>> {
        match std::fs::read(state_dir.join(RECORD_FILE)) {
            Ok(json) => Ok(serde_json::from_slice(&json).ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Replaces the record atomically. Only its owner may read it: the environment of PID 1 holds
    /// the container's key.
    pub(super) fn write(&self, state_dir: &Path) -> io::Result<()> {
        let draft = state_dir.join(".draft");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&draft)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        file.sync_all()?;
        std::fs::rename(draft, state_dir.join(RECORD_FILE))
    }
}

pub(super) fn create_private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}
