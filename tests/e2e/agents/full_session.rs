//! One session with a real agent and a scripted model in a real container, through every kind of kill.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use support::{Llm, Modern, Server, agents, eventually};

/// Far longer than anything here takes, on a busy machine too.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// An agent is not killed because a busy machine lets it stop late.
/// Without a budget, for which calls of models would wait for the server.
const SETTINGS: &str = "[sessions]\ncancel_seconds = 60\n[limits]\nmax_cost_usd = 1000000.0\n";

// Not codex: an interrupt leaves its command running. Not gemini: it does not report the output of
// commands. `kills.rs` has both.
#[test(each(claude, droid, opencode), needs(sandbox), limit = 300)]
async fn an_agent_in_the_sandbox_works_and_survives_every_kill(agent: &'static str) {
    works_and_survives(agent, "sandbox").await;
}

#[test(each(claude, droid, opencode), needs(docker), limit = 300)]
async fn an_agent_in_docker_works_and_survives_every_kill(agent: &'static str) {
    works_and_survives(agent, "docker").await;
}

/// One session, because agents take seconds to start.
async fn works_and_survives(agent: &'static str, runtime: &str) {
    let (server, llm) = agents::server_with(&[agent], runtime, SETTINGS);
    let admin = server.admin();
    let project = agents::project(&server, agent, &llm, json!({})).await;
    let prompt = "say Hello.\nuse bash: printf 'made by %d\\n' 42 | tee made.txt";
    let session = admin.spawn(&project, prompt).await;
    let mut conversation = Conversation {
        agent,
        admin,
        project,
        session,
        turns: 1,
        server,
        llm,
    };
    conversation.runs_a_command_and_reports_usage().await;
    conversation.keeps_its_context().await;
    conversation.can_be_interrupted().await;
    conversation.outlives_its_server().await;
    conversation.asks_after_a_kill_between_turns().await;
    conversation.resumes_after_a_kill_in_a_turn().await;
}

/// A session with a real agent.
struct Conversation {
    agent: &'static str,
    admin: Modern,
    project: String,
    session: String,
    turns: usize,
    server: Server,
    llm: Llm,
}

impl Conversation {
    async fn runs_a_command_and_reports_usage(&mut self) {
        let completion = self.ended().await;
        assert_eq!(completion["stop_reason"], "end_turn", "{completion}");
        let text = completion["text"].as_str().unwrap();
        let expected = "Hello.\n\nThe tool said: made by 42";
        assert!(text.starts_with(expected), "{text}");
        let made = std::fs::read_to_string(self.file("made.txt")).unwrap();
        assert_eq!(made, "made by 42\n");
        let log = self.admin.log(&self.session).await;
        let call = log.iter().find(|e| e["type"] == "tool_call").unwrap();
        assert_eq!(call["kind"], "execute", "{call}");
        let command = &call["input"]["command"];
        assert_eq!(
            *command, "printf 'made by %d\\n' 42 | tee made.txt",
            "{call}"
        );
        let result = log.iter().find(|e| e["type"] == "tool_result").unwrap();
        assert_eq!(result["tool_call_id"], call["tool_call_id"]);
        assert_eq!(result["status"], "completed", "{result}");
        let output = result["output"].as_str().unwrap();
        assert!(output.contains("made by 42"), "{result}");
        let seen = self.admin.session(&self.session).await;
        let tokens = |kind: &str| seen["usage"][kind].as_u64().unwrap();
        assert!(
            tokens("input_tokens") >= support::llm::INPUT_TOKENS,
            "{seen}"
        );
        assert!(
            tokens("output_tokens") >= support::llm::OUTPUT_TOKENS,
            "{seen}"
        );
        // Two calls of the model at least, at the prices of the configuration; Claude has its own.
        let cost = seen["cost_usd"].as_f64().unwrap();
        let max_cost = if self.agent == "claude" { 0.1 } else { 0.001 };
        assert!((0.00027..max_cost).contains(&cost), "{seen}");
    }

    async fn keeps_its_context(&mut self) {
        let completion = self.run_turn("What came before?").await;
        assert_eq!(
            completion["text"],
            "You said: What came before? (message 2)"
        );
        let last = self.llm.steps().pop().unwrap();
        assert!(last.mentions("tee made.txt") && last.mentions("made by 42"));
    }

