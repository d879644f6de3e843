//! The server's end of the connection to the gate.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use super::grants::SessionGrants;
use super::meter::TokenCounts;
use super::protocol::{ToGate, ToServer};
use super::reservations::Reservation;
use crate::control::{ControlRequest, MAX_CONTROL_LINE_BYTES};
use crate::lines::{LineReader, write_line};
use crate::process::{CONTROL_SOCKET_NAME, run_dir};
use crate::socket;

const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to the gateway of the gate that runs.
#[derive(Debug)]
pub struct GatewayLink {
    /// Another one for each gate.
    pub gate: String,
    /// The calls that are at their providers.
    pub reservations: Vec<Reservation>,
    /// The calls that wait for a decision.
    pub asked: Vec<Reservation>,
    pub sender: GatewaySender,
    pub receiver: GatewayReceiver,
}

/// Sends to the gateway.
#[derive(Debug)]
pub struct GatewaySender {
    writer: OwnedWriteHalf,
    next_request: u64,
}

/// Receives from the gateway.
#[derive(Debug)]
pub struct GatewayReceiver {
    messages: LineReader<OwnedReadHalf>,
}

impl GatewayLink {
    /// Connects to the gate of a data directory, if one runs.
    pub async fn connect(data_dir: &Path) -> io::Result<Self> {
        let stream = socket::connect(&run_dir(data_dir), CONTROL_SOCKET_NAME).await?;
        let (reader, mut writer) = stream.into_split();
        write_line(&mut writer, &ControlRequest::Gateway).await?;
        let mut receiver = GatewayReceiver {
            messages: LineReader::new(reader, MAX_CONTROL_LINE_BYTES),
        };
        let hello = timeout(HELLO_TIMEOUT, receiver.next()).await;
        let hello = hello.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
        let ToServer::Hello {
            gate,
            reservations,
            asked,
        } = hello
        else {
            return Err(io::Error::other("the gate has no gateway"));
        };
        let sender = GatewaySender {
            writer,
            next_request: 0,
        };
        Ok(Self {
            gate,
            reservations,
            asked,
            sender,
            receiver,
        })
    }
}

impl GatewaySender {
    /// Replaces the grants of a session. The gate answers with `done` and this number.
    pub async fn set(&mut self, grants: SessionGrants) -> io::Result<u64> {
        self.next_request += 1;
        let request = self.next_request;
        self.send(&ToGate::Set { request, grants }).await?;
        Ok(request)
    }

    /// A call may be sent: so much of it is reserved.
    pub async fn reserved(&mut self, reservation: u64, tokens: TokenCounts) -> io::Result<()> {
        self.send(&ToGate::Reserved {
            reservation,
            tokens,
        })
        .await
    }

    /// A call has to wait.
    pub async fn held(&mut self, reservation: u64) -> io::Result<()> {
        self.send(&ToGate::Held { reservation }).await
    }

    /// A call is not sent.
    pub async fn refused(&mut self, reservation: u64, reason: String) -> io::Result<()> {
        self.send(&ToGate::Refused {
            reservation,
            reason,
        })
        .await
    }

    async fn send(&mut self, message: &ToGate) -> io::Result<()> {
        let writing = write_line(&mut self.writer, message);
        let written = timeout(WRITE_TIMEOUT, writing).await;
        written.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl GatewayReceiver {
    /// The next message. Cancelling loses nothing.
    pub async fn next(&mut self) -> io::Result<ToServer> {
        loop {
            match self.messages.next().await {
                Ok(Some(message)) => return Ok(message),
                Ok(None) => return Err(io::ErrorKind::UnexpectedEof.into()),
                // Of a later gate.
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {}
                Err(error) => return Err(error),
            }
        }
    }
}
