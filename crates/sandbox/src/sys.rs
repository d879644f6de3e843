//! Thin wrappers of system calls that no crate wraps, or that are unsafe in a program with threads.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::process::Pid;
use rustix::thread::UnshareFlags;

const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// The side of a `clone3` that this process is on.
#[derive(Debug)]
pub(crate) enum Cloned {
    Child,
    Parent { child: Pid, pidfd: OwnedFd },
}

/// A fork with namespaces, optionally straight into a cgroup (version 2).
///
/// Only for single-threaded programs, where the child may run arbitrary code.
pub(crate) fn clone3(flags: libc::c_int, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Cloned> {
    let mut pidfd: RawFd = -1;
    let mut bits = flags as u64 | libc::CLONE_PIDFD as u64;
    // SAFETY: the structure is plain numbers, for which zero means "not used".
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    if let Some(cgroup) = cgroup {
        bits |= CLONE_INTO_CGROUP;
        args.cgroup = cgroup.as_raw_fd() as u64;
    }
    args.flags = bits;
    args.pidfd = &raw mut pidfd as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    // SAFETY: `args` and `pidfd` outlive the call, no stack is given and memory is not shared, so
    // that this is a fork; the program has one thread.
    let result = unsafe {
        libc::syscall(
            libc::SYS_clone3,
            &raw mut args,
            size_of::<libc::clone_args>(),
        )
    };
    match result {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Cloned::Child),
        pid => {
            // SAFETY: the kernel has just opened it, and nothing else owns it.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            let child = Pid::from_raw(pid as i32).ok_or(io::ErrorKind::InvalidData)?;
            Ok(Cloned::Parent { child, pidfd })
        }
    }
}

/// `mount_setattr` on the mount of a descriptor; attributes are only added.
pub(crate) fn set_mount_attributes(
    mount: BorrowedFd<'_>,
    attributes: u64,
    idmap: Option<BorrowedFd<'_>>,
    recursive: bool,
) -> io::Result<()> {
    // SAFETY: the structure is plain numbers, for which zero means "no change".
    let mut attr: libc::mount_attr = unsafe { std::mem::zeroed() };
    attr.attr_set = attributes;
    if let Some(userns) = idmap {
        attr.attr_set |= libc::MOUNT_ATTR_IDMAP;
        attr.userns_fd = userns.as_raw_fd() as u64;
    }
    let mut flags = libc::AT_EMPTY_PATH;
    if recursive {
        flags |= libc::AT_RECURSIVE;
    }
    // SAFETY: the path is empty, and `attr` outlives the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw mut attr,
            size_of::<libc::mount_attr>(),
        )
    };
    check(result)
}

/// Does something to files as another user and group. Only for single-threaded programs of root.
pub(crate) fn with_file_owner<T>(owner: (u32, u32), work: impl FnOnce() -> T) -> T {
    // SAFETY: these take only numbers and never fail for root.
    unsafe {
        libc::setfsgid(owner.1);
        libc::setfsuid(owner.0);
    }
    let result = work();
    // SAFETY: as above; the user that was before is the effective one.
    unsafe {
        libc::setfsuid(libc::geteuid());
        libc::setfsgid(libc::getegid());
    }
    result
}

/// Closes every descriptor from `first` on at the next `execve`.
pub(crate) fn close_on_exec_from(first: u32) -> io::Result<()> {
    close_range(first, libc::CLOSE_RANGE_CLOEXEC)
}

/// Closes every descriptor from `first` on.
///
/// # Safety
///
/// Nothing in the program may own one of them.
pub(crate) unsafe fn close_from(first: u32) -> io::Result<()> {
    close_range(first, 0)
}

/// Closes a descriptor at the next `execve`. Fails if it is not open.
pub(crate) fn close_on_exec(fd: RawFd) -> io::Result<()> {
    // SAFETY: takes only numbers.
    check(unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) }.into())
}

fn close_range(first: u32, flags: u32) -> io::Result<()> {
    // SAFETY: takes only numbers; callers of `close_from` guarantee that closing is sound.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, flags) })
}

/// Leaves namespaces of the calling process, which must have one thread.
pub(crate) fn unshare(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: the table of descriptors is never among the flags that this crate passes.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(Into::into)
}

