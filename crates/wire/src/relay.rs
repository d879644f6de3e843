//! Messages between the server and `oubliette-client`, the MCP server of an agent.
//!
//! A connection can have any number of requests in flight, and replies come in any order. `attach`
//! ties a connection to a session; calls of Oubliette's own tools carry an API key and need no
//! session.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::Message;

/// The methods of a client's connection.
pub mod relay_methods {
    pub const ATTACH: &str = "attach";
    pub const OUBLIETTE_TOOLS: &str = "oubliette_tools";
    pub const OUBLIETTE_CALL_TOOL: &str = "oubliette_call_tool";
    pub const CALLER_TOOL: &str = "caller_tool";
    pub const SESSION_MESSAGE: &str = "session_message";
    pub const SESSION_EVENTS: &str = "session_events";
    pub const SESSION_END: &str = "session_end";
    pub const CONFIG_LIMITS: &str = "config_limits";
    /// A notification of the client: it no longer waits for the reply to `id`.
    pub const CANCEL: &str = "cancel";
    /// The agent has listed its tools.
    pub const TOOLS_LISTED: &str = "tools_listed";
    /// A notification of the server.
    pub const CALLER_TOOLS_CONFIG: &str = "caller_tools_config";
}

/// Ties the connection to a session.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attach {
    pub session_id: String,
    pub session_key: String,
    /// Whether the client reports with [`ToolsListed`] what the agent has listed.
    #[serde(default)]
    pub reports_listing: bool,
}

/// The caller's tools that the agent has listed last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolsListed {
    /// [`CallerTools::fingerprint`].
    pub caller_tools: String,
}

/// The result of [`Attach`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    pub session_id: String,
    #[serde(default)]
    pub version: String,
}

/// Requests the tools that a key may call.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListTools {
    pub api_key: String,
}

/// The result of [`ListTools`]; names without prefix.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ToolList {
    pub tools: Vec<ToolEntry>,
}

/// A tool in a list.
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

/// Calls a tool of Oubliette with an API key.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct CallTool {
    pub api_key: String,
    pub tool: String,
    #[serde(default)]
    pub arguments: Option<Map<String, Value>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
}

/// The result of [`CallTool`], in the form of MCP.
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

/// The client no longer waits for the reply to request `id`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cancel {
    pub id: Value,
}

// `Debug` leaves out keys.

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
    /// A short text that differs for different tools.
    pub fn fingerprint(&self) -> String {
        // FNV-1a, which is the same in every version of the client and the server.
        let text = json!(self).to_string();
        let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        format!("{hash:016x}")
    }

    /// The notification as a line. Its name is in `type` as well as in `method`.
    pub fn to_line(&self) -> Vec<u8> {
        let name = relay_methods::CALLER_TOOLS_CONFIG;
        let message = json!({ "jsonrpc": "2.0", "type": name, "method": name, "params": self });
        let mut line = message.to_string().into_bytes();
        line.push(b'\n');
        line
    }

    /// Reads the notification; none if the message is another one.
    pub fn from_message(message: &Message) -> Option<Self> {
        let matches = message.method.as_deref() == Some(relay_methods::CALLER_TOOLS_CONFIG);
        matches.then(|| message.params().ok()).flatten()
    }
}

/// The longest tool name that every agent accepts.
const MAX_TOOL_NAME_BYTES: usize = 64;

/// The name of a caller's tool for the agent: the caller's id and the caller's own name for it.
/// Characters that some agents reject become `_`, and a name that is too long is cut and ends in a
/// hash of the whole.
pub fn caller_tool_name(caller_id: &str, name: &str) -> String {
    let whole = format!("{caller_id}_{name}");
    let safe = |c: char| match c {
        'A'..='Z' | 'a'..='z' | '0'..='9' | '_' | '-' => c,
        _ => '_',
    };
    let plain: String = whole.chars().map(safe).collect();
    if plain.len() <= MAX_TOOL_NAME_BYTES {
        return plain;
    }
    // FNV-1a: the hash only tells names apart.
    let hash = whole.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    format!("{}_{hash:08x}", &plain[..MAX_TOOL_NAME_BYTES - 9])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_callers_tool_has_a_name_that_every_agent_accepts() {
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
        let line = tools.to_line();
        let value: Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(value["type"], "caller_tools_config");
        assert_eq!(value["params"]["tools"], json!([{ "name": "send" }]));
        let message: Message = serde_json::from_slice(&line).unwrap();
        assert_eq!(CallerTools::from_message(&message), Some(tools));
    }
}
