//! The server that commands start in the background when none is running.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::{
    FreshHome, Pty, Random, Server, binary, eventually, run, run_cli, stderr, stdout, wait_until,
};

pub(super) fn kill(pid: u32) {
    let pid = Pid::from_raw(pid.cast_signed()).unwrap();
    let _ = kill_process(pid, Signal::KILL);
}

/// Whether a process runs; one that ended may still wait for its parent.
fn is_running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().unwrap_or_default();
    !stat.is_empty() && !state.starts_with('Z')
}

/// The process that has the lock, if it is a server of this directory.
fn starting_server(home: &Path) -> Option<u32> {
    let pid = std::fs::read_to_string(home.join("run/lock")).ok()?;
    let pid: u32 = pid.trim().parse().ok()?;
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let command = String::from_utf8_lossy(&command).into_owned();
    let is_ours = command.contains(&*home.to_string_lossy()) && command.contains("--background");
    is_ours.then_some(pid)
}

#[test]
async fn every_command_starts_a_server_once_and_says_so() {
    let home = FreshHome::new();
    let stopped = home.run(&["status"]).await;
    assert_eq!(stopped.status.code(), Some(1), "{}", stdout(&stopped));
    assert!(stdout(&stopped).contains("No server is running"));
    let first = home.run(&["project", "list"]).await;
    assert_eq!(stdout(&first), "No projects.\n", "{}", stderr(&first));
    let pid = home.server_pid().unwrap();
    // The variable leads to the directory, so the option is not needed.
    assert_eq!(
        stderr(&first),
        format!("Started a server in the background (process {pid}); `oubliette down` stops it.\n")
    );
    let second = home.run(&["project", "create", "app"]).await;
    assert_eq!(stderr(&second), "");
    assert_eq!(home.server_pid(), Some(pid));
    assert!(home.log().contains("ready"), "{}", home.log());
    let status = home.run(&["status", "--json"]).await;
    assert_eq!(status.status.code(), Some(0));
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["mode"], "until_idle", "{status}");
    assert_eq!(status["pid"], pid);

    // One that was asked for stays.
    let up = home.run(&["up"]).await;
    assert!(stdout(&up).contains(&pid.to_string()), "{}", stdout(&up));
    assert_eq!(home.server().unwrap()["mode"], "background");
    let detached = home.run(&["serve", "--detach"]).await;
    assert_eq!(detached.status.code(), Some(1));
    assert!(stderr(&detached).contains("another Oubliette server"));
    let restarted = home.run(&["up", "--restart"]).await;
    assert_eq!(restarted.status.code(), Some(0), "{}", stderr(&restarted));
    assert_ne!(home.server_pid(), Some(pid));
    assert!(!is_running(pid));

    let down = home.run(&["down"]).await;
    assert_eq!(
        stdout(&down),
        "Stopped the server; nothing is running any more.\n"
    );
    let again = home.run(&["down"]).await;
    assert_eq!(stdout(&again), "Nothing was running.\n");
    assert_eq!(again.status.code(), Some(0));
    let detached = home.run(&["serve", "--detach", "--json"]).await;
    assert_eq!(detached.status.code(), Some(0), "{}", stderr(&detached));
    let detached: Value = serde_json::from_slice(&detached.stdout).unwrap();
    assert_eq!(detached["pid"], home.server_pid().unwrap());
    let listed = home.run(&["project", "list"]).await;
    assert!(stdout(&listed).contains("app"), "{}", stdout(&listed));
    assert_eq!(stderr(&listed), "");
}

#[test]
async fn a_directory_that_was_never_used_has_nothing_to_stop() {
    let home = FreshHome::new();
    let down = home.run(&["down"]).await;
    assert_eq!(stdout(&down), "Nothing was running.\n");
    assert_eq!(down.status.code(), Some(0));
    assert!(!home.path().join("run").exists());
}

#[test]
async fn many_commands_at_once_start_one_server() {
    const COMMANDS: usize = 8;
    let home = FreshHome::new();
    let names: Vec<String> = (0..COMMANDS).map(|n| format!("p{n}")).collect();
    let running: Vec<_> = names
        .iter()
        .map(|name| tokio::spawn(run(home.command(&["project", "create", name]))))
        .collect();
    let mut started = 0;
    for command in running {
        let ended = command.await.unwrap();
        assert_eq!(ended.status.code(), Some(0), "{}", stderr(&ended));
        started += stderr(&ended).matches("Started a server").count();
    }
    assert_eq!(started, 1);
    let listed = home.run(&["project", "list", "--json"]).await;
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed["projects"].as_array().unwrap().len(), COMMANDS);
    assert_eq!(home.log().matches(" ready").count(), 1, "{}", home.log());
}

