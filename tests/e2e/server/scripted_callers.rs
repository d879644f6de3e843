//! Callers that know only `tools/list`. They guess as models do, and follow what errors say; the number of their
//! calls, and what they read, is bounded.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::{Map, Value, json};
use support::{Modern, Server, ServerOptions};

/// A goal is missed after this many calls.
const MAX_CALLS: usize = 8;
/// Of what a caller writes and reads; JSON has about four bytes per token.
const BYTES_PER_TOKEN: usize = 4;

/// A caller with what it knows by itself: the values of parameters, in its user's words.
struct Caller {
    client: Modern,
    tools: Vec<Value>,
    facts: Map<String, Value>,
    calls: usize,
    bytes: usize,
    /// How often an error led a goal to its end. A goal without any would be reached whatever errors say.
    corrections: BTreeMap<String, usize>,
    report: Vec<String>,
}

impl Caller {
    async fn new(client: Modern, facts: Value) -> Self {
        let tools = client.tools().await;
        let facts = facts.as_object().unwrap().clone();
        Self {
            client,
            tools,
            facts,
            calls: 0,
            bytes: 0,
            corrections: BTreeMap::new(),
            report: Vec::new(),
        }
    }

    /// The tool and action whose description has all of these words.
    fn choose(&self, words: &str) -> (String, Option<String>) {
        let has = |text: &str| {
            let text = text.to_lowercase();
            words.split(' ').all(|word| text.contains(word))
        };
        for tool in &self.tools {
            let name = tool["name"].as_str().unwrap().to_owned();
            let about = tool["description"].as_str().unwrap();
            let lines = about.lines().skip(1);
            for (verb, about) in lines.filter_map(|line| line.split_once(": ")) {
                if has(about) {
                    return (name, Some(verb.to_owned()));
                }
            }
            if !about.contains("Actions:") && has(about) {
                return (name, None);
            }
        }
        panic!("no tool's description has {words:?}");
    }

    /// Makes a call that may be wrong, and corrects it by its errors until it succeeds.
    async fn reach(&mut self, goal: &str, words: &str, guess: Value) -> Value {
        let (tool, action) = self.choose(words);
        let mut arguments = guess.as_object().unwrap().clone();
        if let Some(action) = action {
            arguments.insert("action".to_owned(), action.into());
        }
        let (calls, bytes) = (self.calls, self.bytes);
        self.corrections.entry(goal.to_owned()).or_default();
        for _ in 0..MAX_CALLS {
            let call = json!({ "name": tool, "arguments": arguments });
            self.calls += 1;
            self.bytes += call.to_string().len();
            let reply = self.client.send("tools/call", call).await;
            let content = &reply.body["result"]["content"][0]["text"];
            self.bytes += content.as_str().map_or(reply.text.len(), str::len);
            if !reply.is_error() {
                self.report.push(format!(
                    "{goal}: {} calls, {} tokens",
                    self.calls - calls,
                    (self.bytes - bytes) / BYTES_PER_TOKEN
                ));
                return reply.ok().clone();
            }
            let sentence = reply.sentence().to_owned();
            *self.corrections.entry(goal.to_owned()).or_default() += 1;
            assert!(
                self.correct(&mut arguments, &sentence),
                "{goal}: nothing to do about {sentence:?} in {arguments:?}"
            );
        }
        panic!("{goal}: not reached in {MAX_CALLS} calls: {arguments:?}");
    }

