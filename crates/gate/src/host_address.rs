//! Whether an address is one of this machine's own: public ones lead to its services, too.

use std::io;
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
    match UdpSocket::bind(SocketAddr::new(address, 0)) {
        Ok(_) => true,
        Err(error) => !is_elsewhere(&error),
    }
}

/// Whether an error says that an address is not this machine's. Others, for example too many open files, say nothing,
/// and the address counts as local.
fn is_elsewhere(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::AddrNotAvailable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::Unsupported
    ) || error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error())
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
    match source {
        Ok(source) => source.ip() == address,
        Err(error) => !is_elsewhere(&error),
    }
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

    #[test]
    fn an_error_that_says_nothing_about_an_address_does_not_make_it_foreign() {
        let error = |errno: rustix::io::Errno| io::Error::from(errno);
        assert!(is_elsewhere(&error(rustix::io::Errno::ADDRNOTAVAIL)));
        assert!(is_elsewhere(&error(rustix::io::Errno::AFNOSUPPORT)));
        assert!(is_elsewhere(&error(rustix::io::Errno::NETUNREACH)));
        assert!(!is_elsewhere(&error(rustix::io::Errno::MFILE)));
        assert!(!is_elsewhere(&error(rustix::io::Errno::NFILE)));
        assert!(!is_elsewhere(&error(rustix::io::Errno::NOMEM)));
    }
}
