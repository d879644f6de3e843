//! The first process of a sandbox, from its clone to the execution of the caller's program. It runs
//! only trusted code, gives up its privileges step by step, and waits for the launcher's permission
//! before the last one: if the launcher is gone by then, the process exits.

use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Gid, Uid};
use rustix::io::FdFlags;
use rustix::mount::{MountPropagationFlags, UnmountFlags};
use rustix::process::Signal;
use rustix::thread::UnshareFlags;

use super::channel::{Channel, ChildMessage};
use super::{
    Directories, Launch, Ready, StepContext, StepResult, devices, landlock, local_route,
    privileges, rootfs, seccomp,
};
use crate::mounts::{self, NODEV, NOEXEC, NOSUID, RDONLY};
use crate::report::{IdMapping, Landlock};
use crate::spec::NetworkNamespace;
use crate::{port_rules, sys};

/// Parts of `/proc` that show or change settings of the whole machine.
const PROC_READ_ONLY: &[&str] = &["bus", "fs", "irq", "sys", "sysrq-trigger"];
const PROC_HIDDEN: &[&str] = &["kcore", "keys", "timer_list", "sched_debug", "acpi", "scsi"];

/// Never returns: the process executes the caller's program or exits.
pub(super) fn run(launch: &Launch<'_>, scratch: Option<OwnedFd>, mut channel: Channel) -> ! {
    let Err(failure) = enter(launch, scratch, &mut channel);
    // If the launcher is gone, only the exit is left.
    let _ = channel.send(&ChildMessage::Failed(failure));
    std::process::exit(1);
}

fn enter(
    launch: &Launch<'_>,
    scratch: Option<OwnedFd>,
    channel: &mut Channel,
) -> StepResult<std::convert::Infallible> {
    die_with_launcher()?;
    redirect_output().step("redirect the output of PID 1")?;
    channel.wait_for_proceed().step("wait for the launcher")?;
    become_root(launch)?;
    die_with_launcher()?;
    // Its own session, so that no terminal of the host can signal it.
    let _ = rustix::process::setsid();
    sys::join_new_session_keyring()
        .or_else(missing_is_fine)
        .step("leave the keyring")?;

    let builds_root = scratch.is_none();
    if let Some(scratch) = &scratch {
        // The current directory stays valid in the new mount namespace.
        rustix::process::fchdir(scratch).step("enter the scratch filesystem")?;
    }
    sys::unshare(UnshareFlags::NEWNS | UnshareFlags::NEWCGROUP)
        .step("unshare mounts and cgroups")?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private).step("make mounts private")?;
    let mut directories = Directories::new();
    if builds_root {
        let scratch = rootfs::scratch(launch)?;
        directories = rootfs::build(launch, &scratch)?;
    }
    super::inject_fault("before pivot")?;
    let user_namespaces_refused = change_root(launch)?;
    rustix::system::sethostname(launch.spec.hostname.as_bytes()).step("set the host name")?;
    if launch.spec.network.is_own() {
        sys::bring_loopback_up().step("bring the loopback interface up")?;
    }
    if launch.spec.network == NetworkNamespace::Policy {
        // Without the route, names get addresses of the loopback network instead.
        let _ = local_route::add();
    }
    super::inject_fault("after pivot")?;

    let process_rlimit = privileges::limit_resources(launch).step("limit resources")?;
    privileges::drop_capabilities().step("drop capabilities")?;
    rustix::thread::set_no_new_privs(true).step("refuse new privileges")?;
    let program = Program::from_launch(launch).step("prepare PID 1")?;
    let landlock = if launch.spec.nested {
        Landlock::Off
    } else {
        landlock::apply()
    };
    seccomp::apply(launch.spec.nested)?;
    sys::close_on_exec_from(3).step("close files")?;
    if let Some(rules) = launch.port_rules {
        // PID 1 applies them to the processes that it starts.
        rustix::io::fcntl_setfd(rules, FdFlags::empty()).step("pass the rules for ports")?;
    }

    let ready = Ready {
        directories,
        landlock,
        can_refuse_ports: landlock != Landlock::Off && port_rules::are_supported(),
        process_rlimit,
        user_namespaces_refused,
    };
    channel.send(&ChildMessage::Ready(ready)).step("report")?;
    channel.wait_for_proceed().step("wait for the launcher")?;
    rustix::process::set_parent_process_death_signal(None).step("outlive the launcher")?;
    sys::reset_signals();
    Err(program.execute()).step("execute PID 1")
}

/// This process dies with the launcher until the launcher tells it to proceed.
fn die_with_launcher() -> StepResult<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .step("tie PID 1 to the launcher")
}

/// Standard output carries the launcher's reply, and must close when the launcher exits.
fn redirect_output() -> io::Result<()> {
    let null = OpenOptions::new().read(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(io::stderr().as_fd())?;
    Ok(())
}

fn become_root(launch: &Launch<'_>) -> StepResult<()> {
    let step = "become the sandbox's root";
    if !matches!(launch.ids, IdMapping::Single { .. }) {
        rustix::thread::set_thread_groups(&[]).step(step)?;
    }
    rustix::thread::set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT).step(step)?;
    rustix::thread::set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).step(step)
}

