//! Files that are made to break a backup, to make it large, or to lead it out of the data directory.

use std::fs::{self, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};

use oubliette_trees::{open_dir, remove_tree};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, RenameFlags, linkat, mkdirat, mknodat, renameat_with,
};
use support::{Server, ServerOptions, binary, cli, run_cli, stderr};
use tempfile::TempDir;

const CANARY: &str = "CANARY of the host";
/// A user without rights, which most systems have.
const ORDINARY_USER: u32 = 65534;

/// A data directory with one project, without a server.
struct Stopped {
    server: Server,
    workspace: PathBuf,
}

impl Stopped {
    async fn new() -> Self {
        let mut server = Server::start();
        let id = server.admin().project("kept").await;
        assert_eq!(server.stop(), Some(0));
        let workspace = server.workspace(&id);
        Self { server, workspace }
    }

    /// The same path in another data directory.
    fn workspace_in(&self, home: &Path) -> PathBuf {
        home.join(self.workspace.strip_prefix(self.server.home()).unwrap())
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = remove_tree(&self.workspace);
    }
}

/// Makes directories inside each other with names of 200 bytes.
fn make_long_path(top: &Path, levels: usize) {
    let name = "n".repeat(200);
    fs::create_dir(top).unwrap();
    let mut dir = open_dir(CWD, top).unwrap();
    for _ in 0..levels {
        mkdirat(&dir, &*name, Mode::RWXU).unwrap();
        dir = open_dir(&dir, &*name).unwrap();
    }
    mknodat(&dir, "file", FileType::RegularFile, Mode::RUSR, 0).unwrap();
}

/// How many directories with names of 200 bytes are inside each other.
fn count_levels(top: &Path) -> usize {
    let name = "n".repeat(200);
    let mut dir = open_dir(CWD, top).unwrap();
    let mut levels = 0;
    while let Ok(next) = open_dir(&dir, &*name) {
        dir = next;
        levels += 1;
    }
    levels
}

fn cli_of_ordinary_user(home: &Path, arguments: &[&str]) -> Output {
    Command::new(binary())
        .env_clear()
        .env("HOME", home)
        .env("OUBLIETTE_HOME", home)
        .args(arguments)
        .uid(ORDINARY_USER)
        .gid(ORDINARY_USER)
        .output()
        .unwrap()
}

fn ok(output: &Output) {
    assert_eq!(output.status.code(), Some(0), "{}", stderr(output));
}

#[test(limit = 240)]
async fn names_that_are_swapped_with_links_bring_nothing_of_the_host_into_a_backup() {
    let stopped = Stopped::new().await;
    let at = |name: String| stopped.workspace.join(name);
    let host = tempfile::tempdir().unwrap();
    fs::create_dir(host.path().join("inner")).unwrap();
    for name in ["secret", "inner/secret"] {
        fs::write(host.path().join(name), CANARY).unwrap();
    }
    for number in 0..75 {
        fs::create_dir_all(at(format!("dir{number}/inner"))).unwrap();
        fs::write(at(format!("dir{number}/inner/secret")), "own").unwrap();
        fs::write(at(format!("file{number}")), "own").unwrap();
        symlink(host.path(), at(format!("dir-link{number}"))).unwrap();
        symlink(host.path().join("secret"), at(format!("file-link{number}"))).unwrap();
    }
    let (scratch, done) = (tempfile::tempdir().unwrap(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let swap = |one: String, other: String| {
                renameat_with(CWD, at(one), CWD, at(other), RenameFlags::EXCHANGE).unwrap();
            };
            while !done.load(Ordering::Relaxed) {
                for number in 0..75 {
                    swap(format!("dir{number}"), format!("dir-link{number}"));
                    swap(format!("file{number}"), format!("file-link{number}"));
                }
            }
        });
        let check = || {
            for round in 0..6 {
                let file = scratch.path().join(format!("{round}.tar"));
                let file = file.to_str().unwrap();
                ok(&cli(stopped.server.home(), ["backup", file]));
                let bytes = fs::read(file).unwrap();
                let mut windows = bytes.windows(CANARY.len());
                assert!(
                    !windows.any(|window| window == CANARY.as_bytes()),
                    "{round}"
                );
                let home = tempfile::tempdir().unwrap();
                ok(&cli(home.path(), ["restore", file]));
            }
        };
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check));
        done.store(true, Ordering::Relaxed);
        checked.unwrap();
    });
}

