//! Delta specifications in files that the command does not read.

use crate::lookup::if_readable;
use crate::{cmp_utf16, is_js_whitespace, trim_js_whitespace};
use oubliette_model::{FileKind, FileTree, ReadError};

const DELTA_SECTIONS: [&str; 4] = [
    "added requirements",
    "modified requirements",
    "removed requirements",
    "renamed requirements",
];

/// Both paths are relative to the directory of the specifications.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MisplacedDelta {
    pub(crate) path: String,
    pub(crate) expected: String,
}

pub(crate) fn find_misplaced(
    tree: &dyn FileTree,
    specs: &str,
) -> Result<Vec<MisplacedDelta>, ReadError> {
    let mut found = Vec::new();
    match collect_misplaced(tree, specs, "", &mut found) {
        Ok(())
        | Err(ReadError::NotFound(_) | ReadError::DanglingLink | ReadError::NotADirectory) => {}
        Err(other) => return Err(other),
    }
    found.sort_by(|a, b| cmp_utf16(&a.path, &b.path));
    Ok(found)
}

fn collect_misplaced(
    tree: &dyn FileTree,
    specs: &str,
    subdirectory: &str,
    found: &mut Vec<MisplacedDelta>,
) -> Result<(), ReadError> {
    for entry in tree.list(&format!("{specs}/{subdirectory}"))? {
        if entry.name.starts_with('.') {
            continue;
        }
        let path = match subdirectory {
            "" => entry.name.clone(),
            subdirectory => format!("{subdirectory}/{}", entry.name),
        };
        if entry.kind == FileKind::Directory {
            collect_misplaced(tree, specs, &path, found)?;
            continue;
        }
        let is_other = entry.kind == FileKind::Other;
        if is_other || entry.name == "spec.md" || !entry.name.to_lowercase().ends_with(".md") {
            continue;
        }
        let Some(text) = if_readable(tree.read(&format!("{specs}/{path}")))? else {
            continue;
        };
        if has_delta_section(&text) {
            let capability = match subdirectory {
                "" => entry.name.get(..entry.name.len() - 3).unwrap_or_default(),
                subdirectory => subdirectory,
            };
            found.push(MisplacedDelta {
                expected: format!("{capability}/spec.md"),
                path,
            });
        }
    }
    Ok(())
}

/// Whether a text has a delta heading outside of code blocks.
fn has_delta_section(text: &str) -> bool {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut fence: Option<(char, usize)> = None;
    for line in text.split(['\n', '\r']) {
        let start = line.trim_start_matches(is_js_whitespace);
        let marker = start
            .chars()
            .next()
            .filter(|c| matches!(c, '`' | '~'))
            .map(|mark| (mark, start.chars().take_while(|c| *c == mark).count()))
            .filter(|(_, length)| *length >= 3);
        match (fence, marker) {
            (None, Some(opening)) => fence = Some(opening),
            (Some((open, min_length)), Some((close, length))) => {
                if close == open
                    && length >= min_length
                    && start[length..].chars().all(is_js_whitespace)
                {
                    fence = None;
                }
            }
            (Some(_), None) => {}
            (None, None) => {
                let title = line
                    .strip_prefix("##")
                    .filter(|rest| rest.starts_with(is_js_whitespace))
                    .map(|rest| trim_js_whitespace(rest).to_lowercase());
                if title.is_some_and(|title| DELTA_SECTIONS.contains(&title.as_str())) {
                    return true;
                }
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_in_code_blocks_do_not_count() {
        for text in [
            "## ADDED Requirements",
            "\u{feff}##\tremoved requirements  \r\nx",
            "```\nx\n```\n## Modified Requirements",
            "~~~\n```\n~~~ \n## RENAMED Requirements",
        ] {
            assert!(has_delta_section(text), "{text:?}");
        }
        for text in [
            "",
            "##ADDED Requirements",
            "# ADDED Requirements",
            "## ADDED  Requirements",
            "```\n## ADDED Requirements\n```",
            "````\n```\n## ADDED Requirements",
            " ## ADDED Requirements",
        ] {
            assert!(!has_delta_section(text), "{text:?}");
        }
    }
}
