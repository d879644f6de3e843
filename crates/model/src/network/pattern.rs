//! An entry of an `allow` or `deny` list.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::Serialize;

use super::canonical_address;
use super::host::{Host, parse_name};
use crate::string_type::string_type;
use crate::{InvalidValue, quoted};

/// A name, `*.` and a name, an address or a range of addresses; with or without a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostPattern {
    hosts: Hosts,
    /// Every port without it.
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Hosts {
    Name(String),
    /// Every name below this one, without itself.
    Below(String),
    Range {
        base: IpAddr,
        bits: u8,
    },
}

impl HostPattern {
    /// The host, if it names a single one.
    pub fn host(&self) -> Option<Host> {
        match &self.hosts {
            Hosts::Name(name) => Some(Host::Name(name.clone())),
            Hosts::Range { base, bits } if *bits == full_bits(*base) => Some(Host::Address(*base)),
            Hosts::Below(_) | Hosts::Range { .. } => None,
        }
    }

    #[must_use]
    pub fn with_port(self, port: u16) -> Self {
        Self {
            port: Some(port),
            ..self
        }
    }

    pub fn port(&self) -> Option<u16> {
        self.port
    }

    pub fn matches(&self, host: &Host, port: u16) -> bool {
        self.port.is_none_or(|own| own == port) && self.matches_host(host)
    }

    /// Whether it is about every port of the host.
    pub fn matches_every_port(&self, host: &Host) -> bool {
        self.port.is_none() && self.matches_host(host)
    }

    /// Whether it names a single host or addresses, and not every name below one.
    pub fn is_exact(&self) -> bool {
        !matches!(self.hosts, Hosts::Below(_))
    }

    /// Whether it matches everything that the other one matches.
    pub fn covers(&self, other: &Self) -> bool {
        let covers_ports = self.port.is_none() || self.port == other.port;
        covers_ports
            && match (&self.hosts, &other.hosts) {
                (Hosts::Name(own), Hosts::Name(name)) => own == name,
                (Hosts::Below(own), Hosts::Name(name)) => is_below(name, own),
                (Hosts::Below(own), Hosts::Below(name)) => name == own || is_below(name, own),
                (
                    Hosts::Range { base, bits },
                    Hosts::Range {
                        base: inner,
                        bits: inner_bits,
                    },
                ) => bits <= inner_bits && is_in_range(*inner, *base, *bits),
                _ => false,
            }
    }

    fn matches_host(&self, host: &Host) -> bool {
        match (&self.hosts, host) {
            (Hosts::Name(own), Host::Name(name)) => own == name,
            (Hosts::Below(own), Host::Name(name)) => is_below(name, own),
            (Hosts::Range { base, bits }, Host::Address(address)) => {
                is_in_range(canonical_address(*address), *base, *bits)
            }
            _ => false,
        }
    }
}

fn is_below(name: &str, above: &str) -> bool {
    name.strip_suffix(above)
        .is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
}

fn full_bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn is_in_range(address: IpAddr, base: IpAddr, bits: u8) -> bool {
    let bits = u32::from(bits);
    match (address, base) {
        (IpAddr::V4(address), IpAddr::V4(base)) => {
            let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
            address.to_bits() & mask == base.to_bits() & mask
        }
        (IpAddr::V6(address), IpAddr::V6(base)) => {
            let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
            address.to_bits() & mask == base.to_bits() & mask
        }
        _ => false,
    }
}

impl FromStr for HostPattern {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let (host, port) = split_port(text)?;
        let hosts = if let Some(range) = parse_range(host) {
            range
        } else if let Some(name) = host.strip_prefix("*.") {
            Hosts::Below(parse_name(name)?)
        } else if host == "*" {
            return Err(InvalidValue(
                "`*` is not a pattern: use the preset `open` to allow every public host".to_owned(),
            ));
        } else {
            match host.parse::<Host>()? {
                Host::Name(name) => Hosts::Name(name),
                Host::Address(address) => Hosts::Range {
                    base: address,
                    bits: full_bits(address),
                },
            }
        };
        Ok(Self { hosts, port })
    }
}

fn split_port(text: &str) -> Result<(&str, Option<u16>), InvalidValue> {
    // An IPv6 address without brackets has no port.
    let is_bare_v6 = !text.starts_with('[') && text.matches(':').count() > 1;
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !is_bare_v6 && !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    let host = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    let Some(port) = port else {
        return Ok((host, None));
    };
    match port.parse::<u16>() {
        Ok(number) if number > 0 && !port.starts_with('+') => Ok((host, Some(number))),
        _ => Err(InvalidValue(format!(
            "{} has no valid port: use a number from 1 to 65535, or leave it out for every port",
            quoted(text)
        ))),
    }
}

/// `address/bits`, if it is one.
fn parse_range(text: &str) -> Option<Hosts> {
    let (base, bits) = text.split_once('/')?;
    let base = base.parse::<IpAddr>().ok()?;
    let bits = bits.parse::<u8>().ok()?;
    if bits > full_bits(base) {
        return None;
    }
    // Addresses are compared in their canonical form.
    Some(match (canonical_address(base), bits.checked_sub(96)) {
        (IpAddr::V4(v4), Some(bits)) if base.is_ipv6() => Hosts::Range {
            base: v4.into(),
            bits,
        },
        _ => Hosts::Range { base, bits },
    })
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let brackets = matches!(&self.hosts, Hosts::Range { base, .. } if base.is_ipv6())
            && self.port.is_some();
        if brackets {
            f.write_str("[")?;
        }
        match &self.hosts {
            Hosts::Name(name) => f.write_str(name)?,
            Hosts::Below(name) => write!(f, "*.{name}")?,
            Hosts::Range { base, bits } if *bits == full_bits(*base) => base.fmt(f)?,
            Hosts::Range { base, bits } => write!(f, "{base}/{bits}")?,
        }
        if brackets {
            f.write_str("]")?;
        }
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

impl Serialize for HostPattern {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

string_type!(HostPattern, { "type": "string" });
