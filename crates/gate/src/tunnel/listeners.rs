//! Listeners for connections to the addresses that names have inside.

use std::cell::RefCell;
use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::Tunnel;
use super::carry::carry;
use super::sockets::USUAL_PORTS;
use crate::protocol::Way;

/// Ports that rules name, each on the address of its name.
const MAX_NAMED_LISTENERS: usize = 256;
/// Connections that are open or being opened. The gate has a limit of its own, which is reached first.
const MAX_CONNECTIONS: usize = 1024;
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) struct Listeners {
    named: RefCell<HashSet<(Ipv4Addr, u16)>>,
    connections: Rc<Semaphore>,
}

impl Default for Listeners {
    fn default() -> Self {
        Self {
            named: RefCell::default(),
            connections: Rc::new(Semaphore::new(MAX_CONNECTIONS)),
        }
    }
}

/// Listens on the ports that rules name for the name with this address.
pub(super) fn listen_for(tunnel: &Rc<Tunnel>, address: Ipv4Addr, ports: &[u16]) {
    for port in ports {
        let is_known = USUAL_PORTS.contains(port);
        let mut named = tunnel.listeners.named.borrow_mut();
        if is_known || named.len() >= MAX_NAMED_LISTENERS || !named.insert((address, *port)) {
            continue;
        }
        drop(named);
        // Taken by a server of the container on every address: the proxy is left.
        if listen(tunnel, address, *port).is_err() {
            tunnel
                .listeners
                .named
                .borrow_mut()
                .remove(&(address, *port));
        }
    }
}

fn listen(tunnel: &Rc<Tunnel>, address: Ipv4Addr, port: u16) -> io::Result<()> {
    let listener = std::net::TcpListener::bind((address, port))?;
    listener.set_nonblocking(true)?;
    accept_for_names(tunnel, listener)
}

/// Carries connections to the host whose name has the address that they are made to.
pub(super) fn accept_for_names(
    tunnel: &Rc<Tunnel>,
    listener: std::net::TcpListener,
) -> io::Result<()> {
    accept(tunnel, listener, async |tunnel, client| {
        carry_to(&tunnel, client, |local| match local.ip() {
            IpAddr::V4(address) => tunnel.names.name_of(address),
            IpAddr::V6(_) => None,
        })
        .await;
    })
}

/// Carries connections to the same port of the server's machine.
pub(super) fn accept_for_loopback(
    tunnel: &Rc<Tunnel>,
    listener: std::net::TcpListener,
) -> io::Result<()> {
    accept(tunnel, listener, async |tunnel, client| {
        carry_to(&tunnel, client, |local| Some(local.ip().to_string())).await;
    })
}

/// Serves the connections of a listener, as many at once as there are places.
pub(super) fn accept(
    tunnel: &Rc<Tunnel>,
    listener: std::net::TcpListener,
    serve: impl AsyncFn(Rc<Tunnel>, TcpStream) + Clone + 'static,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let tunnel = tunnel.clone();
    tokio::task::spawn_local(async move {
        loop {
            let Ok((client, _)) = listener.accept().await else {
                tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await;
                continue;
            };
            let _ = client.set_nodelay(true);
            let (serve, tunnel) = (serve.clone(), tunnel.clone());
            let places = tunnel_connections(&tunnel);
            run_bounded(&places, async move { serve(tunnel, client).await });
        }
    });
    Ok(())
}

async fn carry_to(
    tunnel: &Tunnel,
    client: TcpStream,
    find_host: impl FnOnce(SocketAddr) -> Option<String>,
) {
    let local = client.local_addr().ok();
    let target = local.and_then(|local| Some((find_host(local)?, local.port())));
    let Some((name, port)) = target else {
        reset(&client);
        return;
    };
    let opening = tunnel.gate.open(&client, (&name, port), Way::Name);
    match opening.await {
        Some(Ok((server, first))) => carry(client, server, first).await,
        Some(Err(_)) | None => reset(&client),
    }
}

/// The places of connections.
pub(super) fn tunnel_connections(tunnel: &Tunnel) -> Rc<Semaphore> {
    tunnel.listeners.connections.clone()
}

/// Runs a connection if there is a place for it. Returns whether there was.
pub(super) fn run_bounded(
    places: &Rc<Semaphore>,
    connection: impl Future<Output = ()> + 'static,
) -> bool {
    if places.available_permits() == 0 {
        return false;
    }
    let places = places.clone();
    tokio::task::spawn_local(async move {
        let Ok(_place) = places.try_acquire() else {
            return;
        };
        connection.await;
    });
    true
}

/// The program sees an error instead of an empty reply.
pub(super) fn reset(client: &TcpStream) {
    let _ = sockopt::set_socket_linger(client, Some(Duration::ZERO));
}
