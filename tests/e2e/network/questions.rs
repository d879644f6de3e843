//! Questions about hosts that no rule names: who is asked, and what each answer does.

use serde_json::{Value, json};
use support::network::WebServer;
use support::{Modern, Pty, Server, http, run_cli, stderr};

use super::{NameServer, log_of, loopback_address, policy_project, project_with, proxy_status};

/// A project whose caller is asked, and stand-ins for hosts.
pub(super) struct Bench {
    pub(super) server: Server,
    pub(super) admin: Modern,
    pub(super) project: String,
    pub(super) names: NameServer,
    pub(super) web: WebServer,
    runtime: String,
}

impl Bench {
    pub(super) async fn start(runtime: &str) -> Self {
        let (names, address) = (NameServer::start(), loopback_address());
        for name in ["new.test", "other.test", "late.test"] {
            names.set(name, address);
        }
        let web = WebServer::start(address, 80);
        let (server, admin, project) = project_with(&names, runtime, asking(&web)).await;
        Self {
            server,
            admin,
            project,
            names,
            web,
            runtime: runtime.to_owned(),
        }
    }

    /// A line of the demo agent that fetches from a host.
    pub(super) fn fetch(&self, host: &str) -> String {
        let program = match self.runtime.as_str() {
            "docker" => "wget -q -O -",
            _ => "curl -sS -f -m 100",
        };
        format!("/sh {program} http://{host}/")
    }

    /// Waits for the question about a host in the log of a session.
    pub(super) async fn question(&self, session: &str, host: &str) -> Value {
        let is_asked =
            |event: &Value| event["type"] == "permission_request" && event["input"]["host"] == host;
        let log = self.admin.follow(session, is_asked).await;
        log.last().unwrap().clone()
    }

    pub(super) async fn permit(&self, session: &str, question: &Value, decision: &str) {
        let answer = answer(session, question, decision);
        self.admin.call("session_permit", answer).await.ok();
    }

    pub(super) async fn text(&self, session: &str, turn: usize) -> String {
        let completion = self.admin.turn(session, turn).await;
        completion["text"].as_str().unwrap().to_owned()
    }

    /// The events of a session that have this type.
    pub(super) async fn events(&self, session: &str, kind: &str) -> Vec<Value> {
        let log = self.admin.log(session).await;
        let own = log.into_iter().filter(|event| event["type"] == kind);
        own.collect()
    }
}

/// Only the stand-ins' address is allowed; their names are not.
fn asking(web: &WebServer) -> Value {
    json!({ "preset": "strict", "ask": true, "allow": [web.address()], "deny": ["evil.test"] })
}

pub(super) fn answer(session: &str, question: &Value, decision: &str) -> Value {
    json!({ "session_id": session, "request_id": question["request_id"], "decision": decision })
}

