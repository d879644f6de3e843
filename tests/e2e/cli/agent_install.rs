//! `oubliette agent install` with an npm of the test's.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use oubliette_test_harness::scaled;
use serde_json::Value;
use support::{FreshHome, Pty, agents, binary, process, stderr};

/// Far longer than an agent takes to start, on a busy machine too.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(100);

/// Writes a part of a package, waits for the file `go`, and fails.
const FAILING_NPM: &str = "#!/bin/sh
while [ \"$1\" != --prefix ]; do shift; done
head -c 3000000 /dev/zero > \"$2/part\"
until [ -e \"$HOME/go\" ]; do sleep 0.05; done
echo 'npm error: the registry is closed' >&2
exit 1
";

fn home_with_npm() -> (FreshHome, Vec<(String, String)>) {
    let home = FreshHome::new();
    let bin = home.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    std::fs::write(bin.join("npm"), FAILING_NPM).unwrap();
    std::fs::set_permissions(bin.join("npm"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut variables = home.variables();
    for (name, value) in &mut variables {
        if name == "PATH" {
            *value = format!("{}:{value}", bin.display());
        }
    }
    (home, variables)
}

#[test]
async fn a_terminal_shows_how_long_and_how_much_and_then_what_npm_said() {
    let (home, variables) = home_with_npm();
    tokio::task::spawn_blocking(move || {
        let words = ["agent", "install", "claude"];
        let mut terminal = Pty::run_in(home.path(), (24, 80), &words, &variables);
        terminal.wait_for("npm fetches @");
        terminal.wait_for(" 3.0 MB ");
        std::fs::write(home.path().join("go"), "").unwrap();
        terminal.wait_for("npm error: the registry is closed");
        terminal.wait_for("npm could not install");
        assert_eq!(terminal.exit_code(), Some(1), "{}", terminal.shown());
    })
    .await
    .unwrap();
}

#[test]
async fn without_a_terminal_there_is_no_progress() {
    let (home, variables) = home_with_npm();
    std::fs::write(home.path().join("go"), "").unwrap();
    let mut command = home.command(&["agent", "install", "claude"]);
    let ended = support::run({
        command.envs(variables);
        command
    })
    .await;
    let said = stderr(&ended);
    assert!(said.contains("the registry is closed"), "{said}");
    assert!(
        !said.contains('\r') && !said.contains("npm fetches"),
        "{said}"
    );
}

/// An npm that has the package already, and runs installation scripts as npm 12 does: only those that the manifest
/// allows. Gemini is a script: the program that an installation script brings is Node.js.
const NPM_12: &str = r#"#!/bin/sh
while [ $# -gt 0 ]; do
    [ "$1" = --prefix ] && prefix=$2
    shift
done
cp -al "$INSTALLED/node_modules" "$prefix/" 2>/dev/null || cp -a "$INSTALLED/node_modules" "$prefix/"
if [ "$npm_config_ignore_scripts" = true ] ||
    ! sed -n '/allowScripts/,/}/p' "$prefix/package.json" | grep -q '"node@'; then
    rm -f "$prefix/node_modules/node/bin/node"
fi
"#;

#[test(needs(gemini), limit = 240)]
async fn an_agent_is_installed_and_started_once_or_the_reason_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let npm = directory.path().join("npm");
    std::fs::write(&npm, NPM_12).unwrap();
    std::fs::set_permissions(&npm, std::fs::Permissions::from_mode(0o755)).unwrap();
    let home = directory.path().join("home");
    let run = async |arguments: &[&str], ignores_scripts: bool| {
        let mut command = tokio::process::Command::new(binary());
        command
            .env_clear()
            .env(
                "PATH",
                format!("{}:/usr/bin:/bin", directory.path().display()),
            )
            .env("HOME", directory.path())
            .env("OUBLIETTE_HOME", &home)
            .env("INSTALLED", agents::directory("gemini"))
            .env("npm_config_ignore_scripts", ignores_scripts.to_string())
            .args(arguments);
        process::run(&mut command, scaled(INSTALL_TIMEOUT)).await
    };
    let state = async || {
        let listed = run(&["agent", "list", "--json"], false).await;
        let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
        let mut agents = listed["agents"].as_array().unwrap().iter();
        let gemini = agents.find(|agent| agent["name"] == "gemini").unwrap();
        gemini["state"].as_str().unwrap().to_owned()
    };
    let failed = run(&["agent", "install", "gemini"], true).await;
    assert_eq!(failed.status.code(), Some(1), "{}", failed.stdout);
    let error = failed.stderr;
    assert!(error.contains("nothing was installed"), "{error}");
    assert!(error.contains("npm_config_ignore_scripts=false"), "{error}");
    assert_eq!(state().await, "not installed");
    let left = std::fs::read_dir(home.join("agents")).unwrap().count();
    assert_eq!(left, 0, "a part of it is left");

    let installed = run(&["agent", "install", "gemini", "--json"], false).await;
    assert!(installed.status.success(), "{}", installed.stderr);
    let installed: Value = serde_json::from_str(&installed.stdout).unwrap();
    assert_eq!(installed["state"], "installed");
    assert_eq!(state().await, "installed");
    let program = home.join("agents/gemini/bin/gemini");
    assert!(program.exists(), "{installed}");
}
