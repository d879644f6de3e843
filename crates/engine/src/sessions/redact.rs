//! Keeps secrets out of the log: what an agent was given must not come back in what it says.

use oubliette_model::Secret;
use oubliette_store::Session;
use serde_json::Value;

use crate::{Engine, Result, agents};

/// A secret that is shorter could be any word.
const SHORTEST: usize = 8;
const KEY: &[u8] = b"oub_";
const KEY_LETTERS: usize = 43;
const MASK: &[u8] = b"[redacted]";

/// Replaces known secrets, and everything that looks like a key of ours.
#[derive(Debug, Default)]
pub(crate) struct Redact {
    secrets: Vec<Secret>,
}

impl Redact {
    pub(super) fn new(secrets: impl Iterator<Item = Secret>) -> Self {
        let long = |secret: &Secret| secret.reveal().len() >= SHORTEST;
        Self {
            secrets: secrets.filter(long).collect(),
        }
    }

    /// None if there is nothing to hide.
    pub(super) fn line(&self, line: &[u8]) -> Option<Vec<u8>> {
        let mut hidden: Option<Vec<u8>> = None;
        for secret in &self.secrets {
            let text = hidden.as_deref().unwrap_or(line);
            if let Some(replaced) = replace(text, secret.reveal().as_bytes()) {
                hidden = Some(replaced);
            }
        }
        let text = hidden.as_deref().unwrap_or(line);
        match hide_keys(text) {
            Some(replaced) => Some(replaced),
            None => hidden,
        }
    }

    /// The same for every text in a value.
    pub(crate) fn value(&self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(text)),
            Value::Array(items) => items.into_iter().map(|item| self.value(item)).collect(),
            Value::Object(fields) => fields
                .into_iter()
                .map(|(name, value)| (name, self.value(value)))
                .collect(),
            other => other,
        }
    }

    pub(super) fn text(&self, text: String) -> String {
        match self.line(text.as_bytes()) {
            Some(hidden) => String::from_utf8_lossy(&hidden).into_owned(),
            None => text,
        }
    }
}

impl Engine {
    /// What must not be seen of what the agent of a session says.
    pub(crate) async fn redaction(&self, session: &Session) -> Result<Redact> {
        let Some(project) = self.store().get(session.project_id).await? else {
            return Ok(Redact::default());
        };
        let secrets = agents::find(self.settings(), &session.agent)
            .and_then(|agent| agents::secrets(self.settings(), &project, &agent));
        let secrets = secrets.unwrap_or_default().into_iter();
        let own = project.settings.env.values().cloned();
        Ok(Redact::new(secrets.map(|(_, secret)| secret).chain(own)))
    }
}

fn find(text: &[u8], what: &[u8], from: usize) -> Option<usize> {
    let first = *what.first()?;
    let mut at = from;
    while let Some(next) = text.get(at..)?.iter().position(|byte| *byte == first) {
        at += next;
        if text[at..].starts_with(what) {
            return Some(at);
        }
        at += 1;
    }
    None
}

fn replace(text: &[u8], secret: &[u8]) -> Option<Vec<u8>> {
    let mut next = find(text, secret, 0)?;
    let (mut out, mut from) = (Vec::with_capacity(text.len()), 0);
    loop {
        out.extend_from_slice(&text[from..next]);
        out.extend_from_slice(MASK);
        from = next + secret.len();
        match find(text, secret, from) {
            Some(found) => next = found,
            None => break,
        }
    }
    out.extend_from_slice(&text[from..]);
    Some(out)
}

fn hide_keys(text: &[u8]) -> Option<Vec<u8>> {
    let letter = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let mut out: Option<Vec<u8>> = None;
    let (mut from, mut at) = (0, 0);
    while let Some(found) = find(text, KEY, at) {
        let rest = &text[found + KEY.len()..];
        let length = rest.iter().take_while(|byte| letter(byte)).count();
        at = found + KEY.len();
        if length >= KEY_LETTERS {
            let out = out.get_or_insert_with(Vec::new);
            out.extend_from_slice(&text[from..found]);
            out.extend_from_slice(b"oub_****");
            from = found + KEY.len() + KEY_LETTERS;
            at = from;
        }
    }
    let mut out = out?;
    out.extend_from_slice(&text[from..]);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_and_keys_are_hidden_and_nothing_else() {
        let redact = Redact::new(["sk-very-secret", "short"].map(Secret::new).into_iter());
        assert_eq!(redact.line(b"plain short text"), None);
        assert_eq!(
            redact.text("a sk-very-secret b sk-very-secret".to_owned()),
            "a [redacted] b [redacted]"
        );
        let key = format!("oub_{}", "x".repeat(43));
        assert_eq!(redact.text(format!("{key}, oub_no")), "oub_****, oub_no");
    }
}
