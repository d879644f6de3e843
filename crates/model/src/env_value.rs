//! The value of an environment variable, and whether it is hidden in what agents write.

use std::collections::BTreeMap;

use serde::de::Error;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::string_type::string_schema;
use crate::{Secret, quoted};

/// A shorter value could be any word, so it is never hidden.
pub const MIN_SECRET_BYTES: usize = 8;

/// Written as a string, or as `{value, secret}`. Serialization masks the value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvValue {
    value: Secret,
    /// Whether it is hidden; by its name and value if absent.
    secret: Option<bool>,
}

impl EnvValue {
    pub fn new(value: impl Into<String>, secret: Option<bool>) -> Self {
        Self {
            value: Secret::new(value),
            secret,
        }
    }

    pub fn reveal(&self) -> &str {
        self.value.reveal()
    }

    /// Whether it is marked as secret, but too short to be hidden.
    pub fn is_too_short(&self) -> bool {
        self.secret == Some(true) && self.reveal().len() < MIN_SECRET_BYTES
    }

    /// Whether the variable of this name is a secret, by its mark or, without one, by its looks.
    fn is_secret(&self, name: &str) -> bool {
        self.secret.unwrap_or_else(|| {
            password_in_url(self.reveal()).is_some()
                || is_secret_name(name)
                || is_secret_value(self.reveal())
        })
    }

    /// Whether the variable of this name is hidden in what agents write.
    pub fn is_hidden(&self, name: &str) -> bool {
        self.reveal().len() >= MIN_SECRET_BYTES && self.is_secret(name)
    }

    /// Whether the variable of this name looks like a secret, but is too short to be hidden.
    pub fn is_too_short_to_hide(&self, name: &str) -> bool {
        self.reveal().len() < MIN_SECRET_BYTES && !self.reveal().is_empty() && self.is_secret(name)
    }

    /// The texts that must not appear in the log: the value, and a password in it. None if the variable
    /// of this name is not a secret.
    pub fn secrets(&self, name: &str) -> Vec<Secret> {
        if !self.is_secret(name) {
            return Vec::new();
        }
        let password = password_in_url(self.reveal()).map(Secret::new);
        let all = [Some(self.value.clone()), password].into_iter().flatten();
        all.filter(|secret| secret.reveal().len() >= MIN_SECRET_BYTES)
            .collect()
    }
}

/// Words that mean a secret, as a part of a name between underscores.
const SECRET_WORDS: [&str; 14] = [
    "KEY",
    "KEYS",
    "APIKEY",
    "TOKEN",
    "TOKENS",
    "PASS",
    "PASSWD",
    "PASSPHRASE",
    "PWD",
    "AUTH",
    "CRED",
    "CREDS",
    "DSN",
    "PAT",
];
/// Parts of a name that mean a secret anywhere in it.
const SECRET_PARTS: [&str; 4] = ["SECRET", "PASSWORD", "CREDENTIAL", "PRIVATE"];
/// The last word of the name of a variable that says where a secret is, or how long it lasts.
const PLAIN_ENDINGS: [&str; 9] = [
    "PATH", "FILE", "DIR", "NAME", "ID", "TTL", "TIMEOUT", "LIMIT", "TYPE",
];

fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    let words: Vec<&str> = name.split('_').collect();
    if matches!(name.as_str(), "PWD" | "OLDPWD")
        || words
            .last()
            .is_some_and(|last| PLAIN_ENDINGS.contains(last))
    {
        return false;
    }
    words.iter().any(|word| SECRET_WORDS.contains(word))
        || SECRET_PARTS.iter().any(|part| name.contains(part))
        || ["KEY", "TOKEN"].iter().any(|part| name.ends_with(part))
}

