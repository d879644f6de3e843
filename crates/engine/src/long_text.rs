//! Long texts in results: their beginning and their end, and a link to all of it.

/// How much of a text is shown: its beginning, and its end, where commands print what went wrong.
const HEAD_BYTES: usize = 8 << 10;
const TAIL_BYTES: usize = 16 << 10;
/// A text that is only a little longer is shown as it is.
const MAX_BYTES: usize = 28 << 10;

/// The text without its middle; none if it is short enough.
pub(crate) fn head_and_tail(text: &str) -> Option<String> {
    if text.len() <= MAX_BYTES {
        return None;
    }
    let head = &text[..text.floor_char_boundary(HEAD_BYTES)];
    let tail = &text[text.ceil_char_boundary(text.len() - TAIL_BYTES)..];
    // Whole lines, if there are line breaks near.
    let head = match head.rfind('\n') {
        Some(end) if end > HEAD_BYTES / 2 => &head[..=end],
        _ => head,
    };
    let tail = match tail.find('\n') {
        Some(start) if start < TAIL_BYTES / 2 => &tail[start + 1..],
        _ => tail,
    };
    let left_out = text.len() - head.len() - tail.len();
    let newline = if head.ends_with('\n') { "" } else { "\n" };
    Some(format!(
        "{head}{newline}[… {left_out} bytes left out …]\n{tail}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_keeps_its_first_and_last_lines() {
        assert_eq!(head_and_tail(&"x".repeat(MAX_BYTES)), None);
        let lines: String = (0..20_000).map(|n| format!("line {n}\n")).collect();
        let shortened = head_and_tail(&lines).unwrap();
        assert!(shortened.len() <= HEAD_BYTES + TAIL_BYTES + 100);
        assert!(shortened.starts_with("line 0\n") && shortened.ends_with("line 19999\n"));
        let left_out = shortened
            .lines()
            .find(|line| line.starts_with('['))
            .unwrap();
        let kept = shortened.len() - left_out.len() - 1;
        assert!(
            left_out.contains(&(lines.len() - kept).to_string()),
            "{left_out}"
        );
        let one_line = "ü".repeat(MAX_BYTES);
        let shortened = head_and_tail(&one_line).unwrap();
        assert!(shortened.starts_with('ü') && shortened.ends_with('ü'));
    }
}
