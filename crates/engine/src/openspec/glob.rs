//! Patterns of paths, as schemas name files with them: `specs/**/*.md`, `{a,b}/[0-9]?.md`.

/// More than that, braces are not taken apart.
const MOST_PATTERNS: usize = 256;
const LONGEST: usize = 4096;

/// One way that a path can go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Segment {
    /// `**`: any number of directories.
    AnyDepth,
    Name(Vec<Part>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    Unit(u16),
    /// `?`
    One,
    /// `*`
    Many,
    /// `[…]`: ranges of units, or all but those.
    Set(Vec<(u16, u16)>, bool),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    /// A path as it is written.
    Literal,
    /// Any of these.
    Any(Vec<Vec<Segment>>),
    /// What only the command understands.
    Strange,
}

/// What a schema's text for files means.
pub(super) fn parse(text: &str) -> Pattern {
    let text = text.replace('\\', "/");
    let is_extended = is_extended(&text);
    if !text.contains(['*', '?', '[']) && !is_extended && !has_choice(&text) {
        return Pattern::Literal;
    }
    if is_extended || text.len() > LONGEST {
        return Pattern::Strange;
    }
    // A pattern of what not to take takes nothing.
    if text.starts_with('!') {
        return Pattern::Any(Vec::new());
    }
    let mut expanded = Vec::new();
    if !expand(&text, &mut expanded) {
        return Pattern::Strange;
    }
    let segments = |path: &String| {
        let path = path.strip_prefix("./").unwrap_or(path);
        path.split('/').map(segment).collect()
    };
    Pattern::Any(expanded.iter().map(segments).collect())
}

/// `@(a|b)` and its kin.
fn is_extended(text: &str) -> bool {
    text.match_indices('(').any(|(at, _)| {
        let inner = &text[at + 1..];
        let closes = inner
            .find(['(', ')'])
            .is_some_and(|end| inner[end..].starts_with(')'));
        closes && text[..at].ends_with(['!', '*', '+', '?', '@'])
    })
}

/// Whether braces hold a choice or a range.
fn has_choice(text: &str) -> bool {
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

/// Takes the first braces apart, and then those that are left; false if there are too many ways or
/// a range in it.
fn expand(text: &str, out: &mut Vec<String>) -> bool {
    let Some((start, end, commas)) = braces(text) else {
        if has_choice(text) || out.len() >= MOST_PATTERNS {
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

/// The first braces with a choice: where they are, and where its commas are.
fn braces(text: &str) -> Option<(usize, usize, Vec<usize>)> {
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

fn segment(text: &str) -> Segment {
    if text == "**" {
        return Segment::AnyDepth;
    }
    let units: Vec<u16> = text.encode_utf16().collect();
    let (mut parts, mut at) = (Vec::new(), 0);
    while let Some(unit) = units.get(at) {
        at += 1;
        let part = match u8::try_from(*unit) {
            Ok(b'?') => Part::One,
            // More of them in a row are no more than one.
            Ok(b'*') if parts.last() == Some(&Part::Many) => continue,
            Ok(b'*') => Part::Many,
            Ok(b'[') => match set(&units[at..]) {
                Some((set, length)) => {
                    at += length;
                    set
                }
                None => Part::Unit(*unit),
            },
            _ => Part::Unit(*unit),
        };
        parts.push(part);
    }
    Segment::Name(parts)
}

/// What stands between brackets, and how long it is with the closing one.
fn set(units: &[u16]) -> Option<(Part, usize)> {
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
    Some((Part::Set(ranges, negated), end + 1))
}

/// Whether a name is one that a segment means. Hidden names must be meant by their dot.
pub(super) fn matches(parts: &[Part], name: &str) -> bool {
    let hidden = name.starts_with('.');
    let means_hidden = matches!(parts.first(), Some(Part::Unit(unit)) if *unit == u16::from(b'.'));
    if name.is_empty() || (hidden && !means_hidden) {
        return false;
    }
    let name: Vec<u16> = name.encode_utf16().collect();
    // The way back to the last `*` is enough: what an earlier one could take, it can take too.
    let (mut part, mut unit, mut back) = (0, 0, None);
    while unit < name.len() {
        let fits = match parts.get(part) {
            Some(Part::Many) => {
                back = Some((part, unit));
                part += 1;
                continue;
            }
            Some(Part::One) => true,
            Some(Part::Unit(wanted)) => *wanted == name[unit],
            Some(Part::Set(ranges, negated)) => {
                let holds = |(low, high): &(u16, u16)| (*low..=*high).contains(&name[unit]);
                ranges.iter().any(holds) != *negated
            }
            None => false,
        };
        if fits {
            (part, unit) = (part + 1, unit + 1);
        } else if let Some((star, taken)) = back {
            (part, unit) = (star + 1, taken + 1);
            back = Some((star, taken + 1));
        } else {
            return false;
        }
    }
    parts[part..].iter().all(|part| *part == Part::Many)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name_matches(pattern: &str, name: &str) -> bool {
        match segment(pattern) {
            Segment::Name(parts) => matches(&parts, name),
            Segment::AnyDepth => !name.starts_with('.'),
        }
    }

    #[test]
    fn names_match_as_a_shell_has_it() {
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
        let slow = format!("{}b", "*a".repeat(50));
        assert!(!name_matches(&slow, &"a".repeat(200)));
    }

    #[test]
    fn texts_are_paths_or_patterns() {
        for literal in ["tasks.md", "a/b (1).md", "{a}.md", "!x.md"] {
            assert_eq!(parse(literal), Pattern::Literal, "{literal}");
        }
        let count = |text: &str| match parse(text) {
            Pattern::Any(ways) => ways.len(),
            _ => usize::MAX,
        };
        assert_eq!(count("{a,b}/{c,d{e,f}}.md"), 6);
        assert_eq!(count("specs/**/*.md"), 1);
        assert_eq!(count("!*.md"), 0);
        for strange in ["@(a|b).md", "{1..3}.md", &"{a,b}".repeat(10)] {
            assert_eq!(parse(strange), Pattern::Strange, "{strange}");
        }
    }
}
