//! A `session/update`, which an agent sends while it works.
//!
//! Parsed from plain JSON: the protocol's own types reject a whole update for one value that is newer
//! than they are.

use serde_json::{Value, json};

use crate::UsageReport;
use crate::signals::{self, Signal};
use crate::tool_input::{tool_input, truncated};

/// How many bytes of the output of one tool call are kept.
const MAX_TOOL_TEXT_BYTES: usize = 256 << 10;
const MAX_ID_CHARS: usize = 200;
const MAX_KIND_CHARS: usize = 60;
const MAX_MODE_CHARS: usize = 60;
const MAX_COMMANDS: usize = 256;
const MAX_COMMAND_TEXT_CHARS: usize = 200;

/// A part of a text that the agent streams.
#[derive(Debug, Clone, PartialEq)]
pub struct TextChunk {
    pub text: String,
    /// The agent's id of the whole text, if it sends one; another id begins another text.
    pub message_id: Option<String>,
}

/// A tool call, as far as the update describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    pub id: String,
    pub title: Option<String>,
    pub kind: Option<String>,
    pub input: Option<Value>,
    /// Whether this is the first update of the call; a later one can have more of the input.
    pub is_first: bool,
    pub started: bool,
    /// Output since the last update, if the agent streams it.
    pub output_delta: String,
    /// Present when the call has ended.
    pub outcome: Option<ToolOutcome>,
}

impl ToolCall {
    /// The plan that it writes, as the entries of a `plan` update; none if it writes none.
    pub fn plan(&self) -> Option<Value> {
        let todos = self.input.as_ref()?.get("todos")?.as_array()?;
        let entry = |todo: &Value| {
            let mut texts = ["content", "description"].into_iter();
            let content = texts.find_map(|name| todo[name].as_str())?;
            let priority = todo["priority"].as_str().unwrap_or("medium");
            Some(
                json!({ "content": content, "priority": priority, "status": todo["status"].as_str()? }),
            )
        };
        todos.iter().map(entry).collect()
    }
}

/// How a tool call ended.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolOutcome {
    pub failed: bool,
    pub output: String,
    pub truncated: bool,
}

/// The content of a `session/update`.
#[derive(Debug, Clone, PartialEq)]
pub enum AgentUpdate {
    Text(TextChunk),
    Thought(TextChunk),
    Plan(Value),
    Tool(ToolCall),
    Usage(UsageReport),
    /// The slash commands that the agent has now.
    Commands(Value),
    /// The agent's mode.
    Mode(String),
    /// What the agent says about itself.
    Signal(Signal),
    /// An update that the event log does not record: settings, titles, the user's own text.
    Ignored,
    /// A kind that this version does not know.
    Unknown(String),
}

impl AgentUpdate {
    /// Parses a notification; none if it is not about the agent's work.
    pub fn from_notification(method: &str, params: &Value) -> Option<Self> {
        match method {
            "session/update" => Some(Self::parse(params)),
            signals::CLAUDE_MESSAGE => signals::from_claude_message(params).map(Self::Signal),
            _ => None,
        }
    }

    /// Whether the agent does something with it that a turn consists of.
    pub fn is_work(&self) -> bool {
        matches!(
            self,
            Self::Text(_) | Self::Thought(_) | Self::Plan(_) | Self::Tool(_)
        )
    }

    /// Parses the parameters of a `session/update`.
    pub fn parse(params: &Value) -> Self {
        let update = &params["update"];
        let kind = update["sessionUpdate"].as_str().unwrap_or_default();
        match kind {
            "agent_message_chunk" => match (text_chunk(update), UsageReport::from_chunk(update)) {
                (Some(chunk), _) => Self::Text(chunk),
                (None, Some(usage)) => Self::Usage(usage),
                (None, None) => Self::Ignored,
            },
            "agent_thought_chunk" => text_chunk(update).map_or(Self::Ignored, Self::Thought),
            "plan" => Self::Plan(update["entries"].clone()),
            "tool_call" | "tool_call_update" => tool_call(update).map_or(Self::Ignored, Self::Tool),
            "usage_update" => Self::Usage(UsageReport::from_update(update)),
            "available_commands_update" => Self::Commands(commands(update)),
            "current_mode_update" => match update["currentModeId"].as_str() {
                Some(mode) => Self::Mode(mode.chars().take(MAX_MODE_CHARS).collect()),
                None => Self::Ignored,
            },
            "notice" => signals::from_notice(update).map_or(Self::Ignored, Self::Signal),
            "session_info_update" => {
                signals::from_session_info(update).map_or(Self::Ignored, Self::Signal)
            }
            "user_message_chunk" | "config_option_update" => Self::Ignored,
            other => Self::Unknown(other.chars().take(MAX_KIND_CHARS).collect()),
        }
    }
}

