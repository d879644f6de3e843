//! The author of commits that are made in containers.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::string_type::string_type;
use crate::{InvalidValue, quoted};

const MAX_IDENTITY_BYTES: usize = 300;

/// `Name <address>`, as git writes it into commits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub struct GitIdentity {
    name: String,
    email: String,
}

string_type!(GitIdentity, { "type": "string" });

impl GitIdentity {
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn email(&self) -> &str {
        &self.email
    }
}

impl Default for GitIdentity {
    fn default() -> Self {
        Self {
            name: "Oubliette agent".to_owned(),
            email: "noreply@oubliette.invalid".to_owned(),
        }
    }
}

impl FromStr for GitIdentity {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let parts = text
            .strip_suffix('>')
            .and_then(|text| text.split_once('<'))
            .map(|(name, email)| (name.trim(), email.trim()));
        // Git refuses names that consist of these characters only.
        let is_name = |name: &str| name.chars().any(char::is_alphanumeric);
        let is_clean = |text: &str| !text.contains(['<', '>']) && !text.contains(char::is_control);
        match parts {
            Some((name, email))
                if is_name(name)
                    && !email.is_empty()
                    && is_clean(name)
                    && is_clean(email)
                    && text.len() <= MAX_IDENTITY_BYTES =>
            {
                Ok(Self {
                    name: name.to_owned(),
                    email: email.to_owned(),
                })
            }
            _ => Err(InvalidValue(format!(
                "{} is not an author; write `Name <address>`, at most {MAX_IDENTITY_BYTES} bytes",
                quoted(text)
            ))),
        }
    }
}

impl fmt::Display for GitIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} <{}>", self.name, self.email)
    }
}

impl From<GitIdentity> for String {
    fn from(identity: GitIdentity) -> Self {
        identity.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_has_a_name_and_an_address() {
        let identity: GitIdentity = "Ada  <ada@example.com>".parse().unwrap();
        assert_eq!(identity.to_string(), "Ada <ada@example.com>");
        assert_eq!(
            GitIdentity::default().to_string().parse(),
            Ok(GitIdentity::default())
        );
        for text in [
            "",
            "Ada",
            "<ada@example.com>",
            "... <a@b>",
            "Ada <>",
            "Ada <a@b> x",
            "A\nda <a@b>",
            "Ada <a<b>",
        ] {
            assert!(text.parse::<GitIdentity>().is_err(), "{text:?}");
        }
    }
}
