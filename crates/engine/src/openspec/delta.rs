//! Files that say how specifications change, but stand where nobody reads them.

use super::{by_units, is_space, trim};
use crate::files::{Kind, Lost, Tree};

const SECTIONS: [&str; 4] = [
    "added requirements",
    "modified requirements",
    "removed requirements",
    "renamed requirements",
];

/// Such a file, and where it belongs; both from the directory of the specifications.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unread {
    pub(super) path: String,
    pub(super) expected: String,
}

pub(super) fn unread(tree: &Tree, specs: &str) -> Result<Vec<Unread>, Lost> {
    let mut found = Vec::new();
    match search(tree, specs, "", &mut found) {
        Ok(()) | Err(Lost::Absent(_) | Lost::Dangling | Lost::NotADirectory) => {}
        Err(other) => return Err(other),
    }
    found.sort_by(|a, b| by_units(&a.path, &b.path));
    Ok(found)
}

fn search(tree: &Tree, specs: &str, below: &str, found: &mut Vec<Unread>) -> Result<(), Lost> {
    for entry in tree.list(&format!("{specs}/{below}"))? {
        if entry.name.starts_with('.') {
            continue;
        }
        let path = match below {
            "" => entry.name.clone(),
            below => format!("{below}/{}", entry.name),
        };
        if entry.kind == Kind::Directory {
            search(tree, specs, &path, found)?;
            continue;
        }
        let is_other = entry.kind == Kind::Other;
        if is_other || entry.name == "spec.md" || !entry.name.to_lowercase().ends_with(".md") {
            continue;
        }
        let text = match tree.read(&format!("{specs}/{path}")) {
            Ok(text) => text,
            Err(Lost::TooMuch(why)) => return Err(Lost::TooMuch(why)),
            Err(_) => continue,
        };
        if has_sections(&text) {
            let capability = match below {
                "" => entry.name.get(..entry.name.len() - 3).unwrap_or_default(),
                below => below,
            };
            found.push(Unread {
                expected: format!("{capability}/spec.md"),
                path,
            });
        }
    }
    Ok(())
}

/// Whether a text has a heading that says how requirements change, outside of quoted code.
fn has_sections(text: &str) -> bool {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut fence: Option<(char, usize)> = None;
    for line in text.split(['\n', '\r']) {
        let start = line.trim_start_matches(is_space);
        let mark = start.chars().next().filter(|c| matches!(c, '`' | '~'));
        let mark = mark.map(|mark| (mark, start.chars().take_while(|c| *c == mark).count()));
        let mark = mark.filter(|(_, length)| *length >= 3);
        match (fence, mark) {
            (None, Some(opening)) => fence = Some(opening),
            (Some((open, least)), Some((close, length))) => {
                if close == open && length >= least && start[length..].chars().all(is_space) {
                    fence = None;
                }
            }
            (Some(_), None) => {}
            (None, None) => {
                let title = line
                    .strip_prefix("##")
                    .filter(|rest| rest.starts_with(is_space));
                let title = title.map(|title| trim(title).to_lowercase());
                if title.is_some_and(|title| SECTIONS.contains(&title.as_str())) {
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
    fn headings_count_outside_of_code() {
        for text in [
            "## ADDED Requirements",
            "\u{feff}##\tremoved requirements  \r\nx",
            "```\nx\n```\n## Modified Requirements",
            "~~~\n```\n~~~ \n## RENAMED Requirements",
        ] {
            assert!(has_sections(text), "{text:?}");
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
            assert!(!has_sections(text), "{text:?}");
        }
    }
}
