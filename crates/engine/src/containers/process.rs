//! A process of a container, followed through lost connections to its supervisor.
//!
//! Commands, interactive commands and agents stand on this. The supervisor keeps the process, its
//! output by byte offsets, and its exit until [`Process::forget`], so a lost connection loses nothing:
//! the next one goes on from the offsets where the last one was.

mod pending_streams;
mod reader;
mod writer;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use oubliette_wire::{
    AckOutput, CloseStdin, Exited, OpenStream, ProcessFaultKind, ResizeTerminal, SignalProcess,
    Start, Started, StreamKind, TerminalSize, supervisor_methods,
};

pub use pending_streams::IncomingStream;
pub(super) use pending_streams::{PendingStream, PendingStreams};
pub(crate) use reader::OutputReader;
pub(crate) use writer::InputWriter;

use super::supervisor_link::{LinkError, SupervisorLink};
use super::{ContainerState, container_ended, container_unreachable};
use crate::EngineError;

/// How often a stream is requested whose connection does not arrive.
const STREAM_REQUEST_ATTEMPTS: u32 = 5;
/// The pause before another attempt over a connection that may be lost like the one before.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_millis(20);

pub(super) const SIGHUP: i32 = 1;
pub(super) const SIGKILL: i32 = 9;

/// A process to start.
#[derive(Debug, Clone)]
pub(crate) struct ProcessSpec {
    /// Starting the same id again in one boot of the container finds the process that was started.
    pub(crate) process_id: String,
    pub(crate) argv: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) cwd: String,
    pub(crate) terminal: Option<TerminalSize>,
    /// How many bytes of each output stream the supervisor keeps until they are acknowledged; a
    /// process that writes more is blocked.
    pub(crate) max_spool_bytes: u64,
    /// Whether other processes of the container may not read its memory and environment.
    pub(crate) isolated: bool,
}

/// Why something could not be done with a process.
#[derive(Debug)]
pub(crate) enum ProcessError {
    /// The request never reached a supervisor that takes requests.
    NotSent,
    /// The connection was lost; the next one may work.
    ConnectionLost,
    /// The supervisor does not know the process: it ended with an earlier boot of the container.
    Gone,
    ProgramNotFound(String),
    ProgramNotExecutable(String),
    /// The supervisor refused the request.
    Rejected(String),
    Failed(EngineError),
}

impl ProcessError {
    pub(crate) fn is_connection_lost(&self) -> bool {
        matches!(self, Self::NotSent | Self::ConnectionLost)
    }
}

impl From<LinkError> for ProcessError {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::NotSent => Self::NotSent,
            LinkError::ConnectionLost => Self::ConnectionLost,
            LinkError::Rejected { kind, message } => match kind {
                ProcessFaultKind::Stopping => Self::NotSent,
                ProcessFaultKind::NoSuchProcess => Self::Gone,
                ProcessFaultKind::NotFound => Self::ProgramNotFound(message),
                ProcessFaultKind::Denied => Self::ProgramNotExecutable(message),
                ProcessFaultKind::Other => Self::Rejected(message),
            },
        }
    }
}

impl From<ProcessError> for EngineError {
    fn from(error: ProcessError) -> Self {
        match error {
            ProcessError::NotSent => Self::Failed(
                "the container was stopped before the command could start; try again".to_owned(),
            ),
            ProcessError::ConnectionLost => container_unreachable(),
            ProcessError::Gone => container_ended(),
            ProcessError::ProgramNotFound(message)
            | ProcessError::ProgramNotExecutable(message)
            | ProcessError::Rejected(message) => Self::Failed(message),
            ProcessError::Failed(error) => error,
        }
    }
}

/// A process and the current connection to its supervisor.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    state: Arc<ContainerState>,
    link: Arc<SupervisorLink>,
    id: String,
}

impl Process {
    pub(super) fn new(
        state: &Arc<ContainerState>,
        link: Arc<SupervisorLink>,
        id: impl Into<String>,
    ) -> Self {
        Self {
            state: state.clone(),
            link,
            id: id.into(),
        }
    }

    pub(crate) fn link(&self) -> &Arc<SupervisorLink> {
        &self.link
    }

    /// Starts the process, or finds that it was started.
    pub(crate) async fn start(&self, spec: &ProcessSpec) -> Result<(), ProcessError> {
        self.start_with_streams(spec, &[]).await.map(drop)
    }

    /// Starts the process and requests output streams from offsets on with it, which saves a round
    /// trip. None of them is returned if the supervisor is too old to open them.
    pub(super) async fn start_with_streams(
        &self,
        spec: &ProcessSpec,
        streams: &[(StreamKind, u64)],
    ) -> Result<Vec<PendingStream>, ProcessError> {
        let expected = streams.iter().map(|(kind, from)| self.expect(*kind, *from));
        let (pending, streams): (Vec<_>, Vec<_>) = expected.unzip();
        let start = Start {
            process_id: spec.process_id.clone(),
            argv: spec.argv.clone(),
            env: spec.env.clone(),
            cwd: spec.cwd.clone(),
            user: None,
            pty: spec.terminal,
            spool_limit: spec.max_spool_bytes,
            isolated: spec.isolated,
            streams,
        };
        let started = self.link.request(supervisor_methods::START, &start).await?;
        let started = serde_json::from_value::<Started>(started);
        let is_opening = started.is_ok_and(|started| started.streams == pending.len());
        Ok(if is_opening { pending } else { Vec::new() })
    }

