//! What agents know after their session was forked or set back: what their model is told of it.

use futures_util::future::join_all;
use serde_json::{Value, json};
use support::{Llm, Server, agents};

#[test(
    needs(claude, codex, droid, gemini, opencode, sandbox),
    limit = 240,
    multi_thread
)]
async fn forked_and_rewound_agents_remember_what_was_said_until_then_and_nothing_later() {
    let (server, llm) = agents::server_with_agents(&agents::KNOWN, "sandbox");
    join_all(agents::KNOWN.map(|agent| fork_and_rewind(&server, &llm, agent))).await;
}

async fn fork_and_rewind(server: &Server, llm: &Llm, agent: &str) {
    let admin = server.admin();
    let project = agents::project(server, agent, llm, json!({})).await;
    // The answer repeats only the last output, so that of the first command is in no text.
    let prompt = format!(
        "The word is alpha-{agent}.\nuse bash: printf 'first-{agent}-%d\\n' 11\nuse bash: echo one > file; echo done"
    );
    let session = admin.spawn(&project, &prompt).await;
    succeed(&admin.turn(&session, 1).await, agent);
    let prompt = format!(
        "The word is beta-{agent}.\nuse bash: printf 'second-{agent}-%d\\n' 22; echo two > file; echo x > later"
    );
    admin.message(&session, &prompt).await;
    succeed(&admin.turn(&session, 2).await, agent);
    admin.status(&session, "idle").await;

    let in_fork = format!("What does {agent} know in the fork?");
    let fork = json!({
        "session_id": session, "turn": 1, "workspace_id": "fork",
        "prompt": format!("{in_fork}\nuse bash: cat file; ls"),
    });
    let fork = admin.call("session_fork", fork).await.ok().clone();
    let fork = fork["session_id"].as_str().unwrap();
    let rewind = json!({ "session_id": session, "turn": 1, "what": "both" });
    let rewound = admin.call("session_rewind", rewind).await.ok().clone();
    assert_eq!(rewound["not_restored"], Value::Null, "{agent}: {rewound}");
    let after_rewind = format!("What does {agent} know after the rewind?");
    let prompt = format!("{after_rewind}\nuse bash: cat file; ls");
    admin.message(&session, &prompt).await;

    for (question, completion) in [
        (&in_fork, admin.turn(fork, 1).await),
        (&after_rewind, admin.turn(&session, 3).await),
    ] {
        succeed(&completion, agent);
        let text = completion["text"].as_str().unwrap();
        assert!(
            text.contains("one\nfile") && !text.contains("later"),
            "{agent}: {text}"
        );
        let received = llm.last_step(question).unwrap();
        for (words, is_known) in [
            (format!("alpha-{agent}"), true),
            // Gemini does not report the output of its tools.
            (format!("first-{agent}-11"), agent != "gemini"),
            (format!("beta-{agent}"), false),
            (format!("second-{agent}"), false),
        ] {
            assert_eq!(
                received.mentions(&words),
                is_known,
                "{agent}: {question} {words}"
            );
        }
    }
}

fn succeed(completion: &Value, agent: &str) {
    assert_eq!(
        completion["stop_reason"], "end_turn",
        "{agent}: {completion}"
    );
}
