//! The gateway to models: connections to its port are carried to the gate as they are.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};

use super::carry::carry;
use super::{Tunnel, listeners};
use crate::gateway::GATEWAY_ADDRESS;

const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Binds the gateway; the future serves it.
pub(super) async fn start(tunnel: &Rc<Tunnel>) -> io::Result<impl Future<Output = ()>> {
    let listener = TcpListener::bind(GATEWAY_ADDRESS).await?;
    let tunnel = tunnel.clone();
    Ok(async move {
        loop {
            match listener.accept().await {
                Ok((client, _)) => {
                    let places = listeners::tunnel_connections(&tunnel);
                    let tunnel = tunnel.clone();
                    listeners::run_bounded(&places, async move { serve(&tunnel, client).await });
                }
                Err(_) => tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await,
            }
        }
    })
}

async fn serve(tunnel: &Tunnel, client: TcpStream) {
    let _ = client.set_nodelay(true);
    match tunnel.gate.open_gateway().await {
        Ok((gate, first)) => carry(client, gate, first).await,
        Err(_) => listeners::reset(&client),
    }
}
