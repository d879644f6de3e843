//! Git in containers: agents fetch and push with placeholders, only to branches that the project allows, and no real
//! token is in a container.

mod refusals;
mod secrets;

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use support::network::{NameServer, loopback_address};
use support::{GitServer, Modern, RunAs, Server, ServerOptions, eventually};

use super::{run, run_again};
use crate::credentials::scripted_agents;

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
        Self::start_with("runtime = \"sandbox\"\n", None).await
    }

    async fn start_with(config: &str, run_as: Option<RunAs>) -> Self {
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
            run_as,
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

    /// The pushes that have reached the host, by their size. Git asks with four bytes, without a list, whether it may send
    /// a large push.
    fn pushes(&self) -> Vec<usize> {
        let requests = self.forge.requests();
        let is_push = |it: &&support::GitRequest| it.path.ends_with("/git-receive-pack");
        let pushes = requests.iter().filter(is_push);
        pushes.map(|it| it.body_bytes).collect()
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
    let world = World::start_with(&config, None).await;
    let script = format!(
        "{CLONE} cat file; git push -q origin work:oubliette/work && echo pushed; git push origin work:main 2>&1; echo exit $?"
    );
    let (_, text) = world.run(&script).await;
    assert!(
        text.contains("from the forge") && text.contains("pushed"),
        "{text}"
    );
    assert!(
        text.contains("not allowed, only refs/heads/oubliette/*") && text.ends_with("exit 1"),
        "{text}"
    );
    assert!(world.branches().contains("refs/heads/oubliette/work "));
}

#[test(needs(root, sandbox), limit = 240)]
async fn git_of_a_server_without_root_uses_the_gateway() {
    let user = RunAs {
        uid: 54_329,
        gid: 54_329,
        group: 54_329,
    };
    let world = World::start_with("runtime = \"sandbox\"\n", Some(user)).await;
    let script = format!(
        "{CLONE} cat file; git push -q origin work:oubliette/work && echo pushed; git push origin work:main 2>&1; echo exit $?"
    );
    let (_, text) = world.run(&script).await;
    assert!(
        text.contains("from the forge") && text.contains("pushed"),
        "{text}"
    );
    assert!(
        text.contains("not allowed, only refs/heads/oubliette/*") && text.ends_with("exit 1"),
        "{text}"
    );
    assert!(world.branches().contains("refs/heads/oubliette/work "));
}

#[test(needs(root, sandbox), limit = 240)]
async fn every_version_of_the_protocol_fetches_and_pushes() {
    let world = World::start().await;
    let mut script = String::new();
    for version in ["0", "1", "2"] {
        script += &format!(
            "export GIT_CONFIG_PARAMETERS=\"'protocol.version={version}'\"; (mkdir v{version}; cd v{version}; {CLONE} \
             git push -q origin work:oubliette/v{version} && git fetch -q && echo fetched {version}; \
             git push origin work:main 2>&1 | grep -c 'not allowed, only'; \
             git clone -q --depth 1 https://git.test/acme/app.git shallow && cd shallow && git checkout -q -b s && \
             git commit -q --allow-empty -m s && git push -q origin s:oubliette/s{version} && echo shallow {version}); "
        );
    }
    let (_, text) = world.run(&script).await;
    let branches = world.branches();
    for version in ["0", "1", "2"] {
        for expected in [format!("fetched {version}1"), format!("shallow {version}")] {
            assert!(text.contains(&expected), "{expected}: {text}");
        }
        for name in ["v", "s"] {
            let expected = format!("refs/heads/oubliette/{name}{version} ");
            assert!(branches.contains(&expected), "{expected}: {branches}");
        }
    }
    let protocols = world.forge.requests();
    let protocols = protocols.iter().filter_map(|it| it.protocol.as_deref());
    let protocols: std::collections::BTreeSet<&str> = protocols.collect();
    assert!(protocols.contains("version=2"), "{protocols:?}");
}

#[test(needs(root, sandbox), limit = 240)]
async fn git_works_again_after_the_gate_and_the_server_were_killed() {
    let mut world = World::start().await;
    let script = format!("{CLONE} git push -q origin work:oubliette/a && echo pushed");
    let (session, text) = world.run(&script).await;
    assert!(text.contains("pushed"), "{text}");
    let gate = crate::network::gate_pid(world.server.home()).unwrap();
    kill_process(Pid::from_raw(gate.cast_signed()).unwrap(), Signal::KILL).unwrap();
    let mut turn = 1;
    let script = "cd app; git push origin work:oubliette/b 2>&1 && git push origin :oubliette/b && echo pushed again";
    let works = eventually(WAIT, async || {
        turn += 1;
        let text = run_again(&world.server, &world.project, &session, turn, script).await;
        text.contains("pushed again")
    });
    assert!(works.await);
    world.server.kill();
    world.server.start_again();
    world.admin = world.server.admin();
    let works = eventually(WAIT, async || {
        turn += 1;
        let text = run_again(&world.server, &world.project, &session, turn, script).await;
        text.contains("pushed again")
    });
    assert!(works.await);
}