#[test(each(sandbox, docker), limit = 240)]
async fn a_host_is_allowed_once_for_the_session_or_for_the_project(runtime: &str) {
    let bench = Bench::start(runtime).await;
    let (admin, project) = (&bench.admin, &bench.project);
    let check = json!({ "project_id": project, "host": "new.test", "port": 80 });
    let checked = admin.call("network_check", check).await;
    assert_eq!(checked.ok()["decision"], "ask", "{}", checked.text);

    let session = admin.spawn(project, &bench.fetch("new.test")).await;
    let question = bench.question(&session, "new.test").await;
    assert_eq!(question["kind"], "network", "{question}");
    assert_eq!(question["input"]["port"], 80);
    assert!(question["title"].as_str().unwrap().contains("new.test:80"));
    let waiting = admin.status(&session, "waiting").await;
    assert_eq!(waiting["waiting_for"]["kind"], "network", "{waiting}");
    // Nothing about the name has left the machine.
    assert!(!bench.names.questions().contains(&"new.test".to_owned()));
    bench.permit(&session, &question, "allow").await;
    let text = bench.text(&session, 1).await;
    assert!(text.contains("hello from new.test"), "{text}");

    // For the session: the next turn asks nothing, and a session after it does.
    admin.message(&session, &bench.fetch("other.test")).await;
    let question = bench.question(&session, "other.test").await;
    bench.permit(&session, &question, "allow_always").await;
    for turn in 2..4 {
        let text = bench.text(&session, turn).await;
        assert!(text.contains("hello from other.test"), "{text}");
        admin.message(&session, &bench.fetch("other.test")).await;
    }
    bench.text(&session, 4).await;
    assert_eq!(bench.events(&session, "permission_request").await.len(), 2);
    let end = json!({ "session_id": session });
    admin.call("session_end", end).await.ok();
    let new = json!({ "new_session": true });
    let second = admin
        .spawn_with(project, &bench.fetch("other.test"), new.clone())
        .await;
    let question = bench.question(&second, "other.test").await;

    // For the project, by a rule that stays.
    bench.permit(&second, &question, "allow_project").await;
    let text = bench.text(&second, 1).await;
    assert!(text.contains("hello from other.test"), "{text}");
    let got = admin
        .call("project_get", json!({ "project_id": project }))
        .await;
    let allow = got.ok()["network_policy"]["allow"].to_string();
    assert!(allow.contains("other.test:80"), "{allow}");
    admin
        .call("session_end", json!({ "session_id": second }))
        .await
        .ok();
    let third = admin
        .spawn_with(project, &bench.fetch("other.test"), new)
        .await;
    bench.text(&third, 1).await;
    assert_eq!(bench.events(&third, "permission_request").await.len(), 0);

    let answers = bench.events(&session, "permission_answer").await;
    let decisions: Vec<_> = answers
        .iter()
        .map(|it| (&it["decision"], &it["by"]))
        .collect();
    let by = json!("caller");
    assert_eq!(
        decisions,
        [(&json!("allow"), &by), (&json!("allow_always"), &by)]
    );
    let audit = admin.call("audit_list", json!({ "limit": 200 })).await;
    let entries = audit.ok()["entries"].as_array().unwrap().clone();
    let count = |name: &str| {
        let named = entries.iter().filter(|entry| entry["operation"] == name);
        named.count()
    };
    assert_eq!((count("session_permit"), count("network_allow")), (3, 1));
    let opened = log_of(admin, project, "opened").await;
    let rules: Vec<_> = opened.iter().map(|entry| entry["rule"].as_str()).collect();
    assert!(
        rules.contains(&Some("allowed by a caller who was asked")),
        "{rules:?}"
    );
    let metrics = http().get(format!("{}/metrics", bench.server.base()));
    let metrics = metrics.bearer_auth(bench.server.admin_key()).send().await;
    let metrics = metrics.unwrap().text().await.unwrap();
    for expected in [
        "oubliette_network_questions_total{outcome=\"allow\"} 1\n",
        "oubliette_network_questions_total{outcome=\"allow_always\"} 1\n",
        "oubliette_network_questions_total{outcome=\"allow_project\"} 1\n",
        "oubliette_network_questions 0\n",
    ] {
        assert!(metrics.contains(expected), "{metrics}");
    }
}

#[test(each(sandbox, docker))]
async fn a_denied_host_fails_at_once_and_is_not_asked_about_again(runtime: &str) {
    let bench = Bench::start(runtime).await;
    let admin = &bench.admin;
    let twice = format!("{0}\n{0}", bench.fetch("new.test"));
    let session = admin.spawn(&bench.project, &twice).await;
    let question = bench.question(&session, "new.test").await;
    bench.permit(&session, &question, "deny").await;
    let text = bench.text(&session, 1).await;
    assert!(!text.contains("hello"), "{text}");
    assert!(!bench.names.questions().contains(&"new.test".to_owned()));
    assert_eq!(bench.events(&session, "permission_request").await.len(), 1);
    let denied = bench.events(&session, "network_denied").await;
    assert_eq!(denied.len(), 1, "{denied:?}");
    let reason = denied[0]["reason"].as_str().unwrap();
    assert!(
        reason.contains("a caller who was asked denied it"),
        "{reason}"
    );
    assert!(
        reason.contains("`network_allow` of new.test:80"),
        "{reason}"
    );

    // A rule of a person comes before the answer.
    let allow = json!({ "project_id": bench.project, "host": "new.test" });
    admin.call("network_allow", allow).await.ok();
    admin.message(&session, &bench.fetch("new.test")).await;
    let text = bench.text(&session, 2).await;
    assert!(text.contains("hello from new.test"), "{text}");
}

