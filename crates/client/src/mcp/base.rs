//! The tools that every agent with a session has: sessions below its own.

use std::sync::Arc;

use rmcp::model::{Tool, ToolAnnotations};
use serde_json::{Map, Value, json};

const MESSAGE: &str = "session_message";
const EVENTS: &str = "session_events";
const END: &str = "session_end";
const LIMITS: &str = "config_limits";

pub(super) const NAMES: [&str; 4] = [MESSAGE, EVENTS, END, LIMITS];

/// Whether repeating a call must be the same call.
pub(super) fn happens_once(name: &str) -> bool {
    name == MESSAGE
}

pub(super) fn tools() -> Vec<Tool> {
    vec![
        tool(
            MESSAGE,
            "Give a task to another agent and wait for its answer. Without `session_id` a new child \
             agent begins, in your workspace unless you say otherwise; with the `session_id` of an \
             earlier answer that child goes on. The result has `session_id`, and `text`, \
             `stop_reason` and `error` of its turn. It waits `wait_seconds` at most; if the child is \
             not done by then, `status` is `running` and it works on: follow it with `session_events`. \
             Call it several times at once to have children work side by side. Depth, number and \
             cost of agents are limited: see `config_limits`.",
            message(),
            ToolAnnotations::new().destructive(false).open_world(false),
        ),
        tool(
            EVENTS,
            "Read what a child session does, from `since_index` on: text, tool calls and their \
             results, and a `completion` with the answer at the end of every turn. With \
             `wait_seconds` it waits for the next event. The result's `last_index` is the next \
             `since_index`; `completed` says that no turn runs or waits.",
            object(
                json!({
                    "session_id": child(),
                    "since_index": { "type": "integer", "description": "Events after this index; from the start if absent." },
                    "max_events": { "type": "integer", "minimum": 1, "maximum": 1000, "description": "How many to return (200 if absent)." },
                    "wait_seconds": { "type": "number", "minimum": 0, "maximum": 50, "description": "How long to wait for an event if there is none (0 if absent)." },
                    "include_children": { "type": "boolean", "description": "Whether to merge in the events of the sessions below it; paged by `cursor`." },
                    "cursor": { "type": "string", "description": "With `include_children`: `cursor` of the page before." },
                }),
                &["session_id"],
            ),
            reads(),
        ),
        tool(
            END,
            "End a child session and every session below it, and return when their processes are \
             gone. What it wrote stays, and a message to it lets it go on.",
            object(json!({ "session_id": child() }), &["session_id"]),
            ToolAnnotations::new()
                .destructive(true)
                .idempotent(true)
                .open_world(false),
        ),
        tool(
            LIMITS,
            "Show how deep agents may start agents, how many there may be and what they may cost, \
             with what your tree of sessions has used and what remains.",
            object(
                json!({ "session_id": {
                    "type": "string",
                    "description": "A child session; your own if absent.",
                } }),
                &[],
            ),
            reads(),
        ),
    ]
}

fn message() -> Map<String, Value> {
    let level = json!(["off", "low", "medium", "high"]);
    object(
        json!({
            "prompt": { "type": "string", "description": "What the agent is to do. It sees the files of its workspace, not your conversation: say all it needs." },
            "session_id": { "type": "string", "description": "A child session to go on with; a new one begins if absent." },
            "wait_seconds": { "type": "number", "minimum": 0, "maximum": 170, "description": "How long to wait for the answer (50 if absent)." },
            "agent": { "type": "string", "description": "Which agent works on it; one like you if absent." },
            "model": { "type": "string", "description": "The model it uses." },
            "autonomy": { "type": "string", "enum": level, "description": "What it may do without asking." },
            "reasoning": { "type": "string", "enum": level, "description": "How hard it thinks." },
            "workspace_id": { "type": "string", "description": "The workspace it works in; yours if absent." },
            "create_workspace": { "type": "boolean", "description": "Whether a workspace that does not exist is made; without `workspace_id`, a new copy of the default one, so that it does not disturb your files." },
            "attachments": {
                "type": "array",
                "description": "Files that are written into its workspace first.",
                "items": {
                    "type": "object",
                    "properties": {
                        "name": { "type": "string", "description": "The path in the workspace." },
                        "text": { "type": "string" },
                        "content_base64": { "type": "string" },
                    },
                    "required": ["name"],
                },
            },
        }),
        &["prompt"],
    )
}

fn child() -> Value {
    json!({
        "type": "string",
        "description": "A session that you started, as `session_message` names it, or one below it.",
    })
}

fn reads() -> ToolAnnotations {
    ToolAnnotations::new().read_only(true).open_world(false)
}

fn object(properties: Value, required: &[&str]) -> Map<String, Value> {
    let schema = json!({ "type": "object", "properties": properties, "required": required });
    match schema {
        Value::Object(schema) => schema,
        _ => Map::new(),
    }
}

fn tool(
    name: &'static str,
    about: &'static str,
    schema: Map<String, Value>,
    hints: ToolAnnotations,
) -> Tool {
    Tool::new(name, about, Arc::new(schema)).with_annotations(hints)
}
