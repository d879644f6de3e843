//! `oubliette credential` as a person uses it.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use support::{FreshHome, Pty, Server, binary, run_cli, stderr, stdout};

use super::files_with;

const KEY: &str = "sk-ant-typed-0123456789";

async fn on_terminal<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

/// Runs the command line with an input and a variable.
async fn with_input(home: &Path, arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(binary());
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", home)
        .env("OUBLIETTE_HOME", home)
        .env("MY_KEY", "sk-of-the-shell-0123")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let input = input.to_owned();
    on_terminal(move || {
        let mut child = command.spawn().unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(input.as_bytes())
            .unwrap();
        child.wait_with_output().unwrap()
    })
    .await
}

async fn stored(server: &Server, name: &str) -> Value {
    let file = server.home().join(format!("credentials/{name}.json"));
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

#[test]
async fn a_value_comes_from_the_input_a_file_or_a_variable_and_never_from_an_argument() {
    let server = Server::start();
    let home = server.home();
    let add = ["credential", "add", "work", "--kind", "anthropic"];
    let given = [add.as_slice(), &["--value-from-stdin"]].concat();
    let added = with_input(home, &given, &format!("{KEY}\n")).await;
    assert_eq!(
        stdout(&added),
        "Stored the credential work (anthropic) for claude, copilot, opencode.\n\
         Next: oubliette project create app --agent claude --credential-refs work\n  \
         or, for a project you have: oubliette project update PROJECT --credential-refs work\n",
        "{}",
        stderr(&added)
    );
    assert_eq!(stored(&server, "work").await["value"], KEY);

    let given = [add.as_slice(), &["--env", "MY_KEY", "--json"]].concat();
    let added = with_input(home, &given, "").await;
    let added: Value = serde_json::from_slice(&added.stdout).unwrap();
    assert_eq!(added["replaced"], true);
    assert_eq!(
        stored(&server, "work").await["value"],
        "sk-of-the-shell-0123"
    );
    let given = [add.as_slice(), &["--env", "SERVER_KEY", "--reference"]].concat();
    let added = with_input(home, &given, "").await;
    assert!(added.status.success(), "{}", stderr(&added));
    let expected = json!({ "kind": "anthropic", "env": "SERVER_KEY" });
    assert_eq!(stored(&server, "work").await, expected);

    let file = home.join("key.txt");
    std::fs::write(&file, format!("{KEY}\n")).unwrap();
    let file = file.to_str().unwrap();
    let url = ["--file", file, "--base-url", "https://gateway.example.com/"];
    let added = run_cli(home, &[add.as_slice(), &url].concat()).await;
    assert!(added.status.success(), "{}", stderr(&added));
    let expected = json!({
        "kind": "anthropic", "value": KEY, "base_url": "https://gateway.example.com",
    });
    assert_eq!(stored(&server, "work").await, expected);

    for (more, expected) in [
        (
            vec!["--value", "sk-hunter2-hunter2"],
            "not accepted as an argument",
        ),
        (
            vec!["--value=sk-hunter2-hunter2"],
            "not accepted as an argument",
        ),
        (vec!["--reference"], "--reference needs --env or --file"),
        (vec!["--env", "A", "--file", "b"], "cannot be used with"),
    ] {
        let refused = with_input(home, &[add.as_slice(), &more].concat(), "").await;
        assert_eq!(refused.status.code(), Some(2), "{more:?}");
        assert!(stderr(&refused).contains(expected), "{}", stderr(&refused));
        assert!(
            !stderr(&refused).contains("hunter2"),
            "{}",
            stderr(&refused)
        );
    }
    let empty = with_input(home, &add, "").await;
    assert_eq!(empty.status.code(), Some(1));
    assert!(stderr(&empty).contains("the input is empty"));
    let login = ["credential", "add", "plan", "--kind", "codex_auth"];
    let refused = run_cli(home, &login).await;
    assert!(stderr(&refused).contains("--file, for example ~/.codex/auth.json"));
    let unset = [add.as_slice(), &["--env", "NOT_SET"]].concat();
    let unset = run_cli(home, &unset).await;
    assert_eq!(unset.status.code(), Some(1));
    assert!(stderr(&unset).contains("NOT_SET is not set in this shell"));
    let unknown = [
        "credential",
        "add",
        "x",
        "--kind",
        "antropic",
        "--env",
        "MY_KEY",
    ];
    let unknown = with_input(home, &unknown, "").await;
    assert_eq!(unknown.status.code(), Some(1));
    assert!(stderr(&unknown).contains("did you mean `anthropic`?"));
    // Before the value is missed: it could not be used anyway.
    for kind in ["antropic", "nothing_like_it"] {
        let unknown = ["credential", "add", "x", "--kind", kind];
        let unknown = with_input(home, &unknown, "").await;
        let said = stderr(&unknown);
        assert_eq!(unknown.status.code(), Some(1), "{said}");
        assert!(said.contains("there is no kind of credential"), "{said}");
        assert!(
            said.contains("`anthropic`") && said.contains("`ssh_key`"),
            "{said}"
        );
    }

    let listed = run_cli(home, &["credential", "list"]).await;
    let listed = stdout(&listed);
    assert!(
        listed.contains("work") && listed.contains("https://gateway.example.com"),
        "{listed}"
    );
    assert!(!listed.contains(KEY));
    let project = ["project", "create", "app", "--credential-refs", "work"];
    assert!(run_cli(home, &project).await.status.success());
    let removed = run_cli(home, &["credential", "remove", "work", "--yes"]).await;
    let shown = stdout(&removed);
    assert!(
        shown.starts_with("Removed the credential work.\nStill named by app:"),
        "{shown}"
    );
    let listed = run_cli(home, &["credential", "list"]).await;
    assert_eq!(stdout(&listed), "No credentials.\n");
    let again = run_cli(home, &["credential", "remove", "work", "--yes"]).await;
    assert_eq!(again.status.code(), Some(1));
}

#[test]
async fn a_terminal_is_asked_without_an_echo_and_a_server_need_not_run() {
    let home = FreshHome::new();
    let (path, variables) = (home.path().to_owned(), home.variables());
    on_terminal(move || {
        let add = ["credential", "add", "work", "--kind", "anthropic"];
        let mut terminal = Pty::run_in(&path, (24, 80), &add, &variables);
        terminal.wait_for("Value of work (anthropic), not shown: ");
        terminal.type_keys("wrong\u{15}");
        terminal.type_keys(&format!("{KEY}x\u{7f}\r"));
        terminal.wait_for("Stored the credential work (anthropic)");
        assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.shown());
        assert!(!terminal.shown().contains("sk-ant"), "{}", terminal.shown());
        assert!(terminal.has_line_editing());

        let mut terminal = Pty::run_in(&path, (24, 80), &add, &variables);
        terminal.wait_for("not shown: ");
        terminal.type_keys("sk-ant-other\u{3}");
        assert_eq!(terminal.exit_code(), Some(130), "{}", terminal.shown());
        assert!(terminal.has_line_editing());
    })
    .await;
    let file = home.path().join("credentials/work.json");
    let file: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!(file["value"], KEY);
    assert_eq!(files_with(home.path(), KEY).len(), 1);
    let listed = home.run(&["credential", "list", "--json"]).await;
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed["credentials"][0]["name"], "work");
}

#[test]
async fn doctor_reports_a_kind_that_nothing_uses() {
    let home = tempfile::tempdir().unwrap();
    let config = "[credentials.a]\nkind = \"antropic\"\nvalue = \"sk-0123456789\"\n";
    std::fs::write(home.path().join("oubliette.toml"), config).unwrap();
    let output = run_cli(home.path(), &["doctor"]).await;
    let shown = stdout(&output);
    assert!(
        shown.contains("credential `a` has the kind `antropic`, which nothing uses"),
        "{shown}"
    );
    assert_eq!(output.status.code(), Some(1));
}
