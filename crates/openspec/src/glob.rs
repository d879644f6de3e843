//! The path patterns of schemas: `specs/**/*.md`, `{a,b}/[0-9]?.md`.

/// How many patterns one pattern with braces may expand to.
const MAX_ALTERNATIVES: usize = 256;
const MAX_PATTERN_BYTES: usize = 4096;

/// One component of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Segment {
    /// `**`: any number of directories.
    AnyDepth,
    Name(Vec<Token>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Token {
    /// One UTF-16 code unit, as in JavaScript.
    Literal(u16),
    /// `?`
    AnyUnit,
    /// `*`
    Star,
    /// `[…]`: ranges of code units, and whether they are negated.
    Class(Vec<(u16, u16)>, bool),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// A path without wildcards.
    Literal,
    /// A path matches if it matches one of these.
    AnyOf(Vec<Vec<Segment>>),
    /// A form that only the command supports.
    Unsupported,
}

/// Parses a path or pattern of a schema.
pub(crate) fn parse(text: &str) -> Pattern {
    let text = text.replace('\\', "/");
    let is_extended = is_extended(&text);
    if !text.contains(['*', '?', '[']) && !is_extended && !has_brace_choice(&text) {
        return Pattern::Literal;
    }
    if is_extended || text.len() > MAX_PATTERN_BYTES {
        return Pattern::Unsupported;
    }
    // A negated pattern alone matches nothing.
    if text.starts_with('!') {
        return Pattern::AnyOf(Vec::new());
    }
    let mut expanded = Vec::new();
    if !expand(&text, &mut expanded) {
        return Pattern::Unsupported;
    }
    let segments = |path: &String| {
        let relative = path.strip_prefix("./").unwrap_or(path);
        relative.split('/').map(parse_segment).collect()
    };
    Pattern::AnyOf(expanded.iter().map(segments).collect())
}

/// Whether a pattern has an extended form like `@(a|b)`.
fn is_extended(text: &str) -> bool {
    text.match_indices('(').any(|(at, _)| {
        let inner = &text[at + 1..];
        let closes = inner
            .find(['(', ')'])
            .is_some_and(|end| inner[end..].starts_with(')'));
        closes && text[..at].ends_with(['!', '*', '+', '?', '@'])
    })
}

/// Whether braces contain a choice or a range.
fn has_brace_choice(text: &str) -> bool {
    let mut open = Vec::new();
    for (at, c) in text.char_indices() {
        match c {
            '{' => open.push(at),
            '}' => {
                if let Some(start) = open.pop() {
                    let inner = &text[start..at];
                    if inner.contains(',') || inner.contains("..") {
                        return true;
                    }
                }
            }
            _ => {}
        }
    }
    false
}

/// Expands all choices in braces. Returns false if there are too many, or for a range.
fn expand(text: &str, out: &mut Vec<String>) -> bool {
    let Some((start, end, commas)) = first_brace_choice(text) else {
        if has_brace_choice(text) || out.len() >= MAX_ALTERNATIVES {
            return false;
        }
        out.push(text.to_owned());
        return true;
    };
    let mut from = start + 1;
    for stop in commas.into_iter().chain([end]) {
        let (before, choice, after) = (&text[..start], &text[from..stop], &text[end + 1..]);
        if !expand(&format!("{before}{choice}{after}"), out) {
            return false;
        }
        from = stop + 1;
    }
    true
}

/// The positions of the first braces with a choice, and of the commas between them.
fn first_brace_choice(text: &str) -> Option<(usize, usize, Vec<usize>)> {
    for (start, _) in text.match_indices('{') {
        let (mut depth, mut commas) = (0, Vec::new());
        for (at, c) in text[start..].char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 1 => commas.push(start + at),
                _ => {}
            }
            if depth == 0 {
                if commas.is_empty() {
                    break;
                }
                return Some((start, start + at, commas));
            }
        }
    }
    None
}

fn parse_segment(text: &str) -> Segment {
    if text == "**" {
        return Segment::AnyDepth;
    }
    let units: Vec<u16> = text.encode_utf16().collect();
    let (mut tokens, mut at) = (Vec::new(), 0);
    while let Some(unit) = units.get(at) {
        at += 1;
        let token = match u8::try_from(*unit) {
            Ok(b'?') => Token::AnyUnit,
            // Repeated stars match the same as one.
            Ok(b'*') if tokens.last() == Some(&Token::Star) => continue,
            Ok(b'*') => Token::Star,
            Ok(b'[') => match parse_class(&units[at..]) {
                Some((set, length)) => {
                    at += length;
                    set
                }
                None => Token::Literal(*unit),
            },
            _ => Token::Literal(*unit),
        };
        tokens.push(token);
    }
    Segment::Name(tokens)
}

