//! Which files of a change an artifact has made.

use std::collections::{BTreeSet, HashSet};

use super::glob::{self, Pattern, Segment};
use super::{by_units, is_within, normalised};
use crate::files::{Found, Kind, Lost, Tree};

/// Links can lead from directory to directory for ever, and each takes of the stack.
const DEEPEST: usize = 400;

/// Why nobody can say.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unclear {
    #[error("`{0}` leads out of the directory of the change, or to nothing")]
    Astray(String),
    #[error("`{0}` leads in a circle")]
    Circle(String),
    #[error("the pattern `{0}` is not understood; use `*`, `**`, `?`, `[…]` and `{{a,b}}`")]
    Strange(String),
    #[error("{0}")]
    Lost(#[from] Lost),
}

/// The files that a path or pattern stands for in a change, without links, sorted.
pub(super) fn of(tree: &Tree, change: &str, generates: &str) -> Result<Vec<String>, Unclear> {
    // Patterns cost time before anything is looked at.
    tree.goes_on()?;
    match glob::parse(generates) {
        Pattern::Literal => literal(tree, change, generates),
        Pattern::Strange => Err(Unclear::Strange(generates.to_owned())),
        Pattern::Any(ways) => {
            let mut search = Search {
                tree,
                change,
                visited: HashSet::new(),
                above: HashSet::new(),
                found: BTreeSet::new(),
            };
            for way in &ways {
                search.visited.clear();
                search.go(change, way)?;
            }
            let mut found: Vec<String> = search.found.into_iter().collect();
            found.sort_by(|a, b| by_units(a, b));
            Ok(found)
        }
    }
}

fn literal(tree: &Tree, change: &str, path: &str) -> Result<Vec<String>, Unclear> {
    let path = format!("{change}/{}", normalised(path));
    match tree.find(&path) {
        Ok(found) if !is_within(change, &found.path) => Err(Unclear::Astray(path)),
        Ok(found) if found.kind == Kind::File => Ok(vec![found.path]),
        Ok(_) => Ok(Vec::new()),
        Err(Lost::Absent(place)) if is_within(change, &place) => Ok(Vec::new()),
        Err(Lost::TooMuch(why)) => Err(Lost::TooMuch(why).into()),
        Err(_) => Err(Unclear::Astray(path)),
    }
}

struct Search<'a> {
    tree: &'a Tree,
    change: &'a str,
    /// Directories, with how much of the pattern was left there.
    visited: HashSet<(String, usize)>,
    /// The same on the way to where the search is now.
    above: HashSet<(String, usize)>,
    found: BTreeSet<String>,
}

impl Search<'_> {
    /// Goes on in a directory, by its path without links, with the rest of a pattern.
    fn go(&mut self, directory: &str, rest: &[Segment]) -> Result<(), Unclear> {
        let here = (directory.to_owned(), rest.len());
        if self.above.contains(&here) {
            return Err(Unclear::Circle(directory.to_owned()));
        }
        if !self.visited.insert(here.clone()) {
            return Ok(());
        }
        if self.above.len() >= DEEPEST {
            return Err(Lost::TooMuch("directories that are too deep").into());
        }
        self.above.insert(here.clone());
        let gone = self.look(directory, rest);
        self.above.remove(&here);
        gone
    }

    fn look(&mut self, directory: &str, rest: &[Segment]) -> Result<(), Unclear> {
        let Some((segment, after)) = rest.split_first() else {
            return Ok(());
        };
        let is_last = after.is_empty();
        if *segment == Segment::AnyDepth && !is_last {
            self.go(directory, after)?;
        }
        let entries = match self.tree.list(directory) {
            Ok(entries) => entries,
            Err(Lost::Absent(_) | Lost::NotADirectory) => return Ok(()),
            Err(lost) => return Err(lost.into()),
        };
        for entry in entries {
            self.tree.goes_on()?;
            let fits = match segment {
                Segment::AnyDepth => !entry.name.starts_with('.'),
                Segment::Name(parts) => glob::matches(parts, &entry.name),
            };
            if !fits {
                continue;
            }
            let path = format!("{directory}/{}", entry.name);
            let found = match entry.kind {
                Kind::Link => match self.tree.find(&path) {
                    Ok(found) => found,
                    Err(Lost::Dangling) => continue,
                    Err(Lost::Circle) if is_last => continue,
                    Err(Lost::Circle) => return Err(Unclear::Circle(path)),
                    Err(Lost::TooMuch(why)) => return Err(Lost::TooMuch(why).into()),
                    Err(_) => return Err(Unclear::Astray(path)),
                },
                kind => Found {
                    path,
                    kind,
                    modified: entry.modified,
                },
            };
            let is_directory = found.kind == Kind::Directory;
            let goes_on = is_directory && (!is_last || *segment == Segment::AnyDepth);
            let counts = is_last && found.kind == Kind::File;
            if (goes_on || counts) && !is_within(self.change, &found.path) {
                return Err(Unclear::Astray(found.path));
            }
            if counts {
                self.found.insert(found.path);
            } else if goes_on {
                let rest = match segment {
                    Segment::AnyDepth => rest,
                    Segment::Name(_) => after,
                };
                self.go(&found.path, rest)?;
            }
        }
        Ok(())
    }
}
