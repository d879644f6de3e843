//! The demo agent, which is part of the product.

use oubliette_wire::CLIENT_PATH;

use super::{argv, levels};
use crate::agent::Agent;
use crate::home::HomeLayout;
use crate::sign_in::{self, LoginCommand, SignInMethods};
use crate::tool_filter::ToolEnforcement;

const SIGN_IN: SignInMethods = SignInMethods {
    login: LoginCommand::Missing("it uses no model and needs no login"),
    ..sign_in::UNKNOWN
};

pub(super) fn row() -> Agent {
    Agent {
        about: "a scripted agent that needs no key and no network".to_owned(),
        modes: Some(levels(["ask", "ask", "ask", "auto"])),
        own_tools: &["*"],
        tool_enforcement: ToolEnforcement::PermissionRequests { mode: "each" },
        takes_model: false,
        takes_reasoning: false,
        is_free: true,
        sign_in: SIGN_IN,
        home: HomeLayout {
            private: &[".oubliette-demo"],
            ..HomeLayout::default()
        },
        ..Agent::from_command("demo", argv(&[CLIENT_PATH, "demo-agent"]))
    }
}
