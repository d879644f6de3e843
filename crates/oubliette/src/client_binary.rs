//! The Linux program that containers run as `oubliette-client`: on Linux this executable, elsewhere the
//! separate `oubliette-client` program.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The environment variable with the path of another program.
pub(crate) const CLIENT_VARIABLE: &str = "OUBLIETTE_CLIENT";
const CLIENT_NAME: &str = "oubliette-client";

/// The path of the program; the error says what to do.
pub(crate) fn find() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let named = std::env::var_os(CLIENT_VARIABLE).filter(|path| !path.is_empty());
    choose(named.map(PathBuf::from), &own, cfg!(target_os = "linux"))
}

fn choose(named: Option<PathBuf>, own: &Path, is_linux: bool) -> Result<PathBuf, String> {
    if let Some(named) = named {
        return check(&named)
            .map(|()| named)
            .map_err(|why| format!("{CLIENT_VARIABLE} is set: {why}"));
    }
    if is_linux {
        return Ok(own.to_owned());
    }
    let beside = own.with_file_name(CLIENT_NAME);
    check(&beside).map(|()| beside).map_err(|why| {
        format!(
            "containers need the Linux program {CLIENT_NAME}: {why}; copy it there from the Linux archive \
             of this version, or set {CLIENT_VARIABLE} to its path"
        )
    })
}

/// Whether a file is a Linux program for the processor of this machine.
fn check(path: &Path) -> Result<(), String> {
    let mut head = [0; 20];
    File::open(path)
        .and_then(|mut file| file.read_exact(&mut head))
        .map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
    if head[..6] != [0x7f, b'E', b'L', b'F', 2, 1] {
        return Err(format!("{} is not a Linux program", path.display()));
    }
    let machine = u16::from_le_bytes([head[18], head[19]]);
    let expected = match std::env::consts::ARCH {
        "x86_64" => 62,
        "aarch64" => 183,
        _ => return Ok(()),
    };
    if machine != expected {
        return Err(format!(
            "{} is for another processor than this machine's ({})",
            path.display(),
            std::env::consts::ARCH
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linux_uses_its_own_file_and_other_systems_the_file_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let own = directory.path().join("oubliette");
        assert_eq!(choose(None, &own, true), Ok(own.clone()));
        let missing = choose(None, &own, false).unwrap_err();
        assert!(
            missing.contains(CLIENT_VARIABLE) && missing.contains("cannot be read"),
            "{missing}"
        );
        let beside = directory.path().join(CLIENT_NAME);
        std::fs::write(&beside, "#!/bin/sh\n# a script of twenty bytes or more\n").unwrap();
        let script = choose(None, &own, false).unwrap_err();
        assert!(script.contains("not a Linux program"), "{script}");
        std::fs::copy(std::env::current_exe().unwrap(), &beside).unwrap();
        assert_eq!(choose(None, &own, false), Ok(beside.clone()));
        assert_eq!(choose(Some(beside.clone()), &own, true), Ok(beside.clone()));
        let mut bytes = std::fs::read(&beside).unwrap();
        bytes.truncate(64);
        bytes[18] ^= 0xFF;
        std::fs::write(&beside, bytes).unwrap();
        let foreign = choose(Some(beside), &own, true).unwrap_err();
        assert!(foreign.contains("another processor"), "{foreign}");
    }
}
