//! Checks that a Linux program is linked statically.

use std::fs;
use std::path::Path;

/// `PT_INTERP`: the program header that names the dynamic loader.
const PT_INTERP: u32 = 3;

pub(super) fn check_static(file: &Path) -> Result<(), String> {
    let bytes = fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    match needs_loader(&bytes) {
        Some(false) => Ok(()),
        Some(true) => Err(format!(
            "{} is linked dynamically and would not start in other containers; see \
             .cargo/config.toml",
            file.display()
        )),
        None => Err(format!("{} is not a 64-bit Linux program", file.display())),
    }
}

/// None unless it is a 64-bit little-endian ELF file.
fn needs_loader(bytes: &[u8]) -> Option<bool> {
    let half = |at: usize| Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let long = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    if bytes.get(..6)? != [0x7f, b'E', b'L', b'F', 2, 1] {
        return None;
    }
    let start = usize::try_from(long(32)?).ok()?;
    let (size, count) = (usize::from(half(54)?), usize::from(half(56)?));
    for n in 0..count {
        let at = size.checked_mul(n)?.checked_add(start)?;
        if word(at)? == PT_INTERP {
            return Some(true);
        }
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use super::needs_loader;

    /// A file with program headers of these kinds.
    fn program(kinds: &[u32]) -> Vec<u8> {
        let mut bytes = vec![0x7f, b'E', b'L', b'F', 2, 1];
        bytes.resize(64, 0);
        bytes[32] = 64;
        bytes[54] = 56;
        bytes[56] = kinds.len() as u8;
        for kind in kinds {
            bytes.extend(kind.to_le_bytes());
            bytes.extend([0; 52]);
        }
        bytes
    }

    #[test]
    fn only_a_program_that_names_a_loader_needs_one() {
        assert_eq!(needs_loader(&program(&[1, 2])), Some(false));
        assert_eq!(needs_loader(&program(&[1, 3])), Some(true));
        assert_eq!(needs_loader(b"#!/bin/sh"), None);
        assert_eq!(needs_loader(&program(&[1])[..70]), Some(false));
        assert_eq!(needs_loader(&program(&[1])[..66]), None);
        let this = std::env::current_exe().and_then(std::fs::read).unwrap();
        if cfg!(all(target_os = "linux", target_env = "gnu")) {
            assert_eq!(needs_loader(&this), Some(false), "the flags are lost");
        }
    }
}
