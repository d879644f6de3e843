//! Tasks: list items that start with a checkbox.

use crate::{is_js_whitespace, trim_js_whitespace};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Task<'a> {
    pub(crate) done: bool,
    /// Empty if no text follows the checkbox.
    pub(crate) description: &'a str,
}

/// All tasks of a file, including those in nested lists and in code blocks.
pub(crate) fn parse_tasks(text: &str) -> impl Iterator<Item = Task<'_>> {
    text.split('\n').filter_map(parse_task)
}

/// The number of tasks in a file and how many are done.
pub(crate) fn count_tasks(text: &str) -> (usize, usize) {
    parse_tasks(text).fold((0, 0), |(total, done), task| {
        (total + 1, done + usize::from(task.done))
    })
}

fn parse_task(line: &str) -> Option<Task<'_>> {
    let rest = after_marker(trim_start(line))?;
    let box_text = trim_start(rest).strip_prefix('[')?;
    let from_mark = trim_start(box_text);
    let has_leading_space = from_mark.len() < box_text.len();
    let mark = from_mark
        .chars()
        .next()
        // The command's rule matches one UTF-16 code unit.
        .filter(|c| *c != ']' && c.len_utf16() == 1);
    let after_mark = &from_mark[mark.map_or(0, char::len_utf8)..];
    let after_box = trim_start(after_mark).strip_prefix(']')?;
    // `[a](b)` and `[a][b]` are links; an empty checkbox never starts one.
    let is_empty_box = mark.is_none() && has_leading_space;
    if !is_empty_box && after_box.starts_with(['(', '[']) {
        return None;
    }
    let text = trim_start(after_box);
    let end = text.find(['\r', '\u{2028}', '\u{2029}']);
    Some(Task {
        done: matches!(mark, Some('x' | 'X')),
        description: trim_js_whitespace(&text[..end.unwrap_or(text.len())]),
    })
}

/// The text after a list marker: `-`, `*`, `+`, `1.` or `1)`.
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

fn trim_start(text: &str) -> &str {
    text.trim_start_matches(is_js_whitespace)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_checkbox_in_any_list_is_a_task() {
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
            assert_eq!(
                parse_task(line),
                Some(Task { done, description }),
                "{line:?}"
            );
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
            assert_eq!(parse_task(line), None, "{line:?}");
        }
    }

    proptest! {
        #[test]
        fn no_line_panics(line in "[-*+0-9.) \\t\\[\\]xX(~é😀\\r\\u{2028}]{0,24}") {
            let _ = parse_task(&line);
        }
    }
}
