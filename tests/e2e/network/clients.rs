//! The programs that agents fetch code with, through the gate: each with the variables of the proxy and without them. The
//! registries are directories on a loopback address.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::json;
use support::FileServer;
use support::{Modern, RunAs, Server, ServerOptions};

use super::{NO_PROXY, NameServer, loopback_address, policy_project, run};

const USER: u32 = 54_323;

/// A registry, and projects that may reach it: of a server that is root, and of one that is not.
struct World {
    registry: FileServer,
    _names: NameServer,
    servers: Vec<(Server, Modern, String)>,
}

impl World {
    async fn start(config: &str) -> Self {
        let (names, address) = (NameServer::start(), loopback_address());
        names.set("pkgs.test", address);
        let registry = FileServer::start(address);
        let mut servers = Vec::new();
        let user = RunAs {
            uid: USER,
            gid: USER,
            group: USER,
        };
        for run_as in [None, Some(user)] {
            let server = Server::start_with(ServerOptions {
                config: format!("runtime = \"sandbox\"\n{}{config}", names.config()),
                run_as,
                ..ServerOptions::default()
            });
            let admin = server.admin();
            let policy = json!({ "preset": "strict", "allow": ["pkgs.test", address] });
            let project = policy_project(&admin, "one", policy).await;
            servers.push((server, admin, project));
        }
        Self {
            registry,
            _names: names,
            servers,
        }
    }

    /// Runs a line in a new directory of each project, with the variables of the proxy and without; its output must
    /// contain `expected`.
    async fn check(&self, line: &str, expected: &str) {
        for (_, admin, project) in &self.servers {
            for (name, prefix) in [("with", ""), ("without", NO_PROXY)] {
                let line =
                    format!("{prefix} mkdir -p {name} && cd {name} && export HOME=$PWD && {line}");
                let said = run(admin, project, &line).await;
                assert!(said.contains(expected), "{line}: {said}");
            }
        }
    }
}

/// Runs a program of this machine in a directory.
fn host(directory: &Path, program: &str, arguments: &[&str]) {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(directory);
    let ended = command.output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.success(), "{program}: {said}");
}

#[test(needs(root, sandbox), limit = 240)]
async fn git_clones_over_http() {
    let world = World::start("").await;
    let root = world.registry.root();
    let git = |directory: &Path, arguments: &[&str]| {
        let identity = ["-c", "user.name=t", "-c", "user.email=t@t.test"];
        let arguments = [&identity[..], arguments].concat();
        host(directory, "git", &arguments);
    };
    let source = tempfile::tempdir().unwrap();
    git(source.path(), &["init", "-q", "-b", "main"]);
    std::fs::write(source.path().join("file"), "from git\n").unwrap();
    git(source.path(), &["add", "."]);
    git(source.path(), &["commit", "-qm", "one"]);
    let source = source.path().to_str().unwrap();
    git(root, &["clone", "-q", "--bare", source, "repo.git"]);
    git(&root.join("repo.git"), &["update-server-info"]);
    let line = "git clone -q http://pkgs.test/repo.git && cat repo/file";
    world.check(line, "from git").await;
}

#[test(needs(root, sandbox), limit = 240)]
async fn npm_installs_a_package() {
    let world = World::start("").await;
    let registry = &world.registry;
    registry.write(
        "build/package/package.json",
        r#"{"name":"left","version":"1.0.0","main":"index.js"}"#,
    );
    let index = "module.exports = 'from npm'\n";
    registry.write("build/package/index.js", index);
    let arguments = ["-czf", "../left-1.0.0.tgz", "package"];
    host(&registry.root().join("build"), "tar", &arguments);
    let version = json!({
        "name": "left", "version": "1.0.0", "main": "index.js",
        "dist": { "tarball": "http://pkgs.test/left-1.0.0.tgz" },
    });
    let packument = json!({
        "name": "left", "dist-tags": { "latest": "1.0.0" }, "versions": { "1.0.0": version },
    });
    registry.write("npm/left", packument.to_string());
    let line = "echo '{}' > package.json && npm install --no-audit --no-fund --registry http://pkgs.test/npm/ left \
                >/dev/null && node -p 'require(\"left\")'";
    world.check(line, "from npm").await;
}

