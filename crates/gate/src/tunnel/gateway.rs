//! The gateway to models: connections to its port are carried to the gate as they are.

use std::io;
use std::rc::Rc;

use super::carry::carry;
use super::{Tunnel, listeners};

/// Serves the gateway.
pub(super) fn start(tunnel: &Rc<Tunnel>, listener: std::net::TcpListener) -> io::Result<()> {
    listeners::accept(tunnel, listener, async |tunnel, client| {
        match tunnel.gate.open_gateway().await {
            Ok((gate, first)) => carry(client, gate, first).await,
            Err(_) => listeners::reset(&client),
        }
    })
}
