//! The launcher: a single-threaded process with an empty environment that builds one sandbox and
//! exits. As root it mounts the root filesystem itself, outside the sandbox's user namespace; without
//! root everything happens in that namespace.
//!
//! A launcher that dies leaves nothing behind: mounts live in namespaces that end with their last
//! process, the child dies with the launcher until it is told to proceed, and control groups are
//! recorded before they exist. The launcher dies with its caller, so that the next caller has the
//! state directory to itself.

mod bwrap;
mod channel;
mod child;
mod devices;
mod enter;
pub(crate) mod ids;
mod kept_owner;
mod landlock;
mod local_route;
mod mask;
mod mount_point;
mod name_resolution;
mod overlay;
mod privileges;
mod protect;
mod rootfs;
mod seccomp;
mod settings_copy;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::MountPropagationFlags;
use rustix::process::{Pid, Signal, WaitOptions};
use rustix::thread::UnshareFlags;

use crate::cgroup;
use crate::handover::{self, Handover};
use crate::launch::{LAUNCH_ARGUMENT, LauncherReply, PROTECT_ARGUMENT, StepFailure};
use crate::record::{Process, Record};
use crate::report::{DirectoryAccess, EnforcementReport, IdMapping, Landlock, LimitMechanism};
use crate::spec::{Method, NetworkNamespace, Spec};
use crate::sys::{self, Cloned};
use channel::ChildMessage;
pub(crate) use enter::ProtectRequest;
pub(crate) use privileges::kernel_is_at_least;

/// The first argument of a PID 1 that only waits, for probes.
pub(crate) const IDLE_ARGUMENT: &str = "sandbox-idle";
const MAX_SPEC_BYTES: u64 = 4 << 20;
const PROBE_INIT_TIMEOUT: Duration = Duration::from_secs(60);

/// The result of a step; a failure is reported to the caller.
pub(crate) type StepResult<T> = Result<T, StepFailure>;

/// Names the step that a system call was part of.
pub(crate) trait StepContext<T> {
    fn step(self, step: impl Into<String>) -> StepResult<T>;
}

impl<T, E: Into<io::Error>> StepContext<T> for Result<T, E> {
    fn step(self, step: impl Into<String>) -> StepResult<T> {
        self.map_err(|error| StepFailure {
            step: step.into(),
            errno: error.into().raw_os_error().unwrap_or(libc::EIO),
        })
    }
}

/// Must be the first call of `main` in a binary that is used as a launcher. Returns `None` at once
/// unless the first argument makes this process a launcher.
pub fn launcher_main() -> Option<ExitCode> {
    match std::env::args_os().nth(1)?.to_str()? {
        LAUNCH_ARGUMENT => Some(run(launch_from_spec)),
        PROTECT_ARGUMENT => Some(run(enter::run)),
        IDLE_ARGUMENT => Some(idle()),
        _ => None,
    }
}

/// A PID 1 that exits on `SIGTERM`, or after a timeout in case the probe was killed.
fn idle() -> ExitCode {
    sys::wait_for_termination(PROBE_INIT_TIMEOUT);
    ExitCode::SUCCESS
}

/// Does the work of a launcher and reports the result.
fn run(work: fn() -> StepResult<()>) -> ExitCode {
    // SAFETY: the program has done nothing else yet, so nothing owns other descriptors than the
    // standard three.
    let closed = unsafe { sys::close_from(3) };
    sys::reset_signals();
    sys::ignore_broken_pipes();
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    // Fails only for the leader of a process group, which is just as separate.
    let _ = rustix::process::setsid();
    let result = closed
        .step("close inherited files")
        .and_then(|()| die_with_caller())
        .and_then(|()| work());
    let (reply, code) = match result {
        Ok(()) => (LauncherReply::Up, ExitCode::SUCCESS),
        Err(failure) => (LauncherReply::Failed(failure), ExitCode::FAILURE),
    };
    // The caller may be gone; the record contains the result as well.
    if let Ok(json) = serde_json::to_vec(&reply) {
        let _ = io::stdout().write_all(&json);
    }
    code
}

fn launch_from_spec() -> StepResult<()> {
    let Handover {
        spec: file,
        port_rules,
    } = handover::receive().step("receive the specification")?;
    let spec = read_spec(file)?;
    match &spec.method {
        Method::Native => native(&spec, port_rules.as_ref().map(AsFd::as_fd)),
        Method::Bwrap { program } => bwrap::launch(&spec, program),
    }
}

