//! A process that outlives the server: started once, then reached again from wherever its streams
//! were left.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use oubliette_runtime::{ContainerId, State};
use oubliette_wire::{
    AckOutput, CloseStdin, ProcessFaultKind, Start, StreamKind, supervisor_methods,
};
use tokio::time::Instant;

use super::link::{Link, LinkError};
use super::{Containers, Incoming, LOOK};
use crate::EngineError;

/// What the supervisor keeps of an agent's output until it is in the log: a longest line and more.
const SPOOL: u64 = 24 << 20;

/// A container whose supervisor has just left is most likely ending.
const FIRST_LOOK: Duration = Duration::from_millis(20);

/// What to start.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    pub(crate) process_id: String,
    pub(crate) argv: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) cwd: String,
}

/// Why a process is not to be reached.
#[derive(Debug)]
pub(crate) enum Unreached {
    /// The connection broke; the next one may do better.
    Lost,
    /// It is gone, with its container or before.
    Gone,
    /// There is no such program in the container.
    NoProgram,
    Failed(EngineError),
}

impl From<LinkError> for Unreached {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::Lost | LinkError::Unsaid => Self::Lost,
            LinkError::Told {
                kind: ProcessFaultKind::NoSuchProcess,
                ..
            } => Self::Gone,
            LinkError::Told {
                kind: ProcessFaultKind::NotFound,
                ..
            } => Self::NoProgram,
            LinkError::Told { why, .. } => Self::Failed(EngineError::Failed(why)),
        }
    }
}

/// The streams of a process, each from where it was left.
#[derive(Debug)]
pub(crate) struct Attachment {
    pub(crate) link: Arc<Link>,
    process_id: String,
    pub(crate) stdin: Incoming,
    pub(crate) stdout: Incoming,
    pub(crate) stderr: Incoming,
}

impl Containers {
    /// Starts a process. Starting the same one again changes nothing.
    pub(crate) async fn launch(&self, link: &Link, program: Program) -> Result<(), Unreached> {
        let start = Start {
            process_id: program.process_id,
            argv: program.argv,
            env: program.env,
            cwd: program.cwd,
            user: None,
            pty: None,
            spool_limit: SPOOL,
            streams: Vec::new(),
        };
        link.ask(supervisor_methods::START, &start).await?;
        Ok(())
    }

    /// Reaches a process on a connection, with its input from `stdin` on and its output from
    /// `stdout` on.
    pub(crate) async fn attach(
        &self,
        link: Arc<Link>,
        process_id: &str,
        stdin: u64,
        stdout: u64,
    ) -> Result<Attachment, Unreached> {
        let (input, output, errors) = tokio::try_join!(
            self.open_stream(&link, process_id, StreamKind::Stdin, stdin),
            self.open_stream(&link, process_id, StreamKind::Stdout, stdout),
            self.open_stream(&link, process_id, StreamKind::Stderr, 0),
        )?;
        Ok(Attachment {
            process_id: process_id.to_owned(),
            stdin: input,
            stdout: output,
            stderr: errors,
            link,
        })
    }

    /// The link to a container that runs; none if it does not, without waiting for it. A runtime
    /// that does not answer says nothing: then there is a link within that time or none.
    pub(crate) async fn link_if_running(
        &self,
        id: &ContainerId,
        patience: Duration,
    ) -> Option<Arc<Link>> {
        let current = self.link_of(id).borrow().clone();
        if let Some(link) = current.filter(|link| link.is_open()) {
            return Some(link);
        }
        let runtime = self.runtime().await.ok()?;
        let until = Instant::now() + patience;
        let mut wait = FIRST_LOOK;
        loop {
            if let Ok(status) = runtime.inspect(id).await
                && status?.state != State::Running
            {
                return None;
            }
            // One that was about to end a moment ago may have ended since.
            let left = until.checked_duration_since(Instant::now())?;
            if let Ok(link) = self.link(id, left.min(wait)).await {
                return Some(link);
            }
            wait = LOOK.min(wait * 2);
        }
    }
}

impl Attachment {
    pub(crate) fn process_id(&self) -> &str {
        &self.process_id
    }

    /// Lets the supervisor drop what is in the log.
    pub(crate) async fn ack(&self, kind: StreamKind, offset: u64) {
        let process_id = self.process_id.clone();
        let ack = AckOutput {
            process_id,
            kind,
            offset,
        };
        self.link.tell(supervisor_methods::ACK, &ack).await;
    }

    /// Says that no input comes after `at`, which ends most agents.
    pub(crate) async fn close_stdin(&self, at: u64) {
        let process_id = self.process_id.clone();
        let close = CloseStdin { process_id, at };
        self.link
            .tell(supervisor_methods::CLOSE_STDIN, &close)
            .await;
    }
}

/// Ends a process with everything it started, waits until it is gone, and lets it be forgotten.
pub(crate) async fn finish(link: &Link, process_id: &str, patience: Duration) -> bool {
    let ended = async {
        super::process::kill(link, process_id).await;
        link.exited(process_id).await
    };
    let ended = tokio::time::timeout(patience, ended).await;
    link.forget(process_id).await;
    matches!(ended, Ok(Ok(_)))
}
