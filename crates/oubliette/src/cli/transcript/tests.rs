//! Transcripts of invented sessions.

use serde_json::json;

use super::*;

fn formatted(events: &[Value], folds: bool, columns: Option<usize>) -> String {
    let mut transcript = Transcript::new(Style::PLAIN, folds);
    let parts = events.iter().map(|event| transcript.format(event, columns));
    parts.collect::<Vec<_>>().concat()
}

fn session() -> Vec<Value> {
    let output: Vec<String> = (1..=20).map(|n| format!("line {n}")).collect();
    vec![
        json!({ "type": "status", "status": "created", "timestamp": "2027-01-04T05:00:00Z" }),
        json!({ "type": "prompt", "text": "fix it\nplease", "timestamp": "2027-01-04T05:00:00Z" }),
        json!({ "type": "delta", "text": "I lo" }),
        json!({ "type": "message", "text": "I look." }),
        json!({ "type": "tool_call", "tool_call_id": "1", "title": "bash",
            "input": { "command": "cargo test" }, "timestamp": "2027-01-04T05:00:01Z" }),
        json!({ "type": "tool_result", "tool_call_id": "1", "status": "completed",
            "output": output.join("\n"), "timestamp": "2027-01-04T05:00:03.5Z" }),
        json!({ "type": "usage", "cost_usd": 0.0123 }),
        json!({ "type": "checkpoint", "turn": 3 }),
        json!({ "type": "completion", "text": "I look.", "stop_reason": "end_turn",
            "timestamp": "2027-01-04T05:01:15Z", "changed": { "files": 2, "added": 10, "removed": 1 } }),
    ]
}

#[test]
fn a_turn_is_its_prompt_texts_tools_and_a_mark_with_cost_and_changes() {
    let shown = formatted(&session(), true, Some(60));
    let expected = "› fix it\n  please\n\nI look.\n\n  ✓ bash: cargo test  2.5s\n    │ line 1\n    │ line 2\n    \
                    │ line 3\n    │ line 4\n    │ line 5\n    │ … 15 more lines\n\n── turn 3 done · 1m15s · \
                    $0.0123 · 2 files changed, +10 −1 ─";
    assert_eq!(
        shown.trim_end_matches(['─', '\n']),
        expected.trim_end_matches('─')
    );
    for line in shown.lines() {
        assert!(line.chars().count() < 60, "{line}");
    }
}

#[test]
fn without_folding_everything_is_there() {
    let shown = formatted(&session(), false, None);
    assert!(shown.contains("│ line 20\n"), "{shown}");
    assert!(!shown.contains("more lines"), "{shown}");
}

#[test]
fn texts_of_agents_cannot_control_the_terminal() {
    let hostile = "a\u{1b}]52;c;AAAA\u{7}\u{1b}[2J\u{202e}b";
    let events = [
        json!({ "type": "prompt", "text": hostile, "attachments": [hostile] }),
        json!({ "type": "message", "text": hostile }),
        json!({ "type": "thought", "text": hostile }),
        json!({ "type": "tool_call", "tool_call_id": hostile, "title": hostile, "input": { "command": hostile } }),
        json!({ "type": "tool_result", "tool_call_id": hostile, "status": hostile, "output": hostile }),
        json!({ "type": "plan", "entries": [{ "content": hostile }] }),
        json!({ "type": "permission_request", "title": hostile, "kind": "permission", "input": {
            "command": format!("{hostile}x"), "paths": [hostile], hostile: hostile, "other": [hostile],
            "changes": [{ "path": hostile, "old_text": hostile, "new_text": format!("{hostile}\n{hostile}") }],
        }}),
        json!({ "type": "permission_answer", "decision": hostile, "by": hostile }),
        json!({ "type": "caller_tool_request", "tool": hostile, "arguments": { "x": hostile } }),
        json!({ "type": "caller_tool_response", "tool": hostile, "outcome": hostile, "error": hostile }),
        json!({ "type": "child_spawned", "child_id": hostile, "agent": hostile }),
        json!({ "type": "child_ended", "child_id": hostile, "status": hostile }),
        json!({ "type": "rewound", "turn": hostile, "what": hostile }),
        json!({ "type": "forked", "turn": hostile, "from_session_id": hostile }),
        json!({ "type": "mode", "mode": hostile }),
        json!({ "type": "log", "message": hostile }),
        json!({ "type": "error", "message": hostile }),
        json!({ "type": "status", "status": "failed", "error": hostile }),
        json!({ "type": "completion", "text": hostile, "stop_reason": hostile, "error": hostile }),
    ];
    let mut transcript = Transcript::new(Style::PLAIN, true);
    for event in events {
        let shown = transcript.format(&event, Some(80));
        let is_clean = |c: char| c == '\n' || !(c.is_control() || c == '\u{202e}');
        assert!(!shown.is_empty() || event["type"] == "tool_call", "{event}");
        assert!(shown.chars().all(is_clean), "{shown:?}");
    }
}

