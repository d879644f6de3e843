//! Why a turn failed, in words: agents pass on what the provider of their model says, as raw JSON, with
//! prefixes that say nothing, or as a status without advice.

use serde_json::Value;

/// What agents write before a reason, and what is none itself.
const EMPTY_PREFIXES: [&str; 4] = ["internal error", "agent error", "error", "api error"];
/// The words before the number of a status.
const STATUS_WORDS: [&str; 5] = ["code", "error", "http", "rejected", "status"];
/// What agents say when they have no valid key, in lower case.
const NOT_SIGNED_IN: [&str; 9] = [
    "authentication required",
    "api key is missing",
    "api key not valid",
    "incorrect api key",
    "invalid api key",
    "invalid x-api-key",
    "no auth credentials",
    "not logged in",
    "please run /login",
];
const FORBIDDEN: [&str; 3] = [
    "do not have access",
    "does not have access",
    "permission denied",
];
const RATE_LIMITED: [&str; 3] = ["rate limit", "too many requests", "quota"];
const PROVIDER_BUSY: [&str; 5] = [
    "high demand",
    "internal server error",
    "overloaded",
    "server had an error",
    "service unavailable",
];
const DISCONNECTED: [&str; 9] = [
    "cannot connect",
    "connection dropped",
    "connection error",
    "connection reset",
    "connection to the api was lost",
    "fetch failed",
    "socket connection was closed",
    "stream disconnected",
    "stream was terminated",
];

/// What kind of failure it is, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureCause {
    /// The agent is not signed in, or the provider does not accept its key.
    Key,
    Forbidden,
    RateLimited,
    /// The provider cannot answer now.
    Provider,
    Connection,
}

impl FailureCause {
    /// The cause that the text of an error names.
    pub fn of(text: &str) -> Option<Self> {
        let lower = text.to_lowercase();
        let names = |words: &[&str]| words.iter().any(|word| lower.contains(word));
        match http_status(&lower) {
            Some(401) => return Some(Self::Key),
            Some(403) => return Some(Self::Forbidden),
            Some(429) => return Some(Self::RateLimited),
            Some(500..) => return Some(Self::Provider),
            _ => {}
        }
        if names(&NOT_SIGNED_IN) {
            Some(Self::Key)
        } else if names(&FORBIDDEN) {
            Some(Self::Forbidden)
        } else if names(&RATE_LIMITED) {
            Some(Self::RateLimited)
        } else if names(&PROVIDER_BUSY) {
            Some(Self::Provider)
        } else if names(&DISCONNECTED) {
            Some(Self::Connection)
        } else {
            None
        }
    }

    /// What a person can do; none for a key, about which the server knows more.
    pub fn advice(self) -> Option<&'static str> {
        match self {
            Self::Key => None,
            Self::Forbidden => Some(
                "the provider does not let this key do that: check which models and regions it may use",
            ),
            Self::RateLimited => {
                Some("the provider limits this key: wait, or use another key or model")
            }
            Self::Provider => {
                Some("the provider of the model has a problem: send the message again later")
            }
            Self::Connection => Some(
                "the connection to the provider of the model broke: check the network, then send the message \
                 again",
            ),
        }
    }
}

/// The reason in an agent's error, without what says nothing, and not as JSON.
pub fn failure_reason(text: &str) -> String {
    let mut reason = text.trim();
    while let Some((prefix, rest)) = reason.split_once(':') {
        let is_empty = EMPTY_PREFIXES.contains(&prefix.trim().to_lowercase().as_str());
        if !is_empty || rest.trim().is_empty() {
            break;
        }
        reason = rest.trim_start();
    }
    let reason = match reason.find(['{', '[']) {
        Some(start) => match json_reason(&reason[start..]) {
            Some(described) => format!("{}{described}", &reason[..start]),
            None => reason.to_owned(),
        },
        None => reason.to_owned(),
    };
    // What Node.js says about a stream that breaks.
    if reason == "terminated" {
        return "the model's stream was terminated".to_owned();
    }
    // A status alone is no sentence.
    if reason.starts_with(|c: char| c.is_ascii_digit()) && http_status_at(&reason).is_some() {
        return format!("HTTP {reason}");
    }
    reason
}

