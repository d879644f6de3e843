//! `oubliette agent install` with an npm of the test's: what a person sees of long work.

use std::os::unix::fs::PermissionsExt;

use support::{FreshHome, Pty, stderr};

/// Writes a part of a package, waits for the file `go`, and fails.
const NPM: &str = "#!/bin/sh
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
    std::fs::write(bin.join("npm"), NPM).unwrap();
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
