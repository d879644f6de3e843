//! The scope of a token: what it may do.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use crate::string_type::string_type;
use crate::{InvalidValue, Mode, ProjectId, quoted};

const PROJECT_PREFIX: &str = "project:";
const READ_SUFFIX: &str = ":ro";

/// Written as in `token_create`; [`Scope::FORMS`] lists the forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Every operation on every project.
    Admin,
    /// Every read operation on every project.
    Read,
    /// The same as `Read`, as it was written: `admin:ro`.
    AdminRead,
    /// Every operation on every project, except those for admins only.
    Write,
    /// The operations on one project, and global reads, which show only that project.
    Project(ProjectId, Mode),
}

impl Scope {
    /// The forms that [`Scope::from_str`] accepts, for messages and `project_options`.
    pub const FORMS: [&str; 6] = [
        "admin",
        "admin:ro",
        "read",
        "write",
        "project:<uuid>",
        "project:<uuid>:ro",
    ];

    /// The project that this scope is bound to, if any.
    pub fn project(self) -> Option<ProjectId> {
        match self {
            Self::Project(id, _) => Some(id),
            Self::Admin | Self::Read | Self::AdminRead | Self::Write => None,
        }
    }

    /// Whether `self` allows everything that `other` allows.
    pub fn covers(self, other: Self) -> bool {
        match (self.plain(), other.plain()) {
            (Self::Admin, _) => true,
            (Self::Write, Self::Admin) => false,
            (Self::Write, _) => true,
            (Self::Read, Self::Read | Self::Project(_, Mode::Read)) => true,
            (Self::Read, _) => false,
            (Self::Project(mine, mode), Self::Project(theirs, wanted)) => {
                mine == theirs && (mode == Mode::Write || wanted == Mode::Read)
            }
            // Never what `plain` returns.
            (Self::AdminRead, _) | (Self::Project(..), _) => false,
        }
    }

    /// The scope without its other spelling.
    fn plain(self) -> Self {
        match self {
            Self::AdminRead => Self::Read,
            other => other,
        }
    }

    /// The scope of what both allow; `None` if they have nothing in common.
    pub fn intersection(self, other: Self) -> Option<Self> {
        match (self, other) {
            _ if self == other => Some(self),
            // They are one scope in two spellings.
            _ if self.covers(other) && other.covers(self) => Some(self.plain()),
            _ if other.covers(self) => Some(self),
            _ if self.covers(other) => Some(other),
            (Self::Read | Self::AdminRead, Self::Project(id, _))
            | (Self::Project(id, _), Self::Read | Self::AdminRead) => {
                Some(Self::Project(id, Mode::Read))
            }
            _ => None,
        }
    }
}

impl Scope {
    /// The project, by its id or name, and the mode of a scope that is written `project:PROJECT` or
    /// `project:PROJECT:ro`; none for other texts.
    pub fn split_project(text: &str) -> Option<(&str, Mode)> {
        let rest = text.strip_prefix(PROJECT_PREFIX)?;
        Some(match rest.strip_suffix(READ_SUFFIX) {
            Some(project) => (project, Mode::Read),
            None => (rest, Mode::Write),
        })
    }

    /// The text that `split_project` splits.
    pub fn join_project(project: &str, mode: Mode) -> String {
        let suffix = match mode {
            Mode::Read => READ_SUFFIX,
            Mode::Write => "",
        };
        format!("{PROJECT_PREFIX}{project}{suffix}")
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Admin => f.write_str("admin"),
            Self::Read => f.write_str("read"),
            Self::AdminRead => f.write_str("admin:ro"),
            Self::Write => f.write_str("write"),
            Self::Project(id, mode) => f.write_str(&Self::join_project(&id.to_string(), *mode)),
        }
    }
}

impl FromStr for Scope {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let project = |(id, mode): (&str, Mode)| {
            let id = id.parse().ok();
            id.map(|id| Self::Project(id, mode))
        };
        match text {
            "admin" => Some(Self::Admin),
            "admin:ro" => Some(Self::AdminRead),
            "read" => Some(Self::Read),
            "write" => Some(Self::Write),
            _ => Self::split_project(text).and_then(project),
        }
        .ok_or_else(|| {
            InvalidValue(format!(
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

string_type!(Scope, { "type": "string" });
