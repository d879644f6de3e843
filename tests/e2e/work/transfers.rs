//! Tickets for large files: downloads, uploads, and what hostile use of them gets.

use std::os::unix::fs::symlink;
use std::time::Duration;

use reqwest::{Body, Response, StatusCode};
use serde_json::{Value, json};
use support::{Modern, Server, ServerOptions, http, server_with, wait_until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// More than one call returns.
const LARGE: usize = 5 << 20;

/// Bytes of which no two places look alike.
fn content(length: usize) -> Vec<u8> {
    let numbers = (0u32..).flat_map(u32::to_le_bytes);
    numbers.take(length).collect()
}

async fn download_ticket(client: &Modern, project: &str, path: &str) -> String {
    let read = json!({ "project_id": project, "path": path });
    let read = client.call("workspace_read", read).await;
    let url = read.ok()["download"]["url"].as_str();
    url.unwrap_or_else(|| panic!("no ticket: {}", read.ok()["size"]))
        .to_owned()
}

async fn upload_ticket(client: &Modern, project: &str, path: &str) -> String {
    let write = json!({ "project_id": project, "path": path });
    let write = client.call("workspace_write", write).await;
    write.ok()["upload"]["url"].as_str().unwrap().to_owned()
}

async fn get(url: &str) -> Response {
    http().get(url).send().await.unwrap()
}

async fn put(url: &str, body: impl Into<Body>) -> (StatusCode, String) {
    let sent = http().put(url).body(body).send().await.unwrap();
    (sent.status(), sent.text().await.unwrap())
}

async fn assert_no_ticket(response: Response) {
    assert_eq!(response.status(), StatusCode::NOT_FOUND);
    let text = response.text().await.unwrap();
    assert!(text.contains("no such ticket"), "{text}");
}

/// The names in a directory.
fn names(directory: &std::path::Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test(runtimes)]
async fn a_large_file_goes_in_and_out_by_tickets(runtime: &str) {
    let server = server_with(runtime, "").await;
    let admin = server.admin();
    let project = admin.project("one").await;
    let bytes = content(LARGE + 3);
    let write = json!({ "project_id": project, "path": "data/in.bin", "mode": "0750" });
    let offered = admin.call("workspace_write", write).await.ok().clone();
    assert_eq!(offered.get("size"), None, "nothing is written yet");
    assert_eq!(offered["upload"]["max_bytes"], 4096u64 << 20);
    let url = offered["upload"]["url"].as_str().unwrap();
    assert!(url.starts_with(&format!("{}/files/oub_", server.base())));
    assert_no_ticket(get(url).await).await;
    let written = put(url, bytes.clone()).await;
    assert_eq!(written.0, StatusCode::CREATED, "{runtime}: {}", written.1);
    let again = http().put(url).body("other").send().await.unwrap();
    assert_no_ticket(again).await;
    let seen = admin
        .exec(
            &project,
            "stat -c '%a %s' data/in.bin; ls -A data; head -c 1 data/in.bin > small",
        )
        .await;
    let expected = format!("750 {}\nin.bin\n", bytes.len());
    assert_eq!(seen["stdout"], expected, "{runtime}: {seen}");

    let read = json!({ "project_id": project, "path": "data/in.bin" });
    let read = admin.call("workspace_read", read).await;
    assert_eq!(read.ok()["encoding"], "base64");
    let url = read.ok()["download"]["url"].as_str().unwrap();
    // Parts, as of a download that was cut off, and then the rest.
    let part = |range: &'static str| http().get(url).header("range", range);
    let first = part("bytes=0-9").send().await.unwrap();
    assert_eq!(first.status(), StatusCode::PARTIAL_CONTENT);
    let total = format!("bytes 0-9/{}", bytes.len());
    assert_eq!(first.headers()["content-range"], *total);
    let version = first.headers()["etag"].clone();
    assert_eq!(first.bytes().await.unwrap(), bytes[..10]);
    let beyond = part("bytes=99999999-").send().await.unwrap();
    assert_eq!(beyond.status(), StatusCode::RANGE_NOT_SATISFIABLE);
    let head = http().head(url).send().await.unwrap();
    assert_eq!(head.headers()["content-length"], *bytes.len().to_string());
    let mut rest = None;
    wait_until("the earlier requests have ended", async || {
        let request = part("bytes=10-").header("if-range", version.clone());
        let response = request.send().await.unwrap();
        let is_used = response.status() == StatusCode::CONFLICT;
        rest = Some(response);
        !is_used
    })
    .await;
    assert_eq!(rest.unwrap().bytes().await.unwrap(), bytes[10..]);
    wait_until("the ticket is spent", async || {
        get(url).await.status() == StatusCode::NOT_FOUND
    })
    .await;
    let small = json!({ "project_id": project, "path": "small" });
    let small = admin.call("workspace_read", small).await;
    assert_eq!(small.ok().get("download"), None);
    assert_eq!(small.ok()["encoding"], "base64", "it is a NUL");
    for log in server.all_logs() {
        assert!(!log.contains("/files/oub_"), "a ticket was logged");
    }
}

#[test(needs(sandbox))]
async fn a_result_that_is_cut_off_links_to_the_rest() {
    let server = server_with("sandbox", "").await;
    let admin = server.admin();
    let project = admin.project("one").await;
    let text = "0123456789abcde\n".repeat(LARGE / 16);
    let path = "a dir/läng #1?.txt";
    let file = server.workspace(&project).join(path);
    std::fs::create_dir(file.parent().unwrap()).unwrap();
    std::fs::write(&file, &text).unwrap();
    let read = json!({ "project_id": project, "path": path });
    let read = admin.call("workspace_read", read).await;
    let first = read.ok()["content"].as_str().unwrap().to_owned();
    let blocks = read.body["result"]["content"].as_array().unwrap();
    let link = blocks.iter().find(|block| block["type"] == "resource_link");
    let uri = link.unwrap()["uri"].as_str().unwrap().to_owned();
    assert_eq!(read.ok()["rest_uri"], *uri);
    let rest = admin.send("resources/read", json!({ "uri": uri })).await;
    let rest = &rest.body["result"]["contents"][0];
    assert_eq!(first + rest["text"].as_str().unwrap(), text);
    assert_eq!(rest.get("_meta"), None);
    // Any part of any file, also binary.
    let end = uri.replace("offset=4194304", "offset=5242870");
    let end = admin.send("resources/read", json!({ "uri": end })).await;
    assert_eq!(end.body["result"]["contents"][0]["text"], "6789abcde\n");
    std::fs::write(&file, b"\xff\0").unwrap();
    let start = uri.replace("?offset=4194304", "");
    let blob = admin
        .send("resources/read", json!({ "uri": start.clone() }))
        .await;
    assert_eq!(blob.body["result"]["contents"][0]["blob"], "/wA=");
    // Another project's token cannot tell it from a file that does not exist.
    let other = admin.project("two").await;
    let stranger = server.with_key(&admin.token(&format!("project:{other}")).await);
    let missing = uri.replace("1%3F", "2");
    let refused = stranger.send("resources/read", json!({ "uri": uri })).await;
    let absent = admin
        .send("resources/read", json!({ "uri": missing }))
        .await;
    assert!(!refused.message().is_empty(), "{}", refused.text);
    assert_eq!(refused.message(), absent.message());
    let templates = admin.send("resources/templates/list", json!({})).await;
    assert!(templates.text.contains("/files/{+path}{?offset}"));

    // The patch of a session that changed more than one page has.
    let lines = "for i in $(seq 60000); do echo line $i of a long file; done > big";
    let spawn = json!({ "project_id": project, "agent": "demo", "prompt": format!("/sh {lines}") });
    let spawned = admin.call("session_spawn", spawn).await.ok().clone();
    let session = spawned["session_id"].as_str().unwrap().to_owned();
    let page = json!({ "session_id": session });
    let mut diff = Value::Null;
    wait_until("the turn has a checkpoint", async || {
        diff = admin.call("session_diff", page.clone()).await.body["result"].clone();
        diff["structuredContent"]["truncated"] == true
    })
    .await;
    let link = diff["content"].as_array().unwrap().last().unwrap();
    assert_eq!(link["type"], "resource_link");
    let rest = json!({ "uri": link["uri"] });
    let rest = admin.send("resources/read", rest).await;
    let rest = rest.body["result"]["contents"][0]["text"].as_str().unwrap();
    let first = diff["structuredContent"]["diff"].as_str().unwrap();
    let whole = format!("{first}{rest}");
    assert!(whole.contains("+line 1 of") && whole.contains("+line 60000 of a long file\n"));
    let added = whole.lines().filter(|line| line.starts_with("+line "));
    assert_eq!(added.count(), 60_000);
}

#[test(needs(sandbox))]
async fn hostile_transfers_change_nothing() {
    let server = Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n[limits]\nmax_upload_mb = 8\n".to_owned(),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let create = json!({ "name": "one", "init_git": false, "protected_paths": ["conf"],
        "disk_mb": 16 });
    let project = admin.call("project_create", create).await.ok()["project_id"].clone();
    let project = project.as_str().unwrap().to_owned();
    let root = server.workspace(&project);
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("secret");
    std::fs::write(&secret, content(LARGE)).unwrap();
    admin
        .exec(
            &project,
            format!("head -c {LARGE} /dev/zero > large; mkdir dir"),
        )
        .await;
    let before = names(&root);

    // A file and a directory that become links after the ticket was given.
    let swapped = download_ticket(&admin, &project, "large").await;
    std::fs::rename(root.join("large"), root.join("kept")).unwrap();
    symlink(&secret, root.join("large")).unwrap();
    let refused = get(&swapped).await;
    assert_eq!(refused.status(), StatusCode::UNPROCESSABLE_ENTITY);
    let text = refused.text().await.unwrap();
    assert!(text.contains("leads out of the workspace"), "{text}");
    let through = upload_ticket(&admin, &project, "dir/secret").await;
    let replaced = upload_ticket(&admin, &project, "large").await;
    std::fs::remove_dir(root.join("dir")).unwrap();
    symlink(outside.path(), root.join("dir")).unwrap();
    let (status, text) = put(&through, "stolen").await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(text.contains("is a link"), "{text}");
    let (status, text) = put(&replaced, "plain").await;
    assert_eq!(status, StatusCode::CREATED, "{text}");
    assert_eq!(std::fs::read(root.join("large")).unwrap(), b"plain");
    assert_eq!(std::fs::read(&secret).unwrap(), content(LARGE));
    std::fs::remove_file(root.join("dir")).unwrap();
    std::fs::create_dir(root.join("dir")).unwrap();
    std::fs::rename(root.join("kept"), root.join("large")).unwrap();

    // A body without a size, one that is too large, one that does not fit, and a protected path.
    let url = upload_ticket(&admin, &project, "new").await;
    let pieces = futures_util::stream::iter([Ok::<_, std::io::Error>("x")]);
    let (status, _) = put(&url, Body::wrap_stream(pieces)).await;
    assert_eq!(status, StatusCode::LENGTH_REQUIRED);
    let (status, text) = announce(&url, 9 << 20, Duration::from_secs(60)).await;
    assert_eq!(status, 413, "{text}");
    let fill = json!({ "project_id": project, "command": "head -c 6000000 /dev/zero > more" });
    admin.call("container_exec", fill).await.ok();
    wait_until("the disk limit is reached", async || {
        let (status, text) = announce(&url, 8 << 20, Duration::from_secs(1)).await;
        status == 422 && text.contains("disk_mb")
    })
    .await;
    admin.exec(&project, "rm more").await;
    let protected = upload_ticket(&admin, &project, "conf/x").await;
    let (status, text) = put(&protected, "evil").await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{text}");

    // A connection that is cut off in the middle; the ticket can be used again.
    drop(begin(&url, 1000, b"half").await);
    let mut last = (StatusCode::CONFLICT, String::new());
    wait_until("the lost upload has ended", async || {
        last = put(&url, "whole").await;
        last.0 != StatusCode::CONFLICT
    })
    .await;
    assert_eq!(last.0, StatusCode::CREATED, "{}", last.1);
    assert_eq!(std::fs::read(root.join("new")).unwrap(), b"whole");
    std::fs::remove_file(root.join("new")).unwrap();

    // The token that asked for a ticket ends: before the use, and during it.
    let made = json!({ "name": "t", "scope": format!("project:{project}") });
    let made = admin.call("token_create", made).await.ok().clone();
    let own = server.with_key(made["key"].as_str().unwrap());
    let unused = upload_ticket(&own, &project, "new").await;
    let reading = download_ticket(&own, &project, "large").await;
    let under_way = upload_ticket(&own, &project, "new").await;
    let mut connection = begin(&under_way, 1000, b"half").await;
    let revoke = json!({ "token_id": made["token_id"] });
    admin.call("token_revoke", revoke).await.ok();
    let mut answer = String::new();
    let _ = connection.read_to_string(&mut answer).await;
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
    assert_no_ticket(http().put(&unused).body("x").send().await.unwrap()).await;
    assert_no_ticket(get(&reading).await).await;

    // A token that only reads gets no ticket to write.
    let reader = server.with_key(&admin.token(&format!("project:{project}:ro")).await);
    let write = json!({ "project_id": project, "path": "new" });
    let refused = reader.call("workspace_write", write).await;
    assert!(refused.text.contains("not allowed"), "{}", refused.text);
    assert_eq!(names(&root), before);

    // Wrong tickets are counted as wrong keys are.
    let wrong = format!("{}/files/oub_{}", server.base(), "A".repeat(43));
    assert_no_ticket(get(&wrong).await).await;
    wait_until("wrong tickets are limited", async || {
        get(&wrong).await.status() == StatusCode::TOO_MANY_REQUESTS
    })
    .await;
    for log in server.all_logs() {
        assert!(!log.contains("/files/oub_"), "a ticket was logged");
    }
}

