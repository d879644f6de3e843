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

    /// The name or address of the host, with the port unless it is the scheme's default.
    pub fn authority(&self) -> String {
        let url = Url::parse(&self.0).ok();
        let host = url.as_ref().and_then(Url::host_str).unwrap_or_default();
        match url.as_ref().and_then(Url::port) {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        }
    }

    pub fn is_https(&self) -> bool {
        self.0.starts_with("https://")
    }

    /// The path without a slash at its end; empty if there is none.
    pub fn path(&self) -> String {
        let url = Url::parse(&self.0).ok();
        let path = url.as_ref().map_or("", Url::path);
        path.trim_end_matches('/').to_owned()
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

    #[test]
    fn an_address_has_a_host_with_its_port_and_a_path() {
        let url = |text: &str| text.parse::<BaseUrl>().unwrap();
        let plain = url("https://Git.example.com:443/");
        assert_eq!(
            (plain.authority().as_str(), plain.path().as_str()),
            ("git.example.com", "")
        );
        let other = url("http://git.example.com:8443/acme/");
        assert_eq!(other.authority(), "git.example.com:8443");
        assert_eq!(other.path(), "/acme");
        assert!(plain.is_https() && !other.is_https());
    }
}