    /// Changes the arguments as an error says; whether that was possible.
    fn correct(&self, arguments: &mut Map<String, Value>, sentence: &str) -> bool {
        let quoted: Vec<&str> = sentence.split('`').skip(1).step_by(2).collect();
        let after = |words: &str| {
            let rest = sentence.split_once(words)?.1;
            rest.split('`').nth(1).map(str::to_owned)
        };
        if let Some(wrong) = after("unknown parameter ") {
            let Some(value) = arguments.remove(&wrong) else {
                return false;
            };
            let offered = after("did you mean ")
                .map(|near| vec![near])
                .unwrap_or_else(|| {
                    quoted
                        .iter()
                        .skip(1)
                        .map(|name| (*name).to_owned())
                        .collect()
                });
            // The parameter that has a word in common, if there is one.
            let like = |name: &&String| {
                name.split('_')
                    .any(|part| wrong.split('_').any(|own| own == part))
            };
            if let Some(name) = offered
                .iter()
                .find(like)
                .or_else(|| offered.first().filter(|_| offered.len() == 1))
            {
                arguments.insert(name.clone(), value);
            }
            return true;
        }
        if let Some(missing) = after("missing parameter ") {
            let Some(fact) = self.facts.get(&missing) else {
                return false;
            };
            arguments.insert(missing, fact.clone());
            return true;
        }
        if let Some(near) = after("did you mean ") {
            let wrong = quoted[0];
            for value in arguments.values_mut().filter(|value| **value == wrong) {
                *value = json!(near);
            }
            return true;
        }
        // "project already exists: `app` has the id ID; use it, …"
        if let Some(id) = sentence.split(" has the id ").nth(1) {
            let id = id.split(';').next().unwrap();
            *arguments = json!({ "action": "get", "project_id": id })
                .as_object()
                .unwrap()
                .clone();
            return true;
        }
        if sentence.contains("`create_workspace: true` creates it") {
            arguments.insert("create_workspace".to_owned(), json!(true));
            return true;
        }
        if sentence.contains("give `force`") {
            arguments.insert("force".to_owned(), json!(true));
            return true;
        }
        // "parameter `x` must be one of `a`, `b`, not `c`", "… must be a list, not …"
        if let Some(parameter) = after("parameter ") {
            let name = parameter.split(['[', '.']).next().unwrap();
            let known = self.facts.get(name).cloned();
            let value = if sentence.contains("must be a list") {
                arguments.get(name).map(|value| json!([value]))
            } else if sentence.contains("must be an object") {
                Some(json!([{ "project_id": arguments[name][0] }]))
            } else {
                known
            };
            return value.is_some_and(|value| arguments.insert(name.to_owned(), value).is_some());
        }
        false
    }

    /// Goes on waiting and answers what the agent asks, until the turn has ended.
    async fn finish(&mut self, goal: &str, mut result: Value) -> Value {
        for _ in 0..MAX_CALLS {
            if result["completed"] == true {
                return result;
            }
            let session = result["session_id"].clone();
            for request in result["pending_permissions"].as_array().unwrap() {
                let answer = json!({ "session_id": session, "request_id": request["request_id"] });
                self.reach(goal, "answer permission", answer).await;
            }
            for request in result["pending_caller_requests"].as_array().unwrap() {
                let answer = json!({ "session_id": session, "request_id": request["request_id"], "result": 4 });
                self.reach(goal, "answer an agent's call", answer).await;
            }
            let wait = json!({ "session_id": session, "wait_seconds": 50 });
            result = self.reach(goal, "go on waiting", wait).await;
        }
        panic!("{goal}: the turn did not end: {result}");
    }
}

fn git(directory: &std::path::Path, arguments: &[&str]) {
    let done = Command::new("git")
        .args(["-c", "user.name=a", "-c", "user.email=a@b"])
        .args(arguments)
        .current_dir(directory)
        .status()
        .unwrap();
    assert!(done.success(), "{arguments:?}");
}

