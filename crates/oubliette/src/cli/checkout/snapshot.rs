//! A snapshot of a working tree: tracked files, and untracked ones that git does not ignore, as they are
//! now. It is a commit in a directory of its own; the repository is only read.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::git::{Git, last_lines};
use super::repository::{Head, Repository};
use super::scratch::Scratch;
use crate::failure::Failure;

/// How many lines of what git complains about are shown.
const MAX_NOTES: usize = 5;
const SNAPSHOT_DATE: &str = "1000000000 +0000";

#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) head: Head,
    /// A commit with the files; HEAD if nothing is uncommitted.
    pub(super) commit: String,
    pub(super) tree: String,
    /// What the user should know, for example files that could not be read.
    pub(super) notes: Vec<String>,
    /// Git that also sees the objects of the snapshot, and writes new ones beside them.
    pub(super) git: Git,
    pub(super) quarantine: Quarantine,
}

/// A directory for new objects, which no repository refers to. Dropping it removes them.
#[derive(Debug)]
pub(super) struct Quarantine {
    directory: Scratch,
}

impl Quarantine {
    /// The directory, and git that writes its objects there.
    pub(super) fn new(repository: &Repository) -> Result<(Self, Git), Failure> {
        let failed = |error| Failure::with_cause("cannot make a temporary directory", &error);
        let directory = Scratch::new(&repository.home)?;
        let objects = directory.path().join("objects");
        fs::create_dir(&objects).map_err(failed)?;
        let own = repository.git_path("objects")?;
        let own = fs::canonicalize(&own).unwrap_or(own);
        let git = repository
            .git
            .with_variable("GIT_OBJECT_DIRECTORY", objects)
            .with_variable("GIT_ALTERNATE_OBJECT_DIRECTORIES", quote(own.as_os_str()))
            .with_variable("GIT_AUTHOR_NAME", "Oubliette")
            .with_variable("GIT_AUTHOR_EMAIL", "noreply@oubliette.invalid")
            .with_variable("GIT_COMMITTER_NAME", "Oubliette")
            .with_variable("GIT_COMMITTER_EMAIL", "noreply@oubliette.invalid")
            // The same files are the same commit: a second sending finds it.
            .with_variable("GIT_AUTHOR_DATE", SNAPSHOT_DATE)
            .with_variable("GIT_COMMITTER_DATE", SNAPSHOT_DATE);
        Ok((Self { directory }, git))
    }

    pub(super) fn path(&self) -> &Path {
        self.directory.path()
    }
}

impl Snapshot {
    pub(super) fn take(repository: &Repository) -> Result<Self, Failure> {
        let (quarantine, git) = Quarantine::new(repository)?;
        let head = repository.head()?;
        let mut notes = repository.notes();
        let index = quarantine.path().join("index");
        let own = repository.git_path("index")?;
        match fs::copy(&own, &index) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Failure::with_cause(
                    format!("cannot read {}", own.display()),
                    &error,
                ));
            }
            Err(_) => {}
            // Git rehashes files that are not older than the index.
            Ok(_) => copy_times(&own, &index),
        }
        let git = git.with_variable("GIT_INDEX_FILE", index);
        let data = repository.data_directories()?;
        for directory in &data {
            notes.push(format!(
                "not sent: {}, which has keys and data of Oubliette",
                directory.display()
            ));
        }
        let tree = write_tree(&git, &data, &mut notes)?;
        notes.extend(submodules(&git)?);
        let commit = commit_of(&git, &head, &tree)?;
        Ok(Self {
            head,
            commit,
            tree,
            notes,
            git,
            quarantine,
        })
    }

    /// Takes files out of the snapshot.
    pub(super) fn remove(&mut self, paths: &BTreeSet<PathBuf>) -> Result<(), Failure> {
        let mut names = Vec::new();
        for path in paths {
            names.extend(path.as_os_str().as_bytes());
            names.push(0);
        }
        self.git
            .filter(["update-index", "-z", "--force-remove", "--stdin"], names)?;
        self.write()
    }

    /// Takes the uncommitted contents of files out of the snapshot: it has them as HEAD does.
    pub(super) fn revert(&mut self, paths: &BTreeSet<PathBuf>) -> Result<(), Failure> {
        let mut committed = Vec::new();
        if let Some(head) = &self.head.commit {
            let listing = ["ls-tree", "-z", "--full-tree", head, "--"].map(OsStr::new);
            let paths = paths.iter().map(|path| path.as_os_str());
            committed = self.git.output(listing.into_iter().chain(paths))?;
        }
        self.remove(paths)?;
        self.git
            .filter(["update-index", "-z", "--index-info"], committed)?;
        self.write()
    }

    fn write(&mut self) -> Result<(), Failure> {
        self.tree = self.git.text(["write-tree"])?;
        self.commit = commit_of(&self.git, &self.head, &self.tree)?;
        Ok(())
    }
}

