//! `oubliette mcp setup`, `remove` and `list`: each client has a token of its own.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use support::{FreshHome, Server, run_cli, stderr, stdout};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

/// The key in a client's file.
fn key_in(file: &Path) -> String {
    let text = std::fs::read_to_string(file).unwrap();
    let (_, rest) = text.split_once("Bearer ").unwrap();
    rest.split('"').next().unwrap().to_owned()
}

async fn succeeds(home: &Path, arguments: &[&str]) -> String {
    let ended = run_cli(home, arguments).await;
    assert_eq!(ended.status.code(), Some(0), "{}", stderr(&ended));
    format!("{}{}", stdout(&ended), stderr(&ended))
}

/// The status and scope of every token with a name.
async fn tokens(server: &Server, name: &str) -> Vec<(String, String)> {
    let listed = server.admin().call("token_list", json!({})).await;
    let rows = listed.ok()["tokens"].as_array().unwrap().clone();
    let text = |row: &Value, name: &str| row[name].as_str().unwrap().to_owned();
    rows.iter()
        .filter(|row| row["name"] == name)
        .map(|row| (text(row, "status"), text(row, "scope")))
        .collect()
}

async fn is_accepted(server: &Server, key: &str) -> bool {
    let client = server.with_key(key);
    let reply = client.try_send("tools/list", json!({})).await;
    reply.is_some_and(|reply| reply.status == 200)
}

#[test]
async fn several_clients_are_set_up_and_removed_at_once() {
    let server = Server::start();
    let home = server.home();
    let said = succeeds(home, &["mcp", "setup", "cursor", "zed", "cursor", "gemini"]).await;
    let names = ["mcp-cursor", "mcp-zed", "mcp-gemini"];
    for name in names {
        assert_eq!(said.matches(&format!("`{name}`")).count(), 1, "{said}");
        assert_eq!(tokens(&server, name).await.len(), 1, "{name}");
    }
    let again = succeeds(home, &["mcp", "setup", "cursor", "zed", "--json"]).await;
    let again: Value = serde_json::from_str(&again).unwrap();
    assert_eq!(again["clients"][0]["client"], "cursor");
    assert_eq!(again["clients"][1]["changed"], false);

    // A mistake in one of the files is found before any is changed.
    let broken = home.join(".gemini/settings.json");
    let whole = std::fs::read_to_string(&broken).unwrap();
    std::fs::write(&broken, "{").unwrap();
    for words in [
        ["setup", "vscode", "gemini"],
        ["remove", "cursor", "gemini"],
    ] {
        let failed = run_cli(home, &[["mcp"].as_slice(), &words].concat()).await;
        assert!(
            stderr(&failed).contains("nothing was changed"),
            "{}",
            stderr(&failed)
        );
    }
    assert!(tokens(&server, "mcp-vscode").await.is_empty());
    assert!(home.join(".cursor/mcp.json").exists());
    assert_eq!(tokens(&server, "mcp-cursor").await[0].0, "active");
    let unknown = run_cli(home, &["mcp", "setup", "vscode", "nosuch"]).await;
    assert_ne!(unknown.status.code(), Some(0));
    assert!(tokens(&server, "mcp-vscode").await.is_empty());

    std::fs::write(&broken, whole).unwrap();
    let said = succeeds(home, &["mcp", "remove", "cursor", "zed", "gemini", "--yes"]).await;
    for name in names {
        assert!(
            said.contains(&format!("Revoked the token {name}")),
            "{said}"
        );
        assert_eq!(tokens(&server, name).await[0].0, "revoked", "{name}");
    }
}

#[test]
async fn a_client_gets_a_narrow_token_of_its_own_and_loses_it_when_it_is_removed() {
    let server = Server::start();
    let home = server.home();
    let file = home.join(".cursor/mcp.json");
    let said = succeeds(home, &["mcp", "setup", "cursor"]).await;
    assert!(
        said.contains("mcp-cursor") && said.contains("write"),
        "{said}"
    );
    let key = key_in(&file);
    assert!(key != server.admin_key() && !said.contains(&key), "{said}");
    assert_eq!(
        tokens(&server, "mcp-cursor").await,
        [("active".to_owned(), "write".to_owned())]
    );
    let client = server.with_key(&key);
    client.project("made").await;
    let refused = client.call("token_list", json!({})).await;
    assert!(
        refused.body["result"]["structuredContent"].is_null(),
        "{refused:?}"
    );

    // A second set-up changes nothing that works; another scope replaces the token.
    let again = succeeds(home, &["mcp", "setup", "cursor"]).await;
    assert!(again.contains("already"), "{again}");
    assert_eq!(key_in(&file), key);
    succeeds(
        home,
        &["mcp", "setup", "cursor", "--scope", "project:made:ro"],
    )
    .await;
    let narrower = key_in(&file);
    assert!(!is_accepted(&server, &key).await && is_accepted(&server, &narrower).await);

    let listed = succeeds(home, &["mcp", "list", "--json"]).await;
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let rows = listed["clients"].as_array().unwrap();
    let row = rows.iter().find(|row| row["client"] == "cursor").unwrap();
    assert_eq!(
        (&row["state"], &row["token"], &row["transport"]),
        (&json!("connected"), &json!("mcp-cursor"), &json!("http"))
    );

    let removed = succeeds(home, &["mcp", "remove", "cursor"]).await;
    assert!(
        removed.contains("Revoked the token mcp-cursor"),
        "{removed}"
    );
    assert!(
        !std::fs::read_to_string(&file)
            .unwrap()
            .contains("oubliette")
    );
    assert!(!is_accepted(&server, &narrower).await);
    let none = succeeds(home, &["mcp", "remove", "cursor"]).await;
    assert!(none.contains("is not set up"), "{none}");
}