/// How keys of well-known services begin.
const SECRET_PREFIXES: [&str; 34] = [
    "sk-",
    "sk_live_",
    "sk_test_",
    "rk_live_",
    "whsec_",
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "github_pat_",
    "glpat-",
    "xoxa-",
    "xoxb-",
    "xoxp-",
    "xoxr-",
    "xoxs-",
    "xapp-",
    "AKIA",
    "ASIA",
    "AIza",
    "ya29.",
    "eyJ",
    "npm_",
    "pypi-",
    "hf_",
    "oub_",
    "SG.",
    "dop_v1_",
    "shpat_",
    "fk-",
    "gsk_",
    "xai-",
    "-----BEGIN ",
];
const MIN_PREFIXED_BYTES: usize = 12;
const MIN_RANDOM_BYTES: usize = 20;
/// Of hexadecimal digits alone, which have at most 4 bits each.
const MIN_RANDOM_HEX_BYTES: usize = 32;
const MIN_RANDOM_BITS_PER_BYTE: f64 = 3.5;

fn is_secret_value(value: &str) -> bool {
    let is_prefixed = SECRET_PREFIXES
        .iter()
        .any(|prefix| value.starts_with(prefix));
    (is_prefixed && value.len() >= MIN_PREFIXED_BYTES) || is_random(value)
}

/// Whether a value looks like random characters: no words, paths, addresses or versions.
fn is_random(value: &str) -> bool {
    let is_key_byte = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'+' | b'=' | b'_' | b'-');
    let bytes = value.as_bytes();
    if bytes.len() < MIN_RANDOM_BYTES
        // A path has slashes at its start or several letters between them.
        || bytes.first() == Some(&b'/')
        || !bytes.iter().all(|c| is_key_byte(*c) || *c == b'/')
    {
        return false;
    }
    let digits = bytes.iter().filter(|c| c.is_ascii_digit()).count();
    let is_hex = bytes.iter().all(|c| c.is_ascii_hexdigit() || *c == b'-');
    if is_hex {
        return bytes.len() >= MIN_RANDOM_HEX_BYTES && digits > 0 && entropy(bytes) >= 3.0;
    }
    let has = |class: fn(&u8) -> bool| bytes.iter().any(class);
    let is_mixed = digits >= 2 && has(u8::is_ascii_lowercase) && has(u8::is_ascii_uppercase);
    let is_long_and_mixed = digits >= 4 && bytes.len() >= MIN_RANDOM_HEX_BYTES;
    (is_mixed || is_long_and_mixed) && entropy(bytes) >= MIN_RANDOM_BITS_PER_BYTE
}

/// Bits per byte, by how often each byte occurs.
fn entropy(bytes: &[u8]) -> f64 {
    let mut counts = [0_u32; 256];
    for byte in bytes {
        counts[usize::from(*byte)] += 1;
    }
    let total = bytes.len() as f64;
    let bits = counts.iter().filter(|count| **count > 0).map(|count| {
        let share = f64::from(*count) / total;
        -share * share.log2()
    });
    bits.sum()
}

/// The password of `scheme://user:password@host`.
fn password_in_url(value: &str) -> Option<&str> {
    let (_, rest) = value.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let (user, _) = authority.rsplit_once('@')?;
    let (_, password) = user.split_once(':')?;
    (!password.is_empty()).then_some(password)
}

impl Serialize for EnvValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(serializer)
    }
}

/// Serializes with the value revealed, in the form in which it is parsed.
struct Revealed<'a>(&'a EnvValue);

impl Serialize for Revealed<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Some(secret) = self.0.secret else {
            return serializer.serialize_str(self.0.reveal());
        };
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("value", self.0.reveal())?;
        map.serialize_entry("secret", &secret)?;
        map.end()
    }
}

/// Serializes a map with its values revealed, for the store.
pub(crate) fn reveal_map<S: Serializer>(
    map: &BTreeMap<String, EnvValue>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(map.iter().map(|(name, value)| (name, Revealed(value))))
}

impl<'de> Deserialize<'de> for EnvValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Self::from_json("NAME", value).map_err(D::Error::custom)
    }
}

