//! Paths that the documentation names and the repository does not have. Links are followed from
//! their page; inline code that looks like a path is looked up from the root, then from the page.

use std::collections::{BTreeMap, BTreeSet};

use super::Problem;
use super::markdown::{Found, Page};
use super::tree::Tree;

/// Folders of this repository that count even when they have gone missing.
const FOLDERS: &[&str] = &[
    ".ci", "benches", "crates", "docs", "examples", "fuzz", "tests", "xtask",
];

/// Tells what was, so it may name what is no longer there.
const HISTORY: &str = "CHANGELOG.md";

pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    let pages: BTreeMap<&str, Page> = tree
        .texts_named(".md")
        .map(|(path, text)| (path, Page::parse(text)))
        .collect();
    let anchors: BTreeMap<&str, BTreeSet<String>> = pages
        .iter()
        .map(|(path, page)| (*path, page.anchors()))
        .collect();
    let folders: BTreeSet<&str> = tree
        .paths()
        .filter_map(|path| path.split_once('/'))
        .map(|(folder, _)| folder)
        .chain(FOLDERS.iter().copied())
        .collect();

    let mut problems = Vec::new();
    for (path, page) in &pages {
        for link in page.links() {
            if let Some(message) = dead_link(tree, &anchors, path, &link) {
                problems.push(Problem::new(*path, link.line, message));
            }
        }
        if *path == HISTORY {
            continue;
        }
        for code in page.code() {
            let Some(named) = named_path(code.text, &folders) else {
                continue;
            };
            let missing = missing_paths(tree, path, named);
            if !missing.is_empty() {
                let message = format!(
                    "The page names `{}`, which is not in the repository: correct the path, or leave it out.",
                    missing.join("`, `")
                );
                problems.push(Problem::new(*path, code.line, message));
            }
        }
    }
    problems
}

fn dead_link(
    tree: &Tree,
    anchors: &BTreeMap<&str, BTreeSet<String>>,
    page: &str,
    link: &Found<'_>,
) -> Option<String> {
    let target = link.text;
    if leads_elsewhere(target) {
        return None;
    }
    let (path, anchor) = match target.split_once('#') {
        Some((path, anchor)) => (path, Some(anchor)),
        None => (target, None),
    };
    let resolved = match path {
        "" => page.to_owned(),
        path => match resolve(folder_of(page), path) {
            Some(resolved) => resolved,
            None => {
                return Some(format!(
                    "The link to {target} leaves the repository: link to a full address instead."
                ));
            }
        },
    };
    if !tree.has(&resolved) {
        return Some(format!(
            "The link to {target} is dead, there is no {resolved} in the repository: correct the path, or remove the link."
        ));
    }
    let wanted = anchor.filter(|anchor| !anchor.is_empty())?;
    let known = anchors.get(resolved.as_str())?;
    (!known.contains(wanted)).then(|| {
        format!(
            "The link to {target} is dead, no heading of {resolved} becomes #{wanted}: correct the anchor."
        )
    })
}

/// Whether a link has a scheme, as in `https:` or `mailto:`, or names a host.
fn leads_elsewhere(target: &str) -> bool {
    let scheme = target.split(['/', '#', '?']).next().unwrap_or_default();
    scheme.contains(':') || target.starts_with("//")
}

