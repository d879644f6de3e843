//! The gate's end of the connection to the server.

use std::sync::Arc;

use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::protocol::{ToGate, ToServer};
use crate::container::Gate;
use crate::lines::{LineReader, write_line};

/// Serves the server until it is gone.
pub(crate) async fn serve(
    gate: &Arc<Gate>,
    mut requests: LineReader<OwnedReadHalf>,
    mut writer: OwnedWriteHalf,
) {
    let hello = ToServer::Hello {
        gate: gate.gateway.id.clone(),
    };
    if write_line(&mut writer, &hello).await.is_err() {
        return;
    }
    let mut end = gate.gateway.charges.end();
    loop {
        let message = tokio::select! {
            request = requests.next::<ToGate>() => match request {
                Ok(Some(ToGate::Set { request, grants })) => {
                    gate.gateway.grants.set(grants);
                    ToServer::Done { request }
                }
                Ok(None) => return,
                // Of a later version: the rest of the stream is still in lines.
                Err(error) if error.kind() == std::io::ErrorKind::InvalidData => continue,
                Err(_) => return,
            },
            changed = end.changed() => match changed {
                Ok(()) => ToServer::Charged { end: *end.borrow_and_update() },
                Err(_) => return,
            },
        };
        if write_line(&mut writer, &message).await.is_err() {
            return;
        }
    }
}
