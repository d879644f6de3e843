//! Text of an agent that tries to control the terminal of the user who follows it.

use support::{Server, ServerOptions, run_cli, stderr, stdout};

/// A title, a colour, a cursor movement, a C1 control, and text that is shown in another direction.
const HOSTILE: &str = "boom \u{1b}]0;PWNED\u{7}\u{1b}[31m\u{9b}2J\r \u{202e}yned\u{2066}";

#[test(needs(sandbox))]
async fn errors_and_answers_of_an_agent_print_no_control_characters() {
    let server = Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n".to_owned(),
        ..ServerOptions::default()
    });
    for (command, format) in [
        ("/fail", "--no-color"),
        ("/say", "--no-color"),
        ("/fail", "--json"),
        ("/say", "--json"),
    ] {
        let prompt = format!("{command} {HOSTILE}");
        let ran = run_cli(server.home(), &["run", format, &prompt]).await;
        let printed = stdout(&ran) + &stderr(&ran);
        assert!(printed.contains("boom"), "{command}: {printed}");
        let controls: Vec<char> = printed
            .chars()
            .filter(|c| c.is_control() && *c != '\n')
            .chain(printed.chars().filter(|c| "\u{202e}\u{2066}".contains(*c)))
            .collect();
        assert!(controls.is_empty(), "{command}: {printed:?}");
    }
    let listed = run_cli(server.home(), &["session", "list", "--json"]).await;
    let session: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    let session = session["sessions"][0]["session_id"].as_str().unwrap();
    for command in ["attach", "events"] {
        let printed = run_cli(server.home(), &["session", command, session, "--json"]).await;
        let printed = stdout(&printed);
        assert!(printed.contains("\\u009b"), "{command}: {printed}");
        let is_raw = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
        assert!(!printed.contains(is_raw), "{command}: {printed:?}");
    }
}
