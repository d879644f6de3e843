//! The name of a project.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use uuid::Uuid;

use crate::string_type::string_type;
use crate::{InvalidValue, quoted};

/// 1 to 100 letters, digits, spaces, `.`, `_` or `-`, starting with a letter or digit. Not a UUID,
/// so that a name cannot be confused with an id.
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
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b' ' | b'.' | b'_' | b'-');
        let valid = (1..=100).contains(&text.len())
            && text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && !text.ends_with(' ')
            && text.bytes().all(allowed);
        if !valid {
            return Err(InvalidValue(format!(
                "{} is not a project name; use 1 to 100 letters, digits, spaces, `.`, `_` or `-`, \
                 starting with a letter or digit and not ending with a space",
                quoted(text)
            )));
        }
        if Uuid::try_parse(text).is_ok() {
            return Err(InvalidValue(format!(
                "{} is a UUID and could be confused with a project id; choose another name",
                quoted(text)
            )));
        }
        Ok(Self(text.to_owned()))
    }
}

string_type!(ProjectName, { "type": "string" });

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_names_are_accepted_and_others_refused() {
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
