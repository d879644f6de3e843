//! Removes secrets from what an agent writes, so that they do not appear in the log.

use memchr::memmem;
use oubliette_agent::Agent;
use oubliette_model::Secret;
use oubliette_store::{Project, Session};
use serde_json::Value;

use super::Sessions;
use crate::{Result, Settings, agents};

/// A shorter secret could be any word.
const MIN_SECRET_BYTES: usize = 8;
const API_KEY_PREFIX: &[u8] = b"oub_";
const API_KEY_RANDOM_BYTES: usize = 43;
const SECRET_MASK: &[u8] = b"[redacted]";
const API_KEY_MASK: &[u8] = b"oub_****";

/// Replaces known secrets, and everything that looks like an API key of Oubliette.
#[derive(Debug, Default)]
pub(crate) struct Redactor {
    secrets: Vec<Secret>,
}

impl Redactor {
    pub(super) fn new(secrets: impl Iterator<Item = Secret>) -> Self {
        let is_long = |secret: &Secret| secret.reveal().len() >= MIN_SECRET_BYTES;
        Self {
            secrets: secrets.filter(is_long).collect(),
        }
    }

    /// Redacts the credentials of an agent and the environment of its project.
    pub(super) fn for_agent(settings: &Settings, project: &Project, agent: &Agent) -> Self {
        let credentials = agents::secrets(settings, project, agent).unwrap_or_default();
        let environment = project.settings.env.values().cloned();
        let credentials = credentials.into_iter().map(|(_, secret)| secret);
        Self::new(credentials.chain(environment))
    }

    /// None if there is nothing to redact.
    pub(super) fn redact_bytes(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut redacted: Option<Vec<u8>> = None;
        for secret in &self.secrets {
            let text = redacted.as_deref().unwrap_or(bytes);
            redacted = replace_secret(text, secret.reveal().as_bytes()).or(redacted);
        }
        replace_api_keys(redacted.as_deref().unwrap_or(bytes)).or(redacted)
    }

    pub(super) fn redact_text(&self, text: String) -> String {
        match self.redact_bytes(text.as_bytes()) {
            Some(redacted) => String::from_utf8_lossy(&redacted).into_owned(),
            None => text,
        }
    }

    /// Redacts every string in a value.
    pub(crate) fn redact_value(&self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.redact_text(text)),
            Value::Array(items) => items
                .into_iter()
                .map(|item| self.redact_value(item))
                .collect(),
            Value::Object(fields) => fields
                .into_iter()
                .map(|(name, value)| (name, self.redact_value(value)))
                .collect(),
            other => other,
        }
    }
}

impl Sessions<'_> {
    /// The redactor for what the agent of a session writes.
    pub(crate) async fn redactor(self, session: &Session) -> Result<Redactor> {
        let project = self.engine.store().project(session.project_id).await?;
        Ok(project.map_or_else(Redactor::default, |project| {
            let agent = self.configured_agent(session);
            Redactor::for_agent(self.engine.settings(), &project, &agent)
        }))
    }

    /// The agent of a session, without a command if it is no longer configured.
    pub(super) fn configured_agent(self, session: &Session) -> Agent {
        agents::find(self.engine.settings(), &session.agent)
            .unwrap_or_else(|_| Agent::from_command(&session.agent, Vec::new()))
    }
}

fn replace_secret(text: &[u8], secret: &[u8]) -> Option<Vec<u8>> {
    let mut matches = memmem::find_iter(text, secret).peekable();
    matches.peek()?;
    let (mut replaced, mut copied) = (Vec::with_capacity(text.len()), 0);
    for at in matches {
        replaced.extend_from_slice(&text[copied..at]);
        replaced.extend_from_slice(SECRET_MASK);
        copied = at + secret.len();
    }
    replaced.extend_from_slice(&text[copied..]);
    Some(replaced)
}

fn replace_api_keys(text: &[u8]) -> Option<Vec<u8>> {
    let is_key_byte = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let (mut replaced, mut copied) = (Vec::new(), 0);
    for at in memmem::find_iter(text, API_KEY_PREFIX) {
        let key = at + API_KEY_PREFIX.len();
        // `at` may lie in a key that is replaced already.
        let random = text.get(key..key + API_KEY_RANDOM_BYTES);
        if at >= copied && random.is_some_and(|random| random.iter().all(is_key_byte)) {
            replaced.extend_from_slice(&text[copied..at]);
            replaced.extend_from_slice(API_KEY_MASK);
            copied = key + API_KEY_RANDOM_BYTES;
        }
    }
    if copied == 0 {
        return None;
    }
    replaced.extend_from_slice(&text[copied..]);
    Some(replaced)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_secrets_and_api_keys_are_redacted() {
        let redactor = Redactor::new(["sk-very-secret", "short"].map(Secret::new).into_iter());
        assert_eq!(redactor.redact_bytes(b"plain short text"), None);
        assert_eq!(
            redactor.redact_text("a sk-very-secret b sk-very-secret".to_owned()),
            "a [redacted] b [redacted]"
        );
        let key = format!("oub_{}", "x".repeat(43));
        assert_eq!(
            redactor.redact_text(format!("{key}, oub_no")),
            "oub_****, oub_no"
        );
        let nested = format!("oub_{}oub_{}", "x".repeat(20), "y".repeat(43));
        assert_eq!(
            redactor.redact_text(nested),
            format!("oub_****{}", "y".repeat(24))
        );
    }
}
