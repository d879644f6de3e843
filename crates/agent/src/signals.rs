//! What agents say about themselves in extensions of the protocol: whether they work, that they try again,
//! and that a turn failed although its response says otherwise.

use serde_json::{Value, json};

/// How many characters of a notice are logged.
const MAX_NOTICE_CHARS: usize = 1000;

/// What an agent does, as far as it reports that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentState {
    Working,
    /// It will do nothing more without a prompt.
    Idle,
    /// Its turn has failed, whatever the response to the prompt says.
    Failed,
}

/// What an agent says about itself.
#[derive(Debug, Clone, PartialEq)]
pub enum Signal {
    State(AgentState),
    /// A sentence for the log.
    Notice(String),
}

impl Signal {
    /// A text that an agent has written itself.
    pub fn agent_notice(text: &str) -> Self {
        Self::Notice(shortened(&format!("the agent reported: {text}")))
    }
}

/// The notification in which Claude Code's adapter passes on messages that the protocol has no update for.
pub(crate) const CLAUDE_MESSAGE: &str = "_claude/sdkMessage";

/// `_meta` of the requests that open a session of Claude Code: which of those messages it passes on.
pub(crate) fn claude_session_meta() -> Value {
    let message = |subtype: &str| json!({ "type": "system", "subtype": subtype });
    let messages = json!([message("api_retry"), message("session_state_changed")]);
    json!({ "claudeCode": { "emitRawSDKMessages": messages } })
}

/// From the parameters of a [`CLAUDE_MESSAGE`].
pub(crate) fn from_claude_message(params: &Value) -> Option<Signal> {
    let message = &params["message"];
    match message["subtype"].as_str()? {
        "session_state_changed" => match message["state"].as_str()? {
            "running" => Some(Signal::State(AgentState::Working)),
            "idle" => Some(Signal::State(AgentState::Idle)),
            _ => None,
        },
        "api_retry" => {
            let number = |name: &str| message[name].as_f64();
            let attempt = number("attempt").unwrap_or(1.0);
            let mut text = format!("the agent asks its model again (attempt {attempt}");
            if let Some(attempts) = number("max_retries") {
                text += &format!(" of {attempts}");
            }
            if let Some(delay) = number("retry_delay_ms") {
                text += &format!(", in {:.0} s", (delay / 1000.0).max(1.0));
            }
            text += match number("error_status") {
                Some(_) => "): HTTP ",
                None => "): the connection failed",
            };
            if let Some(status) = number("error_status") {
                text += &format!("{status}");
            }
            if let Some(error) = message["error"].as_str() {
                text += &format!(", {error}");
            }
            Some(Signal::Notice(shortened(&text)))
        }
        _ => None,
    }
}

/// From a `session_info_update`, in which Codex's adapter reports the state of its thread and its errors.
pub(crate) fn from_session_info(update: &Value) -> Option<Signal> {
    let codex = &update["_meta"]["codex"];
    if let Some(status) = codex["threadStatus"]["type"].as_str() {
        return match status {
            "active" => Some(Signal::State(AgentState::Working)),
            "idle" => Some(Signal::State(AgentState::Idle)),
            "systemError" => Some(Signal::State(AgentState::Failed)),
            _ => None,
        };
    }
    let error = codex["error"]["message"].as_str()?;
    Some(Signal::Notice(shortened(
        &if codex["error"]["willRetry"] == true {
            format!("the agent asks its model again: {error}")
        } else {
            format!("the agent reported: {error}")
        },
    )))
}

/// From a `notice`: a warning or a hint that is not part of an answer.
pub(crate) fn from_notice(update: &Value) -> Option<Signal> {
    let texts = ["title", "description"].map(|name| update[name].as_str().unwrap_or_default());
    let texts: Vec<&str> = texts.into_iter().filter(|text| !text.is_empty()).collect();
    if texts.is_empty() {
        return None;
    }
    let text = format!("the agent reported: {}", texts.join(": "));
    Some(Signal::Notice(shortened(&text)))
}

fn shortened(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_NOTICE_CHARS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codex_reports_its_state_and_its_retries() {
        let info = |codex: Value| json!({ "sessionUpdate": "session_info_update", "_meta": { "codex": codex } });
        for (status, expected) in [
            ("systemError", AgentState::Failed),
            ("active", AgentState::Working),
            ("idle", AgentState::Idle),
        ] {
            let status = info(json!({ "threadStatus": { "type": status } }));
            assert_eq!(from_session_info(&status), Some(Signal::State(expected)));
        }
        let error =
            info(json!({ "error": { "message": "Reconnecting... 1/5", "willRetry": true } }));
        let notice = "the agent asks its model again: Reconnecting... 1/5".to_owned();
        assert_eq!(from_session_info(&error), Some(Signal::Notice(notice)));
        for other in [
            info(Value::Null),
            info(json!({ "threadStatus": 3 })),
            json!({ "title": "x" }),
        ] {
            assert_eq!(from_session_info(&other), None);
        }
    }

    #[test]
    fn claude_reports_its_state_and_its_retries() {
        let message = |message: Value| json!({ "sessionId": "s", "message": message });
        let idle = message(
            json!({ "type": "system", "subtype": "session_state_changed", "state": "idle" }),
        );
        let expected = Some(Signal::State(AgentState::Idle));
        assert_eq!(from_claude_message(&idle), expected);
        let retry = message(
            json!({ "subtype": "api_retry", "attempt": 2, "max_retries": 5,
            "retry_delay_ms": 1101.5, "error_status": 401, "error": "authentication_failed" }),
        );
        let notice = "the agent asks its model again (attempt 2 of 5, in 1 s): HTTP 401, \
                      authentication_failed";
        assert_eq!(
            from_claude_message(&retry),
            Some(Signal::Notice(notice.to_owned()))
        );
        let offline =
            message(json!({ "subtype": "api_retry", "attempt": 1, "error_status": null }));
        let notice = "the agent asks its model again (attempt 1): the connection failed";
        assert_eq!(
            from_claude_message(&offline),
            Some(Signal::Notice(notice.to_owned()))
        );
        for other in [
            Value::Null,
            message(json!({ "subtype": "init" })),
            message(json!(3)),
        ] {
            assert_eq!(from_claude_message(&other), None);
        }
    }

    #[test]
    fn a_notice_is_one_bounded_line() {
        let notice =
            json!({ "title": "Falling back", "description": format!("a\nb{}", "c".repeat(5000)) });
        let Some(Signal::Notice(text)) = from_notice(&notice) else {
            panic!()
        };
        assert!(
            text.starts_with("the agent reported: Falling back: a bcc"),
            "{text}"
        );
        assert_eq!(text.chars().count(), MAX_NOTICE_CHARS + 1);
        assert_eq!(from_notice(&json!({ "title": "" })), None);
    }
}
