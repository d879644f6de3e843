//! `kill -9` of the server at random moments of the streams of models, with all agents at once.

use std::time::Duration;

use serde_json::{Value, json};
use support::llm::{INPUT_TOKENS, OUTPUT_TOKENS};
use support::{Llm, Modern, Random, Server, agents, eventually};

use super::agents::agent_project;

/// How often the server is killed; 100 in a long run.
const KILLS_VARIABLE: &str = "OUBLIETTE_TEST_KILLS";
const DEFAULT_KILLS: usize = 6;
const WAIT: Duration = Duration::from_secs(90);
/// The time in which a kill comes, when at least one stream has begun.
const MAX_KILL_DELAY: Duration = Duration::from_millis(800);
const WORDS: usize = 40;

/// An agent and its only session.
struct Work {
    agent: &'static str,
    /// By which the model knows the agent.
    key: String,
    session: String,
    turns: usize,
    /// Kills while an answer to this agent was on its way.
    kills: usize,
}

impl Work {
    async fn start(admin: &Modern, llm: &Llm, agent: &'static str) -> Self {
        let key = format!("sk-{agent}-0123456789abcdef");
        // Trees with a budget, so that calls have reservations, and enough of it.
        let budget = json!({ "max_cost_usd": 100_000.0 });
        let project = agent_project(admin, agent, llm, &key, budget).await;
        // An agent that is being started when its server is killed is started again, which is no matter here.
        let session = admin.spawn(&project, "say Ready.").await;
        Self {
            agent,
            key,
            session,
            turns: 1,
            kills: 0,
        }
    }

    /// Starts the next turn if the last one has ended.
    async fn go_on(&mut self, admin: &Modern) {
        if admin.session(&self.session).await["status"] == "idle" {
            self.turns += 1;
            admin.message(&self.session, &prompt(self.turns)).await;
        }
    }

    async fn assert_turns(&self, admin: &Modern) {
        for turn in 1..=self.turns {
            let completion = admin.turn(&self.session, turn).await;
            let agent = self.agent;
            assert_eq!(
                completion["stop_reason"], "end_turn",
                "{agent}: {completion}"
            );
            let text = completion["text"].as_str().unwrap();
            let spoken = if turn == 1 { Vec::new() } else { words(turn) };
            for word in spoken {
                let count = text.matches(word.as_str()).count();
                assert_eq!(count, 1, "{agent}: {word} in {text}");
            }
        }
        let log = admin.log(&self.session).await;
        let starts = log.iter().filter(|event| !event["resumed_by"].is_null());
        assert_eq!(starts.count(), 0, "{}: {log:#?}", self.agent);
    }

    /// The session was charged for each request that reached the model, once.
    async fn assert_charges(&self, admin: &Modern, llm: &Llm) {
        let requests = llm.requests();
        let is_charged = |path: &str| !path.ends_with("/count_tokens") && !is_list(path);
        let own = requests
            .iter()
            .filter(|it| it.key == self.key && is_charged(&it.path));
        let calls = own.count() as u64;
        let usage = async || admin.session(&self.session).await["usage"].clone();
        let expected = json!([calls * INPUT_TOKENS, calls * OUTPUT_TOKENS]);
        let seen = |usage: &Value| json!([usage["input_tokens"], usage["output_tokens"]]);
        let charged = eventually(WAIT, async || seen(&usage().await) == expected).await;
        assert!(charged, "{}: {calls} calls, {}", self.agent, usage().await);
        assert!(calls >= self.turns as u64);
    }
}

fn is_list(path: &str) -> bool {
    path.ends_with("/models")
}

fn words(turn: usize) -> Vec<String> {
    (0..WORDS).map(|n| format!("t{turn}w{n}w")).collect()
}

fn prompt(turn: usize) -> String {
    format!("say {}\nslow", words(turn).join(" "))
}

fn wanted_kills() -> usize {
    let named = std::env::var(KILLS_VARIABLE).ok();
    named.map_or(DEFAULT_KILLS, |kills| kills.parse().unwrap())
}

/// Kills the server in streams until there were enough kills, and each agent had its share.
async fn kill_in_streams(
    server: &mut Server,
    llm: &Llm,
    work: &mut [Work],
    wanted: usize,
) -> usize {
    let (mut random, mut kills) = (Random::new(), 0);
    let share = wanted.div_ceil(2 * work.len());
    while kills < wanted || work.iter().any(|one| one.kills < share) {
        let is_streaming = |one: &Work| llm.is_streaming(&one.key);
        let begun = eventually(WAIT, async || work.iter().any(is_streaming)).await;
        assert!(begun, "no agent asks its model");
        // The moment of the kill.
        tokio::time::sleep(random.duration_below(MAX_KILL_DELAY)).await;
        let streaming: Vec<bool> = work.iter().map(is_streaming).collect();
        if streaming.contains(&true) {
            server.kill();
            kills += 1;
            for (one, is_streaming) in work.iter_mut().zip(streaming) {
                one.kills += usize::from(is_streaming);
            }
            server.start_again();
        }
        let admin = server.admin();
        for one in work.iter_mut() {
            one.go_on(&admin).await;
        }
    }
    kills
}

#[test(
    needs(claude, codex, droid, gemini, opencode, sandbox),
    limit = 3600,
    mostly_waits
)]
async fn kills_of_the_server_in_streams_of_all_agents_fail_no_turn_and_lose_or_double_no_charge() {
    let wanted = wanted_kills();
    let (mut server, llm) = agents::server_without_setups(&agents::KNOWN, "");
    let admin = server.admin();
    let mut work = Vec::new();
    for agent in agents::KNOWN {
        work.push(Work::start(&admin, &llm, agent).await);
    }
    for one in &mut work {
        admin.turn(&one.session, 1).await;
        one.go_on(&admin).await;
    }
    let kills = kill_in_streams(&mut server, &llm, &mut work, wanted).await;
    assert!(kills >= wanted, "{kills}");
    let admin = server.admin();
    for one in &work {
        one.assert_turns(&admin).await;
        one.assert_charges(&admin, &llm).await;
    }
    let counts: Vec<String> = work
        .iter()
        .map(|one| format!("{} {} in {} turns", one.agent, one.kills, one.turns))
        .collect();
    eprintln!("{kills} kills: {}", counts.join(", "));
}