/// From here on the launcher dies with the thread that waits for its reply.
fn die_with_caller() -> StepResult<()> {
    let step = "tie the launcher to its caller";
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).step(step)?;
    // The caller may have died before; then the reader of the reply is gone.
    let stdout = io::stdout();
    let mut fds = [PollFd::new(&stdout, PollFlags::empty())];
    poll(&mut fds, Some(&Timespec::default())).step(step)?;
    if fds[0].revents().contains(PollFlags::ERR) {
        return Err(StepFailure {
            step: step.to_owned(),
            errno: libc::EPIPE,
        });
    }
    Ok(())
}

fn read_spec(file: File) -> StepResult<Spec> {
    let mut json = Vec::new();
    file.take(MAX_SPEC_BYTES)
        .read_to_end(&mut json)
        .step("read the specification")?;
    let spec: Spec = serde_json::from_slice(&json)
        .map_err(io::Error::from)
        .step("read the specification")?;
    spec.validate()
        .map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
        .step("check the specification")?;
    Ok(spec)
}

/// The data of a launch.
pub(crate) struct Launch<'a> {
    pub(crate) spec: &'a Spec,
    pub(crate) ids: IdMapping,
    /// The sandbox's user namespace, if its ids are shifted.
    pub(crate) userns: Option<OwnedFd>,
    pub(crate) port_rules: Option<BorrowedFd<'a>>,
}

impl Launch<'_> {
    /// The ids of the sandbox's root in the process that builds the root filesystem.
    pub(crate) fn owner(&self) -> (u32, u32) {
        match self.ids {
            // Built in the user namespace.
            IdMapping::Single { .. } => (0, 0),
            ids => ids.owner(),
        }
    }
}

/// How each shared directory of the host is visible inside.
pub(crate) type Directories = Vec<(std::path::PathBuf, DirectoryAccess)>;

fn native(spec: &Spec, port_rules: Option<BorrowedFd<'_>>) -> StepResult<()> {
    let mut plan = cgroup::CgroupPlan::new(&group_name(spec), &spec.limits);
    let mut record = Record {
        cgroups: plan.paths(),
        ..Record::default()
    };
    record.write(&spec.state_dir).step("write the record")?;
    plan.create(&spec.limits);
    plan.join();
    inject_fault("after cgroups")?;

    let candidates = ids::candidates(spec.users_of.as_ref().unwrap_or(&spec.id));
    let mut last = None;
    for ids in candidates {
        let launch = Launch {
            spec,
            ids,
            userns: None,
            port_rules,
        };
        match attempt(launch, &mut plan, &mut record) {
            // The kernel is too old, or the filesystem does not support shifted ids.
            Err(failure) if failure.step == overlay::IDMAP_STEP => last = Some(failure),
            other => return other,
        }
    }
    Err(last.unwrap_or(StepFailure {
        step: "choose user ids".to_owned(),
        errno: libc::EPERM,
    }))
}

/// The name of the control groups. It contains a hash of the state directory, because two servers may
/// have sandboxes of the same id.
fn group_name(spec: &Spec) -> String {
    let state_dir_hash = ids::fnv1a(&spec.state_dir.to_string_lossy()) as u32;
    format!("oubliette-{}-{state_dir_hash:08x}", spec.id)
}

fn attempt(
    mut launch: Launch<'_>,
    plan: &mut cgroup::CgroupPlan,
    record: &mut Record,
) -> StepResult<()> {
    let Launch { spec, ids, .. } = launch;
    let rootful = !matches!(ids, IdMapping::Single { .. });
    if rootful {
        sys::unshare(UnshareFlags::NEWNS).step("unshare the mount namespace")?;
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        rustix::mount::mount_change("/", private).step("make mounts private")?;
    }
    let scratch = rootful.then(|| rootfs::scratch(&launch)).transpose()?;
    let (mut parent_end, child_end) = channel::pair().step("make a channel")?;

    let (child, pidfd) = match clone(spec, plan)? {
        Cloned::Child => {
            drop(parent_end);
            child::run(&launch, scratch, child_end);
        }
        Cloned::Parent { child, pidfd } => (child, pidfd),
    };
    drop(child_end);
    let child = Child { pid: child };

    record.process = Some(Process::from_pid(child.pid.as_raw_nonzero().get()).step("read /proc")?);
    record.write(&spec.state_dir).step("write the record")?;
    inject_fault("after clone")?;
    ids::write_maps(child.pid, ids)?;
    reset_oom_score(child.pid);
    let mut directories = Directories::new();
    if matches!(ids, IdMapping::Shifted { .. }) {
        launch.userns = Some(ids::user_namespace(child.pid).step("open the user namespace")?);
    }
    if let Some(scratch) = &scratch {
        rootfs::chown_binds(&launch)?;
        directories = rootfs::build(&launch, scratch)?;
    }
    inject_fault("after build")?;
    parent_end.send_proceed().step("tell PID 1 to proceed")?;

    let ready = match parent_end.receive().step("receive from PID 1")? {
        Some(ChildMessage::Ready(ready)) => ready,
        Some(ChildMessage::Failed(failure)) => return Err(failure),
        None => return Err(died("set up the sandbox")),
    };
    if !rootful {
        directories = ready.directories;
    }
    let mut limits = plan.applied.clone();
    if ready.process_rlimit
        && !matches!(
            limits.processes,
            LimitMechanism::CgroupV1 | LimitMechanism::CgroupV2
        )
    {
        limits.processes = LimitMechanism::Rlimit;
    }
    record.enforced = Some(EnforcementReport {
        method: "native".to_owned(),
        ids,
        directories,
        limits,
        seccomp: true,
        landlock: ready.landlock,
        can_refuse_ports: ready.can_refuse_ports,
        network: network_name(spec.network).to_owned(),
        user_namespaces_refused: ready.user_namespaces_refused,
    });
    record.write(&spec.state_dir).step("write the record")?;
    inject_fault("before exec")?;
    parent_end.send_proceed().step("tell PID 1 to proceed")?;

    // The channel closes when PID 1 executes the program, or when it dies.
    match parent_end.receive().step("receive from PID 1")? {
        Some(ChildMessage::Failed(failure)) => return Err(failure),
        Some(ChildMessage::Ready(_)) => return Err(died("execute PID 1")),
        None => {}
    }
    if crate::running::has_exited(&pidfd, Duration::ZERO) {
        return Err(died("execute PID 1"));
    }
    std::mem::forget(child);
    Ok(())
}