fn commands(update: &Value) -> Value {
    let commands = update["availableCommands"].as_array().into_iter().flatten();
    let parse = |command: &Value| {
        let mut parsed = serde_json::Map::new();
        let hint = &command["input"]["hint"];
        for (name, value) in [
            ("name", &command["name"]),
            ("description", &command["description"]),
            ("input", hint),
        ] {
            let text = value.as_str().unwrap_or_default();
            let text: String = text.chars().take(MAX_COMMAND_TEXT_CHARS).collect();
            if !text.is_empty() {
                parsed.insert(name.to_owned(), text.into());
            }
        }
        parsed.contains_key("name").then_some(Value::Object(parsed))
    };
    commands.take(MAX_COMMANDS).filter_map(parse).collect()
}

fn text_chunk(update: &Value) -> Option<TextChunk> {
    let id = update["messageId"].as_str();
    Some(TextChunk {
        text: text(&update["content"])?,
        message_id: id.map(|id| id.chars().take(MAX_ID_CHARS).collect()),
    })
}

fn text(content: &Value) -> Option<String> {
    let text = match content["type"].as_str() {
        Some("text") | None => content["text"].as_str()?.to_owned(),
        Some("resource_link") => content["uri"].as_str()?.to_owned(),
        Some(kind) => format!("[{kind}]"),
    };
    (!text.is_empty()).then_some(text)
}

fn tool_call(update: &Value) -> Option<ToolCall> {
    let id = update["toolCallId"].as_str()?;
    let field = |key: &str| update[key].as_str().map(str::to_owned);
    let status = update["status"].as_str().unwrap_or_default();
    let outcome = matches!(status, "completed" | "failed").then(|| {
        let (output, truncated) = truncated(&output(update), MAX_TOOL_TEXT_BYTES);
        ToolOutcome {
            failed: status == "failed",
            output,
            truncated,
        }
    });
    Some(ToolCall {
        id: id.chars().take(MAX_ID_CHARS).collect(),
        title: field("title").filter(|title| !title.is_empty()),
        kind: field("kind"),
        input: tool_input(update),
        is_first: update["sessionUpdate"] == "tool_call",
        output_delta: output_delta(update),
        started: status == "in_progress" || outcome.is_some(),
        outcome,
    })
}

/// The output of a tool: the raw output if it is a text, else the content blocks, which agents format
/// for display.
fn output(update: &Value) -> String {
    let blocks = update["content"].as_array().into_iter().flatten();
    let mut texts: Vec<String> = Vec::new();
    let mut has_diff = false;
    for block in blocks {
        match block["type"].as_str() {
            Some("diff") => {
                let path = block["path"].as_str().unwrap_or_default();
                texts.push(format!("changed {path}"));
                has_diff = true;
            }
            _ => texts.extend(text(&block["content"])),
        }
    }
    let raw = update["rawOutput"].as_str().filter(|raw| !raw.is_empty());
    if let Some(raw) = raw
        && !has_diff
    {
        return raw.to_owned();
    }
    if !texts.is_empty() {
        return texts.join("\n");
    }
    match &update["rawOutput"] {
        Value::Null => String::new(),
        raw => match raw["output"].as_str() {
            Some(text) => text.to_owned(),
            None => raw.to_string(),
        },
    }
}

