//! Changes the mounts of a running sandbox: a process that enters its mount namespace, protects paths
//! and exits. Processes inside do not see it.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::Path;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::{Deserialize, Serialize};

use super::{MAX_SPEC_BYTES, StepContext, StepResult, protect};
use crate::launch::StepFailure;
use crate::mounts;
use crate::record::Process;
use crate::report::IdMapping;
use crate::spec::ProtectedPath;

/// What the process reads from its standard input.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ProtectRequest {
    /// PID 1 of the sandbox.
    pub(crate) process: Process,
    pub(crate) ids: IdMapping,
    pub(crate) paths: Vec<ProtectedPath>,
}

pub(super) fn run() -> StepResult<()> {
    let mut json = Vec::new();
    let step = "read the request";
    io::stdin()
        .take(MAX_SPEC_BYTES)
        .read_to_end(&mut json)
        .step(step)?;
    let request: ProtectRequest = serde_json::from_slice(&json)
        .map_err(io::Error::from)
        .step(step)?;
    let owner = enter(&request)?;
    let root = mounts::open_host(Path::new("/")).step("enter the sandbox")?;
    protect::protect(root.as_fd(), &request.paths, owner)
}

/// Enters the sandbox's mounts, and returns the ids that its root has for this process.
fn enter(request: &ProtectRequest) -> StepResult<(u32, u32)> {
    let step = "enter the sandbox";
    let open = |name: &str| File::open(format!("/proc/{}/ns/{name}", request.process.pid));
    let (users, mounts) = (open("user").step(step)?, open("mnt").step(step)?);
    // Checked after the namespaces are open: the pid can belong to another process by now.
    if !request.process.is_alive() {
        return Err(StepFailure {
            step: step.to_owned(),
            errno: libc::ESRCH,
        });
    }
    let owner = match request.ids {
        // Only the owner of the user namespace has rights in it.
        IdMapping::Single { .. } => {
            let kind = Some(LinkNameSpaceType::User);
            move_into_link_name_space(users.as_fd(), kind).step(step)?;
            (0, 0)
        }
        ids => ids.owner(),
    };
    move_into_link_name_space(mounts.as_fd(), Some(LinkNameSpaceType::Mount)).step(step)?;
    Ok(owner)
}
