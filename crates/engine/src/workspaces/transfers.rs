//! Transfers of large files, each with a ticket from `workspace_read` or `workspace_write`.
//!
//! A ticket is as good as the token that asked for it is now: that is checked when the transfer begins, and
//! it is cut off when the token ends.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use oubliette_model::path_to_text;
use oubliette_model::{Mode, Scope, TokenId};
use oubliette_store::Project;
use oubliette_wire::{FileChangeHead, FileChangeKind};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};

use super::read::READ_LIMITS;
use super::tickets::{TakenTicket, Ticket, TicketUse, Unusable};
use super::{path, read, write};
use crate::containers::{CommandInput, DiskUse};
use crate::files::has_space_for;
use crate::operations::{FinishedCall, Operation};
use crate::{Actor, Call, Engine, EngineError, Result};

/// How much is read or sent at once.
const CHUNK_BYTES: usize = 256 << 10;
/// How many pieces wait between the connection and the file.
const QUEUED_CHUNKS: usize = 4;
/// How long a transfer may take in all.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(3600);
/// How long a transfer may wait for the other side to take or send anything.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Why a transfer was refused.
#[derive(Debug)]
pub enum TransferError {
    /// The ticket is unknown, used or expired, or its token has ended.
    NoTicket,
    /// A transfer with the ticket is under way.
    InUse,
    /// The token has too many transfers under way.
    TooMany,
    /// The file is larger than an upload may be.
    TooLarge {
        max_bytes: u64,
    },
    /// The other side sent nothing for too long, or the whole took too long.
    TimedOut,
    /// The other side ended the connection.
    CutOff,
    Failed(EngineError),
}

impl From<EngineError> for TransferError {
    fn from(error: EngineError) -> Self {
        Self::Failed(error)
    }
}

impl From<Unusable> for TransferError {
    fn from(unusable: Unusable) -> Self {
        match unusable {
            Unusable::NotFound => Self::NoTicket,
            Unusable::InUse => Self::InUse,
            Unusable::TooManyTransfers => Self::TooMany,
        }
    }
}

/// Handle for transfers.
#[derive(Debug, Clone, Copy)]
pub struct Transfers<'a> {
    pub(crate) engine: &'a Engine,
}

/// A ticket that may be used now.
#[derive(Debug)]
struct Permitted {
    taken: TakenTicket,
    actor: Actor,
    project: Project,
}

