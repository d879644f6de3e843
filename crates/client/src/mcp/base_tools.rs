//! The tools that every agent with a session has: they manage its child sessions.

use std::sync::Arc;

use rmcp::model::{Tool, ToolAnnotations};
use serde_json::{Map, Value, json};

const MESSAGE: &str = "session_message";
const EVENTS: &str = "session_events";
const END: &str = "session_end";
const LIMITS: &str = "config_limits";

pub(super) const NAMES: [&str; 4] = [MESSAGE, EVENTS, END, LIMITS];

/// Whether the server recognises a repeated call by its `call_id`.
pub(super) fn takes_call_id(name: &str) -> bool {
    name == MESSAGE
}

pub(super) fn all() -> Vec<Tool> {
    vec![
        tool(
            MESSAGE,
            "Give a task to another agent and wait for its answer. Without `session_id` this starts a \
             new child agent, by default in your workspace; with the `session_id` of an earlier \
             result it continues that child. The result has `session_id`, and `text`, \
             `stop_reason` and `error` of the turn. If the child is not done after `wait_seconds`, \
             `status` is `running` and the child keeps working: follow it with `session_events`. \
             Make several calls at once to run children in parallel. Depth, number and cost of \
             agents are limited: see `config_limits`.",
            message_schema(),
            ToolAnnotations::new().destructive(false).open_world(false),
        ),
        tool(
            EVENTS,
            "Read the events of a child session after `since_index`: tool calls and their \
             results, and a `completion` with the answer at the end of every turn. With \
             `wait_seconds` it waits for the next event, or for the end of the turn. Pass the result's `last_index` as the next \
             `since_index`; `completed` is true if no turn is running or queued.",
            object(
                json!({
                    "session_id": child_session(),
                    "since_index": { "type": "integer", "description": "Return events after this index (from the first event if absent)." },
                    "max_events": { "type": "integer", "minimum": 1, "maximum": 1000, "description": "How many events to return (200 if absent)." },
                    "wait_seconds": { "type": "number", "minimum": 0, "maximum": 50, "description": "How many seconds to wait if there is no event (0 if absent)." },
                    "until": { "type": "string", "enum": ["event", "completion"], "description": "What to wait for (`event` if absent)." },
                    "include_children": { "type": "boolean", "description": "Whether to include the events of its own child sessions; paged by `cursor`." },
                    "cursor": { "type": "string", "description": "With `include_children`: `cursor` of the previous page." },
                }),
                &["session_id"],
            ),
            read_only(),
        ),
        tool(
            END,
            "End a child session and all sessions below it, and return when their processes have \
             ended. Its files and events are kept; a message to it continues the session.",
            object(json!({ "session_id": child_session() }), &["session_id"]),
            ToolAnnotations::new()
                .destructive(true)
                .idempotent(true)
                .open_world(false),
        ),
        tool(
            LIMITS,
            "Show the limits on depth, number and cost of agents, and how much of them your tree of \
             sessions has used and has left.",
            object(
                json!({ "session_id": {
                    "type": "string",
                    "description": "A child session (your own session if absent).",
                } }),
                &[],
            ),
            read_only(),
        ),
    ]
}

fn message_schema() -> Map<String, Value> {
    let level = json!(["off", "low", "medium", "high"]);
    object(
        json!({
            "prompt": { "type": "string", "description": "The task. The agent sees the files of its workspace, not your conversation: include everything it needs." },
            "session_id": { "type": "string", "description": "A child session to continue (a new one is started if absent)." },
            "wait_seconds": { "type": "number", "minimum": 0, "maximum": 170, "description": "How many seconds to wait for the answer (50 if absent)." },
            "agent": { "type": "string", "description": "The agent to use (the same as you if absent)." },
            "model": { "type": "string", "description": "The model to use." },
            "autonomy": { "type": "string", "enum": level, "description": "What the agent may do without asking for permission." },
            "reasoning": { "type": "string", "enum": level, "description": "The level of reasoning." },
            "workspace_id": { "type": "string", "description": "The workspace to use (yours if absent)." },
            "create_workspace": { "type": "boolean", "description": "Whether to create the workspace if it does not exist; without `workspace_id`, a new copy of the default workspace, separate from your files." },
            "attachments": {
                "type": "array",
                "description": "Files to write into the workspace before the task starts.",
                "items": {
                    "type": "object",
                    "properties": {
                        "name": { "type": "string", "description": "Path in the workspace." },
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

fn child_session() -> Value {
    json!({
        "type": "string",
        "description": "The `session_id` of a child session from `session_message`, or of a session below it.",
    })
}

fn read_only() -> ToolAnnotations {
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
    description: &'static str,
    schema: Map<String, Value>,
    annotations: ToolAnnotations,
) -> Tool {
    Tool::new(name, description, Arc::new(schema)).with_annotations(annotations)
}
