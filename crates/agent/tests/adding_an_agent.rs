//! The example of the contributors' guide, which quotes this file: an agent from nothing.

use std::collections::BTreeMap;

use oubliette_agent::{Agent, Package, ToolEnforcement, ToolFilter};
use oubliette_model::Level;

fn acme() -> Agent {
    let text = |text: &str| text.to_owned();
    Agent {
        about: text("Acme Coder"),
        env: BTreeMap::from([(text("ACME_AUTO_UPDATE"), text("0"))]),
        // `oubliette agent install acme` installs this version; it is the one that was tested.
        package: Some(Package {
            npm: "@acme/coder",
            version: "1.2.3",
            program: "acme",
            binary: None,
            unpack_variable: None,
        }),
        // A credential of the kind `acme` reaches the agent in this variable.
        credentials: BTreeMap::from([(text("acme"), text("ACME_API_KEY"))]),
        // Its own modes for the levels of autonomy: off, low, medium, high.
        modes: Some(["ask", "ask", "edit", "full"].map(text)),
        takes_reasoning: false,
        tool_enforcement: ToolEnforcement::Unsupported("it has no setting for its tools"),
        ..Agent::from_command("acme", vec![text("acme"), text("--acp")])
    }
}

#[test]
fn the_row_gives_command_environment_mode_and_what_is_unsupported() {
    let agent = acme();
    assert_eq!(agent.argv, ["acme", "--acp"]);

    let all_tools = ToolFilter::default();
    let env = agent.environment(Level::High, &all_tools);
    assert_eq!(env["ACME_AUTO_UPDATE"], "0");
    let is_required = false;
    assert_eq!(
        agent.mode(Level::High, &all_tools),
        (Some("full".to_owned()), is_required)
    );

    // `session_spawn` with `tools_allowed` is rejected with this reason.
    let only_read = ToolFilter {
        allowed: vec!["read".to_owned()],
        ..ToolFilter::default()
    };
    let reason = agent.tool_enforcement.unsupported_reason(&only_read);
    assert_eq!(
        reason.as_deref(),
        Some("cannot be limited to some of its tools: it has no setting for its tools")
    );
    let reason = agent.tool_enforcement.unsupported_reason(&all_tools);
    assert_eq!(reason, None);
}
