//! Listing, reading and writing files of workspaces.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;

use serde_json::{Value, json};
use support::{Modern, Reply, server_with, server_with_git};

async fn call(admin: &Modern, operation: &str, project: &str, mut more: Value) -> Reply {
    more["project_id"] = json!(project);
    admin.call(operation, more).await
}

async fn exec(admin: &Modern, project: &str, command: &str) -> Value {
    let command = json!({ "command": command });
    let done = call(admin, "container_exec", project, command).await;
    done.ok().clone()
}

fn paths(listed: &Value) -> Vec<String> {
    let files = listed["files"].as_array().unwrap().iter();
    files
        .map(|file| file["path"].as_str().unwrap().to_owned())
        .collect()
}

#[test(runtimes)]
async fn files_are_written_listed_and_read_as_the_agent_sees_them(runtime: &str) {
    let server = server_with_git(runtime, "").await;
    let admin = server.admin();
    let project = admin.project("one").await;
    let write = json!({ "path": "src/a b.txt", "content": "hello\n" });
    let written = call(&admin, "workspace_write", &project, write).await;
    assert_eq!(written.ok()["size"], 6, "{runtime}");
    let script = json!({ "path": "/workspace/run.sh", "content": "ZWNobyBydW4K", "encoding": "base64", "mode": "0755" });
    call(&admin, "workspace_write", &project, script).await.ok();
    let done = exec(
        &admin,
        &project,
        "cat 'src/a b.txt'; ./run.sh; echo more >> run.sh; rm -rf .git",
    )
    .await;
    assert_eq!(done["stdout"], "hello\nrun\n", "{runtime}: {done}");

    let listed = call(
        &admin,
        "workspace_files",
        &project,
        json!({ "recursive": true }),
    )
    .await;
    let files = &listed.ok()["files"];
    assert_eq!(
        paths(listed.ok()),
        ["run.sh", "src", "src/a b.txt"],
        "{runtime}"
    );
    assert_eq!(files[0]["mode"], "0755");
    assert_eq!(
        (&files[1]["kind"], &files[2]["kind"]),
        (&json!("directory"), &json!("file"))
    );
    assert_eq!(files[2]["size"], 6);
    assert!(files[2]["modified_at"].as_str().unwrap().ends_with('Z'));

    let read = json!({ "path": "run.sh", "offset": 5, "length": 3 });
    let read = call(&admin, "workspace_read", &project, read).await;
    assert_eq!(read.ok()["content"], "run");
    assert_eq!(
        (&read.ok()["truncated"], &read.ok()["size"]),
        (&json!(true), &json!(14))
    );
    exec(
        &admin,
        &project,
        "printf '\\377\\000' > raw; head -c 5000000 /dev/zero | tr '\\000' x > large",
    )
    .await;
    let raw = call(&admin, "workspace_read", &project, json!({ "path": "raw" })).await;
    assert_eq!(
        (&raw.ok()["content"], &raw.ok()["encoding"]),
        (&json!("/wA="), &json!("base64"))
    );
    let large = call(
        &admin,
        "workspace_read",
        &project,
        json!({ "path": "large" }),
    )
    .await;
    assert_eq!(large.ok()["content"].as_str().unwrap().len(), 4 << 20);
    assert_eq!(large.ok()["truncated"], true);

    // A workspace of its own, from another one.
    exec(
        &admin,
        &project,
        "git init -q && git add src && git -c user.name=t -c user.email=t@t commit -qm one",
    )
    .await;
    let made = call(
        &admin,
        "workspace_create",
        &project,
        json!({ "workspace_id": "first" }),
    )
    .await;
    assert_eq!(made.ok()["path"], "/workspaces/first", "{runtime}");
    let in_first = json!({ "workspace_id": "first", "command":
        "echo 2 > two && git add two && git -c user.name=t -c user.email=t@t commit -qm two" });
    call(&admin, "container_exec", &project, in_first)
        .await
        .ok();
    let from = json!({ "workspace_id": "second", "from": "first" });
    call(&admin, "workspace_create", &project, from.clone())
        .await
        .ok();
    let read = json!({ "workspace_id": "second", "path": "two" });
    let read = call(&admin, "workspace_read", &project, read).await;
    assert_eq!(read.ok()["content"], "2\n", "{runtime}");
    let again = call(&admin, "workspace_create", &project, from).await;
    let said = again.sentence();
    assert!(
        said.starts_with("workspace already exists: `second`"),
        "{said}"
    );
}

