//! A value that must never be shown.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize, Serializer};

/// Text that neither `Debug` nor serialisation shows; [`Secret::reveal`] is the only way to it.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("****")
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("****")
    }
}

/// Serialises a map with its secrets revealed: for what goes to the store or to an agent.
pub(crate) fn map_in_clear<S: Serializer>(
    map: &BTreeMap<String, Secret>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(map.iter().map(|(name, value)| (name, value.reveal())))
}

impl JsonSchema for Secret {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Secret".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }
}

#[cfg(test)]
mod tests {
    use super::Secret;

    #[test]
    fn a_secret_shows_nowhere() {
        let secret = Secret::new("hunter2");
        assert_eq!(format!("{secret:?}"), "****");
        assert_eq!(
            serde_json::to_string(&secret).ok().as_deref(),
            Some("\"****\"")
        );
        assert_eq!(secret.reveal(), "hunter2");
    }
}
