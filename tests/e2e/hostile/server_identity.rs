//! Processes that pretend to be the server. They get no key from the command line.

use std::fs::Permissions;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use support::{
    FreshHome, Pty, RunAs, Server, ServerOptions, binary, cli, eventually, run, run_cli, stderr,
    stdout,
};

/// How long an impostor waits for the rest of a request.
const READ_TIMEOUT: Duration = Duration::from_millis(500);

/// Idle containers are looked for every 15 seconds.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);

/// A process that listens where a server was, and keeps what it is sent.
struct Impostor {
    received: Arc<Mutex<Vec<u8>>>,
    addresses: Vec<SocketAddr>,
}

impl Impostor {
    /// Listens on both loopback addresses.
    fn listen(port: u16) -> Self {
        let received = Arc::new(Mutex::new(Vec::new()));
        let addresses = ["127.0.0.1", "[::1]"].map(|host| format!("{host}:{port}"));
        let listeners = addresses.map(|address| TcpListener::bind(address).unwrap());
        let addresses = listeners.iter().map(|it| it.local_addr().unwrap());
        let addresses = addresses.collect();
        for listener in listeners {
            let received = received.clone();
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    let mut stream = stream.unwrap();
                    stream.set_read_timeout(Some(READ_TIMEOUT)).unwrap();
                    let mut buffer = [0; 16 << 10];
                    while let Ok(read @ 1..) = stream.read(&mut buffer) {
                        received.lock().unwrap().extend_from_slice(&buffer[..read]);
                    }
                    let _ =
                        stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
                }
            });
        }
        Self {
            received,
            addresses,
        }
    }

    fn received(&self) -> String {
        String::from_utf8_lossy(&self.received.lock().unwrap()).into_owned()
    }
}

fn port(server: &Server) -> u16 {
    let (_, port) = server.base().rsplit_once(':').unwrap();
    port.parse().unwrap()
}

#[test]
async fn an_impostor_at_the_port_of_an_ended_server_gets_no_key() {
    for end in ["stop", "kill"] {
        let mut server = Server::start();
        let key = server.admin_key();
        match end {
            "stop" => drop(server.stop()),
            _ => server.kill(),
        }
        let impostor = Impostor::listen(port(&server));
        let home = server.home().to_owned();
        let url = server.base().to_owned();
        let localhost = url.replace("127.0.0.1", "localhost");
        // It reaches this machine, too, as any name may.
        let any = url.replace("127.0.0.1", "0.0.0.0");
        let commands: [&[&str]; 6] = [
            &["project", "list"],
            &["--url", &url, "project", "list"],
            &["--url", &localhost, "project", "list"],
            &["--url", &any, "project", "list"],
            &["session", "attach", "x"],
            &["mcp", "setup", "cursor"],
        ];
        for url in [&url, &localhost, &any] {
            let mut completion = Command::new(binary());
            completion
                .env_clear()
                .env("HOME", &home)
                .env("OUBLIETTE_HOME", &home)
                .env("_OUBLIETTE_COMPLETE", "fish")
                .args(["--", "oubliette", "--url", url, "project", "get", ""]);
            assert!(run(completion).await.status.success());
        }
        let mut outputs = Vec::new();
        for command in commands {
            outputs.push((command, run_cli(&home, command).await));
        }
        assert_eq!(impostor.received(), "", "{end}");
        for (command, ended) in outputs {
            let sentence = stderr(&ended);
            assert_eq!(ended.status.code(), Some(1), "{end} {command:?} {sentence}");
            assert!(
                sentence.contains("not running") || sentence.contains("no server is running"),
                "{end} {command:?} {sentence}"
            );
            assert!(!stdout(&ended).contains(&key));
        }
        let doctor = run_cli(&home, &["doctor"]).await;
        assert!(stdout(&doctor).contains("no server is running"), "{end}");
    }
}

#[test]
async fn a_server_whose_port_is_taken_says_by_whom() {
    let mut server = Server::start();
    server.kill();
    let impostor = Impostor::listen(port(&server));
    for address in &impostor.addresses {
        let address = address.to_string();
        let start = ["serve", "--listen", &address];
        let refused = run_cli(server.home(), &start).await;
        let sentence = stderr(&refused);
        assert_eq!(refused.status.code(), Some(1), "{sentence}");
        // This test is the impostor.
        let who = format!("process {} ", std::process::id());
        assert!(sentence.contains(&who), "{sentence}");
        assert!(sentence.contains("oubliette down"), "{sentence}");
    }
}

