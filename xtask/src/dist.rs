//! `cargo xtask dist`: the release binaries, the small client for containers, and their checksums, in
//! one directory and one archive.

mod elf;

use std::ffi::OsStr;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::root;

/// Files that go into the archive beside the binaries.
const EXTRA_FILES: [&str; 5] = [
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "CHANGELOG.md",
    "packaging/oubliette.service",
];
/// A larger client has picked up a dependency that it does not need.
const MAX_CLIENT_BYTES: u64 = 4 << 20;

/// Builds the release binaries and writes them to `dist` in cargo's target directory.
pub(crate) fn run() -> Result<(), String> {
    if std::env::var_os("RUSTFLAGS").is_some_and(|flags| !flags.is_empty()) {
        return Err(
            "RUSTFLAGS is set and replaces the flags that link the binaries statically; unset it"
                .to_owned(),
        );
    }
    let (target, triple) = (target_directory()?, host()?);
    let name = format!("oubliette-{}-{triple}", env!("CARGO_PKG_VERSION"));
    let directory = target.join("dist").join(&name);
    if directory.exists() {
        fs::remove_dir_all(&directory).map_err(|error| io_message(&directory, &error))?;
    }
    fs::create_dir_all(&directory).map_err(|error| io_message(&directory, &error))?;
    let built = build_binaries()?;
    let mut files = vec![built.join("oubliette"), built.join("oubliette-server")];
    if cfg!(target_os = "linux") {
        cargo(&[
            "build",
            "--profile",
            "client",
            "--package",
            "oubliette-client",
        ])?;
        let client = target.join(&triple).join("client").join("oubliette-client");
        check_size(&client)?;
        files.push(client);
        for file in &files {
            elf::check_static(file)?;
        }
    } else {
        println!(
            "Containers run Linux: take `oubliette-client` from the archive built on a Linux machine of \
             the same architecture. See docs/install.md."
        );
    }
    files.extend(EXTRA_FILES.map(|name| root().join(name)));
    for file in &files {
        let place = directory.join(file.file_name().unwrap_or(OsStr::new("file")));
        fs::copy(file, place).map_err(|error| io_message(file, &error))?;
    }
    let checksums = checksums(&directory)?;
    fs::write(directory.join("SHA256SUMS"), &checksums)
        .map_err(|error| io_message(&directory, &error))?;
    let archive = directory.with_file_name(format!("{name}.tar.gz"));
    run_program(
        Command::new("tar")
            .arg("-C")
            .arg(directory.parent().unwrap_or(&directory))
            .arg("-czf")
            .arg(&archive)
            .arg(&name),
    )?;
    report(&directory, &archive)
}

/// Builds the release binaries. Returns their directory.
pub(crate) fn build_binaries() -> Result<PathBuf, String> {
    cargo(&["build", "--release", "--package", "oubliette", "--bins"])?;
    Ok(target_directory()?.join(host()?).join("release"))
}

pub(crate) fn io_message(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

fn cargo(arguments: &[&str]) -> Result<(), String> {
    run_program(
        program("cargo", "CARGO")
            .args(arguments)
            .current_dir(root()),
    )
}

/// The program from the variable that cargo sets, for example `CARGO`.
fn program(name: &str, variable: &str) -> Command {
    Command::new(std::env::var_os(variable).unwrap_or_else(|| name.into()))
}

fn run_program(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?} failed: {status}")),
        Err(error) => Err(format!("{command:?} cannot be started: {error}")),
    }
}

fn output(command: &mut Command) -> Result<String, String> {
    let output = command
        .output()
        .map_err(|error| format!("{command:?} cannot be started: {error}"))?;
    if !output.status.success() {
        return Err(format!("{command:?} failed: {}", output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn target_directory() -> Result<PathBuf, String> {
    let metadata = output(
        program("cargo", "CARGO")
            .args(["metadata", "--no-deps", "--format-version", "1"])
            .current_dir(root()),
    )?;
    let metadata: Value = serde_json::from_str(&metadata).map_err(|error| error.to_string())?;
    let directory = metadata.get("target_directory").and_then(Value::as_str);
    directory
        .map(PathBuf::from)
        .ok_or_else(|| "`cargo metadata` names no target directory".to_owned())
}

fn host() -> Result<String, String> {
    let about = output(program("rustc", "RUSTC").arg("-vV"))?;
    let host = about.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned)
        .ok_or_else(|| "`rustc -vV` names no host".to_owned())
}

fn check_size(client: &Path) -> Result<(), String> {
    let size = fs::metadata(client)
        .map_err(|error| io_message(client, &error))?
        .len();
    if size > MAX_CLIENT_BYTES {
        return Err(format!(
            "oubliette-client has {size} bytes; the limit is {MAX_CLIENT_BYTES}: look for a new dependency"
        ));
    }
    Ok(())
}

fn file_names(directory: &Path) -> Result<Vec<String>, String> {
    let entries = fs::read_dir(directory).map_err(|error| io_message(directory, &error))?;
    let mut names: Vec<String> = entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    Ok(names)
}

/// One line per file, in the format of `sha256sum`.
fn checksums(directory: &Path) -> Result<String, String> {
    let mut sums = String::new();
    for name in file_names(directory)? {
        let path = directory.join(&name);
        let bytes = fs::read(&path).map_err(|error| io_message(&path, &error))?;
        for byte in Sha256::digest(bytes) {
            let _ = write!(sums, "{byte:02x}");
        }
        let _ = writeln!(sums, "  {name}");
    }
    Ok(sums)
}

fn report(directory: &Path, archive: &Path) -> Result<(), String> {
    for name in file_names(directory)? {
        let size = fs::metadata(directory.join(&name)).map_or(0, |meta| meta.len());
        println!("{size:>12}  {name}");
    }
    println!("{}", archive.display());
    Ok(())
}
