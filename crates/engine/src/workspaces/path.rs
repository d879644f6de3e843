//! Paths of files in a workspace, as callers give them.

use oubliette_model::ReadError;
use oubliette_model::path_from_text;
use oubliette_model::{WorkspaceId, quoted};

use super::path_in_container;
use crate::{EngineError, Result};

/// The names of a path, relative to the workspace. The path may begin with that of the workspace in the
/// container. `..` is left as it is.
pub(super) fn parse(text: &str, workspace: &WorkspaceId) -> Result<Vec<u8>> {
    let invalid = |why: &str| EngineError::invalid(format!("`path`: {} {why}", quoted(text)));
    let path = path_from_text(text).ok_or_else(|| {
        invalid("begins with a quote and is not a quoted path, for example \"caf\\303\\251\"")
    })?;
    let root = path_in_container(workspace);
    let path = match path.strip_prefix(root.as_bytes()) {
        Some([]) => &[],
        Some(below @ [b'/', ..]) => below,
        _ if path.starts_with(b"/") => {
            return Err(invalid(&format!(
                "is not in the workspace; give a path relative to {root}"
            )));
        }
        _ => path.as_slice(),
    };
    if path.contains(&0) {
        return Err(invalid("contains a NUL character"));
    }
    let names = path.split(|byte| *byte == b'/');
    let names: Vec<&[u8]> = names.filter(|name| !matches!(*name, b"" | b".")).collect();
    Ok(names.join(&b'/'))
}

/// The error of a path that cannot be read.
pub(super) fn unreadable(text: &str, error: ReadError) -> EngineError {
    match error {
        ReadError::NotFound(_) => EngineError::NotFound {
            what: "file",
            id: text.to_owned(),
            hint: "`workspace_files` lists the files",
        },
        ReadError::NotAFile => EngineError::invalid(format!(
            "{} is not a regular file; `workspace_files` shows what it is",
            quoted(text)
        )),
        error => EngineError::Failed(format!("{} cannot be read: {error}", quoted(text))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_may_begin_with_that_of_its_workspace() {
        let (default, other) = (WorkspaceId::default(), "w".parse().unwrap());
        for (text, workspace, path) in [
            ("a/b", &default, &b"a/b"[..]),
            ("./a//b/", &default, b"a/b"),
            ("", &default, b""),
            ("/workspace", &default, b""),
            ("/workspace/a", &default, b"a"),
            ("/workspaces/w/a", &other, b"a"),
            ("workspace/a", &default, b"workspace/a"),
            (r#""a\377""#, &default, b"a\xff"),
        ] {
            assert_eq!(parse(text, workspace).unwrap(), path, "{text}");
        }
        for text in ["/etc/passwd", "/workspacex", "a\0b", "\"a"] {
            assert!(parse(text, &default).is_err(), "{text}");
        }
        assert!(parse("/workspace/a", &other).is_err());
    }
}
