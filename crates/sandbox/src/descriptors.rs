//! Open descriptors of this process that a program it starts must not have.

/// Closes every descriptor but the standard ones when this process starts a program. A shell may have left
/// some open, for example the ends of a pipeline.
#[cfg(target_os = "linux")]
pub fn close_descriptors_on_exec() {
    const FIRST: libc::c_uint = 3;
    const CLOSE_RANGE_CLOEXEC: libc::c_uint = 1 << 2;
    // SAFETY: it closes nothing in this process; it only sets a flag of descriptors.
    let done = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            FIRST,
            libc::c_uint::MAX,
            CLOSE_RANGE_CLOEXEC,
        )
    };
    if done == 0 {
        return;
    }
    // Kernels before 5.11.
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten();
    for entry in open.flatten() {
        let number = entry.file_name().to_str().and_then(|it| it.parse().ok());
        if let Some(number @ 3..) = number {
            // SAFETY: as above; a number that is not open any more is refused by the kernel.
            unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
}

/// Does nothing on other systems: a program that is started there has the descriptors that the shell has left open.
#[cfg(not(target_os = "linux"))]
pub fn close_descriptors_on_exec() {}
