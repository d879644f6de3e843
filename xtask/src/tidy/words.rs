//! Words that may not be used: markers of unfinished work, and names that a reader would have to
//! learn first. Each is written in two parts here, so that this file passes its own check.

use super::{Problem, SourceFile};

/// Code and markers that say that something is missing.
const UNFINISHED: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
    concat!("#[", "ignore"),
];

/// Metaphors and constants without a subject; CONTRIBUTING.md says what to use instead.
const UNCLEAR: &[&str] = &[
    concat!("PATI", "ENCE"),
    concat!("MO", "ST"),
    concat!("LONG", "EST"),
    concat!("min", "der"),
    concat!("scr", "ibe"),
    concat!("Door", "keeper"),
    concat!("ea", "rs"),
    concat!("ha", "ll"),
    concat!("who", "ever"),
    concat!("some", "body"),
    concat!("no", "body"),
    concat!("any", "body"),
];

/// The changelog names what has been replaced.
const EXEMPT: &str = "CHANGELOG.md";

pub(super) fn check(file: &SourceFile) -> Vec<Problem> {
    let is_prose_or_code = file.path.ends_with(".rs") || file.path.ends_with(".md");
    if !is_prose_or_code || file.path == EXEMPT {
        return Vec::new();
    }
    let mut problems = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        for word in UNFINISHED.iter().filter(|word| line.contains(**word)) {
            let message = format!("`{word}`: finish it, or remove it.");
            problems.push(Problem::new(file.path.as_str(), index + 1, message));
        }
        for word in UNCLEAR.iter().filter(|word| has_word(line, word)) {
            let message = format!("`{word}`: use the plain technical word for what is meant.");
            problems.push(Problem::new(file.path.as_str(), index + 1, message));
        }
    }
    problems
}

/// Whether a line has a word between characters that are not letters; `_` separates words too.
fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        ![before, after]
            .into_iter()
            .flatten()
            .any(char::is_alphabetic)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_words_are_found_in_names_and_sentences() {
        let word = concat!("MO", "ST");
        assert!(has_word(concat!("const MO", "ST_LINES: u8"), word));
        assert!(!has_word("const ALMOST: u8", word));
        assert!(!has_word("at most", word));
    }

    #[test]
    fn unfinished_work_is_reported_with_its_line() {
        let file = SourceFile {
            path: "src/a.rs".to_owned(),
            text: format!("//! Docs.\n{}\n", concat!("todo", "!()")),
        };
        let lines: Vec<usize> = check(&file).iter().map(|problem| problem.line).collect();
        assert_eq!(lines, [2]);
    }
}