    async fn can_be_interrupted(&mut self) {
        self.send("say Thinking.\nstall").await;
        self.llm.wait_for("say Thinking.");
        self.interrupt().await;

        let command = "touch started; sleep 4321";
        self.send(&format!("say Wait.\nuse bash: {command}")).await;
        self.appears("started").await;
        self.interrupt().await;
        self.is_gone("[s]leep 4321").await;
        let log = self.last_turn().await;
        let results = log.iter().filter(|e| e["type"] == "tool_result").count();
        assert_eq!(results, 1, "{log:#?}");
        let completion = self.run_turn("And now?").await;
        assert!(completion["text"].as_str().unwrap().contains("And now?"));
    }

    async fn interrupt(&self) {
        let interrupted = json!({ "session_id": self.session });
        let interrupted = self.admin.call("session_interrupt", interrupted).await;
        assert_eq!(interrupted.ok()["status"], "idle", "{}", interrupted.text);
        assert_eq!(self.ended().await["stop_reason"], "cancelled");
        let log = self.last_turn().await;
        let ended = |e: &Value| {
            e["message"]
                .as_str()
                .is_some_and(|m| m.contains("was ended"))
        };
        assert!(
            !log.iter().any(ended),
            "the agent had to be killed: {log:#?}"
        );
    }

    async fn outlives_its_server(&mut self) {
        let undisturbed = self.round(1, false).await;
        let disturbed = self.round(2, true).await;
        assert_eq!(shape(&disturbed), shape(&undisturbed));
        let marks = std::fs::read_to_string(self.file("marks")).unwrap();
        assert_eq!(marks, "begun 1\nended 1\nbegun 2\nended 2\n");
        let log = self.admin.log(&self.session).await;
        let indexes: Vec<i64> = log.iter().map(|e| e["index"].as_i64().unwrap()).collect();
        assert_eq!(indexes, (0..log.len() as i64).collect::<Vec<_>>());
        assert!(log.iter().all(|e| e["resumed_by"].is_null()), "{log:#?}");
    }

    /// A turn in which the model and the shell wait; its events. With `kills` the server dies while
    /// the one does and while the other does, and the agent continues without it.
    async fn round(&mut self, n: u32, kills: bool) -> Vec<Value> {
        self.send(&format!(
            "Round {n}.\nsay Before.\nhold\nuse bash: echo begun {n} >> marks; \
             until [ -e go{n} ]; do sleep 0.05; done; echo ended {n} >> marks; printf 'done %d\\n' 4{n}\n\
             say After."
        ))
        .await;
        let round = format!("Round {n}.");
        self.llm.wait_for(&round);
        if kills {
            self.server.kill();
            self.server.start_again();
        }
        self.llm.release();
        self.appears_in("marks", &format!("begun {n}")).await;
        if kills {
            self.server.kill();
        }
        std::fs::write(self.file(&format!("go{n}")), "").unwrap();
        // The agent asks its model again without a prompt.
        self.llm.wait_for(&format!("done {}", 40 + n));
        if kills {
            self.server.start_again();
        }
        let completion = self.ended().await;
        assert_eq!(completion["stop_reason"], "end_turn", "{completion}");
        self.last_turn().await
    }

    async fn asks_after_a_kill_between_turns(&mut self) {
        let careful = json!({ "project_id": self.project, "autonomy": "off" });
        self.admin.call("project_update", careful).await.ok();
        self.kill_agent().await;
        let noticed = |event: &Value| {
            let message = event["message"].as_str().unwrap_or_default();
            message.contains("the next message starts it again")
        };
        self.admin.follow(&self.session, noticed).await;
        assert_eq!(self.admin.session(&self.session).await["status"], "idle");
        self.send("use bash: echo allowed > allowed").await;
        self.permit("allow").await;
        assert_eq!(self.ended().await["stop_reason"], "end_turn");
        assert_eq!(
            std::fs::read_to_string(self.file("allowed")).unwrap(),
            "allowed\n"
        );
        self.resumed(1).await;
        let last = self.llm.steps().pop().unwrap();
        assert!(last.mentions("tee made.txt") && last.mentions("Round 2."));

        self.send("use bash: echo denied > denied").await;
        self.permit("deny").await;
        self.ended().await;
        assert!(!self.file("denied").exists());
        let log = self.last_turn().await;
        let result = log.iter().find(|e| e["type"] == "tool_result").unwrap();
        assert_eq!(result["status"], "failed", "{result}");
    }

