//! The shape of a Rust file: how long it may be, how it opens, and where modules live.

use super::{Problem, SourceFile};

/// Above this a file wants to be two. Tests at the end of the file do not count.
const MAX_CODE_LINES: usize = 600;
/// The limit with the tests.
const MAX_LINES: usize = 900;

pub(super) fn check(file: &SourceFile) -> Vec<Problem> {
    if !file.path.ends_with(".rs") {
        return Vec::new();
    }
    let mut problems = Vec::new();
    let mut report = |line, message: String| {
        problems.push(Problem::new(file.path.as_str(), line, message));
    };
    let lines = file.text.lines().count();
    let code = code_lines(&file.text);
    if code > MAX_CODE_LINES {
        report(
            code,
            format!("The file has {code} lines of code; the limit is {MAX_CODE_LINES}: split it."),
        );
    } else if lines > MAX_LINES {
        report(
            lines,
            format!(
                "The file has {lines} lines; the limit is {MAX_LINES}: move its tests to a file of their own."
            ),
        );
    }
    let opens_with_docs = file
        .text
        .lines()
        .next()
        .is_some_and(|line| line.starts_with("//! "));
    if !opens_with_docs {
        report(
            1,
            "The file does not open with `//!`: say what it is for.".to_owned(),
        );
    }
    if file.path.ends_with("/mod.rs") {
        report(
            1,
            "Name the module after its folder, beside it, instead of mod.rs.".to_owned(),
        );
    }
    problems
}

/// The lines before the test module at the end of a file.
fn code_lines(text: &str) -> usize {
    let mut lines = text.lines();
    lines
        .by_ref()
        .position(|line| line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test"))
        .unwrap_or_else(|| text.lines().count())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        let file = SourceFile {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        let problems = check(&file).into_iter();
        problems.map(|problem| problem.message).collect()
    }

    #[test]
    fn long_files_are_reported_with_and_without_tests() {
        let code = |lines: usize| "//! Docs.\n".to_owned() + &"fn a() {}\n".repeat(lines - 1);
        let tests = |lines| format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "\n".repeat(lines));
        assert_eq!(messages("a.rs", &(code(600) + &tests(200))), [""; 0]);
        assert!(messages("a.rs", &code(601))[0].contains("601 lines of code"));
        assert!(messages("a.rs", &(code(600) + &tests(400)))[0].contains("1003 lines"));
    }

    #[test]
    fn a_file_opens_with_its_purpose_and_is_not_called_mod() {
        assert_eq!(messages("src/a.rs", "use b;\n").len(), 1);
        assert_eq!(messages("src/a/mod.rs", "//! Docs.\n").len(), 1);
        assert_eq!(messages("README.md", "# Title\n"), [""; 0]);
    }
}
