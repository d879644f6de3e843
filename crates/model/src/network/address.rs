//! Ranges of addresses that are not public.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// IPv4 ranges that lead to this machine, to private networks, or nowhere: base, bits of the prefix, what it is.
const SPECIAL_V4: &[(Ipv4Addr, u32, &str)] = &[
    (Ipv4Addr::new(0, 0, 0, 0), 8, "an unspecified address"),
    (Ipv4Addr::new(10, 0, 0, 0), 8, "a private address"),
    (
        Ipv4Addr::new(100, 64, 0, 0),
        10,
        "a carrier's private address",
    ),
    (Ipv4Addr::new(127, 0, 0, 0), 8, "a loopback address"),
    // The metadata service of most clouds is 169.254.169.254.
    (
        Ipv4Addr::new(169, 254, 0, 0),
        16,
        "a link-local or metadata address",
    ),
    // Azure's, among public addresses.
    (Ipv4Addr::new(168, 63, 129, 16), 32, "a metadata address"),
    (Ipv4Addr::new(172, 16, 0, 0), 12, "a private address"),
    (Ipv4Addr::new(192, 0, 0, 0), 24, "a reserved address"),
    (Ipv4Addr::new(192, 0, 2, 0), 24, "a documentation address"),
    (Ipv4Addr::new(192, 88, 99, 0), 24, "a reserved address"),
    (Ipv4Addr::new(192, 168, 0, 0), 16, "a private address"),
    (Ipv4Addr::new(198, 18, 0, 0), 15, "a benchmarking address"),
    (
        Ipv4Addr::new(198, 51, 100, 0),
        24,
        "a documentation address",
    ),
    (Ipv4Addr::new(203, 0, 113, 0), 24, "a documentation address"),
    (Ipv4Addr::new(224, 0, 0, 0), 4, "a multicast address"),
    (
        Ipv4Addr::new(240, 0, 0, 0),
        4,
        "a reserved or broadcast address",
    ),
];

/// Ranges of the public part of IPv6 that are not hosts.
const SPECIAL_V6: &[(Ipv6Addr, u32, &str)] = &[
    (
        Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0),
        23,
        "a reserved or Teredo address",
    ),
    (
        Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0),
        32,
        "a documentation address",
    ),
    // They contain an IPv4 address, which a relay would connect to.
    (
        Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0),
        16,
        "a 6to4 address",
    ),
    (
        Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0),
        20,
        "a documentation address",
    ),
];

/// What is special about an address; None if it is public.
pub fn special_range(address: IpAddr) -> Option<&'static str> {
    match canonical_address(address) {
        IpAddr::V4(address) => special_v4(address),
        IpAddr::V6(address) => special_v6(address),
    }
}

/// The IPv4 address in an IPv6 one that means the same host: mapped, compatible, and by NAT64.
pub fn canonical_address(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else {
        return address;
    };
    if let Some(v4) = v6.to_ipv4_mapped() {
        return IpAddr::V4(v4);
    }
    let [a, b, c, d, e, f, high, low] = v6.segments();
    let is_nat64 = [a, b, c, d, e, f] == [0x64, 0xff9b, 0, 0, 0, 0];
    if is_nat64 {
        return IpAddr::V4(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)));
    }
    address
}

fn special_v4(address: Ipv4Addr) -> Option<&'static str> {
    let is_in = |base: Ipv4Addr, bits: u32| {
        let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
        address.to_bits() & mask == base.to_bits() & mask
    };
    let found = SPECIAL_V4
        .iter()
        .find(|(base, bits, _)| is_in(*base, *bits));
    found.map(|(_, _, what)| *what)
}

fn special_v6(address: Ipv6Addr) -> Option<&'static str> {
    let first = address.segments()[0];
    // Only 2000::/3 has public hosts.
    if first & 0xe000 != 0x2000 {
        return Some(match first {
            0 if address.is_loopback() => "a loopback address",
            0 if address.is_unspecified() => "an unspecified address",
            0xfc00..=0xfdff => "a private or metadata address",
            0xfe80..=0xfebf => "a link-local address",
            0xff00..=0xffff => "a multicast address",
            _ => "a reserved address",
        });
    }
    let is_in = |base: Ipv6Addr, bits: u32| {
        let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
        address.to_bits() & mask == base.to_bits() & mask
    };
    let found = SPECIAL_V6
        .iter()
        .find(|(base, bits, _)| is_in(*base, *bits));
    found.map(|(_, _, what)| *what)
}

/// Addresses of metadata services in ranges of private networks.
const METADATA: &[IpAddr] = &[
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
];

/// Whether an address is one of a private network: those of a site, a carrier, or a provider's virtual network. Loopback,
/// link-local and metadata addresses are not.
pub(super) fn is_private_network(address: IpAddr) -> bool {
    let address = canonical_address(address);
    let is_in_range = match address {
        IpAddr::V4(v4) => v4.is_private() || (v4.octets()[0] == 100 && v4.octets()[1] & 0xc0 == 64),
        IpAddr::V6(v6) => v6.is_unique_local(),
    };
    is_in_range && !METADATA.contains(&address)
}
