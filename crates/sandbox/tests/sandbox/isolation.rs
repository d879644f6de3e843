//! What processes in a sandbox can and cannot see and do.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use oubliette_sandbox::{Bind, DirectoryAccess, IdMapping, Landlock, NetworkNamespace};
use serde_json::json;

use crate::support::{Host, Mode, in_modes, writable};

fn host_processes_are_invisible(host: &Host) {
    let sandbox = host.start("a");
    assert_eq!(sandbox.read("cat /proc/1/comm"), "test-init");
    let count: usize = sandbox.read("ls -d /proc/[0-9]* | wc -l").parse().unwrap();
    assert!(count < 8, "{count} processes");
    assert_eq!(sandbox.read("hostname"), "box");
    sandbox.remove();
    host.assert_nothing_left();
}
in_modes!(host_processes_are_invisible: root, user, bwrap);

fn directories_of_the_host_are_hidden(host: &Host) {
    let secret = host.path("secret");
    fs::write(&secret, "x").unwrap();
    let sandbox = host.start("a");
    assert_eq!(
        sandbox.read("ls -A /root /home /tmp /mnt /srv /sys | grep -v :; true"),
        ""
    );
    assert!(!sandbox.can(&format!("test -e {}", secret.display())));
    let top = sandbox.read("ls -A /");
    let known = "bin dev etc gnu home lib lib32 lib64 libx32 mcp mnt nix opt proc root run sbin \
        srv sys tmp usr var workspace";
    for name in top.split_whitespace() {
        assert!(
            known.split(' ').any(|known| known == name),
            "/{name} is visible"
        );
    }
    sandbox.remove();
}
in_modes!(directories_of_the_host_are_hidden: root, user, bwrap);

fn secrets_of_the_host_are_masked(host: &Host) {
    let sandbox = host.start("a");
    let found = sandbox.read(
        "for f in /etc/shadow /etc/shadow- /etc/gshadow /etc/gshadow- /etc/sudoers \
         /etc/ssh/ssh_host_*_key /etc/ssl/private/*; do cat $f 2>/dev/null; done; true",
    );
    assert_eq!(found, "");
    let closed =
        sandbox.read("find /etc -type f ! -perm -004 -size +0 -readable 2>/dev/null; true");
    assert_eq!(closed, "", "files of the host's root are readable");
    assert!(sandbox.can("test -s /etc/passwd && ls /etc/ssl >/dev/null"));
    sandbox.remove();
}
in_modes!(secrets_of_the_host_are_masked: root, user, bwrap);

fn writes_reach_only_the_workspace(host: &Host) {
    let sandbox = host.start("a");
    sandbox.read("echo hello > /workspace/new");
    assert_eq!(
        fs::read_to_string(sandbox.workspace().join("new")).unwrap(),
        "hello\n"
    );
    sandbox.sh("echo x > /etc/oubliette-test; echo x > /usr/oubliette-test; echo x > /usr/bin/ls");
    sandbox.sh("echo x > /tmp/oubliette-inside; rm -f /usr/bin/env; mkdir /oubliette-test");
    for path in [
        "/etc/oubliette-test",
        "/usr/oubliette-test",
        "/tmp/oubliette-inside",
        "/oubliette-test",
    ] {
        assert!(fs::symlink_metadata(path).is_err(), "{path} is on the host");
    }
    assert!(fs::metadata("/usr/bin/ls").unwrap().len() > 2);
    assert!(fs::metadata("/usr/bin/env").is_ok());
    sandbox.remove();
}
in_modes!(writes_reach_only_the_workspace: root, user, bwrap);

fn changes_are_copied_on_write_and_survive_a_restart(host: &Host) {
    let sandbox = host.start("a");
    let directories = &sandbox.running.enforced().directories;
    let usr = directories
        .iter()
        .find(|(dir, _)| dir.ends_with("usr"))
        .unwrap();
    assert_eq!(usr.1, DirectoryAccess::CopyOnWrite);
    sandbox.read("echo more >> /etc/passwd; rm /usr/bin/env; echo x > /usr/bin/added");
    sandbox.read("chown 7:8 /usr/bin/added; echo x > /var/lib/dpkg/added; touch /var/lib/own");
    assert_eq!(sandbox.read("tail -n1 /etc/passwd"), "more");
    sandbox.stop();
    let sandbox = host.launch(sandbox.spec.clone());
    assert_eq!(sandbox.read("tail -n1 /etc/passwd"), "more");
    assert_eq!(sandbox.read("stat -c %u:%g /usr/bin/added"), "7:8");
    assert!(
        sandbox.can("test ! -e /usr/bin/env && test -e /var/lib/dpkg/added -a -e /var/lib/own")
    );
    sandbox.remove();
    let passwd = fs::read_to_string("/etc/passwd").unwrap();
    assert!(!passwd.ends_with("more\n"));
    host.assert_nothing_left();
}
in_modes!(changes_are_copied_on_write_and_survive_a_restart: root);

