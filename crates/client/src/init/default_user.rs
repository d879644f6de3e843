//! The user that processes run as if a start names none, where containers have no user ids of their own:
//! a runtime sets it in the supervisor's environment.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use oubliette_wire::User;

use crate::chown;

/// `UID:GID`; root without it.
const USER_VARIABLE: &str = "OUBLIETTE_USER";
/// The directories that the user must own, separated by colons.
const OWNED_VARIABLE: &str = "OUBLIETTE_OWNED";
const USER_NAME: &str = "agent";

/// The user of the environment, ready to run processes.
pub(super) fn prepare() -> Option<User> {
    let user = chown::parse_user(&std::env::var(USER_VARIABLE).ok()?)?;
    let owned = std::env::var(OWNED_VARIABLE).unwrap_or_default();
    let directories = owned.split(':').filter(|path| !path.is_empty());
    for directory in directories.map(PathBuf::from) {
        if chown::is_owned(&directory, user) {
            continue;
        }
        if let Err(error) = chown::chown_tree(&directory, user) {
            let directory = directory.display();
            eprintln!("cannot give {directory} to the user {}: {error}", user.uid);
        }
    }
    // Programs ask for the name and home directory of their user.
    let added = [
        (
            "/etc/passwd",
            user.uid,
            format!(":x:{}:{}::/root:/bin/sh", user.uid, user.gid),
        ),
        ("/etc/group", user.gid, format!(":x:{}:", user.gid)),
    ];
    for (file, id, entry) in added {
        if let Err(error) = add_account(Path::new(file), id, &entry) {
            eprintln!("cannot add the user to {file}: {error}");
        }
    }
    Some(user)
}

/// Adds an entry to an account file unless it has one with this id. Its name is one that is free.
fn add_account(file: &Path, id: u32, entry: &str) -> io::Result<()> {
    let text = match fs::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        text => text?,
    };
    let is_id = |line: &str| line.split(':').nth(2) == Some(&id.to_string());
    if text.lines().any(is_id) {
        return Ok(());
    }
    let is_taken = |name: &str| {
        text.lines()
            .any(|line| line.split(':').next() == Some(name))
    };
    let name = if is_taken(USER_NAME) {
        format!("{USER_NAME}{id}")
    } else {
        USER_NAME.to_owned()
    };
    let newline = if text.is_empty() || text.ends_with('\n') {
        ""
    } else {
        "\n"
    };
    let mut file = fs::File::options().append(true).create(true).open(file)?;
    file.write_all(format!("{newline}{name}{entry}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_added_once_under_a_free_name() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("passwd");
        fs::write(
            &file,
            "root:x:0:0::/root:/bin/sh\nagent:x:7:7::/home:/bin/sh",
        )
        .unwrap();
        for _ in 0..2 {
            add_account(&file, 7, ":x:7:7::/root:/bin/sh").unwrap();
            add_account(&file, 8, ":x:8:8::/root:/bin/sh").unwrap();
        }
        let text = fs::read_to_string(&file).unwrap();
        let added: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(added, ["agent8:x:8:8::/root:/bin/sh"]);
        let missing = directory.path().join("group");
        add_account(&missing, 8, ":x:8:").unwrap();
        assert_eq!(fs::read_to_string(&missing).unwrap(), "agent:x:8:\n");
    }
}
