//! What a token may do, as written in `token_create`.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Invalid, Mode, ProjectId, quoted};

/// The scope of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Everything, everywhere.
    Admin,
    /// Every read operation on every project; written `admin:ro` or `read`.
    Read,
    /// Every operation except the admin-only ones, on every project.
    Write,
    /// One project alone, and global reads that then show only that project.
    Project(ProjectId, Mode),
}

impl Scope {
    /// The forms that [`Scope::from_str`] takes, for messages and `project_options`.
    pub const FORMS: [&str; 6] = [
        "admin",
        "admin:ro",
        "read",
        "write",
        "project:<uuid>",
        "project:<uuid>:ro",
    ];

    /// The only project this scope reaches, if it is bound to one.
    pub fn project(self) -> Option<ProjectId> {
        match self {
            Self::Project(id, _) => Some(id),
            Self::Admin | Self::Read | Self::Write => None,
        }
    }

    /// Whether everything `other` may do is also allowed to `self`.
    pub fn covers(self, other: Self) -> bool {
        match (self, other) {
            (Self::Admin, _) => true,
            (Self::Write, Self::Admin) => false,
            (Self::Write, _) => true,
            (Self::Read, Self::Read | Self::Project(_, Mode::Read)) => true,
            (Self::Read, _) => false,
            (Self::Project(mine, mode), Self::Project(theirs, wanted)) => {
                mine == theirs && (mode == Mode::Write || wanted == Mode::Read)
            }
            (Self::Project(..), _) => false,
        }
    }
}

impl Scope {
    /// What is allowed by both, if anything is.
    pub fn narrowed_to(self, other: Self) -> Option<Self> {
        match (self, other) {
            _ if other.covers(self) => Some(self),
            _ if self.covers(other) => Some(other),
            (Self::Read, Self::Project(id, _)) | (Self::Project(id, _), Self::Read) => {
                Some(Self::Project(id, Mode::Read))
            }
            _ => None,
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Admin => f.write_str("admin"),
            Self::Read => f.write_str("read"),
            Self::Write => f.write_str("write"),
            Self::Project(id, Mode::Write) => write!(f, "project:{id}"),
            Self::Project(id, Mode::Read) => write!(f, "project:{id}:ro"),
        }
    }
}

impl FromStr for Scope {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let project = |rest: &str| {
            let (id, mode) = match rest.strip_suffix(":ro") {
                Some(id) => (id, Mode::Read),
                None => (rest, Mode::Write),
            };
            id.parse().ok().map(|id| Self::Project(id, mode))
        };
        match text {
            "admin" => Some(Self::Admin),
            "admin:ro" | "read" => Some(Self::Read),
            "write" => Some(Self::Write),
            _ => text.strip_prefix("project:").and_then(project),
        }
        .ok_or_else(|| {
            Invalid(format!(
                "{} is not a scope; use one of {}",
                quoted(text),
                Self::FORMS.join(", ")
            ))
        })
    }
}

impl Serialize for Scope {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Scope {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Scope {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Scope".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }
}
