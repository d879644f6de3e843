//! The gate's end of the connection to the server.

use std::sync::Arc;

use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::protocol::{ToGate, ToServer};
use super::reservations::Decision;
use crate::container::Gate;
use crate::lines::{LineReader, write_line};

/// Serves the server until it is gone.
pub(crate) async fn serve(
    gate: &Arc<Gate>,
    mut requests: LineReader<OwnedReadHalf>,
    mut writer: OwnedWriteHalf,
) {
    let reservations = &gate.gateway.reservations;
    let mut link = reservations.connect_server();
    let hello = ToServer::Hello {
        gate: gate.gateway.id.clone(),
        reservations: std::mem::take(&mut link.granted),
        asked: std::mem::take(&mut link.asked),
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
                Ok(Some(ToGate::Reserved { reservation, tokens })) => {
                    reservations.decide(reservation, Decision::Granted, Some(tokens));
                    continue;
                }
                Ok(Some(ToGate::Held { reservation })) => {
                    reservations.decide(reservation, Decision::Held, None);
                    continue;
                }
                Ok(Some(ToGate::Refused { reservation, reason })) => {
                    reservations.decide(reservation, Decision::Refused(reason), None);
                    continue;
                }
                Ok(None) => return,
                // Of a later version: the rest of the stream is still in lines.
                Err(error) if error.kind() == std::io::ErrorKind::InvalidData => continue,
                Err(_) => return,
            },
            message = link.messages.recv() => match message {
                Some(message) => message,
                // Another server is connected, or this one reads too slowly.
                None => return,
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