#[test(needs(sandbox))]
async fn hostile_files_are_named_and_lead_nowhere() {
    let server = server_with("sandbox", "").await;
    let admin = server.admin();
    let made = json!({ "name": "one", "init_git": false });
    let made = admin.call("project_create", made).await;
    let project = made.ok()["project_id"].as_str().unwrap().to_owned();
    let root = server.workspace(&project);
    exec(
        &admin,
        &project,
        "mkfifo pipe; mkdir dir inner; echo in > inner/file; ln -s inner short",
    )
    .await;
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("secret"), "hidden").unwrap();
    symlink(outside.path(), root.join("out")).unwrap();
    symlink("loop", root.join("loop")).unwrap();
    std::fs::write(root.join("new\nline"), "x").unwrap();
    std::fs::write(root.join(OsStr::from_bytes(b"odd\xff")), "odd").unwrap();
    let listed = call(&admin, "workspace_files", &project, json!({})).await;
    assert_eq!(
        paths(listed.ok()),
        [
            "dir",
            "inner",
            "loop",
            "new\nline",
            r#""odd\377""#,
            "out",
            "pipe",
            "short"
        ]
    );
    for (path, content) in [
        ("new\nline", "x"),
        (r#""odd\377""#, "odd"),
        ("short/file", "in\n"),
    ] {
        let read = call(&admin, "workspace_read", &project, json!({ "path": path })).await;
        assert_eq!(read.ok()["content"], content);
    }
    for (path, reason) in [
        ("out/secret", "leads out of the workspace"),
        ("../x", "leads out of the workspace"),
        ("/etc/passwd", "not in the workspace"),
        ("pipe", "not a regular file"),
        ("dir", "not a regular file"),
        ("loop", "loop"),
        ("absent", "not found"),
    ] {
        let read = call(&admin, "workspace_read", &project, json!({ "path": path })).await;
        assert!(
            read.is_error() && read.sentence().contains(reason),
            "{path}: {}",
            read.text
        );
    }
    for (path, reason) in [
        ("out/secret", "is a link"),
        ("../x", "not the path of a file"),
        ("dir", "it is a directory"),
        ("", "not the path of a file"),
    ] {
        let write = json!({ "path": path, "content": "stolen" });
        let write = call(&admin, "workspace_write", &project, write).await;
        assert!(
            write.is_error() && write.sentence().contains(reason),
            "{path}: {}",
            write.text
        );
    }
    // A link and a pipe are replaced.
    for path in ["loop", "pipe"] {
        let write = json!({ "path": path, "content": "plain" });
        call(&admin, "workspace_write", &project, write).await.ok();
        let read = call(&admin, "workspace_read", &project, json!({ "path": path })).await;
        assert_eq!(read.ok()["content"], "plain");
    }
    let secret = std::fs::read_to_string(outside.path().join("secret")).unwrap();
    assert_eq!(secret, "hidden");

    // A large directory, page by page.
    exec(
        &admin,
        &project,
        "cd dir; seq 1 2345 | xargs touch; mkdir 5000; touch 5000/x",
    )
    .await;
    let (mut found, mut cursor) = (Vec::new(), Value::Null);
    loop {
        let page = json!({ "path": "dir", "recursive": true, "limit": 700, "cursor": cursor });
        let page = call(&admin, "workspace_files", &project, page)
            .await
            .ok()
            .clone();
        found.extend(paths(&page));
        cursor = page["next_cursor"].clone();
        if cursor.is_null() {
            break;
        }
    }
    assert_eq!(found.len(), 2347);
    let mut unique = found.clone();
    unique.dedup();
    assert!(unique.len() == found.len() && found.contains(&"dir/5000/x".to_owned()));
}
