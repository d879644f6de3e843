//! `cargo xtask tidy`: the rules of the house that no compiler checks. It reads the repository and
//! never changes it, and it lists every problem rather than stopping at the first.

mod doc_paths;
mod edges;
mod inheritance;
mod licences;
mod literals;
mod manifest;
mod markdown;
mod packages;
mod sources;
mod tree;
mod words;

use std::fmt;

use packages::Workspace;
use tree::Tree;

/// Something to put right, and where.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Problem {
    path: String,
    line: usize,
    message: String,
}

impl Problem {
    fn new(path: impl Into<String>, line: usize, message: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            line,
            message: message.into(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// Checks the workspace around the current directory.
pub(crate) fn run() -> Result<(), String> {
    let workspace = Workspace::read()?;
    let tree = Tree::read(&workspace.root)?;

    let mut problems = edges::check(&workspace, &tree);
    problems.extend(inheritance::check(&workspace, &tree));
    problems.extend(sources::check(&tree));
    problems.extend(doc_paths::check(&tree));
    problems.extend(words::check(&tree));
    problems.extend(match packages::licences() {
        Ok(packages) => licences::check(&packages, &tree),
        Err(reason) => vec![Problem::new(licences::LOCK_FILE, 1, reason)],
    });
    problems.sort();
    problems.dedup();

    let files = tree.files.len();
    if problems.is_empty() {
        println!("tidy: {files} files, no problems");
        return Ok(());
    }
    for problem in &problems {
        println!("{problem}");
    }
    let count = match problems.len() {
        1 => "1 problem".to_owned(),
        more => format!("{more} problems"),
    };
    Err(format!("tidy: {files} files, {count}"))
}
