//! System calls that are refused inside. A deny list: agents run compilers, debuggers and databases,
//! and an allow list would often break one of them.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, sock_filter,
};

use super::{StepContext, StepResult};

/// `libc` has no name for it on every C library.
const SYS_KEXEC_FILE_LOAD: libc::c_long = if cfg!(target_arch = "x86_64") {
    320
} else {
    294
};

/// Always refused: calls that concern the whole machine or have allowed escapes from sandboxes.
const REFUSED: &[libc::c_long] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    SYS_KEXEC_FILE_LOAD,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_lookup_dcookie,
    libc::SYS_nfsservctl,
    libc::SYS_open_by_handle_at,
    libc::SYS_perf_event_open,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
];

/// Refused unless sandboxes inside are allowed.
const REFUSED_UNLESS_NESTED: &[libc::c_long] = &[
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_pivot_root,
    libc::SYS_setns,
    libc::SYS_umount2,
    libc::SYS_unshare,
];

/// Socket families that ignore network namespaces, or reach far into the kernel.
const REFUSED_FAMILIES: &[libc::c_int] = &[libc::AF_VSOCK, libc::AF_ALG, AF_SMC];
const AF_SMC: libc::c_int = 43;
/// Protocols that listen on TCP ports without being checked by Landlock: SMC and Multipath TCP.
const REFUSED_PROTOCOLS: &[u64] = &[256, 262];
/// Calls that insert input into another process's terminal.
const REFUSED_IOCTLS: &[u64] = &[TIOCSTI, TIOCLINUX];
const TIOCSTI: u64 = 0x5412;
const TIOCLINUX: u64 = 0x541c;

pub(super) fn apply(nested: bool) -> StepResult<()> {
    for program in programs(nested)
        .map_err(io::Error::other)
        .step("compile the system call filter")?
    {
        seccompiler::apply_filter(&program)
            .map_err(io::Error::other)
            .step("apply the system call filter")?;
    }
    Ok(())
}

/// The filters, to be applied in this order.
pub(super) fn programs(nested: bool) -> Result<Vec<BpfProgram>, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    let unless_nested = if nested { &[] } else { REFUSED_UNLESS_NESTED };
    for call in REFUSED.iter().chain(unless_nested) {
        rules.insert(*call, Vec::new());
    }
    let families = REFUSED_FAMILIES.iter().map(|family| *family as u64);
    rules.insert(libc::SYS_socket, when_argument(0, families)?);
    rules.insert(
        libc::SYS_ioctl,
        when_argument(1, REFUSED_IOCTLS.iter().copied())?,
    );
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EPERM as u32),
        std::env::consts::ARCH.try_into()?,
    )?;
    // Its own error, after which programs fall back to TCP.
    let protocols = SeccompFilter::new(
        BTreeMap::from([(
            libc::SYS_socket,
            when_argument(2, REFUSED_PROTOCOLS.iter().copied())?,
        )]),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EPROTONOSUPPORT as u32),
        std::env::consts::ARCH.try_into()?,
    )?;
    let mut programs = vec![filter.try_into()?, protocols.try_into()?];
    if cfg!(target_arch = "x86_64") {
        programs.push(refuse_x32());
    }
    Ok(programs)
}

fn when_argument(
    index: u8,
    values: impl Iterator<Item = u64>,
) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    let mut rules = Vec::new();
    for value in values {
        let condition =
            SeccompCondition::new(index, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)?;
        rules.push(SeccompRule::new(vec![condition])?);
    }
    Ok(rules)
}

/// The x32 calls have the same architecture as the 64-bit ones but other numbers, which the deny list
/// does not contain.
fn refuse_x32() -> BpfProgram {
    const LOAD_NUMBER: u16 = 0x20;
    const JUMP_IF_NOT_LESS: u16 = 0x35;
    const RETURN: u16 = 0x06;
    const X32_BIT: u32 = 0x4000_0000;
    let statement = |code, k| sock_filter {
        code,
        jt: 0,
        jf: 0,
        k,
    };
    vec![
        statement(LOAD_NUMBER, 0),
        sock_filter {
            code: JUMP_IF_NOT_LESS,
            jt: 0,
            jf: 1,
            k: X32_BIT,
        },
        statement(RETURN, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
        statement(RETURN, libc::SECCOMP_RET_ALLOW),
    ]
}
