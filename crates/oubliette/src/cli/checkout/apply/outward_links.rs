//! Links among the files that an apply writes that lead out of the repository: a program of the user that follows one
//! reads or writes there.

use std::fs;
use std::path::{Component, Path};

use super::MAX_LISTED_PATHS;

/// The links among the prepared files that lead out, with where they lead.
pub(super) fn find(files: &Path, written: &[&Path]) -> Vec<String> {
    let leading_out = written.iter().filter_map(|path| {
        let target = fs::read_link(files.join(path)).ok()?;
        leads_out(path, &target).then(|| format!("{} -> {}", path.display(), target.display()))
    });
    let mut shown: Vec<String> = leading_out.take(MAX_LISTED_PATHS + 1).collect();
    if shown.len() > MAX_LISTED_PATHS {
        shown.truncate(MAX_LISTED_PATHS);
        shown.push("…".to_owned());
    }
    shown
}

/// Whether a link at a path of the repository has a target outside of it. Links on the way are not followed.
fn leads_out(path: &Path, target: &Path) -> bool {
    let mut depth = path.components().count().saturating_sub(1);
    for part in target.components() {
        match part {
            Component::CurDir => {}
            Component::Normal(_) => depth += 1,
            Component::ParentDir if depth > 0 => depth -= 1,
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return true,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_leads_out_if_it_goes_above_the_repository() {
        for (path, target, expected) in [
            ("l", "a", false),
            ("l", ".", false),
            ("l", "..", true),
            ("l", "/etc/passwd", true),
            ("d/l", "../a", false),
            ("d/l", "../../a", true),
            ("d/l", "x/../../../repo/a", true),
        ] {
            let found = leads_out(Path::new(path), Path::new(target));
            assert_eq!(found, expected, "{path} -> {target}");
        }
    }
}
