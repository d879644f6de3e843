//! Runs the examples of the documentation.

use crate::Agent;

const PAGE: &str = include_str!("../../../../docs/demo-agent.md");

/// The fenced blocks of the page: language and content.
fn blocks() -> Vec<(&'static str, &'static str)> {
    PAGE.split("\n```")
        .skip(1)
        .step_by(2)
        .map(|block| block.split_once('\n').unwrap())
        .collect()
}

#[test]
fn the_examples_in_the_documentation_have_their_documented_answers() {
    let blocks = blocks();
    assert!(blocks.len() >= 10, "{blocks:?}");
    for pair in blocks.chunks(2) {
        let [("prompt", prompt), (kind, expected)] = pair else {
            panic!("not a prompt with its answer: {pair:?}");
        };
        let (mut agent, session, _home) = Agent::ready();
        let turn = agent.turn(&session, prompt);
        let found = match *kind {
            "answer" => turn.text(),
            _ => turn.response["error"]["message"]
                .as_str()
                .unwrap()
                .to_owned(),
        };
        assert_eq!(found, *expected, "{prompt}");
    }
}

#[test]
fn every_command_is_in_the_documentation() {
    let (mut agent, _, home) = Agent::ready();
    let servers = serde_json::json!([]);
    let request = serde_json::json!({ "cwd": home.path(), "mcpServers": servers });
    agent.request("session/new", request);
    let update = agent.update(|update| update["sessionUpdate"] == "available_commands_update");
    for command in update["availableCommands"].as_array().unwrap() {
        let name = command["name"].as_str().unwrap();
        assert!(PAGE.contains(&format!("| `/{name}")), "{name} is missing");
    }
}