#[test]
async fn a_backup_keeps_holes_links_and_long_paths_and_names_what_it_left_out() {
    let stopped = Stopped::new().await;
    let at = |name: &str| stopped.workspace.join(name);
    let sparse = fs::File::create(at("sparse")).unwrap();
    sparse.set_len(300 << 20).unwrap();
    sparse.write_at(b"middle", 100 << 20).unwrap();
    fs::write(at("linked"), vec![7; 4 << 20]).unwrap();
    for number in 0..20 {
        fs::hard_link(at("linked"), at(&format!("linked{number}"))).unwrap();
    }
    symlink("//odd/./target/", at("link")).unwrap();
    mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    make_long_path(&at("long"), 25);
    make_long_path(&at("too long"), 200);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("backup.tar");
    let file = file.to_str().unwrap();
    let saved = cli(stopped.server.home(), ["backup", file]);
    ok(&saved);
    let said = stderr(&saved);
    assert!(
        said.contains("too long/nnn") && said.contains("its path is longer"),
        "{said}"
    );
    assert!(said.contains("1 sockets, pipes or devices"), "{said}");
    assert!(
        fs::metadata(file).unwrap().len() < 32 << 20,
        "it is too large"
    );

    let home = tempfile::tempdir().unwrap();
    ok(&cli(home.path(), ["restore", file]));
    let restored = stopped.workspace_in(home.path());
    let meta = fs::metadata(restored.join("sparse")).unwrap();
    assert_eq!(meta.len(), 300 << 20);
    assert!(meta.blocks() * 512 < 1 << 20, "the holes are filled");
    let mut middle = [0; 6];
    let file = fs::File::open(restored.join("sparse")).unwrap();
    file.read_exact_at(&mut middle, 100 << 20).unwrap();
    assert_eq!(&middle, b"middle");
    assert_eq!(fs::metadata(restored.join("linked7")).unwrap().nlink(), 21);
    let target = fs::read_link(restored.join("link")).unwrap();
    assert_eq!(target.to_str(), Some("//odd/./target/"));
    assert_eq!(count_levels(&restored.join("long")), 25);
    assert!(!restored.join("pipe").exists());
    remove_tree(&restored).unwrap();
}

#[test(needs(root))]
async fn an_ordinary_user_backs_up_and_restores_directories_that_deny_access() {
    let stopped = Stopped::new().await;
    let at = |name: &str| stopped.workspace.join(name);
    for (name, mode) in [("fixed/inner", 0o555), ("closed", 0o000)] {
        fs::create_dir_all(at(name)).unwrap();
        fs::write(at(name).join("file"), "text").unwrap();
        fs::set_permissions(at(name), Permissions::from_mode(mode)).unwrap();
    }
    fs::set_permissions(at("fixed"), Permissions::from_mode(0o555)).unwrap();
    let home = stopped.server.home();
    let own = |path: &Path| {
        let owner = format!("{ORDINARY_USER}:{ORDINARY_USER}");
        let chown = Command::new("chown")
            .arg("-R")
            .arg(owner)
            .arg(path)
            .status();
        assert!(chown.unwrap().success());
    };
    own(home);
    let directory: TempDir = tempfile::tempdir().unwrap();
    own(directory.path());
    let file = directory.path().join("backup.tar");
    let file = file.to_str().unwrap();
    let saved = cli_of_ordinary_user(home, &["backup", file]);
    ok(&saved);
    let said = stderr(&saved);
    assert!(
        said.contains("/workspace/closed: Permission denied"),
        "{said}"
    );
    let other = tempfile::tempdir().unwrap();
    own(other.path());
    ok(&cli_of_ordinary_user(other.path(), &["restore", file]));
    let restored = stopped.workspace_in(other.path());
    let inner = fs::metadata(restored.join("fixed/inner")).unwrap();
    assert_eq!(inner.permissions().mode() & 0o777, 0o555);
    let text = fs::read_to_string(restored.join("fixed/inner/file")).unwrap();
    assert_eq!(text, "text");
}

