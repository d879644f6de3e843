//! The Docker engine, asked directly, and an image with a userland out of this machine's own files:
//! there may be no registry to take one from.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use serde_json::Value;

const DOCKER_SOCKET: &str = "/var/run/docker.sock";
/// What real agents and their shell commands use.
const COMMANDS: [&str; 39] = [
    "awk",
    "basename",
    "bash",
    "cat",
    "chmod",
    "cp",
    "cut",
    "date",
    "dirname",
    "echo",
    "env",
    "find",
    "git",
    "git-receive-pack",
    "git-upload-pack",
    "grep",
    "head",
    "id",
    "ln",
    "ls",
    "mkdir",
    "mktemp",
    "mv",
    "printf",
    "ps",
    "pwd",
    "readlink",
    "rm",
    "sed",
    "seq",
    "sh",
    "sleep",
    "sort",
    "tail",
    "tee",
    "touch",
    "tr",
    "uname",
    "wc",
];
const FILES: [(&str, &str); 3] = [
    ("etc/passwd", "root:x:0:0:root:/root:/bin/bash\n"),
    ("etc/group", "root:x:0:\n"),
    (
        "etc/nsswitch.conf",
        "passwd: files\ngroup: files\nhosts: files dns\n",
    ),
];

/// Programs that do nothing, for builds of the product's own Dockerfiles.
const STUBS: [(&str, &str); 3] = [
    (
        "usr/bin/apt-get",
        "#!/bin/sh\necho \"$@\" >> /apt-get.log\n",
    ),
    ("usr/local/bin/node", "#!/bin/sh\n"),
    (
        "usr/local/lib/node_modules/npm/bin/npm-cli.js",
        "#!/bin/sh\n",
    ),
];

/// Asks the Docker engine; none if there is none.
pub(crate) fn request(method: &str, path: &str) -> Option<Value> {
    request_at(Path::new(DOCKER_SOCKET), method, path)
}

/// Asks the engine at a socket.
pub(crate) fn request_at(socket: &Path, method: &str, path: &str) -> Option<Value> {
    let answer = send(socket, method, path, &[])?;
    serde_json::from_str(&answer).ok()
}

/// The body of an answer.
fn send(socket: &Path, method: &str, path: &str, body: &[u8]) -> Option<String> {
    let mut stream = UnixStream::connect(socket).ok()?;
    // The old version of the protocol, in which an answer ends with its connection.
    let request = format!(
        "{method} {path} HTTP/1.0\r\nHost: engine\r\nContent-Type: application/x-tar\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(request.as_bytes()).ok()?;
    stream.write_all(body).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (_, body) = answer.split_once("\r\n\r\n")?;
    Some(body.to_owned())
}

/// The name of an image with glibc, a shell, git and the usual commands. Made once: its name says
/// which files are in it, so that the next run finds it.
pub fn userland() -> &'static str {
    static NAME: LazyLock<String> = LazyLock::new(|| {
        let files = userland_files();
        let (repository, tag) = ("oubliette-test-userland", digest(&files));
        let name = format!("{repository}:{tag}");
        let found = request("GET", &format!("/images/{name}/json"));
        if found.is_some_and(|image| image["Id"].is_string()) {
            return name;
        }
        let path = format!("/images/create?fromSrc=-&repo={repository}&tag={tag}");
        let socket = Path::new(DOCKER_SOCKET);
        let answer = send(socket, "POST", &path, &archive(&files));
        let answer = answer.expect("run tests/docker first");
        assert!(answer.contains("sha256:"), "no image was made: {answer}");
        name
    });
    &NAME
}

/// Every file of the image that is this machine's, and where it is to be.
fn userland_files() -> BTreeSet<(PathBuf, PathBuf)> {
    let mut files = BTreeSet::new();
    let mut libraries = BTreeSet::new();
    for name in COMMANDS {
        let candidates = ["/usr/bin", "/bin"].map(|directory| Path::new(directory).join(name));
        let program = candidates.into_iter().find(|path| path.is_file());
        let program =
            program.unwrap_or_else(|| panic!("`{name}` is missing; run tests/docker first"));
        libraries.extend(libraries_of(&program));
        files.insert((program, Path::new("usr/bin").join(name)));
    }
    // Agents need these libraries too, and no program above links to them.
    for name in [
        "libpthread.so.0",
        "libdl.so.2",
        "libm.so.6",
        "librt.so.1",
        "libstdc++.so.6",
        "libgcc_s.so.1",
    ] {
        let beside = libraries.iter().find(|path| path.ends_with("libc.so.6"));
        libraries.extend(beside.map(|libc: &PathBuf| libc.with_file_name(name)));
    }
    for library in libraries {
        let inside = library.strip_prefix("/").unwrap().to_owned();
        files.insert((library, inside));
    }
    files
}

/// The libraries of a program, and what loads them.
fn libraries_of(program: &Path) -> Vec<PathBuf> {
    let listed = Command::new("ldd").arg(program).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout);
    let words = listed.split_whitespace();
    words
        .filter(|word| word.starts_with('/') && !word.ends_with(':'))
        .map(PathBuf::from)
        .collect()
}

/// Changes with the list of files and with each of them.
fn digest(files: &BTreeSet<(PathBuf, PathBuf)>) -> String {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let mut add = |text: String| {
        for byte in text.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    let texts = FILES.iter().chain(&STUBS);
    texts.for_each(|file| add(format!("{file:?}")));
    for (from, to) in files {
        let about = fs::metadata(from).unwrap();
        add(format!("{to:?} {} {}", about.len(), about.mtime()));
    }
    format!("{hash:016x}")
}

fn archive(files: &BTreeSet<(PathBuf, PathBuf)>) -> Vec<u8> {
    let root = tempfile::tempdir().unwrap();
    for directory in ["etc", "root", "tmp", "usr/bin", "var/tmp"] {
        fs::create_dir_all(root.path().join(directory)).unwrap();
    }
    fs::set_permissions(root.path().join("tmp"), fs::Permissions::from_mode(0o1777)).unwrap();
    symlink("usr/bin", root.path().join("bin")).unwrap();
    for (path, text) in FILES {
        fs::write(root.path().join(path), text).unwrap();
    }
    for (from, to) in files {
        let to = root.path().join(to);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(from, to).unwrap();
    }
    for (path, text) in STUBS {
        let to = root.path().join(path);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::write(&to, text).unwrap();
        fs::set_permissions(to, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let archive = Command::new("tar")
        .args([
            "--create",
            "--owner=0",
            "--group=0",
            "--mode=a+rX,u+w",
            "--directory",
        ])
        .arg(root.path())
        .arg(".")
        .output()
        .unwrap();
    assert!(
        archive.status.success(),
        "{}",
        String::from_utf8_lossy(&archive.stderr)
    );
    archive.stdout
}
