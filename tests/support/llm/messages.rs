//! Anthropic's messages.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use super::conversation::{Conversation, Entry, Tool, text};
use super::script::Reply;
use super::{INPUT_TOKENS, OUTPUT_TOKENS, Wire, event};

pub(super) fn read(body: &Value) -> Conversation {
    let mut conversation = Conversation::default();
    for tool in body["tools"].as_array().into_iter().flatten() {
        conversation.tools.push(Tool {
            name: text(&tool["name"]),
            schema: tool["input_schema"].clone(),
            ..Tool::default()
        });
    }
    for message in body["messages"].as_array().into_iter().flatten() {
        let content = &message["content"];
        let is_user = message["role"] == "user";
        let Some(blocks) = content.as_array() else {
            if is_user {
                conversation.user(text(content));
            } else {
                conversation.entries.push(Entry::Assistant);
            }
            continue;
        };
        // Claude Code's own words about an interrupt, before those of the user.
        let is_prompt = |text: &str| is_user && !text.starts_with("[Request interrupted");
        for block in blocks {
            match block["type"].as_str() {
                Some("tool_use") => {
                    let name = text(&block["name"]);
                    conversation.entries.push(Entry::Call { name });
                }
                Some("tool_result") => {
                    let result = text(&block["content"]);
                    conversation.entries.push(Entry::Result(result));
                }
                Some("text") if is_prompt(&text(block)) => conversation.user(text(block)),
                _ => conversation.entries.push(Entry::Assistant),
            }
        }
    }
    conversation
}

pub(super) fn write(reply: &Reply) -> Wire {
    // Two with the same name are one to Claude Code.
    static COUNT: AtomicU64 = AtomicU64::new(1);
    let mut whole = json!({
        "id": format!("msg_{}", COUNT.fetch_add(1, Ordering::Relaxed)),
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": [],
        "stop_reason": null,
        "stop_sequence": null,
        "usage": { "input_tokens": INPUT_TOKENS, "output_tokens": 1 },
    });
    let mut events = vec![event(&json!({ "type": "message_start", "message": whole }))];
    let mut opening = events.len();
    let mut blocks = Vec::new();
    let mut block = |empty: Value, deltas: Vec<Value>, full: Value| {
        let index = blocks.len();
        blocks.push(full);
        let start =
            json!({ "type": "content_block_start", "index": index, "content_block": empty });
        events.push(event(&start));
        for delta in deltas {
            let delta = json!({ "type": "content_block_delta", "index": index, "delta": delta });
            events.push(event(&delta));
        }
        if empty["type"] == "text" {
            opening = events.len();
        }
        events.push(event(
            &json!({ "type": "content_block_stop", "index": index }),
        ));
    };
    if !reply.thought.is_empty() {
        let (thought, signature) = (&reply.thought, "mock");
        block(
            json!({ "type": "thinking", "thinking": "", "signature": "" }),
            vec![
                json!({ "type": "thinking_delta", "thinking": thought }),
                json!({ "type": "signature_delta", "signature": signature }),
            ],
            json!({ "type": "thinking", "thinking": thought, "signature": signature }),
        );
    }
    if !reply.text.is_empty() {
        let pieces = reply.text.split_inclusive(' ');
        block(
            json!({ "type": "text", "text": "" }),
            pieces
                .map(|piece| json!({ "type": "text_delta", "text": piece }))
                .collect(),
            json!({ "type": "text", "text": reply.text }),
        );
    }
    if let Some(call) = &reply.call {
        let arguments = Value::Object(call.arguments.clone());
        let full = json!({
            "type": "tool_use",
            "id": format!("toolu_{}", call.id),
            "name": call.tool.name,
            "input": arguments,
        });
        let mut empty = full.clone();
        empty["input"] = json!({});
        let delta = json!({ "type": "input_json_delta", "partial_json": arguments.to_string() });
        block(empty, vec![delta], full);
    }
    let reason = match reply.call {
        Some(_) => "tool_use",
        None => "end_turn",
    };
    events.push(event(&json!({
        "type": "message_delta",
        "delta": { "stop_reason": reason, "stop_sequence": null },
        "usage": { "output_tokens": OUTPUT_TOKENS },
    })));
    events.push(event(&json!({ "type": "message_stop" })));
    whole["content"] = Value::Array(blocks);
    whole["stop_reason"] = json!(reason);
    whole["usage"]["output_tokens"] = json!(OUTPUT_TOKENS);
    Wire {
        events,
        opening,
        whole,
    }
}
