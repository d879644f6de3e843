//! Ids as types, parsed at the edge, so that the inside holds only valid ones.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};
use uuid::Uuid;

use crate::{Invalid, quoted};

macro_rules! uuid_id {
    ($name:ident, $what:literal, $about:literal, $example:literal) => {
        #[doc = $about]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            pub fn new(id: Uuid) -> Self {
                Self(id)
            }

            pub fn uuid(self) -> Uuid {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.hyphenated().fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = Invalid;

            fn from_str(text: &str) -> Result<Self, Invalid> {
                // Only the hyphenated form: one id has one spelling.
                let parsed = if text.len() == 36 { Uuid::try_parse(text).ok() } else { None };
                parsed.map(Self).ok_or_else(|| {
                    Invalid(format!(
                        concat!("{} is not a ", $what, " id; it looks like ", $example),
                        quoted(text)
                    ))
                })
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = Cow::<str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }

        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "format": "uuid" })
            }
        }
    };
}

uuid_id!(
    ProjectId,
    "project",
    "A project: a named place for work.",
    "1b4e28ba-2fa1-41d2-883f-0016d3cca427"
);
uuid_id!(
    TokenId,
    "token",
    "A token, by an id that is safe to show; never the key itself.",
    "1b4e28ba-2fa1-41d2-883f-0016d3cca427"
);

/// A workspace of a project: a UUID or any safe directory name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct WorkspaceId(String);

impl WorkspaceId {
    /// The workspace that every project has.
    pub const DEFAULT: &str = "default";

    pub fn default_one() -> Self {
        Self(Self::DEFAULT.to_owned())
    }

    pub fn from_uuid(id: Uuid) -> Self {
        Self(id.to_string())
    }

    pub fn is_default(&self) -> bool {
        self.0 == Self::DEFAULT
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for WorkspaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for WorkspaceId {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let safe = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-');
        let valid =
            (1..=64).contains(&text.len()) && !text.starts_with('.') && text.bytes().all(safe);
        if valid {
            Ok(Self(text.to_owned()))
        } else {
            Err(Invalid(format!(
                "{} is not a workspace id; use 1 to 64 letters, digits, `.`, `_` or `-`, not \
                 starting with a dot",
                quoted(text)
            )))
        }
    }
}

impl<'de> Deserialize<'de> for WorkspaceId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for WorkspaceId {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "WorkspaceId".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$" })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_id_has_one_spelling() {
        let id = "1b4e28ba-2fa1-41d2-883f-0016d3cca427";
        assert_eq!(
            id.parse::<ProjectId>().map(|id| id.to_string()),
            Ok(id.to_owned())
        );
        for other in [
            "",
            "1",
            "{1b4e28ba-2fa1-41d2-883f-0016d3cca427}",
            "1b4e28ba2fa141d2883f0016d3cca427",
        ] {
            assert!(other.parse::<ProjectId>().is_err(), "{other}");
        }
    }

    #[test]
    fn unsafe_workspace_names_are_refused() {
        for bad in [
            "",
            ".",
            "..",
            ".git",
            "a/b",
            "a\\b",
            "a\0",
            "ü",
            "a b",
            &"x".repeat(65),
        ] {
            assert!(bad.parse::<WorkspaceId>().is_err(), "{bad:?}");
        }
        for good in [
            "default",
            "a",
            "feature-1.2_x",
            "1b4e28ba-2fa1-41d2-883f-0016d3cca427",
        ] {
            assert!(good.parse::<WorkspaceId>().is_ok(), "{good:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in "\\PC*") {
            let _ = text.parse::<ProjectId>();
            if let Ok(id) = text.parse::<WorkspaceId>() {
                prop_assert!(!id.as_str().contains(['/', '\0']));
                prop_assert!(!id.as_str().starts_with('.'));
            }
        }
    }
}
