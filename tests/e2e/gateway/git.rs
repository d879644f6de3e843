//! Git in containers: agents fetch and push with placeholders, only to branches that the project allows, and no real
//! token is in a container.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use support::network::{NameServer, loopback_address};
use support::{GitServer, Modern, Server, ServerOptions, eventually};

use super::{event_texts, processes_with, run, run_again};
use crate::credentials::{files_with, scripted_agents};

/// The real token; no other test has it.
const TOKEN: &str = "ghp_canary0123456789abcdef";
const USER: &str = "x-access-token";
const REPOSITORY: &str = "acme/app.git";
const ADDRESS: &str = "https://git.test/acme/app.git";
const WAIT: Duration = Duration::from_secs(60);
/// Clones the repository and makes a commit.
const CLONE: &str = "git clone -q https://git.test/acme/app.git app; cd app; git checkout -q -b work; \
     echo more > more; git add .; git commit -qm two;";
/// Where git finds the placeholder.
const HEADER: &str = "git config --get-all http.http://127.0.0.1:3129/git/git.test/.extraHeader";

/// A git host, a server whose agent is a shell script, and a project with a credential for the host.
struct World {
    forge: GitServer,
    /// A host that the first one leads to.
    other: GitServer,
    server: Server,
    admin: Modern,
    project: String,
    _names: NameServer,
}

impl World {
    async fn start() -> Self {
        Self::start_with("runtime = \"sandbox\"\n").await
    }

    async fn start_with(config: &str) -> Self {
        let names = NameServer::start();
        let (own, others) = (loopback_address(), loopback_address());
        names.set("git.test", own);
        names.set("other.test", others);
        let login = format!("{USER}:{TOKEN}");
        let forge = GitServer::start(own, "git.test", Some(&login), "https://other.test");
        let other = GitServer::start(others, "other.test", None, "");
        forge.add_repository(REPOSITORY, 0);
        let authority = forge.authority().to_str().unwrap().to_owned();
        let agents = scripted_agents(&["claude"]);
        let server = Server::start_with(ServerOptions {
            config: format!("{config}{}{agents}", names.config()),
            env: vec![("SSL_CERT_FILE".to_owned(), authority)],
            ..ServerOptions::default()
        });
        let admin = server.admin();
        let add = json!({
            "name": "forge", "kind": "git", "value": TOKEN, "base_url": "https://git.test",
        });
        admin.call("credential_add", add).await.ok();
        let mut world = Self {
            forge,
            other,
            server,
            admin,
            project: String::new(),
            _names: names,
        };
        world.project = world.add_project("one", json!({ "allow": [others] })).await;
        world
    }

    async fn add_project(&self, name: &str, policy: Value) -> String {
        let made = json!({
            "name": name, "agent": "claude", "network": "policy", "network_policy": policy,
            "credential_refs": ["forge"],
        });
        let made = self.admin.call("project_create", made).await;
        made.ok()["project_id"].as_str().unwrap().to_owned()
    }

    /// Has the agent of a new session run a script.
    async fn run(&self, script: &str) -> (String, String) {
        run(&self.server, &self.project, script).await
    }

    fn branches(&self) -> String {
        self.forge.branches(REPOSITORY)
    }

    /// How many pushes have reached the host.
    fn pushes(&self) -> usize {
        let requests = self.forge.requests();
        let is_push = |path: &str| path.ends_with("/git-receive-pack");
        requests.iter().filter(|it| is_push(&it.path)).count()
    }
}