#[test(needs(sandbox), limit = 300)]
async fn callers_that_know_only_the_list_of_tools_reach_ten_goals() {
    let server = Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n[projects]\nallow_local_clone = true\n".to_owned(),
        ..ServerOptions::default()
    });
    let source = server.home().join("source");
    std::fs::create_dir_all(&source).unwrap();
    std::fs::write(source.join("README"), "hello\n").unwrap();
    git(&source, &["init", "-q"]);
    git(&source, &["add", "."]);
    git(&source, &["commit", "-q", "-m", "first"]);
    let facts = json!({
        "decision": "allow", "turn": 1, "what": "files", "prompt": "/say hello", "project_id": "app",
        "cron_expr": "@daily", "name": "nightly",
    });
    let mut caller = Caller::new(server.admin(), facts).await;
    let list: usize = caller
        .tools
        .iter()
        .map(|tool| {
            let seen = json!({ "name": tool["name"], "description": tool["description"],
                "inputSchema": tool["inputSchema"] });
            seen.to_string().len()
        })
        .sum();

    let repository = format!("file://{}", source.display());
    let guess = json!({ "name": "app", "repo_url": repository });
    let made = caller
        .reach("a project from a repository", "clones repository", guess)
        .await;
    let project = made["project_id"].clone();

    let guess = json!({ "name": "app" });
    let found = caller
        .reach("a project that exists", "create a project", guess)
        .await;
    assert_eq!(found["project_id"], project);

    let guess = json!({ "project": "app", "task": "/sh echo more >> README; echo new > NEW", "prompt":
        "/sh echo more >> README; echo new > NEW", "wait_seconds": 50 });
    let ran = caller
        .reach("a task for an agent", "give agent prompt", guess)
        .await;
    let ran = caller.finish("a task for an agent", ran).await;
    assert_eq!(ran["changed"]["files"], 2, "{ran}");
    let session = ran["session_id"].as_str().unwrap().to_owned();

    let guess = json!({ "session": &session[..10] });
    let diff = caller
        .reach("the patch", "changed files patch", guess)
        .await;
    assert!(diff["diff"].as_str().unwrap().contains("+more"), "{diff}");

    let guess =
        json!({ "session": session, "message": "/sleep 2\n/say slow", "wait_seconds": 0.2 });
    let slow = caller
        .reach("a long turn", "send prompt session", guess)
        .await;
    let slow = caller.finish("a long turn", slow).await;
    assert_eq!(slow["text"], "slow", "{slow}");

    let guess = json!({ "project_id": "app", "prompt": "/ask may I\n/say asked", "autonomy": "off",
        "new_session": true, "wait_seconds": 50 });
    let asked = caller
        .reach("an agent that asks", "give agent prompt", guess)
        .await;
    let asked = caller.finish("an agent that asks", asked).await;
    assert_eq!(asked["completed"], true, "{asked}");

    let context = json!({ "caller_id": "me", "caller_tools": [{ "name": "add" }] });
    let guess = json!({ "project": "app", "prompt": "/tool me_add {}", "context": context,
        "new_session": true, "wait_seconds": 50 });
    let called = caller
        .reach("an agent that calls my tool", "give agent prompt", guess)
        .await;
    let called = caller.finish("an agent that calls my tool", called).await;
    assert_eq!(called["text"], "4", "{called}");

    let guess = json!({ "project_id": "ap", "cmd": "cat NEW", "command": "cat NEW" });
    let tested = caller
        .reach("a command", "run command exit code", guess)
        .await;
    assert_eq!(tested["stdout"], "new\n", "{tested}");

    let guess = json!({ "project_id": "app", "workspace_id": "second", "wait_seconds": 50 });
    let parallel = caller
        .reach("work beside it", "give agent prompt", guess)
        .await;
    let parallel = caller.finish("work beside it", parallel).await;
    assert_eq!(parallel["workspace_created"], true, "{parallel}");

    let guess = json!({ "session_id": &session[..12], "what": "everything", "turn": 0 });
    let undone = caller.reach("undo", "set back files", guess).await;
    assert_eq!(undone["files_removed"], 1, "{undone}");

    let guess = json!({ "targets": "app", "prompt": "/say hello" });
    let planned = caller.reach("a schedule", "prompt set times", guess).await;
    assert_eq!(planned["targets"][0]["project_id"], project, "{planned}");

    let tokens = caller.bytes / BYTES_PER_TOKEN;
    eprintln!("the list: about {} tokens", list / BYTES_PER_TOKEN);
    for line in &caller.report {
        eprintln!("{line}");
    }
    eprintln!("corrections: {:?}", caller.corrections);
    assert!(caller.corrections.len() >= 10, "{:?}", caller.corrections);
    // Without its error text none of the goals is reached: each call before the last was wrong.
    for (goal, corrections) in &caller.corrections {
        assert!(*corrections > 0, "no error text led to {goal:?}");
    }
    eprintln!("all: {} calls, about {tokens} tokens", caller.calls);
    assert!(
        caller.calls <= 40,
        "{} calls: {:#?}",
        caller.calls,
        caller.report
    );
    assert!(tokens <= 8000, "{tokens} tokens: {:#?}", caller.report);
}
