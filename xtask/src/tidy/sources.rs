//! The shape of source files: how long they may be, how they open, and where modules live.

use super::Problem;
use super::literals;
use super::tree::Tree;

/// Where a file wants to be two; tests at its end do not count.
const MOST_CODE_LINES: usize = 600;
/// Where even the tests are too many for one file.
const MOST_LINES: usize = 900;

pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (path, text) in tree.texts_named(".rs") {
        problems.extend(check_size(path, text));
        if must_be_introduced(path) {
            problems.extend(check_opening(path, text));
        }
        let name = path.rsplit('/').next().unwrap_or(path);
        if name == "mod.rs" {
            let folder = path.strip_suffix("/mod.rs").unwrap_or("the folder");
            let message = format!(
                "Modules are not named mod.rs here: move this file to {folder}.rs, beside its folder."
            );
            problems.push(Problem::new(path, 1, message));
        }
    }
    problems
}

fn check_size(path: &str, text: &str) -> Option<Problem> {
    let lines = text.lines().count();
    let code = code_lines(text);
    if code > MOST_CODE_LINES {
        let message = format!(
            "The file has {code} lines, not counting tests at its end, and {MOST_CODE_LINES} is the most: split it by what it is about."
        );
        return Some(Problem::new(path, MOST_CODE_LINES + 1, message));
    }
    if lines > MOST_LINES {
        let message = format!(
            "The file has {lines} lines with its tests, and {MOST_LINES} is the most: move the tests to a file of their own, or split both."
        );
        return Some(Problem::new(path, MOST_LINES + 1, message));
    }
    None
}

/// The lines of a file without the test modules that end it.
fn code_lines(text: &str) -> usize {
    let blanked = literals::blank(text);
    let lines: Vec<&str> = blanked.lines().collect();
    let modules = test_modules(&lines);
    let total = lines.len();
    let mut end = total;
    for (start, after) in modules.into_iter().rev() {
        let is_last = lines[after..end].iter().all(|line| line.trim().is_empty());
        if !is_last {
            break;
        }
        end = start;
    }
    if end == total {
        return total;
    }
    let used = lines[..end]
        .iter()
        .rposition(|line| !line.trim().is_empty());
    used.map_or(0, |last| last + 1)
}

/// Each inline test module: its first line and the line after its closing brace. Counts on rustfmt,
/// which closes an outer item at the start of a line.
fn test_modules(lines: &[&str]) -> Vec<(usize, usize)> {
    let mut modules = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        match test_module_end(&lines[at..]) {
            Some(length) => {
                modules.push((at, at + length));
                at += length;
            }
            None => at += 1,
        }
    }
    modules
}

fn test_module_end(lines: &[&str]) -> Option<usize> {
    let opening = lines.first()?;
    let is_for_tests = opening.starts_with("#[cfg(test)]") || opening.starts_with("#[cfg(all(test");
    if !is_for_tests {
        return None;
    }
    let attributes = lines
        .iter()
        .take_while(|line| line.starts_with("#[") || line.trim().is_empty())
        .count();
    let item = lines.get(attributes)?;
    let item = item.strip_prefix("pub(crate) ").unwrap_or(item);
    if !(item.starts_with("mod ") && item.trim_end().ends_with('{')) {
        return None;
    }
    let closing = lines.iter().position(|line| line.starts_with('}'))?;
    Some(closing + 1)
}

fn must_be_introduced(path: &str) -> bool {
    let mut parts = path.split('/');
    match parts.next() {
        Some("tests" | "benches") => true,
        Some("xtask") => parts.next() == Some("src"),
        Some("crates") => parts.nth(1) == Some("src"),
        _ => false,
    }
}

fn check_opening(path: &str, text: &str) -> Option<Problem> {
    let (line, opening) = first_line_after_attributes(text);
    let says_something = opening
        .strip_prefix("//!")
        .is_some_and(|words| !words.trim().is_empty());
    if says_something {
        return None;
    }
    let message = "The file does not open with `//!`: say in a sentence or two what it is for and what it must never do.";
    Some(Problem::new(path, line, message))
}

/// The first line that is neither empty nor part of an inner attribute, with its number.
fn first_line_after_attributes(text: &str) -> (usize, &str) {
    let mut open_brackets = 0_usize;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if open_brackets == 0 && !line.is_empty() && !line.starts_with("#![") {
            return (index + 1, line);
        }
        open_brackets += line.matches('[').count();
        open_brackets = open_brackets.saturating_sub(line.matches(']').count());
    }
    (1, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_at_the_end_do_not_count() {
        let text = "fn a() {\n}\n\n/// Checks.\n#[cfg(test)]\n#[allow(x)]\nmod tests {\n    fn b() {\n    }\n}\n";
        assert_eq!(code_lines(text), 2);
    }

    #[test]
    fn several_test_modules_at_the_end_do_not_count() {
        let text = "fn a() {}\n#[cfg(test)]\nmod one {\n}\n\n#[cfg(test)]\nmod two {\n}\n";
        assert_eq!(code_lines(text), 1);
    }

    #[test]
    fn tests_in_the_middle_count() {
        let text = "#[cfg(test)]\nmod tests {\n}\nfn a() {\n}\n";
        assert_eq!(code_lines(text), 5);
    }

    #[test]
    fn a_test_module_in_its_own_file_is_a_line_of_code() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests;\n";
        assert_eq!(code_lines(text), 3);
    }

    #[test]
    fn a_brace_in_a_fixture_does_not_end_the_tests() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    const X: &str = r#\"{\n}\n\"#;\n}\n";
        assert_eq!(code_lines(text), 1);
    }

    #[test]
    fn sizes_are_judged_with_and_without_tests() {
        let code = "fn a() {}\n";
        let tests = |lines| format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "\n".repeat(lines));
        let line = |text: String| check_size("x.rs", &text).map(|problem| problem.line);
        assert_eq!(line(code.repeat(600) + &tests(200)), None);
        assert_eq!(line(code.repeat(601)), Some(601));
        assert_eq!(line(code.repeat(600) + &tests(400)), Some(901));
    }

    #[test]
    fn a_file_opens_with_what_it_is_for() {
        let opens = |text| check_opening("x.rs", text).is_none();
        assert!(opens("//! Words.\n"));
        assert!(opens("#![allow(\n    clippy::all,\n)]\n\n//! Words.\n"));
        assert!(!opens("//!\nuse a;\n"));
        assert!(!opens("use a;\n//! Words.\n"));
        assert!(!opens(""));
    }

    #[test]
    fn sources_tests_and_benches_are_introduced() {
        for path in ["crates/a/src/b.rs", "xtask/src/main.rs", "tests/e2e/a.rs"] {
            assert!(must_be_introduced(path), "{path}");
        }
        for path in ["crates/a/build.rs", "fuzz/a.rs", "xtask/build.rs"] {
            assert!(!must_be_introduced(path), "{path}");
        }
    }

    #[test]
    fn mod_rs_is_reported() {
        let tree = Tree::example(&[("crates/a/src/b/mod.rs", "//! Words.\n")]);
        let problems = check(&tree);
        assert!(problems[0].message.contains("crates/a/src/b.rs"));
    }
}
