//! Sandboxes made by bubblewrap, with the same PID 1. The host's directories are read-only, and there
//! is no Landlock, which would forbid bubblewrap's mounts.
//!
//! PID 1 first executes a shell that waits for a line from the launcher: if the launcher dies before
//! the sandbox is recorded, the shell reads end of file and the sandbox ends.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::Access;
use rustix::process::{Pid, Resource, Rlimit};

use super::rootfs::{self, STORES, TOP_LEVEL};
use super::{
    Directories, StepContext, StepResult, died, kept_owner, mask, name_resolution, overlay,
    privileges, seccomp,
};
use crate::capabilities::CONTAINER_CAPABILITIES;
use crate::cgroup;
use crate::launch::StepFailure;
use crate::mounts::{self, RUN_SHARE, SHM_SHARE, TMP_SHARE, TargetKind, memory_share};
use crate::record::{Process, Record};
use crate::report::{DirectoryAccess, EnforcementReport, IdMapping, Landlock, LimitMechanism};
use crate::spec::{Bind, ProtectedPath, Spec};

/// Executes its arguments after it has read a line.
const WAIT_THEN_EXEC: &str = "read -r go && exec \"$@\" </dev/null";

/// How long bubblewrap may take until it executes PID 1; shorter than the caller's timeout.
const BWRAP_TIMEOUT: Duration = Duration::from_secs(15);

pub(super) fn launch(spec: &Spec, program: &Path) -> StepResult<()> {
    let mut plan = cgroup::CgroupPlan::new(&super::group_name(spec), &spec.limits);
    let mut record = Record {
        cgroups: plan.paths(),
        ..Record::default()
    };
    record.write(&spec.state_dir).step("write the record")?;
    plan.create(&spec.limits);
    plan.join_all();
    super::inject_fault("after cgroups")?;
    privileges::limit_files().step("limit resources")?;

    let (arguments, directories) = Arguments::from_spec(spec, program)?;
    let info = info_file().step("make a channel")?;
    let filters = filters(spec.nested)?;
    let mut command = Command::new(program);
    command
        .args(arguments.0)
        .arg("--info-fd")
        .arg(number(&info));
    for filter in &filters {
        command.arg("--add-seccomp-fd").arg(number(filter));
    }
    command
        .args(["--", "/bin/sh", "-c", WAIT_THEN_EXEC, "stage"])
        .arg(&spec.init.inside)
        .args(&spec.init.args);
    let stderr = io::stderr();
    let log = || rustix::io::fcntl_dupfd_cloexec(&stderr, 3);
    let mut child = command
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(log().step("redirect the output of PID 1")?)
        .stderr(log().step("redirect the output of PID 1")?)
        .spawn()
        .step("start bubblewrap")?;
    super::inject_fault("after clone")?;

    let pid = await_pid(&info, &mut child)?;
    record.process = Some(Process::from_pid(pid).step("read /proc")?);
    record.write(&spec.state_dir).step("write the record")?;
    super::inject_fault("before exec")?;
    if let Some(mut shell) = child.stdin.take() {
        shell.write_all(b"go\n").step("tell PID 1 to proceed")?;
    }
    await_execution(spec, pid, &mut child)?;

    let mut limits = plan.applied.clone();
    let is_enforced = matches!(
        limits.processes,
        LimitMechanism::CgroupV1 | LimitMechanism::CgroupV2
    );
    if !is_enforced && limit_processes(spec, pid) {
        limits.processes = LimitMechanism::Rlimit;
    }
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    record.enforced = Some(EnforcementReport {
        method: "bwrap".to_owned(),
        ids: IdMapping::Single {
            uid: uid.as_raw(),
            gid: gid.as_raw(),
        },
        directories,
        limits,
        seccomp: true,
        landlock: Landlock::Off,
        can_refuse_ports: false,
        network: super::network_name(spec.network).to_owned(),
        user_namespaces_refused: !spec.nested,
    });
    record.write(&spec.state_dir).step("write the record")
}

/// The command line that makes the sandbox.
struct Arguments(Vec<String>);