    /// Waits for another connection to the same boot of the container.
    pub(crate) async fn reconnect(&mut self) -> Result<(), ProcessError> {
        let next = self.state.next_link(&self.link).await;
        let next = next.map_err(ProcessError::Failed)?;
        if next.boot_id() != self.link.boot_id() {
            return Err(ProcessError::Gone);
        }
        self.link = next;
        Ok(())
    }

    pub(crate) async fn open_output(
        &self,
        kind: StreamKind,
        from: u64,
    ) -> Result<OutputReader, ProcessError> {
        let incoming = self.open(kind, from).await?;
        Ok(OutputReader::new(kind, from, incoming))
    }

    /// Opens an output stream that may have been requested with the start.
    pub(super) async fn open_requested_output(
        &self,
        kind: StreamKind,
        from: u64,
        pending: Option<PendingStream>,
    ) -> Result<OutputReader, ProcessError> {
        if let Some(pending) = pending
            && let Some(incoming) = self.arrival(pending).await?
        {
            return Ok(OutputReader::new(kind, from, incoming));
        }
        self.open_output(kind, from).await
    }

    pub(crate) async fn open_stdin(&self, from: u64) -> Result<InputWriter, ProcessError> {
        let incoming = self.open(StreamKind::Stdin, from).await?;
        Ok(InputWriter::new(incoming))
    }

    async fn open(&self, kind: StreamKind, from: u64) -> Result<IncomingStream, ProcessError> {
        for _ in 0..STREAM_REQUEST_ATTEMPTS {
            let (pending, request) = self.expect(kind, from);
            self.link
                .request(supervisor_methods::OPEN_STREAM, &request)
                .await?;
            if let Some(incoming) = self.arrival(pending).await? {
                return Ok(incoming);
            }
        }
        Err(ProcessError::ConnectionLost)
    }

    fn expect(&self, kind: StreamKind, from: u64) -> (PendingStream, OpenStream) {
        let pending = self.state.pending_streams.expect(self.link.container());
        let request = OpenStream {
            stream_id: pending.stream_id().to_owned(),
            process_id: self.id.clone(),
            kind,
            from,
        };
        (pending, request)
    }

    /// None if the connection of the stream was lost before it arrived: it has to be requested again.
    async fn arrival(
        &self,
        pending: PendingStream,
    ) -> Result<Option<IncomingStream>, ProcessError> {
        tokio::select! {
            incoming = pending.arrive() => Ok(incoming),
            () = self.link.closed() => Err(ProcessError::ConnectionLost),
        }
    }

    /// Lets the supervisor drop the output before `offset`.
    pub(crate) async fn acknowledge(&self, kind: StreamKind, offset: u64) {
        let process_id = self.id.clone();
        let ack = AckOutput {
            process_id,
            kind,
            offset,
        };
        self.link.notify(supervisor_methods::ACK, &ack).await;
    }

    /// Tells the process that its input ends at `offset`.
    pub(crate) async fn close_stdin(&self, offset: u64) {
        let close = self.end_of_input(offset);
        self.link
            .notify(supervisor_methods::CLOSE_STDIN, &close)
            .await;
    }

    /// Does what [`Self::close_stdin`] does and waits until the supervisor confirms it.
    pub(super) async fn close_stdin_confirmed(&self, offset: u64) -> Result<(), ProcessError> {
        let close = self.end_of_input(offset);
        self.link
            .request(supervisor_methods::CLOSE_STDIN, &close)
            .await?;
        Ok(())
    }

    fn end_of_input(&self, offset: u64) -> CloseStdin {
        CloseStdin {
            process_id: self.id.clone(),
            at: offset,
        }
    }

    pub(super) async fn resize(&self, size: TerminalSize) -> Result<(), ProcessError> {
        let resize = ResizeTerminal {
            process_id: self.id.clone(),
            size,
        };
        self.link
            .request(supervisor_methods::RESIZE, &resize)
            .await?;
        Ok(())
    }

    /// Signals the process and every process that it started.
    pub(super) async fn signal(&self, signal: i32) -> Result<(), ProcessError> {
        let signal = SignalProcess {
            process_id: self.id.clone(),
            signal,
            tree: true,
        };
        self.link
            .request(supervisor_methods::SIGNAL, &signal)
            .await?;
        Ok(())
    }

    pub(super) async fn kill(&self) {
        // A lost connection shows when the caller waits for the exit.
        let _ = self.signal(SIGKILL).await;
    }

    pub(crate) async fn exited(&self) -> Result<Exited, ProcessError> {
        Ok(self.link.exited(&self.id).await?)
    }

    /// Lets the supervisor forget a process that has exited, with its output.
    pub(crate) async fn forget(&self) {
        self.link.forget(&self.id).await;
    }

    /// Kills the process with everything it started, waits until it is gone, and forgets it.
    pub(crate) async fn terminate(&self, timeout: Duration) {
        let exited = async {
            self.kill().await;
            let _ = self.exited().await;
        };
        let _ = tokio::time::timeout(timeout, exited).await;
        self.forget().await;
    }
}
