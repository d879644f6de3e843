//! Checks that a program for macOS needs nothing but the system's C library.

use std::fs;
use std::path::Path;

/// The first bytes of a 64-bit little-endian Mach-O file.
const MAGIC: u32 = 0xfeed_facf;
const HEADER_BYTES: usize = 32;
/// `LC_LOAD_DYLIB`, `LC_LOAD_WEAK_DYLIB`, `LC_REEXPORT_DYLIB`: commands that name a library.
const LIBRARY_COMMANDS: [u32; 3] = [0xc, 0x8000_0018, 0x8000_001f];
/// Frameworks are only on a Mac: a program that needs one cannot be linked elsewhere.
const ALLOWED_DIRECTORY: &str = "/usr/lib/";

pub(super) fn check_libraries(file: &Path) -> Result<(), String> {
    let bytes = fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let Some(libraries) = libraries(&bytes) else {
        let file = file.display();
        return Err(format!("{file} is not a 64-bit program for macOS"));
    };
    match libraries
        .iter()
        .find(|name| !name.starts_with(ALLOWED_DIRECTORY))
    {
        None => Ok(()),
        Some(name) => Err(format!("{} needs {name}", file.display())),
    }
}

/// The libraries that a program loads; none if it is no Mach-O file.
fn libraries(bytes: &[u8]) -> Option<Vec<String>> {
    let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    if word(0)? != MAGIC {
        return None;
    }
    let (count, mut at) = (word(16)?, HEADER_BYTES);
    let mut names = Vec::new();
    for _ in 0..count {
        let (command, size) = (word(at)?, usize::try_from(word(at + 4)?).ok()?);
        let end = at.checked_add(size)?;
        if LIBRARY_COMMANDS.contains(&command) {
            let start = at.checked_add(usize::try_from(word(at + 8)?).ok()?)?;
            let name = bytes.get(start..end)?;
            let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
            names.push(String::from_utf8_lossy(name).into_owned());
        }
        at = end;
    }
    Some(names)
}

#[cfg(test)]
mod tests {
    use super::libraries;

    /// A file with commands that load these libraries.
    fn program(names: &[&str]) -> Vec<u8> {
        let mut bytes = vec![0xcf, 0xfa, 0xed, 0xfe];
        bytes.resize(32, 0);
        bytes[16] = names.len() as u8;
        for name in names {
            let size = 24 + name.len() as u32 + 1;
            for word in [0xc, size, 24, 0, 0, 0] {
                bytes.extend(u32::to_le_bytes(word));
            }
            bytes.extend(name.as_bytes());
            bytes.push(0);
        }
        bytes
    }

    #[test]
    fn the_libraries_of_a_program_are_found() {
        let names = ["/usr/lib/libSystem.B.dylib", "/System/Library/Frameworks/x"];
        assert_eq!(libraries(&program(&names)).unwrap(), names);
        assert_eq!(libraries(b"\x7fELF"), None);
        assert_eq!(libraries(&program(&names)[..50]), None);
    }
}