#[test(limit = 300)]
async fn a_server_that_is_killed_while_it_starts_is_in_no_ones_way() {
    const ROUNDS: usize = 12;
    let mut random = Random::new();
    let home = FreshHome::new();
    for round in 0..ROUNDS {
        let first = tokio::spawn(run(home.command(&["project", "list"])));
        let second = tokio::spawn(run(home.command(&["project", "list"])));
        let mut server = None;
        let begun = eventually(Duration::from_secs(30), async || {
            server = starting_server(home.path());
            server.is_some()
        });
        assert!(begun.await, "round {round}: no server was started");
        tokio::time::sleep(random.duration_below(Duration::from_millis(300))).await;
        kill(server.unwrap());
        for ended in [first.await.unwrap(), second.await.unwrap()] {
            let said = stderr(&ended);
            let is_explained = said.contains("ended before it was ready")
                || said.contains("the server stopped")
                || said.contains("does not answer")
                || said.contains("the server did not answer")
                || said.contains("cannot use the server");
            assert!(ended.status.success() || is_explained, "{round}: {said}");
        }
        let next = home.run(&["project", "list"]).await;
        assert_eq!(
            stdout(&next),
            "No projects.\n",
            "{round}: {}",
            stderr(&next)
        );
        let down = home.run(&["down"]).await;
        assert_eq!(down.status.code(), Some(0), "{round}: {}", stderr(&down));
    }
}

#[test]
async fn a_started_server_is_apart_from_the_terminal_and_the_pipeline() {
    let home = FreshHome::new();
    // A shell's other descriptors are inherited, too; the pipeline must end with the command.
    let mut pipeline = Command::new("sh");
    pipeline
        .args(["-c", "\"$1\" project list 3>&1 4>&2 | cat", "sh"])
        .arg(binary())
        .env_clear()
        .envs(home.variables());
    let started = Instant::now();
    let ended = run(pipeline).await;
    assert_eq!(stdout(&ended), "No projects.\n", "{}", stderr(&ended));
    assert!(started.elapsed() < Duration::from_secs(60), "it waited");
    let pid = home.server_pid().unwrap();
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    for descriptor in open.flatten() {
        let Ok(file) = std::fs::read_link(descriptor.path()) else {
            continue;
        };
        let file = file.display().to_string();
        let number: u32 = descriptor.file_name().to_str().unwrap().parse().unwrap();
        assert!(!file.starts_with("/dev/pts"), "{number}: {file}");
        let is_standard = number < 3;
        assert!(
            !is_standard || !file.starts_with("pipe:"),
            "{number}: {file}"
        );
    }
    home.run(&["down"]).await;

    let (path, variables) = (home.path().to_owned(), home.variables());
    tokio::task::spawn_blocking(move || {
        let mut terminal = Pty::run_in(&path, (24, 80), &["project", "list"], &variables);
        terminal.wait_for("No projects.");
        assert_eq!(terminal.exit_code(), Some(0));
        // Dropping it closes the terminal.
    })
    .await
    .unwrap();
    let pid = home.server_pid().unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    let (session, terminal) = (fields[3], fields[4]);
    assert_eq!(session, pid.to_string(), "{stat}");
    assert_eq!(terminal, "0", "{stat}");
    let listed = home.run(&["project", "list"]).await;
    assert_eq!(stderr(&listed), "");
    assert_eq!(home.server_pid(), Some(pid));
}

