//! Attacks from inside a sandbox on the server, on secrets of the host, and on its own supervisor.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use oubliette_sandbox::{Bind, NetworkNamespace, ProtectedPath};
use rustix::fs::{Gid, Uid};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount,
};
use rustix::thread::UnshareFlags;
use serde_json::json;

use crate::support::{Host, Sandbox, in_modes, init_binary, writable};

/// A port outside the range that the kernel takes free ports from.
fn free_port() -> u16 {
    let first = 20_000 + (std::process::id() % 10_000) as u16;
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    (first..32_000).find(free).unwrap()
}

fn refused_ports_cannot_be_bound_and_others_can(host: &Host) {
    let port = free_port();
    let mut spec = host.spec("a");
    spec.network = NetworkNamespace::Host;
    spec.refused_ports = vec![port];
    let sandbox = host.launch(spec);
    assert!(sandbox.running.enforced().can_refuse_ports);
    let script = format!(
        "import socket\n\
         def can(family, address, port, protocol=0):\n\
         \x20 try:\n\
         \x20   s = socket.socket(family, socket.SOCK_STREAM, protocol)\n\
         \x20   s.bind((address, port)); s.listen(); s.close()\n\
         \x20   return 1\n\
         \x20 except OSError: return 0\n\
         v4, v6 = socket.AF_INET, socket.AF_INET6\n\
         print(*[can(f, a, {port}, p) for f, a in [(v4,'127.0.0.1'),(v4,'0.0.0.0'),(v6,'::1'),(v6,'::')] \
         for p in (0, 256, 262)], can(43, '127.0.0.1', {port}))\n\
         print(can(v4, '127.0.0.1', {other}), can(v4, '127.0.0.1', 0), can(v6, '::1', 0))",
        other = port - 1,
    );
    let output = sandbox.request(&json!({ "argv": ["python3", "-c", script] }));
    assert_eq!(
        output.stdout, "0 0 0 0 0 0 0 0 0 0 0 0 0\n1 1 1\n",
        "{output:?}"
    );
    // The rules do not reach the host.
    drop(TcpListener::bind(("127.0.0.1", port)).unwrap());
    sandbox.remove();
    host.assert_nothing_left();
}
in_modes!(refused_ports_cannot_be_bound_and_others_can: root, user);

fn filling_its_filesystems_in_memory_does_not_end_a_sandbox(host: &Host) {
    let mut spec = host.spec("a");
    spec.limits.memory_bytes = Some(64 << 20);
    let sandbox = host.launch(spec);
    let fill = "for d in /dev/shm /run /tmp; do dd if=/dev/zero of=$d/fill bs=1M 2>/dev/null; done; \
                du -smc /dev/shm/fill /run/fill /tmp/fill | tail -n1 | cut -f1";
    let filled: u64 = sandbox.read(fill).parse().unwrap();
    assert!((30..64).contains(&filled), "{filled} MiB");
    assert_eq!(
        sandbox.read("rm /dev/shm/fill /run/fill /tmp/fill; echo fine"),
        "fine"
    );
    sandbox.remove();
    host.assert_nothing_left();
}
in_modes!(filling_its_filesystems_in_memory_does_not_end_a_sandbox: root, user, bwrap);

/// A secret of the host's root, removed again on drop.
struct Canary {
    path: PathBuf,
}

impl Canary {
    /// A file that only root may read.
    fn file(dir: &str, name: &str) -> Self {
        let path = Path::new(dir).join(format!("oubliette-test-{}-{name}", std::process::id()));
        fs::write(&path, "secret").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        Self { path }
    }

    /// A directory that only root may enter, with a file that all may read.
    fn directory(dir: &str, name: &str) -> Self {
        let path = Path::new(dir).join(format!("oubliette-test-{}-{name}", std::process::id()));
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        fs::write(path.join("key"), "secret").unwrap();
        Self { path }
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.path.join("key"));
        let _ = fs::remove_dir(&self.path).or_else(|_| fs::remove_file(&self.path));
    }
}

