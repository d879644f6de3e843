//! Random calls by several tokens, with agents and commands that misbehave.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Modern, Random, Reply};

use crate::SharedServer;
use crate::ledger::Ledger;

/// So that growth of the server's memory is not growth of the work.
const MAX_PROJECTS: usize = 40;
/// Longer than any wait of a call, so that a call without an answer is a defect.
const CALL_TIMEOUT: Duration = Duration::from_secs(180);

/// What agents do after they have said the marker of their prompt.
const SCRIPTS: [&str; 16] = [
    "/say fine",
    "/sleep 2",
    "/exit 3",
    "/fail out of tokens",
    "/hang",
    "/flood 2000",
    "/garbage {\"jsonrpc\":\"2.0\",\"id\":",
    "/stderr disk on fire",
    "/usage 10 10 0.01",
    "/ask may I?",
    "/sh head -c 3000000 /dev/zero | tr '\\0' x",
    "/sh for i in 1 2 3 4 5 6; do (setsid sleep 300 &) ; done",
    "/sh mkfifo p 2>/dev/null; ln -sf / root; mkdir -p a/b/c; chmod 000 a/b; true",
    "/sh i=0; while [ $i -lt 400 ]; do mkdir d && cd d; i=$((i+1)); done 2>/dev/null; true",
    "/tool session_message {\"prompt\":\"/say child\",\"wait_seconds\":0}",
    "/sh kill -9 $PPID",
];

const COMMANDS: [&str; 7] = [
    "echo fine",
    "head -c 5000000 /dev/urandom | base64",
    "sleep 2",
    "(setsid sleep 300 >/dev/null 2>&1 &)",
    "dd if=/dev/zero of=/tmp/fill bs=1M count=64 2>/dev/null; rm -f /tmp/fill",
    "kill -9 -1",
    "truncate -s 1G sparse; mkfifo q; cat sparse | head -c 1000 | wc -c",
];

pub(crate) struct Worker {
    number: u64,
    random: Random,
    admin: Modern,
    server: SharedServer,
    ledger: Arc<Ledger>,
}

impl Worker {
    pub(crate) fn new(
        number: u64,
        seed: u64,
        admin: Modern,
        server: SharedServer,
        ledger: Arc<Ledger>,
    ) -> Self {
        Self {
            number,
            random: Random::from_seed(seed),
            admin,
            server,
            ledger,
        }
    }

    pub(crate) async fn run(mut self, end: Instant) {
        while Instant::now() < end {
            match self.random.below(24) {
                0 | 1 => self.create_project().await,
                2 => self.delete_project().await,
                3..=8 => self.spawn().await,
                9..=13 => self.message().await,
                14 => self.stop("session_interrupt").await,
                15 => self.stop("session_end").await,
                16..=18 => self.exec().await,
                19 => self.permit().await,
                20 => self.use_tokens().await,
                21 => self.read_page().await,
                22 => self.look().await,
                _ => self.schedule().await,
            }
        }
    }

