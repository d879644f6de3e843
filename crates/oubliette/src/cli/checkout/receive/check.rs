//! Checks what a container has sent. It may name objects of the user's repository that it never had, for example of
//! a branch that was not sent, and would get them with the next copy; so all of the work must be in the
//! pack that arrived, or in the history that was sent.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};

use super::super::git::{Git, is_object_name, not_started};
use crate::failure::Failure;

/// More objects, or more files, than this are refused: git would need much memory for them.
const MAX_OBJECTS: usize = 10_000_000;
const MAX_FILES: usize = 5_000_000;
/// A line with the name of an object.
const MAX_LINE_BYTES: u64 = 4096;

/// Git knows the empty tree without having it.
const EMPTY_TREE: &str = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";

type ObjectName = [u8; 20];

/// Fails unless everything of the commits `work` and `sent` that is not in the history of `head` is in the pack.
pub(super) fn check(
    git: &Git,
    pack: &str,
    work: &str,
    sent: &str,
    head: Option<&str>,
) -> Result<(), Failure> {
    let mut wanted = vec!["rev-list", "--objects", "--no-object-names", work];
    if !sent.is_empty() {
        wanted.push(sent);
    }
    if let Some(head) = head {
        wanted.extend(["--not", head]);
    }
    let mut received = objects_of_pack(git, pack)?;
    received.extend(parse(EMPTY_TREE));
    let mut missing = HashSet::new();
    let listed = for_each_object(git, &wanted, |name| {
        if !received.contains(&name) {
            missing.insert(name);
        }
        missing.len() <= MAX_OBJECTS
    })?;
    // What the work has again of older commits need not be sent again.
    if listed
        && !missing.is_empty()
        && let Some(head) = head
    {
        let history = ["rev-list", "--objects", "--no-object-names", head];
        for_each_object(git, &history, |name| {
            missing.remove(&name);
            !missing.is_empty()
        })?;
    }
    if !listed || !missing.is_empty() {
        return Err(Failure::new(
            "the container did not send the work of the session: it names objects that were neither sent to it nor \
             received from it",
        ));
    }
    check_files(git, work)
}

/// Few objects can be many files: directories may have the same content.
fn check_files(git: &Git, work: &str) -> Result<(), Failure> {
    let mut files = 0;
    let words = ["ls-tree", "-r", "-z", "--name-only", work];
    let is_complete = for_each(git, &words, 0, |_| {
        files += 1;
        files <= MAX_FILES
    })?;
    if files > MAX_FILES {
        return Err(Failure::new(format!(
            "the work of the session has more than {MAX_FILES} files and is refused"
        )));
    }
    if !is_complete {
        return Err(Failure::new("the files of the session cannot be listed"));
    }
    Ok(())
}

/// The names of the objects that arrived.
fn objects_of_pack(git: &Git, pack: &str) -> Result<HashSet<ObjectName>, Failure> {
    let index = git.path([
        "rev-parse",
        "--git-path",
        &format!("objects/pack/pack-{pack}.idx"),
    ])?;
    let failed = |error| Failure::with_cause(format!("cannot read {}", index.display()), &error);
    let file = File::open(&index).map_err(failed)?;
    let mut command = git.command(["show-index"]);
    let mut child = command
        .stdin(file)
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| not_started(&error))?;
    let mut names = HashSet::new();
    for line in BufReader::new(reader(&mut child)).lines() {
        let line = line.map_err(failed)?;
        names.extend(line.split(' ').nth(1).and_then(parse));
        if names.len() > MAX_OBJECTS {
            let _ = child.kill();
            break;
        }
    }
    let status = child.wait().map_err(|error| not_started(&error))?;
    if names.len() > MAX_OBJECTS {
        return Err(Failure::new(format!(
            "the work of the session has more than {MAX_OBJECTS} objects and is refused"
        )));
    }
    if !status.success() {
        return Err(Failure::new("what the container sent cannot be read"));
    }
    Ok(names)
}

/// Calls `see` with each object that git lists until it returns false; whether git succeeded.
fn for_each_object(
    git: &Git,
    words: &[&str],
    mut see: impl FnMut(ObjectName) -> bool,
) -> Result<bool, Failure> {
    for_each(git, words, b'\n', |line| {
        parse(&String::from_utf8_lossy(line)).is_none_or(&mut see)
    })
}

/// Calls `see` with each part of what git prints until it returns false; whether git succeeded or was stopped.
fn for_each(
    git: &Git,
    words: &[&str],
    end: u8,
    mut see: impl FnMut(&[u8]) -> bool,
) -> Result<bool, Failure> {
    let mut child = git
        .command(words)
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| not_started(&error))?;
    let mut output = BufReader::new(reader(&mut child));
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = (&mut output)
            .take(MAX_LINE_BYTES)
            .read_until(end, &mut line);
        if read.map_err(|error| not_started(&error))? == 0 {
            break;
        }
        if line.last() == Some(&end) {
            line.pop();
        }
        if !see(&line) {
            let _ = child.kill();
            let _ = child.wait();
            return Ok(true);
        }
    }
    let status = child.wait().map_err(|error| not_started(&error))?;
    Ok(status.success())
}

fn reader(child: &mut Child) -> Box<dyn Read> {
    match child.stdout.take() {
        Some(stdout) => Box::new(stdout),
        None => Box::new(std::io::empty()),
    }
}

fn parse(text: &str) -> Option<ObjectName> {
    if !is_object_name(text) {
        return None;
    }
    let mut name = [0; 20];
    for (byte, digits) in name.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(name)
}
