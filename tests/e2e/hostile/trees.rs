//! Directory trees that are made to hurt the server that measures, reads or removes them.

use std::ffi::{CStr, CString};
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use oubliette_trees::{open_dir, remove_tree};
use rustix::fs::{AtFlags, CWD, Mode, mkdirat};
use serde_json::json;
use support::{Server, binary, eventually, run_cli, server_with, stderr, stdout};

/// A tree that is removed again when a test fails: the server's directory could not be removed with it.
struct DeepTree {
    projects: PathBuf,
}

impl DeepTree {
    fn make(server: &Server, top: &Path, levels: usize, name: &CStr) -> Self {
        std::fs::create_dir_all(top).unwrap();
        let mut dir = open_dir(CWD, top).unwrap();
        for _ in 0..levels {
            mkdirat(&dir, name, Mode::RWXU).unwrap();
            dir = open_dir(&dir, name).unwrap();
        }
        let projects = server.home().join("projects");
        Self { projects }
    }
}

impl Drop for DeepTree {
    fn drop(&mut self) {
        let _ = remove_tree(&self.projects);
    }
}

fn entries(directory: &Path) -> usize {
    std::fs::read_dir(directory).map_or(0, Iterator::count)
}

/// Has everything look at the tree that looks at one: each answers, whatever it makes of it.
async fn is_used(server: &Server, id: &str) {
    let admin = server.admin();
    let project = json!({ "project_id": id });
    let shown = admin.call("project_get", project.clone()).await;
    assert_eq!(shown.ok()["name"], "deep");
    let list = json!({ "project_id": id, "recursive": true });
    let listed = admin.call("workspace_files", list).await;
    let files = listed.ok()["files"].as_array().unwrap();
    assert!(files.iter().any(|file| file["path"] == "t"), "{files:?}");
    let session = admin.spawn(id, "/sh echo x > new").await;
    let completion = admin.turn(&session, 1).await;
    assert_eq!(completion["stop_reason"], "end_turn", "{completion}");
    let archive = server.home().join("backup.tar");
    let backed_up = run_cli(server.home(), &["backup", archive.to_str().unwrap()]).await;
    let said = format!("{}{}", stdout(&backed_up), stderr(&backed_up));
    assert_eq!(backed_up.status.code(), Some(0), "{said}");
    assert!(said.contains("Left out 1:"), "{said}");
    let shown = admin.call("project_get", project).await;
    assert_eq!(shown.ok()["name"], "deep");
}

#[test(mounted_runtimes, limit = 300)]
async fn a_project_with_a_hundred_thousand_levels_is_used_and_deleted(runtime: &str) {
    let server = server_with(runtime, "").await;
    let admin = server.admin();
    let id = admin.project("deep").await;
    admin.exec(&id, "true").await;
    let top = server.workspace(&id).join("t");
    let _deep = DeepTree::make(&server, &top, 100_000, c"d");
    if runtime == "sandbox" {
        is_used(&server, &id).await;
    }
    let deleted = admin.call("project_delete", json!({ "project_id": id }));
    deleted.await.ok();
    let listed = admin.call("project_list", json!({})).await;
    assert_eq!(listed.ok()["projects"], json!([]));
    assert_eq!(entries(&server.home().join("projects")), 0);
}

#[test(mounted_runtimes, limit = 300)]
async fn a_workspace_with_names_of_255_bytes_at_22000_levels_is_deleted(runtime: &str) {
    let server = server_with(runtime, "").await;
    let admin = server.admin();
    let id = admin.project("deep").await;
    let created = json!({
        "project_id": id, "workspace_id": "w", "create_workspace": true, "command": "true",
    });
    admin.call("container_exec", created).await.ok();
    let directory = server
        .home()
        .join("projects")
        .join(&id)
        .join("workspaces/w");
    let name = CString::new([b'n'; 255]).unwrap();
    let _deep = DeepTree::make(&server, &directory, 22_000, &name);
    let deleted = json!({ "project_id": id, "workspace_id": "w" });
    admin.call("workspace_delete", deleted).await.ok();
    assert!(!directory.exists());
    assert!(!server.home().join("projects/.deleted").exists());
}

