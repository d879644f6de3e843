//! Output of a tool as plain lines: without colours, control characters and overlong lines.

/// Longer lines are cut.
const MAX_LINE_BYTES: usize = 4096;

/// Takes text in chunks and returns it in lines.
#[derive(Debug, Default)]
pub(crate) struct PlainLines {
    line: String,
    escape: Escape,
}

#[derive(Debug, Default, Clone, Copy, PartialEq)]
enum Escape {
    #[default]
    None,
    /// After the escape character.
    Started,
    /// In a control sequence, which a letter ends.
    Sequence,
    /// In a string, for example a title, which a bell or an escape ends.
    Text,
}

impl PlainLines {
    /// The lines that end in this chunk.
    pub(crate) fn push(&mut self, text: &str) -> Vec<String> {
        text.chars().filter_map(|c| self.take(c)).collect()
    }

    /// The text after the last line break.
    pub(crate) fn finish(&mut self) -> Option<String> {
        self.escape = Escape::None;
        Some(std::mem::take(&mut self.line)).filter(|line| !line.is_empty())
    }

    fn take(&mut self, c: char) -> Option<String> {
        self.escape = match (self.escape, c) {
            (Escape::None | Escape::Text, '\u{1b}') => Escape::Started,
            (Escape::None, _) => return self.print(c),
            (Escape::Started, '[') => Escape::Sequence,
            (Escape::Started, ']') => Escape::Text,
            (Escape::Sequence, c) if !('\u{40}'..='\u{7e}').contains(&c) => Escape::Sequence,
            (Escape::Text, c) if c != '\u{7}' => Escape::Text,
            _ => Escape::None,
        };
        None
    }

    fn print(&mut self, c: char) -> Option<String> {
        match c {
            // A progress bar redraws itself after a carriage return; each state is a line.
            '\n' | '\r' => return self.finish(),
            '\t' => self.line.push(' '),
            c if c.is_control() => {}
            c if self.line.len() < MAX_LINE_BYTES => self.line.push(c),
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(text: &str) -> Vec<String> {
        let mut plain = PlainLines::default();
        let mut lines = plain.push(text);
        lines.extend(plain.finish());
        lines
    }

    #[test]
    fn colours_titles_and_progress_bars_become_plain_lines() {
        let text = "\u{1b}[91mred\u{1b}[0m\n\u{1b}]0;title\u{7}a\tb\r10%\r\n\n20%\u{8}";
        assert_eq!(all(text), ["red", "a b", "10%", "20%"]);
    }

    #[test]
    fn an_overlong_line_is_cut() {
        assert_eq!(all(&"x".repeat(10_000))[0].len(), MAX_LINE_BYTES);
    }

    proptest! {
        #[test]
        fn chunk_boundaries_do_not_change_the_lines(text in "[ab\u{1b}\\[\\]m\r\n\u{7}é]{0,40}", at in 0usize..40) {
            let at = text.char_indices().map(|(at, _)| at).nth(at).unwrap_or(0);
            let (first, second) = text.split_at(at);
            let mut plain = PlainLines::default();
            let mut lines = plain.push(first);
            lines.extend(plain.push(second));
            lines.extend(plain.finish());
            prop_assert_eq!(lines, all(&text));
        }
    }
}
