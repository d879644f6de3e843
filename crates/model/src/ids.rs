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

uuid_id!(
    ScheduleId,
    "schedule",
    "A schedule: a prompt that is given to projects at set times.",
    "1b4e28ba-2fa1-41d2-883f-0016d3cca427"
);
uuid_id!(
    RunId,
    "run",
    "One run of a schedule for one of its targets.",
    "1b4e28ba-2fa1-41d2-883f-0016d3cca427"
);

/// A session: one agent conversation in one workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(Uuid);

impl SessionId {
    const PREFIX: &str = "gogol_";

    pub fn new(id: Uuid) -> Self {
        Self(id)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", Self::PREFIX, self.0.simple())
    }
}

impl FromStr for SessionId {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let digits = text.strip_prefix(Self::PREFIX);
        let plain = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
        let digits = digits.filter(|digits| digits.len() == 32 && digits.bytes().all(plain));
        let parsed = digits.and_then(|digits| Uuid::try_parse(digits).ok());
        parsed.map(Self).ok_or_else(|| {
            Invalid(format!(
                "{} is not a session id; it looks like gogol_ and 32 hexadecimal digits",
                quoted(text)
            ))
        })
    }
}

impl Serialize for SessionId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SessionId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for SessionId {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "SessionId".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^gogol_[0-9a-f]{32}$" })
    }
}

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
    fn a_session_id_goes_round() {
        let id = SessionId::new(Uuid::from_u128(77));
        assert_eq!(id.to_string().parse::<SessionId>(), Ok(id));
        for bad in ["", "gogol_", "gogol_1", &id.to_string().to_uppercase()] {
            assert!(bad.parse::<SessionId>().is_err(), "{bad}");
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
