//! Removes secrets from what an agent writes, so that they do not appear in the log.
//!
//! Text arrives in pieces. The end of a piece that could be the start of a secret is held back until
//! more arrives, so that a secret is found wherever it is cut. Everything else goes out at once.

mod events;
mod matcher;
mod tail;

use std::hash::{DefaultHasher, Hash, Hasher};

use memchr::memmem;
use oubliette_agent::Agent;
use oubliette_model::{ApiKey, MIN_SECRET_BYTES, Secret};
use oubliette_store::{Project, Session};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Sessions;
use crate::{Engine, Result, agents};
use matcher::{Matcher, Tail};

/// Bounds the memory of a redactor. Of secrets beyond it, only the start is searched for.
const MAX_PATTERN_BYTES: usize = 1 << 20;
const MIN_PATTERN_BYTES: usize = 64;
/// This many characters of a key after its prefix are enough to recognise it.
const MIN_API_KEY_CHARS: usize = 20;
const SECRET_MASK: &str = "[redacted]";
const API_KEY_MASK: &str = "oub_****";

/// Replaces known secrets, and everything that looks like an API key of Oubliette.
#[derive(Debug)]
pub(crate) struct Redactor {
    secrets: Vec<Secret>,
    matcher: Matcher,
}

/// The end of a text that is held back. It is stored with the session, so it names the secret that it
/// may be the start of instead of containing that part of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct HeldText {
    /// Identifies the secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<u64>,
    /// How many bytes of the secret it is.
    bytes: usize,
    /// The text, if it can only be the start of an API key.
    #[serde(skip_serializing_if = "String::is_empty")]
    text: String,
    /// How many of its bytes belong to something that a mask was put out for.
    covered: usize,
    /// Whether it ends inside an API key that a mask was put out for.
    in_api_key: bool,
}