#[test]
async fn the_admin_key_in_a_clients_file_is_replaced() {
    let server = Server::start();
    let home = server.home();
    let file = home.join(".cursor/mcp.json");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    let entry = json!({ "url": server.url(),
        "headers": { "Authorization": format!("Bearer {}", server.admin_key()) } });
    let config = json!({ "mcpServers": { "oubliette": entry } });
    std::fs::write(&file, config.to_string()).unwrap();
    succeeds(home, &["mcp", "setup", "cursor"]).await;
    assert_ne!(key_in(&file), server.admin_key());
    assert!(is_accepted(&server, &server.admin_key()).await);
}

#[test]
async fn the_key_of_another_token_in_a_clients_file_is_replaced() {
    let server = Server::start();
    let home = server.home();
    let file = home.join(".cursor/mcp.json");
    succeeds(home, &["mcp", "setup", "cursor"]).await;
    let own = key_in(&file);
    let other = server.admin().token("write").await;
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace(&own, &other)).unwrap();
    succeeds(home, &["mcp", "setup", "cursor"]).await;
    let replaced = key_in(&file);
    assert!(replaced != other && is_accepted(&server, &replaced).await);
    succeeds(home, &["mcp", "remove", "cursor"]).await;
    assert!(!is_accepted(&server, &replaced).await);
}

#[test]
async fn a_failed_set_up_leaves_no_token() {
    let server = Server::start();
    let home = server.home();
    let directory = home.join(".cursor");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("mcp.json"), "{ broken").unwrap();
    let refused = run_cli(home, &["mcp", "setup", "cursor"]).await;
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("line 1"), "{}", stderr(&refused));
    assert!(tokens(&server, "mcp-cursor").await.is_empty());
    let dry = succeeds(home, &["mcp", "setup", "claude", "--dry-run"]).await;
    assert!(dry.contains("Bearer oub_****"), "{dry}");
    assert!(tokens(&server, "mcp-claude").await.is_empty());
}

#[test]
async fn a_dry_run_starts_no_server_and_does_not_keep_one() {
    let home = FreshHome::new();
    for verb in ["setup", "remove"] {
        let dry = home.run(&["mcp", verb, "cursor", "--dry-run"]).await;
        assert_eq!(dry.status.code(), Some(0), "{}", stderr(&dry));
    }
    assert!(
        !home.path().join("run").exists(),
        "a server was started: {}",
        home.log()
    );
    home.run(&["project", "list"]).await;
    assert_eq!(home.server().unwrap()["mode"], "until_idle");
    let dry = home.run(&["mcp", "setup", "cursor", "--dry-run"]).await;
    assert!(stderr(&dry).contains("Bearer oub_****"), "{}", stderr(&dry));
    assert_eq!(home.server().unwrap()["mode"], "until_idle");
    let set = home.run(&["mcp", "setup", "cursor"]).await;
    assert_eq!(set.status.code(), Some(0), "{}", stderr(&set));
    assert_eq!(home.server().unwrap()["mode"], "background");
}

