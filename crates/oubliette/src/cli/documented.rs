//! Every command that the documents show is one that this command line accepts.

use std::path::{Path, PathBuf};

use clap::error::ErrorKind;

/// How much of a command a document shows.
#[derive(Clone, Copy, PartialEq)]
enum Shown {
    /// A line of a shell script: complete.
    Whole,
    /// Inside a sentence: arguments may be left out.
    Mention,
}

/// The documents that show commands.
fn documents() -> Vec<PathBuf> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut paths: Vec<PathBuf> = ["README.md", "CONTRIBUTING.md", "SECURITY.md"]
        .map(|name| top.join(name))
        .to_vec();
    for entry in std::fs::read_dir(top.join("docs")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "md") {
            paths.push(path);
        }
    }
    paths.sort();
    paths
}

/// The commands of a document, as texts: lines of its shell blocks, and code in sentences.
fn commands(text: &str) -> Vec<(Shown, String)> {
    let mut found = Vec::new();
    for (number, part) in text.split("```").enumerate() {
        if number % 2 == 0 {
            let code = part.split('`').skip(1).step_by(2);
            found.extend(code.map(|code| (Shown::Mention, code.replace(['[', ']'], ""))));
        } else if let Some(("sh", script)) = part.split_once('\n') {
            let script = script.replace("\\\n", " ");
            found.extend(script.lines().map(|line| (Shown::Whole, line.to_owned())));
        }
    }
    found
}

/// The simple commands of a line, each as its words: quotes are resolved, comments dropped.
fn simple_commands(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let mut word: Option<String> = None;
    let mut quote = None;
    for character in line.chars() {
        match (quote, character) {
            (Some(open), _) if character == open => quote = None,
            (Some(_), _) => word.get_or_insert_default().push(character),
            (None, '\'' | '"') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, '|' | ';' | '&' | '>' | '<' | '(' | ')') => {
                commands.last_mut().unwrap().extend(word.take());
                // What follows is another command, or a file for its input or output.
                commands.push(Vec::new());
            }
            (None, _) if character.is_whitespace() => {
                commands.last_mut().unwrap().extend(word.take());
            }
            (None, _) => word.get_or_insert_default().push(character),
        }
    }
    commands.last_mut().unwrap().extend(word);
    commands
}

/// The arguments of `oubliette`, if these words call it: also by `cargo run --`, and after variables.
fn arguments(words: Vec<String>) -> Option<Vec<String>> {
    let words: Vec<String> = words
        .into_iter()
        .skip_while(|word| word.contains('=') && !word.starts_with('-'))
        .collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["oubliette", ..] => Some(words),
        ["cargo", "run", "--", ..] => Some(words[2..].to_vec()),
        _ => None,
    }
}

#[test]
fn every_command_in_the_documents_is_accepted() {
    let mut checked = 0;
    let mut refused = Vec::new();
    for path in documents() {
        let text = std::fs::read_to_string(&path).unwrap();
        for (shown, line) in commands(&text) {
            for arguments in simple_commands(&line).into_iter().filter_map(arguments) {
                checked += 1;
                let Err(error) = super::command().try_get_matches_from(&arguments) else {
                    continue;
                };
                let is_accepted = match error.kind() {
                    ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => true,
                    ErrorKind::MissingRequiredArgument
                    | ErrorKind::MissingSubcommand
                    | ErrorKind::InvalidValue
                    | ErrorKind::ValueValidation
                    | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                        shown == Shown::Mention
                    }
                    _ => false,
                };
                if !is_accepted {
                    refused.push(format!("{}: {line}\n{error}", path.display()));
                }
            }
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    assert!(checked > 100, "only {checked} commands were found");
}

#[test]
fn a_line_is_split_as_a_shell_would() {
    let words = |line: &str| -> Vec<Vec<String>> { simple_commands(line) };
    assert_eq!(
        words("A=1 oubliette run 'a # b' | cat # comment"),
        [vec!["A=1", "oubliette", "run", "a # b"], vec!["cat"]]
    );
}
