//! The address of the repository that a project is cloned from.

use std::fmt;

use serde::{Deserialize, Serialize};
use url::Url;

use crate::string_type::string_schema;
use crate::{InvalidValue, quoted};

/// The protocol of a repository address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    Https,
    Http,
    Ssh,
    /// A repository on the disk of the server; allowed only by the configuration.
    Local,
}

/// A valid `remote_url`. It is safe as an argument of git: it never starts with a dash and never
/// names a transport that runs programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct RemoteUrl {
    text: String,
    transport: Transport,
    host: String,
}

impl RemoteUrl {
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        let refuse = |why: &str| Err(InvalidValue(format!("{} {why}", quoted(text))));
        let is_forbidden = |c: char| c.is_control() || c.is_whitespace() || c == '\\';
        if text.len() > 2048 || text.chars().any(is_forbidden) {
            return refuse(
                "is not a repository address; it has more than 2048 bytes, white space or a backslash",
            );
        }
        if text.starts_with('-') {
            return refuse("is not a repository address; it must not start with a dash");
        }
        if text.starts_with('/') || text.starts_with("./") || text.starts_with("../") {
            return Ok(Self::local(text));
        }
        if let Some(scheme_end) = text.find("://") {
            return match &text[..scheme_end] {
                "https" => Self::with_host(text, Transport::Https),
                "http" => Self::with_host(text, Transport::Http),
                "ssh" => Self::with_host(text, Transport::Ssh),
                "file" => Ok(Self::local(text)),
                _ => refuse("cannot be cloned; use https, http, ssh or git@host:path"),
            };
        }
        if text.contains("::") {
            return refuse("names a git transport helper; use https, http, ssh or git@host:path");
        }
        Self::scp_form(text)
    }

    fn local(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            transport: Transport::Local,
            host: String::new(),
        }
    }

    fn with_host(text: &str, transport: Transport) -> Result<Self, InvalidValue> {
        let url = Url::parse(text).map_err(|error| {
            InvalidValue(format!("{} is not a valid address: {error}", quoted(text)))
        })?;
        // Unlike git, the URL standard skips extra slashes: both must see the same host.
        let authority = text.split("://").nth(1).unwrap_or_default();
        let host = url.host_str().unwrap_or_default();
        if authority.starts_with('/')
            || host.is_empty()
            || host.starts_with('-')
            || url.username().starts_with('-')
        {
            return Err(InvalidValue(format!(
                "{} has no valid host name",
                quoted(text)
            )));
        }
        if url.password().is_some() {
            // Not quoted, because the text contains the password.
            return Err(InvalidValue(
                "the address contains a password, which would be stored unencrypted; put it into \
                 [credentials.NAME] of oubliette.toml and set `git_credential` to NAME"
                    .to_owned(),
            ));
        }
        let host = match url.port() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        };
        Ok(Self {
            text: text.to_owned(),
            transport,
            host,
        })
    }

    fn scp_form(text: &str) -> Result<Self, InvalidValue> {
        let parts = text.split_once(':').and_then(|(login, path)| {
            let (user, host) = login.split_once('@')?;
            Some((user, host, path))
        });
        let is_plain = |part: &str| {
            !part.is_empty()
                && !part.starts_with('-')
                && part
                    .bytes()
                    .all(|c| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-'))
        };
        match parts {
            Some((user, host, path))
                if is_plain(user)
                    && is_plain(host)
                    && !path.is_empty()
                    && !path.starts_with('-') =>
            {
                Ok(Self {
                    text: text.to_owned(),
                    transport: Transport::Ssh,
                    host: host.to_owned(),
                })
            }
            _ => Err(InvalidValue(format!(
                "{} is not a repository address; use https://…, ssh://… or git@host:path",
                quoted(text)
            ))),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// The host, with the port unless it is the scheme's default; empty for local repositories.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The user in the address, if any.
    pub fn user(&self) -> Option<String> {
        let url = Url::parse(&self.text).ok()?;
        Some(url.username().to_owned()).filter(|user| !user.is_empty())
    }

    /// The path in the address; empty if it is no URL.
    pub fn path(&self) -> String {
        let url = Url::parse(&self.text).ok();
        url.map_or_else(String::new, |url| url.path().to_owned())
    }

    pub fn is_loopback(&self) -> bool {
        let name = self
            .host
            .rsplit_once(':')
            .map_or(self.host.as_str(), |(name, _)| name);
        matches!(name, "localhost" | "[::1]") || name.starts_with("127.")
    }
}

impl fmt::Display for RemoteUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

impl From<RemoteUrl> for String {
    fn from(url: RemoteUrl) -> Self {
        url.text
    }
}

impl TryFrom<String> for RemoteUrl {
    type Error = InvalidValue;

    fn try_from(text: String) -> Result<Self, InvalidValue> {
        Self::parse(&text)
    }
}

string_schema!(RemoteUrl, { "type": "string" });

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn supported_forms_are_parsed() {
        let table = [
            (
                "https://example.org/a/b.git",
                Transport::Https,
                "example.org",
            ),
            ("http://127.0.0.1:8080/b", Transport::Http, "127.0.0.1:8080"),
            (
                "ssh://git@example.org:22/a",
                Transport::Ssh,
                "example.org:22",
            ),
            ("git@example.org:a/b.git", Transport::Ssh, "example.org"),
            ("file:///srv/a", Transport::Local, ""),
            ("/srv/a", Transport::Local, ""),
        ];
        for (text, transport, host) in table {
            let url = RemoteUrl::parse(text).unwrap();
            assert_eq!((url.transport(), url.host()), (transport, host), "{text}");
        }
    }

    #[test]
    fn forms_that_run_programs_or_hide_options_are_refused() {
        for bad in [
            "",
            "ext::sh -c id",
            "ext::sh%20-c%20id",
            "--upload-pack=id",
            "-u",
            "fd::17",
            "ssh://-oProxyCommand=id/x",
            "git@-oProxyCommand=id:x",
            "-oProxyCommand=id@h:x",
            "git@host:-x",
            "ftp://h/x",
            "git://h/x",
            "https://",
            "https:///x",
            "host:path",
            "https://h/a b",
            "https://h/\0",
            "https://h/\n",
            "a@b",
            "remote::https://h/x",
        ] {
            assert!(RemoteUrl::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_password_in_the_address_is_refused_and_not_repeated() {
        let error = RemoteUrl::parse("https://me:hunter2@example.org/x").unwrap_err();
        assert!(!error.0.contains("hunter2"));
    }

    proptest! {
        #[test]
        fn accepted_addresses_are_safe_as_arguments(text in "[-a-z:/@.]{0,40}|\\PC{0,40}") {
            if let Ok(url) = RemoteUrl::parse(&text) {
                prop_assert!(!url.as_str().starts_with('-'));
                prop_assert!(!url.as_str().contains("::") || url.as_str().contains("://")
                    || url.transport() == Transport::Local);
            }
        }
    }
}
