//! Reads the header of a git bundle. A container has written the file, so that it can be anything.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use crate::{EngineError, Result};

const SIGNATURE: &str = "# v2 git bundle\n";
/// The signature, one reference, and an empty line: what `git bundle create - HEAD` writes.
const MAX_HEADER_BYTES: u64 = 200;

/// Opens a bundle of HEAD with its whole history. Returns the file, at the pack, and the commit.
pub(super) fn open(path: &Path) -> Result<(File, String)> {
    let mut file = File::open(path)?;
    let mut start = Vec::new();
    file.by_ref()
        .take(MAX_HEADER_BYTES)
        .read_to_end(&mut start)?;
    let Some((commit, length)) = parse_header(&start) else {
        return Err(EngineError::Failed(
            "the container gave no bundle of HEAD with its whole history: `git bundle create --version=2 - \
             HEAD` must work in the workspace"
                .to_owned(),
        ));
    };
    file.seek(SeekFrom::Start(length))?;
    Ok((file, commit))
}

/// The commit that a header names, and the length of the header.
fn parse_header(start: &[u8]) -> Option<(String, u64)> {
    let reference = start.strip_prefix(SIGNATURE.as_bytes())?;
    let end = reference.iter().position(|byte| *byte == b'\n')?;
    let (line, rest) = reference.split_at(end);
    let commit = line.strip_suffix(b" HEAD")?;
    let is_commit = commit.len() == 40 && commit.iter().all(u8::is_ascii_hexdigit);
    if !is_commit || !rest.starts_with(b"\n\nPACK") {
        return None;
    }
    let commit = String::from_utf8(commit.to_vec()).ok()?;
    let length = SIGNATURE.len() + line.len() + "\n\n".len();
    Some((commit, u64::try_from(length).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_bundle_of_head_without_prerequisites_is_accepted() {
        let id = "0123456789abcdef0123456789abcdef01234567";
        let header = format!("# v2 git bundle\n{id} HEAD\n\nPACKxyz");
        assert_eq!(
            parse_header(header.as_bytes()),
            Some((id.to_owned(), 16 + 45 + 2))
        );
        let refused = [
            "gitdir: /home/someone/.git\n".to_owned(),
            String::new(),
            "# v2 git bundle\n".to_owned(),
            "# v3 git bundle\n@object-format=sha1\n".to_owned(),
            format!("# v2 git bundle\n-{id} needed\n{id} HEAD\n\nPACK"),
            format!("# v2 git bundle\n{id} refs/heads/main\n\nPACK"),
            format!("# v2 git bundle\n{id} HEAD\n{id} refs/heads/main\n\nPACK"),
            format!("# v2 git bundle\n{}--exec=touch x HEAD\n\nPACK", &id[..25]),
            format!("# v2 git bundle\n{id} HEAD\n\ngitdir: /x"),
        ];
        for header in refused {
            assert_eq!(parse_header(header.as_bytes()), None, "{header}");
        }
    }
}
