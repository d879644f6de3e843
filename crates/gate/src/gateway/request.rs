//! A request of an agent, as its provider gets it: with the real key instead of the placeholder, for the provider's
//! address and nothing else.

use std::sync::Arc;

use hyper::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderName,
    HeaderValue, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, StatusCode, Uri};

use super::grants::{GrantEntry, Grants};
use super::provider::{KEY_HEADERS, Provider, X_GOOG_API_KEY};

/// Why a request is not sent, for the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// None if the path names none.
    pub(crate) provider: Option<Provider>,
    pub(crate) status: StatusCode,
    pub(crate) message: String,
}

impl Refusal {
    pub(crate) fn new(
        provider: impl Into<Option<Provider>>,
        status: StatusCode,
        message: impl Into<String>,
    ) -> Self {
        Self {
            provider: provider.into(),
            status,
            message: message.into(),
        }
    }
}

/// A request that may be sent.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) grant: Arc<GrantEntry>,
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    /// Without those of the connection, of the length and of the encoding.
    pub(crate) headers: HeaderMap,
    /// The path behind the provider's prefix.
    pub(crate) path: String,
}

/// With these, some servers take a request for one of another method.
const METHOD_HEADERS: [&str; 3] = [
    "x-http-method-override",
    "x-http-method",
    "x-method-override",
];

/// Where a placeholder was.
enum KeyPlace {
    Header(HeaderName),
    Query,
}

/// Decides about the head of a request of a container.
pub(crate) fn accept(head: &Parts, container: &str, grants: &Grants) -> Result<Accepted, Refusal> {
    let bad = |message: &str| Refusal::new(None, StatusCode::BAD_REQUEST, message);
    if head.uri.authority().is_some() || head.method == Method::CONNECT {
        return Err(bad("this is a gateway to models, not a proxy"));
    }
    let path = head.uri.path();
    let (provider, rest) = split_path(path).ok_or_else(|| {
        let known = Provider::ALL.map(Provider::prefix).join(", ");
        let message = format!("no provider has this path; paths start with one of {known}");
        Refusal::new(None, StatusCode::NOT_FOUND, message)
    })?;
    let refuse = |status, message: &str| Refusal::new(provider, status, message);
    // Agents use plain HTTP when they are told at once that there is nothing else.
    if head.headers.contains_key(UPGRADE) {
        let message = "the gateway speaks HTTP/1.1 and nothing else";
        return Err(refuse(StatusCode::UPGRADE_REQUIRED, message));
    }
    if ![Method::GET, Method::HEAD, Method::POST].contains(&head.method) {
        let message = "the gateway takes GET and POST only";
        return Err(refuse(StatusCode::METHOD_NOT_ALLOWED, message));
    }
    if has_other_meaning(rest) {
        let message = "the path has empty, `.` or `..` segments, or other characters than letters, digits and `-._~:@+`";
        return Err(refuse(StatusCode::BAD_REQUEST, message));
    }
    let (place, grant) = find_grant(head, container, grants).ok_or_else(|| {
        let message = "the key is not one that Oubliette gave to this agent, or the agent was started again since. \
                       The credential may have been removed";
        refuse(StatusCode::UNAUTHORIZED, message)
    })?;
    if grant.grant.provider != provider {
        let message = "the key is for another provider";
        return Err(refuse(StatusCode::UNAUTHORIZED, message));
    }
    let query = head.uri.query().map(without_key).unwrap_or_default();
    let mark = if query.is_empty() { "" } else { "?" };
    let uri = format!("{}{rest}{mark}{query}", grant.grant.upstream);
    let uri: Uri = uri
        .parse()
        .map_err(|_| refuse(StatusCode::BAD_REQUEST, "the path is not valid"))?;
    let mut headers = end_to_end(&head.headers);
    for name in KEY_HEADERS {
        headers.remove(name);
    }
    for name in [HOST, CONTENT_LENGTH, EXPECT] {
        headers.remove(name);
    }
    for name in METHOD_HEADERS {
        headers.remove(name);
    }
    // What is compressed cannot be counted.
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    let secret = grant.grant.secret.reveal();
    let (name, text) = match place {
        KeyPlace::Header(AUTHORIZATION) => (AUTHORIZATION, format!("Bearer {secret}")),
        KeyPlace::Header(name) => (name, secret.to_owned()),
        KeyPlace::Query => (X_GOOG_API_KEY, secret.to_owned()),
    };
    let mut value = HeaderValue::try_from(text).map_err(|_| {
        let message = "the credential of the project has characters that no header can have";
        refuse(StatusCode::BAD_GATEWAY, message)
    })?;
    value.set_sensitive(true);
    headers.insert(name, value);
    Ok(Accepted {
        method: head.method.clone(),
        uri,
        headers,
        path: rest.to_owned(),
        grant,
    })
}

