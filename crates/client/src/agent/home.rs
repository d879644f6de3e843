//! Makes the home of an agent as a plan says.
//!
//! All paths are the container's and everything runs as the agent's user, so that nothing here can do more
//! than the agent itself.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;

use oubliette_wire::{FileFormat, HomeFile, HomePlan};

/// Directories of the container's home whose entries are linked, each with the way from the same directory
/// of the agent's home to the container's.
const LINKED_DIRS: &[(&str, &str)] = &[
    ("", "../.."),
    (".config", "../../.."),
    (".local", "../../.."),
    (".local/share", "../../../.."),
    (".local/state", "../../../.."),
];
/// The directories of an agent's home that are never links.
const OWN_DIRS: &[&str] = &[".config", ".local/share", ".local/state"];
/// Made in the container's home, so that what agents put there is shared.
const SHARED_DIRS: &[&str] = &[".cache", ".cargo", ".npm"];
const MAX_LINKS: usize = 1000;
/// Of a file that is searched for a text, or merged.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Makes the home and returns its path.
pub(super) fn make(plan: &HomePlan) -> io::Result<String> {
    let shared = Path::new(&plan.shared);
    for (path, marker) in &plan.leftovers {
        remove_leftover(&shared.join(path), marker)?;
    }
    let own = plan.own_path();
    let stays_shared = plan.resumed && !Path::new(&own).is_dir();
    if stays_shared && plan.requires_own {
        return Ok(plan.shared.clone());
    }
    let path = if stays_shared { &plan.shared } else { &own };
    let home = Path::new(path);
    if !stays_shared {
        for directory in OWN_DIRS {
            make_directory(&home.join(directory))?;
        }
        for directory in SHARED_DIRS {
            make_directory(&shared.join(directory))?;
        }
        link_entries(plan, shared, home)?;
        for path in &plan.removed {
            remove_file(&home.join(path))?;
        }
        for path in &plan.copied {
            copy(&shared.join(path), &home.join(path))?;
        }
    }
    for file in &plan.files {
        write_file(file, home)?;
    }
    Ok(path.clone())
}

fn remove_leftover(path: &Path, marker: &str) -> io::Result<()> {
    if path.exists() && (marker.is_empty() || read_text(path)?.contains(marker)) {
        remove(path)?;
    }
    Ok(())
}

fn link_entries(plan: &HomePlan, shared: &Path, home: &Path) -> io::Result<()> {
    let private: BTreeSet<&Path> = plan.private.iter().map(Path::new).collect();
    let mut links = 0;
    for (directory, way) in LINKED_DIRS {
        let from = shared.join(directory);
        let entries = match fs::read_dir(&from) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            entries => entries.map_err(|error| at(&from, &error))?,
        };
        for entry in entries {
            let name = entry.map_err(|error| at(&from, &error))?.file_name();
            let path = Path::new(directory).join(&name);
            let link = home.join(&path);
            let exists = link.symlink_metadata().is_ok();
            if private.contains(path.as_path()) || exists || !from.join(&name).exists() {
                continue;
            }
            if links == MAX_LINKS {
                return Ok(());
            }
            links += 1;
            let target = Path::new(way).join(directory).join(&name);
            symlink(target, &link).map_err(|error| at(&link, &error))?;
        }
    }
    Ok(())
}

/// Copies a file or directory in place of what is there, if it exists. Links in a directory stay links;
/// other files than plain ones are not copied.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let Ok(found) = fs::metadata(from) else {
        return Ok(());
    };
    make_parent(to)?;
    remove(to)?;
    if !found.is_dir() {
        return copy_file(from, &found, to);
    }
    make_directory(to)?;
    let mut pending = vec![(from.to_owned(), to.to_owned())];
    while let Some((from, to)) = pending.pop() {
        for entry in fs::read_dir(&from).map_err(|error| at(&from, &error))? {
            let entry = entry.map_err(|error| at(&from, &error))?;
            let (from, to) = (entry.path(), to.join(entry.file_name()));
            let found = entry.metadata().map_err(|error| at(&from, &error))?;
            if found.is_dir() {
                make_directory(&to)?;
                pending.push((from, to));
            } else if found.is_symlink() {
                let target = fs::read_link(&from).map_err(|error| at(&from, &error))?;
                symlink(target, &to).map_err(|error| at(&to, &error))?;
            } else {
                copy_file(&from, &found, &to)?;
            }
        }
    }
    Ok(())
}

fn copy_file(from: &Path, found: &Metadata, to: &Path) -> io::Result<()> {
    if !found.is_file() {
        return Ok(());
    }
    let mut source = File::open(from).map_err(|error| at(from, &error))?;
    let mut target = create(to, found.permissions().mode() & 0o700)?;
    io::copy(&mut source, &mut target).map_err(|error| at(to, &error))?;
    Ok(())
}

/// Writes a file of the plan, merged with what is there.
fn write_file(file: &HomeFile, home: &Path) -> io::Result<()> {
    let path = home.join(&file.path);
    let content = match file.format {
        FileFormat::Whole | FileFormat::Program => file.content.clone(),
        _ => file.merge(&read_text(&path)?),
    };
    let mode = match file.format {
        FileFormat::Program => 0o700,
        _ => 0o600,
    };
    make_parent(&path)?;
    remove_file(&path)?;
    create(&path, mode)?
        .write_all(content.as_bytes())
        .map_err(|error| at(&path, &error))
}

