//! Finds the files of a change that belong to an artifact.

use oubliette_model::{FileKind, FileTree, Found, ReadError};
use std::collections::{BTreeSet, HashSet};

use crate::glob::{self, Pattern, Segment};
use crate::{cmp_utf16, is_within, normalize_path};

/// Links can lead from directory to directory without end, and each level takes stack.
const MAX_SEARCH_DEPTH: usize = 400;

/// Why the files of an artifact cannot be determined.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OutputError {
    #[error("`{0}` leads out of the directory of the change, or to a missing file")]
    OutsideChange(String),
    #[error("`{0}` is part of a loop of links")]
    LinkLoop(String),
    #[error("the pattern `{0}` is not supported; use `*`, `**`, `?`, `[…]` and `{{a,b}}`")]
    UnsupportedPattern(String),
    #[error("{0}")]
    Tree(#[from] ReadError),
}

/// The files that a path or pattern of a schema matches in a change: resolved paths, sorted.
pub(crate) fn files(
    tree: &dyn FileTree,
    change_dir: &str,
    generates: &str,
) -> Result<Vec<String>, OutputError> {
    // Parsing a pattern takes time before the tree counts anything.
    tree.check_limits()?;
    match glob::parse(generates) {
        Pattern::Literal => literal_file(tree, change_dir, generates),
        Pattern::Unsupported => Err(OutputError::UnsupportedPattern(generates.to_owned())),
        Pattern::AnyOf(alternatives) => {
            let mut search = Search {
                tree,
                change_dir,
                visited: HashSet::new(),
                ancestors: HashSet::new(),
                matches: BTreeSet::new(),
            };
            for segments in &alternatives {
                search.visited.clear();
                search.enter(change_dir, segments)?;
            }
            let mut matches: Vec<String> = search.matches.into_iter().collect();
            matches.sort_by(|a, b| cmp_utf16(a, b));
            Ok(matches)
        }
    }
}

fn literal_file(
    tree: &dyn FileTree,
    change_dir: &str,
    relative: &str,
) -> Result<Vec<String>, OutputError> {
    let path = format!("{change_dir}/{}", normalize_path(relative));
    match tree.find(&path) {
        Ok(found) if !is_within(change_dir, &found.path) => Err(OutputError::OutsideChange(path)),
        Ok(found) if found.kind == FileKind::File => Ok(vec![found.path]),
        Ok(_) => Ok(Vec::new()),
        Err(ReadError::NotFound(missing)) if is_within(change_dir, &missing) => Ok(Vec::new()),
        Err(error @ ReadError::LimitReached(_)) => Err(error.into()),
        Err(_) => Err(OutputError::OutsideChange(path)),
    }
}

struct Search<'a> {
    tree: &'a dyn FileTree,
    change_dir: &'a str,
    /// Searched directories, each with the number of pattern segments that were left there.
    visited: HashSet<(String, usize)>,
    /// The directories that contain the one that is being searched, likewise.
    ancestors: HashSet<(String, usize)>,
    matches: BTreeSet<String>,
}

impl Search<'_> {
    /// Searches a directory, given by its resolved path, for the remaining segments of a pattern.
    fn enter(&mut self, directory: &str, segments: &[Segment]) -> Result<(), OutputError> {
        let position = (directory.to_owned(), segments.len());
        if self.ancestors.contains(&position) {
            return Err(OutputError::LinkLoop(directory.to_owned()));
        }
        if !self.visited.insert(position.clone()) {
            return Ok(());
        }
        if self.ancestors.len() >= MAX_SEARCH_DEPTH {
            return Err(ReadError::LimitReached("the directories are nested too deeply").into());
        }
        self.ancestors.insert(position.clone());
        let searched = self.search_entries(directory, segments);
        self.ancestors.remove(&position);
        searched
    }

    fn search_entries(&mut self, directory: &str, segments: &[Segment]) -> Result<(), OutputError> {
        let Some((segment, after)) = segments.split_first() else {
            return Ok(());
        };
        let is_last = after.is_empty();
        if *segment == Segment::AnyDepth && !is_last {
            self.enter(directory, after)?;
        }
        let entries = match self.tree.list(directory) {
            Ok(entries) => entries,
            Err(ReadError::NotFound(_) | ReadError::NotADirectory) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        for entry in entries {
            self.tree.check_limits()?;
            let is_match = match segment {
                Segment::AnyDepth => !entry.name.starts_with('.'),
                Segment::Name(tokens) => glob::matches_name(tokens, &entry.name),
            };
            if !is_match {
                continue;
            }
            let path = format!("{directory}/{}", entry.name);
            let found = match entry.kind {
                FileKind::Link => match self.tree.find(&path) {
                    Ok(found) => found,
                    Err(ReadError::DanglingLink) => continue,
                    Err(ReadError::LinkLoop) if is_last => continue,
                    Err(ReadError::LinkLoop) => return Err(OutputError::LinkLoop(path)),
                    Err(error @ ReadError::LimitReached(_)) => return Err(error.into()),
                    Err(_) => return Err(OutputError::OutsideChange(path)),
                },
                kind => Found {
                    path,
                    kind,
                    modified_ms: entry.modified_ms,
                },
            };
            let is_directory = found.kind == FileKind::Directory;
            let descends = is_directory && (!is_last || *segment == Segment::AnyDepth);
            let counts = is_last && found.kind == FileKind::File;
            if (descends || counts) && !is_within(self.change_dir, &found.path) {
                return Err(OutputError::OutsideChange(found.path));
            }
            if counts {
                self.matches.insert(found.path);
            } else if descends {
                let remaining = match segment {
                    Segment::AnyDepth => segments,
                    Segment::Name(_) => after,
                };
                self.enter(&found.path, remaining)?;
            }
        }
        Ok(())
    }
}
