//! One output stream of a command that is talked to, from the offset at which its caller is.

use oubliette_wire::{AckOutput, StreamKind, supervisor_methods};
use tokio::io::AsyncReadExt;

use super::{Halt, Partner};
use crate::containers::Incoming;
use crate::containers::link::Link;

/// Most bytes of a stream in one answer.
const MOST: usize = 128 << 10;

#[derive(Debug)]
pub(super) struct Voice {
    /// None at its end.
    incoming: Option<Incoming>,
    from: u64,
    bytes: Vec<u8>,
    missed: bool,
}

impl Voice {
    /// Listens from `from` on; what came before is acknowledged.
    pub(super) async fn open(
        partner: &Partner<'_>,
        link: &Link,
        kind: StreamKind,
        from: u64,
    ) -> Result<Self, Halt> {
        if from > 0 {
            let ack = AckOutput {
                process_id: partner.process_id.clone(),
                kind,
                offset: from,
            };
            link.tell(supervisor_methods::ACK, &ack).await;
        }
        let mut incoming = partner
            .containers()
            .open_stream(link, &partner.process_id, kind, from)
            .await?;
        let mut bytes = std::mem::take(&mut incoming.rest);
        let missed = incoming.from > from;
        bytes.truncate(MOST);
        Ok(Self {
            from: incoming.from.max(from),
            incoming: Some(incoming),
            bytes,
            missed,
        })
    }

    /// Where the next byte would be.
    pub(super) fn offset(&self) -> u64 {
        self.from + self.bytes.len() as u64
    }

    /// Whether nothing more will come on its connection.
    pub(super) fn is_silent(&self) -> bool {
        self.incoming.is_none()
    }

    /// Whether bytes were dropped before they were asked for.
    pub(super) fn missed_something(&self) -> bool {
        self.missed
    }

    pub(super) fn into_parts(self) -> (u64, Vec<u8>) {
        (self.from, self.bytes)
    }

    /// Whether it has said something that was not told yet.
    pub(super) fn has_news(voice: &Option<Self>) -> bool {
        voice.as_ref().is_some_and(|voice| !voice.bytes.is_empty())
    }

    /// Returns when there is something, or its end; never, for a voice that is silent.
    pub(super) async fn hear(voice: &mut Option<Self>) -> Result<(), Halt> {
        let Some(voice) = voice else {
            return std::future::pending().await;
        };
        if !voice.bytes.is_empty() {
            return Ok(());
        }
        if voice.is_silent() {
            return std::future::pending().await;
        }
        voice.read().await.map(drop).map_err(|_| Halt::Lost)
    }

    /// Takes what else is there already.
    pub(super) async fn rest(voice: &mut Option<Self>) {
        let Some(voice) = voice else { return };
        while voice.bytes.len() < MOST {
            let now = std::pin::pin!(voice.read());
            match futures_util::FutureExt::now_or_never(now) {
                Some(Ok(read)) if read > 0 => {}
                _ => return,
            }
        }
    }

    async fn read(&mut self) -> std::io::Result<usize> {
        let Some(incoming) = &mut self.incoming else {
            return Ok(0);
        };
        let before = self.bytes.len();
        self.bytes.reserve(4096);
        let room = (MOST - before) as u64;
        let mut within = (&mut incoming.stream).take(room);
        let read = within.read_buf(&mut self.bytes).await?;
        if read == 0 {
            self.incoming = None;
        }
        Ok(read)
    }
}