/// 63 directories with long names inside each other take 250 KB, and a hard link in them a few bytes.
#[test]
async fn hard_links_with_long_paths_do_not_make_a_backup_large() {
    let stopped = Stopped::new().await;
    let name = "n".repeat(250);
    let top = stopped.workspace.join("top");
    fs::create_dir(&top).unwrap();
    let mut dir = open_dir(CWD, &top).unwrap();
    for _ in 0..62 {
        mkdirat(&dir, &*name, Mode::RWXU).unwrap();
        dir = open_dir(&dir, &*name).unwrap();
    }
    mknodat(&dir, "file", FileType::RegularFile, Mode::RUSR, 0).unwrap();
    for number in 0..6000 {
        let link = format!("link{number}");
        linkat(&dir, "file", &dir, link, AtFlags::empty()).unwrap();
    }
    fs::write(stopped.workspace.join("last"), "kept").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("backup.tar");
    let file = file.to_str().unwrap();
    let saved = cli(stopped.server.home(), ["backup", file]);
    ok(&saved);
    let said = stderr(&saved);
    assert!(said.contains("top/nnn") && said.contains("paths"), "{said}");
    let size = fs::metadata(file).unwrap().len();
    assert!(size < 48 << 20, "{size} bytes");

    let home = tempfile::tempdir().unwrap();
    ok(&cli(home.path(), ["restore", file]));
    let restored = stopped.workspace_in(home.path());
    assert_eq!(fs::read(restored.join("last")).unwrap(), b"kept");
    remove_tree(&restored).unwrap();
}

#[test]
async fn a_backup_that_is_damaged_on_the_disk_gets_no_name() {
    /// Behind the database and the files of git, in the content of the large file.
    const DAMAGED_OFFSET: u64 = 24 << 20;
    let stopped = Stopped::new().await;
    fs::write(stopped.workspace.join("large"), vec![b'x'; 128 << 20]).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("backup.tar");
    let home = stopped.server.home();
    std::thread::scope(|scope| {
        let backup = scope.spawn(|| cli(home, ["backup", target.to_str().unwrap()]));
        // The disk changes a byte that was written while the rest is written.
        let draft = loop {
            let entries = fs::read_dir(directory.path()).unwrap().flatten();
            let drafts = entries.map(|entry| entry.path().join("archive"));
            let is_long_enough = |path: &PathBuf| {
                fs::metadata(path).is_ok_and(|meta| meta.len() > DAMAGED_OFFSET + 1)
            };
            if let Some(draft) = drafts.into_iter().find(is_long_enough) {
                break draft;
            }
            assert!(!backup.is_finished(), "the backup ended too early");
            std::thread::yield_now();
        };
        let file = fs::OpenOptions::new().read(true).write(true).open(draft);
        let file = file.unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, DAMAGED_OFFSET).unwrap();
        assert_eq!(byte, *b"x");
        file.write_all_at(b"y", DAMAGED_OFFSET).unwrap();
        let ended = backup.join().unwrap();
        assert_eq!(ended.status.code(), Some(1), "{}", stderr(&ended));
        let sentence = stderr(&ended);
        assert!(
            sentence.contains("its checksum does not match"),
            "{sentence}"
        );
    });
    let left: Vec<_> = fs::read_dir(directory.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    // The same backup of a disk that keeps its bytes.
    let ended = cli(home, ["backup", target.to_str().unwrap()]);
    assert!(ended.status.success(), "{}", stderr(&ended));
}

/// What each damage of an archive is called, with the archive that has it.
fn damaged_archives(archive: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let mut flipped = archive.to_vec();
    let text = b"precious text";
    let at = flipped.windows(text.len()).position(|part| part == text);
    flipped[at.unwrap()] ^= 1;
    vec![
        ("cut in the middle", archive[..archive.len() / 2].to_vec()),
        ("cut at its end", archive[..archive.len() - 512].to_vec()),
        ("a changed bit", flipped),
        ("longer", [archive, b"garbage"].concat()),
        ("longer by zeros", [archive, &[0; 512]].concat()),
        ("not a backup", vec![7; 4096]),
    ]
}

