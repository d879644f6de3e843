//! `cargo xtask dist`: the release binaries, the small client for containers, manual pages and their
//! checksums, in one directory and one archive for each target.

mod elf;
mod mach_o;

use std::ffi::OsStr;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::root;

/// Files that go into the archive beside the binaries.
const EXTRA_FILES: [&str; 6] = [
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "CHANGELOG.md",
    "packaging/oubliette.service",
    "packaging/install.sh",
];
/// A larger client has picked up a dependency that it does not need.
const MAX_CLIENT_BYTES: u64 = 4 << 20;

/// The targets of a release.
const TARGETS: [&str; 3] = [
    "x86_64-unknown-linux-gnu",
    "aarch64-unknown-linux-musl",
    "aarch64-apple-darwin",
];
/// The Linux whose `oubliette-client` containers on a Mac run.
const LINUX_OF_MAC: &str = "aarch64-unknown-linux-musl";

/// What to build.
struct Request {
    targets: Vec<String>,
    /// Only whether everything compiles, links and is static, in the profile that is built fastest.
    is_check: bool,
}

impl Request {
    fn parse(words: &[&str]) -> Result<Self, String> {
        let mut request = Self {
            targets: Vec::new(),
            is_check: false,
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--check" => request.is_check = true,
                "--all" => request.targets = TARGETS.map(str::to_owned).to_vec(),
                "--target" => {
                    let target = words.next().ok_or("--target needs a triple")?;
                    request.targets.push((*target).to_owned());
                }
                other => return Err(format!("`cargo xtask dist` has no option {other}")),
            }
        }
        if request.targets.is_empty() {
            request.targets.push(host()?);
        }
        Ok(request)
    }
}

/// Builds the binaries and writes them to `dist` in cargo's target directory, with an archive per target.
pub(crate) fn run(words: &[&str]) -> Result<(), String> {
    if std::env::var_os("RUSTFLAGS").is_some_and(|flags| !flags.is_empty()) {
        return Err(
            "RUSTFLAGS is set and replaces the flags that link the binaries statically; unset it"
                .to_owned(),
        );
    }
    let request = Request::parse(words)?;
    for target in &request.targets {
        if request.is_check {
            check(target)?;
        } else {
            build_archive(target)?;
        }
    }
    Ok(())
}

/// Compiles and links a target in the development profile, and checks what the binaries need.
fn check(triple: &str) -> Result<(), String> {
    let built = build(triple, "dev", &["oubliette", "oubliette-client"])?;
    let mut files = vec![built.join("oubliette"), built.join("oubliette-server")];
    if is_linux(triple) {
        files.push(built.join("oubliette-client"));
    }
    check_files(triple, &files)?;
    println!("{triple}: {}", built.display());
    Ok(())
}

fn is_linux(triple: &str) -> bool {
    triple.contains("-linux-")
}

fn check_files(triple: &str, files: &[PathBuf]) -> Result<(), String> {
    for file in files {
        if is_linux(triple) {
            elf::check_static(file)?;
        } else {
            mach_o::check_libraries(file)?;
        }
    }
    Ok(())
}

/// Compiles packages for a target. Returns the directory of the binaries.
fn build(triple: &str, profile: &str, packages: &[&str]) -> Result<PathBuf, String> {
    // Zig has the C compiler and linker of every target.
    let command = if triple == host()? {
        "build"
    } else {
        "zigbuild"
    };
    let mut arguments = vec![command, "--bins", "--target", triple, "--profile", profile];
    for package in packages {
        arguments.extend(["--package", package]);
    }
    cargo(&arguments).map_err(|error| match command {
        "zigbuild" => format!(
            "{error}\nAnother target needs `rustup target add {triple}` and `pip install ziglang cargo-zigbuild`."
        ),
        _ => error,
    })?;
    let directory = if profile == "dev" { "debug" } else { profile };
    Ok(target_directory()?.join(triple).join(directory))
}

fn build_archive(triple: &str) -> Result<(), String> {
    let target = target_directory()?;
    let name = format!("oubliette-{}-{triple}", env!("CARGO_PKG_VERSION"));
    let directory = target.join("dist").join(&name);
    if directory.exists() {
        fs::remove_dir_all(&directory).map_err(|error| io_message(&directory, &error))?;
    }
    fs::create_dir_all(&directory).map_err(|error| io_message(&directory, &error))?;
    let built = build(triple, "release", &["oubliette"])?;
    let mut files = vec![built.join("oubliette"), built.join("oubliette-server")];
    check_files(triple, &files)?;
    let linux = if is_linux(triple) {
        triple
    } else {
        LINUX_OF_MAC
    };
    let client = build(linux, "client", &["oubliette-client"])?.join("oubliette-client");
    check_size(&client)?;
    check_files(linux, std::slice::from_ref(&client))?;
    files.push(client);
    files.extend(EXTRA_FILES.map(|name| root().join(name)));
    for file in &files {
        let place = directory.join(file.file_name().unwrap_or(OsStr::new("file")));
        fs::copy(file, place).map_err(|error| io_message(file, &error))?;
    }
    write_manual_pages(triple, &built, &directory.join("man"))?;
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
    let sum = format!("{}  {name}.tar.gz\n", sha256(&archive)?);
    let sum_file = directory.with_file_name(format!("{name}.tar.gz.sha256"));
    fs::write(&sum_file, sum).map_err(|error| io_message(&sum_file, &error))?;
    report(&directory, &archive)
}

/// Has the program write its manual pages; one for another machine is built for this one, too.
fn write_manual_pages(triple: &str, built: &Path, directory: &Path) -> Result<(), String> {
    if triple == host()? {
        return run_program(
            Command::new(built.join("oubliette"))
                .args(["--quiet", "man"])
                .arg(directory),
        );
    }
    let mut run = program("cargo", "CARGO");
    run.args([
        "run",
        "--quiet",
        "--package",
        "oubliette",
        "--bin",
        "oubliette",
    ])
    .args(["--", "--quiet", "man"])
    .arg(directory)
    .current_dir(root());
    run_program(&mut run)
}

/// Builds the release binaries. Returns their directory.
pub(crate) fn build_binaries() -> Result<PathBuf, String> {
    build(&host()?, "release", &["oubliette"])
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

/// The files of a directory and those below, relative to it.
fn file_names(directory: &Path) -> Result<Vec<String>, String> {
    let entries = fs::read_dir(directory).map_err(|error| io_message(directory, &error))?;
    let mut names = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().is_dir() {
            let below = file_names(&entry.path())?;
            names.extend(below.into_iter().map(|below| format!("{name}/{below}")));
        } else {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn sha256(path: &Path) -> Result<String, String> {
    let bytes = fs::read(path).map_err(|error| io_message(path, &error))?;
    let mut sum = String::new();
    for byte in Sha256::digest(bytes) {
        let _ = write!(sum, "{byte:02x}");
    }
    Ok(sum)
}

/// One line per file, in the format of `sha256sum`.
fn checksums(directory: &Path) -> Result<String, String> {
    let mut sums = String::new();
    for name in file_names(directory)? {
        let _ = writeln!(sums, "{}  {name}", sha256(&directory.join(&name))?);
    }
    Ok(sums)
}

fn report(directory: &Path, archive: &Path) -> Result<(), String> {
    let names = file_names(directory)?;
    for name in names.iter().filter(|name| !name.contains('/')) {
        let size = fs::metadata(directory.join(name)).map_or(0, |meta| meta.len());
        println!("{size:>12}  {name}");
    }
    println!("{}", archive.display());
    Ok(())
}