impl HeldText {
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A part of a text that a mask replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Masked {
    start: usize,
    kind: Mask,
    end: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Mask {
    /// The mask is out already.
    Covered,
    ApiKey,
    Secret,
}

impl Default for Redactor {
    fn default() -> Self {
        Self::new(std::iter::empty())
    }
}

impl Redactor {
    pub(super) fn new(secrets: impl Iterator<Item = Secret>) -> Self {
        let is_long = |secret: &Secret| secret.reveal().len() >= MIN_SECRET_BYTES;
        let secrets: Vec<Secret> = secrets.filter(is_long).collect();
        let mut left = MAX_PATTERN_BYTES;
        let patterns = secrets.iter().map(|secret| {
            let text = secret.reveal();
            let end = text.floor_char_boundary(left.max(MIN_PATTERN_BYTES));
            left = left.saturating_sub(end);
            &text.as_bytes()[..end]
        });
        Self {
            matcher: Matcher::new(patterns),
            secrets,
        }
    }

    /// Redacts the credentials of a project and the secrets in its environment. Of all credentials: what
    /// one agent has, another one in the same container may find.
    pub(super) fn for_project(engine: &Engine, project: &Project) -> Self {
        Self::with_others(engine, project, std::iter::empty())
    }

    /// The same with other secrets.
    pub(super) fn with_others(
        engine: &Engine,
        project: &Project,
        others: impl Iterator<Item = Secret>,
    ) -> Self {
        let credentials = engine.credentials().secrets(project).into_iter();
        Self::new(others.chain(credentials).chain(project.settings.secrets()))
    }

    pub(super) fn secrets(&self) -> impl Iterator<Item = &Secret> {
        self.secrets.iter()
    }

    /// Adds a piece to a text; returns what can be shown of it.
    pub(super) fn push(&self, held: &mut HeldText, piece: &str) -> String {
        self.advance(held, piece, false)
    }

    /// Ends a text; returns the rest of it.
    pub(super) fn finish(&self, held: &mut HeldText) -> String {
        self.advance(held, "", true)
    }

    /// None if there is nothing to redact.
    fn redact(&self, text: &str) -> Option<String> {
        let mut is_clean = memmem::find(text.as_bytes(), ApiKey::PREFIX.as_bytes()).is_none();
        self.matcher.scan(text.as_bytes(), |_, _| is_clean = false);
        (!is_clean).then(|| self.advance(&mut HeldText::default(), text, true))
    }

    pub(super) fn redact_text(&self, text: String) -> String {
        self.redact(&text).unwrap_or(text)
    }

    /// Redacts every string in a value, and returns whether there was something to redact.
    pub(crate) fn redact_value(&self, value: &mut Value) -> bool {
        match value {
            Value::String(text) => match self.redact(text) {
                Some(redacted) => {
                    *text = redacted;
                    true
                }
                None => false,
            },
            Value::Array(items) => {
                let changed = items.iter_mut().map(|item| self.redact_value(item));
                changed.fold(false, |any, changed| any | changed)
            }
            Value::Object(fields) => {
                let values = fields.values_mut().map(|value| self.redact_value(value));
                let mut changed = values.fold(false, |any, changed| any | changed);
                if fields.keys().any(|name| self.redact(name).is_some()) {
                    let renamed = std::mem::take(fields).into_iter();
                    *fields = renamed
                        .map(|(name, value)| (self.redact_text(name), value))
                        .collect();
                    changed = true;
                }
                changed
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => false,
        }
    }

    fn advance(&self, held: &mut HeldText, piece: &str, is_end: bool) -> String {
        let mut buffer = self.held_text(held);
        let mut covered = held.covered.min(buffer.len());
        buffer.push_str(piece);
        let mut masked = Vec::new();
        if held.in_api_key {
            covered += key_bytes(&buffer.as_bytes()[covered..]);
        }
        let continues_api_key = held.in_api_key && covered == buffer.len();
        if covered > 0 {
            masked.push(Masked {
                start: 0,
                kind: Mask::Covered,
                end: covered,
            });
        }
        let tail = self.matcher.scan(buffer.as_bytes(), |start, end| {
            let kind = Mask::Secret;
            masked.push(Masked { start, kind, end });
        });
        let skipped = if held.in_api_key { covered } else { 0 };
        let open_key = find_api_keys(buffer.as_bytes(), skipped, &mut masked);
        let key_tail = match open_key {
            OpenKey::Started(at) => buffer.len() - at,
            OpenKey::Recognised(_) | OpenKey::None => 0,
        };
        let secret_tail = tail.map_or(0, |tail| tail.bytes);
        let held_bytes = if is_end { 0 } else { secret_tail.max(key_tail) };
        let cut = buffer.len() - held_bytes;

        masked.sort_unstable();
        let (output, masked_until) = put_out(&buffer, &masked, cut);
        let recognised_before_cut =
            matches!(open_key, OpenKey::Recognised(at) if at < cut) || continues_api_key;
        *held = HeldText {
            covered: masked_until.saturating_sub(cut),
            in_api_key: recognised_before_cut && !is_end,
            ..self.hold(&buffer[cut..], tail)
        };
        output
    }

    fn hold(&self, text: &str, tail: Option<Tail>) -> HeldText {
        match tail.filter(|tail| tail.bytes == text.len()) {
            Some(tail) => HeldText {
                secret: Some(secret_id(&self.secrets[tail.pattern])),
                bytes: tail.bytes,
                ..HeldText::default()
            },
            None => HeldText {
                text: text.to_owned(),
                ..HeldText::default()
            },
        }
    }

    fn held_text(&self, held: &HeldText) -> String {
        let Some(id) = held.secret else {
            return held.text.clone();
        };
        let secret = self.secrets.iter().find(|secret| secret_id(secret) == id);
        match secret.and_then(|secret| secret.reveal().get(..held.bytes)) {
            Some(start) => start.to_owned(),
            // The secret was changed while the server was down.
            None => SECRET_MASK.to_owned(),
        }
    }
}

fn secret_id(secret: &Secret) -> u64 {
    let mut hasher = DefaultHasher::new();
    secret.reveal().hash(&mut hasher);
    hasher.finish()
}

/// An API key at the end of a text.
enum OpenKey {
    None,
    /// It may be the start of one; its position.
    Started(usize),
    Recognised(usize),
}

/// How many bytes at the start of a text an API key can contain.
fn key_bytes(text: &[u8]) -> usize {
    let is_key_byte = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let end = text.iter().position(|byte| !is_key_byte(byte));
    end.unwrap_or(text.len())
}

fn find_api_keys(text: &[u8], from: usize, masked: &mut Vec<Masked>) -> OpenKey {
    let prefix = ApiKey::PREFIX.as_bytes();
    let mut started = None;
    let mut searched = from;
    for at in memmem::find_iter(&text[from..], prefix).map(|at| from + at) {
        if at < searched {
            continue;
        }
        let random = at + prefix.len();
        let end = random + key_bytes(&text[random..]);
        if end - random >= MIN_API_KEY_CHARS {
            let kind = Mask::ApiKey;
            masked.push(Masked {
                start: at,
                kind,
                end,
            });
            if end == text.len() {
                return OpenKey::Recognised(at);
            }
            searched = end;
        } else if end == text.len() && started.is_none() {
            started = Some(at);
        }
    }
    if let Some(at) = started {
        return OpenKey::Started(at);
    }
    let longest = (prefix.len() - 1).min(text.len() - searched);
    let started = (1..=longest).rev().find(|n| text.ends_with(&prefix[..*n]));
    started.map_or(OpenKey::None, |n| OpenKey::Started(text.len() - n))
}

/// The text before `cut` with its masks, and where the last masked part ends. Parts that overlap have
/// one mask.
fn put_out(text: &str, masked: &[Masked], cut: usize) -> (String, usize) {
    let mut output = String::with_capacity(cut);
    let mut copied = 0;
    let is_due = |part: &&Masked| part.start < cut || part.kind == Mask::Covered;
    for part in masked.iter().filter(is_due) {
        if part.start < copied {
            copied = copied.max(part.end);
            continue;
        }
        output.push_str(&text[copied..part.start]);
        output.push_str(match part.kind {
            Mask::Covered => "",
            Mask::ApiKey => API_KEY_MASK,
            Mask::Secret => SECRET_MASK,
        });
        copied = part.end;
    }
    if copied < cut {
        output.push_str(&text[copied..cut]);
    }
    (output, copied)
}

impl Sessions<'_> {
    /// The redactor for what the agent of a session writes.
    pub(crate) async fn redactor(self, session: &Session) -> Result<Redactor> {
        let project = self.engine.store().project(session.project_id).await?;
        Ok(project.map_or_else(Redactor::default, |project| {
            Redactor::for_project(self.engine, &project)
        }))
    }

    /// The agent of a session, without a command if it is no longer configured.
    pub(super) fn configured_agent(self, session: &Session) -> Agent {
        agents::find(self.engine.settings(), &session.agent)
            .unwrap_or_else(|_| Agent::from_command(&session.agent, Vec::new()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn redactor(secrets: &[&str]) -> Redactor {
        Redactor::new(secrets.iter().copied().map(Secret::new))
    }

    #[test]
    fn only_secrets_and_api_keys_are_redacted() {
        let redactor = redactor(&["sk-very-secret", "short"]);
        assert_eq!(redactor.redact("plain short text"), None);
        assert_eq!(
            redactor.redact_text("a sk-very-secret b sk-very-secret".to_owned()),
            "a [redacted] b [redacted]"
        );
        let key = format!("oub_{}", "x".repeat(43));
        assert_eq!(
            redactor.redact_text(format!("{key}, oub_no")),
            "oub_****, oub_no"
        );
        let mut value = json!({ "sk-very-secret": [1, "x\"sk-very-secret\""], "b": null });
        assert!(redactor.redact_value(&mut value));
        assert_eq!(
            value,
            json!({ "[redacted]": [1, "x\"[redacted]\""], "b": null })
        );
        assert!(!redactor.redact_value(&mut json!({ "a": "b" })));
    }

    #[test]
    fn overlapping_secrets_leave_nothing_of_either() {
        let redactor = redactor(&["abcdefgh", "efghijkl", "hijklmno"]);
        let text = "- abcdefghijklmno -".to_owned();
        assert_eq!(redactor.redact_text(text), "- [redacted] -");
    }

    #[test]
    fn only_a_possible_start_of_a_secret_is_held_back() {
        let redactor = redactor(&["correct horse"]);
        let mut held = HeldText::default();
        assert_eq!(redactor.push(&mut held, "This is "), "This is ");
        assert!(held.is_empty());
        assert_eq!(redactor.push(&mut held, "my cor"), "my ");
        let stored = serde_json::to_string(&held).unwrap();
        assert!(!stored.contains("cor"), "{stored}");
        let mut held: HeldText = serde_json::from_str(&stored).unwrap();
        assert_eq!(redactor.push(&mut held, "sage"), "corsage");
        assert_eq!(redactor.push(&mut held, " correct"), " ");
        assert_eq!(redactor.push(&mut held, " horse!"), "[redacted]!");
        assert_eq!(redactor.push(&mut held, "c"), "");
        assert_eq!(redactor.finish(&mut held), "c");
        assert!(held.is_empty());
    }

    fn pieces<'a>(text: &'a str, cuts: &[usize]) -> Vec<&'a str> {
        let mut pieces = Vec::new();
        let mut rest = text;
        for cut in cuts {
            let end = rest.floor_char_boundary((*cut).min(rest.len()));
            let (piece, after) = rest.split_at(end);
            pieces.push(piece);
            rest = after;
        }
        pieces.push(rest);
        pieces
    }

    #[test]
    fn a_secret_that_starts_inside_an_api_key_is_masked_with_it() {
        let redactor = redactor(&["u\tsecret"]);
        let key = format!("oub_{}", "k".repeat(30));
        for cut in ["u", "ku"] {
            let mut held = HeldText::default();
            let mut shown = redactor.push(&mut held, &key);
            for piece in [cut, "\tsec", "ond"] {
                shown.push_str(&redactor.push(&mut held, piece));
            }
            assert_eq!(shown, "oub_****\tsecond");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Any secrets, any text, any pieces, with the state stored between them.
        #[test]
        fn a_text_in_pieces_is_redacted_like_the_whole(
            secrets in proptest::collection::vec("[aoub_ü\"\\\\\t]{8,12}", 0..4),
            words in proptest::collection::vec(
                prop_oneof![
                    6 => "[aoub_ü\"\\\\\t]{0,9}",
                    2 => "oub_[a-zA-Z0-9_-]{0,50}",
                    2 => "S[0-3]",
                ], 0..12),
            cuts in proptest::collection::vec(0usize..7, 0..60),
        ) {
            let mut text = String::new();
            for word in words {
                let named = word.strip_prefix('S').and_then(|n| n.parse::<usize>().ok());
                match named {
                    Some(n) => text.push_str(secrets.get(n).map_or("", String::as_str)),
                    None => text.push_str(&word),
                }
            }
            let redactor = Redactor::new(secrets.iter().map(Secret::new));
            let mut held = HeldText::default();
            let mut shown = String::new();
            for piece in pieces(&text, &cuts) {
                shown.push_str(&redactor.push(&mut held, piece));
                prop_assert!(held.text.len() < ApiKey::PREFIX.len() + MIN_API_KEY_CHARS);
                let stored = serde_json::to_string(&held).unwrap();
                held = serde_json::from_str(&stored).unwrap();
            }
            shown.push_str(&redactor.finish(&mut held));
            prop_assert!(held.is_empty());
            prop_assert_eq!(&shown, &redactor.redact_text(text.clone()));
            for secret in &secrets {
                prop_assert!(!shown.contains(secret.as_str()), "{} in {}", secret, shown);
            }
        }
    }
}