#[test]
async fn no_other_process_can_listen_on_either_loopback_address() {
    let server = Server::start();
    let port = port(&server);
    for host in ["127.0.0.1", "[::1]"] {
        let taken = TcpListener::bind(format!("{host}:{port}"));
        assert_eq!(taken.unwrap_err().kind(), ErrorKind::AddrInUse, "{host}");
        let health = support::http().get(format!("http://{host}:{port}/healthz"));
        assert_eq!(health.send().await.unwrap().status(), 200, "{host}");
    }
}

#[test]
async fn commands_use_the_socket_even_if_the_url_is_given() {
    let server = Server::start();
    let url = server.base().replace("127.0.0.1", "localhost");
    for (name, command) in [
        ("plain", vec!["project", "create", "plain"]),
        ("url", vec!["--url", &url, "project", "create", "url"]),
    ] {
        let ended = run_cli(server.home(), &command).await;
        assert!(ended.status.success(), "{name}: {}", stderr(&ended));
    }
    let log = server.admin().call("audit_list", json!({})).await;
    let entries = log.ok()["entries"].as_array().unwrap();
    let made = entries
        .iter()
        .filter(|entry| entry["operation"] == "project_create");
    let from: Vec<&str> = made
        .map(|entry| entry["address"].as_str().unwrap())
        .collect();
    assert_eq!(from, ["local", "local"]);
}

#[test]
async fn the_socket_is_private_and_a_shared_directory_is_not_believed() {
    let server = Server::start();
    let run = server.home().join("run");
    let mode = |path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(run.join("server.sock")), 0o600);
    assert_eq!(mode(run.clone()), 0o700);
    // Others could replace the socket, or the directory that it is in.
    for directory in [&run, server.home()] {
        set_mode(directory, 0o777);
        for command in [vec!["project", "list"], vec!["mcp", "stdio"]] {
            let refused = run_cli(server.home(), &command).await;
            assert_eq!(refused.status.code(), Some(1), "{command:?}");
            let sentence = stderr(&refused);
            assert!(sentence.contains("chmod 700"), "{command:?} {sentence}");
        }
        set_mode(directory, 0o700);
    }
    let listed = run_cli(server.home(), &["project", "list"]).await;
    assert!(listed.status.success(), "{}", stderr(&listed));
}

#[test]
async fn a_server_refuses_a_directory_that_others_can_write_to() {
    let home = tempfile::tempdir().unwrap();
    for mode in [0o777, 0o770] {
        set_mode(home.path(), mode);
        let refused = run_cli(home.path(), &["serve", "--listen", "127.0.0.1:0"]).await;
        assert_eq!(refused.status.code(), Some(1));
        let sentence = stderr(&refused);
        assert!(sentence.contains("chmod 700"), "{sentence}");
        assert!(!home.path().join("run").exists());
    }
}

/// Another user's server cannot take the place of root's, also not one that only root could tell apart.
#[test(needs(root))]
async fn root_sends_no_key_to_the_server_of_another_user() {
    const USER: u32 = 54_321;
    let foreign = Server::start_with(ServerOptions {
        run_as: Some(RunAs {
            uid: USER,
            gid: USER,
            group: USER,
        }),
        ..ServerOptions::default()
    });
    let mut server = Server::start();
    server.kill();
    let (run, home) = (server.home().join("run"), server.home().to_owned());
    std::fs::rename(&run, home.join("run.old")).unwrap();
    std::fs::rename(foreign.home().join("run"), &run).unwrap();
    for mode in [0o777, 0o700] {
        set_mode(&home, mode);
        for command in [
            vec!["project", "list"],
            vec!["--token", "oub_x", "project", "list"],
            vec!["mcp", "stdio"],
        ] {
            let refused = run_cli(&home, &command).await;
            assert_eq!(refused.status.code(), Some(1), "{command:?}");
            let sentence = stderr(&refused);
            let says_what_to_do = sentence.contains("chmod") || sentence.contains("chown");
            assert!(says_what_to_do, "{mode:o} {command:?} {sentence}");
        }
    }
    std::fs::rename(&run, foreign.home().join("run")).unwrap();
    std::fs::rename(home.join("run.old"), &run).unwrap();
    // Root may use the server of another user who has all of the directory.
    let listed = run_cli(foreign.home(), &["project", "list"]).await;
    assert!(listed.status.success(), "{}", stderr(&listed));
}

