//! `oubliette agent login` on a real terminal, with other programs in the place of the agents' logins.

use std::path::Path;

use serde_json::{Value, json};
use support::{Pty, Server, ServerOptions, run_cli, stderr};

use super::files_with;

const TOKEN: &str = "sk-ant-oat01-0123456789";

/// Asks for a code and does what it says.
const LOGIN: &str = r#"
printf 'code? '; read -r code
case $code in
good) mkdir -p ~/.codex; printf '{"tokens":{"access_token":"access-token-%s","refresh_token":"refresh-token-%s","account_id":"me"}}' 1 1 > ~/.codex/auth.json ;;
odd) mkdir -p ~/.codex; echo 'access-token-1' > ~/.codex/auth.json ;;
bad) echo 'wrong code'; exit 3 ;;
esac
echo done
"#;

fn server() -> Server {
    let login = json!(["/bin/sh", "-c", LOGIN]);
    let config = format!(
        "runtime = \"sandbox\"\n[agents.codex]\nlogin = {login}\n[agents.claude]\nlogin = {login}\n"
    );
    Server::start_with(ServerOptions {
        config,
        ..ServerOptions::default()
    })
}

/// Answers the login's question and waits for a text; what the terminal shows, and the exit code.
fn answer(home: &Path, arguments: &[&str], code: &str, expected: &str) -> (String, Option<i32>) {
    let mut terminal = Pty::run(home, (24, 80), &[&["agent", "login"], arguments].concat());
    terminal.wait_for("code? ");
    terminal.type_keys(code);
    terminal.wait_for(expected);
    let code = terminal.exit_code();
    assert!(terminal.has_line_editing());
    (terminal.shown(), code)
}

#[test(needs(sandbox))]
async fn a_login_leaves_a_credential_and_nothing_else() {
    let server = server();
    let home = server.home().to_owned();
    tokio::task::spawn_blocking(move || {
        let codex = ["codex"].as_slice();
        let failed = "the login of `codex` ended with exit code 3; nothing was stored";
        let (shown, code) = answer(&home, codex, "bad\r", failed);
        assert!(shown.contains("wrong code"), "{shown}");
        assert_eq!(code, Some(1));
        let missing = "ended without leaving .codex/auth.json";
        let (_, code) = answer(&home, codex, "nothing\r", missing);
        assert_eq!(code, Some(1));
        let odd = "it must be the file `auth.json`";
        let (shown, code) = answer(&home, codex, "odd\r", odd);
        assert!(!shown.contains("access-token-1"), "{shown}");
        assert_eq!(code, Some(1));
        let (_, code) = answer(&home, codex, "\u{3}", "Interrupted; nothing was stored.");
        assert_eq!(code, Some(130));
        assert!(!home.join("credentials").exists());

        let arguments = ["codex", "--credential", "plan"];
        let next = "oubliette project update PROJECT --credential-refs plan";
        let (shown, code) = answer(&home, &arguments, "good\r", next);
        assert!(
            shown.contains("Stored the credential plan (codex_auth) for codex."),
            "{shown}"
        );
        assert!(!shown.contains("access-token-1"), "{shown}");
        assert_eq!(code, Some(0));
        let file = home.join("credentials/plan.json").display().to_string();
        assert_eq!(files_with(&home, "refresh-token-1"), [file]);
    })
    .await
    .unwrap();
    let admin = server.admin();
    let projects = admin.call("project_list", json!({})).await;
    assert_eq!(projects.ok()["projects"], json!([]));
}

#[test(needs(sandbox))]
async fn a_token_that_a_login_shows_is_asked_for() {
    let server = server();
    let home = server.home().to_owned();
    tokio::task::spawn_blocking(move || {
        for (typed, expected) in [
            ("nonsense\r".to_owned(), "that is not a token of `claude`"),
            (
                format!("{TOKEN}\r"),
                "Stored the credential claude (claude_oauth) for claude.",
            ),
        ] {
            let mut terminal = Pty::run(&home, (24, 80), &["agent", "login", "claude"]);
            terminal.wait_for("code? ");
            terminal.type_keys("any\r");
            terminal.wait_for("Paste the token that it printed (sk-ant-oat…), not shown: ");
            terminal.type_keys(&typed);
            terminal.wait_for(expected);
            terminal.exit_code();
            assert!(!terminal.shown().contains(TOKEN), "{}", terminal.shown());
            assert!(terminal.has_line_editing());
        }
    })
    .await
    .unwrap();
    let file = std::fs::read(server.home().join("credentials/claude.json")).unwrap();
    let file: Value = serde_json::from_slice(&file).unwrap();
    assert_eq!(file, json!({ "kind": "claude_oauth", "value": TOKEN }));
}

#[test]
async fn without_a_login_or_a_terminal_it_says_what_to_do() {
    let home = tempfile::tempdir().unwrap();
    for (agent, expected) in [
        ("gemini", "oubliette credential add gemini --kind gemini"),
        ("droid", "oubliette credential add droid --kind factory"),
        ("demo", "it uses no model and needs no login"),
        ("codex", "run `oubliette agent install codex` first"),
        ("codexx", "did you mean `codex`?"),
    ] {
        let output = run_cli(home.path(), &["agent", "login", agent]).await;
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }
    let config = "[agents.codex]\nlogin = [\"true\"]\n";
    std::fs::write(home.path().join("oubliette.toml"), config).unwrap();
    let output = run_cli(home.path(), &["agent", "login", "codex"]).await;
    let expected = "oubliette credential add codex --kind codex_auth";
    assert!(stderr(&output).contains(expected), "{}", stderr(&output));
}
