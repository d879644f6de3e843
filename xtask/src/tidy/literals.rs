//! Blanks out what only looks like Rust: strings, characters and comments. What is left has every
//! line where it was, so that a brace at the start of a line is a brace of the code.

/// The source with strings, character literals and comments turned into spaces.
pub(super) fn blank(source: &str) -> String {
    let mut blanked = String::with_capacity(source.len());
    let mut rest = source;
    let mut previous = ' ';
    while let Some(next) = rest.chars().next() {
        let starts_word = !(previous.is_alphanumeric() || previous == '_');
        let hidden = literal_length(rest, starts_word).unwrap_or(0);
        if hidden == 0 {
            blanked.push(next);
            previous = next;
            rest = &rest[next.len_utf8()..];
        } else {
            let (literal, after) = rest.split_at(hidden);
            blanked.extend(literal.chars().map(|c| if c == '\n' { c } else { ' ' }));
            previous = ' ';
            rest = after;
        }
    }
    blanked
}

/// How many bytes at the start of `text` are a literal or a comment.
fn literal_length(text: &str, starts_word: bool) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    if text.starts_with("/*") {
        return Some(block_comment_length(text));
    }
    if let Some(inside) = text.strip_prefix('"') {
        return Some(1 + escaped_length(inside, '"'));
    }
    if let Some(inside) = text.strip_prefix('\'') {
        return character_length(inside);
    }
    if starts_word {
        return raw_string_length(text);
    }
    None
}

fn block_comment_length(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        if rest.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                break;
            }
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    at
}

/// The length up to and with the closing quote, minding backslashes.
fn escaped_length(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        if escaped {
            escaped = false;
        } else if c == '\\' {
            escaped = true;
        } else if c == quote {
            return at + c.len_utf8();
        }
    }
    text.len()
}

/// A character literal after its opening quote, or nothing if that opens a lifetime.
fn character_length(inside: &str) -> Option<usize> {
    let first = inside.chars().next()?;
    if first == '\\' {
        return Some(1 + escaped_length(inside, '\''));
    }
    let closes = inside[first.len_utf8()..].starts_with('\'');
    closes.then_some(first.len_utf8() + 2)
}

fn raw_string_length(text: &str) -> Option<usize> {
    let prefix = ["r", "br", "cr"]
        .into_iter()
        .find(|prefix| text.starts_with(prefix))?;
    let after = &text[prefix.len()..];
    let hashes = after.len() - after.trim_start_matches('#').len();
    let inside = after[hashes..].strip_prefix('"')?;
    let closing = format!("\"{}", &after[..hashes]);
    let opening = prefix.len() + hashes + 1;
    let length = inside
        .find(&closing)
        .map_or(inside.len(), |at| at + closing.len());
    Some(opening + length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_and_comments_go_and_code_stays() {
        let cases = [
            ("a(\"}\\\"}\") }", "a(      ) }"),
            ("a // }\n}", "a     \n}"),
            ("a /* } /* } */ } */ }", "a                   }"),
            ("r#\"\n}\"}\n\"# }", "   \n   \n   }"),
            ("var\"}\" }", "var    }"),
            ("r#type }", "r#type }"),
        ];
        for (source, expected) in cases {
            assert_eq!(blank(source), expected, "{source}");
        }
    }

    #[test]
    fn characters_go_and_lifetimes_stay() {
        assert_eq!(blank("'}' '\\'' b'}' }"), "         b    }");
        assert_eq!(blank("fn f<'a>(x: &'a str) {}"), "fn f<'a>(x: &'a str) {}");
    }
}