fn folder_of(page: &str) -> &str {
    page.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// The path from the root, or nothing if it climbs out of the repository.
fn resolve(folder: &str, path: &str) -> Option<String> {
    let start = if path.starts_with('/') { "" } else { folder };
    let mut parts = Vec::new();
    for part in start.split('/').chain(path.split('/')) {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// The path that inline code names, if it begins with a folder of this repository. A line number,
/// an item or an anchor after it is not part of it, nor are the arguments of a script.
fn named_path<'a>(code: &'a str, folders: &BTreeSet<&str>) -> Option<&'a str> {
    let word = code.split_whitespace().next()?;
    let path = word.strip_prefix("./").unwrap_or(word);
    let path = path.split([':', '#']).next()?;
    let (folder, _) = path.split_once('/')?;
    folders.contains(folder).then_some(path)
}

/// The paths that `named` stands for and that neither the root nor the folder of the page has.
fn missing_paths(tree: &Tree, page: &str, named: &str) -> Vec<String> {
    let folder = folder_of(page);
    let mut named = alternatives(named);
    named.retain(|path| {
        let from_root = resolve("", path);
        let from_page = resolve(folder, path);
        let found = from_root.into_iter().chain(from_page);
        !found.into_iter().any(|path| exists(tree, &path))
    });
    named
}

/// `a/{b,c}` as `a/b` and `a/c`.
fn alternatives(path: &str) -> Vec<String> {
    let braces = path
        .split_once('{')
        .and_then(|(before, rest)| Some((before, rest.split_once('}')?)));
    match braces {
        Some((before, (inside, after))) if inside.contains(',') => inside
            .split(',')
            .flat_map(|choice| alternatives(&format!("{before}{choice}{after}")))
            .collect(),
        _ => vec![path.to_owned()],
    }
}

fn exists(tree: &Tree, path: &str) -> bool {
    let pattern = wildcards(path);
    if !pattern.contains('*') {
        return tree.has(&pattern);
    }
    let pattern: Vec<&str> = pattern.split('/').collect();
    tree.paths().any(|known| {
        let known: Vec<&str> = known.split('/').collect();
        path_matches(&pattern, &known)
    })
}

/// Placeholders (`<id>`, `{id}`) as `*`, and an ellipsis as `**`.
fn wildcards(path: &str) -> String {
    let mut pattern = path.replace("...", "**").replace('…', "**");
    for (opening, closing) in [('<', '>'), ('{', '}')] {
        while let Some(start) = pattern.find(opening) {
            let Some(length) = pattern[start..].find(closing) else {
                break;
            };
            pattern.replace_range(start..=start + length, "*");
        }
    }
    pattern
}

fn path_matches(pattern: &[&str], path: &[&str]) -> bool {
    match (pattern, path) {
        ([], []) => true,
        (["**", rest @ ..], _) => (0..=path.len()).any(|skip| path_matches(rest, &path[skip..])),
        ([first, pattern @ ..], [name, path @ ..]) => {
            name_matches(first, name) && path_matches(pattern, path)
        }
        _ => false,
    }
}

fn name_matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|name| {
            name.char_indices()
                .map(|(at, _)| at)
                .chain([name.len()])
                .any(|at| name_matches(rest, &name[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The problems of a page `docs/page.md` beside a few other files.
    fn lines(page: &str) -> Vec<usize> {
        let tree = Tree::example(&[
            ("README.md", "# Read me\n"),
            ("crates/model/src/lib.rs", ""),
            ("crates/store/src/lib.rs", ""),
            ("docs/page.md", page),
            ("docs/pictures/tree.svg", ""),
        ]);
        let problems = check(&tree);
        problems.into_iter().map(|problem| problem.line).collect()
    }

    #[test]
    fn links_are_followed_from_the_page() {
        let alive = "\
# Here
[a](../README.md#read-me) [b](pictures/) [c](#here) [d](/crates/model) [e](https://x.y/z)
";
        assert_eq!(lines(alive), [0; 0]);
        let dead = "[a](README.md)\n[b](../README.md#unread)\n[c](#gone)\n[d](../../x)\n";
        assert_eq!(lines(dead), [1, 2, 3, 4]);
    }

    #[test]
    fn code_that_names_a_path_must_be_right() {
        let alive = "\
`crates/model/src/lib.rs:12`, `crates/<name>/src/*.rs`, `crates/{model,store}/src`, `docs/…`,
`crates/**/lib.rs`, `./docs/page.md#here`, `and/or`, `crates`, `crates/model::Scope`
";
        assert_eq!(lines(alive), [0; 0]);
        let dead = "`crates/attic`\n`crates/{model,attic}`\n`fuzz/run.sh --all`\n`docs/*.txt`\n";
        assert_eq!(lines(dead), [1, 2, 3, 4]);
    }

    #[test]
    fn only_the_changelog_may_name_what_is_gone() {
        let tree = Tree::example(&[("CHANGELOG.md", "`crates/attic` left.\n[x](attic.md)\n")]);
        let problems = check(&tree);
        assert_eq!(problems.len(), 1);
        assert_eq!(problems[0].line, 2);
    }
}
