//! A host as a program names it: a domain name or an address.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use super::canonical_address;
use crate::{InvalidValue, quoted};

/// The longest domain name.
pub const MAX_NAME_BYTES: usize = 253;
const LOCALHOST: &str = "localhost";
const MAX_LABEL_BYTES: usize = 63;

/// A domain name in lower case without a dot at its end, or an address. `localhost` is an address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    Name(String),
    Address(IpAddr),
}

impl FromStr for Host {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let bare = text
            .strip_prefix('[')
            .and_then(|text| text.strip_suffix(']'));
        if let Ok(address) = bare.unwrap_or(text).parse::<IpAddr>() {
            return Ok(Self::Address(canonical_address(address)));
        }
        let name = parse_name(text)?;
        // It means this address wherever it is asked for, so that rules need no other.
        Ok(if name == LOCALHOST {
            Self::Address(Ipv4Addr::LOCALHOST.into())
        } else {
            Self::Name(name)
        })
    }
}

/// A name in its normal form.
pub(super) fn parse_name(text: &str) -> Result<String, InvalidValue> {
    let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    let is_label = |label: &str| {
        (1..=MAX_LABEL_BYTES).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    let is_name = name.len() <= MAX_NAME_BYTES && name.split('.').all(is_label);
    if !is_name {
        return Err(InvalidValue(format!(
            "{} is not a host: use a name such as `example.org` (in ASCII: `xn--…` for others) or an address",
            quoted(text)
        )));
    }
    // Resolvers read `127.1`, `2130706433` and `0x7f.1` as addresses.
    let last = name.rsplit('.').next().unwrap_or_default();
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit())
        || last
            .strip_prefix("0x")
            .is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    if is_number {
        return Err(InvalidValue(format!(
            "{} is not a host: write an IPv4 address with four decimal numbers",
            quoted(text)
        )));
    }
    Ok(name)
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(address) => address.fmt(f),
        }
    }
}