impl Arguments {
    fn from_spec(spec: &Spec, program: &Path) -> StepResult<(Self, Directories)> {
        let mut arguments = Self(Vec::new());
        arguments.namespaces(spec, program);
        let directories = arguments.directories(spec, program)?;
        for bind in rootfs::in_order(&spec.binds) {
            let source = rootfs::open_source(spec, bind).step(rootfs::bind_step(bind))?;
            if let Some(owner) = bind.owner {
                let uid = rustix::process::geteuid().as_raw();
                kept_owner::check(&source, owner)
                    .and_then(|()| kept_owner::require_user(owner, uid))
                    .step(rootfs::bind_step(bind))?;
            }
            arguments.bind(spec, bind)?;
        }
        arguments.protect(spec)?;
        let init = Bind {
            host: spec.init.binary.clone(),
            inside: spec.init.inside.clone(),
            read_only: true,
            owner: None,
        };
        fs::metadata(&init.host).step("bind the program of PID 1")?;
        arguments.bind(spec, &init)?;
        arguments.add(["--remount-ro", "/", "--chdir", "/", "--clearenv"]);
        for (key, value) in &spec.init.env {
            arguments.add(["--setenv", key, value]);
        }
        Ok((arguments, directories))
    }

    fn add<const N: usize>(&mut self, words: [&str; N]) {
        self.0.extend(words.map(str::to_owned));
    }

    fn namespaces(&mut self, spec: &Spec, program: &Path) {
        self.add([
            "--unshare-user",
            "--unshare-pid",
            "--unshare-ipc",
            "--unshare-uts",
        ]);
        self.add([
            "--unshare-cgroup-try",
            "--uid",
            "0",
            "--gid",
            "0",
            "--new-session",
        ]);
        self.add(["--as-pid-1", "--hostname", &spec.hostname]);
        if spec.network.is_own() {
            self.add(["--unshare-net"]);
        }
        if !spec.nested && supports_option(program, "--disable-userns") {
            self.add(["--disable-userns"]);
        }
        self.add(["--cap-drop", "ALL"]);
        for capability in CONTAINER_CAPABILITIES {
            self.add(["--cap-add", capability.name]);
        }
    }

    fn directories(&mut self, spec: &Spec, program: &Path) -> StepResult<Directories> {
        let mut directories = Directories::new();
        overlay::create_var(&spec.layers_dir.join("var"), None).step("mount /var")?;
        let var = spec.layers_dir.join("var");
        self.add(["--bind", &var.to_string_lossy(), "/var"]);
        for (dir, content) in rootfs::shared() {
            let name = dir.to_string_lossy();
            // An earlier run may have replaced the directory by something else.
            let target = var.join(dir.strip_prefix("/var").unwrap_or(Path::new("")));
            if dir.starts_with("/var") && fs::create_dir_all(&target).is_err() {
                continue;
            }
            if dir == Path::new("/usr/local") {
                continue;
            }
            self.add(["--ro-bind", &name, &name]);
            if content != overlay::Content::Public {
                self.hide(&dir)?;
            }
            let reason = "bubblewrap does not make overlays".to_owned();
            directories.push((dir, DirectoryAccess::ReadOnly { reason }));
        }
        for store in STORES.iter().filter(|store| Path::new(store).is_dir()) {
            self.add(["--ro-bind", store, store]);
        }
        for name in TOP_LEVEL {
            if let Ok(target) = fs::read_link(Path::new("/").join(name)) {
                self.add(["--symlink", &target.to_string_lossy(), &format!("/{name}")]);
            }
        }
        self.add(["--proc", "/proc", "--dev", "/dev"]);
        let has_size = supports_option(program, "--size");
        for (dir, share) in [
            ("/tmp", TMP_SHARE),
            ("/run", RUN_SHARE),
            ("/dev/shm", SHM_SHARE),
        ] {
            if spec.binds_to(dir) {
                continue;
            }
            if has_size {
                self.add(["--size", &memory_share(spec, share)]);
            }
            self.add(["--tmpfs", dir]);
        }
        for (target, source) in name_resolution::copies(spec, &spec.state_dir)
            .step("provide the files for name resolution")?
        {
            self.add([
                "--ro-bind",
                &source.to_string_lossy(),
                &target.to_string_lossy(),
            ]);
        }
        for dir in ["/root", "/home", "/sys", "/mnt", "/srv"] {
            self.add(["--dir", dir]);
        }
        Ok(directories)
    }