/// The provider of a path, and what follows its prefix.
fn split_path(path: &str) -> Option<(Provider, &str)> {
    let mut providers = Provider::ALL.into_iter();
    providers.find_map(|provider| {
        let rest = path.strip_prefix(provider.prefix())?;
        (rest.is_empty() || rest.starts_with('/')).then_some((provider, rest))
    })
}

/// Whether a server could take the path for another one: the prefix of a provider must hold.
fn has_other_meaning(path: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:@+/".contains(&byte);
    let has_others = !path.bytes().all(is_plain);
    let mut segments = path
        .strip_prefix('/')
        .unwrap_or_default()
        .split('/')
        .peekable();
    let mut has_dots = false;
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        has_dots |= matches!(segment, "." | "..") || (segment.is_empty() && !is_last);
    }
    has_others || has_dots
}

fn find_grant(
    head: &Parts,
    container: &str,
    grants: &Grants,
) -> Option<(KeyPlace, Arc<GrantEntry>)> {
    for name in KEY_HEADERS {
        for value in head.headers.get_all(&name) {
            let Ok(text) = value.to_str() else {
                continue;
            };
            let key = match text.split_once(' ') {
                Some((scheme, key)) if scheme.eq_ignore_ascii_case("bearer") => key,
                Some(_) => continue,
                None => text,
            };
            if let Some(grant) = grants.find(key.trim(), container) {
                return Some((KeyPlace::Header(name), grant));
            }
        }
    }
    let mut pairs = head
        .uri
        .query()
        .into_iter()
        .flat_map(|query| query.split('&'));
    let grant = pairs.find_map(|pair| grants.find(pair.strip_prefix("key=")?, container))?;
    Some((KeyPlace::Query, grant))
}

fn without_key(query: &str) -> String {
    let pairs = query.split('&').filter(|pair| {
        let name = pair.split_once('=').map_or(*pair, |(name, _)| name);
        name != "key"
    });
    pairs.collect::<Vec<_>>().join("&")
}

/// The headers that are not for one connection only.
pub(crate) fn end_to_end(headers: &HeaderMap) -> HeaderMap {
    let mut kept = headers.clone();
    let named = headers.get_all(CONNECTION).iter();
    let named = named.filter_map(|value| value.to_str().ok());
    for name in named.flat_map(|names| names.split(',')) {
        if let Ok(name) = HeaderName::try_from(name.trim()) {
            kept.remove(name);
        }
    }
    for name in [CONNECTION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE] {
        kept.remove(name);
    }
    for name in ["keep-alive", "proxy-authenticate", "proxy-connection"] {
        kept.remove(name);
    }
    kept
}

/// The headers of a response, as the agent gets them: none has the key.
pub(crate) fn response_headers(headers: &HeaderMap, secret: &str) -> HeaderMap {
    let mut kept = end_to_end(headers);
    let has_secret = |value: &HeaderValue| {
        let (value, secret) = (value.as_bytes(), secret.as_bytes());
        value
            .windows(secret.len().max(1))
            .any(|part| part == secret)
    };
    let leaking: Vec<HeaderName> = kept
        .iter()
        .filter(|(_, value)| has_secret(value))
        .map(|(name, _)| name.clone())
        .collect();
    for name in leaking {
        kept.remove(name);
    }
    kept
}

#[cfg(test)]
mod tests;