/// Root's commands use the directory of another user, who has planted links in it.
#[test(needs(root))]
async fn root_writes_and_reads_nothing_through_the_links_of_another_user() {
    const USER: u32 = 54_322;
    let foreign = Server::start_with(ServerOptions {
        config: "runtime = \"none\"\n".to_owned(),
        run_as: Some(RunAs {
            uid: USER,
            gid: USER,
            group: USER,
        }),
        ..ServerOptions::default()
    });
    let home = foreign.home();
    let roots = tempfile::tempdir().unwrap();
    let victim = roots.path().join("victim");
    std::fs::write(&victim, "kept").unwrap();
    let kept = roots.path().join("kept");
    std::fs::create_dir_all(kept.join("below")).unwrap();
    // What a command remembers, and the key of a client.
    symlink(roots.path(), home.join("cli")).unwrap();
    symlink(roots.path(), home.join("mcp-clients")).unwrap();
    let project = foreign.admin().project("app").await;
    let spawn = json!({ "project_id": project, "prompt": "/say hi", "agent": "demo" });
    let spawned = foreign.admin().call("session_spawn", spawn).await;
    let session = spawned.ok()["session_id"].as_str().unwrap().to_owned();
    let got = run_cli(home, &["session", "get", &session]).await;
    assert!(got.status.success(), "{}", stderr(&got));
    let set_up = ["mcp", "setup", "cursor", "--stdio"];
    let refused = run_cli(home, &set_up).await;
    assert_eq!(refused.status.code(), Some(1), "{}", stderr(&refused));
    // The directories of snapshots, which a command clears.
    std::fs::create_dir(home.join("checkouts")).unwrap();
    symlink(&kept, home.join("checkouts/snapshots")).unwrap();
    std::fs::create_dir(home.join("work")).unwrap();
    let mut copy = Command::new(binary());
    copy.env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("HOME", roots.path())
        .env("OUBLIETTE_HOME", home)
        .current_dir(home.join("work"))
        .args(["run", "--here", "/say hi"]);
    let copied = run(copy).await;
    assert!(stderr(&copied).contains("is a link"), "{}", stderr(&copied));
    assert!(kept.join("below").exists());
    let names = std::fs::read_dir(roots.path()).unwrap().count();
    assert_eq!(names, 2, "{:?}", std::fs::read_dir(roots.path()).unwrap());
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "kept");

    // Without the link it is the owner's.
    std::fs::remove_file(home.join("mcp-clients")).unwrap();
    let written = run_cli(home, &set_up).await;
    assert!(written.status.success(), "{}", stderr(&written));
    for (name, mode) in [("mcp-clients", 0o700), ("mcp-clients/cursor.token", 0o600)] {
        let found = std::fs::metadata(home.join(name)).unwrap();
        assert_eq!((found.uid(), found.mode() & 0o777), (USER, mode), "{name}");
    }
    // A key of root's is not sent to the server of another user.
    let own = Server::start();
    std::fs::remove_file(home.join("admin.token")).unwrap();
    symlink(own.home().join("admin.token"), home.join("admin.token")).unwrap();
    std::os::unix::fs::lchown(home.join("admin.token"), Some(USER), Some(USER)).unwrap();
    let refused = run_cli(home, &["project", "list"]).await;
    assert!(
        stderr(&refused).contains("no API key"),
        "{}",
        stderr(&refused)
    );
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// A server whose standard output is a pipe; it ends with this.
struct PrintingServer {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl PrintingServer {
    fn start(home: &Path) -> Self {
        let mut process = Command::new(binary())
            .env("OUBLIETTE_HOME", home)
            .args(["serve", "--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Self { process, output }
    }

    /// What it prints, up to the line with this text.
    fn read_until(&mut self, text: &str) -> String {
        let mut printed = String::new();
        while !printed.contains(text) {
            let bytes = self.output.read_line(&mut printed).unwrap();
            assert!(bytes > 0, "{printed}");
        }
        printed
    }
}

impl Drop for PrintingServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn commands_reach_a_server_below_a_long_path() {
    let root = tempfile::tempdir().unwrap();
    let home = root.path().join("d".repeat(100)).join("e".repeat(100));
    std::fs::create_dir_all(&home).unwrap();
    let mut server = PrintingServer::start(&home);
    let ready = server.read_until("\n");
    let listed = cli(&home, ["project", "create", "far"]);
    drop(server);
    assert!(listed.status.success(), "{ready}{}", stderr(&listed));
}

#[test]
fn the_first_start_prints_the_key_only_to_a_terminal() {
    let home = tempfile::tempdir().unwrap();
    let mut server = PrintingServer::start(home.path());
    let printed = server.read_until("project create hello");
    drop(server);
    let file = home.path().join("admin.token");
    let key = std::fs::read_to_string(&file).unwrap();
    assert!(!printed.contains(key.trim()), "{printed}");
    assert!(printed.contains(&*file.to_string_lossy()), "{printed}");

    let home = tempfile::tempdir().unwrap();
    let arguments = ["serve", "--listen", "127.0.0.1:0"];
    let mut terminal = Pty::run(home.path(), (24, 200), &arguments);
    terminal.wait_for("project create hello");
    let key = std::fs::read_to_string(home.path().join("admin.token")).unwrap();
    let shown = terminal.shown();
    assert!(shown.contains(key.trim()), "{shown}");
}

/// A port that no program is given which asks for any.
fn fixed_port() -> u16 {
    let is_free = |port: &u16| {
        ["127.0.0.1", "[::1]"]
            .iter()
            .all(|host| TcpListener::bind(format!("{host}:{port}")).is_ok())
    };
    let first = 20_000 + (std::process::id() % 10_000) as u16;
    (first..).find(is_free).unwrap()
}

/// The port of a server that had to do without it, and that of a server which was started with another.
#[test(needs(sandbox))]
async fn no_container_can_bind_the_configured_port_whatever_the_server_got() {
    let home = FreshHome::new();
    let port = fixed_port();
    let address = format!("127.0.0.1:{port}");
    let config = format!("runtime = \"sandbox\"\n[server]\nlisten = \"{address}\"\n");
    std::fs::write(home.path().join("oubliette.toml"), config).unwrap();
    let command = |arguments: &[&str]| {
        let mut command = home.command(arguments);
        command.env_remove("OUBLIETTE_SERVER__LISTEN");
        run(command)
    };
    let bind = format!(
        "import socket, errno\ntry: socket.create_server(('127.0.0.1', {port}))\nexcept OSError as e: \
         print(errno.errorcode[e.errno])\nelse: print('BOUND')"
    );
    let exec = async || {
        let ended = command(&["container", "exec", "app", "python3", "-c", &bind]).await;
        stdout(&ended).trim().to_owned()
    };
    let taken = TcpListener::bind(&address).unwrap();
    let created = command(&["project", "create", "app", "--network", "host"]).await;
    assert_eq!(created.status.code(), Some(0), "{}", stderr(&created));
    assert!(home.server().unwrap()["url"].is_null());
    drop(taken);
    assert_eq!(exec().await, "EACCES");
    let down = command(&["down"]).await;
    assert_eq!(down.status.code(), Some(0), "{}", stderr(&down));
    let detached = command(&["serve", "--detach", "--listen", "127.0.0.1:0"]).await;
    assert_eq!(detached.status.code(), Some(0), "{}", stderr(&detached));
    assert_eq!(exec().await, "EACCES");
}

/// It was kept from the port that the server had when it was started, and not from the one of now.
#[test(needs(sandbox))]
async fn a_container_that_could_take_the_servers_new_port_is_stopped_when_it_is_not_in_use() {
    let home = FreshHome::new();
    let config = "runtime = \"sandbox\"\n";
    std::fs::write(home.path().join("oubliette.toml"), config).unwrap();
    home.run(&["up"]).await;
    home.run(&["project", "create", "app", "--network", "host"])
        .await;
    let status = async || {
        let ended = home.run(&["project", "get", "app", "--json"]).await;
        let project: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
        project["container_status"].as_str().unwrap().to_owned()
    };
    let started = home.run(&["container", "start", "app"]).await;
    assert_eq!(started.status.code(), Some(0), "{}", stderr(&started));
    assert_eq!(status().await, "running");
    // Another free port.
    let restarted = home.run(&["up", "--restart"]).await;
    assert_eq!(restarted.status.code(), Some(0), "{}", stderr(&restarted));
    let warned = async || home.log().contains("had another port");
    assert!(eventually(STOP_TIMEOUT, warned).await, "{}", home.log());
    let stopped = eventually(STOP_TIMEOUT, async || status().await == "stopped");
    assert!(stopped.await, "{}", home.log());
}