#[test(needs(root, sandbox), limit = 240)]
async fn go_downloads_a_module() {
    let world = World::start("").await;
    let registry = &world.registry;
    let module = "left.test/left";
    let directory = format!("go/{module}/@v");
    registry.write(&format!("{directory}/list"), "v1.0.0\n");
    let info = r#"{"Version":"v1.0.0","Time":"2024-01-01T00:00:00Z"}"#;
    registry.write(&format!("{directory}/v1.0.0.info"), info);
    let go_mod = format!("module {module}\n\ngo 1.20\n");
    registry.write(&format!("{directory}/v1.0.0.mod"), &go_mod);
    let inner = format!("build/{module}@v1.0.0");
    registry.write(&format!("{inner}/go.mod"), &go_mod);
    let source = "package left\n\nfunc Text() string { return \"from go\" }\n";
    registry.write(&format!("{inner}/left.go"), source);
    zip(registry, "build", &format!("{directory}/v1.0.0.zip"));
    let program =
        "package main\n\nimport \"left.test/left\"\n\nfunc main() { println(left.Text()) }\n";
    registry.write("main.go", program);
    let line = "export PATH=$PATH:/usr/local/go/bin GOPROXY=http://pkgs.test/go GOSUMDB=off GOTOOLCHAIN=local GOFLAGS=-modcacherw && \
                curl -sS -O http://pkgs.test/main.go && (test -e go.mod || go mod init app.test >/dev/null 2>&1) && \
                go get left.test/left@v1.0.0 2>&1 && ls $HOME/go/pkg/mod/left.test && cat $HOME/go/pkg/mod/left.test/left@v1.0.0/left.go";
    world.check(line, "from go").await;
}

#[test(needs(root, sandbox), limit = 240)]
async fn apt_updates_and_downloads_from_a_flat_repository() {
    let world = World::start("").await;
    let registry = &world.registry;
    let control = "Package: left\nVersion: 1.0\nArchitecture: all\nMaintainer: t <t@t.test>\nDescription: left\n";
    registry.write("build/left/DEBIAN/control", control);
    registry.write("build/left/usr/share/left", "from apt\n");
    registry.write("apt/placeholder", "");
    let arguments = ["-b", "build/left", "apt/left_1.0_all.deb"];
    host(registry.root(), "dpkg-deb", &arguments);
    let deb = registry.root().join("apt/left_1.0_all.deb");
    let size = std::fs::metadata(&deb).unwrap().len();
    let sum = Command::new("sha256sum").arg(&deb).output().unwrap();
    let sum = String::from_utf8(sum.stdout).unwrap();
    let sum = sum.split(' ').next().unwrap();
    let packages =
        format!("{control}Filename: ./left_1.0_all.deb\nSize: {size}\nSHA256: {sum}\n\n");
    registry.write("apt/Packages", packages);
    let line = "mkdir -p lists/partial archives/partial && echo 'deb [trusted=yes] http://pkgs.test/apt ./' > sources.list && \
                : > status && o=\"-o Dir::Etc::sourcelist=$PWD/sources.list -o Dir::Etc::sourceparts=/nonexistent \
                -o Dir::State::lists=$PWD/lists -o Dir::Cache=$PWD -o Dir::State::status=$PWD/status \
                -o APT::Sandbox::User=root -o Acquire::Languages=none\" && apt-get $o update 2>&1 && apt-get $o download left 2>&1 && \
                dpkg-deb -x left_1.0_all.deb out && cat out/usr/share/left";
    world.check(line, "from apt").await;
}

#[test(needs(root, sandbox), limit = 240)]
async fn a_jvm_and_other_programs_fetch_a_file() {
    let world = World::start("").await;
    world.registry.write("file", "from a file\n");
    let source = "import java.net.URI;\nimport java.net.http.*;\n\
                  public class Fetch { public static void main(String[] a) throws Exception {\n\
                  var request = HttpRequest.newBuilder(URI.create(\"http://pkgs.test/file\")).build();\n\
                  System.out.print(HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString()).body()); } }\n";
    world.registry.write("Fetch.java", source);
    let expected = "from a file";
    for line in [
        "curl -sS http://pkgs.test/file",
        "wget -q -O - http://pkgs.test/file",
        "curl -sS -O http://pkgs.test/Fetch.java && java -Xmx128m Fetch.java",
        "/usr/bin/python3 -c 'import urllib.request as r; print(r.urlopen(\"http://pkgs.test/file\").read())'",
        "node -e 'fetch(\"http://pkgs.test/file\").then(r => r.text()).then(console.log)'",
    ] {
        world.check(line, expected).await;
    }
}