#[test]
async fn a_server_whose_port_is_taken_has_only_its_socket_and_says_so() {
    let home = FreshHome::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let with_port = |arguments: &[&str]| {
        let mut command = home.command(arguments);
        command.env("OUBLIETTE_SERVER__LISTEN", &address);
        run(command)
    };
    let listed = with_port(&["project", "list"]).await;
    assert_eq!(stdout(&listed), "No projects.\n", "{}", stderr(&listed));
    let who = format!("process {} ", std::process::id());
    let said = stderr(&listed);
    assert!(
        said.contains("no MCP clients with its URL") && said.contains(&who),
        "{said}"
    );
    assert!(home.server().unwrap()["url"].is_null());
    let again = with_port(&["project", "create", "app"]).await;
    assert_eq!(stderr(&again), "", "it is said once");
    for command in ["doctor", "status", "up"] {
        let said = stdout(&with_port(&[command]).await);
        assert!(said.contains(&who), "{command} {said}");
    }
    // A client would send its key to the other process, or to another one later.
    let refused = with_port(&["mcp", "setup", "cursor"]).await;
    assert_eq!(refused.status.code(), Some(1));
    let said = stderr(&refused);
    assert!(said.contains("--stdio") && said.contains(&who), "{said}");
    assert!(!home.path().join(".cursor/mcp.json").exists());
    let by_socket = with_port(&["mcp", "setup", "cursor", "--stdio"]).await;
    assert_eq!(by_socket.status.code(), Some(0), "{}", stderr(&by_socket));
    // One that was asked for must have its port.
    with_port(&["down"]).await;
    let up = with_port(&["up"]).await;
    assert_eq!(up.status.code(), Some(1));
    let said = stderr(&up);
    assert!(said.contains("cannot listen on"), "{said}");
    assert!(said.contains(&std::process::id().to_string()), "{said}");
}

#[test]
async fn nothing_is_started_with_a_url_or_when_it_is_switched_off() {
    let home = FreshHome::new();
    let flag = home.run(&["--no-autostart", "project", "list"]).await;
    let mut by_variable = home.command(&["project", "list"]);
    by_variable.env("OUBLIETTE_AUTOSTART__ENABLED", "false");
    let by_variable = run(by_variable).await;
    std::fs::write(
        home.path().join("oubliette.toml"),
        "[autostart]\nenabled = false\n",
    )
    .unwrap();
    let by_file = home.run(&["project", "list"]).await;
    for ended in [flag, by_variable, by_file] {
        assert_eq!(ended.status.code(), Some(1));
        assert!(
            stderr(&ended).contains("no server is running"),
            "{}",
            stderr(&ended)
        );
    }
    std::fs::remove_file(home.path().join("oubliette.toml")).unwrap();
    let url = ["--url", "http://127.0.0.1:9", "--token", "oub_x"];
    let elsewhere = home.run(&[&url[..], &["project", "list"]].concat()).await;
    assert_eq!(elsewhere.status.code(), Some(1));
    for command in [&["doctor"][..], &["completions", "bash"], &["status"]] {
        home.run(command).await;
    }
    assert!(!home.path().join("run/lock").exists(), "one was started");
}