/// Resets every signal to its default and unblocks all of them. Allocates nothing, so that a forked
/// child may call it.
pub(crate) fn reset_signals() {
    // The kernel's structure rather than the C library's, which keeps two signals for itself: all
    // zeroes is "default, no flags, empty mask".
    let action = [0_u64; 4];
    for signal in 1..=64 {
        // SAFETY: `action` is as big as the kernel's structure and outlives the call; the two
        // signals that cannot be changed are refused.
        unsafe {
            let nothing = std::ptr::null::<u64>();
            libc::syscall(libc::SYS_rt_sigaction, signal, action.as_ptr(), nothing, 8);
        }
    }
    // SAFETY: `sigemptyset` initialises the set before it is used.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

/// Makes writes to a closed pipe fail instead of killing the process.
pub(crate) fn ignore_broken_pipes() {
    // SAFETY: installs no handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

/// Blocks until this process gets `SIGTERM` or `SIGINT`, or until the timeout. PID 1 gets no signal
/// that it does not wait for.
pub(crate) fn wait_for_termination(timeout: Duration) {
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs() as _,
        tv_nsec: timeout.subsec_nanos() as libc::c_long,
    };
    // SAFETY: `sigemptyset` initialises the set before its use, all pointers outlive the calls, and
    // the details of the signal may be null.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGTERM);
        libc::sigaddset(&raw mut set, libc::SIGINT);
        libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        libc::sigtimedwait(&raw const set, std::ptr::null_mut(), &raw const timeout);
    }
}

/// Replaces the inherited session keyring by an empty one.
pub(crate) fn join_new_session_keyring() -> io::Result<()> {
    const KEYCTL_JOIN_SESSION_KEYRING: libc::c_long = 1;
    // SAFETY: a null name asks for an anonymous keyring.
    check(unsafe {
        libc::syscall(
            libc::SYS_keyctl,
            KEYCTL_JOIN_SESSION_KEYRING,
            std::ptr::null::<libc::c_char>(),
        )
    })
}

/// Removes a capability from the bounding set. False if the kernel does not know the number.
pub(crate) fn drop_from_bounding_set(capability: u32) -> io::Result<bool> {
    // SAFETY: takes only numbers.
    let result = unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
    match check(result.into()) {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The version of Landlock; 0 or less without it.
pub(crate) fn landlock_abi() -> i64 {
    const LANDLOCK_CREATE_RULESET_VERSION: libc::c_uint = 1;
    // SAFETY: with this flag the kernel takes no attributes and makes nothing.
    unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<libc::c_void>(),
            0_usize,
            LANDLOCK_CREATE_RULESET_VERSION,
        )
    }
}

/// The rules of Landlock that allow binding every TCP port but the refused ones. Not with the crate,
/// whose checks of each rule take longer than the calls.
pub(crate) fn port_rules(refused: &[u16]) -> io::Result<OwnedFd> {
    const BIND_TCP: u64 = 1;
    const RULE_NET_PORT: libc::c_int = 2;
    #[repr(C)]
    struct Ruleset {
        fs: u64,
        net: u64,
    }
    #[repr(C)]
    struct NetPort {
        allowed: u64,
        port: u64,
    }
    let handled = Ruleset {
        fs: 0,
        net: BIND_TCP,
    };
    // SAFETY: the structure is the kernel's and outlives the call.
    let rules = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            &raw const handled,
            size_of::<Ruleset>(),
            0,
        )
    };
    check(rules)?;
    // SAFETY: the kernel has just opened it, and nothing else owns it.
    let rules = unsafe { OwnedFd::from_raw_fd(rules as RawFd) };
    // In the order of the kernel's tree, whose keys are ports in network order: a copy of the rules then
    // reads memory in sequence, and takes a sixth less time.
    let ports = (0..=u16::MAX).map(u16::from_be);
    for port in ports.filter(|port| !refused.contains(port)) {
        let rule = NetPort {
            allowed: BIND_TCP,
            port: port.into(),
        };
        // SAFETY: the structure is the kernel's and outlives the call.
        check(unsafe {
            libc::syscall(
                libc::SYS_landlock_add_rule,
                rules.as_raw_fd(),
                RULE_NET_PORT,
                &raw const rule,
                0,
            )
        })?;
    }
    Ok(rules)
}

/// Applies rules of Landlock to the calling thread, which cannot get new privileges.
pub(crate) fn apply_port_rules(rules: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: takes only numbers.
    check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules.as_raw_fd(), 0) })
}

/// Brings the loopback interface of the current network namespace up.
pub(crate) fn bring_loopback_up() -> io::Result<()> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    let socket = socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // SAFETY: the structure is plain numbers.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo\0") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: `request` is an `ifreq` with a terminated name, and outlives the call.
    check(
        unsafe {
            libc::ioctl(
                socket.as_fd().as_raw_fd(),
                // C libraries disagree on the type.
                libc::SIOCSIFFLAGS as _,
                &raw mut request,
            )
        }
        .into(),
    )
}

fn check(result: libc::c_long) -> io::Result<()> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