#[test(each(sandbox))]
async fn connections_to_one_host_are_one_question_and_each_port_is_another(runtime: &str) {
    let bench = Bench::start(runtime).await;
    let _web = WebServer::start(bench.web.address(), 8080);
    let line = "/sh for n in 1 2 3 4 5 6; do curl -sS -m 100 http://new.test/ & done; \
                curl -sS -m 100 http://new.test:8080/; wait";
    let session = bench.admin.spawn(&bench.project, line).await;
    let mut ports = Vec::new();
    let asked = |event: &Value| event["type"] == "permission_request";
    let count = std::cell::Cell::new(0);
    let log = bench.admin.follow(&session, |event| {
        count.set(count.get() + usize::from(asked(event)));
        count.get() == 2
    });
    for question in log.await.iter().filter(|event| asked(event)) {
        ports.push(question["input"]["port"].clone());
        bench.permit(&session, question, "allow").await;
    }
    ports.sort_by_key(Value::as_u64);
    assert_eq!(ports, [json!(80), json!(8080)]);
    let text = bench.text(&session, 1).await;
    assert_eq!(text.matches("hello from new.test").count(), 7, "{text}");
    assert_eq!(bench.events(&session, "permission_request").await.len(), 2);
}

#[test(each(sandbox))]
async fn denied_hosts_private_addresses_and_containers_without_a_turn_are_not_asked_about(
    runtime: &str,
) {
    let bench = Bench::start(runtime).await;
    // No turn runs, so that no caller can be asked.
    let status = proxy_status(&bench.admin, &bench.project, "http://new.test/").await;
    assert_eq!(status, "403 000");
    let denied = log_of(&bench.admin, &bench.project, "denied").await;
    let rule = denied[0]["rule"].as_str().unwrap();
    assert!(rule.contains("no turn runs"), "{denied:?}");
    let line = "/sh for it in evil.test 10.0.0.1 169.254.169.254 127.0.0.1 '[::1]'; do \
                curl -g -s -m 20 -o /dev/null -w '%{http_code} ' --noproxy '' -x http://127.0.0.1:3128 http://$it/; done";
    let session = bench.admin.spawn(&bench.project, line).await;
    let text = bench.text(&session, 1).await;
    assert_eq!(text.matches("403").count(), 5, "{text}");
    assert_eq!(bench.events(&session, "permission_request").await.len(), 0);
}

#[test(each(sandbox))]
async fn wrong_answers_get_a_sentence_and_change_nothing(runtime: &str) {
    let bench = Bench::start(runtime).await;
    let (admin, project) = (&bench.admin, &bench.project);
    let session = admin.spawn(project, &bench.fetch("new.test")).await;
    let question = bench.question(&session, "new.test").await;
    let own = bench
        .server
        .with_key(&admin.token(&format!("project:{project}")).await);
    let refused = own
        .call(
            "session_permit",
            answer(&session, &question, "allow_project"),
        )
        .await;
    assert_eq!(refused.code(), -32002, "{}", refused.text);
    assert!(refused.text.contains("allow_project"), "{}", refused.text);
    let with = |name: &str, value: Value| {
        let mut wrong = answer(&session, &question, "allow");
        wrong[name] = value;
        wrong
    };
    for (wrong, expected) in [
        (with("decision", json!("perhaps")), "allow_project"),
        (with("request_id", json!("nothing")), "waiting_for"),
        (with("max_cost_usd", json!(5.0)), "kind `budget`"),
    ] {
        let refused = admin.call("session_permit", wrong).await;
        assert!(refused.is_error(), "{}", refused.text);
        assert!(refused.sentence().contains(expected), "{}", refused.text);
    }
    // A project token may allow it once.
    let allow = answer(&session, &question, "allow");
    own.call("session_permit", allow.clone()).await.ok();
    let late = admin.call("session_permit", allow).await;
    assert!(late.is_error(), "{}", late.text);
    let text = bench.text(&session, 1).await;
    assert!(text.contains("hello from new.test"), "{text}");

    let off = json!({ "new_session": true, "autonomy": "off" });
    let other = admin.spawn_with(project, "/ask May I?", off).await;
    let is_asked = |event: &Value| event["type"] == "permission_request";
    let log = admin.follow(&other, is_asked).await;
    let permission = log.last().unwrap().clone();
    let wrong = answer(&other, &permission, "allow_project");
    let refused = admin.call("session_permit", wrong).await;
    assert!(
        refused.sentence().contains("kind `network`"),
        "{}",
        refused.text
    );
}