#[test(limit = 300)]
async fn a_server_that_finds_a_deep_tree_in_its_trash_starts_and_removes_everything() {
    let mut server = Server::start();
    let id = server.admin().project("stays").await;
    assert_eq!(server.stop(), Some(0));
    let trash = server.home().join("projects/.deleted");
    let _deep = DeepTree::make(&server, &trash.join("a"), 30_000, c"d");
    std::fs::create_dir_all(trash.join("b/c")).unwrap();
    symlink("/etc", trash.join("c")).unwrap();
    let workspaces = server.home().join("projects").join(&id).join("workspaces");
    let draft = workspaces.join(".new-01234567-89ab-4cde-8f01-23456789abcd");
    let _draft = DeepTree::make(&server, &draft, 1000, c"d");
    std::fs::create_dir(workspaces.join(".new-mine")).unwrap();
    server.start_again();
    let removed = eventually(Duration::from_secs(120), async || {
        !trash.exists() && !draft.exists()
    });
    assert!(removed.await, "{}", server.log());
    assert!(workspaces.join(".new-mine").exists(), "no server chose it");
    let admin = server.admin();
    let shown = admin.call("project_get", json!({ "project_id": id })).await;
    assert_eq!(shown.ok()["name"], "stays");
}

#[test(mounted_runtimes)]
async fn a_workspace_that_is_replaced_by_a_link_is_refused_with_a_sentence(runtime: &str) {
    let server = server_with(runtime, "").await;
    let admin = server.admin();
    let id = admin.project("links").await;
    let created = json!({
        "project_id": id, "workspace_id": "w", "create_workspace": true, "command": "true",
    });
    admin.call("container_exec", created).await.ok();
    let command = "mv /workspaces/w /workspaces/old && ln -s /etc /workspaces/w";
    admin.exec(&id, command).await;
    let workspace = json!({ "project_id": id, "workspace_id": "w" });
    let refused = admin.call("project_changes", workspace.clone()).await;
    assert!(
        refused.sentence().contains("`workspace` action `delete`"),
        "{}",
        refused.text
    );
    admin.call("workspace_delete", workspace).await.ok();
    assert!(Path::new("/etc/passwd").exists());
}

// Only root can give files away.
#[test(needs(root))]
fn a_deep_tree_changes_its_owner_and_links_are_not_followed() {
    const DEPTH: usize = 3000;
    let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let top = root.path().join("top");
    std::fs::create_dir(&top).unwrap();
    symlink(outside.path(), top.join("link")).unwrap();
    let mut dir = open_dir(CWD, &top).unwrap();
    for _ in 0..DEPTH {
        mkdirat(&dir, c"d", Mode::RWXU).unwrap();
        dir = open_dir(&dir, c"d").unwrap();
    }
    let ended = Command::new(binary())
        .arg0("oubliette-client")
        .args(["own", "4711:4712"])
        .arg(&top)
        .status();
    assert!(ended.unwrap().success());
    let owner = |stat: rustix::fs::Stat| (stat.st_uid, stat.st_gid);
    let mut dir = open_dir(CWD, &top).unwrap();
    let link = rustix::fs::statat(&dir, c"link", AtFlags::SYMLINK_NOFOLLOW).unwrap();
    assert_eq!(owner(link), (4711, 4712));
    for _ in 0..DEPTH {
        assert_eq!(owner(rustix::fs::fstat(&dir).unwrap()), (4711, 4712));
        dir = open_dir(&dir, c"d").unwrap();
    }
    assert_eq!(std::fs::metadata(outside.path()).unwrap().uid(), 0);
    remove_tree(&top).unwrap();
}
