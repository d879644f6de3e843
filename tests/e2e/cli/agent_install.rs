//! `oubliette agent install` with an npm that has the package already, and runs installation scripts as
//! npm 12 does: only those that the manifest allows.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use oubliette_test_harness::scaled;
use serde_json::Value;
use support::{agents, binary, process};

/// Far longer than an agent takes to start, on a busy machine too.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(100);

/// Gemini is a script: the program that an installation script brings is Node.js.
const NPM: &str = r#"#!/bin/sh
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
    std::fs::write(&npm, NPM).unwrap();
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
