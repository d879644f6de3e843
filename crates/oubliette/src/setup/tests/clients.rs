//! Which file belongs to which client.

use std::{collections::HashMap, ffi::OsString, fs};

use super::*;

#[test]
fn a_project_has_its_own_file() {
    let expected = HashMap::from([
        ("claude", ".mcp.json"),
        ("codex", ".codex/config.toml"),
        ("opencode", "opencode.json"),
        ("droid", ".factory/mcp.json"),
        ("gemini", ".gemini/settings.json"),
        ("cursor", ".cursor/mcp.json"),
        ("vscode", ".vscode/mcp.json"),
    ]);
    for client in http_clients() {
        let mut case = Case::new(client);
        let project = tempfile::tempdir().unwrap();
        let scope = ConfigScope::Project(project.path().to_owned());
        let change = plan(
            client.name,
            &scope,
            case.home.path(),
            &|_| None,
            &connection(TOKEN),
        )
        .unwrap();
        change.apply().unwrap();
        assert_eq!(change.path, project.path().join(expected[client.name]));
        assert!(change.note().contains("version control"));
        assert_eq!(files_in(case.home.path()).len(), 0);
        case.path = change.path.clone();
        case.assert_complete();
    }
}

#[test]
fn a_project_that_does_not_exist_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let scope = ConfigScope::Project(home.path().join("absent"));
    let error = plan("claude", &scope, home.path(), &|_| None, &connection(TOKEN)).unwrap_err();
    assert!(matches!(error, SetupError::NoProject { .. }));
}

#[test]
fn variables_move_the_files_of_a_user() {
    for (name, variable, below) in [
        ("claude", "CLAUDE_CONFIG_DIR", ".claude.json"),
        ("codex", "CODEX_HOME", "config.toml"),
        ("opencode", "XDG_CONFIG_HOME", "opencode/opencode.json"),
        ("droid", "FACTORY_HOME_OVERRIDE", ".factory/mcp.json"),
        ("gemini", "GEMINI_CLI_HOME", ".gemini/settings.json"),
    ] {
        let client = client(name);
        let at = |value: &str| {
            let value = OsString::from(value);
            let environment = |asked: &str| (asked == variable).then(|| value.clone());
            client
                .path(&ConfigScope::User, Path::new("/home/alice"), &environment)
                .unwrap()
        };
        assert_eq!(at("/elsewhere"), Path::new("/elsewhere").join(below));
        assert!(
            at("").starts_with("/home/alice"),
            "an empty variable counts as unset"
        );
    }
}

#[test]
fn visual_studio_code_is_where_the_platform_keeps_it() {
    let expected = if cfg!(target_os = "macos") {
        "/home/alice/Library/Application Support/Code/User/mcp.json"
    } else {
        "/home/alice/.config/Code/User/mcp.json"
    };
    let path = client("vscode").path(&ConfigScope::User, Path::new("/home/alice"), &|_| None);
    assert_eq!(path.unwrap(), Path::new(expected));
}

#[test]
fn the_file_a_client_prefers_is_the_one_written() {
    for (name, preferred, usual) in [
        ("claude", ".claude/.config.json", ".claude.json"),
        (
            "opencode",
            ".config/opencode/opencode.jsonc",
            ".config/opencode/opencode.json",
        ),
    ] {
        let client = client(name);
        let home = tempfile::tempdir().unwrap();
        let path = || {
            let path = client.path(&ConfigScope::User, home.path(), &|_| None);
            path.unwrap()
        };
        assert_eq!(path(), home.path().join(usual));
        for file in [usual, preferred] {
            fs::create_dir_all(home.path().join(file).parent().unwrap()).unwrap();
            fs::write(home.path().join(file), "{}").unwrap();
        }
        assert_eq!(path(), home.path().join(preferred));
    }
}

#[test]
fn an_unknown_client_is_answered_with_the_nearest() {
    for (name, nearest) in [
        ("claud", "claude"),
        ("Codex", "codex"),
        ("vs-code", "vscode"),
        ("open-code", "opencode"),
    ] {
        let error = plan(
            name,
            &ConfigScope::User,
            Path::new("/"),
            &|_| None,
            &connection(TOKEN),
        )
        .unwrap_err();
        let sentence = error.to_string();
        assert!(
            sentence.contains(&format!("mean `{nearest}`")),
            "{sentence}"
        );
    }
    assert_eq!(names().count(), 9);
    let scope = ConfigScope::User;
    let error = plan(
        "emacs",
        &scope,
        Path::new("/"),
        &|_| None,
        &connection(TOKEN),
    )
    .unwrap_err();
    assert!(!error.to_string().contains("mean"), "{error}");
}
