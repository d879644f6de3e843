//! `packaging/install.sh` with an archive's directory.

use std::path::Path;
use std::process::{Command, Output};

use support::{binary, stderr, stdout};

fn install(directory: &Path, arguments: &[&str]) -> Output {
    let prefix = directory.join("prefix");
    Command::new("sh")
        .arg(directory.join("archive/install.sh"))
        .arg("--prefix")
        .arg(&prefix)
        .args(arguments)
        .output()
        .unwrap()
}

fn write_checksums(archive: &Path) {
    let sums = Command::new("sh")
        .current_dir(archive)
        .args(["-c", "sha256sum oubliette install.sh man/* > SHA256SUMS"])
        .status();
    assert!(sums.unwrap().success());
}

#[test]
fn the_script_installs_upgrades_and_uninstalls_what_has_the_right_checksums() {
    let directory = tempfile::tempdir().unwrap();
    let (archive, prefix) = (
        directory.path().join("archive"),
        directory.path().join("prefix"),
    );
    std::fs::create_dir_all(archive.join("man")).unwrap();
    std::os::unix::fs::symlink(binary(), archive.join("oubliette")).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/install.sh");
    std::fs::copy(script, archive.join("install.sh")).unwrap();
    let pages = Command::new(binary())
        .arg("man")
        .arg(archive.join("man"))
        .output();
    assert!(pages.unwrap().status.success());
    write_checksums(&archive);

    let installed = install(directory.path(), &[]);
    assert!(installed.status.success(), "{}", stderr(&installed));
    assert!(
        stdout(&installed).contains("is not in your PATH"),
        "{}",
        stdout(&installed)
    );
    let program = prefix.join("bin/oubliette");
    let version = Command::new(&program).arg("--version").output().unwrap();
    assert!(stdout(&version).starts_with("oubliette "));
    let pages = prefix.join("share/man/man1");
    for page in [
        "oubliette.1",
        "oubliette-run.1",
        "oubliette-project-create.1",
    ] {
        let text = std::fs::read_to_string(pages.join(page)).unwrap();
        assert!(text.contains(".SH NAME") && text.contains("json"), "{page}");
    }
    let again = install(directory.path(), &[]);
    assert!(stdout(&again).contains("in place of"), "{}", stdout(&again));

    std::fs::write(archive.join("man/oubliette.1"), "damaged").unwrap();
    std::fs::remove_file(&program).unwrap();
    let refused = install(directory.path(), &[]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        stderr(&refused).contains("nothing was installed"),
        "{}",
        stderr(&refused)
    );
    assert!(!program.exists());

    write_checksums(&archive);
    // A file without a checksum, and one with a line that is none.
    let sums = std::fs::read_to_string(archive.join("SHA256SUMS")).unwrap();
    for (name, line) in [
        ("oubliette", ""),
        ("oubliette", "0000  oubliette\n"),
        ("man/oubliette-run.1", ""),
    ] {
        let left = sums
            .lines()
            .filter(|line| !line.ends_with(&format!(" {name}")));
        let left: String = left.map(|line| format!("{line}\n")).collect();
        std::fs::write(archive.join("SHA256SUMS"), left + line).unwrap();
        let refused = install(directory.path(), &[]);
        assert_eq!(refused.status.code(), Some(1), "{name}");
        let sentence = stderr(&refused);
        assert!(sentence.contains("not in SHA256SUMS"), "{name} {sentence}");
        assert!(!program.exists(), "{name}");
    }
    std::fs::write(archive.join("SHA256SUMS"), sums).unwrap();
    assert!(install(directory.path(), &[]).status.success());
    let removed = install(directory.path(), &["--uninstall"]);
    assert!(removed.status.success(), "{}", stderr(&removed));
    assert_eq!(std::fs::read_dir(prefix.join("bin")).unwrap().count(), 0);
    assert_eq!(std::fs::read_dir(pages).unwrap().count(), 0);
}
