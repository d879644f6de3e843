//! Finds links, inline code and headings in Markdown. Fenced blocks are examples of something else
//! and are left out.

use std::collections::{BTreeMap, BTreeSet};

/// A piece of a page and the line it starts on.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found<'a> {
    pub(super) line: usize,
    pub(super) text: &'a str,
}

/// A page, with copies of its text in which every offset and line is where it was.
pub(super) struct Page {
    /// Without fenced blocks.
    unfenced: String,
    /// Without fenced blocks and inline code.
    prose: String,
    spans: Vec<(usize, usize)>,
}

impl Page {
    pub(super) fn parse(text: &str) -> Self {
        let unfenced = blank(text, &fences(text));
        let spans = code_spans(&unfenced);
        let prose = blank(&unfenced, &spans);
        Self {
            unfenced,
            prose,
            spans,
        }
    }

    /// The contents of inline code.
    pub(super) fn code(&self) -> impl Iterator<Item = Found<'_>> {
        self.spans.iter().map(|&(start, end)| Found {
            line: line_of(&self.unfenced, start),
            text: self.unfenced[start..end].trim_matches('`').trim(),
        })
    }

    /// The targets of links and images: `[x](target)`, `[x]: target`, `src="target"`.
    pub(super) fn links(&self) -> Vec<Found<'_>> {
        let text = self.prose.as_str();
        let mut links = Vec::new();
        let mut add = |start: usize, target: Option<&'_ str>| {
            if let Some(target) = target.filter(|target| !target.is_empty()) {
                let at = start + text[start..].find(target).unwrap_or(0);
                links.push(Found {
                    line: line_of(text, start),
                    text: &text[at..at + target.len()],
                });
            }
        };
        for (at, opening) in text.match_indices("](") {
            let start = at + opening.len();
            add(start, inline_target(&text[start..]));
        }
        for attribute in ["src=\"", "srcset=\"", "href=\""] {
            for (at, opening) in text.match_indices(attribute) {
                let start = at + opening.len();
                add(start, text[start..].split('"').next());
            }
        }
        let mut start = 0;
        for line in text.split_inclusive('\n') {
            add(start, defined_target(line));
            start += line.len();
        }
        links.sort_by_key(|link| link.line);
        links
    }

    /// What can follow `#` in a link to this page, as GitHub names headings.
    pub(super) fn anchors(&self) -> BTreeSet<String> {
        let mut anchors = BTreeSet::new();
        let mut repeats: BTreeMap<String, usize> = BTreeMap::new();
        for heading in self.unfenced.lines().filter_map(heading) {
            let slug = slug(heading);
            let repeat = repeats.entry(slug.clone()).or_default();
            anchors.insert(match *repeat {
                0 => slug,
                count => format!("{slug}-{count}"),
            });
            *repeat += 1;
        }
        for attribute in [" id=\"", " name=\""] {
            for (at, opening) in self.prose.match_indices(attribute) {
                let value = self.prose[at + opening.len()..].split('"').next();
                anchors.extend(value.map(str::to_owned));
            }
        }
        anchors
    }
}

/// The text with inline code turned into spaces; fenced blocks stay.
pub(super) fn without_inline_code(text: &str) -> String {
    blank(text, &Page::parse(text).spans)
}

/// Turns ranges of bytes into spaces, keeping every offset and line end.
fn blank(text: &str, ranges: &[(usize, usize)]) -> String {
    let mut blanked = String::with_capacity(text.len());
    let mut at = 0;
    for &(start, end) in ranges {
        blanked.push_str(&text[at..start]);
        let spaces = text[start..end].bytes();
        blanked.extend(spaces.map(|byte| if byte == b'\n' { '\n' } else { ' ' }));
        at = end;
    }
    blanked.push_str(&text[at..]);
    blanked
}

fn fences(text: &str) -> Vec<(usize, usize)> {
    let mut fences = Vec::new();
    let mut open: Option<(usize, &str)> = None;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let after = at + line.len();
        let run = fence_run(line);
        match open {
            None if run.len() >= 3 => open = Some((at, run)),
            Some((start, opening)) if run.starts_with(opening) && line.trim() == run => {
                fences.push((start, after));
                open = None;
            }
            None | Some(_) => {}
        }
        at = after;
    }
    fences.extend(open.map(|(start, _)| (start, text.len())));
    fences
}

/// The backticks or tildes that a line starts with.
fn fence_run(line: &str) -> &str {
    let line = line.trim_start();
    let mark = if line.starts_with('~') { '~' } else { '`' };
    &line[..line.len() - line.trim_start_matches(mark).len()]
}

/// Inline code with its backticks. It ends at a run of as many backticks as began it, in the same
/// paragraph; without such a run the backticks are plain text.
fn code_spans(text: &str) -> Vec<(usize, usize)> {
    let mut spans = Vec::new();
    let mut at = 0;
    while let Some(found) = text[at..].find('`') {
        let start = at + found;
        let inside = start + backticks(&text[start..]);
        match closing_run(&text[inside..], inside - start) {
            Some(length) => {
                at = inside + length;
                spans.push((start, at));
            }
            None => at = inside,
        }
    }
    spans
}

