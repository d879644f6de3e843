//! The merged text and the summary.

use super::*;

#[test]
fn an_empty_file_is_filled() {
    for client in http_clients() {
        let case = Case::with(client, "");
        case.set_up();
        case.assert_complete();
    }
}

#[test]
fn everything_a_file_held_survives() {
    for client in http_clients() {
        let case = Case::with(client, &hand_written(client));
        case.set_up();
        case.assert_complete();
        assert_keeps_lines(&hand_written(client), &case.read());
        assert_eq!(files_in(case.path.parent().unwrap()).len(), 1);
    }
}

#[test]
fn an_entry_of_ours_is_brought_up_to_date() {
    for client in http_clients() {
        let case = Case::with(client, &outdated_entry(client));
        let change = case.set_up();
        case.assert_complete();
        let text = case.read();
        let summary = change.summary();
        assert!(
            summary.contains("- url: \"http://127.0.0.1:1/mcp\"\n+ url: "),
            "{summary}"
        );
        for kept in [
            "// moved since",
            "# moved since",
            "// here",
            "# here",
            "timeout",
            "X-Team",
        ] {
            assert_eq!(
                text.contains(kept),
                outdated_entry(client).contains(kept),
                "{kept} in\n{text}"
            );
        }
        assert!(!text.contains(OLD_TOKEN));
    }
}

#[test]
fn a_new_token_is_the_only_thing_that_changes() {
    for client in http_clients() {
        let case = Case::with(client, &hand_written(client));
        case.plan_with(OLD_TOKEN).unwrap().apply().unwrap();
        let before = case.read();
        case.set_up();
        assert_eq!(case.read(), before.replace(OLD_TOKEN, TOKEN));
    }
}

#[test]
fn secrets_are_never_shown() {
    for client in http_clients() {
        let header = format!("{{\"authorization\": \"Bearer {OLD_TOKEN}\"}}");
        let other_spelling = match client.format {
            Format::Json => entry_with(client, headers(client), &header),
            Format::Toml => entry_with(client, headers(client), &header.replace(':', " =")),
        };
        for text in [
            hand_written(client),
            outdated_entry(client),
            other_spelling,
            String::new(),
        ] {
            let case = Case::with(client, &text);
            let change = case.plan().unwrap();
            let shown = format!("{} {} {change:?}", change.summary(), change.note());
            for secret in [TOKEN, OLD_TOKEN, "hunter2"] {
                assert!(!shown.contains(secret), "{shown}");
            }
            assert!(shown.contains("\"Bearer oub_****\""), "{shown}");
        }
    }
    assert!(!format!("{:?}", connection(TOKEN)).contains(TOKEN));
}

#[test]
fn the_summary_cannot_command_the_terminal() {
    let case = Case::with(
        client("claude"),
        r#"{"mcpServers": {"oubliette": {"url": "\u001b[2J"}}}"#,
    );
    assert!(!case.plan().unwrap().summary().contains('\u{1b}'));
}

#[test]
fn keys_that_contradict_ours_are_dropped() {
    for client in http_clients() {
        for conflicting in client.conflicting_keys {
            let text = match (conflicting.within, client.format) {
                (None, _) => entry_with(client, conflicting.name, "\"x\""),
                (Some(map), Format::Json) => {
                    entry_with(client, map, &format!("{{\"{}\": \"x\"}}", conflicting.name))
                }
                (Some(map), Format::Toml) => {
                    entry_with(client, map, &format!("{{ {} = \"x\" }}", conflicting.name))
                }
            };
            let case = Case::with(client, &text);
            let change = case.set_up();
            assert!(change.summary().contains(&format!("\n- {conflicting}\n")));
            let mut keys = vec![client.servers, SERVER];
            keys.extend(conflicting.within);
            keys.push(conflicting.name);
            assert_eq!(value_at(client.format, &case.read(), &keys), None);
            case.assert_complete();
        }
    }
}

#[test]
fn one_spelling_of_the_header_remains() {
    for client in http_clients() {
        let value = match client.format {
            Format::Json => "{\"AUTHORIZATION\": \"x\", \"authorization\": \"y\"}",
            Format::Toml => "{ AUTHORIZATION = \"x\", authorization = \"y\" }",
        };
        let case = Case::with(client, &entry_with(client, headers(client), value));
        case.set_up();
        case.assert_complete();
        assert_eq!(
            case.read().to_lowercase().matches("authorization").count(),
            1
        );
    }
}

#[test]
fn line_ends_and_byte_order_marks_survive() {
    for client in http_clients() {
        let text = format!("\u{feff}{}", hand_written(client).replace('\n', "\r\n"));
        let case = Case::with(client, &text);
        case.set_up();
        case.assert_complete();
        let now = case.read();
        assert!(
            now.starts_with('\u{feff}') && !now.trim_start_matches('\u{feff}').contains('\u{feff}')
        );
        assert_eq!(now.matches('\n').count(), now.matches("\r\n").count());
        assert!(case.plan().unwrap().is_noop());
    }
}

#[test]
fn json_is_merged_in_the_style_of_the_file() {
    let case = Case::with(
        client("claude"),
        "{\n\t\"a\": {\"b\": 1},\n\t\"mcpServers\": {}\n}\n",
    );
    case.set_up();
    let expected = format!(
        "{{\n\t\"a\": {{\"b\": 1}},\n\t\"mcpServers\": {{\n\t\t\"oubliette\": {{\n\t\t\t\"type\": \"http\",\n\t\t\t\"url\": \"{URL}\",\n\t\t\t\"headers\": {{\n\t\t\t\t\"Authorization\": \"Bearer {TOKEN}\"\n\t\t\t}}\n\t\t}}\n\t}}\n}}\n"
    );
    assert_eq!(case.read(), expected);
}

#[test]
fn of_two_json_keys_the_effective_one_is_edited() {
    let first = r#""mcpServers": {"oubliette": {"url": "first"}}"#;
    let case = Case::with(
        client("claude"),
        &format!(r#"{{{first}, "mcpServers": {{}}}}"#),
    );
    case.set_up();
    case.assert_complete();
    assert!(case.read().contains(first));
}

#[test]
fn toml_is_merged_into_every_way_to_write_a_table() {
    let codex = client("codex");
    for text in [
        "mcp_servers = { a = { command = \"x\" } }\n",
        "mcp_servers.a.command = \"x\"\nb = 1\n",
        "[mcp_servers]\na = { command = \"x\" } # c\n\n[b]\nc = 1\n",
        "[mcp_servers]\noubliette = { url = \"x\", timeout = 1 } # c\n",
        "mcp_servers.oubliette.url = \"x\"\nb = 1\n",
        "mcp_servers.oubliette.http_headers.Authorization = \"x\"\n",
        "[mcp_servers.oubliette]\n[mcp_servers.a]\ncommand = \"x\"\n",
        "a = 1",
    ] {
        let case = Case::with(codex, text);
        case.set_up();
        case.assert_complete();
        assert!(case.plan().unwrap().is_noop(), "{text}");
    }
}

#[test]
fn a_new_toml_table_follows_the_comments_that_end_the_file() {
    let codex = client("codex");
    let case = Case::with(codex, &hand_written(codex));
    case.set_up();
    let expected = format!(
        "{}\n[mcp_servers.oubliette]\nurl = \"{URL}\"\nhttp_headers = {{ Authorization = \"Bearer {TOKEN}\" }}\nenabled = true\n",
        hand_written(codex)
    );
    assert_eq!(case.read(), expected);
}
