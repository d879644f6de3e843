//! The same functions on other systems than Linux: they return an error.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use crate::{EnforcementReport, Error, Probe, ProbeItem, ProtectedPath, Result, Spec};

/// Never constructed.
#[derive(Debug)]
pub enum RunningSandbox {}

impl RunningSandbox {
    pub fn pid(&self) -> i32 {
        match *self {}
    }

    pub fn is_alive(&self) -> bool {
        match *self {}
    }

    pub fn memory_events(&self) -> Option<std::path::PathBuf> {
        match *self {}
    }

    pub fn enforced(&self) -> &EnforcementReport {
        match *self {}
    }

    pub fn stop(&self, _grace: Duration) -> Result<()> {
        match *self {}
    }
}

pub fn launch(_spec: &Spec, _launcher: &Path) -> Result<RunningSandbox> {
    Err(Error::Unsupported)
}

pub fn remove_probe(_scratch: &Path) -> Result<()> {
    Err(Error::Unsupported)
}

pub fn launcher_main() -> Option<ExitCode> {
    None
}

pub fn find_running(_state_dir: &Path) -> Option<RunningSandbox> {
    None
}

pub fn remove(_state_dir: &Path, _layers_dir: &Path) -> Result<()> {
    Err(Error::Unsupported)
}

pub fn protect(_state_dir: &Path, _launcher: &Path, _paths: &[ProtectedPath]) -> Result<()> {
    Err(Error::Unsupported)
}

pub fn clean_up(_state_dir: &Path) -> Result<()> {
    Err(Error::Unsupported)
}

pub fn probe(_launcher: &Path, _scratch: &Path) -> Probe {
    Probe {
        method: None,
        items: vec![ProbeItem {
            name: "linux".to_owned(),
            works: false,
            detail: "the embedded sandbox needs Linux".to_owned(),
            remedy: Some("Use a container engine.".to_owned()),
        }],
    }
}