    /// Hides files that this user may read but other users of the host may not.
    fn hide(&mut self, dir: &Path) -> StepResult<()> {
        let found = mask::find(dir).step(format!("search {}", dir.display()))?;
        for hidden in found.unwrap_or_default() {
            let path = dir.join(&hidden.path);
            if rustix::fs::access(&path, Access::READ_OK).is_err() {
                continue;
            }
            let path = path.to_string_lossy().into_owned();
            if hidden.is_dir {
                self.add(["--tmpfs", &path]);
            } else {
                self.add(["--ro-bind", "/dev/null", &path]);
            }
        }
        Ok(())
    }

    fn bind(&mut self, spec: &Spec, bind: &Bind) -> StepResult<()> {
        self.replace_read_only_parent(spec, &bind.inside)
            .step(format!("bind {}", bind.inside.display()))?;
        let flag = if bind.read_only {
            "--ro-bind"
        } else {
            "--bind"
        };
        self.add([
            flag,
            &bind.host.to_string_lossy(),
            &bind.inside.to_string_lossy(),
        ]);
        Ok(())
    }

    /// Mounts protected paths and the directories above them onto themselves.
    fn protect(&mut self, spec: &Spec) -> StepResult<()> {
        let mut held = BTreeSet::new();
        for ProtectedPath { within, path } in &spec.protected {
            let inside = within.join(path);
            let step = format!("protect {}", inside.display());
            let bases = spec.binds.iter().filter(|bind| !bind.read_only);
            let base = bases
                .filter(|bind| within.starts_with(&bind.inside))
                .max_by_key(|bind| bind.inside.components().count())
                .ok_or(io::ErrorKind::NotFound)
                .step(&*step)?;
            let on_host = |inside: &Path| {
                let relative = inside.strip_prefix(&base.inside).unwrap_or(Path::new(""));
                base.host.join(relative)
            };
            if !on_host(within).is_dir() {
                continue;
            }
            let root = mounts::open_host(&base.host).step(&*step)?;
            let relative = inside.strip_prefix(&base.inside).unwrap_or(Path::new(""));
            let own = (
                rustix::process::geteuid().as_raw(),
                rustix::process::getegid().as_raw(),
            );
            mounts::open_target(root.as_fd(), relative, TargetKind::Directory, own).step(step)?;
            let mut above: Vec<&Path> = inside.ancestors().skip(1).collect();
            above.retain(|dir| dir.starts_with(within));
            for dir in above.into_iter().rev() {
                // A second mount would cover what is protected below the first.
                if held.insert(dir.to_owned()) {
                    self.add_bind("--bind", &on_host(dir), dir);
                }
            }
            self.add_bind("--ro-bind", &on_host(&inside), &inside);
        }
        Ok(())
    }

    fn add_bind(&mut self, flag: &str, host: &Path, inside: &Path) {
        self.add([flag, &host.to_string_lossy(), &inside.to_string_lossy()]);
    }

    /// For a mount target below a read-only directory, replaces its closest parent by one with the
    /// same entries.
    fn replace_read_only_parent(&mut self, spec: &Spec, inside: &Path) -> io::Result<()> {
        let below_shared = rootfs::shared()
            .iter()
            .any(|(dir, _)| inside.starts_with(dir));
        let below_bind = |bind: &Bind| inside != bind.inside && inside.starts_with(&bind.inside);
        if !below_shared || inside.exists() || spec.binds.iter().any(below_bind) {
            return Ok(());
        }
        let Some(parent) = inside.ancestors().skip(1).find(|dir| dir.is_dir()) else {
            return Ok(());
        };
        let is_done = |words: &[String]| words[0] == "--tmpfs" && Path::new(&words[1]) == parent;
        if self.0.windows(2).any(is_done) {
            return Ok(());
        }
        self.add(["--tmpfs", &parent.to_string_lossy()]);
        for entry in fs::read_dir(parent)? {
            let path = entry?.path();
            let name = path.to_string_lossy();
            match fs::read_link(&path) {
                Ok(target) => self.add(["--symlink", &target.to_string_lossy(), &name]),
                Err(_) => self.add(["--ro-bind-try", &name, &name]),
            }
        }
        Ok(())
    }
}