#[test(needs(sandbox))]
async fn an_upload_of_a_server_that_is_killed_leaves_the_old_file() {
    let mut server = server_with("sandbox", "").await;
    let admin = server.admin();
    let create = json!({ "name": "one", "init_git": false });
    let project = admin.call("project_create", create).await.ok()["project_id"].clone();
    let project = project.as_str().unwrap().to_owned();
    admin.exec(&project, "echo old > file").await;
    let url = upload_ticket(&admin, &project, "file").await;
    let _connection = begin(&url, 3 << 20, &vec![b'x'; 1 << 20]).await;
    let is_writing = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'apply-files /workspac[e]'";
    wait_until("the container writes", async || {
        admin.exec(&project, is_writing).await["stdout"] == "1\n"
    })
    .await;
    server.kill();
    server.start_again();
    wait_until("the next server has ended the upload", async || {
        let command = json!({ "project_id": project, "command": is_writing });
        let seen = admin.call_until_answered("container_exec", command).await;
        seen.ok()["stdout"] == "0\n"
    })
    .await;
    let root = server.workspace(&project);
    assert_eq!(names(&root), ["file"]);
    assert_eq!(std::fs::read(root.join("file")).unwrap(), b"old\n");
    // The ticket was of the server that died.
    let refused = http().put(&url).body("x").send().await.unwrap();
    assert_no_ticket(refused).await;
}

/// Sends the beginning of an upload and keeps the connection.
async fn begin(url: &str, length: usize, body: &[u8]) -> TcpStream {
    let (address, path) = url.trim_start_matches("http://").split_once('/').unwrap();
    let mut connection = TcpStream::connect(address).await.unwrap();
    let head =
        format!("PUT /{path} HTTP/1.1\r\nhost: {address}\r\ncontent-length: {length}\r\n\r\n");
    connection.write_all(head.as_bytes()).await.unwrap();
    connection.write_all(body).await.unwrap();
    connection
}

/// Announces a body of a size, and reads the response; 0 if there is none, because the server waits for the body.
async fn announce(url: &str, length: usize, patience: Duration) -> (u16, String) {
    let mut connection = begin(url, length, b"").await;
    let mut bytes = vec![0; 4096];
    let Ok(read) = tokio::time::timeout(patience, connection.read(&mut bytes)).await else {
        return (0, String::new());
    };
    let read = read.unwrap();
    let text = String::from_utf8_lossy(&bytes[..read]).into_owned();
    let status = text
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    (status.unwrap_or(0), text)
}