fn settings_of_the_kernel_cannot_be_written(host: &Host) {
    let sandbox = host.start("a");
    let opened = sandbox.read(
        "for f in /proc/sys/kernel/core_pattern /proc/sys/kernel/hostname /proc/sys/vm/swappiness \
         /proc/sysrq-trigger /proc/sys/net/ipv4/ip_forward; do \
         (exec 3<>$f) 2>/dev/null && echo $f; done; true",
    );
    assert_eq!(opened, "");
    assert_eq!(
        sandbox.read("cat /proc/kcore /proc/keys /proc/timer_list 2>/dev/null | wc -c"),
        "0"
    );
    sandbox.remove();
}
in_modes!(settings_of_the_kernel_cannot_be_written: root, user);

fn no_devices_can_be_made_or_seen(host: &Host) {
    let sandbox = host.start("a");
    for path in ["/workspace/disk", "/tmp/disk", "/dev/disk"] {
        assert!(!sandbox.can(&format!("mknod {path} b 8 0 || mknod {path} c 1 3")));
    }
    assert_eq!(sandbox.read("find /dev -type b"), "");
    assert!(sandbox.can("echo x > /dev/null && head -c4 /dev/urandom >/dev/null"));
    assert!(!sandbox.can("chmod 666 /dev/null") && !sandbox.can("chmod 666 /proc/keys"));
    assert!(sandbox.can("test -c /dev/tty -a -e /dev/ptmx && touch /dev/shm/x"));
    sandbox.remove();
}
in_modes!(no_devices_can_be_made_or_seen: root, user, bwrap);

