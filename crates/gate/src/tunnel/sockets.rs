//! The sockets of a tunnel. The supervisor binds them before it says that programs can be started, and keeps them when the
//! tunnel ends: connections to them wait for the next one instead of being refused.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
    sockopt,
};

use crate::PROXY_ADDRESS;
use crate::gateway::GATEWAY_ADDRESS;

/// SSH, HTTP, HTTPS and git, on every address. Other ports stay free for servers that agents start.
pub(super) const USUAL_PORTS: [u16; 4] = [22, 80, 443, 9418];
/// Ports of the host's 127.0.0.1 that are carried to it.
pub const MAX_LOOPBACK_PORTS: usize = 64;
const NAME_SERVER_PORT: u16 = 53;
/// Of one message; the kernel's limit is 253.
const MAX_SOCKETS: usize = 128;

/// Sockets that were bound for a tunnel.
#[derive(Debug)]
pub struct TunnelSockets {
    sockets: Vec<OwnedFd>,
}

impl TunnelSockets {
    /// Binds all sockets, with these ports of loopback. One that cannot be bound is left out and named.
    pub fn bind(loopback_ports: &[u16]) -> (Self, Vec<String>) {
        let usual = USUAL_PORTS.map(|port| SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port));
        let others = loopback_ports
            .iter()
            .filter(|port| !USUAL_PORTS.contains(port))
            .take(MAX_LOOPBACK_PORTS);
        let name_server = SocketAddrV4::new(Ipv4Addr::LOCALHOST, NAME_SERVER_PORT);
        let listeners = [name_server, PROXY_ADDRESS, GATEWAY_ADDRESS]
            .into_iter()
            .chain(usual)
            .chain(others.map(|port| SocketAddrV4::new(Ipv4Addr::LOCALHOST, *port)))
            .map(|address| (address, TcpListener::bind(address).map(OwnedFd::from)));
        let datagrams = UdpSocket::bind(name_server).map(OwnedFd::from);
        let (mut sockets, mut problems) = (Vec::new(), Vec::new());
        for (address, bound) in std::iter::once((name_server, datagrams)).chain(listeners) {
            match bound {
                Ok(socket) => sockets.push(socket),
                Err(error) => problems.push(format!("{address}: {error}")),
            }
        }
        (Self { sockets }, problems)
    }

    /// What the standard input of a tunnel is to be, from which it receives copies of the sockets.
    pub fn send(&self) -> io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let sockets: Vec<BorrowedFd<'_>> = self.sockets.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SOCKETS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !ancillary.push(SendAncillaryMessage::ScmRights(&sockets)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // Descriptors are sent with at least one byte.
        let message = [IoSlice::new(&[0])];
        sendmsg(ours, &message, &mut ancillary, SendFlags::empty())?;
        Ok(theirs)
    }
}

/// The sockets of a tunnel by what they are for.
#[derive(Debug, Default)]
pub(super) struct ReceivedSockets {
    pub(super) name_server_datagrams: Vec<UdpSocket>,
    pub(super) name_server_streams: Vec<TcpListener>,
    pub(super) proxies: Vec<TcpListener>,
    pub(super) gateways: Vec<TcpListener>,
    /// On every address.
    pub(super) usual: Vec<TcpListener>,
    /// On loopback.
    pub(super) loopback: Vec<TcpListener>,
}

/// Takes the sockets that were sent to the standard input of this process.
pub(super) fn receive() -> io::Result<ReceivedSockets> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SOCKETS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut message = [IoSliceMut::new(&mut byte)];
    let stdin = io::stdin();
    let flags = RecvFlags::CMSG_CLOEXEC;
    recvmsg(stdin.as_fd(), &mut message, &mut ancillary, flags)?;
    let sockets = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(sockets) => Some(sockets),
        _ => None,
    });
    let mut received = ReceivedSockets::default();
    for socket in sockets.flatten() {
        rustix::io::ioctl_fionbio(&socket, true)?;
        if sockopt::socket_type(&socket)? == SocketType::DGRAM {
            received.name_server_datagrams.push(socket.into());
            continue;
        }
        let listener = TcpListener::from(socket);
        let SocketAddr::V4(address) = listener.local_addr()? else {
            continue;
        };
        let kind = if address == PROXY_ADDRESS {
            &mut received.proxies
        } else if address == GATEWAY_ADDRESS {
            &mut received.gateways
        } else if address.ip().is_unspecified() {
            &mut received.usual
        } else if address.port() == NAME_SERVER_PORT {
            &mut received.name_server_streams
        } else {
            &mut received.loopback
        };
        kind.push(listener);
    }
    Ok(received)
}