fn secrets_of_the_host_are_hidden_whenever_they_were_made(host: &Host) {
    let directories = ["/etc", "/opt", "/usr/local/etc", "/srv"];
    let existing = || directories.iter().filter(|dir| Path::new(dir).is_dir());
    let make = |when: &str| -> Vec<Canary> {
        existing()
            .flat_map(|dir| {
                [
                    Canary::file(dir, &format!("{when}-file")),
                    Canary::directory(dir, &format!("{when}-dir")),
                ]
            })
            .collect()
    };
    let before = make("before");
    let sandbox = host.start("a");
    let after = make("after");
    for canary in before.iter().chain(&after) {
        let path = canary.path.display();
        let read = sandbox.sh(&format!("cat {path} {path}/key 2>/dev/null"));
        assert_eq!(read.stdout, "", "{path} is readable");
    }
    sandbox.remove();
    host.assert_nothing_left();
}
in_modes!(secrets_of_the_host_are_hidden_whenever_they_were_made: root);

/// A filesystem of its own at a new directory, in the mount namespace of this test.
struct Submount {
    path: PathBuf,
}

impl Submount {
    fn new(dir: &str) -> Self {
        let path = Path::new(dir).join(format!("oubliette-test-{}-mount", std::process::id()));
        fs::create_dir(&path).unwrap();
        let options = std::ffi::CString::new("size=64k,mode=755").unwrap();
        mount("tmpfs", &path, "tmpfs", MountFlags::empty(), &*options).unwrap();
        for (name, mode) in [("secret", 0o600), ("public", 0o644)] {
            fs::write(path.join(name), name).unwrap();
            fs::set_permissions(path.join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        Self { path }
    }
}

impl Drop for Submount {
    fn drop(&mut self) {
        let _ = unmount(&self.path, UnmountFlags::DETACH);
        let _ = fs::remove_dir(&self.path);
    }
}

fn secrets_in_filesystems_below_shared_directories_are_hidden(host: &Host) {
    // SAFETY: The table of descriptors stays shared; only mounts are unshared.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }.unwrap();
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).unwrap();
    let mounts: Vec<Submount> = ["/etc", "/opt", "/usr/local", "/usr/share"]
        .map(Submount::new)
        .into();
    let sandbox = host.start("a");
    for mount in &mounts[..3] {
        let path = mount.path.display();
        let read = sandbox.sh(&format!("cat {path}/secret 2>/dev/null"));
        assert_eq!(read.stdout, "", "{path} is readable");
    }
    // Where files of everyone are shared, those of such a filesystem are too.
    let path = mounts[3].path.display();
    assert_eq!(sandbox.read(&format!("cat {path}/public")), "public");
    sandbox.remove();
    host.assert_nothing_left();
}
in_modes!(secrets_in_filesystems_below_shared_directories_are_hidden: root);

fn programs_can_be_installed_beside_the_hosts(host: &Host) {
    let sandbox = host.start("a");
    let install = "echo more >> /etc/passwd && mkdir -p /etc/apt/added /opt/added \
        /usr/local/lib/added && echo x > /usr/local/bin/added && echo x > /usr/local/etc/added \
        && echo x > /etc/hosts.new && mv /etc/hosts.new /etc/hosts";
    sandbox.read(install);
    sandbox.stop();
    // As a version that kept it in the layer of `/usr`.
    let layers = sandbox.spec.layers_dir.clone();
    fs::rename(
        layers.join("usr-local/upper"),
        layers.join("usr/upper/local"),
    )
    .unwrap();
    fs::remove_dir_all(layers.join("usr-local")).unwrap();
    let sandbox = host.launch(sandbox.spec.clone());
    assert_eq!(
        sandbox.read("tail -n1 /etc/passwd; cat /etc/hosts"),
        "more\nx"
    );
    assert_eq!(
        sandbox.read("cat /usr/local/bin/added /usr/local/etc/added"),
        "x\nx"
    );
    assert!(sandbox.can("test -d /opt/added -a -d /usr/local/lib/added -a -d /etc/apt/added"));
    sandbox.remove();
    host.assert_nothing_left();
}
in_modes!(programs_can_be_installed_beside_the_hosts: root);

fn protected(within: &str, path: &str) -> ProtectedPath {
    ProtectedPath {
        within: within.into(),
        path: path.into(),
    }
}

/// Tries everything that would change, replace or create the path `dir/name`; true if it is as it was.
fn withstands(sandbox: &Sandbox, workspace: &str, dir: &str, name: &str) -> bool {
    let before = sandbox.read(&format!(
        "cd {workspace}; ls -ld {dir}/{name}; cat {dir}/{name} 2>&1; true"
    ));
    sandbox.sh(&format!(
        "cd {workspace}; echo evil > {dir}/{name}; rm -rf {dir}/{name}; mv {dir}/{name} gone; \
         mkdir -p {dir}; echo evil > {dir}/{name}/x; echo evil > new; mv new {dir}/{name}; \
         ln -f {dir}/{name} link && echo evil > link; \
         mv {dir} moved && mkdir {dir} && echo evil > {dir}/{name}; \
         cd /; mv {workspace} {workspace}-moved && mkdir -p {workspace}/{dir} && \
         echo evil > {workspace}/{dir}/{name}"
    ));
    before
        == sandbox.read(&format!(
            "cd {workspace}; ls -ld {dir}/{name}; cat {dir}/{name} 2>&1; true"
        ))
}

fn protected_paths_cannot_be_changed_replaced_or_created(host: &Host) {
    let mut spec = host.spec("a");
    let workspace = spec.binds[0].host.clone();
    let others = host.path("others");
    for dir in [workspace.join("conf/deep"), others.join("one/conf/deep")] {
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("rule"), "rule").unwrap();
        fs::write(dir.join("free"), "free").unwrap();
    }
    spec.binds.push(writable(others.clone(), "/workspaces"));
    for within in ["/workspace", "/workspaces/one", "/workspaces/missing"] {
        for path in ["conf/deep/rule", "conf/deep/absent", "new/dir/absent"] {
            spec.protected.push(protected(within, path));
        }
    }
    let sandbox = host.launch(spec);
    for within in ["/workspace", "/workspaces/one"] {
        for name in ["rule", "absent"] {
            assert!(
                withstands(&sandbox, within, "conf/deep", name),
                "{within} {name}"
            );
        }
        assert!(
            withstands(&sandbox, within, "new/dir", "absent"),
            "{within}"
        );
        assert_eq!(
            sandbox.read(&format!("cat {within}/conf/deep/rule")),
            "rule"
        );
        // Everything else can be changed.
        sandbox.read(&format!(
            "cd {within}/conf/deep && echo more >> free && mv free x && rm x && touch y && mkdir z"
        ));
    }
    assert!(!others.join("missing").exists());
    for dir in [workspace, others.join("one")] {
        assert_eq!(
            fs::read_to_string(dir.join("conf/deep/rule")).unwrap(),
            "rule"
        );
        assert!(
            fs::read_dir(dir.join("conf/deep/absent"))
                .unwrap()
                .next()
                .is_none()
        );
    }
    sandbox.remove();
    host.assert_nothing_left();
}
in_modes!(protected_paths_cannot_be_changed_replaced_or_created: root, user, bwrap);