    async fn resumes_after_a_kill_in_a_turn(&mut self) {
        let bold = json!({ "project_id": self.project, "autonomy": "high" });
        self.admin.call("project_update", bold).await.ok();
        self.send("say Half.\nuse bash: touch working; sleep 5432")
            .await;
        self.permit("allow").await;
        self.appears("working").await;
        self.kill_agent().await;
        let completion = self.ended().await;
        assert_eq!(completion["stop_reason"], "error", "{completion}");
        assert_eq!(completion["text"], "Half.", "{completion}");
        let error = completion["error"].as_str().unwrap();
        assert!(error.contains("killed by signal 9"), "{error}");
        self.admin.status(&self.session, "failed").await;
        self.is_gone("[s]leep 5432").await;
        let completion = self.run_turn("say Back.\nuse bash: cat made.txt").await;
        assert_eq!(completion["stop_reason"], "end_turn", "{completion}");
        assert!(completion["text"].as_str().unwrap().contains("made by 42"));
        self.resumed(2).await;
        let last = self.llm.steps().pop().unwrap();
        assert!(last.mentions("Round 2.") && last.mentions("say Half."));
        self.admin.status(&self.session, "idle").await;
    }

    async fn send(&mut self, prompt: &str) {
        self.admin.message(&self.session, prompt).await;
        self.turns += 1;
    }

    /// The completion of the last turn.
    async fn ended(&self) -> Value {
        self.admin.turn(&self.session, self.turns).await
    }

    async fn run_turn(&mut self, prompt: &str) -> Value {
        self.send(prompt).await;
        self.ended().await
    }

    /// The events of the last turn.
    async fn last_turn(&self) -> Vec<Value> {
        let mut log = self.admin.log(&self.session).await;
        let start = log.iter().rposition(|e| e["type"] == "prompt").unwrap();
        log.split_off(start)
    }

    /// A file of the workspace.
    fn file(&self, name: &str) -> PathBuf {
        self.server.workspace(&self.project).join(name)
    }

    async fn appears(&self, name: &str) {
        self.appears_in(name, "").await;
    }

    async fn appears_in(&self, name: &str, text: &str) {
        let file = self.file(name);
        let appeared = eventually(WAIT_TIMEOUT, async || {
            std::fs::read_to_string(&file).is_ok_and(|found| found.contains(text))
        });
        assert!(
            appeared.await,
            "no {text:?} in {name}: {:#?}",
            self.last_turn().await
        );
    }

    async fn inside(&self, command: &str) -> String {
        let command = json!({ "project_id": self.project, "command": command });
        let done = self.admin.call("container_exec", command).await;
        done.ok()["stdout"].as_str().unwrap().to_owned()
    }

    /// Waits until no process of the container is so.
    async fn is_gone(&self, pattern: &str) {
        let gone = eventually(WAIT_TIMEOUT, async || {
            let command = format!("ps ax -o args= | grep -- '{pattern}'");
            self.inside(&command).await.is_empty()
        });
        assert!(gone.await, "{pattern} runs on");
    }

    async fn kill_agent(&self) {
        let killed = self
            .inside(&format!(
                "ps ax -o pid=,args= | awk '/[a]gents\\/{}\\/bin/ {{ print $1 }}' | while read pid; \
                 do kill -9 $pid && echo $pid; done",
                self.agent
            ))
            .await;
        assert!(!killed.is_empty(), "there is no agent");
    }

    /// Waits for a question and answers it.
    async fn permit(&self, decision: &str) {
        let seen = self.admin.status(&self.session, "waiting").await;
        let request = &seen["waiting_for"]["request_id"];
        let log = self.last_turn().await;
        let asked = log
            .iter()
            .find(|e| e["type"] == "permission_request")
            .unwrap();
        assert_eq!(asked["request_id"], *request);
        assert!(asked["input"]["command"].is_string(), "{asked}");
        let call = log.iter().find(|e| e["type"] == "tool_call");
        assert!(
            call.is_some(),
            "no tool call for the permission request: {log:#?}"
        );
        let answer = json!({
            "session_id": self.session, "request_id": request, "decision": decision,
        });
        self.admin.call("session_permit", answer).await.ok();
    }

    /// Asserts how often the agent resumed its own session.
    async fn resumed(&self, times: usize) {
        let log = self.admin.log(&self.session).await;
        let resumed = log.iter().filter(|e| e["resumed_by"] == "resume").count();
        assert_eq!(resumed, times, "{log:#?}");
    }
}

/// The parts of a turn's events that are the same in every turn.
/// How an agent's output is cut, and when a call of its model has been counted, differs from run to run.
fn shape(events: &[Value]) -> Vec<Value> {
    let mut shape = Vec::new();
    let is_compared = |event: &&Value| event["type"] != "delta" && event["type"] != "usage";
    for event in events.iter().filter(is_compared) {
        let kept = ["type", "status", "stop_reason", "kind"].map(|key| event[key].clone());
        let text = event["text"].as_str().unwrap_or_default();
        let text = if event["type"] == "prompt" { "" } else { text };
        shape.push(json!([kept, text.replace("42", "41")]));
    }
    shape
}