#[test(needs(root, sandbox), limit = 240)]
async fn pip_installs_a_wheel() {
    let world = World::start("").await;
    let registry = &world.registry;
    registry.write("build/left.py", "text = 'from pip'\n");
    let info = "build/left-1.0.dist-info";
    registry.write(
        &format!("{info}/METADATA"),
        "Metadata-Version: 2.1\nName: left\nVersion: 1.0\n",
    );
    registry.write(
        &format!("{info}/WHEEL"),
        "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    );
    registry.write(&format!("{info}/RECORD"), "");
    zip(registry, "build", "left-1.0-py3-none-any.whl");
    registry.write(
        "simple/left/index.html",
        "<a href=\"/left-1.0-py3-none-any.whl\">left-1.0-py3-none-any.whl</a>",
    );
    let line = "/usr/bin/python3 -m pip install -q --no-cache-dir --disable-pip-version-check --target out --index-url http://pkgs.test/simple/ \
                --trusted-host pkgs.test left 2>&1 && PYTHONPATH=out /usr/bin/python3 -c 'import left; print(left.text)'";
    world.check(line, "from pip").await;
}

#[test(needs(root, sandbox), limit = 240)]
async fn cargo_builds_with_a_crate_of_a_sparse_registry() {
    let toolchain = Toolchain::link();
    let path = toolchain.0.path().to_str().unwrap().to_owned();
    let world = World::start(&format!("[containers]\nread_only_paths = [\"{path}\"]\n")).await;
    let registry = &world.registry;
    let manifest = "[package]\nname = \"left\"\nversion = \"1.0.0\"\nedition = \"2021\"\n";
    registry.write("build/left-1.0.0/Cargo.toml", manifest);
    let source = "pub fn text() -> &'static str { \"from cargo\" }\n";
    registry.write("build/left-1.0.0/src/lib.rs", source);
    let arguments = ["-czf", "../left-1.0.0.crate", "left-1.0.0"];
    host(&registry.root().join("build"), "tar", &arguments);
    let archive = registry.root().join("left-1.0.0.crate");
    let sum = Command::new("sha256sum").arg(&archive).output().unwrap();
    let sum = String::from_utf8(sum.stdout).unwrap();
    let sum = sum.split(' ').next().unwrap();
    let download = "http://pkgs.test/{crate}-{version}.crate";
    registry.write("cargo/config.json", json!({ "dl": download }).to_string());
    let entry = json!({
        "name": "left", "vers": "1.0.0", "deps": [], "cksum": sum, "features": {}, "yanked": false,
    });
    registry.write("cargo/le/ft/left", format!("{entry}\n"));
    let manifest = "[package]\nname = \"app\"\nversion = \"0.1.0\"\nedition = \"2021\"\n\n[dependencies]\nleft = \"1\"\n";
    registry.write("app/Cargo.toml", manifest);
    registry.write(
        "app/main.rs",
        "fn main() { println!(\"{}\", left::text()) }\n",
    );
    let config = "[source.crates-io]\nreplace-with = \"local\"\n[source.local]\nregistry = \"sparse+http://pkgs.test/cargo/\"\n";
    registry.write("app/config.toml", config);
    let line = format!(
        "export PATH={path}/bin:$PATH && mkdir -p src .cargo && curl -sS -O http://pkgs.test/app/Cargo.toml && \
         curl -sS -o src/main.rs http://pkgs.test/app/main.rs && curl -sS -o .cargo/config.toml http://pkgs.test/app/config.toml && \
         cargo build -q 2>&1 && target/debug/app"
    );
    world.check(&line, "from cargo").await;
}

/// The compiler that builds these tests, where every user can read it.
struct Toolchain(tempfile::TempDir);

impl Toolchain {
    fn link() -> Self {
        let asked = Command::new("rustc").args(["--print", "sysroot"]).output();
        let sysroot = String::from_utf8(asked.unwrap().stdout).unwrap();
        let own = Self(tempfile::tempdir().unwrap());
        let readable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(own.0.path(), readable).unwrap();
        let target = own.0.path().to_str().unwrap();
        for part in ["bin", "lib"] {
            let from = format!("{}/{part}", sysroot.trim());
            let mut link = Command::new("cp");
            link.args(["-al", &from, target]);
            // The directory may be on another disk.
            if !link.output().unwrap().status.success() {
                host(Path::new("/"), "cp", &["-a", &from, target]);
            }
        }
        own
    }
}

/// Packs what is in a directory of the registry into an archive there.
fn zip(registry: &FileServer, directory: &str, archive: &str) {
    let script = "import os, sys, zipfile\n\
                  with zipfile.ZipFile(sys.argv[2], 'w') as z:\n\
                  \x20 for base, _, files in os.walk(sys.argv[1]):\n\
                  \x20   for f in files:\n\
                  \x20     p = os.path.join(base, f); z.write(p, os.path.relpath(p, sys.argv[1]))\n";
    let arguments = ["-c", script, directory, archive];
    host(registry.root(), "python3", &arguments);
}
