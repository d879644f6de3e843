//! A disk that is full: containers and commands say so, nothing is lost, and with some space all
//! goes on.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::json;
use support::{Modern, binary, eventually, runtimes};
use tempfile::TempDir;

/// A server whose data directory is a small file system, in namespaces that end with it.
struct Small {
    home: TempDir,
    unshare: Child,
    url: String,
}

impl Small {
    fn start(megabytes: u32) -> Self {
        let home = tempfile::tempdir().unwrap();
        let script = "mount -t tmpfs -o mode=700,size=\"$3\"m none \"$1\" && \
                      exec \"$2\" --data-dir \"$1\" serve --listen 127.0.0.1:0 --runtime sandbox";
        let mut unshare = Command::new("unshare")
            .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
            .args(["sh", "-c", script, "sh"])
            .arg(home.path())
            .arg(binary())
            .arg(megabytes.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(unshare.stdout.take().unwrap());
        let mut first = String::new();
        lines.read_line(&mut first).unwrap();
        let url = first.trim().split_once(" is ready: ").unwrap().1.to_owned();
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        Self { home, unshare, url }
    }

    /// A file of the data directory, which only the server itself sees.
    fn file(&self, name: &str) -> PathBuf {
        let unshare = self.unshare.id();
        let children = format!("/proc/{unshare}/task/{unshare}/children");
        let children = std::fs::read_to_string(children).unwrap();
        let seen = Path::new("/proc").join(children.trim()).join("root");
        let home = self.home.path().strip_prefix("/").unwrap();
        seen.join(home).join(name)
    }

    fn admin(&self) -> Modern {
        let key = std::fs::read_to_string(self.file("admin.token")).unwrap();
        Modern::new(&self.url, key.trim())
    }

    /// Takes all the space there is.
    fn fill(&self) {
        let mut filler = std::fs::File::create(self.file("filler")).unwrap();
        for block in [1 << 16, 1 << 12, 1] {
            while filler.write_all(&vec![0; block]).is_ok() {}
        }
    }

    /// Fills it up and gives some bytes back.
    fn leave(&self, bytes: u64) {
        self.fill();
        let filler = std::fs::File::options()
            .write(true)
            .open(self.file("filler"));
        let filler = filler.unwrap();
        let length = filler.metadata().unwrap().len();
        filler.set_len(length - bytes).unwrap();
    }

    fn empty(&self) {
        std::fs::remove_file(self.file("filler")).unwrap();
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
    }
}

#[tokio::test]
async fn on_a_full_disk_containers_say_so_and_recover() {
    let is_wanted = std::env::var_os("OUBLIETTE_TEST_NAMESPACES").is_some()
        && runtimes().iter().any(|runtime| runtime == "sandbox");
    if !is_wanted || !rustix::process::geteuid().is_root() {
        eprintln!("skipped: OUBLIETTE_TEST_NAMESPACES is not set, or this is not root");
        return;
    }
    let server = Small::start(16);
    let admin = server.admin();
    let (one, two) = (admin.project("one").await, admin.project("two").await);
    let exec = async |id: &str, command: &str| {
        let call = json!({ "project_id": id, "command": command });
        admin.call("container_exec", call).await
    };
    assert_eq!(
        exec(&one, "echo a > kept; cat kept").await.ok()["stdout"],
        "a\n"
    );
    let start = json!({ "project_id": two });
    // First nothing is left, then a little more each time: every part comes to its end once.
    let mut refused = Vec::new();
    for left in [0, 8 << 10, 24 << 10, 48 << 10, 96 << 10, 160 << 10] {
        server.leave(left);
        for reply in [
            admin.call("container_start", start.clone()).await,
            exec(&one, "echo b > more").await,
            exec(&two, "true").await,
            admin.call("container_stop", start.clone()).await,
            admin
                .call("project_create", json!({ "name": "three" }))
                .await,
        ] {
            assert_eq!(reply.status, 200, "{}", reply.text);
            assert!(reply.body["error"].is_null(), "a fault: {}", reply.text);
            if reply.is_error() {
                refused.push(reply.sentence().to_owned());
            }
        }
    }
    assert!(refused.len() >= 4, "{refused:?}");
    for sentence in &refused {
        let says_why = ["full", "No space left", "already exists"]
            .iter()
            .any(|why| sentence.contains(why));
        assert!(says_why, "{sentence}");
    }
    // What only reads goes on.
    let listed = admin.call("project_list", json!({})).await;
    assert!(listed.ok()["projects"].as_array().unwrap().len() >= 2);

    server.empty();
    let made = eventually(Duration::from_secs(40), async || {
        let four = json!({ "name": "four" });
        let again = admin.call("project_create", four).await;
        !again.is_error()
    });
    assert!(made.await);
    assert_eq!(exec(&one, "cat kept").await.ok()["stdout"], "a\n");
    assert_eq!(exec(&two, "echo c").await.ok()["stdout"], "c\n");
    let listed = admin.call("project_list", json!({})).await;
    for project in listed.ok()["projects"].as_array().unwrap() {
        let call = json!({ "project_id": project["project_id"] });
        admin.call("project_delete", call).await.ok();
    }
    for place in ["run/c", "run/s", "layers", "projects/.deleted"] {
        let left = std::fs::read_dir(server.file(place)).unwrap().count();
        assert_eq!(left, 0, "{place}");
    }
}
