//! Between the server and the MCP server of an agent, `oubliette-client`.
//!
//! Any number of requests are in flight on one connection and answered in any order. A connection
//! speaks for a session from `attach` on; the tools of Oubliette itself need a key with each call
//! and no session.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::Message;

/// The names of the methods.
pub mod calls {
    pub const ATTACH: &str = "attach";
    pub const OUBLIETTE_TOOLS: &str = "oubliette_tools";
    pub const OUBLIETTE_CALL_TOOL: &str = "oubliette_call_tool";
    pub const CALLER_TOOL: &str = "caller_tool";
    pub const SESSION_MESSAGE: &str = "session_message";
    pub const SESSION_EVENTS: &str = "session_events";
    pub const SESSION_END: &str = "session_end";
    pub const CONFIG_LIMITS: &str = "config_limits";
    /// A notification: whoever asked `id` waits for it no longer.
    pub const CANCEL: &str = "cancel";
    /// From the server, a notification.
    pub const CALLER_TOOLS_CONFIG: &str = "caller_tools_config";
}

/// From now on the connection speaks for a session.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attach {
    pub session_id: String,
    pub session_key: String,
}

/// The answer to [`Attach`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    pub session_id: String,
    #[serde(default)]
    pub version: String,
}

/// Which tools a key may call.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListTools {
    pub api_key: String,
}

/// The answer to [`ListTools`]; names without prefix.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ToolList {
    pub tools: Vec<ToolEntry>,
}

/// A tool as lists show it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolEntry {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(
        default,
        rename = "inputSchema",
        skip_serializing_if = "Option::is_none"
    )]
    pub input_schema: Option<Map<String, Value>>,
}

/// Calls a tool of Oubliette with a key.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct CallTool {
    pub api_key: String,
    pub tool: String,
    #[serde(default)]
    pub arguments: Option<Map<String, Value>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
}

/// The answer to [`CallTool`], as MCP has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolResult {
    pub content: Vec<Value>,
    #[serde(
        default,
        rename = "structuredContent",
        skip_serializing_if = "Option::is_none"
    )]
    pub structured_content: Option<Value>,
    #[serde(default, rename = "isError")]
    pub is_error: bool,
}

/// Calls a tool of the session's caller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallerTool {
    pub tool: String,
    #[serde(default)]
    pub arguments: Option<Map<String, Value>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
}

/// Whoever asked waits no longer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cancel {
    pub id: Value,
}

// What holds a key is never printed whole.

impl fmt::Debug for Attach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attach")
            .field("session_id", &self.session_id)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ListTools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListTools").finish_non_exhaustive()
    }
}

impl fmt::Debug for CallTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallTool")
            .field("tool", &self.tool)
            .finish_non_exhaustive()
    }
}

/// The tools of a session's caller.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CallerTools {
    #[serde(default)]
    pub caller_id: Option<String>,
    #[serde(default)]
    pub tools: Vec<ToolEntry>,
}

impl CallerTools {
    /// The notification as a line: its name is in `type` as well as in `method`.
    pub fn line(&self) -> Vec<u8> {
        let name = calls::CALLER_TOOLS_CONFIG;
        let message = json!({ "jsonrpc": "2.0", "type": name, "method": name, "params": self });
        let mut line = message.to_string().into_bytes();
        line.push(b'\n');
        line
    }

    /// Reads it from a message, if it is one.
    pub fn of(message: &Message) -> Option<Self> {
        let named = message.method.as_deref() == Some(calls::CALLER_TOOLS_CONFIG);
        named.then(|| message.params().ok()).flatten()
    }
}

/// The longest name of a tool that every agent takes.
const LONGEST_NAME: usize = 64;

/// What a caller's tool is called for the agent: the caller's id and its own name for it. Characters
/// that some agents do not take become `_`, and what is too long ends in a hash of the whole.
pub fn caller_tool_name(caller_id: &str, name: &str) -> String {
    let whole = format!("{caller_id}_{name}");
    let safe = |c: char| match c {
        'A'..='Z' | 'a'..='z' | '0'..='9' | '_' | '-' => c,
        _ => '_',
    };
    let plain: String = whole.chars().map(safe).collect();
    if plain.len() <= LONGEST_NAME {
        return plain;
    }
    // FNV-1a: names are told apart, nothing is kept secret.
    let hash = whole.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    format!("{}_{hash:08x}", &plain[..LONGEST_NAME - 9])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_callers_tool_has_a_name_that_every_agent_takes() {
        let name = caller_tool_name;
        assert_eq!(
            name("myapp", "send_notification"),
            "myapp_send_notification"
        );
        assert_eq!(name("my.app", "send/it"), "my_app_send_it");
        assert_eq!(name("a", &"x".repeat(62)).len(), 64);
        let (one, other) = ("x".repeat(63), "y".repeat(10));
        let long = name("a", &format!("{one}{other}1"));
        assert_eq!(long.len(), 64);
        assert!(
            long.starts_with(&format!("a_{}_", "x".repeat(53))),
            "{long}"
        );
        assert_ne!(long, name("a", &format!("{one}{other}2")));
        assert!(name("ünï", "cödé").is_ascii());
    }

    #[test]
    fn the_notification_of_caller_tools_has_its_name_twice() {
        let tools = CallerTools {
            caller_id: Some("myapp".to_owned()),
            tools: vec![ToolEntry {
                name: "send".to_owned(),
                description: None,
                input_schema: None,
            }],
        };
        let line = tools.line();
        let value: Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(value["type"], "caller_tools_config");
        assert_eq!(value["params"]["tools"], json!([{ "name": "send" }]));
        let message: Message = serde_json::from_slice(&line).unwrap();
        assert_eq!(CallerTools::of(&message), Some(tools));
    }
}
