//! Words that must not be left behind: markers of unfinished work, skipped tests, and paths that
//! exist only on somebody's machine. The words are put together here, so that this file passes.

use std::borrow::Cow;

use super::Problem;
use super::markdown;
use super::tree::Tree;

/// Markers of unfinished work, as whole words.
const MARKERS: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
];

/// Code that says that something is missing, with what to do instead.
const UNFINISHED: &[(&str, &str)] = &[
    (concat!("todo", "!("), "write what is missing"),
    (concat!("unimplemented", "!("), "write what is missing"),
    (
        concat!("#[", "ignore"),
        "let the test run, or delete it and say why",
    ),
];

/// Folders of a developer's machine whose next part is a person's name.
const HOMES: &[&str] = &[concat!("/ho", "me/"), concat!("/Us", "ers/")];

/// Names in an example that stand for anybody.
const ANYBODY: &[&str] = &["agent", "alice", "name", "user", "you"];

/// The home of the superuser, which is also an ordinary path inside a container.
const ROOT_HOME: &str = concat!("/ro", "ot/");

/// Folders of the machines that this project is developed on.
const WORKPLACES: &[&str] = &[ROOT_HOME, concat!("/wo", "rk/")];

/// Files whose paths are those inside a container, by how their path starts.
const CONTAINER_FILES: &[&str] = &[
    "crates/agent/",
    "crates/runtime/",
    "crates/sandbox/",
    "tests/e2e/containers/",
];

pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (path, text) in tree.texts() {
        // A page about the rules has to be able to quote them.
        let words = match path.ends_with(".md") {
            true => Cow::Owned(markdown::without_inline_code(text)),
            false => Cow::Borrowed(text),
        };
        for (index, line) in words.lines().enumerate() {
            for message in unfinished(line) {
                problems.push(Problem::new(path, index + 1, message));
            }
        }
        for (index, line) in text.lines().enumerate() {
            if let Some(message) = machine_path(path, line) {
                problems.push(Problem::new(path, index + 1, message));
            }
        }
    }
    problems
}

fn unfinished(line: &str) -> impl Iterator<Item = String> {
    let markers = MARKERS.iter().filter(|marker| has_word(line, marker));
    let marked = markers.map(|marker| {
        format!("The line is marked {marker}: do it now, or keep it outside the repository.")
    });
    let code = UNFINISHED.iter().filter(|(code, _)| line.contains(code));
    marked.chain(code.map(|(code, advice)| format!("The line contains `{code}`: {advice}.")))
}

fn has_word(line: &str, word: &str) -> bool {
    let continues = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let begins = !line[..at].ends_with(continues);
        let ends = !line[at + word.len()..].starts_with(continues);
        begins && ends
    })
}

fn machine_path(path: &str, line: &str) -> Option<String> {
    let home = HOMES
        .iter()
        .find_map(|home| path_starts(line, home).find_map(person));
    if let Some(name) = home {
        return Some(format!(
            "The line names the home folder of {name}, which other machines do not have: use a relative path, or a name for anybody such as `you`."
        ));
    }
    let workplace = WORKPLACES.iter().find(|folder| {
        let is_inside_container = **folder == ROOT_HOME && has_container_paths(path);
        !is_inside_container && path_starts(line, folder).next().is_some()
    })?;
    let mut message = format!(
        "The line names a path under {workplace}, which other machines do not have: use a relative path."
    );
    if *workplace == ROOT_HOME {
        message.push_str(
            " If it is meant inside a container, add the file to CONTAINER_FILES in xtask/src/tidy/words.rs.",
        );
    }
    Some(message)
}

fn has_container_paths(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let describes_image = name.starts_with("Dockerfile") || name.starts_with("Containerfile");
    describes_image || CONTAINER_FILES.iter().any(|start| path.starts_with(start))
}

/// What follows `folder` wherever an absolute path starts with it: not in the middle of a longer
/// path, and not as the host of an address.
fn path_starts<'a>(line: &'a str, folder: &'a str) -> impl Iterator<Item = &'a str> {
    line.match_indices(folder).filter_map(move |(at, _)| {
        let before = &line[..at];
        let continues_path =
            before.ends_with(|c: char| c.is_alphanumeric() || "_-.~*>})]$".contains(c));
        let is_host = before.ends_with(":/");
        (!continues_path && !is_host).then(|| &line[at + folder.len()..])
    })
}

/// The name at the start of `name/…`, if it is somebody's.
fn person(after: &str) -> Option<&str> {
    let (name, _) = after.split_once('/')?;
    let is_name = !name.is_empty()
        && name
            .chars()
            .all(|c| c.is_alphanumeric() || "_-.".contains(c));
    (is_name && !ANYBODY.contains(&name)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let problems = check(&Tree::example(&[(path, text)]));
        problems.into_iter().map(|problem| problem.line).collect()
    }

    #[test]
    fn markers_are_whole_words() {
        let marked = format!(
            "{}\n// {}: later\n({})\n",
            MARKERS[0], MARKERS[1], MARKERS[2]
        );
        assert_eq!(lines("a.rs", &marked), [1, 2, 3]);
        let harmless = format!("mktemp {0}{0}\n{1}S_DONE todo\n", MARKERS[2], MARKERS[0]);
        assert_eq!(lines("a.sh", &harmless), [0; 0]);
    }

    #[test]
    fn unfinished_code_and_skipped_tests_are_found() {
        for (code, _) in UNFINISHED {
            assert_eq!(lines("a.rs", &format!("fine\n    {code}")), [2]);
        }
    }

    #[test]
    fn a_page_may_quote_a_marker_but_not_carry_one() {
        let marker = MARKERS[0];
        assert_eq!(lines("a.md", &format!("No `{marker}` here.\n")), [0; 0]);
        assert_eq!(lines("a.md", &format!("{marker}: write this\n")), [1]);
    }

    #[test]
    fn paths_of_a_machine_are_found() {
        let named = format!("x\n\"{}bob/src\"\n", HOMES[0]);
        assert_eq!(lines("a.rs", &named), [2]);
        for folder in WORKPLACES {
            assert_eq!(lines("a.rs", &format!("cd {folder}main")), [1]);
            assert_eq!(lines("a.md", &format!("`file://{folder}main`")), [1]);
        }
    }

    #[test]
    fn paths_of_the_product_are_not_paths_of_a_machine() {
        let workplace = WORKPLACES[1].trim_end_matches('/');
        let product = format!(
            "{workplace}space/a {workplace}spaces/b crates{0}x {1}<name>/x {1}you/x http:/{0}x",
            WORKPLACES[1], HOMES[0]
        );
        assert_eq!(lines("a.rs", &product), [0; 0]);
    }

    #[test]
    fn the_superuser_has_a_home_in_a_container() {
        let text = format!("{ROOT_HOME}.config");
        assert_eq!(lines("crates/sandbox/src/a.rs", &text), [0; 0]);
        let both = format!("{text} {}main", WORKPLACES[1]);
        assert_eq!(lines("crates/sandbox/src/a.rs", &both), [1]);
        assert_eq!(lines("examples/Dockerfile", &text), [0; 0]);
        assert_eq!(lines("crates/model/src/a.rs", &text), [1]);
    }
}
