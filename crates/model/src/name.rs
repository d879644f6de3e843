//! The name of a project.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};
use uuid::Uuid;

use crate::{Invalid, quoted};

/// 1 to 100 letters, digits, spaces, `.`, `_` or `-`, starting with a letter or digit. Not a UUID,
/// so that a name can never be taken for an id.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct ProjectName(String);

impl ProjectName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ProjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for ProjectName {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b' ' | b'.' | b'_' | b'-');
        let valid = (1..=100).contains(&text.len())
            && text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && !text.ends_with(' ')
            && text.bytes().all(allowed);
        if !valid {
            return Err(Invalid(format!(
                "{} is not a project name; use 1 to 100 letters, digits, spaces, `.`, `_` or `-`, \
                 starting with a letter or digit and not ending with a space",
                quoted(text)
            )));
        }
        if Uuid::try_parse(text).is_ok() {
            return Err(Invalid(format!(
                "{} is a UUID and would be taken for a project id; choose a name in words",
                quoted(text)
            )));
        }
        Ok(Self(text.to_owned()))
    }
}

impl<'de> Deserialize<'de> for ProjectName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for ProjectName {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "ProjectName".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_contract() {
        for good in ["a", "My project 2.0", "x_y-z.w", "0", &"n".repeat(100)] {
            assert!(good.parse::<ProjectName>().is_ok(), "{good:?}");
        }
        let uuid = "1b4e28ba-2fa1-41d2-883f-0016d3cca427";
        let long = "n".repeat(10_000);
        for bad in [
            "", " a", "a ", ".a", "-a", "a/b", "..", "a\0b", "🚀", "é", "a\nb", uuid, &long,
        ] {
            let error = bad.parse::<ProjectName>().map(|_| ()).unwrap_err();
            assert!(error.0.len() < 300, "{bad:?}");
        }
    }
}