/// The reason in the JSON of a provider: its message, and the status.
fn json_reason(json: &str) -> Option<String> {
    // There may be text after it.
    let mut values = serde_json::Deserializer::from_str(json).into_iter::<Value>();
    let value = values.next()?.ok()?;
    let value = match value {
        Value::Array(mut values) if !values.is_empty() => values.swap_remove(0),
        value => value,
    };
    let inner = match &value["error"] {
        Value::Object(_) => &value["error"],
        _ => &value,
    };
    let message = inner["message"].as_str().or(value["error"].as_str())?;
    // Some providers put the JSON of another one into their message.
    let message = match message.trim_start().starts_with('{') {
        true => json_reason(message.trim_start()).unwrap_or_else(|| message.to_owned()),
        false => message.to_owned(),
    };
    let status = ["code", "status", "statusCode"]
        .iter()
        .find_map(|name| inner[*name].as_u64());
    Some(match status.filter(|status| (400..600).contains(status)) {
        Some(status) if http_status(&message.to_lowercase()).is_none() => {
            format!("HTTP {status}: {message}")
        }
        _ => message,
    })
}

/// The HTTP status that an error names, in lower case.
fn http_status(text: &str) -> Option<u16> {
    if let Some(status) = http_status_at(text) {
        return Some(status);
    }
    let mut starts = text.match_indices(|c: char| c.is_ascii_digit());
    starts.find_map(|(start, _)| {
        let before = text[..start].trim_end_matches([' ', ':', '(', '"', '=']);
        let is_named = STATUS_WORDS.iter().any(|word| before.ends_with(word));
        let follows_digit = text[..start].ends_with(|c: char| c.is_ascii_digit());
        http_status_at(&text[start..]).filter(|_| is_named && !follows_digit)
    })
}

/// The HTTP status of an error that a text starts with.
fn http_status_at(text: &str) -> Option<u16> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let status = text[..end].parse().ok()?;
    (end == 3 && (400..600).contains(&status)).then_some(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_words_without_empty_prefixes() {
        let json = r#"{"type":"error","error":{"code":401,"message":"invalid key"}}"#;
        let google =
            r#"[{"error":{"code":429,"message":"slow down","status":"RESOURCE_EXHAUSTED"}}]"#;
        let nested = serde_json::json!({ "error": { "message": json, "code": 401 } }).to_string();
        for (text, expected) in [
            (json, "HTTP 401: invalid key"),
            (google, "HTTP 429: slow down"),
            (&nested, "HTTP 401: invalid key"),
            (
                "Internal error: Agent error: Error: 401 invalid key",
                "HTTP 401 invalid key",
            ),
            (
                "Internal error: API Error: 529 busy. Try again.",
                "HTTP 529 busy. Try again.",
            ),
            ("Internal error: Agent error", "Agent error"),
            ("Internal error", "Internal error"),
            (
                "Internal error: terminated",
                "the model's stream was terminated",
            ),
            ("it is {not json", "it is {not json"),
            ("4 files are missing", "4 files are missing"),
            ("", ""),
        ] {
            assert_eq!(failure_reason(text), expected, "{text}");
        }
    }

    #[test]
    fn causes_are_found_by_status_and_by_words() {
        for (text, expected) in [
            ("HTTP 401: x", Some(FailureCause::Key)),
            ("Authentication required", Some(FailureCause::Key)),
            (
                "Authentication required: Failed to authenticate. API Error: 403 x",
                Some(FailureCause::Forbidden),
            ),
            (
                "exceeded retry limit, last status: 429 Too Many Requests",
                Some(FailureCause::RateLimited),
            ),
            (
                "API Error: Request rejected (429) · x",
                Some(FailureCause::RateLimited),
            ),
            (
                "unexpected status 529 <unknown status code>: x, url: http://127.0.0.1:43283",
                Some(FailureCause::Provider),
            ),
            (
                "We’re currently experiencing high demand",
                Some(FailureCause::Provider),
            ),
            ("Connection error.", Some(FailureCause::Connection)),
            (
                "the model's stream was terminated; check the network",
                Some(FailureCause::Connection),
            ),
            ("the command was terminated", None),
            ("unexpected status 400 Bad Request", None),
            ("the file has 500 lines", None),
            ("error 4010", None),
            ("", None),
        ] {
            assert_eq!(FailureCause::of(text), expected, "{text}");
        }
    }
}
