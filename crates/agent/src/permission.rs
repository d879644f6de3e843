//! An agent's question whether it may do something, and the answer.

use agent_client_protocol_schema::v1::{
    RequestPermissionOutcome, RequestPermissionResponse, SelectedPermissionOutcome,
};
use oubliette_model::{Level, PermissionDecision};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::request::reply;

/// A question, with all that its answer needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Permission {
    /// The id of the agent's request, as JSON.
    pub rpc_id: String,
    pub tool_call_id: Option<String>,
    /// The tool's name, if the agent says it.
    #[serde(default)]
    pub tool: Option<String>,
    pub title: String,
    pub kind: String,
    pub input: Value,
    options: Vec<Choice>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Choice {
    id: String,
    kind: String,
}

impl Permission {
    /// Reads a `session/request_permission`. Options are read one by one: an agent's newer kind of
    /// option must not leave its turn hanging.
    pub fn read(rpc_id: &str, params: &Value) -> Self {
        let call = &params["toolCall"];
        let word = |key: &str| call[key].as_str().unwrap_or_default().to_owned();
        let options = params["options"].as_array().into_iter().flatten();
        let choice = |option: &Value| {
            Some(Choice {
                id: option["optionId"].as_str()?.to_owned(),
                kind: option["kind"].as_str().unwrap_or_default().to_owned(),
            })
        };
        Self {
            rpc_id: rpc_id.to_owned(),
            tool_call_id: call["toolCallId"].as_str().map(str::to_owned),
            tool: call["name"].as_str().map(str::to_owned),
            title: word("title"),
            kind: word("kind"),
            input: call["rawInput"].clone(),
            options: options.filter_map(choice).take(32).collect(),
        }
    }

    /// What the tool is called.
    pub fn tool_name(&self) -> &str {
        self.tool.as_deref().unwrap_or(&self.title)
    }

    /// The line that answers it.
    pub fn answer(&self, verdict: PermissionDecision) -> Vec<u8> {
        let wanted: &[&str] = match verdict {
            PermissionDecision::Allow => &["allow_once", "allow_always"],
            PermissionDecision::AllowAlways => &["allow_always", "allow_once"],
            PermissionDecision::Deny => &["reject_once", "reject_always"],
        };
        let mut found = wanted.iter().filter_map(|kind| {
            self.options
                .iter()
                .find(|choice| choice.kind.as_str() == *kind)
        });
        let outcome = match found.next() {
            Some(choice) => RequestPermissionOutcome::Selected(SelectedPermissionOutcome::new(
                choice.id.clone(),
            )),
            // Also where an agent offers no way to say no.
            None => RequestPermissionOutcome::Cancelled,
        };
        self.respond(outcome)
    }

    /// The line for a turn that is being cancelled.
    pub fn withdraw(&self) -> Vec<u8> {
        self.respond(RequestPermissionOutcome::Cancelled)
    }

    fn respond(&self, outcome: RequestPermissionOutcome) -> Vec<u8> {
        let response = RequestPermissionResponse::new(outcome);
        let body = serde_json::to_value(response).unwrap_or_default();
        reply(&self.rpc_id, "result", &body)
    }
}

/// What an agent may do unasked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy(pub Level);

impl Policy {
    /// Whether it settles a question by itself.
    pub fn allows(self, question: &Permission) -> bool {
        let looks = matches!(question.kind.as_str(), "read" | "search" | "think");
        let edits = matches!(question.kind.as_str(), "edit" | "move" | "fetch");
        match self.0 {
            Level::Off => false,
            Level::Low => looks,
            Level::Medium => looks || edits,
            // The container is the fence.
            Level::High => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn question() -> Permission {
        Permission::read(
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
    fn an_answer_picks_the_option_of_its_kind() {
        let question = question();
        for (verdict, option) in [
            (PermissionDecision::Allow, "once"),
            (PermissionDecision::AllowAlways, "always"),
            (PermissionDecision::Deny, "no"),
        ] {
            let outcome = outcome(&question.answer(verdict));
            assert_eq!(outcome["outcome"], "selected");
            assert_eq!(outcome["optionId"], option);
        }
        assert_eq!(outcome(&question.withdraw())["outcome"], "cancelled");
    }

    #[test]
    fn without_a_way_to_say_no_the_turn_is_cancelled() {
        let bare = Permission::read(
            "5",
            &json!({ "options": [{ "optionId": "y", "kind": "allow_once" }] }),
        );
        assert_eq!(
            outcome(&bare.answer(PermissionDecision::Deny))["outcome"],
            "cancelled"
        );
        let none = Permission::read("5", &Value::Null);
        assert_eq!(
            outcome(&none.answer(PermissionDecision::Allow))["outcome"],
            "cancelled"
        );
    }

    #[test]
    fn levels_of_autonomy_settle_more_and_more() {
        let of = |kind: &str| Permission {
            kind: kind.to_owned(),
            ..question()
        };
        let allowed =
            |level| ["read", "edit", "execute", ""].map(|kind| Policy(level).allows(&of(kind)));
        assert_eq!(allowed(Level::Off), [false; 4]);
        assert_eq!(allowed(Level::Low), [true, false, false, false]);
        assert_eq!(allowed(Level::Medium), [true, true, false, false]);
        assert_eq!(allowed(Level::High), [true; 4]);
    }
}
