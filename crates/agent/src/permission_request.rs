//! An agent's request for permission, and the response.

use agent_client_protocol_schema::v1::{
    RequestPermissionOutcome, RequestPermissionResponse, SelectedPermissionOutcome,
};
use oubliette_model::PermissionDecision;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::request::reply;
use crate::tool_input::{named_paths, shown_text, tool_input};

const MAX_OPTIONS: usize = 32;

/// A `session/request_permission`, with everything that its response needs. The store keeps it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PermissionRequest {
    /// The id of the agent's request, as JSON.
    pub rpc_id: String,
    pub tool_call_id: Option<String>,
    /// The tool's name, if the agent sends it.
    #[serde(default)]
    pub tool: Option<String>,
    pub title: String,
    pub kind: String,
    pub input: Value,
    /// The files that the request itself names.
    #[serde(default)]
    paths: Vec<String>,
    options: Vec<PermissionOption>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct PermissionOption {
    id: String,
    kind: String,
}

/// The name of a tool, which some agents send in an extension of the protocol.
fn tool_name(call: &Value) -> Option<&str> {
    let meta = &call["_meta"];
    let names = [
        &call["name"],
        &meta["claudeCode"]["toolName"],
        &meta["toolName"],
    ];
    names.into_iter().find_map(Value::as_str)
}

impl PermissionRequest {
    /// Parses the parameters. An option of an unknown kind must not make the request fail, because
    /// the agent waits for a response.
    pub fn parse(rpc_id: &str, params: &Value) -> Self {
        let call = &params["toolCall"];
        let field = |key: &str| call[key].as_str().unwrap_or_default().to_owned();
        let options = params["options"].as_array().into_iter().flatten();
        let parse_option = |option: &Value| {
            Some(PermissionOption {
                id: option["optionId"].as_str()?.to_owned(),
                kind: option["kind"].as_str().unwrap_or_default().to_owned(),
            })
        };
        Self {
            rpc_id: rpc_id.to_owned(),
            tool_call_id: call["toolCallId"].as_str().map(str::to_owned),
            tool: tool_name(call).map(str::to_owned),
            title: field("title"),
            kind: field("kind"),
            input: tool_input(call)
                .or_else(|| shown_text(call))
                .unwrap_or_default(),
            paths: named_paths(call),
            options: options.filter_map(parse_option).take(MAX_OPTIONS).collect(),
        }
    }

    /// The tool's name, or the title of the call.
    pub fn tool_name(&self) -> &str {
        self.tool.as_deref().unwrap_or(&self.title)
    }

    /// The files that an edit changes, as far as the agent says.
    pub fn edited_paths(&self) -> Vec<String> {
        let mut paths = self.paths.clone();
        for path in named_paths(&json!({ "rawInput": self.input })) {
            if !paths.contains(&path) {
                paths.push(path);
            }
        }
        paths
    }

    /// Whether the agent offers to allow this one call, and not more than it.
    pub fn can_allow_once(&self) -> bool {
        self.options
            .iter()
            .any(|option| option.kind == "allow_once")
    }

    /// The response to the agent, as a line.
    pub fn response(&self, decision: PermissionDecision) -> Vec<u8> {
        let wanted: &[&str] = match decision {
            PermissionDecision::Allow => &["allow_once", "allow_always"],
            PermissionDecision::AllowAlways | PermissionDecision::AllowProject => {
                &["allow_always", "allow_once"]
            }
            PermissionDecision::Deny => &["reject_once", "reject_always"],
        };
        let find = |kind: &&str| self.options.iter().find(|option| option.kind == **kind);
        let outcome = match wanted.iter().find_map(find) {
            Some(option) => RequestPermissionOutcome::Selected(SelectedPermissionOutcome::new(
                option.id.clone(),
            )),
            // Also for an agent that offers no option to reject.
            None => RequestPermissionOutcome::Cancelled,
        };
        self.outcome_line(outcome)
    }

    /// The response for a turn that is cancelled, as a line.
    pub fn cancelled_response(&self) -> Vec<u8> {
        self.outcome_line(RequestPermissionOutcome::Cancelled)
    }

    fn outcome_line(&self, outcome: RequestPermissionOutcome) -> Vec<u8> {
        let response = RequestPermissionResponse::new(outcome);
        let body = serde_json::to_value(response).unwrap_or_default();
        reply(&self.rpc_id, Ok(body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> PermissionRequest {
        PermissionRequest::parse(
            "5",
            &json!({
                "toolCall": { "toolCallId": "c", "title": "rm", "kind": "execute", "rawInput": { "a": 1 } },
                "options": [
                    { "optionId": "odd", "kind": "from_the_future" },
                    { "optionId": "once", "kind": "allow_once" },
                    { "optionId": "always", "kind": "allow_always" },
                    { "optionId": "no", "kind": "reject_once" },
                ],
            }),
        )
    }

    fn outcome(line: &[u8]) -> Value {
        let value: Value = serde_json::from_slice(line).unwrap();
        assert_eq!(value["id"], 5);
        value["result"]["outcome"].clone()
    }

    #[test]
    fn a_response_selects_the_option_of_the_verdict() {
        let request = request();
        for (decision, option) in [
            (PermissionDecision::Allow, "once"),
            (PermissionDecision::AllowAlways, "always"),
            (PermissionDecision::Deny, "no"),
        ] {
            let outcome = outcome(&request.response(decision));
            assert_eq!(outcome["outcome"], "selected");
            assert_eq!(outcome["optionId"], option);
        }
        assert_eq!(
            outcome(&request.cancelled_response())["outcome"],
            "cancelled"
        );
    }

    #[test]
    fn without_an_option_to_reject_the_request_is_cancelled() {
        let bare = PermissionRequest::parse(
            "5",
            &json!({ "options": [{ "optionId": "y", "kind": "allow_once" }] }),
        );
        assert_eq!(
            outcome(&bare.response(PermissionDecision::Deny))["outcome"],
            "cancelled"
        );
        let none = PermissionRequest::parse("5", &Value::Null);
        assert_eq!(
            outcome(&none.response(PermissionDecision::Allow))["outcome"],
            "cancelled"
        );
    }

    #[test]
    fn a_request_shows_what_will_be_written_where() {
        let request = PermissionRequest::parse(
            "5",
            &json!({ "toolCall": { "title": "Writing to secret.txt", "kind": "edit",
                "content": [{ "type": "diff", "path": "/workspace/secret.txt", "oldText": "",
                    "newText": "rm -rf everything" }],
                "locations": [{ "path": "/workspace/secret.txt" }] } }),
        );
        let change = &request.input["changes"][0];
        assert_eq!(change["path"], "/workspace/secret.txt");
        assert_eq!(change["new_text"], "rm -rf everything");
    }
}
