//! Agents that work in the user's directory itself.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::XattrFlags;
use serde_json::{Value, json};
use support::{
    Pty, Relay, RunAs, Server, ServerOptions, run_cli, runtime_name, server_with, stderr, stdout,
};

use super::{User, git, sandbox};
use crate::agents::oubliette_tools::{call, recorder, server_with_project};

/// An ordinary user of the machine.
const PERSON: (u32, u32) = (65_431, 65_430);

/// Of each entry: owner, group, mode, size, time of the last change, and an attribute.
type Owners = BTreeMap<PathBuf, (u32, u32, u32, u64, i64, Vec<u8>)>;

fn owners(directory: &Path) -> Owners {
    let mut found = Owners::new();
    let mut pending = vec![directory.to_owned()];
    while let Some(path) = pending.pop() {
        let about = fs::symlink_metadata(&path).unwrap();
        let mut mark = [0; 16];
        let read = rustix::fs::lgetxattr(&path, "user.mark", &mut mark).unwrap_or(0);
        let (size, time) = if about.is_dir() {
            let entries = fs::read_dir(&path).unwrap();
            pending.extend(entries.map(|entry| entry.unwrap().path()));
            (0, 0)
        } else {
            (about.len(), about.mtime_nsec())
        };
        let mark = mark[..read].to_vec();
        let (uid, gid, mode) = (about.uid(), about.gid(), about.mode());
        found.insert(path, (uid, gid, mode, size, time, mark));
    }
    found
}

