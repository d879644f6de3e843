//! What an agent says while it works: one `session/update`, in our words.
//!
//! Read from plain JSON: the protocol's own types refuse a whole update for one word that is newer
//! than they are.

use serde_json::Value;

use crate::Reported;

/// Most characters of what one tool says.
const LONGEST: usize = 256 << 10;

/// A part of a text.
#[derive(Debug, Clone, PartialEq)]
pub struct Chunk {
    pub text: String,
    /// The agent's name for the whole, where it has one: another name begins another text.
    pub message: Option<String>,
}

/// A call of a tool, as far as it is known.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    pub id: String,
    pub title: Option<String>,
    pub kind: Option<String>,
    /// Absent while it is not known.
    pub input: Option<Value>,
    /// Whether this is the first of it, which may know less of the input than what follows.
    pub announced: bool,
    /// Whether it has begun.
    pub begun: bool,
    /// What it has said since the last update, where the agent streams that.
    pub more: String,
    pub end: Option<ToolEnd>,
}

/// How a call of a tool ended.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolEnd {
    pub failed: bool,
    pub output: String,
    pub truncated: bool,
}

/// What an update says.
#[derive(Debug, Clone, PartialEq)]
pub enum Said {
    Text(Chunk),
    Thought(Chunk),
    Plan(Value),
    Tool(Tool),
    Usage(Reported),
    /// Nothing that a log needs: modes, commands, what the user said.
    Nothing,
    /// Something newer than we are.
    Unknown(String),
}

impl Said {
    /// Reads the parameters of a `session/update`.
    pub fn read(params: &Value) -> Self {
        let update = &params["update"];
        let kind = update["sessionUpdate"].as_str().unwrap_or_default();
        match kind {
            "agent_message_chunk" => chunk(update).map_or(Self::Nothing, Self::Text),
            "agent_thought_chunk" => chunk(update).map_or(Self::Nothing, Self::Thought),
            "plan" => Self::Plan(update["entries"].clone()),
            "tool_call" | "tool_call_update" => tool(update).map_or(Self::Nothing, Self::Tool),
            "usage_update" => Self::Usage(Reported::from_update(update)),
            "user_message_chunk"
            | "available_commands_update"
            | "current_mode_update"
            | "config_option_update"
            | "session_info_update" => Self::Nothing,
            other => Self::Unknown(other.chars().take(60).collect()),
        }
    }
}

