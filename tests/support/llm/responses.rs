//! OpenAI's responses.

use serde_json::{Value, json};

use super::conversation::{Conversation, Entry, Tool, text};
use super::script::Reply;
use super::{INPUT_TOKENS, OUTPUT_TOKENS, Wire, event};

pub(super) fn read(body: &Value) -> Conversation {
    let mut conversation = Conversation::default();
    for tool in body["tools"].as_array().into_iter().flatten() {
        match tool["type"].as_str() {
            Some("function") => conversation.tools.push(function(tool, None)),
            Some("namespace") => {
                let name = text(&tool["name"]);
                let inner = tool["tools"].as_array().into_iter().flatten();
                let inner = inner.map(|tool| function(tool, Some(name.clone())));
                conversation.tools.extend(inner);
            }
            _ => {}
        }
    }
    if let Some(prompt) = body["input"].as_str() {
        conversation.user(prompt.to_owned());
    }
    for item in body["input"].as_array().into_iter().flatten() {
        match item["type"].as_str() {
            Some("function_call") => {
                let name = text(&item["name"]);
                conversation.entries.push(Entry::Call { name });
            }
            Some("function_call_output") => {
                let result = text(&item["output"]);
                conversation.entries.push(Entry::Result(result));
            }
            Some("message") | None if item["role"] == "user" => {
                conversation.user(text(&item["content"]));
            }
            _ => conversation.entries.push(Entry::Assistant),
        }
    }
    conversation
}

fn function(tool: &Value, namespace: Option<String>) -> Tool {
    Tool {
        name: text(&tool["name"]),
        namespace,
        schema: tool["parameters"].clone(),
    }
}

pub(super) fn write(reply: &Reply) -> Wire {
    let mut whole = json!({
        "id": "resp_mock",
        "object": "response",
        "created_at": 1,
        "status": "in_progress",
        "model": "mock-model",
        "output": [],
    });
    let mut events = vec![event(
        &json!({ "type": "response.created", "response": whole }),
    )];
    let mut opening = events.len();
    let mut output = Vec::new();
    if !reply.text.is_empty() {
        let part = |text: &str| json!({ "type": "output_text", "text": text, "annotations": [] });
        let item = |status: &str, content: Value| {
            json!({
                "id": "msg_mock",
                "type": "message",
                "role": "assistant",
                "status": status,
                "content": content,
            })
        };
        let base_event = |kind: &str| json!({ "type": kind, "item_id": "msg_mock", "output_index": 0, "content_index": 0 });
        let with = |kind: &str, name: &str, value: Value| {
            let mut event = base_event(kind);
            event[name] = value;
            event
        };
        let done = item("completed", json!([part(&reply.text)]));
        let added = item("in_progress", json!([]));
        events.extend([
            event(
                &json!({ "type": "response.output_item.added", "output_index": 0, "item": added }),
            ),
            event(&with("response.content_part.added", "part", part(""))),
        ]);
        for piece in reply.text.split_inclusive(' ') {
            let delta = with("response.output_text.delta", "delta", piece.into());
            events.push(event(&delta));
        }
        opening = events.len();
        let text = Value::from(reply.text.as_str());
        events.extend([
            event(&with("response.output_text.done", "text", text)),
            event(&with(
                "response.content_part.done",
                "part",
                part(&reply.text),
            )),
            event(&json!({ "type": "response.output_item.done", "output_index": 0, "item": done })),
        ]);
        output.push(done);
    }
    if let Some(call) = &reply.call {
        let index = output.len();
        let arguments = Value::Object(call.arguments.clone()).to_string();
        let mut item = json!({
            "id": format!("fc_{}", call.id),
            "type": "function_call",
            "status": "completed",
            "call_id": call.id,
            "name": call.tool.name,
            "arguments": arguments,
        });
        if let Some(namespace) = &call.tool.namespace {
            item["namespace"] = json!(namespace);
        }
        let mut added = item.clone();
        added["status"] = json!("in_progress");
        added["arguments"] = json!("");
        let arguments_event = |kind: &str, name: &str| json!({ "type": kind, "item_id": item["id"], "output_index": index, name: arguments });
        events.extend([
            event(&json!({ "type": "response.output_item.added", "output_index": index, "item": added })),
            event(&arguments_event("response.function_call_arguments.delta", "delta")),
            event(&arguments_event("response.function_call_arguments.done", "arguments")),
            event(&json!({ "type": "response.output_item.done", "output_index": index, "item": item })),
        ]);
        output.push(item);
    }
    whole["status"] = json!("completed");
    whole["output"] = Value::Array(output);
    whole["usage"] = json!({
        "input_tokens": INPUT_TOKENS,
        "input_tokens_details": { "cached_tokens": 0 },
        "output_tokens": OUTPUT_TOKENS,
        "output_tokens_details": { "reasoning_tokens": 0 },
        "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
    });
    events.push(event(
        &json!({ "type": "response.completed", "response": whole }),
    ));
    Wire {
        events,
        opening,
        whole,
    }
}