impl EnvValue {
    /// The value of the variable `name`. An error says the right form, and nothing of the value.
    fn from_json(name: &str, value: Value) -> Result<Self, String> {
        let shown = quoted(name);
        let plain = format!("{{{name:?}: \"value\"}}");
        let marked = format!("{{{name:?}: {{\"value\": \"…\", \"secret\": true}}}}");
        let mut fields = match value {
            Value::String(text) => return Ok(Self::new(text, None)),
            Value::Object(fields) => fields,
            Value::Null => {
                return Err(format!(
                    "the variable {shown} is null; write `{plain}`, or leave the variable out to remove it"
                ));
            }
            other => {
                return Err(format!(
                    "the variable {shown} must be a string, `{plain}`, not {}",
                    kind_of(&other)
                ));
            }
        };
        let value = match fields.remove("value") {
            Some(Value::String(text)) => text,
            Some(other) => {
                return Err(format!(
                    "the `value` of the variable {shown} must be a string, not {}; write `{marked}`",
                    kind_of(&other)
                ));
            }
            None => {
                return Err(format!(
                    "the variable {shown} is an object without `value`; write `{marked}`, or JSON as a string"
                ));
            }
        };
        let secret = match fields.remove("secret") {
            None => None,
            Some(Value::Bool(secret)) => Some(secret),
            Some(other) => {
                return Err(format!(
                    "`secret` of the variable {shown} must be true or false, not {}; write `{marked}`",
                    kind_of(&other)
                ));
            }
        };
        if let Some(other) = fields.keys().next() {
            return Err(format!(
                "the variable {shown} has the unknown field {}; write `{marked}`",
                quoted(other)
            ));
        }
        Ok(Self::new(value, secret))
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Parses variables, with errors that name the wrong one.
pub fn parse_env<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, EnvValue>, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::Object(variables) => variables
            .into_iter()
            .map(|(name, value)| {
                let value = EnvValue::from_json(&name, value)?;
                Ok((name, value))
            })
            .collect::<Result<_, String>>()
            .map_err(D::Error::custom),
        other => Err(D::Error::custom(format!(
            "must be an object with the variables, `{{\"NAME\": \"value\"}}`, not {}",
            kind_of(&other)
        ))),
    }
}

/// Parses variables that may be absent.
pub fn parse_optional_env<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<BTreeMap<String, EnvValue>>, D::Error> {
    parse_env(deserializer).map(Some)
}

string_schema!(EnvValue, {
    "anyOf": [
        { "type": "string" },
        {
            "type": "object",
            "properties": { "value": { "type": "string" }, "secret": { "type": "boolean" } }
        }
    ]
});

#[cfg(test)]
mod tests {
    use super::*;

    fn is_secret(name: &str, value: &str) -> bool {
        !EnvValue::new(value, None).secrets(name).is_empty()
    }

    #[test]
    fn values_that_look_like_keys_are_secrets_and_ordinary_words_are_not() {
        for (name, value) in [
            ("ANTHROPIC_API_KEY", "whatever it is"),
            ("DB_PASSWORD", "correct horse"),
            ("MY_SECRET_THING", "correct horse"),
            ("GITHUB_TOKEN", "0123456789"),
            ("apikey", "0123456789"),
            ("X", "sk-ant-REDACTED"),
            ("X", "ghp_0123456789abcdefghij"),
            ("X", "-----BEGIN PRIVATE KEY-----\nMIIE\n"),
            ("X", "postgres://app:hunter2hunter2@db/app"),
            ("X", "6f1ed002ab5595859014ebf0951522d9"),
            ("X", "3Qx9LmPz7TqRv2WnYb8KdHs4"),
        ] {
            assert!(is_secret(name, value), "{name}={value}");
        }
        for (name, value) in [
            ("NODE_ENV", "production"),
            ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/bin"),
            ("PWD", "/workspace/project"),
            ("SSH_KEY_PATH", "/root/.ssh/id_ed25519"),
            ("KEY_ID", "my-first-key"),
            ("LANG", "en_US.UTF-8"),
            ("JAVA_TOOL_OPTIONS", "-Xmx512m -Dfile.encoding=UTF-8"),
            ("API_URL", "https://api.example.com/v1/things?x=1"),
            ("DATABASE_URL", "postgres://db.internal:5432/app"),
            ("FEATURES", "checkout_v2,search_v3,recommendations"),
            ("VERSION", "2026.11.16-rc1"),
            ("GREETING", "hello world, how are you"),
            ("SERVICE_NAME", "billing-worker-europe-west1"),
            ("API_KEY", "short"),
        ] {
            assert!(!is_secret(name, value), "{name}={value}");
        }
    }