fn chunk(update: &Value) -> Option<Chunk> {
    let name = update["messageId"].as_str();
    Some(Chunk {
        text: text(&update["content"])?,
        message: name.map(|name| name.chars().take(200).collect()),
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

fn tool(update: &Value) -> Option<Tool> {
    let id: String = update["toolCallId"].as_str()?.chars().take(200).collect();
    let word = |key: &str| update[key].as_str().map(str::to_owned);
    let status = update["status"].as_str().unwrap_or_default();
    let input = update.get("rawInput").filter(|input| !is_empty(input));
    let end = matches!(status, "completed" | "failed").then(|| {
        let (output, truncated) = cut(output(update));
        ToolEnd {
            failed: status == "failed",
            output,
            truncated,
        }
    });
    Some(Tool {
        id,
        title: word("title").filter(|title| !title.is_empty()),
        kind: word("kind"),
        input: input.map(bounded),
        announced: update["sessionUpdate"] == "tool_call",
        more: more(update),
        begun: status == "in_progress" || end.is_some(),
        end,
    })
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

/// An input that is too large to keep is described instead.
fn bounded(input: &Value) -> Value {
    let size = input.to_string().len();
    match size > LONGEST {
        true => Value::String(format!("{size} bytes of input")),
        false => input.clone(),
    }
}

/// What the tool said: its raw output where that is a text, else its content blocks, which may be
/// dressed up for a reader.
fn output(update: &Value) -> String {
    let blocks = update["content"].as_array().into_iter().flatten();
    let mut texts: Vec<String> = Vec::new();
    let mut changed = false;
    for block in blocks {
        match block["type"].as_str() {
            Some("diff") => {
                let path = block["path"].as_str().unwrap_or_default();
                texts.push(format!("changed {path}"));
                changed = true;
            }
            _ => texts.extend(text(&block["content"])),
        }
    }
    let raw = update["rawOutput"].as_str().filter(|raw| !raw.is_empty());
    if let (Some(raw), false) = (raw, changed) {
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

/// Not in the protocol, and how agents stream what a command says: for some the only way.
fn more(update: &Value) -> String {
    let meta = &update["_meta"];
    let mut chunks = ["terminal_output", "terminal_output_delta"].into_iter();
    let chunk = chunks.find_map(|key| meta[key]["data"].as_str());
    cut(chunk.unwrap_or_default().to_owned()).0
}

fn cut(mut text: String) -> (String, bool) {
    if text.len() <= LONGEST {
        return (text, false);
    }
    let mut end = LONGEST;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    (text, true)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(update: Value) -> Said {
        Said::read(&json!({ "sessionId": "s", "update": update }))
    }

    fn part(text: &str, message: Option<&str>) -> Chunk {
        Chunk {
            text: text.to_owned(),
            message: message.map(str::to_owned),
        }
    }

    #[test]
    fn text_and_thoughts_are_read() {
        let chunk = json!({ "sessionUpdate": "agent_message_chunk", "messageId": "m1",
            "content": { "type": "text", "text": "hi" } });
        assert_eq!(read(chunk), Said::Text(part("hi", Some("m1"))));
        let thought = json!({ "sessionUpdate": "agent_thought_chunk",
            "content": { "type": "text", "text": "hm" } });
        assert_eq!(read(thought), Said::Thought(part("hm", None)));
        let image = json!({ "sessionUpdate": "agent_message_chunk",
            "content": { "type": "image", "data": "…" } });
        assert_eq!(read(image), Said::Text(part("[image]", None)));
    }

    #[test]
    fn a_tool_is_read_as_it_comes_to_be_known() {
        let pending = json!({ "sessionUpdate": "tool_call", "toolCallId": "1", "title": "bash",
            "kind": "execute", "status": "pending", "rawInput": {} });
        let Said::Tool(tool) = read(pending) else {
            panic!()
        };
        assert_eq!((tool.begun, tool.input, tool.end), (false, None, None));
        let done = json!({ "sessionUpdate": "tool_call_update", "toolCallId": "1",
            "status": "completed", "content": [
                { "type": "content", "content": { "type": "text", "text": "a" } },
                { "type": "content", "content": { "type": "text", "text": "b" } } ] });
        let Said::Tool(tool) = read(done) else {
            panic!()
        };
        assert_eq!(tool.end.unwrap().output, "a\nb");
        let raw = json!({ "sessionUpdate": "tool_call_update", "toolCallId": "1",
            "status": "failed", "rawOutput": { "output": "boom" } });
        let Said::Tool(tool) = read(raw) else {
            panic!()
        };
        assert_eq!(
            tool.end.map(|end| (end.failed, end.output)),
            Some((true, "boom".to_owned()))
        );
    }

    #[test]
    fn a_plain_output_is_taken_before_one_for_readers() {
        let fenced =
            json!([{ "type": "content", "content": { "type": "text", "text": "```a```" } }]);
        let diff = json!([{ "type": "diff", "path": "/x" }]);
        for (content, expected) in [(fenced, "a"), (diff, "changed /x"), (json!([]), "a")] {
            let done = json!({ "sessionUpdate": "tool_call_update", "toolCallId": "1",
                "status": "completed", "content": content, "rawOutput": "a" });
            let Said::Tool(tool) = read(done) else {
                panic!()
            };
            assert_eq!(tool.end.unwrap().output, expected);
        }
    }

    #[test]
    fn what_a_command_streams_is_read() {
        let announced = json!({ "sessionUpdate": "tool_call", "toolCallId": "1",
            "status": "in_progress", "content": [{ "type": "terminal", "terminalId": "1" }] });
        let Said::Tool(tool) = read(announced) else {
            panic!()
        };
        assert!(tool.announced && tool.begun && tool.more.is_empty());
        for key in ["terminal_output", "terminal_output_delta"] {
            let more = json!({ "sessionUpdate": "tool_call_update", "toolCallId": "1",
                "_meta": { key: { "data": "a\n", "terminal_id": "1" } } });
            let Said::Tool(tool) = read(more) else {
                panic!()
            };
            assert_eq!((tool.more.as_str(), tool.announced), ("a\n", false));
        }
    }

    #[test]
    fn what_is_newer_than_we_are_is_named() {
        assert_eq!(
            read(json!({ "sessionUpdate": "telepathy" })),
            Said::Unknown("telepathy".to_owned())
        );
        assert_eq!(Said::read(&Value::Null), Said::Unknown(String::new()));
    }

    #[test]
    fn a_long_output_is_cut_between_characters() {
        let (text, truncated) = cut("ü".repeat(LONGEST));
        assert!(truncated && text.len() <= LONGEST && text.ends_with('ü'));
    }
}
