//! Protects paths of a running sandbox.

use std::fs::File;
use std::io::{Seek, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::launch::{PROTECT_ARGUMENT, read_reply};
use crate::launcher::ProtectRequest;
use crate::record::Record;
use crate::{Error, ProtectedPath, Result};

/// Protects paths as [`crate::Spec::protected`] does, in a sandbox that is running. `launcher` is the
/// binary that launched it.
pub fn protect(state_dir: &Path, launcher: &Path, paths: &[ProtectedPath]) -> Result<()> {
    let record = Record::read(state_dir);
    let parts = record.and_then(|record| Some((record.process?, record.enforced?)));
    let Some((process, enforced)) = parts.filter(|(process, _)| process.is_alive()) else {
        return Err(Error::NotRunning);
    };
    if enforced.method != "native" {
        return Err(Error::CannotProtect);
    }
    let request = ProtectRequest {
        process,
        ids: enforced.ids,
        paths: paths.to_vec(),
    };
    let failed = |source| Error::io("failed to start the sandbox launcher", source);
    let mut input = File::from(
        rustix::fs::memfd_create("request", rustix::fs::MemfdFlags::CLOEXEC)
            .map_err(|error| failed(error.into()))?,
    );
    let json = serde_json::to_vec(&request).map_err(|error| failed(error.into()))?;
    input
        .write_all(&json)
        .and_then(|()| input.rewind())
        .map_err(failed)?;
    let mut child = Command::new(launcher)
        .arg(PROTECT_ARGUMENT)
        .env_clear()
        .current_dir("/")
        .stdin(input)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(failed)?;
    let result = read_reply(&mut child);
    if result.is_err() {
        let _ = child.kill();
    }
    child.wait().map_err(failed)?;
    result.map_err(|error| match error {
        Error::Step { step, source } => Error::io(format!("failed to {step}"), source),
        other => other,
    })
}