fn paths_are_protected_while_a_sandbox_runs(host: &Host) {
    let mut spec = host.spec("a");
    let others = host.path("others");
    fs::create_dir(&others).unwrap();
    spec.binds.push(writable(others.clone(), "/workspaces"));
    let sandbox = host.launch(spec);
    sandbox.read("mkdir -p /workspaces/new/conf; echo rule > /workspaces/new/conf/rule");
    let paths = [
        protected("/workspaces/new", "conf/rule"),
        protected("/workspaces/new", "absent"),
    ];
    let state = &sandbox.spec.state_dir;
    for _ in 0..2 {
        oubliette_sandbox::protect(state, &init_binary(), &paths).unwrap();
    }
    assert!(withstands(&sandbox, "/workspaces/new", "conf", "rule"));
    assert!(withstands(&sandbox, "/workspaces/new", ".", "absent"));
    assert_eq!(
        fs::read_to_string(others.join("new/conf/rule")).unwrap(),
        "rule\n"
    );
    // A link that leads elsewhere is refused with the path.
    sandbox.read("mkdir /workspaces/other; ln -s / /workspaces/other/conf");
    let through_link = [protected("/workspaces/other", "conf/rule")];
    let refused = oubliette_sandbox::protect(state, &init_binary(), &through_link).unwrap_err();
    assert!(
        refused.to_string().contains("/workspaces/other/conf/rule"),
        "{refused}"
    );
    sandbox.remove();
    host.assert_nothing_left();
}
in_modes!(paths_are_protected_while_a_sandbox_runs: root, user);