    async fn call(&self, client: &Modern, tool: &str, arguments: Value) -> Option<Reply> {
        let call = json!({ "name": tool, "arguments": arguments });
        let sent = client.try_send("tools/call", call);
        let Ok(reply) = tokio::time::timeout(CALL_TIMEOUT, sent).await else {
            self.ledger
                .defect(format!("{tool}: no answer in {CALL_TIMEOUT:?}"));
            return None;
        };
        self.ledger.count(tool, reply.as_ref());
        if reply.is_none() {
            // The server is away for a moment.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        reply.filter(|reply| reply.body["result"].is_object())
    }

    async fn create_project(&mut self) {
        if self.ledger.project_count() >= MAX_PROJECTS {
            return self.delete_project().await;
        }
        let marker = self.ledger.next_marker();
        let isolated = self.random.below(4) == 0;
        let create = json!({ "name": format!("chaos {}{marker}", self.number),
            "workspace_isolation": isolated, "agent_scope": "read" });
        if let Some(reply) = self.call(&self.admin, "project_create", create).await
            && !reply.is_error()
        {
            self.ledger
                .add_project(reply.ok()["project_id"].as_str().unwrap());
        }
    }

    async fn delete_project(&mut self) {
        if let Some(project) = self.ledger.take_project(&mut self.random) {
            let delete = json!({ "project_id": project });
            self.call(&self.admin, "project_delete", delete).await;
        }
    }

    fn prompt(&mut self) -> (String, String) {
        let marker = self.ledger.next_marker();
        let script = SCRIPTS[usize::try_from(self.random.below(SCRIPTS.len() as u64)).unwrap()];
        (format!("/say {marker}\n{script}"), marker)
    }

    async fn spawn(&mut self) {
        let Some(project) = self.ledger.project(&mut self.random) else {
            return;
        };
        let (prompt, marker) = self.prompt();
        let autonomy = ["high", "off"][usize::from(self.random.below(5) == 0)];
        let spawn = json!({ "project_id": project, "prompt": prompt, "new_session": true,
            "autonomy": autonomy, "create_workspace": self.random.below(6) == 0 });
        if let Some(reply) = self.call(&self.admin, "session_spawn", spawn).await
            && !reply.is_error()
        {
            let session = reply.ok()["session_id"].as_str().unwrap();
            self.ledger.add_prompt(&project, session, &marker, true);
        }
    }

    async fn message(&mut self) {
        let Some(session) = self.ledger.session(&mut self.random) else {
            return;
        };
        let (prompt, marker) = self.prompt();
        let message = json!({ "session_id": session, "prompt": prompt });
        let reply = self.call(&self.admin, "session_message", message).await;
        let accepted = reply.as_ref().is_some_and(|reply| !reply.is_error());
        if accepted || reply.is_none() {
            self.ledger.add_prompt("", &session, &marker, accepted);
        }
    }

    async fn stop(&mut self, operation: &str) {
        if let Some(session) = self.ledger.session(&mut self.random) {
            // An interrupt also cancels a queued message, which then has a turn all the same.
            if operation == "session_end" {
                self.ledger.may_drop(&session);
            }
            let stop = json!({ "session_id": session });
            self.call(&self.admin, operation, stop).await;
        }
    }

    async fn exec(&mut self) {
        if let Some(project) = self.ledger.project(&mut self.random) {
            let command =
                COMMANDS[usize::try_from(self.random.below(COMMANDS.len() as u64)).unwrap()];
            let exec = json!({ "project_id": project, "command": command, "timeout_seconds": 20 });
            self.call(&self.admin, "container_exec", exec).await;
        }
    }

    async fn permit(&mut self) {
        let waiting = json!({ "status": "waiting", "limit": 20 });
        let Some(reply) = self.call(&self.admin, "session_list", waiting).await else {
            return;
        };
        for session in reply.ok()["sessions"].as_array().unwrap() {
            let permit = json!({ "session_id": session["session_id"], "decision": "allow",
                "request_id": session["waiting_for"]["request_id"].as_str().unwrap_or("gone") });
            self.call(&self.admin, "session_permit", permit).await;
        }
    }

    /// A project token sees its project alone, a read-only one changes nothing, a revoked one is refused.
    async fn use_tokens(&mut self) {
        let Some(project) = self.ledger.project(&mut self.random) else {
            return;
        };
        let scope = format!(
            "project:{project}{}",
            ["", ":ro"][usize::from(self.random.below(2) == 0)]
        );
        let create = json!({ "name": "chaos", "scope": scope });
        let Some(reply) = self.call(&self.admin, "token_create", create).await else {
            return;
        };
        if reply.is_error() {
            return;
        }
        let made = reply.ok().clone();
        let client = self
            .server
            .read()
            .await
            .with_key(made["key"].as_str().unwrap());
        if let Some(reply) = self.call(&client, "project_list", json!({})).await {
            let projects = reply.ok()["projects"].as_array().unwrap();
            if projects.iter().any(|found| found["project_id"] != project) {
                self.ledger.defect(format!("{scope} sees {projects:?}"));
            }
        }
        let exec = json!({ "project_id": project, "command": "true" });
        if let Some(reply) = self.call(&client, "container_exec", exec).await
            && scope.ends_with(":ro")
        {
            self.ledger
                .defect(format!("{scope} ran a command: {}", reply.text));
        }
        let revoke = json!({ "token_id": made["token_id"] });
        let revoked = self.call(&self.admin, "token_revoke", revoke).await;
        if revoked.is_some_and(|reply| !reply.is_error())
            && let Some(reply) = self.call(&client, "project_list", json!({})).await
        {
            self.ledger
                .defect(format!("a revoked token works: {}", reply.text));
        }
    }

    async fn read_page(&mut self) {
        if let Some(session) = self.ledger.session(&mut self.random) {
            let page = json!({ "session_id": session, "wait_seconds": 3,
                "since_index": self.random.below(50), "include_children": self.random.below(2) == 0 });
            self.call(&self.admin, "session_events", page).await;
        }
    }

    async fn look(&mut self) {
        const READS: [&str; 4] = [
            "project_get",
            "workspace_list",
            "container_logs",
            "config_limits",
        ];
        if let Some(project) = self.ledger.project(&mut self.random) {
            let read = READS[usize::try_from(self.random.below(READS.len() as u64)).unwrap()];
            self.call(&self.admin, read, json!({ "project_id": project }))
                .await;
        }
    }

    async fn schedule(&mut self) {
        let Some(project) = self.ledger.project(&mut self.random) else {
            return;
        };
        let create = json!({ "name": self.ledger.next_marker(), "cron_expr": "0 0 1 1 *",
            "prompt": "/say scheduled", "targets": [{ "project_id": project }], "session_behavior": "new" });
        if let Some(reply) = self.call(&self.admin, "schedule_create", create).await
            && !reply.is_error()
        {
            let id = json!({ "schedule_id": reply.ok()["schedule_id"] });
            self.call(&self.admin, "schedule_trigger", id.clone()).await;
            self.call(&self.admin, "schedule_delete", id).await;
        }
    }
}