    #[test]
    fn a_mark_decides_and_a_password_in_an_address_is_a_secret_of_its_own() {
        let marked = EnvValue::new("production", Some(true));
        assert_eq!(marked.secrets("NODE_ENV").len(), 1);
        let plain = EnvValue::new("sk-ant-REDACTED", Some(false));
        assert!(plain.secrets("KEY").is_empty());
        let url = EnvValue::new("redis://:hunter2hunter2@cache", None);
        let secrets = url.secrets("CACHE");
        let texts: Vec<&str> = secrets.iter().map(Secret::reveal).collect();
        assert_eq!(texts, ["redis://:hunter2hunter2@cache", "hunter2hunter2"]);
        assert!(EnvValue::new("short", Some(true)).is_too_short());
        let short = EnvValue::new("abc", None);
        assert!(short.is_too_short_to_hide("SHORT_TOKEN") && !short.is_hidden("SHORT_TOKEN"));
        assert!(!short.is_too_short_to_hide("NODE_ENV") && marked.is_hidden("NODE_ENV"));
    }

    #[test]
    fn both_forms_are_read_and_the_stored_form_keeps_the_mark() {
        #[derive(Serialize, Deserialize)]
        struct Stored {
            #[serde(serialize_with = "reveal_map", deserialize_with = "parse_env")]
            env: BTreeMap<String, EnvValue>,
        }
        let text = r#"{"env":{"A":"x","B":{"value":"y","secret":false}}}"#;
        let stored: Stored = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&stored).unwrap(), text);
        assert_eq!(
            serde_json::to_string(&stored.env).unwrap(),
            r#"{"A":"****","B":"****"}"#
        );
    }

    #[test]
    fn a_wrong_variable_is_named_with_the_right_form_and_without_its_value() {
        #[derive(Debug, Deserialize)]
        struct Given {
            #[serde(deserialize_with = "parse_env")]
            #[expect(dead_code, reason = "only parsed")]
            env: BTreeMap<String, EnvValue>,
        }
        let marked = r#"{"A": {"value": "…", "secret": true}}"#;
        for (wrong, expected) in [
            (
                r#"{"A":{"value":12345678}}"#,
                "`value` of the variable `A` must be a string, not a number",
            ),
            (
                r#"{"A":{"secret":true}}"#,
                "the variable `A` is an object without `value`",
            ),
            (
                r#"{"A":{"value":"hunter2","secret":"yes"}}"#,
                "must be true or false, not a string",
            ),
            (
                r#"{"A":{"value":"hunter2","x":1}}"#,
                "the unknown field `x`",
            ),
            (r#"{"A":{"nested":{"value":"hunter2"}}}"#, "without `value`"),
            (
                r#"{"A":{"value":{"value":"hunter2"}}}"#,
                "must be a string, not an object",
            ),
        ] {
            let text = format!("{{\"env\":{wrong}}}");
            let error = serde_json::from_str::<Given>(&text)
                .unwrap_err()
                .to_string();
            assert!(
                error.contains(expected) && error.contains(marked),
                "{error}"
            );
            assert!(
                !error.contains("hunter2") && !error.contains("12345678"),
                "{error}"
            );
        }
        for (wrong, expected) in [
            (
                r#"{"A":12345678}"#,
                r#"the variable `A` must be a string, `{"A": "value"}`, not a number"#,
            ),
            (
                r#"{"A":null}"#,
                "the variable `A` is null; write `{\"A\": \"value\"}`, or leave",
            ),
            (
                r#"["A=hunter2"]"#,
                "must be an object with the variables, `{\"NAME\": \"value\"}`, not a list",
            ),
        ] {
            let text = format!("{{\"env\":{wrong}}}");
            let error = serde_json::from_str::<Given>(&text)
                .unwrap_err()
                .to_string();
            assert!(error.contains(expected), "{error}");
            assert!(
                !error.contains("hunter2") && !error.contains("12345678"),
                "{error}"
            );
        }
    }
}