#[test]
async fn the_real_cause_is_named_when_no_server_can_start() {
    let home = FreshHome::new();
    let config = home.path().join("oubliette.toml");
    std::fs::write(&config, "[server]\nlissen = \"x\"\n").unwrap();
    for command in [&["project", "list"][..], &["run", "hi"], &["up"]] {
        let refused = home.run(command).await;
        let said = stderr(&refused);
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(said.contains("did you mean `server.listen`?"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    // A value that only the server looks at.
    std::fs::write(&config, "runtime = \"nosuch\"\n").unwrap();
    let refused = home.run(&["project", "list"]).await;
    assert!(stderr(&refused).contains("nosuch"), "{}", stderr(&refused));
    std::fs::remove_file(&config).unwrap();
    std::fs::write(
        home.path().join("oubliette.db"),
        "precious text ".repeat(99),
    )
    .unwrap();
    let refused = home.run(&["project", "list"]).await;
    let said = stderr(&refused);
    assert!(said.contains("not an Oubliette database"), "{said}");
    assert!(home.log().contains("not an Oubliette database"));
    let below_a_file = home.path().join("oubliette.db/data");
    let below_a_file = below_a_file.to_str().unwrap();
    let refused = home
        .run(&["--data-dir", below_a_file, "project", "list"])
        .await;
    let said = stderr(&refused);
    assert!(said.contains("Not a directory"), "{said}");
    std::fs::remove_file(home.path().join("oubliette.db")).unwrap();
}

#[test]
async fn down_works_with_a_broken_configuration() {
    let home = FreshHome::new();
    home.run(&["project", "list"]).await;
    let pid = home.server_pid().unwrap();
    std::fs::write(home.path().join("oubliette.toml"), "not toml\n").unwrap();
    let down = home.run(&["down"]).await;
    assert_eq!(down.status.code(), Some(0), "{}", stderr(&down));
    assert!(stdout(&down).contains("Stopped the server"));
    assert!(
        stderr(&down).contains("oubliette.toml"),
        "{}",
        stderr(&down)
    );
    assert!(!is_running(pid));
    std::fs::remove_file(home.path().join("oubliette.toml")).unwrap();
}

#[test]
async fn an_idle_server_ends_itself_and_the_next_command_starts_another() {
    let home = FreshHome::new();
    let list = || {
        let mut command = home.command(&["project", "list"]);
        command.env("OUBLIETTE_AUTOSTART__IDLE_SECONDS", "5");
        run(command)
    };
    assert!(list().await.status.success());
    let first = home.server_pid().unwrap();
    wait_until("the end of the idle server", async || !is_running(first)).await;
    assert!(home.log().contains("nothing is at work"), "{}", home.log());
    assert!(home.server().is_none(), "it left its address");
    let again = list().await;
    assert!(stderr(&again).contains("Started a server"));
    assert_ne!(home.server_pid(), Some(first));
}

#[test]
async fn commands_on_the_data_directory_stop_a_server_that_a_command_started() {
    let home = FreshHome::new();
    home.run(&["project", "create", "kept"]).await;
    let old = std::fs::read_to_string(home.path().join("admin.token")).unwrap();
    let reset = home.run(&["token", "reset-admin", "-y"]).await;
    assert_eq!(reset.status.code(), Some(0), "{}", stderr(&reset));
    let new = std::fs::read_to_string(home.path().join("admin.token")).unwrap();
    assert_ne!(old, new);
    let listed = home.run(&["project", "list"]).await;
    assert!(stdout(&listed).contains("kept"), "{}", stderr(&listed));

    let file = home.path().join("backup.tar").display().to_string();
    let saved = home.run(&["backup", &file]).await;
    assert_eq!(saved.status.code(), Some(0), "{}", stderr(&saved));
    home.run(&["project", "create", "later"]).await;
    let restored = home.run(&["restore", "--replace", &file]).await;
    assert_eq!(restored.status.code(), Some(0), "{}", stderr(&restored));
    let listed = home.run(&["project", "list"]).await;
    assert!(stdout(&listed).contains("kept"), "{}", stderr(&listed));
    assert!(!stdout(&listed).contains("later"), "{}", stdout(&listed));
}

#[test]
async fn an_error_of_a_server_of_another_version_says_how_to_restart_it() {
    let home = FreshHome::new();
    home.run(&["project", "list"]).await;
    let file = home.path().join("run/server.json");
    let info = std::fs::read_to_string(&file).unwrap();
    let version = home.server().unwrap()["version"]
        .as_str()
        .unwrap()
        .to_owned();
    std::fs::write(&file, info.replace(&version, "0.0.7")).unwrap();
    let listed = home.run(&["project", "list"]).await;
    assert_eq!(stdout(&listed), "No projects.\n");
    let refused = home.run(&["session", "get", "nosuch"]).await;
    let said = stderr(&refused);
    assert!(said.contains("version 0.0.7"), "{said}");
    assert!(said.contains("up --restart"), "{said}");
    let doctor = home.run(&["doctor"]).await;
    assert!(
        stdout(&doctor).contains("up --restart"),
        "{}",
        stdout(&doctor)
    );
}

#[test(needs(root))]
async fn an_ordinary_user_has_a_server_of_their_own() {
    const USER: u32 = 4243;
    let home = FreshHome::new();
    std::os::unix::fs::chown(home.path(), Some(USER), Some(USER)).unwrap();
    let copies = tempfile::tempdir().unwrap();
    let program = copies.path().join("oubliette");
    std::fs::copy(binary(), &program).unwrap();
    let shared = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(copies.path(), shared).unwrap();
    let as_user = |arguments: &[&str]| {
        let mut command = Command::new("setpriv");
        let id = USER.to_string();
        command
            .args(["--reuid", &id, "--regid", &id, "--clear-groups"])
            .arg(&program)
            .args(arguments)
            .env_clear()
            .envs(home.variables())
            .current_dir("/");
        run(command)
    };
    let listed = as_user(&["project", "list"]).await;
    assert_eq!(stdout(&listed), "No projects.\n", "{}", stderr(&listed));
    let pid = home.server_pid().unwrap();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let user = status
        .lines()
        .find(|line| line.starts_with("Uid:"))
        .unwrap();
    assert!(user.contains("4243"), "{user}");
    let down = as_user(&["down"]).await;
    assert_eq!(down.status.code(), Some(0), "{}", stderr(&down));
    // Root does not take over the directory of another user.
    let refused = home.run(&["project", "list"]).await;
    let said = stderr(&refused);
    assert!(said.contains("belongs to user 4243"), "{said}");
}

#[test(needs(sandbox), multi_thread)]
async fn serve_says_what_keeps_running_and_how_to_stop_it() {
    let directory = tempfile::tempdir().unwrap();
    let home = directory.path().to_owned();
    let mut terminal = tokio::task::spawn_blocking({
        let home = home.clone();
        move || {
            let serve = ["serve", "--listen", "127.0.0.1:0"];
            let mut terminal = Pty::run(&home, (24, 200), &serve);
            terminal.wait_for("project create hello");
            terminal
        }
    })
    .await
    .unwrap();
    assert!(
        run_cli(&home, &["project", "create", "app"])
            .await
            .status
            .success()
    );
    let ran = run_cli(&home, &["container", "exec", "app", "true"]).await;
    assert!(ran.status.success(), "{}", stderr(&ran));
    tokio::task::spawn_blocking(move || {
        terminal.type_keys("\x03");
        terminal.wait_for("press Ctrl-C again");
        terminal.wait_for("One container keeps running");
        terminal.wait_for("down` stops everything");
        assert_eq!(terminal.exit_code(), Some(0));
    })
    .await
    .unwrap();
    let down = run_cli(&home, &["down", "--remove", "--yes"]).await;
    assert!(stdout(&down).contains("one container"), "{}", stdout(&down));
}

/// A disk that fills up needs a file system of its own, and that a namespace; `.ci/run` names it.
#[test(needs(namespaces, root, sandbox))]
async fn down_works_with_a_full_disk_and_a_server_starts_on_it() {
    let home = tempfile::tempdir().unwrap();
    let script = r#"
        set -u
        mount -t tmpfs -o mode=700,size=12m none "$1" && cd "$1" || exit 9
        export OUBLIETTE_HOME="$1" HOME="$1" OUBLIETTE_SERVER__LISTEN=127.0.0.1:0
        "$2" project create app > /dev/null 2>&1 || echo "no project"
        "$2" container exec app true || echo "no container"
        dd if=/dev/zero of="$1/filler" bs=4k 2> /dev/null
        "$2" down; echo "down: $?"
        dd if=/dev/zero of="$1/more" bs=1 2> /dev/null
        "$2" project list; echo "list: $?"
        rm "$1/filler" "$1/more"
        "$2" project list; echo "list: $?"
        "$2" down --remove --yes; echo "down: $?"
    "#;
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(["sh", "-c", script, "sh"])
        .arg(home.path())
        .arg(binary());
    let ended = run(command).await;
    let (out, said) = (stdout(&ended), stderr(&ended));
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(
        lines[..2],
        [
            "Stopped the server and one container; nothing is running any more.",
            "down: 0"
        ],
        "{out}{said}"
    );
    let listed = lines.iter().filter(|line| **line == "list: 0").count();
    assert_eq!(listed, 2, "{out}{said}");
    assert_eq!(lines.last(), Some(&"down: 0"), "{out}{said}");
}

#[test]
async fn doctor_asks_the_running_server() {
    let config = "[credentials.work]\nkind = \"anthropic\"\nenv = \"MY_MODEL_KEY\"\n";
    let server = Server::start_with(support::ServerOptions {
        config: config.to_owned(),
        ..support::ServerOptions::default()
    });
    // What this shell has is not what the server has.
    let mut command = Command::new(binary());
    command
        .env("OUBLIETTE_HOME", server.home())
        .env("MY_MODEL_KEY", "sk-0123456789")
        .args(["doctor", "--json"]);
    let ended = run(command).await;
    assert_eq!(ended.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&ended.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    let of = |check: &str| {
        let found = findings.iter().filter(|it| it["check"] == check);
        found.cloned().collect::<Vec<Value>>()
    };
    let credential = &of("credentials")[0];
    assert_eq!(credential["level"], "problem", "{report}");
    let text = credential["text"].as_str().unwrap();
    assert!(text.contains("MY_MODEL_KEY"), "{text}");
    assert_eq!(report["problems"], 1, "{report}");
    for check in [
        "disk_space",
        "network",
        "containers",
        "agents",
        "server",
        "runtimes",
    ] {
        assert!(!of(check).is_empty(), "{check}: {report}");
    }
}