/// Parses the text after `[`. Returns its length with the closing bracket.
fn parse_class(units: &[u16]) -> Option<(Token, usize)> {
    let is = |at: usize, c: u8| units.get(at) == Some(&u16::from(c));
    let negated = is(0, b'!') || is(0, b'^');
    let first = usize::from(negated);
    let end = (first + 1..units.len()).find(|at| is(*at, b']'))?;
    let (mut ranges, mut at) = (Vec::new(), first);
    while at < end {
        let low = units[at];
        if is(at + 1, b'-') && at + 2 < end {
            ranges.push((low, units[at + 2]));
            at += 3;
        } else {
            ranges.push((low, low));
            at += 1;
        }
    }
    Some((Token::Class(ranges, negated), end + 1))
}

/// Whether a name matches a segment. A hidden name matches only a segment that starts with a dot.
pub(crate) fn matches_name(tokens: &[Token], name: &str) -> bool {
    let hidden = name.starts_with('.');
    let allows_hidden =
        matches!(tokens.first(), Some(Token::Literal(unit)) if *unit == u16::from(b'.'));
    if name.is_empty() || (hidden && !allows_hidden) {
        return false;
    }
    let units: Vec<u16> = name.encode_utf16().collect();
    // Backtracking to the last `*` is enough: it can match all that an earlier one could.
    let (mut token, mut unit, mut last_star) = (0, 0, None);
    while unit < units.len() {
        let is_match = match tokens.get(token) {
            Some(Token::Star) => {
                last_star = Some((token, unit));
                token += 1;
                continue;
            }
            Some(Token::AnyUnit) => true,
            Some(Token::Literal(wanted)) => *wanted == units[unit],
            Some(Token::Class(ranges, negated)) => {
                let holds = |(low, high): &(u16, u16)| (*low..=*high).contains(&units[unit]);
                ranges.iter().any(holds) != *negated
            }
            None => false,
        };
        if is_match {
            (token, unit) = (token + 1, unit + 1);
        } else if let Some((star, matched)) = last_star {
            (token, unit) = (star + 1, matched + 1);
            last_star = Some((star, matched + 1));
        } else {
            return false;
        }
    }
    tokens[token..].iter().all(|token| *token == Token::Star)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name_matches(pattern: &str, name: &str) -> bool {
        match parse_segment(pattern) {
            Segment::Name(tokens) => matches_name(&tokens, name),
            Segment::AnyDepth => !name.starts_with('.'),
        }
    }

    #[test]
    fn names_match_as_in_a_shell() {
        for (pattern, name) in [
            ("*.md", "a.md"),
            ("*", "x"),
            ("a*b*c", "a-b-b-c"),
            ("???", "a.c"),
            ("[a-c][!0-9]", "bx"),
            (".*", ".hidden"),
            ("[]a]", "]"),
            ("a[", "a["),
        ] {
            assert!(name_matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("*.md", ".md"),
            ("*", ".hidden"),
            ("?", "😀"),
            ("[a-c]", "d"),
            ("a*b", "a-c"),
            ("A", "a"),
        ] {
            assert!(!name_matches(pattern, name), "{pattern} {name}");
        }
        let many_stars = format!("{}b", "*a".repeat(50));
        assert!(!name_matches(&many_stars, &"a".repeat(200)));
    }

    #[test]
    fn texts_are_parsed_as_paths_or_patterns() {
        for literal in ["tasks.md", "a/b (1).md", "{a}.md", "!x.md"] {
            assert_eq!(parse(literal), Pattern::Literal, "{literal}");
        }
        let count = |text: &str| match parse(text) {
            Pattern::AnyOf(alternatives) => alternatives.len(),
            _ => usize::MAX,
        };
        assert_eq!(count("{a,b}/{c,d{e,f}}.md"), 6);
        assert_eq!(count("specs/**/*.md"), 1);
        assert_eq!(count("!*.md"), 0);
        for unsupported in ["@(a|b).md", "{1..3}.md", &"{a,b}".repeat(10)] {
            assert_eq!(parse(unsupported), Pattern::Unsupported, "{unsupported}");
        }
    }
}
