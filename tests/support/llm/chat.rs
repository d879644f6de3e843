//! OpenAI's chat completions.

use serde_json::{Value, json};

use super::conversation::{Conversation, Entry, Tool, text};
use super::script::Reply;
use super::{INPUT_TOKENS, OUTPUT_TOKENS, Wire, data};

pub(super) fn read(body: &Value) -> Conversation {
    let mut conversation = Conversation::default();
    for tool in body["tools"].as_array().into_iter().flatten() {
        conversation.tools.push(Tool {
            name: text(&tool["function"]["name"]),
            schema: tool["function"]["parameters"].clone(),
            ..Tool::default()
        });
    }
    for message in body["messages"].as_array().into_iter().flatten() {
        match message["role"].as_str() {
            Some("user") => conversation.user(text(&message["content"])),
            Some("assistant") => {
                conversation.entries.push(Entry::Assistant);
                for call in message["tool_calls"].as_array().into_iter().flatten() {
                    let name = text(&call["function"]["name"]);
                    conversation.entries.push(Entry::Call { name });
                }
            }
            Some("tool") => {
                let result = text(&message["content"]);
                conversation.entries.push(Entry::Result(result));
            }
            _ => {}
        }
    }
    conversation
}

pub(super) fn write(reply: &Reply) -> Wire {
    let usage = json!({
        "prompt_tokens": INPUT_TOKENS,
        "completion_tokens": OUTPUT_TOKENS,
        "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
    });
    let part = |choices: Value| {
        json!({
            "id": "chatcmpl-mock",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": reply.model,
            "choices": choices,
        })
    };
    let delta = |delta: Value, finish: Option<&str>| {
        let choice = json!({ "index": 0, "delta": delta, "finish_reason": finish });
        data(&part(json!([choice])))
    };
    let mut message = json!({ "role": "assistant", "content": reply.text });
    let mut events = vec![delta(json!({ "role": "assistant", "content": "" }), None)];
    if !reply.thought.is_empty() {
        events.push(delta(json!({ "reasoning_content": reply.thought }), None));
    }
    for piece in reply.text.split_inclusive(' ') {
        events.push(delta(json!({ "content": piece }), None));
    }
    let opening = events.len();
    let mut finish = "stop";
    if let Some(call) = &reply.call {
        let function = json!({
            "name": call.tool.name,
            "arguments": Value::Object(call.arguments.clone()).to_string(),
        });
        let call = json!({ "index": 0, "id": call.id, "type": "function", "function": function });
        message["tool_calls"] = json!([call]);
        events.push(delta(json!({ "tool_calls": [call] }), None));
        finish = "tool_calls";
    }
    events.push(delta(json!({}), Some(finish)));
    let mut last = part(json!([]));
    last["usage"] = usage.clone();
    events.push(data(&last));
    events.push("data: [DONE]\n\n".to_owned());
    let choice = json!({ "index": 0, "message": message, "finish_reason": finish });
    let mut whole = part(json!([choice]));
    whole["object"] = json!("chat.completion");
    whole["usage"] = usage;
    Wire {
        events,
        opening,
        whole,
    }
}