/// Makes a repository with files of several kinds, all of them the person's.
fn make_work(directory: &Path, person: (u32, u32)) {
    fs::create_dir_all(directory.join("dir")).unwrap();
    git(directory, ["init", "-q", "-b", "trunk"]);
    for (name, mode) in [("private", 0o600), ("dir/run", 0o755), ("ignored", 0o644)] {
        fs::write(directory.join(name), format!("{name}\n")).unwrap();
        fs::set_permissions(directory.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::write(directory.join(".gitignore"), "ignored\n").unwrap();
    let marked = directory.join("private");
    rustix::fs::setxattr(marked, "user.mark", b"kept", XattrFlags::empty()).unwrap();
    git(directory, ["add", "-A"]);
    git(directory, ["commit", "-q", "-m", "first"]);
    for path in owners(directory).into_keys() {
        std::os::unix::fs::lchown(path, Some(person.0), Some(person.1)).unwrap();
    }
}

fn mounted(directory: &Path) -> Value {
    json!({ "name": "mounted", "mount": directory })
}

/// Everything that was there before is as it was, and everything else is the person's.
fn assert_kept(directory: &Path, before: &Owners, person: (u32, u32), what: &str) {
    let after = owners(directory);
    for (path, about) in before {
        assert_eq!(after.get(path), Some(about), "{what}: {}", path.display());
    }
    for (path, about) in &after {
        assert_eq!((about.0, about.1), person, "{what}: {}", path.display());
    }
}

/// What a project does in a directory of a person, with every runtime and user that can.
async fn work_in(mut server: Server, directory: &Path, person: (u32, u32), what: &str) {
    let has_git = !what.starts_with("docker");
    let before = owners(directory);
    let admin = server.admin();
    let mut create = mounted(directory);
    create["protected_paths"] = json!(["guard/policy"]);
    let created = admin.call("project_create", create).await;
    assert_eq!(created.ok()["mount"], json!(directory), "{what}");
    let id = created.ok()["project_id"].as_str().unwrap().to_owned();
    let ran = admin
        .exec(&id, "pwd; cat private ignored; mkdir made; echo x > made/file; ln -s file made/link; echo x > guard/policy/x")
        .await;
    assert_eq!(
        ran["stdout"], "/workspace\nprivate\nignored\n",
        "{what}: {ran}"
    );
    assert_ne!(ran["exit_code"], 0, "{what}: {ran}");
    assert_eq!(
        fs::read_to_string(directory.join("made/link")).unwrap(),
        "x\n"
    );
    assert_kept(directory, &before, person, what);
    assert!(directory.join("guard/policy").is_dir(), "{what}");
    assert!(
        !directory.join(".git/hooks/prepare-commit-msg").exists(),
        "{what}"
    );
    let own = server.workspace(&id);
    assert_eq!(fs::read_dir(&own).unwrap().count(), 0, "{what}");

    // A killed server leaves nothing changed, and its successor goes on.
    server.kill();
    assert_kept(directory, &before, person, what);
    server.start_again();
    let admin = server.admin();
    let session = admin.spawn(&id, "/sh echo one > file").await;
    admin.turn(&session, 1).await;
    admin
        .message(&session, "/sh echo two > file; rm -r made")
        .await;
    admin.turn(&session, 2).await;
    let diff = json!({ "session_id": session, "turn": 2 });
    let diff = admin.call("session_diff", diff).await;
    let diff = diff.ok()["diff"].as_str().unwrap();
    assert!(diff.contains("-one\n+two"), "{what}: {diff}");
    let rewind = json!({ "session_id": session, "turn": 1, "what": "files" });
    let rewound = admin.call("session_rewind", rewind).await;
    assert_eq!(rewound.ok()["not_restored"], Value::Null, "{what}");
    assert_eq!(fs::read_to_string(directory.join("file")).unwrap(), "one\n");
    assert_eq!(
        fs::read_to_string(directory.join("made/file")).unwrap(),
        "x\n"
    );
    assert_kept(directory, &before, person, what);
    let read = json!({ "project_id": id, "path": "private" });
    let read = admin.call("workspace_read", read).await;
    assert_eq!(read.ok()["content"], "private\n", "{what}: {}", read.text);

    // Other workspaces are copies.
    let other = json!({
        "workspace_id": "other", "create_workspace": true,
        "command": "cat private; echo changed > private; echo new > only-there",
    });
    let other = admin.try_exec(&id, other).await;
    if has_git {
        assert_eq!(other.ok()["stdout"], "private\n", "{what}: {}", other.text);
    }
    assert!(!directory.join("only-there").exists(), "{what}");
    assert_kept(directory, &before, person, what);

    let gone = json!({ "project_id": id });
    admin.call("project_delete", gone).await.ok();
    assert_kept(directory, &before, person, what);
    assert_eq!(fs::read_to_string(directory.join("file")).unwrap(), "one\n");
    assert!(!own.exists(), "{what}");
}

#[test(runtimes, needs(root))]
async fn files_of_a_mounted_directory_keep_their_owner_and_new_ones_get_it(runtime: &str) {
    let place = tempfile::tempdir().unwrap();
    let directory = fs::canonicalize(place.path()).unwrap().join("app");
    make_work(&directory, PERSON);
    let server = server_with(runtime, "").await;
    if runtime_name(runtime) == "docker" {
        // Nothing in Docker's containers is root of this machine.
        let rooted = place.path().join("rooted");
        fs::create_dir(&rooted).unwrap();
        let admin = server.admin();
        let rooted = json!({ "name": "rooted", "mount": rooted });
        let rooted = admin.call("project_create", rooted).await;
        let id = rooted.ok()["project_id"].as_str().unwrap().to_owned();
        let refused = admin.try_exec(&id, json!({ "command": "touch x" })).await;
        assert!(
            refused.sentence().contains("belongs to root"),
            "{}",
            refused.text
        );
    }
    work_in(server, &directory, PERSON, runtime).await;
}

#[test(needs(sandbox, root))]
async fn a_server_of_an_ordinary_user_mounts_only_directories_of_that_user() {
    let place = tempfile::tempdir().unwrap();
    chown(place.path(), Some(PERSON.0), Some(PERSON.1)).unwrap();
    let place = fs::canonicalize(place.path()).unwrap();
    make_work(&place.join("app"), PERSON);
    fs::create_dir(place.join("foreign")).unwrap();
    let server = Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n".to_owned(),
        run_as: Some(RunAs {
            uid: PERSON.0,
            gid: PERSON.1,
            group: PERSON.1,
        }),
        ..ServerOptions::default()
    });
    let foreign = mounted(&place.join("foreign"));
    let foreign = server.admin().call("project_create", foreign).await;
    assert!(
        foreign.sentence().contains("belongs to user 0"),
        "{}",
        foreign.text
    );
    work_in(server, &place.join("app"), PERSON, "ordinary user").await;
}

