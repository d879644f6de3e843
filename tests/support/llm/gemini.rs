//! Google's generateContent.

use serde_json::{Value, json};

use super::conversation::{Conversation, Entry, Tool, text};
use super::script::Reply;
use super::{INPUT_TOKENS, OUTPUT_TOKENS, Wire, data};

pub(super) fn read(body: &Value) -> Conversation {
    let mut conversation = Conversation {
        wants_json: body["generationConfig"]["responseMimeType"] == "application/json",
        ..Conversation::default()
    };
    for group in body["tools"].as_array().into_iter().flatten() {
        for tool in group["functionDeclarations"]
            .as_array()
            .into_iter()
            .flatten()
        {
            let schema = ["parametersJsonSchema", "parameters"];
            let schema = schema.iter().find_map(|name| tool.get(name));
            conversation.tools.push(Tool {
                name: text(&tool["name"]),
                schema: schema.cloned().unwrap_or_default(),
                ..Tool::default()
            });
        }
    }
    for content in body["contents"].as_array().into_iter().flatten() {
        let is_user = content["role"] != "model";
        for part in content["parts"].as_array().into_iter().flatten() {
            if let Some(call) = part.get("functionCall") {
                let name = text(&call["name"]);
                conversation.entries.push(Entry::Call { name });
            } else if let Some(response) = part.get("functionResponse") {
                let output = &response["response"]["output"];
                let result = match output {
                    Value::Null => response["response"].to_string(),
                    output => text(output),
                };
                conversation.entries.push(Entry::Result(result));
            } else if is_user {
                conversation.user(text(part));
            } else {
                conversation.entries.push(Entry::Assistant);
            }
        }
    }
    conversation
}

pub(super) fn write(reply: &Reply) -> Wire {
    let chunk = |parts: Value, finish: Option<&str>| {
        let mut candidate = json!({ "index": 0, "content": { "role": "model", "parts": parts } });
        if let Some(finish) = finish {
            candidate["finishReason"] = json!(finish);
        }
        json!({
            "candidates": [candidate],
            "modelVersion": reply.model,
            "usageMetadata": {
                "promptTokenCount": INPUT_TOKENS,
                "candidatesTokenCount": OUTPUT_TOKENS,
                "totalTokenCount": INPUT_TOKENS + OUTPUT_TOKENS,
            },
        })
    };
    let mut text_parts = Vec::new();
    if !reply.thought.is_empty() {
        text_parts.push(json!({ "text": reply.thought, "thought": true }));
    }
    text_parts.push(json!({ "text": reply.text }));
    let mut parts = Vec::new();
    if let Some(call) = &reply.call {
        let call = json!({ "id": call.id, "name": call.tool.name, "args": call.arguments });
        parts.push(json!({ "functionCall": call }));
    }
    let whole: Vec<Value> = text_parts.iter().chain(&parts).cloned().collect();
    Wire {
        events: vec![
            data(&chunk(Value::Array(text_parts), None)),
            data(&chunk(Value::Array(parts), Some("STOP"))),
        ],
        opening: 1,
        whole: chunk(Value::Array(whole), Some("STOP")),
    }
}