fn directories_above_a_read_only_bind_cannot_be_renamed(host: &Host) {
    let mut spec = host.spec("a");
    let tools = host.path("tools");
    fs::create_dir(&tools).unwrap();
    fs::write(tools.join("agent"), "real").unwrap();
    spec.binds.push(Bind {
        host: tools,
        inside: "/opt/oubliette-test/tools".into(),
        read_only: true,
        owner: None,
    });
    let sandbox = host.launch(spec);
    sandbox.sh(
        "mv /opt/oubliette-test /opt/moved; mkdir -p /opt/oubliette-test/tools; \
         echo evil > /opt/oubliette-test/tools/agent",
    );
    assert_eq!(sandbox.read("cat /opt/oubliette-test/tools/agent"), "real");
    sandbox.remove();
    host.assert_nothing_left();
}
in_modes!(directories_above_a_read_only_bind_cannot_be_renamed: root, user);

fn a_deep_tree_that_is_being_changed_gets_another_owner(host: &Host) {
    const OWNER: u32 = 4711;
    const DEPTH: usize = 3000;
    let scratch = host.dir.path();
    let (top, outside) = (scratch.join("top"), scratch.join("outside"));
    fs::create_dir_all(top.join("left/moving/a/b")).unwrap();
    fs::create_dir_all(top.join("right")).unwrap();
    fs::create_dir(&outside).unwrap();
    std::os::unix::fs::symlink(&outside, top.join("link")).unwrap();
    let mut dir = oubliette_trees::open_dir(rustix::fs::CWD, &top).unwrap();
    let mode = rustix::fs::Mode::RWXU;
    for _ in 0..DEPTH {
        rustix::fs::mkdirat(&dir, "deep", mode).unwrap();
        dir = oubliette_trees::open_dir(&dir, "deep").unwrap();
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                fs::rename(top.join("left/moving"), top.join("right/moving")).unwrap();
                fs::rename(top.join("right/moving"), top.join("left/moving")).unwrap();
            }
        });
        for _ in 0..20 {
            let id = |old: u32| (old != OWNER).then_some(OWNER);
            let changed = oubliette_trees::chown_tree(&top, |stat| {
                let (uid, gid) = (id(stat.st_uid), id(stat.st_gid));
                (uid.map(Uid::from_raw), gid.map(Gid::from_raw))
            });
            changed.unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(fs::metadata(&top).unwrap().uid(), OWNER);
    assert_eq!(fs::symlink_metadata(top.join("link")).unwrap().gid(), OWNER);
    assert_eq!(rustix::fs::fstat(&dir).unwrap().st_uid, OWNER);
    assert_ne!(fs::metadata(&outside).unwrap().uid(), OWNER);
    oubliette_trees::remove_tree(&top).unwrap();
}
in_modes!(a_deep_tree_that_is_being_changed_gets_another_owner: root);