#[test]
fn a_question_shows_the_whole_command_and_the_whole_diff() {
    let command: Vec<String> = (1..=40).map(|n| format!("step {n}")).collect();
    let old: Vec<String> = (1..=50).map(|n| format!("line {n}")).collect();
    let new = old.join("\n").replace("line 20", "line twenty");
    let event = json!({ "type": "permission_request", "title": "edit", "kind": "permission", "input": {
        "command": command.join("\n"),
        "changes": [{ "path": "src/lib.rs", "old_text": old.join("\n"), "new_text": new }],
    }});
    let shown = describe_request(&event, Style::PLAIN);
    assert!(
        shown.contains("    $ step 1\n") && shown.contains("    $ step 40\n"),
        "{shown}"
    );
    let diff = "    src/lib.rs\n      line 17\n      line 18\n      line 19\n    - line 20\n    + line twenty\n      \
                line 21\n      line 22\n      line 23";
    assert!(shown.ends_with(diff), "{shown}");
}

#[test]
fn a_question_about_a_host_and_its_end_are_told_in_words() {
    let title = "Connect to a.org:443, which no rule of the project names";
    let event = json!({ "type": "permission_request", "title": title, "kind": "network", "input": {
        "host": "a.org", "port": 443, "decisions": ["allow", "deny"],
    }});
    assert_eq!(
        describe_request(&event, Style::PLAIN),
        format!("  ? {title}")
    );
    for (decision, by, expected) in [
        ("allow", "caller", "allowed"),
        ("allow_project", "caller", "allowed for the project"),
        ("allow", "rule", "allowed: a rule allows it now"),
        (
            "deny",
            "withdrawn",
            "not needed any more: nothing waits for it",
        ),
        ("deny", "deadline", "denied: it was not answered in time"),
    ] {
        let event = json!({ "type": "permission_answer", "decision": decision, "by": by });
        assert_eq!(describe_answer(&event), expected);
    }
}

#[test]
fn colours_end_where_they_begin() {
    let mut transcript = Transcript::new(Style::COLOURED, true);
    let events = session();
    let shown: Vec<String> = events
        .iter()
        .map(|event| transcript.format(event, Some(80)))
        .collect();
    for line in shown.concat().lines() {
        let begins = line.matches("\u{1b}[").count() - line.matches("\u{1b}[0m").count();
        assert_eq!(begins, line.matches("\u{1b}[0m").count(), "{line:?}");
    }
}

#[test]
fn the_reason_of_a_failed_turn_is_shown_once() {
    let mut transcript = Transcript::new(Style::PLAIN, true);
    let events = [
        json!({ "type": "completion", "stop_reason": "error", "error": "the agent exited" }),
        json!({ "type": "error", "message": "the agent exited" }),
        json!({ "type": "status", "status": "failed", "error": "the agent exited" }),
    ];
    let shown = events.map(|event| transcript.format(&event, Some(80)));
    let shown = shown.concat();
    assert_eq!(shown.matches("the agent exited").count(), 1, "{shown}");
    assert!(shown.contains("the session failed"), "{shown}");
}