/// A commit with the files: HEAD if it has the same.
fn commit_of(git: &Git, head: &Head, tree: &str) -> Result<String, Failure> {
    match &head.commit {
        Some(commit) if git.text(["rev-parse", &format!("{commit}^{{tree}}")])? == tree => {
            Ok(commit.clone())
        }
        Some(commit) => commit_tree(git, tree, &[commit], "Uncommitted files"),
        None => commit_tree(git, tree, &[], "Uncommitted files"),
    }
}

/// Writes the files of the working tree as a tree, without some directories of it.
pub(super) fn write_tree(
    git: &Git,
    left_out: &[PathBuf],
    notes: &mut Vec<String>,
) -> Result<String, Failure> {
    let arguments = [
        "-c",
        "core.safecrlf=false",
        "-c",
        "advice.addEmbeddedRepo=false",
        "add",
        "-A",
        "--ignore-errors",
        "--",
        ":/",
    ];
    let excluded = left_out.iter().map(|path| {
        let mut pattern = OsString::from(":(top,exclude,literal)");
        pattern.push(path);
        pattern
    });
    let arguments = arguments.map(OsString::from).into_iter().chain(excluded);
    let added = git.run(arguments)?;
    let complaints = String::from_utf8_lossy(&added.stderr).into_owned();
    // 1: some files could not be read, and are left out.
    if !matches!(added.status.code(), Some(0 | 1)) {
        return Err(Failure::new(last_lines(&added.stderr)));
    }
    let lines = complaints
        .lines()
        .filter(|line| !line.starts_with("warning: adding embedded"));
    notes.extend(lines.take(MAX_NOTES).map(str::to_owned));
    git.text(["write-tree"])
}

pub(super) fn commit_tree(
    git: &Git,
    tree: &str,
    parents: &[&str],
    message: &str,
) -> Result<String, Failure> {
    let parents = parents.iter().flat_map(|parent| ["-p", parent]);
    let arguments = ["commit-tree", tree, "-m", message].into_iter();
    git.text(arguments.chain(parents))
}

/// A note about the repositories in the tree, of which git records only a commit.
fn submodules(git: &Git) -> Result<Option<String>, Failure> {
    let entries = git.output(["ls-files", "--stage", "-z"])?;
    let links = entries.split(|byte| *byte == 0);
    let links = links.filter(|entry| entry.starts_with(b"160000 "));
    let names: Vec<String> = links
        .filter_map(|entry| entry.split(|byte| *byte == b'\t').nth(1))
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect();
    Ok((!names.is_empty()).then(|| {
        let shown = names.iter().take(3).map(String::as_str).collect::<Vec<_>>();
        let more = if names.len() > 3 { ", …" } else { "" };
        format!(
            "repositories inside this one are not sent, and are empty directories there: {}{more}",
            shown.join(", ")
        )
    }))
}

fn copy_times(from: &Path, to: &Path) {
    let times = fs::metadata(from).and_then(|meta| meta.modified());
    if let (Ok(modified), Ok(file)) = (times, fs::File::options().write(true).open(to)) {
        let _ = file.set_modified(modified);
    }
}

/// A path in a list of directories that colons separate.
fn quote(path: &OsStr) -> OsString {
    let bytes = path.as_bytes();
    if !bytes.iter().any(|byte| matches!(byte, b':' | b'"' | b'\n')) {
        return path.to_owned();
    }
    let mut quoted = vec![b'"'];
    for &byte in bytes {
        match byte {
            b'"' | b'\\' => quoted.extend([b'\\', byte]),
            b'\n' => quoted.extend(*b"\\n"),
            byte => quoted.push(byte),
        }
    }
    quoted.push(b'"');
    OsString::from_vec(quoted)
}
