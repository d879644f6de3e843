//! Text that is broken between words where the terminal ends, also while it arrives in pieces.

use super::width::text_columns;

/// Breaks a text that arrives in pieces. Without a width it is left as it is.
#[derive(Debug, Default)]
pub(crate) struct WordWrap {
    /// The columns that the current line takes.
    column: usize,
    /// The spaces before `word`.
    gap: String,
    /// The word that is not complete yet.
    word: String,
}

impl WordWrap {
    /// The part of the text that can be shown already.
    pub(crate) fn push(&mut self, text: &str, columns: Option<usize>) -> String {
        let Some(columns) = columns else {
            return self.finish() + text;
        };
        let mut shown = String::new();
        for c in text.chars() {
            match c {
                '\n' => {
                    self.end_word(columns, &mut shown);
                    // Spaces at the end of a line show nothing.
                    self.gap.clear();
                    self.column = 0;
                    shown.push('\n');
                }
                ' ' | '\t' => {
                    self.end_word(columns, &mut shown);
                    self.gap.push_str(if c == '\t' { "    " } else { " " });
                }
                c => self.word.push(c),
            }
        }
        shown
    }

    /// What was held back.
    pub(crate) fn finish(&mut self) -> String {
        let rest = std::mem::take(&mut self.gap) + &std::mem::take(&mut self.word);
        self.column = 0;
        rest
    }

    fn end_word(&mut self, columns: usize, shown: &mut String) {
        if self.word.is_empty() {
            return;
        }
        let needed = text_columns(&self.gap) + text_columns(&self.word);
        if self.column > 0 && self.column + needed > columns {
            shown.push('\n');
            self.gap.clear();
            self.column = 0;
        }
        self.column += text_columns(&self.gap) + text_columns(&self.word);
        shown.push_str(&std::mem::take(&mut self.gap));
        shown.push_str(&std::mem::take(&mut self.word));
    }
}

/// A whole text, broken between words.
pub(crate) fn wrapped(text: &str, columns: Option<usize>) -> String {
    let mut wrap = WordWrap::default();
    let mut shown = wrap.push(text, columns);
    // The last word is complete, too.
    if let Some(columns) = columns {
        wrap.end_word(columns, &mut shown);
    }
    shown + &wrap.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_between_words_however_the_text_arrives() {
        let text = "one two three\n  four five   six and averyverylongword end";
        let expected = "one two\nthree\n  four five\nsix and\naveryverylongword\nend";
        assert_eq!(wrapped(text, Some(11)), expected);
        assert_eq!(wrapped(text, None), text);
        for size in 1..10 {
            let mut wrap = WordWrap::default();
            let chars: Vec<char> = text.chars().collect();
            let mut shown: String = chars
                .chunks(size)
                .map(|piece| wrap.push(&piece.iter().collect::<String>(), Some(11)))
                .collect();
            shown.push_str(&wrap.push("\n", Some(11)));
            assert_eq!(shown, format!("{expected}\n"), "{size}");
        }
    }
}