#[test]
async fn a_client_that_starts_programs_gets_no_key_in_its_file() {
    let server = Server::start();
    let home = server.home();
    for (client, path, servers) in [
        ("zed", ".config/zed/settings.json", "context_servers"),
        (
            "claude-desktop",
            ".config/Claude/claude_desktop_config.json",
            "mcpServers",
        ),
    ] {
        succeeds(home, &["mcp", "setup", client]).await;
        let text = std::fs::read_to_string(home.join(path)).unwrap();
        assert!(!text.contains("oub_"), "{text}");
        let key_file = home.join(format!("mcp-clients/{client}.token"));
        let mode = std::fs::metadata(&key_file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let config: Value = serde_json::from_str(&text).unwrap();
        let entry = &config[servers]["oubliette"];
        // As the client starts it: without the environment of a shell.
        let mut bridge = tokio::process::Command::new(entry["command"].as_str().unwrap())
            .args(
                entry["args"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|word| word.as_str().unwrap()),
            )
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let meta = json!({ "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": { "name": "raw", "version": "0" },
            "io.modelcontextprotocol/clientCapabilities": {} });
        let call = |id: u64, tool: &str| {
            let params = json!({ "name": tool, "arguments": {}, "_meta": meta });
            json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params })
        };
        let mut input = bridge.stdin.take().unwrap();
        let mut output = BufReader::new(bridge.stdout.take().unwrap()).lines();
        for (id, tool, is_error) in [(1, "project_list", false), (2, "token_list", true)] {
            let line = format!("{}\n", call(id, tool));
            input.write_all(line.as_bytes()).await.unwrap();
            let reply = output.next_line().await.unwrap().unwrap();
            let reply: Value = serde_json::from_str(&reply).unwrap();
            let failed = reply["result"]["isError"] == true || reply["error"].is_object();
            assert_eq!(failed, is_error, "{reply}");
        }
        drop(input);
        assert!(bridge.wait().await.unwrap().success());
        succeeds(home, &["mcp", "remove", client]).await;
        assert!(!key_file.exists());
        let gone = run_cli(home, &["mcp", "stdio", "--client", client]).await;
        assert!(stderr(&gone).contains("mcp setup"), "{}", stderr(&gone));
    }
    // A client that takes URLs can be set up the same way, and back.
    let file = home.join(".cursor/mcp.json");
    succeeds(home, &["mcp", "setup", "cursor", "--stdio"]).await;
    assert!(!std::fs::read_to_string(&file).unwrap().contains("oub_"));
    succeeds(home, &["mcp", "setup", "cursor"]).await;
    assert!(is_accepted(&server, &key_in(&file)).await);
    assert!(!home.join("mcp-clients/cursor.token").exists());
}

fn git(directory: &Path, arguments: &[&str]) -> String {
    let output = Command::new("git")
        .arg("-C")
        .arg(directory)
        .args(arguments)
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
async fn a_file_in_a_project_has_no_key_and_is_kept_out_of_git() {
    let server = Server::start();
    let home = server.home();
    let repository = home.join("app");
    std::fs::create_dir(&repository).unwrap();
    git(&repository, &["init", "-q"]);
    let set_up = ["mcp", "setup", "claude", "--project", "app"];
    let said = succeeds(home, &set_up).await;
    assert!(said.contains("info/exclude"), "{said}");
    let file = repository.join(".mcp.json");
    let text = || std::fs::read_to_string(&file).unwrap();
    assert!(
        text().contains("stdio") && !text().contains("oub_"),
        "{}",
        text()
    );
    assert_eq!(git(&repository, &["status", "--porcelain"]), "");
    // The user's own file has another token.
    succeeds(home, &["mcp", "setup", "claude"]).await;
    let tokens = std::fs::read_dir(home.join("mcp-clients")).unwrap();
    let tokens = tokens.map(|entry| entry.unwrap().path());
    let is_key = |path: &PathBuf| path.extension().is_some_and(|end| end == "token");
    let tokens: Vec<PathBuf> = tokens.filter(is_key).collect();
    let [kept] = &tokens[..] else {
        panic!("{tokens:?}")
    };
    let key = || std::fs::read_to_string(kept).unwrap().trim().to_owned();
    let first = key();
    assert!(is_accepted(&server, &first).await);
    succeeds(home, &[&set_up[..], &["--scope", "read"]].concat()).await;
    assert!(!is_accepted(&server, &first).await && is_accepted(&server, &key()).await);
    let exclude = std::fs::read_to_string(repository.join(".git/info/exclude")).unwrap();
    assert_eq!(exclude.matches(".mcp.json").count(), 1, "{exclude}");
    // Also where git tracks the file, and with a key that cannot create others.
    git(&repository, &["add", "-f", ".mcp.json"]);
    let given = server.admin().token("write").await;
    let said = succeeds(home, &[&["--token", &given], &set_up[..]].concat()).await;
    assert!(!text().contains("oub_"), "{said}{}", text());
    assert_eq!(key(), given);
}

#[test]
async fn a_link_in_a_project_is_not_followed() {
    let server = Server::start();
    let home = server.home();
    let outside = home.join("outside");
    let repository = home.join("app");
    for directory in [&outside, &repository] {
        std::fs::create_dir(directory).unwrap();
    }
    std::fs::write(outside.join("public.json"), "{}").unwrap();
    std::os::unix::fs::symlink("../outside/public.json", repository.join(".mcp.json")).unwrap();
    std::os::unix::fs::symlink("../outside", repository.join(".cursor")).unwrap();
    for client in ["claude", "cursor"] {
        let refused = run_cli(home, &["mcp", "setup", client, "--project", "app"]).await;
        assert_eq!(refused.status.code(), Some(1), "{client}");
        let sentence = stderr(&refused);
        assert!(sentence.contains("is a link"), "{client} {sentence}");
    }
    let public = std::fs::read_to_string(outside.join("public.json")).unwrap();
    assert_eq!(public, "{}");
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1);
}
