//! How many columns of a terminal a text takes, and texts cut to fit.

use std::io::IsTerminal;

use rustix::termios::tcgetwinsize;

/// What is taken for the width of a terminal that does not know it.
const DEFAULT_COLUMNS: usize = 80;

/// The width of the terminal that stdout is, if it is one, at this moment.
pub(crate) fn stdout_columns() -> Option<usize> {
    let stdout = std::io::stdout();
    stdout.is_terminal().then(|| columns_of(&stdout))
}

/// The width of the terminal that stderr is, if it is one, at this moment.
pub(crate) fn stderr_columns() -> Option<usize> {
    let stderr = std::io::stderr();
    stderr.is_terminal().then(|| columns_of(&stderr))
}

fn columns_of(terminal: &impl std::os::fd::AsFd) -> usize {
    match tcgetwinsize(terminal) {
        Ok(size) if size.ws_col > 0 => usize::from(size.ws_col),
        _ => DEFAULT_COLUMNS,
    }
}

/// The columns that a text takes, if it is one line without control characters.
pub(crate) fn text_columns(text: &str) -> usize {
    text.chars().map(char_columns).sum()
}

/// 2 for characters that terminals draw twice as wide, 0 for marks that they draw over others.
fn char_columns(c: char) -> usize {
    match u32::from(c) {
        0x0300..=0x036f | 0x200b..=0x200f | 0x20d0..=0x20ff | 0xfe00..=0xfe0f => 0,
        0x1100..=0x115f
        | 0x2e80..=0xa4cf
        | 0xac00..=0xd7a3
        | 0xf900..=0xfaff
        | 0xfe30..=0xfe6f
        | 0xff00..=0xff60
        | 0xffe0..=0xffe6
        | 0x1f300..=0x1faff
        | 0x20000..=0x3fffd => 2,
        _ => 1,
    }
}

/// The text, or as much of its beginning as fits, with an ellipsis.
pub(crate) fn fit(text: &str, columns: usize) -> String {
    if text_columns(text) <= columns {
        return text.to_owned();
    }
    let mut fitted = String::new();
    let mut taken = 1;
    for c in text.chars() {
        taken += char_columns(c);
        if taken > columns {
            break;
        }
        fitted.push(c);
    }
    if columns > 0 {
        fitted.push('…');
    }
    fitted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_at_the_columns_it_takes() {
        assert_eq!(fit("abcdef", 6), "abcdef");
        assert_eq!(fit("abcdef", 5), "abcd…");
        assert_eq!(fit("漢字漢字", 5), "漢字…");
        assert_eq!(fit("漢字漢字", 4), "漢…");
        assert_eq!(
            fit("e\u{301}e\u{301}e\u{301}", 3),
            "e\u{301}e\u{301}e\u{301}"
        );
        assert_eq!(fit("abc", 1), "…");
        assert_eq!(fit("abc", 0), "");
    }
}