/// Some agents stream the output of a command in these extensions of the protocol, and some only
/// there.
fn output_delta(update: &Value) -> String {
    let meta = &update["_meta"];
    let mut keys = ["terminal_output", "terminal_output_delta"].into_iter();
    let delta = keys.find_map(|key| meta[key]["data"].as_str());
    truncated(delta.unwrap_or_default(), MAX_TOOL_TEXT_BYTES).0
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(update: Value) -> AgentUpdate {
        AgentUpdate::parse(&json!({ "sessionId": "s", "update": update }))
    }

    fn chunk(text: &str, message_id: Option<&str>) -> TextChunk {
        TextChunk {
            text: text.to_owned(),
            message_id: message_id.map(str::to_owned),
        }
    }

    #[test]
    fn text_and_thoughts_are_parsed() {
        let message = json!({ "sessionUpdate": "agent_message_chunk", "messageId": "m1",
            "content": { "type": "text", "text": "hi" } });
        assert_eq!(parse(message), AgentUpdate::Text(chunk("hi", Some("m1"))));
        let thought = json!({ "sessionUpdate": "agent_thought_chunk",
            "content": { "type": "text", "text": "hm" } });
        assert_eq!(parse(thought), AgentUpdate::Thought(chunk("hm", None)));
        let image = json!({ "sessionUpdate": "agent_message_chunk",
            "content": { "type": "image", "data": "…" } });
        assert_eq!(parse(image), AgentUpdate::Text(chunk("[image]", None)));
    }

    #[test]
    fn the_updates_of_a_tool_call_are_parsed() {
        let pending = json!({ "sessionUpdate": "tool_call", "toolCallId": "1", "title": "bash",
            "kind": "execute", "status": "pending", "rawInput": {} });
        let AgentUpdate::Tool(tool) = parse(pending) else {
            panic!()
        };
        assert_eq!(
            (tool.started, tool.input, tool.outcome),
            (false, None, None)
        );
        let done = json!({ "sessionUpdate": "tool_call_update", "toolCallId": "1",
            "status": "completed", "content": [
                { "type": "content", "content": { "type": "text", "text": "a" } },
                { "type": "content", "content": { "type": "text", "text": "b" } } ] });
        let AgentUpdate::Tool(tool) = parse(done) else {
            panic!()
        };
        assert_eq!(tool.outcome.unwrap().output, "a\nb");
        let raw = json!({ "sessionUpdate": "tool_call_update", "toolCallId": "1",
            "status": "failed", "rawOutput": { "output": "boom" } });
        let AgentUpdate::Tool(tool) = parse(raw) else {
            panic!()
        };
        assert_eq!(
            tool.outcome.map(|outcome| (outcome.failed, outcome.output)),
            Some((true, "boom".to_owned()))
        );
    }

    #[test]
    fn raw_output_is_preferred_to_formatted_content() {
        let fenced =
            json!([{ "type": "content", "content": { "type": "text", "text": "```a```" } }]);
        let diff = json!([{ "type": "diff", "path": "/x" }]);
        for (content, expected) in [(fenced, "a"), (diff, "changed /x"), (json!([]), "a")] {
            let done = json!({ "sessionUpdate": "tool_call_update", "toolCallId": "1",
                "status": "completed", "content": content, "rawOutput": "a" });
            let AgentUpdate::Tool(tool) = parse(done) else {
                panic!()
            };
            assert_eq!(tool.outcome.unwrap().output, expected);
        }
    }

    #[test]
    fn streamed_output_of_a_command_is_parsed() {
        let first = json!({ "sessionUpdate": "tool_call", "toolCallId": "1",
            "status": "in_progress", "content": [{ "type": "terminal", "terminalId": "1" }] });
        let AgentUpdate::Tool(tool) = parse(first) else {
            panic!()
        };
        assert!(tool.is_first && tool.started && tool.output_delta.is_empty());
        for key in ["terminal_output", "terminal_output_delta"] {
            let delta = json!({ "sessionUpdate": "tool_call_update", "toolCallId": "1",
                "_meta": { key: { "data": "a\n", "terminal_id": "1" } } });
            let AgentUpdate::Tool(tool) = parse(delta) else {
                panic!()
            };
            assert_eq!((tool.output_delta.as_str(), tool.is_first), ("a\n", false));
        }
    }

    #[test]
    fn an_unknown_kind_of_update_is_named() {
        assert_eq!(
            parse(json!({ "sessionUpdate": "telepathy" })),
            AgentUpdate::Unknown("telepathy".to_owned())
        );
        assert_eq!(
            AgentUpdate::parse(&Value::Null),
            AgentUpdate::Unknown(String::new())
        );
    }

    #[test]
    fn an_edit_that_is_only_a_diff_has_an_input() {
        let diff = json!({ "type": "diff", "oldText": "EDITED by cx\n",
            "newText": "EDITED again by cx\n", "path": "/workspace/made.txt" });
        let begun = json!({ "sessionUpdate": "tool_call", "toolCallId": "1", "kind": "edit",
            "title": "Editing files", "status": "in_progress", "content": [diff] });
        let AgentUpdate::Tool(tool) = parse(begun) else {
            panic!()
        };
        let change = &tool.input.unwrap()["changes"][0];
        assert_eq!(change["path"], "/workspace/made.txt");
        assert_eq!(change["new_text"], "EDITED again by cx\n");
    }

    #[test]
    fn commands_modes_and_signals_are_parsed() {
        let commands = json!({ "sessionUpdate": "available_commands_update", "availableCommands": [
            { "name": "compact", "description": "d".repeat(900), "input": { "hint": "what" } },
            { "description": "without a name" }, 3 ] });
        let AgentUpdate::Commands(commands) = parse(commands) else {
            panic!()
        };
        assert_eq!(commands.as_array().unwrap().len(), 1);
        assert_eq!(commands[0]["name"], "compact");
        assert_eq!(commands[0]["input"], "what");
        assert_eq!(
            commands[0]["description"].as_str().unwrap().len(),
            MAX_COMMAND_TEXT_CHARS
        );
        let mode = json!({ "sessionUpdate": "current_mode_update", "currentModeId": "plan" });
        assert_eq!(parse(mode), AgentUpdate::Mode("plan".to_owned()));
        let failed = json!({ "sessionUpdate": "session_info_update",
            "_meta": { "codex": { "threadStatus": { "type": "systemError" } } } });
        let failed_signal = AgentUpdate::Signal(Signal::State(crate::AgentState::Failed));
        assert_eq!(parse(failed), failed_signal);
        let title = json!({ "sessionUpdate": "session_info_update", "title": "x" });
        assert_eq!(parse(title), AgentUpdate::Ignored);
        let notification = AgentUpdate::from_notification("other/method", &json!({}));
        assert_eq!(notification, None);
    }
}