#[test(needs(sandbox))]
async fn only_admin_tokens_mount_and_only_directories_of_work() {
    let (server, admin, one) = server_with_project("", json!({})).await;
    let place = tempfile::tempdir().unwrap();
    let place = fs::canonicalize(place.path()).unwrap();
    let work = place.join("work");
    fs::create_dir(&work).unwrap();
    for scope in ["write", "read", &format!("project:{one}")] {
        let token = server.with_key(&admin.token(scope).await);
        let refused = token.call("project_create", mounted(&work)).await;
        assert_eq!(refused.code(), -32002, "{scope}: {}", refused.text);
    }
    // Neither an agent with an admin key, nor a token that it makes, nor anything else in a container.
    let two = crate::agents::oubliette_tools::project(&admin, "two", json!({})).await;
    let keys = recorder(&server, &admin, &two, json!({ "agent_scope": "admin" })).await;
    let minted = keys.api_key.clone().unwrap();
    let mut relay = Relay::attached(&server, &two, &keys).await;
    for key in [minted.clone(), server.admin_key()] {
        let refused = call(&mut relay, &key, "project_create", mounted(&work)).await;
        assert_eq!(refused["error"]["code"], -32002, "{refused}");
    }
    let refused = server
        .with_key(&minted)
        .call("project_create", mounted(&work))
        .await;
    assert_eq!(refused.code(), -32002, "{}", refused.text);

    let link = place.join("link");
    symlink(&work, &link).unwrap();
    fs::write(place.join("file"), "").unwrap();
    symlink(server.home(), place.join("data")).unwrap();
    for wrong in [
        json!(server.home()),
        json!(server.home().join("projects")),
        json!(server.home().parent().unwrap()),
        json!(place.join("data")),
        json!(place.join("file")),
        json!(place.join("missing")),
        json!("work"),
        json!("/"),
        json!("/etc"),
        json!("/root"),
    ] {
        let refused = json!({ "name": "mounted", "mount": wrong });
        let refused = admin.call("project_create", refused).await;
        assert!(
            refused.sentence().contains("`mount`"),
            "{wrong}: {}",
            refused.text
        );
    }
    let both = json!({ "name": "mounted", "mount": work, "remote_url": "https://example.com/x" });
    assert!(admin.call("project_create", both).await.is_error());

    // The path is that of the directory itself, and a link that is made later is not followed.
    let made = admin.call("project_create", mounted(&link)).await;
    assert_eq!(made.ok()["mount"], json!(work));
    let id = made.ok()["project_id"].as_str().unwrap().to_owned();
    assert_eq!(admin.exec(&id, "touch here").await["exit_code"], 0);
    admin
        .call("container_stop", json!({ "project_id": id }))
        .await
        .ok();
    fs::rename(&work, place.join("moved")).unwrap();
    let missing = admin.try_exec(&id, json!({ "command": "true" })).await;
    assert!(
        missing.sentence().contains("does not exist"),
        "{}",
        missing.text
    );
    fs::create_dir(place.join("secret")).unwrap();
    symlink(place.join("secret"), &work).unwrap();
    let refused = admin
        .try_exec(&id, json!({ "command": "touch stolen" }))
        .await;
    assert!(refused.sentence().contains("a link"), "{}", refused.text);
    let read = json!({ "project_id": id });
    assert!(admin.call("workspace_files", read).await.is_error());
    assert_eq!(fs::read_dir(place.join("secret")).unwrap().count(), 0);

    // A backup names the directory, and a restored project does not have it.
    fs::remove_file(&work).unwrap();
    fs::rename(place.join("moved"), &work).unwrap();
    let archive = place.join("backup");
    let backup = run_cli(server.home(), &["backup", archive.to_str().unwrap()]).await;
    assert!(backup.status.success(), "{}", stderr(&backup));
    assert!(
        stderr(&backup).contains(work.to_str().unwrap()),
        "{}",
        stderr(&backup)
    );
    let restored = place.join("restored");
    fs::create_dir(&restored).unwrap();
    let archive = archive.to_str().unwrap();
    let restore = run_cli(&restored, &["restore", archive]).await;
    assert!(restore.status.success(), "{}", stderr(&restore));
    let project = restored.join("projects").join(&id);
    assert!(
        project.join("workspace").is_dir() && fs::symlink_metadata(project.join("mount")).is_err()
    );
}