impl Transfers<'_> {
    /// Opens the file of a ticket. The ticket stays taken until the download is dropped or ends.
    pub async fn open_download(
        self,
        ticket: &str,
        address: Option<String>,
    ) -> Result<Download, TransferError> {
        let started = Instant::now();
        let permitted = self.permit(ticket, Mode::Read, address).await?;
        let opened = self.open_file(&permitted.taken.ticket).await;
        let name = <read::Read as Operation>::NAME;
        self.record(name, Mode::Read, &permitted, &opened, started)
            .await;
        let (file, size, version) = opened?;
        Ok(Download {
            engine: self.engine.clone(),
            scope: permitted.actor.scope,
            taken: permitted.taken,
            file,
            size,
            version,
        })
    }

    async fn open_file(self, ticket: &Ticket) -> Result<(File, u64, String)> {
        let file = ticket.path.clone();
        let opened = self
            .engine
            .files()
            .read_workspace(
                ticket.project_id,
                &ticket.workspace_id,
                READ_LIMITS,
                move |tree| tree.open_to_read(&file),
            )
            .await?;
        opened.map_err(|error| path::unreadable(&path_to_text(&ticket.path), error))
    }

    /// Begins to write the file of a ticket. `content_bytes` is the size of the whole file.
    pub async fn begin_upload(
        self,
        ticket: &str,
        content_bytes: u64,
        address: Option<String>,
    ) -> Result<Upload, TransferError> {
        let started = Instant::now();
        let permitted = self.permit(ticket, Mode::Write, address).await?;
        let max_bytes = u64::from(self.engine.settings().limits.max_upload_mb) << 20;
        if content_bytes > max_bytes {
            return Err(TransferError::TooLarge { max_bytes });
        }
        let name = <write::Write as Operation>::NAME;
        if let Err(error) = self.require_space(&permitted.project, content_bytes).await {
            let refused = Err(error);
            self.record(name, Mode::Write, &permitted, &refused, started)
                .await;
            return refused.map_err(Into::into);
        }
        let (pieces, receiver) = mpsc::channel(QUEUED_CHUNKS);
        let (ended, end) = oneshot::channel();
        let engine = self.engine.clone();
        let (token_id, scope) = (permitted.actor.token_id, permitted.actor.scope);
        // In a task of its own, because the command in the container must be followed to its end also when
        // the connection is lost.
        self.engine.spawn(async move {
            let transfers = engine.transfers();
            let result = transfers.receive(&permitted, content_bytes, receiver).await;
            let outcome = match &result {
                Ok(()) => Ok(()),
                Err(TransferError::Failed(error)) => Err(error.clone()),
                Err(_) => Err(EngineError::Cancelled),
            };
            transfers
                .record(name, Mode::Write, &permitted, &outcome, started)
                .await;
            if result.is_ok() {
                permitted.taken.spend();
            }
            // The receiver is gone if the connection was lost.
            let _ = ended.send(result);
        });
        Ok(Upload {
            pieces,
            end,
            token_id,
            scope,
        })
    }

    /// Writes what arrives, all of it or nothing.
    async fn receive(
        self,
        permitted: &Permitted,
        content_bytes: u64,
        pieces: mpsc::Receiver<Vec<u8>>,
    ) -> Result<(), TransferError> {
        let Permitted { taken, project, .. } = permitted;
        let ticket = &taken.ticket;
        let TicketUse::Upload { mode } = ticket.permits else {
            return Err(TransferError::NoTicket);
        };
        let head = FileChangeHead {
            path: ticket.path.clone(),
            kind: FileChangeKind::Write { mode },
            content_bytes,
        };
        let mut content = UploadedContent {
            engine: self.engine,
            token: ticket.actor.token_id,
            pieces,
            bytes_left: content_bytes,
            deadline: tokio::time::Instant::now() + TRANSFER_TIMEOUT,
            ended_early: None,
        };
        let written = self
            .engine
            .workspaces()
            .write_streamed(project, &ticket.workspace_id, &head, &mut content)
            .await;
        match content.ended_early {
            Some(error) => Err(error),
            None => Ok(written?),
        }
    }

    /// Takes a ticket if its token may still do what it permits.
    async fn permit(
        self,
        ticket: &str,
        mode: Mode,
        address: Option<String>,
    ) -> Result<Permitted, TransferError> {
        let is_upload = mode == Mode::Write;
        let now = self.engine.now();
        let taken = self.engine.parts.tickets.take(ticket, is_upload, now)?;
        let issued = taken.ticket.clone();
        let Some(actor) = self.current_actor(&issued.actor, address).await? else {
            taken.spend();
            return Err(TransferError::NoTicket);
        };
        let operation = if is_upload {
            <write::Write as Operation>::NAME
        } else {
            <read::Read as Operation>::NAME
        };
        self.engine
            .permit_project(&actor, operation, issued.project_id)
            .await?;
        let project = self.engine.project(issued.project_id).await?;
        let workspaces = self.engine.workspaces();
        workspaces
            .open_existing(project.id, &issued.workspace_id, &Call::new())
            .await?;
        Ok(Permitted {
            taken,
            actor,
            project,
        })
    }

    /// The actor with what its token may do now; none if that is nothing.
    async fn current_actor(self, actor: &Actor, address: Option<String>) -> Result<Option<Actor>> {
        let Some(token) = self.engine.store().token(actor.token_id).await? else {
            return Ok(None);
        };
        let authority = self.engine.tokens().authority(&token).await?;
        Ok(authority.ok().map(|authority| Actor {
            scope: authority.scope,
            address,
            ..actor.clone()
        }))
    }

    /// Fails if an upload would take a project over its limits, or fill the disk.
    async fn require_space(self, project: &Project, content_bytes: u64) -> Result<()> {
        let containers = self.engine.containers();
        containers
            .require_disk_space(project, DiskUse::Message)
            .await?;
        let limits = &self.engine.settings().limits;
        if let Some(limit_mb) = limits.disk_of(&project.settings.limits) {
            let used = containers.disk_usage_bytes(project.id).unwrap_or(0);
            if used.saturating_add(content_bytes) > u64::from(limit_mb) << 20 {
                return Err(EngineError::Failed(format!(
                    "the file has {content_bytes} bytes and the project uses {used}: more than its `disk_mb`, \
                     {limit_mb} MB"
                )));
            }
        }
        let directory = self.engine.files().project_dir(project.id);
        if has_space_for(directory, content_bytes).await {
            Ok(())
        } else {
            Err(EngineError::disk_full())
        }
    }

    async fn record<T>(
        self,
        operation: &'static str,
        mode: Mode,
        permitted: &Permitted,
        result: &Result<T>,
        started: Instant,
    ) {
        let entry =
            self.engine
                .audit_entry(&permitted.actor, operation, Some(permitted.project.id));
        let call = Call::new();
        call.set_audit_entry(entry.clone());
        let finished = FinishedCall {
            operation,
            mode,
            entry,
            started,
        };
        let result = result.as_ref().map(|_| Value::Null).map_err(Clone::clone);
        self.engine.record_call(finished, &result, &call).await;
    }
}

/// What arrives of an upload.
struct UploadedContent<'a> {
    engine: &'a Engine,
    token: TokenId,
    pieces: mpsc::Receiver<Vec<u8>>,
    bytes_left: u64,
    deadline: tokio::time::Instant,
    /// Why it is not complete.
    ended_early: Option<TransferError>,
}

