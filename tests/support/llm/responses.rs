//! OpenAI's responses.

use serde_json::{Value, json};

use super::conversation::{Conversation, Entry, Tool, text};
use super::script::Reply;
use super::{INPUT_TOKENS, OUTPUT_TOKENS, Wire, event};

pub(super) fn read(body: &Value) -> Conversation {
    let mut conversation = Conversation {
        tools: tools(&body["tools"], None),
        wants_json: body["text"]["format"]["type"] == "json_schema",
        ..Conversation::default()
    };
    if let Some(prompt) = body["input"].as_str() {
        conversation.user(prompt.to_owned());
    }
    for item in body["input"].as_array().into_iter().flatten() {
        match item["type"].as_str() {
            Some("additional_tools") => conversation.tools.extend(tools(&item["tools"], None)),
            Some("function_call" | "custom_tool_call") => {
                let name = text(&item["name"]);
                conversation.entries.push(Entry::Call { name });
            }
            Some("function_call_output" | "custom_tool_call_output") => {
                let result = text(&item["output"]);
                // A program's output follows a line about its end and one about its time.
                let output = result.strip_prefix("Script completed").unwrap_or_default();
                let output = output.split_once("Output:\n").map(|(_, output)| output);
                let result = output.map(str::to_owned).unwrap_or(result);
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

/// The tools of a list, with those of its namespaces.
fn tools(list: &Value, namespace: Option<&str>) -> Vec<Tool> {
    let mut tools = Vec::new();
    for tool in list.as_array().into_iter().flatten() {
        let name = text(&tool["name"]);
        if tool["type"] == "namespace" {
            tools.extend(self::tools(&tool["tools"], Some(&name)));
        } else if tool["type"] == "function" || tool["type"] == "custom" {
            tools.push(Tool {
                runs_code: tool["type"] == "custom" && name == "exec",
                name,
                namespace: namespace.map(str::to_owned),
                schema: tool["parameters"].clone(),
            });
        }
    }
    tools
}

pub(super) fn write(reply: &Reply) -> Wire {
    let mut whole = json!({
        "id": "resp_mock",
        "object": "response",
        "created_at": 1,
        "status": "in_progress",
        "model": reply.model,
        "output": [],
    });
    let mut events = vec![event(
        &json!({ "type": "response.created", "response": whole }),
    )];
    let mut opening = events.len();
    let mut output = Vec::new();
    if !reply.thought.is_empty() {
        let summary = json!([{ "type": "summary_text", "text": reply.thought }]);
        let item =
            |summary: Value| json!({ "id": "rs_mock", "type": "reasoning", "summary": summary });
        let delta = json!({
            "type": "response.reasoning_summary_text.delta",
            "item_id": "rs_mock",
            "output_index": 0,
            "summary_index": 0,
            "delta": reply.thought,
        });
        let done = item(summary);
        events.extend([
            event(&json!({ "type": "response.output_item.added", "output_index": 0, "item": item(json!([])) })),
            event(&delta),
            event(&json!({ "type": "response.output_item.done", "output_index": 0, "item": done })),
        ]);
        output.push(done);
    }
    let index = output.len();
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
        let base_event = |kind: &str| json!({ "type": kind, "item_id": "msg_mock", "output_index": index, "content_index": 0 });
        let with = |kind: &str, name: &str, value: Value| {
            let mut event = base_event(kind);
            event[name] = value;
            event
        };
        let done = item("completed", json!([part(&reply.text)]));
        let added = item("in_progress", json!([]));
        events.extend([
            event(
                &json!({ "type": "response.output_item.added", "output_index": index, "item": added }),
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
            event(&json!({ "type": "response.output_item.done", "output_index": index, "item": done })),
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
        if call.tool.runs_code {
            item["type"] = json!("custom_tool_call");
            item["id"] = json!(format!("ctc_{}", call.id));
            item["input"] = call.arguments["code"].clone();
        }
        let mut added = item.clone();
        added["status"] = json!("in_progress");
        added["arguments"] = json!("");
        let arguments_event = |kind: &str, name: &str| json!({ "type": kind, "item_id": item["id"], "output_index": index, name: arguments });
        events.push(event(
            &json!({ "type": "response.output_item.added", "output_index": index, "item": added }),
        ));
        if !call.tool.runs_code {
            events.extend([
                event(&arguments_event(
                    "response.function_call_arguments.delta",
                    "delta",
                )),
                event(&arguments_event(
                    "response.function_call_arguments.done",
                    "arguments",
                )),
            ]);
        }
        events.push(event(
            &json!({ "type": "response.output_item.done", "output_index": index, "item": item }),
        ));
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
