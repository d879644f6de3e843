//! The channel between the launcher and the sandbox's first process: permission to proceed one way,
//! messages the other way. It closes when the process executes PID 1's program.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

use serde::{Deserialize, Serialize};

use super::Ready;
use crate::launch::StepFailure;

const PROCEED: u8 = b'K';
const MAX_MESSAGE_BYTES: u32 = 1 << 20;

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ChildMessage {
    Ready(Ready),
    Failed(StepFailure),
}

#[derive(Debug)]
pub(super) struct Channel(UnixStream);

pub(super) fn pair() -> io::Result<(Channel, Channel)> {
    let (one, other) = UnixStream::pair()?;
    Ok((Channel(one), Channel(other)))
}

impl Channel {
    pub(super) fn send_proceed(&mut self) -> io::Result<()> {
        self.0.write_all(&[PROCEED])
    }

    /// Fails if the launcher is gone.
    pub(super) fn wait_for_proceed(&mut self) -> io::Result<()> {
        let mut byte = [0];
        self.0.read_exact(&mut byte)
    }

    pub(super) fn send(&mut self, message: &ChildMessage) -> io::Result<()> {
        let json = serde_json::to_vec(message)?;
        self.0.write_all(&(json.len() as u32).to_le_bytes())?;
        self.0.write_all(&json)
    }

    /// The next message; none if the channel was closed.
    pub(super) fn receive(&mut self) -> io::Result<Option<ChildMessage>> {
        let mut len = [0; 4];
        match self.0.read_exact(&mut len) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            // The peer died with unread input.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
            other => other?,
        }
        let len = u32::from_le_bytes(len);
        if len > MAX_MESSAGE_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut json = vec![0; len as usize];
        self.0.read_exact(&mut json)?;
        Ok(Some(serde_json::from_slice(&json)?))
    }
}
