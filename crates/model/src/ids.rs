//! Ids as types that are parsed at the edge, so that the rest of the code has only valid ids.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use uuid::Uuid;

use crate::string_type::string_type;
use crate::{InvalidValue, quoted};

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
            type Err = InvalidValue;

            fn from_str(text: &str) -> Result<Self, InvalidValue> {
                // Only the hyphenated form: one id has one spelling.
                let parsed = if text.len() == 36 { Uuid::try_parse(text).ok() } else { None };
                parsed.map(Self).ok_or_else(|| {
                    InvalidValue(format!(
                        concat!("{} is not a ", $what, " id; it looks like ", $example),
                        quoted(text)
                    ))
                })
            }
        }

        string_type!($name, { "type": "string", "format": "uuid" });
    };
}

uuid_id!(
    ProjectId,
    "project",
    "The id of a project.",
    "1b4e28ba-2fa1-41d2-883f-0016d3cca427"
);
uuid_id!(
    TokenId,
    "token",
    "The id of a token, which is safe to show, unlike its key.",
    "1b4e28ba-2fa1-41d2-883f-0016d3cca427"
);

uuid_id!(
    ScheduleId,
    "schedule",
    "The id of a schedule.",
    "1b4e28ba-2fa1-41d2-883f-0016d3cca427"
);
uuid_id!(
    RunId,
    "run",
    "The id of a run of a schedule for one of its targets.",
    "1b4e28ba-2fa1-41d2-883f-0016d3cca427"
);

/// The id of a session: one conversation with an agent in one workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(Uuid);

impl SessionId {
    /// What the id of a session starts with.
    pub const PREFIX: &str = "gogol_";

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
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let is_lower_hex = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
        let uuid = text
            .strip_prefix(Self::PREFIX)
            .filter(|digits| digits.len() == 32 && digits.bytes().all(is_lower_hex))
            .and_then(|digits| Uuid::try_parse(digits).ok());
        uuid.map(Self).ok_or_else(|| {
            InvalidValue(format!(
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

string_type!(SessionId, { "type": "string", "pattern": "^gogol_[0-9a-f]{32}$" });

/// The id of a workspace of a project: a UUID or any safe directory name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct WorkspaceId(String);

impl WorkspaceId {
    /// The workspace that every project has.
    pub const DEFAULT: &str = "default";

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

impl Default for WorkspaceId {
    fn default() -> Self {
        Self(Self::DEFAULT.to_owned())
    }
}

impl fmt::Display for WorkspaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for WorkspaceId {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let safe = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-');
        let valid =
            (1..=64).contains(&text.len()) && !text.starts_with('.') && text.bytes().all(safe);
        if valid {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidValue(format!(
                "{} is not a workspace id; use 1 to 64 letters, digits, `.`, `_` or `-`, not \
                 starting with a dot",
                quoted(text)
            )))
        }
    }
}

string_type!(
    WorkspaceId,
    { "type": "string", "pattern": "^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$" }
);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_the_hyphenated_form_is_parsed() {
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
    fn a_session_id_round_trips() {
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
        fn parsed_ids_are_safe_directory_names(text in "\\PC*") {
            let _ = text.parse::<ProjectId>();
            if let Ok(id) = text.parse::<WorkspaceId>() {
                prop_assert!(!id.as_str().contains(['/', '\0']));
                prop_assert!(!id.as_str().starts_with('.'));
            }
        }
    }
}