#[test(each(sandbox))]
async fn no_agent_answers_a_question_about_a_host(runtime: &str) {
    let bench = Bench::start(runtime).await;
    let admin = &bench.admin;
    let session = admin.spawn(&bench.project, &bench.fetch("new.test")).await;
    let question = bench.question(&session, "new.test").await;
    let second = policy_project(admin, "two", json!({})).await;
    let scope = json!({ "project_id": second, "agent_scope": "admin" });
    admin.call("project_update", scope).await.ok();
    let tool = |decision: &str| {
        let answer = answer(&session, &question, decision);
        format!("/tool oubliette_session_permit {answer}")
    };
    let attempts = format!("{}\n{}", tool("allow_project"), tool("allow"));
    let other = admin.spawn(&second, &attempts).await;
    admin.turn(&other, 1).await;
    let results = bench.events(&other, "tool_result").await;
    let refusals = results
        .iter()
        .filter(|result| result.to_string().contains("an agent may not allow hosts"));
    assert_eq!(refusals.count(), 2, "{results:?}");
    assert_eq!(admin.session(&session).await["status"], "waiting");
    bench.permit(&session, &question, "allow").await;
    bench.text(&session, 1).await;
}

#[test(each(sandbox))]
async fn a_rule_that_a_person_adds_answers_the_question(runtime: &str) {
    let bench = Bench::start(runtime).await;
    let session = bench
        .admin
        .spawn(&bench.project, &bench.fetch("new.test"))
        .await;
    bench.question(&session, "new.test").await;
    let allowed = run_cli(
        bench.server.home(),
        &["network", "allow", "one", "new.test:80"],
    )
    .await;
    assert_eq!(allowed.status.code(), Some(0), "{}", stderr(&allowed));
    let text = bench.text(&session, 1).await;
    assert!(text.contains("hello from new.test"), "{text}");
    let answers = bench.events(&session, "permission_answer").await;
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert_eq!(
        (&answers[0]["decision"], &answers[0]["by"]),
        (&json!("allow"), &json!("rule"))
    );
}

#[test(each(sandbox), multi_thread)]
async fn a_run_at_a_terminal_asks_about_hosts(runtime: &str) {
    let bench = Bench::start(runtime).await;
    let home = bench.server.home().to_owned();
    let prompt = format!("{}\n{}", bench.fetch("new.test"), bench.fetch("other.test"));
    tokio::task::spawn_blocking(move || {
        let mut pty = Pty::run(&home, (30, 120), &["run", "--project", "one", &prompt]);
        pty.wait_for("Connect to new.test:80");
        pty.wait_for("Allow it? [y]es, once, for the [s]ession, for the [p]roject, [n]o:");
        // Not an answer to this question.
        pty.type_keys("a\n");
        pty.wait_for("Allow it?");
        pty.type_keys("p\n");
        pty.wait_for("allowed for the project");
        pty.wait_for("Connect to other.test:80");
        pty.wait_for("Allow it?");
        pty.type_keys("y\n");
        pty.wait_for("hello from other.test");
        assert_eq!(pty.exit_code(), Some(0), "{}", pty.shown());
    })
    .await
    .unwrap();
    let got = json!({ "project_id": bench.project });
    let got = bench.admin.call("project_get", got).await;
    let allow = got.ok()["network_policy"]["allow"].to_string();
    assert!(
        allow.contains("new.test:80") && !allow.contains("other"),
        "{allow}"
    );
}
