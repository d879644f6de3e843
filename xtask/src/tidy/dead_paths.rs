//! Links and paths in Markdown that lead nowhere.

use std::collections::BTreeSet;

use pulldown_cmark::{Event, Parser, Tag};

use super::{Problem, SourceFile};

/// The changelog may name files that are gone.
const EXEMPT: &str = "CHANGELOG.md";

pub(super) fn check(file: &SourceFile, paths: &[String]) -> Vec<Problem> {
    if !file.path.ends_with(".md") || file.path == EXEMPT {
        return Vec::new();
    }
    let existing = with_folders(paths);
    let mut problems = Vec::new();
    for (event, range) in Parser::new(&file.text).into_offset_iter() {
        let dead = match &event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                dead_link(dest_url, &file.path, &existing)
            }
            Event::Code(code) => dead_code_path(code, &file.path, &existing),
            _ => None,
        };
        if let Some(path) = dead {
            let line = file.text[..range.start].matches('\n').count() + 1;
            let message = format!("`{path}` is not in the repository: correct or remove it.");
            problems.push(Problem::new(file.path.as_str(), line, message));
        }
    }
    problems
}

/// Every path, and every folder above one.
fn with_folders(paths: &[String]) -> BTreeSet<&str> {
    let mut all = BTreeSet::from([""]);
    for path in paths {
        all.insert(path);
        all.extend(path.match_indices('/').map(|(at, _)| &path[..at]));
    }
    all
}

fn dead_link(target: &str, page: &str, existing: &BTreeSet<&str>) -> Option<String> {
    let path = target.split('#').next().unwrap_or_default();
    let is_elsewhere = path.is_empty() || path.contains(':');
    let folder = page.rsplit_once('/').map_or("", |(folder, _)| folder);
    let resolved = resolve(folder, path);
    (!is_elsewhere && !existing.contains(resolved.as_str())).then_some(resolved)
}

/// Inline code that begins like a path of this repository; item names, line numbers, placeholders and
/// arguments after it are left out. The path may start at the root or at the page's folder.
fn dead_code_path(code: &str, page: &str, existing: &BTreeSet<&str>) -> Option<String> {
    let word = code.split_whitespace().next()?.trim_start_matches("./");
    let path = word.split([':', '#', '<', '{', '*', '…']).next()?;
    let is_cut = path.len() < word.len() && !word[path.len()..].starts_with([':', '#']);
    let path = match (is_cut, path.rsplit_once('/')) {
        (true, Some((folder, _))) => folder,
        _ => path.trim_end_matches('/'),
    };
    let (first, _) = word.split_once('/')?;
    let folder = page.rsplit_once('/').map_or("", |(folder, _)| folder);
    let is_ours = !first.is_empty() && existing.contains(first);
    let is_alive = existing.contains(path) || existing.contains(resolve(folder, path).as_str());
    (is_ours && !is_alive).then(|| path.to_owned())
}

fn resolve(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in folder.split('/').chain(path.split('/')) {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dead(text: &str) -> Vec<usize> {
        let page = SourceFile {
            path: "docs/page.md".to_owned(),
            text: text.to_owned(),
        };
        let paths = ["README.md", "crates/model/src/lib.rs", "docs/page.md"];
        let paths = paths.map(str::to_owned);
        let problems = check(&page, &paths);
        problems.into_iter().map(|problem| problem.line).collect()
    }

    #[test]
    fn links_are_followed_from_their_page() {
        assert_eq!(
            dead("[a](../README.md#x) [b](#y) [c](https://x.y/z)\n"),
            [0; 0]
        );
        assert_eq!(dead("text\n[a](README.md)\n"), [2]);
    }

    #[test]
    fn inline_code_that_names_a_path_must_be_right() {
        let alive = "`crates/model/src/lib.rs:12` `crates/<name>/x.rs` `crates/*/y` `and/or` `crates/model::Scope`\n";
        assert_eq!(dead(alive), [0; 0]);
        assert_eq!(dead("`crates/gone`\n`docs/other.md`\n"), [1, 2]);
    }
}