/// The text of a plain file; empty without one.
fn read_text(path: &Path) -> io::Result<String> {
    if !path.is_file() {
        return Ok(String::new());
    }
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_FILE_BYTES).read_to_end(&mut bytes))
        .map_err(|error| at(path, &error))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn make_directory(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder.create(path).map_err(|error| at(path, &error))
}

fn make_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), make_directory)
}

fn create(path: &Path, mode: u32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(mode);
    options.open(path).map_err(|error| at(path, &error))
}

/// Removes a file or directory, if there is one.
fn remove(path: &Path) -> io::Result<()> {
    match path.symlink_metadata() {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path).map_err(|error| at(path, &error)),
        _ => remove_file(path),
    }
}

fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(path, &error)),
        _ => Ok(()),
    }
}

fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn plan(shared: &Path) -> HomePlan {
        let list = |paths: &[&str]| paths.iter().map(ToString::to_string).collect();
        HomePlan {
            shared: shared.to_str().unwrap().to_owned(),
            own: ".sessions/s1".to_owned(),
            resumed: false,
            private: list(&[
                ".sessions",
                ".config",
                ".local",
                ".local/share",
                ".local/state",
                ".acme",
            ]),
            copied: list(&[".acme/settings.json", ".acme/commands", ".acme/missing"]),
            removed: list(&[".acme/login"]),
            leftovers: vec![(".acme/key".to_owned(), "SECRET".to_owned())],
            files: vec![
                HomeFile::new(".acme/settings.json", FileFormat::Json, r#"{"a":1}"#),
                HomeFile::new(".acme/bin/run", FileFormat::Program, "#!/bin/sh\n"),
            ],
            requires_own: false,
            commit_hook: String::new(),
        }
    }

    fn write(path: PathBuf, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn read(path: PathBuf) -> String {
        fs::read_to_string(path).unwrap()
    }

    fn settings_in(home: &Path) -> serde_json::Value {
        serde_json::from_str(&read(home.join(".acme/settings.json"))).unwrap()
    }

    #[test]
    fn a_home_has_links_to_what_is_shared_and_copies_of_settings() {
        let directory = tempfile::tempdir().unwrap();
        let shared = directory.path();
        write(shared.join("tool"), "shared");
        write(shared.join(".config/git/config"), "git");
        write(shared.join(".local/share/fonts/a"), "font");
        write(shared.join(".acme/settings.json"), r#"{"a":2,"b":3}"#);
        write(shared.join(".acme/commands/deep/c"), "command");
        symlink("c", shared.join(".acme/commands/deep/link")).unwrap();
        write(shared.join(".acme/state"), "of another session");
        write(shared.join(".acme/key"), "the SECRET");
        symlink("nowhere", shared.join("dangling")).unwrap();
        let plan = plan(shared);
        for _ in 0..2 {
            let home = make(&plan).unwrap();
            assert_eq!(home, plan.own_path());
            let home = PathBuf::from(home);
            assert_eq!(read(home.join("tool")), "shared");
            assert_eq!(read(home.join(".config/git/config")), "git");
            assert_eq!(read(home.join(".local/share/fonts/a")), "font");
            assert!(home.join(".cache").is_dir() && home.join(".cache").is_symlink());
            assert_eq!(read(home.join(".acme/commands/deep/link")), "command");
            assert_eq!(settings_in(&home), serde_json::json!({ "a": 1, "b": 3 }));
            for absent in [".acme/state", ".acme/login", "dangling", ".sessions"] {
                assert!(home.join(absent).symlink_metadata().is_err(), "{absent}");
            }
            assert!(!shared.join(".acme/key").exists());
            let mode = |path| fs::metadata(home.join(path)).unwrap().permissions().mode() & 0o777;
            assert_eq!(
                (mode(".acme/settings.json"), mode(".acme/bin/run")),
                (0o600, 0o700)
            );
            // What a next start removes, and what it copies again.
            write(home.join(".acme/login"), "of an earlier start");
            write(home.join(".acme/settings.json"), "{}");
        }
    }

    #[test]
    fn a_conversation_in_the_shared_home_stays_there() {
        let directory = tempfile::tempdir().unwrap();
        let shared = directory.path();
        write(shared.join(".acme/settings.json"), r#"{"b":3}"#);
        let mut plan = plan(shared);
        plan.resumed = true;
        assert_eq!(make(&plan).unwrap(), plan.shared);
        assert!(!shared.join(".sessions").exists());
        assert_eq!(settings_in(shared), serde_json::json!({ "a": 1, "b": 3 }));

        plan.requires_own = true;
        plan.files
            .push(HomeFile::new(".acme/login", FileFormat::Whole, "login"));
        assert_eq!(make(&plan).unwrap(), plan.shared);
        assert!(!shared.join(".acme/login").exists());
        // Not once there is a home of its own.
        fs::create_dir_all(plan.own_path()).unwrap();
        assert_eq!(make(&plan).unwrap(), plan.own_path());
        assert_eq!(read(shared.join(".sessions/s1/.acme/login")), "login");
    }
}
