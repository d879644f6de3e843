//! The prompt of `oubliette run`, and the files that go with it.

use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::ArgMatches;
use serde_json::{Value, json};

use super::PROMPT_FILE;
use crate::failure::Failure;

/// A longer prompt is refused by the server anyway.
const MAX_PROMPT_BYTES: u64 = 1 << 20;
/// Of all attached files; a request of the server has at most 16 MiB.
const MAX_ATTACHED_BYTES: u64 = 8 << 20;
const EDITOR_HINT: &str = "\n# Write the prompt above. Lines that start with # are left out; an empty prompt does nothing.\n";

/// The prompt: the words of the command line, the contents of a file or of the standard input, or what the
/// user writes in an editor.
pub(super) fn read(matches: &ArgMatches) -> Result<String, Failure> {
    let words = matches.get_many::<String>("PROMPT");
    let words: Vec<&str> = words.into_iter().flatten().map(String::as_str).collect();
    let file = matches.get_one::<String>(PROMPT_FILE).map(String::as_str);
    let (text, what) = match (words.as_slice(), file) {
        ([], None) if std::io::stdin().is_terminal() => (edit()?, "what was written".to_owned()),
        ([], None | Some("-")) | (["-"], _) => {
            let what = "the standard input".to_owned();
            (read_bounded(std::io::stdin(), &what)?, what)
        }
        ([], Some(file)) => {
            let failed =
                |error| Failure::with_cause(format!("cannot read the prompt from {file}"), &error);
            let opened = File::open(file).map_err(failed)?;
            (read_bounded(opened, file)?, file.to_owned())
        }
        (words, _) => (words.join(" "), "the command line".to_owned()),
    };
    if text.trim().is_empty() {
        return Err(Failure::new(format!("there is no prompt in {what}")));
    }
    Ok(text)
}

fn read_bounded(source: impl Read, what: &str) -> Result<String, Failure> {
    let mut text = String::new();
    source
        .take(MAX_PROMPT_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(|error| {
            Failure::with_cause(format!("cannot read the prompt from {what}"), &error)
        })?;
    if text.len() as u64 > MAX_PROMPT_BYTES {
        return Err(Failure::new(format!(
            "the prompt in {what} is longer than 1 MiB; attach long texts as files of the workspace"
        )));
    }
    Ok(text)
}

/// Opens the user's editor on a temporary file.
fn edit() -> Result<String, Failure> {
    let editor = ["VISUAL", "EDITOR"]
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
    let Some(editor) = editor else {
        return Err(Failure::new(
            "there is no prompt; give one, as in `oubliette run \"fix the failing test\"`, or set EDITOR to \
             write it there",
        ));
    };
    let file = tempfile::Builder::new()
        .prefix("prompt-")
        .suffix(".md")
        .tempfile();
    let file = file.map_err(|error| Failure::with_cause("cannot make a temporary file", &error))?;
    let failed =
        |error: std::io::Error| Failure::with_cause("cannot use the editor's file", &error);
    std::fs::write(file.path(), EDITOR_HINT).map_err(failed)?;
    // As git does it: the value may have options.
    let ended = Command::new("/bin/sh")
        .args(["-c", &format!("{editor} \"$@\""), &editor])
        .arg(file.path())
        .status()
        .map_err(failed)?;
    if !ended.success() {
        return Err(Failure::new(format!(
            "`{editor}` failed, and there is no prompt"
        )));
    }
    let text = read_bounded(File::open(file.path()).map_err(failed)?, "the editor")?;
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    Ok(lines.join("\n").trim().to_owned())
}

/// The parameter `attachments` for files.
pub(super) fn attachments<'a>(
    files: impl Iterator<Item = &'a PathBuf>,
) -> Result<Vec<Value>, Failure> {
    let mut left = MAX_ATTACHED_BYTES;
    files.map(|file| attachment(file, &mut left)).collect()
}

fn attachment(file: &Path, left: &mut u64) -> Result<Value, Failure> {
    let failed = |error| Failure::with_cause(format!("cannot read {}", file.display()), &error);
    let mut bytes = Vec::new();
    let opened = File::open(file).map_err(failed)?;
    opened
        .take(*left + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    *left = left.checked_sub(bytes.len() as u64).ok_or_else(|| {
        Failure::new("the attached files have more than 8 MiB; copy them with `oubliette cp`")
    })?;
    let name = file.file_name().and_then(|name| name.to_str());
    let name =
        name.ok_or_else(|| Failure::new(format!("{} has no name that is text", file.display())))?;
    Ok(json!({ "name": name, "content_base64": STANDARD.encode(bytes) }))
}
