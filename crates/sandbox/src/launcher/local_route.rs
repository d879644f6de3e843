//! Makes a range of addresses local in the current network namespace, so that a program inside can listen on all
//! of them.

use std::io;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

use crate::spec::SYNTHETIC_ADDRESSES;

const REQUEST_AND_ACKNOWLEDGE: u16 = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
const CREATE: u16 = libc::NLM_F_CREATE as u16;
/// The number of the loopback interface in every network namespace.
const LOOPBACK_INDEX: u32 = 1;
const HEADER_BYTES: usize = 16;

/// `ip route add local 198.18.0.0/15 dev lo`.
pub(super) fn add() -> io::Result<()> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        // The first protocol of the family: routes.
        None,
    )?;
    // Without an address: to the kernel.
    send(&socket, &request(), SendFlags::empty())?;
    let mut reply = [0; 1024];
    let (read, _) = recv(&socket, &mut reply[..], RecvFlags::empty())?;
    // The header, then the negative error number.
    let number = reply[..read]
        .get(HEADER_BYTES..HEADER_BYTES + 4)
        .and_then(|bytes| bytes.try_into().ok())
        .map(i32::from_ne_bytes);
    match number {
        Some(0) => Ok(()),
        Some(number) => Err(io::Error::from_raw_os_error(-number)),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn request() -> Vec<u8> {
    let (base, bits) = SYNTHETIC_ADDRESSES;
    let mut route = vec![
        libc::AF_INET as u8,
        bits,
        0,
        0,
        libc::RT_TABLE_LOCAL,
        libc::RTPROT_BOOT,
        libc::RT_SCOPE_HOST,
        libc::RTN_LOCAL,
    ];
    // Flags.
    route.extend(0_u32.to_ne_bytes());
    for (kind, value) in [
        (libc::RTA_DST, base.octets()),
        (libc::RTA_OIF, LOOPBACK_INDEX.to_ne_bytes()),
    ] {
        route.extend(8_u16.to_ne_bytes());
        route.extend(kind.to_ne_bytes());
        route.extend(value);
    }
    let length = (HEADER_BYTES + route.len()) as u32;
    let mut message = Vec::with_capacity(length as usize);
    message.extend(length.to_ne_bytes());
    message.extend(libc::RTM_NEWROUTE.to_ne_bytes());
    message.extend((REQUEST_AND_ACKNOWLEDGE | CREATE).to_ne_bytes());
    // Sequence and port.
    message.extend([0; 8]);
    message.extend(route);
    message
}
