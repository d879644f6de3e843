//! Repositories with many files, and large files.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use support::{stderr, stdout};

use super::User;

const FILES: usize = 15_000;
/// Above what a checkpoint keeps of a file, and above what a message carries.
const LARGE_BYTES: u64 = 64_000_000;
/// What a command needs at most, however many files there are.
const MAX_COMMAND_KIB: u64 = 500_000;
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A commit with many small files, as a stream for `git fast-import`.
fn commit_of_many_files() -> String {
    let mut stream =
        "commit refs/heads/trunk\ncommitter A <a@example.com> 1 +0000\ndata 4\nmany\n".to_owned();
    stream += "from refs/heads/trunk^0\n";
    for number in 0..FILES {
        let text = format!("{number}\n");
        let length = text.len();
        stream += &format!(
            "M 100644 inline dir{}/f{number}\ndata {length}\n{text}\n",
            number % 300
        );
    }
    stream
}

/// Runs a command that must succeed, and needs no more memory than others.
async fn bounded(user: &User, arguments: &[&str]) -> String {
    let mut command = tokio::process::Command::from(user.command(&user.root()));
    command
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let running = command.kill_on_drop(true).spawn().unwrap();
    let status = format!("/proc/{}/status", running.id().unwrap());
    let ending = running.wait_with_output();
    tokio::pin!(ending);
    let mut peak = 0;
    let ended = loop {
        // The kernel keeps the maximum, so that the last look before the end is near it.
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
        peak = peak.max(kib.unwrap_or(0));
        tokio::select! {
            ended = &mut ending => break ended.unwrap(),
            () = tokio::time::sleep(POLL_INTERVAL) => {}
        }
    };
    assert!(ended.status.success(), "{arguments:?}: {}", stderr(&ended));
    assert!(
        peak > 0 && peak < MAX_COMMAND_KIB,
        "{arguments:?} needed {peak} KiB"
    );
    stdout(&ended)
}

#[test(needs(sandbox), limit = 600)]
async fn a_repository_with_many_files_and_a_large_one_goes_there_and_back() {
    let user = User::new();
    let mut import = Command::new("git")
        .args(["fast-import", "--quiet"])
        .current_dir(user.root())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = import.stdin.take().unwrap();
    input.write_all(commit_of_many_files().as_bytes()).unwrap();
    drop(input);
    assert!(import.wait().unwrap().success());
    user.git(["reset", "-q", "--hard"]);
    let large = user.root().join("large");
    let file = std::fs::File::create(&large).unwrap();
    file.set_len(LARGE_BYTES).unwrap();
    let before = user.state();

    let work =
        "/sh ls dir7 | wc -l; stat -c %s large; echo new > dir7/new; rm dir8/f8; printf z >> large";
    let said = bounded(&user, &["run", work]).await;
    let in_directory = (FILES - 7).div_ceil(300);
    assert_eq!(said.trim(), format!("{in_directory}\n{LARGE_BYTES}"));
    assert_eq!(user.state(), before, "the checkout was changed");
    let shown = bounded(&user, &["diff", "--stat"]).await;
    for name in ["dir7/new", "dir8/f8", "large", "3 files changed"] {
        assert!(shown.contains(name), "{name}: {shown}");
    }
    bounded(&user, &["apply"]).await;
    assert_eq!(user.read("dir7/new"), "new\n");
    assert!(!user.root().join("dir8/f8").exists());
    assert_eq!(std::fs::metadata(&large).unwrap().len(), LARGE_BYTES + 1);
    let status = user.git(["status", "--porcelain"]);
    assert_eq!(status, " D dir8/f8\n?? dir7/new\n?? large\n");
    let copied = user.directory.path().join("copied");
    bounded(&user, &["cp", "app:large", copied.to_str().unwrap()]).await;
    assert_eq!(std::fs::metadata(copied).unwrap().len(), LARGE_BYTES + 1);
}