/// Whether this version of bubblewrap has an option.
fn supports_option(program: &Path, option: &str) -> bool {
    let help = Command::new(program).arg("--help").env_clear().output();
    help.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(option))
}

/// The file to which bubblewrap writes the pid of PID 1. Not a pipe: writing to one without a reader
/// would kill bubblewrap, and its child would wait for it forever.
fn info_file() -> io::Result<File> {
    let fd = rustix::fs::memfd_create("info", rustix::fs::MemfdFlags::empty())?;
    Ok(File::from(fd))
}

fn number(fd: &impl AsRawFd) -> String {
    fd.as_raw_fd().to_string()
}

/// The filters of system calls, as files that bubblewrap reads.
fn filters(nested: bool) -> StepResult<Vec<File>> {
    let step = "compile the system call filter";
    let programs = seccomp::programs(nested)
        .map_err(io::Error::other)
        .step(step)?;
    programs
        .iter()
        .map(|program| {
            let fd =
                rustix::fs::memfd_create("filter", rustix::fs::MemfdFlags::empty()).step(step)?;
            let mut file = File::from(fd);
            for instruction in program {
                let mut bytes = instruction.code.to_ne_bytes().to_vec();
                bytes.extend([instruction.jt, instruction.jf]);
                bytes.extend(instruction.k.to_ne_bytes());
                file.write_all(&bytes).step(step)?;
            }
            file.rewind().step(step)?;
            Ok(file)
        })
        .collect()
}

/// Waits until bubblewrap has cloned PID 1.
fn await_pid(info: &File, bwrap: &mut Child) -> StepResult<i32> {
    poll_until("set up the sandbox with bubblewrap", bwrap, || {
        let mut json = [0; 4096];
        let len = info.read_at(&mut json, 0).ok()?;
        let value: serde_json::Value = serde_json::from_slice(&json[..len]).ok()?;
        i32::try_from(value.get("child-pid")?.as_i64()?).ok()
    })
}

/// Waits until the process executes the program of PID 1.
fn await_execution(spec: &Spec, pid: i32, bwrap: &mut Child) -> StepResult<()> {
    let expected = fs::metadata(&spec.init.binary).step("bind the program of PID 1")?;
    let exe = PathBuf::from(format!("/proc/{pid}/exe"));
    poll_until("execute PID 1", bwrap, || {
        let found = fs::metadata(&exe).ok()?;
        ((found.dev(), found.ino()) == (expected.dev(), expected.ino())).then_some(())
    })
}

/// Polls until `check` returns a value, bubblewrap has exited, or the timeout is over.
fn poll_until<T>(step: &str, bwrap: &mut Child, check: impl Fn() -> Option<T>) -> StepResult<T> {
    let until = Instant::now() + BWRAP_TIMEOUT;
    loop {
        // Before the check, so that the check sees everything a finished process did.
        let has_exited = bwrap.try_wait().step(step)?.is_some();
        if let Some(value) = check() {
            return Ok(value);
        }
        if has_exited {
            return Err(died(step));
        }
        if Instant::now() > until {
            return Err(StepFailure {
                step: step.to_owned(),
                errno: libc::ETIMEDOUT,
            });
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

fn limit_processes(spec: &Spec, pid: i32) -> bool {
    let (Some(limit), Some(pid)) = (spec.limits.processes, Pid::from_raw(pid)) else {
        return false;
    };
    let limit = Rlimit {
        current: Some(limit),
        maximum: Some(limit),
    };
    privileges::processes_are_counted_apart()
        && rustix::process::prlimit(Some(pid), Resource::Nproc, limit).is_ok()
}
