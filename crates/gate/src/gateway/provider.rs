//! The providers of models that the gateway knows: their paths on it, their own addresses, and how they say no.

use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, HeaderName};
use oubliette_model::BaseUrl;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::GATEWAY_ADDRESS;

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// Also where a key goes that came in the address of a request: from there a redirect could send it back.
pub(crate) const X_GOOG_API_KEY: HeaderName = HeaderName::from_static("x-goog-api-key");

/// The headers that a key can be in. None of them passes the gateway as it came.
pub(crate) const KEY_HEADERS: [HeaderName; 5] = [
    AUTHORIZATION,
    X_API_KEY,
    X_GOOG_API_KEY,
    HeaderName::from_static("api-key"),
    HeaderName::from_static("proxy-authorization"),
];

/// A provider, or a gateway with its API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Provider {
    Anthropic,
    Gemini,
    OpenAi,
    OpenCode,
    OpenRouter,
}

impl Provider {
    pub(crate) const ALL: [Self; 5] = [
        Self::Anthropic,
        Self::Gemini,
        Self::OpenAi,
        Self::OpenCode,
        Self::OpenRouter,
    ];

    /// The provider that a kind of credential is for; none if the credential cannot be used through the gateway.
    pub fn of_kind(kind: &str) -> Option<Self> {
        Some(match kind {
            "anthropic" | "claude_oauth" => Self::Anthropic,
            "gemini" | "google" => Self::Gemini,
            "openai" => Self::OpenAi,
            "opencode" => Self::OpenCode,
            "openrouter" => Self::OpenRouter,
            _ => return None,
        })
    }

    /// What paths on the gateway start with. It stands for the address of the provider.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Self::Anthropic => "/anthropic",
            Self::Gemini => "/gemini",
            Self::OpenAi => "/openai/v1",
            Self::OpenCode => "/opencode/v1",
            Self::OpenRouter => "/openrouter/v1",
        }
    }

    /// The address that an agent is told instead of the provider's.
    pub fn local_url(self) -> String {
        format!("http://{GATEWAY_ADDRESS}{}", self.prefix())
    }

    /// The address that the prefix stands for: that of a credential, or the provider's own.
    pub fn upstream(self, given: Option<&BaseUrl>) -> String {
        let given = given.map(BaseUrl::as_str);
        // Addresses are given with and without the version, as for agents without the gateway.
        let without = |version: &str, given: &str| {
            let end = given.strip_suffix(version).unwrap_or(given);
            end.to_owned()
        };
        match (self, given) {
            (Self::Anthropic, Some(given)) => without("/v1", given),
            (Self::Gemini, Some(given)) => without("/v1beta", given),
            (_, Some(given)) => given.to_owned(),
            (Self::Anthropic, None) => "https://api.anthropic.com".to_owned(),
            (Self::Gemini, None) => "https://generativelanguage.googleapis.com".to_owned(),
            (Self::OpenAi, None) => "https://api.openai.com/v1".to_owned(),
            (Self::OpenCode, None) => "https://opencode.ai/zen/v1".to_owned(),
            (Self::OpenRouter, None) => "https://openrouter.ai/api/v1".to_owned(),
        }
    }

    /// An error in the form that clients of the provider read.
    pub(crate) fn error_body(self, status: StatusCode, message: &str) -> Value {
        match self {
            Self::Anthropic => {
                let kind = match status {
                    StatusCode::UNAUTHORIZED => "authentication_error",
                    StatusCode::FORBIDDEN => "permission_error",
                    StatusCode::NOT_FOUND => "not_found_error",
                    StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
                    status if status.is_server_error() => "api_error",
                    _ => "invalid_request_error",
                };
                json!({ "type": "error", "error": { "type": kind, "message": message } })
            }
            Self::Gemini => {
                let kind = match status {
                    StatusCode::UNAUTHORIZED => "UNAUTHENTICATED",
                    StatusCode::FORBIDDEN => "PERMISSION_DENIED",
                    StatusCode::NOT_FOUND => "NOT_FOUND",
                    status if status.is_server_error() => "UNAVAILABLE",
                    _ => "INVALID_ARGUMENT",
                };
                json!({ "error": { "code": status.as_u16(), "message": message, "status": kind } })
            }
            Self::OpenAi | Self::OpenCode | Self::OpenRouter => {
                let kind = match status {
                    StatusCode::UNAUTHORIZED => "authentication_error",
                    StatusCode::FORBIDDEN => "permission_error",
                    status if status.is_server_error() => "server_error",
                    _ => "invalid_request_error",
                };
                json!({ "error": { "message": message, "type": kind, "param": null, "code": kind } })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_with_or_without_its_version_leads_to_the_same_place() {
        let upstream = |provider: Provider, given: &str| {
            let url: BaseUrl = given.parse().unwrap();
            provider.upstream(Some(&url))
        };
        for given in [
            "https://gw.example.com/team",
            "https://gw.example.com/team/v1",
        ] {
            assert_eq!(
                upstream(Provider::Anthropic, given),
                "https://gw.example.com/team"
            );
        }
        assert_eq!(
            upstream(Provider::OpenAi, "https://gw.example.com/v1"),
            "https://gw.example.com/v1"
        );
        assert_eq!(
            Provider::OpenAi.local_url(),
            "http://127.0.0.1:3129/openai/v1"
        );
        for provider in Provider::ALL {
            let own: BaseUrl = provider.upstream(None).parse().unwrap();
            assert!(own.as_str().starts_with("https://"));
        }
    }
}