fn closing_run(text: &str, wanted: usize) -> Option<usize> {
    let paragraph = text.find("\n\n").map_or(text, |end| &text[..end]);
    let mut at = 0;
    while let Some(found) = paragraph[at..].find('`') {
        let run = at + found;
        let length = backticks(&paragraph[run..]);
        at = run + length;
        if length == wanted {
            return Some(at);
        }
    }
    None
}

fn backticks(text: &str) -> usize {
    text.len() - text.trim_start_matches('`').len()
}

/// The target at the start of `target "title")`.
fn inline_target(text: &str) -> Option<&str> {
    if let Some(bracketed) = text.strip_prefix('<') {
        return bracketed.split('>').next();
    }
    let mut depth = 0_usize;
    for (at, c) in text.char_indices() {
        match c {
            ')' if depth == 0 => return Some(&text[..at]),
            ')' => depth -= 1,
            '(' => depth += 1,
            c if c.is_whitespace() => return Some(&text[..at]),
            _ => {}
        }
    }
    None
}

/// The target of a line `[label]: target`; a footnote is not one.
fn defined_target(line: &str) -> Option<&str> {
    let label = line.trim_start().strip_prefix('[')?;
    if label.starts_with('^') {
        return None;
    }
    let (_, target) = label.split_once("]: ")?;
    target
        .split_whitespace()
        .next()
        .map(|target| target.trim_matches(['<', '>']))
}

fn heading(line: &str) -> Option<&str> {
    let text = line.trim_start_matches('#');
    let level = line.len() - text.len();
    let is_heading = (1..=6).contains(&level) && text.starts_with(' ');
    is_heading.then(|| text.trim().trim_end_matches('#').trim())
}

fn slug(heading: &str) -> String {
    without_link_targets(heading)
        .to_lowercase()
        .chars()
        .filter_map(|c| match c {
            ' ' => Some('-'),
            '-' | '_' => Some(c),
            c => c.is_alphanumeric().then_some(c),
        })
        .collect()
}

fn without_link_targets(heading: &str) -> String {
    let mut text = heading.to_owned();
    while let Some(at) = text.find("](") {
        let Some(target) = inline_target(&text[at + 2..]) else {
            break;
        };
        let end = (at + 3 + target.len()).min(text.len());
        text.replace_range(at..end, "");
    }
    text
}

fn line_of(text: &str, at: usize) -> usize {
    1 + text[..at].matches('\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links(text: &str) -> Vec<(usize, String)> {
        let page = Page::parse(text);
        let links = page.links().into_iter();
        links
            .map(|link| (link.line, link.text.to_owned()))
            .collect()
    }

    fn code(text: &str) -> Vec<(usize, String)> {
        let page = Page::parse(text);
        page.code()
            .map(|code| (code.line, code.text.to_owned()))
            .collect()
    }

    #[test]
    fn links_of_every_kind_are_found() {
        let text = "\
[a](one.md) and ![b](two.png \"title\"), [`c`](three_(x).md#y)
[wrapped
text](<four.md>) <img alt=\"x\" src=\"five.svg\">
[six]: six.md
[^note]: not.md
";
        let expected = [
            (1, "one.md"),
            (1, "two.png"),
            (1, "three_(x).md#y"),
            (3, "four.md"),
            (3, "five.svg"),
            (4, "six.md"),
        ];
        assert_eq!(
            links(text),
            expected.map(|(line, text)| (line, text.to_owned()))
        );
    }

    #[test]
    fn links_in_code_are_not_links() {
        let text = "`[a](b)`\n```\n[c](d)\n~~~\n```\n\n~~~sh\n[e](f)\n~~~\n[g](h)\n";
        assert_eq!(links(text), [(10, "h".to_owned())]);
    }

    #[test]
    fn code_may_wrap_but_not_over_a_paragraph() {
        let text = "`a\nb` ``c ` d``\n\n` lonely\n\n`e`";
        let expected = [(1, "a\nb"), (2, "c ` d"), (6, "e")];
        assert_eq!(
            code(text),
            expected.map(|(line, text)| (line, text.to_owned()))
        );
    }

    #[test]
    fn headings_become_anchors_as_on_github() {
        let text = "\
# What it *does*: `spawn`, and more
## Notes ##
### Notes
## See [here](there.md)
```
# not a heading
```
<a id=\"by-hand\"></a>
#tag
";
        let expected = [
            "by-hand",
            "notes",
            "notes-1",
            "see-here",
            "what-it-does-spawn-and-more",
        ];
        let anchors: Vec<String> = Page::parse(text).anchors().into_iter().collect();
        assert_eq!(anchors, expected);
    }

    #[test]
    fn only_inline_code_is_taken_out() {
        let text = "a `b` c\n```\nd\n```\n";
        assert_eq!(without_inline_code(text), "a     c\n```\nd\n```\n");
    }
}
