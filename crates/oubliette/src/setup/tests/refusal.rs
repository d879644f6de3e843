//! Files that cannot be merged into: each is refused in a sentence and left alone.

use std::fs;

use super::*;

#[test]
fn a_broken_file_is_refused_and_left_alone() {
    for client in http_clients() {
        let broken = [
            "{ \"a\": ",
            "\u{0}",
            "a = = b",
            "{'a': 1}",
            "{\"a\": 1 \"b\": 2}",
        ];
        for text in broken {
            let case = Case::with(client, text);
            let error = case.plan().unwrap_err();
            assert!(matches!(error, SetupError::Syntax { .. }), "{error}");
            let sentence = error.to_string();
            assert!(sentence.contains("line 1"), "{sentence}");
            assert!(sentence.contains(case.path.to_str().unwrap()), "{sentence}");
            assert_eq!(case.read(), text);
        }
    }
}

#[test]
fn a_file_that_is_not_text_is_refused() {
    for client in http_clients() {
        let case = Case::with(client, "");
        fs::write(&case.path, b"\xff\xfe{}").unwrap();
        assert!(matches!(case.plan(), Err(SetupError::Syntax { .. })));
    }
}

#[test]
fn a_key_of_the_wrong_type_is_refused() {
    for client in http_clients() {
        let servers = client.servers;
        let in_place_of_servers = match client.format {
            Format::Json => format!("{{\"{servers}\": []}}"),
            Format::Toml => format!("{servers} = []\n"),
        };
        let in_place_of_entry = match client.format {
            Format::Json => format!("{{\"{servers}\": {{\"oubliette\": true}}}}"),
            Format::Toml => format!("{servers}.oubliette = true\n"),
        };
        let in_place_of_headers = entry_with(client, headers(client), "\"x\"");
        for (text, what, found) in [
            (in_place_of_servers, format!("`{servers}` "), "a list"),
            (
                in_place_of_entry,
                format!("`{servers}.oubliette` "),
                "a boolean",
            ),
            (
                in_place_of_headers,
                format!(".{}` ", headers(client)),
                "a string",
            ),
        ] {
            let case = Case::with(client, &text);
            let error = case.plan().unwrap_err();
            assert!(matches!(error, SetupError::Shape { .. }), "{error}");
            let sentence = error.to_string();
            assert!(
                sentence.contains(&what) && sentence.contains(found),
                "{sentence}"
            );
            assert_eq!(case.read(), text);
        }
    }
}

#[test]
fn a_json_file_without_an_object_is_refused() {
    for client in CLIENTS
        .iter()
        .filter(|client| matches!(client.format, Format::Json))
    {
        let case = Case::with(client, "[1]");
        let sentence = case.plan().unwrap_err().to_string();
        assert!(sentence.contains("the whole file is a list"), "{sentence}");
    }
}
