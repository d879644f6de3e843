//! Attacks that have to fail, one by one: system calls, sockets, other processes, limits, the root.

use std::fs;

use serde_json::json;

use crate::support::{Host, in_modes};

/// Prints the name of each attack that succeeded. `SECRET` is a file of the host.
const PROBE: &str = r#"
import ctypes, errno, mmap, os, resource, signal, socket, sys
libc = ctypes.CDLL(None, use_errno=True)

def succeeded(name): print(name)

def refused(name, number, *args):
    ctypes.set_errno(0)
    # Python passes numbers as 32 bits otherwise.
    args = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    result = libc.syscall(ctypes.c_long(number), *args)
    if result == 0 and name.startswith('clone'): os._exit(0)
    if result != -1 or ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS, errno.EACCES, errno.ENOSPC):
        succeeded(f'{name}: {result} {errno.errorcode.get(ctypes.get_errno())}')

def fails(name, attack):
    try: attack()
    except (OSError, ValueError): return
    succeeded(name)

empty = ctypes.create_string_buffer(256)
if os.uname().machine == 'x86_64':
    for name, number, *args in [
        ('mount', 165, b'none', b'/mnt', b'tmpfs', 0, 0), ('umount2', 166, b'/proc', 2),
        ('pivot_root', 155, b'/', b'/'), ('unshare', 272, 0x20000), ('setns', 308, 0, 0),
        ('open_tree', 428, -100, b'/', 1), ('move_mount', 429, -100, b'/', -100, b'/mnt', 0),
        ('fsopen', 430, b'tmpfs', 0), ('fsmount', 432, 0, 0, 0), ('fspick', 433, -100, b'/', 0),
        ('mount_setattr', 442, -100, b'/', 0, empty, 32), ('open_tree_attr', 467, -100, b'/', 1, empty, 32),
        ('clone user', 56, 0x10000000 | 17, 0, 0, 0, 0), ('clone mount', 56, 0x20000 | 17, 0, 0, 0, 0),
        ('clone pid', 56, 0x20000000 | 17, 0, 0, 0, 0), ('clone net', 56, 0x40000000 | 17, 0, 0, 0, 0),
        ('io_uring_setup', 425, 8, empty), ('bpf', 321, 0, empty, 64), ('perf_event_open', 298, empty, 0, -1, -1, 0),
        ('keyctl', 250, 0, -3, 0), ('add_key', 248, b'user', b'x', b'y', 1, -3), ('request_key', 249, b'user', b'x', 0, -3),
        ('userfaultfd', 323, 0), ('open_by_handle_at', 304, -100, empty, 0), ('syslog', 103, 3, empty, 8),
        ('quotactl', 179, 0, b'/', 0, empty), ('finit_module', 313, 0, b'', 0), ('kexec_load', 246, 0, 0, 0, 0),
        ('settimeofday', 164, empty, 0), ('swapon', 167, b'/x', 0), ('acct', 163, 0),
        ('ptrace', 101, 16, 1, 0, 0), ('x32', 0x40000000 + 39),
    ]:
        refused(name, number, *args)
    pidfd = libc.syscall(434, 1, 0)
    refused('pidfd_getfd', 438, pidfd, 0, 0)
    iovec = (ctypes.c_size_t * 2)(ctypes.addressof(empty), 8)
    remote = (ctypes.c_size_t * 2)(0x400000, 8)
    refused('process_vm_readv', 310, 1, iovec, 1, remote, 1, 0)
    child = os.fork()
    if child == 0:
        code = mmap.mmap(-1, 4096, prot=7)
        code.write(b'\xb8\x14\0\0\0\xcd\x80\xc3')
        ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
        os._exit(0)
    if os.WIFEXITED(os.waitpid(child, 0)[1]): succeeded('int 0x80')

for name, family, kind in [('packet', 17, 3), ('raw', socket.AF_INET, 3), ('raw 6', socket.AF_INET6, 3),
                           ('vsock', 40, 1), ('alg', 38, 5), ('xdp', 44, 3)]:
    fails(name, lambda: socket.socket(family, kind, 0 if family in (17, 38, 40, 44) else 1))
for file in ['mem', 'environ', 'maps', 'auxv']:
    fails(f'/proc/1/{file}', lambda: open(f'/proc/1/{file}', 'rb').read(1))
for link in ['exe', 'root', 'cwd', 'fd/0', 'ns/mnt']:
    fails(f'/proc/1/{link}', lambda: os.stat(f'/proc/1/{link}'))
for file in ['/proc/self/uid_map', '/proc/self/gid_map']:
    fails(file, lambda: os.write(os.open(file, os.O_WRONLY), b'0 0 1'))
for file in ['/proc/sys/kernel/core_pattern', '/proc/sysrq-trigger', '/proc/sys/kernel/modprobe']:
    fails(file, lambda: os.open(file, os.O_WRONLY))
fails('oom score', lambda: os.write(os.open('/proc/self/oom_score_adj', os.O_WRONLY), b'-1'))
fails('nice', lambda: os.nice(-1))
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
fails('rlimit', lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (hard + 1, hard + 1)))
for kind, mode in [('character device', 0o20666), ('block device', 0o60666)]:
    fails(kind, lambda: os.mknod('/tmp/device', mode, os.makedev(1, 3)))
fails('whiteout', lambda: os.mknod('/tmp/device', 0o20000, 0))

for number in [signal.SIGKILL, signal.SIGSTOP]: os.kill(1, number)
os.mkdir('/tmp/jail')
root = os.open('/', os.O_RDONLY)
os.chroot('/tmp/jail')
os.fchdir(root)
for _ in range(64): os.chdir('..')
os.chroot('.')
if os.path.exists(sys.argv[1]): succeeded('chroot')
print('done')
"#;

fn known_attacks_fail(host: &Host) {
    let secret = host.path("secret");
    fs::write(&secret, "x").unwrap();
    let sandbox = host.start("a");
    let argv = ["python3", "-c", PROBE, secret.to_str().unwrap()];
    let output = sandbox.request(&json!({ "argv": argv }));
    assert_eq!(output.stdout, "done\n", "{output:?}");
    assert_eq!(sandbox.read("echo still here"), "still here");
    sandbox.remove();
    host.assert_nothing_left();
}
in_modes!(known_attacks_fail: root, user);

/// Renames without the copy that `mv` falls back to.
fn rename(from: &str, to: &str) -> String {
    format!("python3 -c \"import os; os.rename('{from}', '{to}')\"")
}

fn the_program_of_pid_1_cannot_be_replaced(host: &Host) {
    let sandbox = host.start("a");
    let program = "/usr/local/bin/test-init";
    for attack in [
        format!("echo x > {program}"),
        format!("rm -f {program}"),
        format!("mv {program} /tmp/x"),
        format!("cp /bin/true /tmp/x && mv /tmp/x {program}"),
        rename("/usr/local/bin", "/usr/local/other"),
        rename("/usr/local", "/usr/other"),
        rename("/mcp", "/other"),
    ] {
        assert!(!sandbox.can(&attack), "{attack}");
    }
    sandbox.remove();
}
in_modes!(the_program_of_pid_1_cannot_be_replaced: root, user);
