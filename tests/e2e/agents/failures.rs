//! What a person sees when an agent's model fails, found by trying. The table is in `docs/agents.md`.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use oubliette_test_harness::scaled;
use serde_json::{Value, json};
use support::{Llm, Modern, Server, agents, run_cli, stderr, stdout};

use super::tables;

/// Longer than those agents try that give up in about a minute, and shorter than the others.
const STALLED_TIMEOUT: Duration = Duration::from_secs(120);
/// How much longer than that a turn may take: its agent is stopped.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// A failure of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failure {
    Key,
    Forbidden,
    BadRequest,
    RateLimit,
    Error,
    Overloaded,
    CutStream,
    NoAnswer,
    TwoErrors,
}

const FAILURES: [Failure; 9] = [
    Failure::Key,
    Failure::Forbidden,
    Failure::BadRequest,
    Failure::RateLimit,
    Failure::Error,
    Failure::Overloaded,
    Failure::CutStream,
    Failure::NoAnswer,
    Failure::TwoErrors,
];

/// Two sessions of each agent, so that the slow ones take about the same time.
const SESSIONS: [&[Failure]; 2] = [
    &[
        Failure::Key,
        Failure::Forbidden,
        Failure::BadRequest,
        Failure::TwoErrors,
        Failure::RateLimit,
        Failure::NoAnswer,
    ],
    &[Failure::Error, Failure::Overloaded, Failure::CutStream],
];

impl Failure {
    fn row(self) -> &'static str {
        match self {
            Self::Key => "wrong key (401)",
            Self::Forbidden => "not allowed (403)",
            Self::BadRequest => "bad request (400)",
            Self::RateLimit => "rate limit (429)",
            Self::Error => "error of the provider (500)",
            Self::Overloaded => "overloaded (503, 529)",
            Self::CutStream => "every stream is cut",
            Self::NoAnswer => "no answer at all",
            Self::TwoErrors => "two errors, then an answer",
        }
    }

    /// What the model does.
    fn script(self, agent: &str) -> &'static str {
        match self {
            Self::Key => "fail 401",
            Self::Forbidden => "fail 403",
            Self::BadRequest => "fail 400",
            Self::RateLimit => "fail 429",
            Self::Error => "fail 500",
            Self::Overloaded if agent == "claude" => "fail 529",
            Self::Overloaded => "fail 503",
            Self::CutStream => "say Half an answer.\ncut",
            Self::NoAnswer => "silence",
            Self::TwoErrors => "fail 500 2\nsay At last.",
        }
    }

    /// Words of which the error must have one, whatever the product makes of it: the status, the
    /// text of the model, or what the agent says instead of it.
    fn words(self) -> &'static [&'static str] {
        match self {
            Self::Key => &["401", "unauthorized", "authentication", "api key"],
            Self::Forbidden => &["403", "forbidden", "permission", "do not have access"],
            Self::BadRequest => &["400", "bad request", "invalid", "does not know"],
            Self::RateLimit => &["429", "rate limit", "too many requests"],
            Self::Error => &["500", "server error", "server had an error", "high demand"],
            Self::Overloaded => &["503", "529", "overloaded", "unavailable"],
            Self::CutStream => &[
                "connection",
                "stream",
                "closed",
                "cut off",
                "terminated",
                "disconnected",
                "incomplete",
            ],
            Self::NoAnswer | Self::TwoErrors => &[],
        }
    }
}

#[test(
    needs(claude, codex, droid, gemini, opencode, sandbox),
    limit = 600,
    mostly_waits,
    multi_thread
)]
async fn the_table_of_failures_is_what_a_person_sees() {
    let seconds = scaled(STALLED_TIMEOUT).as_secs();
    // Models without a price would need more than the budget.
    let settings =
        format!("[sessions]\nstalled_seconds = {seconds}\n[limits]\nmax_cost_usd = 1000000.0\n");
    let (server, llm) = agents::server_with(&agents::KNOWN, "sandbox", &settings);
    let columns = agents::KNOWN.map(async |agent| {
        let sessions = SESSIONS.iter().enumerate();
        let sessions = sessions.map(|(n, failures)| try_all(&server, &llm, agent, n, failures));
        let found: Vec<(Failure, String)> = join_all(sessions).await.concat();
        let cell = |failure| {
            let mut cells = found.iter();
            let (_, cell) = cells.find(|(found, _)| *found == failure).unwrap();
            cell.clone()
        };
        FAILURES.map(cell).to_vec()
    });
    let columns = join_all(columns).await;
    let mut problems = columns.iter().flatten().filter(|cell| cell.contains(": "));
    assert_eq!(problems.next(), None, "{columns:#?}");
    let rows = FAILURES.map(Failure::row);
    tables::check("failures.rs", &agents::KNOWN, &rows, &columns);
}

