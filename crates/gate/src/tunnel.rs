//! The tunnel: a process in a container that has no network but loopback.
//!
//! A resolver gives each name an address of the container itself; listeners see from the address of a connection
//! which name was meant. A proxy takes the same for every port, and a port leads to the gateway to models. All of it goes to the gate, which decides: nothing
//! here is trusted, and any process of the container may do the same by itself.

mod carry;
mod gate_connection;
mod gateway;
mod http_proxy;
mod http_request;
mod http_response;
mod listeners;
mod name_server;
mod names;
mod program;
mod sockets;

use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;

use tokio::task::LocalSet;

use gate_connection::GateSocket;
use listeners::Listeners;
use names::Names;
pub use sockets::{MAX_LOOPBACK_PORTS, TunnelSockets};

/// The subcommand of the client.
pub const SUBCOMMAND: &str = "tunnel";

/// The addresses that a route makes local where the runtime can add one, and those that are local everywhere. The
/// second range is taken for this machine by some programs, which then do not use it for other hosts.
const RANGES: [(Ipv4Addr, u32); 2] = [
    (Ipv4Addr::new(198, 18, 0, 0), 1 << 17),
    (Ipv4Addr::new(127, 64, 0, 0), 1 << 22),
];

/// What the parts of a tunnel share.
#[derive(Debug)]
struct Tunnel {
    gate: GateSocket,
    names: Names,
    listeners: Listeners,
}

/// Runs the tunnel until it is killed. The argument is the path of the gate's socket; the sockets of the tunnel come from
/// standard input ([`TunnelSockets`]).
pub fn run(mut arguments: impl Iterator<Item = std::ffi::OsString>) -> ExitCode {
    let Some(socket) = arguments.next().map(PathBuf::from) else {
        eprintln!("usage: oubliette-client tunnel SOCKET");
        return ExitCode::from(2);
    };
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let served = runtime.and_then(|runtime| LocalSet::new().block_on(&runtime, serve(socket)));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the tunnel cannot start: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(socket: PathBuf) -> io::Result<()> {
    let range = RANGES.iter().find(|(base, _)| is_local(*base));
    let (base, count) = *range.ok_or_else(|| io::Error::other("no address is local"))?;
    let sockets = sockets::receive()?;
    let tunnel = Rc::new(Tunnel {
        gate: GateSocket::new(socket),
        names: Names::new(base, count),
        listeners: Listeners::default(),
    });
    for listener in sockets.usual {
        listeners::accept_for_names(&tunnel, listener)?;
    }
    for listener in sockets.loopback {
        listeners::accept_for_loopback(&tunnel, listener)?;
    }
    for listener in sockets.proxies {
        http_proxy::start(&tunnel, listener)?;
    }
    for listener in sockets.gateways {
        gateway::start(&tunnel, listener)?;
    }
    name_server::start(
        &tunnel,
        sockets.name_server_datagrams,
        sockets.name_server_streams,
    )?;
    std::future::pending().await
}

/// Whether connections to addresses of this range arrive here.
fn is_local(base: Ipv4Addr) -> bool {
    std::net::UdpSocket::bind((Ipv4Addr::from_bits(base.to_bits() + 1), 0)).is_ok()
}
