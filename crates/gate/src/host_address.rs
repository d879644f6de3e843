//! Whether an address is one of this machine's own: public ones lead to its services, too.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Any port: nothing is sent.
const PORT: u16 = 9;

/// On no machine.
const DOCUMENTATION_ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

pub(crate) fn is_local(address: IpAddr) -> bool {
    connects_from_itself(address) || (can_bind(address) && !can_bind(DOCUMENTATION_ADDRESS.into()))
}

/// A whole range can be local by a route. Some machines let programs bind any address.
fn can_bind(address: IpAddr) -> bool {
    UdpSocket::bind(SocketAddr::new(address, 0)).is_ok()
}

/// To its own addresses, the kernel connects from the same address.
fn connects_from_itself(address: IpAddr) -> bool {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let source = UdpSocket::bind(SocketAddr::new(any, 0)).and_then(|socket| {
        socket.connect(SocketAddr::new(address, PORT))?;
        socket.local_addr()
    });
    source.is_ok_and(|source| source.ip() == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_local_and_a_documentation_address_is_not() {
        assert!(is_local(Ipv4Addr::LOCALHOST.into()));
        assert!(is_local(Ipv4Addr::new(127, 9, 9, 9).into()) || !cfg!(target_os = "linux"));
        assert!(!is_local(Ipv4Addr::new(192, 0, 2, 1).into()));
    }
}