#[test]
async fn damaged_archives_are_refused_and_leave_the_data_directory_as_it_was() {
    let stopped = Stopped::new().await;
    fs::write(stopped.workspace.join("file"), "precious text").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("backup.tar");
    ok(&cli(
        stopped.server.home(),
        ["backup", file.to_str().unwrap()],
    ));
    let archive = fs::read(&file).unwrap();
    let home = tempfile::tempdir().unwrap();
    ok(&cli(home.path(), ["restore", file.to_str().unwrap()]));
    let names = || {
        let entries = fs::read_dir(home.path()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let (names_before, own) = (names(), stopped.workspace_in(home.path()).join("file"));
    fs::write(&own, "own").unwrap();
    for (damage, bytes) in damaged_archives(&archive) {
        fs::write(&file, bytes).unwrap();
        let arguments = ["restore", "--replace", file.to_str().unwrap()];
        let refused = cli(home.path(), arguments);
        let said = stderr(&refused);
        assert_eq!(refused.status.code(), Some(1), "{damage}: {said}");
        assert!(said.contains("nothing was restored"), "{damage}: {said}");
        assert!(said.contains("restore another backup"), "{damage}: {said}");
        assert_eq!(names(), names_before, "{damage}");
        assert_eq!(fs::read_to_string(&own).unwrap(), "own", "{damage}");
    }
}

#[test]
async fn an_archive_of_an_older_version_without_a_checksum_is_restored() {
    let stopped = Stopped::new().await;
    fs::write(stopped.workspace.join("file"), "old text").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let new = directory.path().join("new.tar");
    ok(&cli(
        stopped.server.home(),
        ["backup", new.to_str().unwrap()],
    ));
    // Other programs read it, and write archives without our checksum.
    let files = directory.path().join("files");
    fs::create_dir(&files).unwrap();
    let file = directory.path().join("old.tar");
    for (action, archive) in [("-xf", &new), ("-cf", &file)] {
        let names = ["oubliette.db", "admin.token", "projects"];
        let tar = Command::new("tar")
            .arg(action)
            .arg(archive)
            .arg("-C")
            .arg(&files)
            .args(names)
            .status();
        assert!(tar.unwrap().success());
    }
    let home = tempfile::tempdir().unwrap();
    let restored = cli(home.path(), ["restore", file.to_str().unwrap()]);
    ok(&restored);
    assert!(stderr(&restored).contains("no checksum"), "{restored:?}");
    let text = fs::read_to_string(stopped.workspace_in(home.path()).join("file"));
    assert_eq!(text.unwrap(), "old text");
}

#[test(needs(sandbox))]
async fn a_backup_names_the_projects_whose_installed_software_it_does_not_have() {
    let server = Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n".to_owned(),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let (with, without) = (
        admin.project("with tools").await,
        admin.project("plain").await,
    );
    let install =
        "mkdir -p /var/lib/tool && head -c 9000000 /dev/zero | tr '\\0' x > /var/lib/tool/program";
    assert_eq!(admin.exec(&with, install).await["exit_code"], 0);
    assert_eq!(admin.exec(&without, "true").await["exit_code"], 0);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("backup.tar");
    let file = file.to_str().unwrap();
    let saved = run_cli(server.home(), &["backup", file]).await;
    ok(&saved);
    let said = stderr(&saved);
    assert!(said.contains("software installed in containers"), "{said}");
    assert!(said.contains("project with tools: 8 MB"), "{said}");
    assert!(!said.contains("project plain"), "{said}");
    assert!(said.contains("stored credentials"), "{said}");
    let home = tempfile::tempdir().unwrap();
    let restored = run_cli(home.path(), &["restore", file]).await;
    ok(&restored);
    assert!(
        stderr(&restored).contains("install it again"),
        "{restored:?}"
    );
}
