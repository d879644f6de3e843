//! Tasks: the lines of a file that begin with a box to tick.

use super::{is_space, trim};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Task<'a> {
    pub(super) done: bool,
    /// Empty if nothing stands behind the box.
    pub(super) description: &'a str,
}

/// The tasks of a file, wherever they stand: in lists below lists, and in examples too.
pub(super) fn tasks(text: &str) -> impl Iterator<Item = Task<'_>> {
    text.split('\n').filter_map(task)
}

/// How many tasks a file has, and how many are done.
pub(super) fn count(text: &str) -> (usize, usize) {
    tasks(text).fold((0, 0), |(total, done), task| {
        (total + 1, done + usize::from(task.done))
    })
}

fn task(line: &str) -> Option<Task<'_>> {
    let rest = after_marker(skip_space(line))?;
    let inside = skip_space(rest).strip_prefix('[')?;
    let marked = skip_space(inside);
    let is_padded = marked.len() < inside.len();
    let mark = marked
        .chars()
        .next()
        // A character that takes two units is none to the rule, which counts units.
        .filter(|c| *c != ']' && c.len_utf16() == 1);
    let behind = &marked[mark.map_or(0, char::len_utf8)..];
    let behind = skip_space(behind).strip_prefix(']')?;
    // `[a](b)` is a link and `[a][b]` too; an empty box is never one.
    let is_blank = mark.is_none() && is_padded;
    if !is_blank && behind.starts_with(['(', '[']) {
        return None;
    }
    let text = skip_space(behind);
    let end = text.find(['\r', '\u{2028}', '\u{2029}']);
    Some(Task {
        done: matches!(mark, Some('x' | 'X')),
        description: trim(&text[..end.unwrap_or(text.len())]),
    })
}

/// What follows `-`, `*`, `+`, `1.` or `1)`.
fn after_marker(line: &str) -> Option<&str> {
    if let Some(rest) = line.strip_prefix(['-', '*', '+']) {
        return Some(rest);
    }
    let digits = line.bytes().take_while(u8::is_ascii_digit).count();
    (1..=9)
        .contains(&digits)
        .then(|| line[digits..].strip_prefix(['.', ')']))
        .flatten()
}

fn skip_space(text: &str) -> &str {
    text.trim_start_matches(is_space)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_task_is_a_box_in_any_list() {
        for (line, done, description) in [
            ("- [ ] 1.1 Write it", false, "1.1 Write it"),
            ("- [x] done\r", true, "done"),
            ("\u{feff}* [X]close", true, "close"),
            ("\t+ [ x ]  padded  ", true, "padded"),
            ("12) [] nothing in it", false, "nothing in it"),
            ("999999999. [~] later", false, "later"),
            ("- [ ](link) all the same", false, "(link) all the same"),
            ("- [ ]", false, ""),
            ("- [é] mark", false, "mark"),
            ("- [ ] one\u{2028}two", false, "one"),
        ] {
            assert_eq!(task(line), Some(Task { done, description }), "{line:?}");
        }
        for line in [
            "",
            "[ ] no marker",
            "- [a](link)",
            "- [1][reference]",
            "- [](link)",
            "- [WIP] no",
            "1234567890. [ ] too long a number",
            "- [😀] two units",
            "- [ ",
            "-- [ ] no",
        ] {
            assert_eq!(task(line), None, "{line:?}");
        }
    }

    proptest! {
        #[test]
        fn no_line_is_too_strange(line in "[-*+0-9.) \\t\\[\\]xX(~é😀\\r\\u{2028}]{0,24}") {
            let _ = task(&line);
        }
    }
}