#[test(needs(sandbox))]
async fn run_with_mount_asks_once_and_changes_the_files_here() {
    let user = User::with(sandbox());
    user.write("a", "1\n");
    let mount = |prompt: &'static str| ["run", "--mount", prompt];
    let refused = user.cli(&mount("/sh echo x > a")).await;
    assert_eq!(refused.status.code(), Some(1));
    let said = stderr(&refused);
    for words in ["not on a copy", "secrets", "session rewind", "--yes"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let projects = async || {
        let listed = user.server.admin().call("project_list", json!({})).await;
        listed.ok()["projects"].as_array().unwrap().clone()
    };
    assert_eq!(
        (projects().await.len(), user.read("a")),
        (0, "1\n".to_owned())
    );
    // At a terminal it asks.
    let root = user.root().display().to_string();
    let asked = ["run", "--mount", "--dir", &root, "/sh echo x > a"];
    for (answer, code) in [("n\n", 1), ("y\n", 0)] {
        let mut terminal = Pty::run(user.server.home(), (24, 100), &asked);
        terminal.wait_for("Let the agent work there? [y/N]");
        terminal.type_keys(answer);
        assert_eq!(terminal.exit_code(), Some(code), "{}", terminal.shown());
    }
    assert_eq!(user.read("a"), "x\n");

    // From below, and by another path: the same project, and no question.
    fs::create_dir(user.root().join("sub")).unwrap();
    let link = user.directory.path().join("link");
    symlink(user.root(), &link).unwrap();
    let ran = user
        .cli_in(
            &user.root().join("sub"),
            &mount("/sh pwd; git status --porcelain"),
        )
        .await;
    assert_eq!(stdout(&ran), "/workspace\n M a\n", "{}", stderr(&ran));
    assert!(!stderr(&ran).contains("not on a copy"), "{}", stderr(&ran));
    let ran = user
        .cli_in(
            &link,
            &mount("/sh echo y > b; git add b; git commit -q -m theirs"),
        )
        .await;
    assert!(ran.status.success(), "{}", stderr(&ran));
    assert!(
        stderr(&ran).contains("1 file changed, +1 −0 here"),
        "{}",
        stderr(&ran)
    );
    assert_eq!(
        user.git(["log", "-1", "--format=%an %s %(trailers)"])
            .trim(),
        "Oubliette agent theirs"
    );
    let found = projects().await;
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(
        found[0]["mount"],
        json!(fs::canonicalize(user.root()).unwrap())
    );

    let diff = user.cli(&["diff"]).await;
    assert!(
        stderr(&diff).contains("works on the files here"),
        "{}",
        stderr(&diff)
    );
    assert!(stdout(&diff).contains("+y"), "{}", stdout(&diff));
    assert!(user.ok(&["diff", "--turn", "1"]).await.contains("+y"));
    let applied = user.cli(&["apply"]).await;
    assert!(applied.status.success() && stderr(&applied).contains("works on the files here"));
    let fetched = user.cli(&["fetch"]).await;
    assert!(!fetched.status.success() && stderr(&fetched).contains("works on the files here"));
    let ran = user
        .cli(&["run", "--continue", "/sh cat b; echo z > b"])
        .await;
    assert!(
        stderr(&ran).contains("on the files here"),
        "{}",
        stderr(&ran)
    );
    assert_eq!(
        (stdout(&ran).trim(), user.read("b")),
        ("y", "z\n".to_owned())
    );

    // A copy is still a copy, in a project of its own.
    let ran = user.cli(&["run", "/sh cat b; echo copy > b"]).await;
    assert_eq!(
        (stdout(&ran).trim(), user.read("b")),
        ("z", "z\n".to_owned()),
        "{}",
        stderr(&ran)
    );
    assert_eq!(projects().await.len(), 2);
    let ran = user
        .cli(&["run", "--mount", "--continue", "/sh cat b"])
        .await;
    assert_eq!(stdout(&ran).trim(), "z", "{}", stderr(&ran));

    let elsewhere = [
        "run",
        "--mount",
        "--yes",
        "--url",
        "http://192.0.2.1:7433",
        "--token",
        "oub_x",
        "hi",
    ];
    let refused = user.cli(&elsewhere).await;
    assert!(
        stderr(&refused).contains("needs the server of this machine"),
        "{}",
        stderr(&refused)
    );
}
