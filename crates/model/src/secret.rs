//! A value that must not appear in logs or results.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

use crate::string_type::string_schema;

/// A text that `Debug` and serialization mask; only [`Secret::reveal`] returns it.
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

    /// Without white space at its ends, which files and terminals add.
    #[must_use]
    pub fn into_trimmed(self) -> Self {
        Self(self.0.trim().to_owned())
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

string_schema!(Secret, { "type": "string" });

#[cfg(test)]
mod tests {
    use super::Secret;

    #[test]
    fn a_secret_is_masked_in_debug_and_json() {
        let secret = Secret::new("hunter2");
        assert_eq!(format!("{secret:?}"), "****");
        assert_eq!(
            serde_json::to_string(&secret).ok().as_deref(),
            Some("\"****\"")
        );
        assert_eq!(secret.reveal(), "hunter2");
    }
}