/// A child that is killed and reaped on drop, so that a failed launch leaves none.
struct Child {
    pid: Pid,
}

impl Drop for Child {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = rustix::process::kill_process(self.pid, Signal::KILL);
        let _ = rustix::process::waitpid(Some(self.pid), WaitOptions::empty());
    }
}

fn clone(spec: &Spec, plan: &mut cgroup::CgroupPlan) -> StepResult<Cloned> {
    let mut flags =
        libc::CLONE_NEWUSER | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    if spec.network.is_own() {
        flags |= libc::CLONE_NEWNET;
    }
    if let Some(group) = plan.unified() {
        use std::os::fd::AsFd;
        match sys::clone3(flags, Some(group.as_fd())) {
            Ok(cloned) => return Ok(cloned),
            Err(error) => plan.unified_refused(&error),
        }
    }
    sys::clone3(flags, None).step("make namespaces")
}

pub(crate) fn network_name(network: NetworkNamespace) -> &'static str {
    match network {
        NetworkNamespace::Private => "none",
        NetworkNamespace::Policy => "policy",
        NetworkNamespace::Host => "host",
    }
}

fn died(step: &str) -> StepFailure {
    StepFailure {
        step: format!("{step} (PID 1 died)"),
        errno: libc::ECHILD,
    }
}

/// Takes back a score that the server may have, for example from its service manager: what runs in a
/// sandbox must not outlast services of the host when memory runs out.
fn reset_oom_score(child: Pid) {
    let path = format!("/proc/{}/oom_score_adj", child.as_raw_nonzero());
    let score = fs::read_to_string(&path).unwrap_or_default();
    if score.trim().parse::<i32>().is_ok_and(|score| score < 0) {
        // Raising the score needs no privilege.
        let _ = fs::write(path, "0");
    }
}

/// Lets tests make a launch fail, die or hang at a step, by the name of the launcher's executable,
/// for example `fail=after clone`. Not in release builds.
#[cfg(debug_assertions)]
pub(crate) fn inject_fault(step: &str) -> StepResult<()> {
    let name = std::env::args().next().unwrap_or_default();
    let fault = name.rsplit('/').next().unwrap_or_default();
    match fault.split_once('=') {
        Some(("fail", at)) if at == step => Err(StepFailure {
            step: format!("injected {step}"),
            errno: libc::EIO,
        }),
        Some(("die", at)) if at == step => std::process::abort(),
        Some(("hang", at)) if at == step => {
            // Tests wait for this line in the sandbox's log.
            let _ = writeln!(io::stderr(), "hanging {step}");
            loop {
                std::thread::park();
            }
        }
        _ => Ok(()),
    }
}

#[cfg(not(debug_assertions))]
pub(crate) fn inject_fault(_step: &str) -> StepResult<()> {
    Ok(())
}

/// What the child reports when it is ready to execute the program.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Ready {
    pub(crate) directories: Directories,
    pub(crate) landlock: Landlock,
    pub(crate) can_refuse_ports: bool,
    pub(crate) process_rlimit: bool,
    pub(crate) user_namespaces_refused: bool,
}
