//! The name of a stored credential, and the address of a gateway that it is for.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use url::Url;

use crate::string_type::string_type;
use crate::{InvalidValue, quoted};

const MAX_NAME_BYTES: usize = 64;
const MAX_ADDRESS_BYTES: usize = 2048;

/// 1 to 64 lowercase letters, digits, `.`, `_` or `-`, starting with a letter or digit: also the name
/// of a file, on any file system.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct CredentialName(String);

impl CredentialName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for CredentialName {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let is_word = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
        let is_allowed = |c: u8| is_word(c) || matches!(c, b'.' | b'_' | b'-');
        let is_valid = text.len() <= MAX_NAME_BYTES
            && text.bytes().next().is_some_and(is_word)
            && text.bytes().all(is_allowed);
        if is_valid {
            return Ok(Self(text.to_owned()));
        }
        Err(InvalidValue(format!(
            "{} is not a name of a credential; use 1 to 64 lowercase letters, digits, `.`, `_` or `-`, \
             starting with a letter or digit",
            quoted(text)
        )))
    }
}

string_type!(CredentialName, { "type": "string" });

/// An http or https address without a user, a query or a fragment, and without a slash at its end.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct BaseUrl(String);

impl BaseUrl {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name or address of the host.
    pub fn host(&self) -> String {
        let url = Url::parse(&self.0).ok();
        let host = url.as_ref().and_then(Url::host_str);
        host.unwrap_or_default().to_owned()
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for BaseUrl {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        // A refused address is not repeated: it may have a password in it.
        let refuse = |why: &str| Err(InvalidValue(format!("the base URL {why}")));
        if text.len() > MAX_ADDRESS_BYTES {
            return refuse("has more than 2048 bytes");
        }
        if text
            .chars()
            .any(|c| c.is_control() || c.is_whitespace() || c == '\\')
        {
            return refuse("has white space, a control character or a backslash");
        }
        let Ok(url) = Url::parse(text) else {
            return refuse("is not an address; write it like https://gateway.example.com/v1");
        };
        if !matches!(url.scheme(), "http" | "https") || !text.contains("://") {
            return refuse("must start with https:// or http://");
        }
        if !url.username().is_empty() || url.password().is_some() || text.contains('@') {
            return refuse("must not have a user name or password; the credential is sent to it");
        }
        if url.query().is_some() || url.fragment().is_some() {
            return refuse("must not have a query or a fragment");
        }
        Ok(Self(url.as_str().trim_end_matches('/').to_owned()))
    }
}

string_type!(BaseUrl, { "type": "string" });

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_can_be_names_of_files() {
        for good in ["a", "work", "acme-2.key_x", "0", &"n".repeat(64)] {
            assert!(good.parse::<CredentialName>().is_ok(), "{good:?}");
        }
        let long = "n".repeat(65);
        for bad in [
            "", ".a", "-a", "a/b", "..", "A", "a b", "é", "a\0", "a\n", &long,
        ] {
            assert!(bad.parse::<CredentialName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_base_url_is_http_or_https_and_holds_no_secret() {
        let parsed = |text: &str| text.parse::<BaseUrl>().map(|url| url.as_str().to_owned());
        let good = "https://gateway.example.com/team/v1/";
        assert_eq!(parsed(good).unwrap(), good.trim_end_matches('/'));
        assert_eq!(
            parsed("http://127.0.0.1:8080").unwrap(),
            "http://127.0.0.1:8080"
        );
        let long = format!("https://x/{}", "a".repeat(2048));
        for bad in [
            "",
            "gateway",
            "file:///etc/passwd",
            "https:gateway",
            "https://",
            "https://user:hunter2@x/",
            "https://hunter2@x/",
            "https://x/?key=hunter2",
            "https://x/#hunter2",
            "https://x/a b",
            "https://x/\n",
            "https://x\\y",
            "javascript:alert(1)",
            &long,
        ] {
            let error = parsed(bad).unwrap_err();
            assert!(!error.0.contains("hunter2"), "{error}");
        }
    }
}