impl CommandInput for UploadedContent<'_> {
    async fn next(&mut self) -> Result<Option<Vec<u8>>> {
        if self.bytes_left == 0 {
            return Ok(None);
        }
        let idle = tokio::time::Instant::now() + IDLE_TIMEOUT;
        let error = tokio::select! {
            piece = self.pieces.recv() => match piece {
                Some(piece) if piece.len() as u64 <= self.bytes_left => {
                    self.bytes_left -= piece.len() as u64;
                    return Ok(Some(piece));
                }
                _ => TransferError::CutOff,
            },
            () = tokio::time::sleep_until(idle.min(self.deadline)) => TransferError::TimedOut,
            () = self.engine.tokens().wait_until_ended(self.token) => TransferError::NoTicket,
            () = self.engine.stopping() => TransferError::CutOff,
        };
        self.ended_early = Some(error);
        Err(EngineError::Failed(
            "the content has ended early".to_owned(),
        ))
    }
}

/// A file that is open to be sent.
#[derive(Debug)]
pub struct Download {
    engine: Engine,
    taken: TakenTicket,
    scope: Scope,
    file: File,
    size: u64,
    version: String,
}

impl Download {
    pub fn token_id(&self) -> TokenId {
        self.taken.ticket.actor.token_id
    }

    pub fn scope(&self) -> Scope {
        self.scope
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    /// A text that changes when the file is replaced or written to.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Sends a part of the file. The ticket is spent when the end of the file was taken.
    pub fn send(self, range: Range<u64>) -> DownloadedPieces {
        let (sender, receiver) = mpsc::channel(QUEUED_CHUNKS);
        let (bytes_taken, mut seen) = watch::channel(0);
        let pieces = DownloadedPieces {
            receiver,
            bytes_taken,
        };
        let engine = self.engine.clone();
        engine.spawn_until_stopping(|engine| async move {
            let token = self.taken.ticket.actor.token_id;
            let (is_end, length) = (range.end == self.size, range.end - range.start);
            let sending = async {
                send_file(self.file, range, &sender).await?;
                // The reader may stop as soon as it has all bytes, and before it sees the end.
                let all_taken = seen.wait_for(|bytes| *bytes == length);
                match tokio::time::timeout(IDLE_TIMEOUT, all_taken).await {
                    Ok(Ok(_)) => Ok(()),
                    _ => Err(io::Error::from(io::ErrorKind::BrokenPipe)),
                }
            };
            let sent = tokio::select! {
                sent = sending => sent,
                () = tokio::time::sleep(TRANSFER_TIMEOUT) => Err(io::ErrorKind::TimedOut.into()),
                () = engine.tokens().wait_until_ended(token) => {
                    Err(io::ErrorKind::PermissionDenied.into())
                }
            };
            match sent {
                Ok(()) if is_end => self.taken.spend(),
                Ok(()) => {}
                Err(error) => {
                    tracing::debug!(%error, "a download was cut off");
                    // Otherwise the reader would take the part for the whole.
                    let _ = sender.try_send(Err(error));
                }
            }
        });
        pieces
    }
}

/// What a download sends, piece by piece.
#[derive(Debug)]
pub struct DownloadedPieces {
    receiver: mpsc::Receiver<io::Result<Vec<u8>>>,
    bytes_taken: watch::Sender<u64>,
}

impl DownloadedPieces {
    /// The next piece; `None` at the end. An error means that the rest does not follow.
    pub async fn next(&mut self) -> Option<io::Result<Vec<u8>>> {
        let piece = self.receiver.recv().await?;
        if let Ok(bytes) = &piece {
            let length = bytes.len() as u64;
            self.bytes_taken.send_modify(|bytes| *bytes += length);
        }
        Some(piece)
    }
}

async fn send_file(
    file: File,
    range: Range<u64>,
    sender: &mpsc::Sender<io::Result<Vec<u8>>>,
) -> io::Result<()> {
    let file = Arc::new(file);
    let mut offset = range.start;
    while offset < range.end {
        let length = CHUNK_BYTES.min(usize::try_from(range.end - offset).unwrap_or(CHUNK_BYTES));
        let reader = file.clone();
        let bytes = tokio::task::spawn_blocking(move || {
            let mut bytes = vec![0; length];
            let mut file = &*reader;
            file.seek(SeekFrom::Start(offset))?;
            // It may have been cut off since it was opened.
            file.read_exact(&mut bytes).map(|()| bytes)
        });
        let bytes = bytes.await.map_err(io::Error::other)??;
        offset += length as u64;
        let taken = tokio::time::timeout(IDLE_TIMEOUT, sender.send(Ok(bytes))).await;
        taken
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
            .map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
    }
    Ok(())
}

/// An upload under way.
#[derive(Debug)]
pub struct Upload {
    pieces: mpsc::Sender<Vec<u8>>,
    end: oneshot::Receiver<Result<(), TransferError>>,
    token_id: TokenId,
    scope: Scope,
}

impl Upload {
    pub fn token_id(&self) -> TokenId {
        self.token_id
    }

    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// Returns when the upload takes no more.
    pub async fn ended(&self) {
        self.pieces.closed().await;
    }

    /// Sends a piece of the content; false if the upload has ended already.
    pub async fn send(&self, piece: Vec<u8>) -> bool {
        self.pieces.send(piece).await.is_ok()
    }

    /// Returns when the file is written, or was not.
    pub async fn finish(self) -> Result<(), TransferError> {
        drop(self.pieces);
        self.end.await.unwrap_or(Err(TransferError::CutOff))
    }
}