/// Tries failures one after the other in one session, which goes on after each.
async fn try_all(
    server: &Server,
    llm: &Llm,
    agent: &str,
    n: usize,
    failures: &[Failure],
) -> Vec<(Failure, String)> {
    let name = format!("{agent}-{n}");
    let admin = server.admin();
    let project = agents::project(server, agent, llm, json!({ "name": name })).await;
    let session = admin.spawn(&project, "say Hello.").await;
    admin.turn(&session, 1).await;
    let mut cells = Vec::new();
    for failure in failures {
        let found = try_failure(server, llm, &session, &name, agent, *failure).await;
        cells.push((*failure, found));
    }
    let arguments = ["run", "--project", &name, "--continue", "say Back."];
    let run = run_cli(server.home(), &arguments).await;
    let goes_on = run.status.success() && stdout(&run).contains("Back.");
    if !goes_on {
        let (_, last) = cells.last_mut().unwrap();
        *last = format!("the session does not go on: {}", stderr(&run));
    }
    cells
}

/// The cell of one failure.
async fn try_failure(
    server: &Server,
    llm: &Llm,
    session: &str,
    project: &str,
    agent: &str,
    failure: Failure,
) -> String {
    let admin = server.admin();
    let marker = format!("This is {failure:?} of {agent}.");
    let prompt = format!("{marker}\n{}", failure.script(agent));
    let arguments = ["run", "--project", project, "--continue", &prompt];
    let started = Instant::now();
    let run = run_cli(server.home(), &arguments).await;
    let elapsed = started.elapsed();
    let tries = llm.count_steps(&marker);
    let (completion, log) = last_turn(&admin, session).await;
    let mut problems = Vec::new();
    let mut check = |is_so: bool, what: &str| {
        if !is_so {
            problems.push(what.to_owned());
        }
    };
    let error = completion["error"].as_str().unwrap_or_default();
    let cell = if completion["stop_reason"] == "end_turn" {
        check(run.status.success(), "the exit code is that of a failure");
        check(failure == Failure::TwoErrors, "it is no failed turn");
        check(stdout(&run).contains("At last."), "the answer is missing");
        "works".to_owned()
    } else {
        check(completion["stop_reason"] == "error", "it is no failed turn");
        check(run.status.code() == Some(1), "the exit code is not 1");
        check(stderr(&run).contains(error), "the error is not printed");
        let seen = admin.session(session).await;
        check(seen["status"] == "idle", "the session does not go on");
        check(
            seen["error"] == error,
            "the session does not show the error",
        );
        // Words that a person can act on.
        let is_vague = error.contains('{') || error.to_lowercase().contains("internal error");
        check(!error.is_empty() && !is_vague, "the error is vague");
        let is_stalled = error.contains("`sessions.stalled_seconds`");
        let names_cause = |text: &str| {
            let (words, text) = (failure.words(), text.to_lowercase());
            words.is_empty() || words.iter().any(|word| text.contains(word))
        };
        check(
            is_stalled || names_cause(error),
            "the error names another cause",
        );
        // Meanwhile the log says why, or that there is no sign of the agent.
        let mut notices = log.iter().filter(|event| event["type"] == "log");
        let is_told = notices.any(|notice| {
            let text = notice["message"].as_str().unwrap_or_default();
            text.contains("no sign of the agent")
                || (failure != Failure::NoAnswer && names_cause(text))
        });
        check(!is_stalled || is_told, "nothing is said while it tries on");
        check(
            elapsed < scaled(STALLED_TIMEOUT + STOP_TIMEOUT),
            "it takes longer than `stalled_seconds`",
        );
        let is_about_key = error.contains(wrong_key(agent));
        check(
            failure != Failure::Key || is_about_key,
            "the advice is about another key",
        );
        match tries {
            _ if is_stalled => "tries on, at most for `stalled_seconds`".to_owned(),
            1 => "fails at once".to_owned(),
            // How many is up to the agent, and to how busy the machine is.
            _ => "fails after several tries".to_owned(),
        }
    };
    match problems.is_empty() {
        true => cell,
        // Not a panic: it would leave the commands of the other sessions waiting for their server.
        false => format!("{problems:?}: {}\n{log:#?}", stderr(&run)),
    }
}

/// What the advice about a wrong key must name: where the key is that was not accepted.
fn wrong_key(agent: &str) -> &'static str {
    match agent {
        "droid" => "`/root/.factory/settings.json`",
        "opencode" => "`/root/.config/opencode/opencode.json`",
        _ => "oubliette credential add",
    }
}

/// The completion and the events of the last turn.
async fn last_turn(admin: &Modern, session: &str) -> (Value, Vec<Value>) {
    let mut log = admin.log(session).await;
    let start = log.iter().rposition(|event| event["type"] == "prompt");
    let log = log.split_off(start.unwrap());
    let mut events = log.iter();
    let completion = events.find(|event| event["type"] == "completion").unwrap();
    (completion.clone(), log)
}