#[test(needs(root, sandbox), limit = 240)]
async fn an_agent_fetches_and_pushes_without_a_token() {
    let world = World::start().await;
    world.forge.add_repository("acme/many.git", 60);
    let script = format!(
        "{CLONE} cat file; git push -q origin work:oubliette/work && git fetch -q && \
         git log -1 --format=%s origin/oubliette/work; \
         head -c 3000000 /dev/urandom > big; git add .; git commit -qm three; \
         git push -q origin work:oubliette/work && echo pushed three; \
         git push -q -f origin HEAD~1:oubliette/work && echo forced two; \
         git push -q origin work:oubliette/gone :oubliette/none 2>&1; \
         git push -q origin work:oubliette/gone && git push -q origin :oubliette/gone && echo deleted; \
         git clone -q https://git.test/acme/many.git many && cd many && git branch -r | wc -l"
    );
    let (_, text) = world.run(&script).await;
    for expected in [
        "from the forge",
        "two",
        "pushed three",
        "forced two",
        "deleted",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert!(text.ends_with("62"), "{text}");
    let branches = world.branches();
    assert!(
        branches.contains("refs/heads/oubliette/work "),
        "{branches}"
    );
    assert!(!branches.contains("gone"), "{branches}");
    let subject = ["log", "-1", "--format=%s", "oubliette/work"];
    assert_eq!(world.forge.git(REPOSITORY, &subject), "two\n");
    let requests = world.forge.requests();
    let login = format!("{USER}:{TOKEN}");
    assert!(
        requests.iter().all(|it| it.login.as_ref() == Some(&login)),
        "{requests:?}"
    );
    // Git compresses long requests of a fetch, and they stay so.
    let is_compressed = |it: &support::GitRequest| it.encoding.as_deref() == Some("gzip");
    assert!(requests.iter().any(is_compressed), "{requests:?}");
    let log = json!({ "project_id": world.project });
    let log = world.admin.call("network_log", log).await.ok().to_string();
    assert!(
        log.contains("git push") && log.contains("git fetch"),
        "{log}"
    );
    assert!(
        !log.contains("acme") && !log.contains("oubliette/work"),
        "{log}"
    );
}

#[test(needs(root, sandbox), limit = 240)]
async fn a_push_to_other_refs_is_refused_with_a_sentence_and_an_event() {
    let world = World::start().await;
    let before = world.branches();
    let script = format!("{CLONE} git push origin work:main 2>&1; echo exit $?");
    let (session, text) = world.run(&script).await;
    for expected in [
        "Oubliette: the project does not allow to push to refs/heads/main, only to refs/heads/oubliette/*.",
        "[remote rejected] work -> main (not allowed by the project)",
        "exit 1",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let mut turn = 1;
    for (push, ref_name) in [
        ("-f origin work:main", "main"),
        ("origin :main", "main"),
        ("origin work:refs/tags/v1", "v1"),
        ("origin work:refs/for/main", "refs/for/main"),
        ("origin work:oubliette/x work:main", "main"),
        ("--atomic origin work:oubliette/x work:main", "main"),
    ] {
        turn += 1;
        let script = format!("cd app; git push {push} 2>&1; echo exit $?");
        let text = run_again(&world.server, &world.project, &session, turn, &script).await;
        assert!(
            text.contains("not allowed by the project"),
            "{push}: {text}"
        );
        assert!(
            text.contains(ref_name) && text.ends_with("exit 1"),
            "{push}: {text}"
        );
    }
    // A large one, which git sends in pieces, is refused as well.
    turn += 1;
    let script = "cd app; head -c 3000000 /dev/urandom > big; git add .; git commit -qm big; \
                  git push origin work:main 2>&1; echo exit $?";
    let text = run_again(&world.server, &world.project, &session, turn, script).await;
    assert!(text.contains("not allowed by the project"), "{text}");
    assert_eq!(world.branches(), before);
    // Only the question whether it may push, which has no list, has reached the host.
    assert!(world.pushes() <= 1, "{:?}", world.forge.requests());
    let log = world.admin.log(&session).await;
    let denied = log.iter().find(|event| event["type"] == "network_denied");
    let denied = denied.unwrap_or_else(|| panic!("{log:?}"));
    assert_eq!(
        (&denied["host"], &denied["port"]),
        (&json!("git.test"), &json!(443))
    );
    assert!(
        denied["reason"].as_str().unwrap().contains("push_branches"),
        "{denied}"
    );
    // What the project allows from now on works in the session that runs.
    let change = json!({ "project_id": world.project, "push_branches": ["main"] });
    world.admin.call("project_update", change).await.ok();
    let script = "cd app; git push origin work:main 2>&1; echo exit $?";
    let pushed = eventually(WAIT, async || {
        turn += 1;
        let text = run_again(&world.server, &world.project, &session, turn, script).await;
        text.ends_with("exit 0")
    });
    assert!(pushed.await);
    assert_ne!(world.branches(), before);
}

#[test(needs(root, sandbox), limit = 240)]
async fn a_placeholder_works_only_where_it_was_given_and_only_for_git() {
    let world = World::start().await;
    let (session, _) = world.run(&format!("{HEADER} > header; true")).await;
    let header = world.server.workspace(&world.project).join("header");
    let header = std::fs::read_to_string(header).unwrap();
    let header = header.trim();
    assert!(header.starts_with("Authorization: Bearer oub_"), "{header}");
    let base = "http://127.0.0.1:3129/git/git.test/acme/app.git";
    let ask = |header: &str, path: &str| {
        format!("curl -sS -m 60 -o /dev/null -w '%{{http_code}}' -H '{header}' '{base}/{path}'")
    };
    let refs = "info/refs?service=git-upload-pack";
    let status = async |project: &str, line: String| {
        let ran = world.admin.exec(project, line).await;
        ran["stdout"].as_str().unwrap().to_owned()
    };
    let own = world.project.as_str();
    assert_eq!(status(own, ask(header, refs)).await, "200");
    let seen = world.forge.requests().len();
    let forged = format!("Authorization: Bearer oub_{}", "x".repeat(43));
    let real = format!("Authorization: Bearer {TOKEN}");
    let other = world.add_project("two", json!({})).await;
    for (project, header, path) in [
        (own, forged.as_str(), refs),
        (own, real.as_str(), refs),
        (other.as_str(), header, refs),
        (own, header, "info/refs"),
        (own, header, "info/refs?service=git-upload-archive"),
        (own, header, "HEAD"),
        (own, header, "info/lfs/locks"),
        (
            own,
            header,
            "%2e%2e/other.git/info/refs?service=git-upload-pack",
        ),
    ] {
        assert_eq!(status(project, ask(header, path)).await, "403", "{path}");
    }
    let lfs = ask(header, "info/lfs/objects/batch").replace("curl", "curl -d '{}'");
    assert_eq!(status(own, lfs).await, "403");
    assert_eq!(world.forge.requests().len(), seen);
    let ended = json!({ "session_id": session });
    world.admin.call("session_end", ended).await.ok();
    let is_over = eventually(WAIT, async || status(own, ask(header, refs)).await == "403");
    assert!(is_over.await);
}

#[test(needs(root, sandbox), limit = 240)]
async fn the_token_does_not_follow_a_redirect() {
    let world = World::start().await;
    let ca = std::fs::read(world.other.authority()).unwrap();
    std::fs::write(world.server.workspace(&world.project).join("ca.pem"), ca).unwrap();
    let script = "export GIT_SSL_CAINFO=/workspace/ca.pem; \
                  git ls-remote https://git.test/moved/app.git 2>&1; echo exit $?; \
                  git ls-remote https://other.test/none.git 2>&1; true";
    let (_, text) = world.run(script).await;
    assert!(
        text.contains("redirects to https://other.test/moved/app.git"),
        "{text}"
    );
    assert!(text.contains("exit 128"), "{text}");
    // The other host is there, and was asked only for what the agent itself wanted of it.
    let requests = world.other.requests();
    assert!(!requests.is_empty(), "{text}");
    for request in requests {
        assert!(request.path.starts_with("/none.git/"), "{request:?}");
        assert_eq!(request.login, None, "{request:?}");
    }
}

#[test(needs(root, sandbox), limit = 240)]
async fn the_token_is_nowhere_in_the_container() {
    let world = World::start().await;
    let script = format!(
        "{CLONE} git push -q origin work:oubliette/work; git push origin work:main 2>&1; env; \
         (cat > /dev/null; git version) & GIT_TRACE_CURL=1 GIT_CURL_VERBOSE=1 git fetch 2>&1; true"
    );
    let (session, text) = world.run(&script).await;
    assert!(text.contains("not allowed by the project"), "{text}");
    let encoded = BASE64_STANDARD.encode(format!("{USER}:{TOKEN}"));
    for secret in [TOKEN, encoded.as_str()] {
        // The agent still runs.
        assert_eq!(processes_with(&world.server, secret), Vec::<String>::new());
        let search = format!("grep -rlaF {secret} /tmp /root /workspace; true");
        let found = world.admin.exec(&world.project, search).await;
        assert_eq!(found["stdout"], "", "{found}");
        let log = event_texts(&world.admin.log(&session).await);
        assert!(!log.contains(secret), "{log}");
        assert!(!world.server.log().contains(secret));
        assert!(!text.contains(secret), "{text}");
    }
    assert!(
        !processes_with(&world.server, "oub_").is_empty(),
        "the search finds what is there"
    );
    let stored = world.server.home().join("credentials/forge.json");
    assert_eq!(
        files_with(world.server.home(), TOKEN),
        [stored.display().to_string()]
    );
    let gate = crate::network::gate_pid(world.server.home()).unwrap();
    for file in ["cmdline", "environ"] {
        let content = std::fs::read(format!("/proc/{gate}/{file}")).unwrap();
        assert!(!String::from_utf8_lossy(&content).contains(TOKEN));
    }
}

#[test(needs(root, sandbox), limit = 240)]
async fn a_credential_that_the_host_refuses_or_that_was_removed_says_so() {
    let world = World::start().await;
    let ask = format!("git ls-remote {ADDRESS} 2>&1; echo exit $?");
    let (session, text) = world.run(&ask).await;
    assert!(
        text.contains("refs/heads/main") && text.ends_with("exit 0"),
        "{text}"
    );
    let mut turn = 1;
    let add = json!({
        "name": "forge", "kind": "git", "value": "ghp_another0123456789", "base_url": "https://git.test",
    });
    world.admin.call("credential_add", add).await.ok();
    let mut said = async |expected: &str| {
        turn += 1;
        let text = run_again(&world.server, &world.project, &session, turn, &ask).await;
        text.contains(expected)
    };
    let refused = "Oubliette: git.test does not accept the credential of the project";
    assert!(eventually(WAIT, async || said(refused).await).await);
    let removed = json!({ "project_id": world.project, "credential_refs": [] });
    world.admin.call("project_update", removed).await.ok();
    let gone = "The credential may have been removed";
    assert!(eventually(WAIT, async || said(gone).await).await);
}

#[test(needs(root), each(docker), limit = 300)]
async fn git_in_docker_uses_the_gateway(_runtime: &str) {
    let image = support::userland();
    let config = format!("runtime = \"docker\"\n[container_types.base]\nimage = \"{image}\"\n");
    let world = World::start_with(&config).await;
    let script = format!(
        "{CLONE} cat file; git push -q origin work:oubliette/work && echo pushed; git push origin work:main 2>&1; echo exit $?"
    );
    let (_, text) = world.run(&script).await;
    assert!(
        text.contains("from the forge") && text.contains("pushed"),
        "{text}"
    );
    assert!(
        text.contains("not allowed by the project") && text.ends_with("exit 1"),
        "{text}"
    );
    assert!(world.branches().contains("refs/heads/oubliette/work "));
}