fn privileges_are_reduced(host: &Host) {
    let sandbox = host.start("a");
    let status = sandbox.read("cat /proc/self/status");
    let value = |key: &str| {
        let line = status.lines().find(|line| line.starts_with(key)).unwrap();
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_eq!(value("NoNewPrivs:"), "1");
    assert_eq!(value("Seccomp:"), "2");
    let caps = u64::from_str_radix(&value("CapEff:"), 16).unwrap();
    let bounding = u64::from_str_radix(&value("CapBnd:"), 16).unwrap();
    let allowed = oubliette_sandbox::container_capability_mask();
    assert_eq!(caps & !allowed, 0, "{caps:x}");
    assert_eq!(bounding & !allowed, 0, "{bounding:x}");
    let enforced = sandbox.running.enforced();
    assert!(enforced.seccomp);
    match host.mode {
        Mode::Root => {
            assert!(
                matches!(enforced.ids, IdMapping::Shifted { .. }),
                "{enforced:?}"
            );
            assert_eq!(enforced.landlock, Landlock::Full);
        }
        Mode::User => assert!(matches!(enforced.ids, IdMapping::Single { .. })),
        Mode::Bwrap => assert_eq!(enforced.method, "bwrap"),
    }
    sandbox.remove();
}
in_modes!(privileges_are_reduced: root, user, bwrap);

fn namespaces_and_mounts_are_refused(host: &Host) {
    let sandbox = host.start("a");
    assert!(!sandbox.can("unshare -U true"));
    assert!(!sandbox.can("unshare -m true"));
    assert!(!sandbox.can("mount -t tmpfs none /tmp"));
    assert!(!sandbox.can("umount /proc/sys"));
    let clone3 = "import os,ctypes\nlibc=ctypes.CDLL(None)\n\
        print(libc.syscall(56, 0x10000000|17, 0, 0, 0, 0))";
    let output = sandbox.request(&json!({ "argv": ["python3", "-c", clone3] }));
    if output.code == Some(0) {
        assert_eq!(output.stdout.trim(), "-1", "a user namespace was made");
    }
    sandbox.remove();
}
in_modes!(namespaces_and_mounts_are_refused: root, user, bwrap);

fn nested_sandboxes_work_when_allowed(host: &Host) {
    let mut spec = host.spec("a");
    spec.nested = true;
    let sandbox = host.launch(spec);
    assert!(sandbox.can("unshare -Urm sh -c 'mount -t tmpfs none /mnt && touch /mnt/x'"));
    assert!(
        sandbox.can("unshare -Urpf --mount-proc sh -c 'test $(ls -d /proc/[0-9]* | wc -l) -lt 5'")
    );
    let opened = sandbox.sh("exec 3<>/proc/sys/kernel/core_pattern");
    assert_ne!(opened.code, Some(0), "{opened:?}");
    assert_eq!(sandbox.running.enforced().landlock, Landlock::Off);
    sandbox.remove();
}
in_modes!(nested_sandboxes_work_when_allowed: root, user);

fn the_environment_and_files_of_the_launcher_do_not_leak(host: &Host) {
    let sandbox = host.start("a");
    assert!(
        !sandbox.can("cat /proc/1/environ"),
        "the memory of PID 1 is open"
    );
    assert!(!sandbox.can("readlink /proc/1/fd/2 || readlink /proc/1/exe"));
    assert_eq!(
        sandbox.read("env | grep -v -e ^PATH= -e ^MARK= -e ^PWD= -e ^_= ; true"),
        ""
    );
    assert_eq!(sandbox.read("ls /proc/self/fd | wc -l"), "4");
    assert!(!sandbox.can("echo x >> /usr/local/bin/test-init"));
    sandbox.remove();
}
in_modes!(the_environment_and_files_of_the_launcher_do_not_leak: root, user, bwrap);

fn without_network_there_is_only_loopback(host: &Host) {
    let sandbox = host.start("a");
    let devices = sandbox.read("tail -n+3 /proc/net/dev | cut -d: -f1 | tr -d ' '");
    assert!(
        devices.lines().all(|name| [
            "lo", "sit0", "tunl0", "ip6tnl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0",
            "ip6gre0"
        ]
        .contains(&name)),
        "{devices}"
    );
    assert_eq!(sandbox.read("cat /proc/net/route | wc -l"), "1");
    let loopback = "import socket;s=socket.create_server(('127.0.0.1',0));\
        c=socket.create_connection(s.getsockname());c.send(b'x');print(s.accept()[0].recv(1))";
    let output = sandbox.request(&json!({ "argv": ["python3", "-c", loopback] }));
    if output.refused.is_none() {
        assert_eq!(output.stdout.trim(), "b'x'", "{output:?}");
    }
    assert_eq!(sandbox.running.enforced().network, "none");
    sandbox.remove();
}
in_modes!(without_network_there_is_only_loopback: root, user, bwrap);

fn the_hosts_network_has_the_hosts_interfaces_and_resolver_files(host: &Host) {
    let mut spec = host.spec("a");
    spec.network = NetworkNamespace::Host;
    let sandbox = host.launch(spec);
    let own = fs::read_to_string("/proc/self/net/dev")
        .unwrap()
        .lines()
        .count();
    assert_eq!(sandbox.read("cat /proc/net/dev | wc -l"), own.to_string());
    for file in ["/etc/resolv.conf", "/etc/hosts"] {
        if let Ok(text) = fs::read_to_string(file) {
            assert_eq!(sandbox.read(&format!("cat {file}")), text.trim_end());
        }
    }
    sandbox.remove();
}
in_modes!(the_hosts_network_has_the_hosts_interfaces_and_resolver_files: root, user, bwrap);

fn abstract_sockets_of_the_host_are_out_of_reach(host: &Host) {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};
    let name = format!("oubliette-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let _listener = UnixListener::bind_addr(&address).unwrap();
    let mut spec = host.spec("a");
    spec.network = NetworkNamespace::Host;
    let sandbox = host.launch(spec);
    let connect = format!("import socket;socket.socket(socket.AF_UNIX).connect('\\0{name}')");
    let output = sandbox.request(&json!({ "argv": ["python3", "-c", connect] }));
    assert_ne!(output.code, Some(0));
    sandbox.remove();
}
in_modes!(abstract_sockets_of_the_host_are_out_of_reach: root, user);

fn a_setuid_file_in_the_workspace_does_not_belong_to_the_hosts_root(host: &Host) {
    let sandbox = host.start("a");
    sandbox.read("cp /bin/sh /workspace/sh && chmod 4755 /workspace/sh");
    let file = sandbox.workspace().join("sh");
    let meta = fs::metadata(&file).unwrap();
    let own = rustix::process::geteuid().as_raw();
    match host.mode {
        Mode::Root => assert!(meta.uid() >= 0x7000_0000, "owned by {}", meta.uid()),
        Mode::User | Mode::Bwrap => assert_eq!(meta.uid(), own),
    }
    assert_ne!(meta.uid(), 0);
    sandbox.remove();
}
in_modes!(a_setuid_file_in_the_workspace_does_not_belong_to_the_hosts_root: root, user, bwrap);

fn symbolic_links_of_the_workspace_are_not_followed_on_the_host(host: &Host) {
    let secret = host.path("secret");
    fs::create_dir(&secret).unwrap();
    fs::write(secret.join("key"), "secret").unwrap();
    let mut spec = host.spec("a");
    let workspace = spec.binds[0].host.clone();
    symlink(&secret, workspace.join("link")).unwrap();
    let sandbox = host.launch(spec.clone());
    assert!(!sandbox.can("cat /workspace/link/key"));
    sandbox.stop();

    // A read-only part of the workspace that the sandbox replaced by a link.
    spec.binds.push(Bind {
        host: workspace.join("link"),
        inside: "/workspace/link".into(),
        read_only: true,
        owner: None,
    });
    let launched = oubliette_sandbox::launch(&spec, &crate::support::init_binary());
    assert!(launched.is_err(), "a link was followed");
    spec.binds.pop();
    spec.binds
        .push(writable(workspace.join("link"), "/elsewhere"));
    assert!(oubliette_sandbox::launch(&spec, &crate::support::init_binary()).is_err());
    assert_eq!(fs::read_to_string(secret.join("key")).unwrap(), "secret");
    oubliette_sandbox::remove(&spec.state_dir, &spec.layers_dir).unwrap();
    host.assert_nothing_left();
}
in_modes!(symbolic_links_of_the_workspace_are_not_followed_on_the_host: root, user, bwrap);

fn read_only_binds_cannot_be_written(host: &Host) {
    let mut spec = host.spec("a");
    let workspace = spec.binds[0].host.clone();
    fs::create_dir(workspace.join("protected")).unwrap();
    fs::write(workspace.join("protected/rule"), "rule").unwrap();
    let tools = host.path("tools");
    fs::create_dir(&tools).unwrap();
    fs::write(tools.join("private"), "tool").unwrap();
    fs::set_permissions(tools.join("private"), fs::Permissions::from_mode(0o600)).unwrap();
    for (from, inside) in [
        (workspace.join("protected"), "/workspace/protected"),
        (tools, "/opt/tools/x"),
    ] {
        spec.binds.push(Bind {
            host: from,
            inside: inside.into(),
            read_only: true,
            owner: None,
        });
    }
    let sandbox = host.launch(spec);
    assert_eq!(
        sandbox.read("cat /workspace/protected/rule /opt/tools/x/private"),
        "ruletool"
    );
    assert!(!sandbox.can("echo x > /workspace/protected/rule"));
    assert!(!sandbox.can("rm -rf /workspace/protected"));
    assert!(!sandbox.can("mv /workspace/protected /workspace/moved"));
    assert!(!sandbox.can("echo x > /opt/tools/x/private"));
    sandbox.remove();
}
in_modes!(read_only_binds_cannot_be_written: root, user, bwrap);

fn a_terminal_has_a_size_and_a_controlling_process(host: &Host) {
    let sandbox = host.start("a");
    let output = sandbox.request(&json!({
        "argv": ["sh", "-c", "stty size </dev/tty; tty"], "pty": true
    }));
    assert!(output.stdout.contains("33 77"), "{output:?}");
    assert!(output.stdout.contains("/dev/pts/"), "{output:?}");
    sandbox.remove();
}
in_modes!(a_terminal_has_a_size_and_a_controlling_process: root, user, bwrap);

fn processes_start_with_no_signal_blocked_or_ignored(host: &Host) {
    let sandbox = host.start("a");
    let status = sandbox.read("cat /proc/self/status");
    // Two signals are reserved by C libraries.
    let reserved = 0b11_u64 << 31;
    for name in ["SigBlk:\t", "SigIgn:\t"] {
        let hex = status.lines().find_map(|line| line.strip_prefix(name));
        let set = u64::from_str_radix(hex.unwrap(), 16).unwrap();
        assert_eq!(set & !reserved, 0, "{status}");
    }
    sandbox.remove();
}
in_modes!(processes_start_with_no_signal_blocked_or_ignored: root, user, bwrap);

fn processes_run_as_other_users(host: &Host) {
    let sandbox = host.start("a");
    let output = sandbox.request(&json!({ "argv": ["id", "-u"], "uid": 1000 }));
    assert_eq!(output.stdout.trim(), "1000");
    let output = sandbox.request(&json!({ "argv": ["sh", "-c", "echo x > /etc/x"], "uid": 1000 }));
    assert_ne!(output.code, Some(0));
    sandbox.remove();
}
in_modes!(processes_run_as_other_users: root);
