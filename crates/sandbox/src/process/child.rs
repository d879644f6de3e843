//! The child of a spawn, between fork and execution. The parent may have any number of threads, so
//! nothing here takes memory or locks: system calls only, on what the parent has laid out.

use std::ffi::CStr;
use std::io;
use std::os::fd::RawFd;

use super::spawn::{Plan, SpawnStep};
use crate::sys;

/// Above PID 1 and the host's services: when memory runs out, commands go first.
const OOM_SCORE: &[u8] = b"100";

/// Becomes the process, or reports the step that failed and ends.
///
/// # Safety
///
/// Only in a freshly forked child. Nothing here may allocate, lock or unwind.
pub(super) unsafe fn become_process(plan: &Plan, streams: [RawFd; 3], report_to: RawFd) -> ! {
    // SAFETY: the caller's promise covers both.
    let result = unsafe { prepare(plan, streams).map(|()| execute(plan)) };
    let (step, errno) = match result {
        Err(failed) => failed,
        Ok(errno) => (SpawnStep::Execute, errno),
    };
    let mut report = [step as u8; 5];
    report[1..].copy_from_slice(&errno.to_le_bytes());
    // SAFETY: `report` outlives the call, and nothing of the parent is run at the exit.
    unsafe {
        libc::write(report_to, report.as_ptr().cast(), report.len());
        libc::_exit(127)
    }
}

/// Everything before the execution.
unsafe fn prepare(plan: &Plan, streams: [RawFd; 3]) -> Result<(), (SpawnStep, i32)> {
    let check = |step: SpawnStep, result: libc::c_long| match result {
        -1 => Err((step, errno())),
        _ => Ok(()),
    };
    sys::reset_signals();
    // SAFETY: system calls on numbers and on strings that the parent has laid out.
    unsafe {
        match plan.session_leader {
            true => check(SpawnStep::Session, libc::setsid().into())?,
            false => check(SpawnStep::Session, libc::setpgid(0, 0).into())?,
        }
        for (target, source) in streams.into_iter().enumerate() {
            let result = libc::dup2(source, target as RawFd);
            check(SpawnStep::Streams, result.into())?;
        }
        if plan.terminal {
            let result = libc::ioctl(0, libc::TIOCSCTTY, 0);
            check(SpawnStep::Terminal, result.into())?;
        }
        prefer_for_oom();
        libc::umask(0o022);
        if let Some(user) = &plan.user {
            // The raw calls: those of the C library look for other threads, which are not here.
            let (uid, gid) = (user.uid, user.gid);
            let groups = (user.groups.len(), user.groups.as_ptr());
            let result = libc::syscall(libc::SYS_setgroups, groups.0, groups.1);
            // Where only root exists groups cannot be changed, and there is nothing to give up.
            if result == -1 && !(uid == 0 && user.groups.is_empty() && errno() == libc::EPERM) {
                return Err((SpawnStep::User, errno()));
            }
            check(
                SpawnStep::User,
                libc::syscall(libc::SYS_setresgid, gid, gid, gid),
            )?;
            check(
                SpawnStep::User,
                libc::syscall(libc::SYS_setresuid, uid, uid, uid),
            )?;
        }
        check(
            SpawnStep::WorkingDirectory,
            libc::chdir(plan.cwd.as_ptr()).into(),
        )?;
    }
    sys::close_on_exec_from(3).map_err(|_| (SpawnStep::Execute, errno()))
}

/// Tries the candidates as a shell would; returns only if none can be executed.
unsafe fn execute(plan: &Plan) -> i32 {
    let mut worst = libc::ENOENT;
    for program in &plan.programs {
        // SAFETY: both arrays end with a null pointer, and their strings live in the plan.
        unsafe { libc::execve(program.as_ptr(), plan.argv.as_ptr(), plan.env.as_ptr()) };
        match errno() {
            libc::ENOENT | libc::ENOTDIR => {}
            libc::EACCES => worst = libc::EACCES,
            other => return other,
        }
    }
    worst
}

fn prefer_for_oom() {
    const PATH: &CStr = c"/proc/self/oom_score_adj";
    // SAFETY: the path is terminated, and the descriptor is this function's own.
    unsafe {
        let file = libc::open(PATH.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        if file >= 0 {
            libc::write(file, OOM_SCORE.as_ptr().cast(), OOM_SCORE.len());
            libc::close(file);
        }
    }
}

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