/// Changes to the new root and mounts its `/proc`. Returns whether user namespaces are refused inside.
fn change_root(launch: &Launch<'_>) -> StepResult<bool> {
    // A copy on top of itself: mounts that were inherited with the namespace cannot be moved.
    let step = "enter the new root";
    let below = mounts::open_host(Path::new(rootfs::NEW_ROOT)).step(step)?;
    let root = mounts::copy(below.as_fd(), true).step(step)?;
    mounts::attach(&root, below.as_fd()).step(step)?;
    rustix::process::fchdir(&root).step(step)?;

    devices::terminals(root.as_fd())?;
    let proc = mounts::filesystem("proc", &[], NOSUID | NODEV | NOEXEC).step("mount /proc")?;
    let target = mounts::open_beneath(root.as_fd(), Path::new("proc")).step("mount /proc")?;
    mounts::attach(&proc, target.as_fd()).step("mount /proc")?;

    let step = "change the root";
    rustix::process::pivot_root(".", ".").step(step)?;
    rustix::mount::unmount(".", UnmountFlags::DETACH).step(step)?;
    rustix::process::chdir("/").step(step)?;

    let refused = !launch.spec.nested && refuse_user_namespaces();
    protect_proc(launch).step("protect /proc")?;
    let root = mounts::open_host(Path::new("/")).step(step)?;
    mounts::restrict(&root, RDONLY, false).step("make the root read-only")?;
    Ok(refused)
}

/// Sets the limit of the sandbox's own user namespace, not the host's.
fn refuse_user_namespaces() -> bool {
    fs::write("/proc/sys/user/max_user_namespaces", "0").is_ok()
}

/// A nested sandbox may mount its own `/proc` only if nothing is mounted over this one, which is then
/// protected by file modes and shifted ids.
fn protect_proc(launch: &Launch<'_>) -> io::Result<()> {
    if launch.spec.nested && launch.ids != IdMapping::Identity {
        return Ok(());
    }
    for name in PROC_READ_ONLY {
        cover(name, |target| {
            let mount = mounts::copy(target, false)?;
            mounts::restrict(&mount, RDONLY | NOSUID | NODEV | NOEXEC, false)?;
            Ok(mount)
        })?;
    }
    for name in PROC_HIDDEN {
        cover(name, |target| {
            if mounts::TargetKind::from_fd(target)? == mounts::TargetKind::Directory {
                return mounts::tmpfs("0555", "4k", (0, 0), RDONLY | NOSUID | NODEV | NOEXEC);
            }
            let null = mounts::open_host(Path::new("/dev/null"))?;
            mounts::copy(null.as_fd(), false)
        })?;
    }
    Ok(())
}

/// Mounts something over an entry of `/proc`, if the kernel has it.
fn cover(name: &str, make: impl Fn(BorrowedFd<'_>) -> io::Result<OwnedFd>) -> io::Result<()> {
    let target = match mounts::open_beneath(open_proc()?.as_fd(), Path::new(name)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    mounts::attach(&make(target.as_fd())?, target.as_fd())
}

fn open_proc() -> io::Result<OwnedFd> {
    mounts::open_host(Path::new("/proc"))
}

fn missing_is_fine(error: io::Error) -> io::Result<()> {
    match error.raw_os_error() {
        Some(libc::ENOSYS | libc::EPERM) => Ok(()),
        _ => Err(error),
    }
}

/// The program of PID 1, fully allocated before the execution.
struct Program {
    path: CString,
    args: Vec<CString>,
    env: Vec<CString>,
}

impl Program {
    fn from_launch(launch: &Launch<'_>) -> io::Result<Self> {
        let init = &launch.spec.init;
        let path = CString::new(init.inside.to_string_lossy().as_bytes())?;
        let mut args = vec![path.clone()];
        for arg in &init.args {
            args.push(CString::new(arg.as_bytes())?);
        }
        let mut env = Vec::new();
        for (key, value) in &init.env {
            env.push(CString::new(format!("{key}={value}"))?);
        }
        if let Some(rules) = launch.port_rules {
            let name = port_rules::VARIABLE;
            env.push(CString::new(format!("{name}={}", rules.as_raw_fd()))?);
        }
        // Checked here: after a failed `execve` the reason could not be reported as clearly.
        rustix::fs::accessat(
            CWD,
            &*path,
            rustix::fs::Access::EXEC_OK,
            rustix::fs::AtFlags::EACCESS,
        )?;
        Ok(Self { path, args, env })
    }

    /// Returns only if it fails.
    fn execute(&self) -> io::Error {
        let pointers = |strings: &[CString]| {
            let mut all: Vec<_> = strings.iter().map(|string| string.as_ptr()).collect();
            all.push(std::ptr::null());
            all
        };
        let (args, env) = (pointers(&self.args), pointers(&self.env));
        // SAFETY: both arrays end with a null pointer, and the strings outlive the call.
        unsafe { libc::execve(self.path.as_ptr(), args.as_ptr(), env.as_ptr()) };
        io::Error::last_os_error()
    }
}
