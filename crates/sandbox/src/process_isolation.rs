//! Isolation of the process trees of one container from each other. A supervisor restricts a thread of
//! its own and starts a process from it: the process and everything it starts inherit the restrictions.

use std::io;

use landlock::{
    AccessFs, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, RulesetStatus, make_bitflags,
};
use seccompiler::sock_filter;

use crate::port_rules::PortRules;
use crate::sys;

/// Older versions refuse every move of a file to another directory.
const MIN_LANDLOCK_ABI: i64 = 2;

/// `RLIMIT_RTTIME`, whose type differs between C libraries. Supervisors use it as a tag.
const REALTIME_LIMIT: u32 = 15;

/// What the kernel enforces on a thread and on what it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadIsolation {
    /// Memory, environment and descriptors of processes outside the thread's own tree are
    /// inaccessible, also to the same user: a Landlock domain of its own.
    pub private_memory: bool,
    /// The limit by which a supervisor finds a process tree cannot be changed.
    pub fixed_tag: bool,
}

/// Restricts the calling thread as far as the kernel supports it; what is not possible is reported. Fails
/// only if the rules for ports cannot be applied, and then nothing may be started from the thread.
pub fn isolate_thread(port_rules: Option<PortRules>) -> io::Result<ThreadIsolation> {
    let is_supported = sys::landlock_abi() >= MIN_LANDLOCK_ABI;
    let entered = || matches!(enter_domain(), Ok(status) if status != RulesetStatus::NotEnforced);
    let private_memory = is_supported && entered();
    if let Some(rules) = port_rules {
        // After the domain above, which would contain a copy of every rule.
        rules.restrict_thread()?;
    }
    Ok(ThreadIsolation {
        private_memory,
        fixed_tag: fix_tag().is_ok(),
    })
}

/// Enters a new Landlock domain that forbids nothing by itself. Processes outside a domain and its
/// descendants cannot be traced from it, which includes reading their files in `/proc`.
fn enter_domain() -> Result<RulesetStatus, RulesetError> {
    // At least one access has to be handled; moves are refused unless they are allowed.
    let handled: BitFlags<AccessFs> = make_bitflags!(AccessFs::{Refer | MakeBlock});
    let Ok(root) = PathFd::new("/") else {
        return Ok(RulesetStatus::NotEnforced);
    };
    let status = Ruleset::default()
        .handle_access(handled)?
        .create()?
        .add_rule(PathBeneath::new(root, handled))?
        .restrict_self()?;
    Ok(status.ruleset)
}

fn fix_tag() -> io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    seccompiler::apply_filter(&refuse_limit(REALTIME_LIMIT)).map_err(io::Error::other)
}

/// The calls that set a resource limit, for each architecture whose programs run on this one.
#[cfg(target_arch = "x86_64")]
const LIMIT_CALLS: &[LimitCalls] = &[
    LimitCalls {
        architecture: 0xC000_003E,
        setrlimit: 160,
        prlimit: 302,
    },
    LimitCalls {
        architecture: 0x4000_0003,
        setrlimit: 75,
        prlimit: 340,
    },
];
#[cfg(target_arch = "aarch64")]
const LIMIT_CALLS: &[LimitCalls] = &[
    LimitCalls {
        architecture: 0xC000_00B7,
        setrlimit: 164,
        prlimit: 261,
    },
    LimitCalls {
        architecture: 0x4000_0028,
        setrlimit: 75,
        prlimit: 369,
    },
];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const LIMIT_CALLS: &[LimitCalls] = &[];

struct LimitCalls {
    architecture: u32,
    setrlimit: u32,
    prlimit: u32,
}

/// A filter that refuses to set one resource limit and allows everything else. Written by hand:
/// seccompiler kills programs of other architectures, and containers run them.
fn refuse_limit(resource: u32) -> Vec<sock_filter> {
    const LOAD: u16 = 0x20;
    const AND: u16 = 0x54;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const NUMBER: u32 = 0;
    const ARCHITECTURE: u32 = 4;
    const ARGUMENTS: u32 = 16;
    // The x32 calls have the same numbers with this bit.
    const WITHOUT_X32_BIT: u32 = 0xBFFF_FFFF;
    let statement = |code, k| sock_filter {
        code,
        jt: 0,
        jf: 0,
        k,
    };
    let jump = |k, jt, jf| sock_filter {
        code: JUMP_IF_EQUAL,
        jt,
        jf,
        k,
    };
    let argument = |index: u32| statement(LOAD, ARGUMENTS + 8 * index);
    let refuse = statement(RETURN, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
    let allow = statement(RETURN, libc::SECCOMP_RET_ALLOW);
    let mut program = Vec::new();
    for calls in LIMIT_CALLS {
        program.extend([
            statement(LOAD, ARCHITECTURE),
            jump(calls.architecture, 0, 14),
            statement(LOAD, NUMBER),
            statement(AND, WITHOUT_X32_BIT),
            jump(calls.setrlimit, 0, 2),
            argument(0),
            jump(resource, 7, 8),
            jump(calls.prlimit, 0, 7),
            argument(1),
            jump(resource, 0, 5),
            // Reading a limit passes no new one.
            argument(2),
            jump(0, 0, 2),
            statement(LOAD, ARGUMENTS + 8 * 2 + 4),
            jump(0, 1, 0),
            refuse.clone(),
            allow.clone(),
        ]);
    }
    program.push(allow);
    program
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    #[test]
    fn the_tag_is_fixed_and_other_limits_are_not() {
        std::thread::spawn(|| {
            let before = getrlimit(Resource::Rttime);
            assert!(isolate_thread(None).unwrap().fixed_tag);
            let changed = Rlimit {
                current: Some(7),
                ..before
            };
            assert!(setrlimit(Resource::Rttime, changed).is_err());
            assert!(rustix::process::prlimit(None, Resource::Rttime, changed).is_err());
            assert_eq!(getrlimit(Resource::Rttime), before);
            setrlimit(Resource::Core, getrlimit(Resource::Core)).unwrap();
        })
        .join()
        .unwrap();
    }

    #[test]
    fn trees_cannot_read_each_other_and_files_can_still_be_moved() {
        let scratch = tempfile::tempdir().unwrap();
        let in_own_domain = |script: String| {
            std::thread::spawn(move || {
                assert!(isolate_thread(None).unwrap().private_memory);
                std::process::Command::new("sh")
                    .args(["-c", &script])
                    .env("CANARY", "1")
                    .stdin(std::process::Stdio::piped())
                    .spawn()
                    .unwrap()
            })
            .join()
            .unwrap()
        };
        let mut first = in_own_domain("read line".to_owned());
        // Its memory: a privileged user of the host may read its environment in any domain.
        let memory = format!("/proc/{}/mem", first.id());
        std::fs::File::open(&memory).unwrap();
        let open = format!("exec 3<{memory}");
        assert!(!in_own_domain(open).wait().unwrap().success());
        let dir = scratch.path().display();
        let moving = format!("cd {dir} && mkdir a b && echo x > a/f && ln a/f b/g && mv a/f b/f");
        assert!(in_own_domain(moving).wait().unwrap().success());
        drop(first.stdin.take());
        first.wait().unwrap();
    }
}
