//! Connections that supervisors open to the server.

use std::sync::Arc;
use std::time::Duration;

use oubliette_model::ApiKey;
use oubliette_runtime::ContainerId;
use oubliette_wire::{ProcessReport, Supervise};

use super::process::Process;
use super::{Containers, IncomingStream, NAMED_PREFIX, Stream, SupervisorLink};
use crate::Result;

/// How long a command that a caller may join keeps its container from being stopped as idle.
const JOINABLE_TIMEOUT: Duration = Duration::from_secs(86_400);

impl Containers<'_> {
    /// Whether a supervisor shows the id and the key of the container whose socket it uses.
    pub async fn verify_key(self, container: &ContainerId, hello: &Supervise) -> Result<bool> {
        let stored = self.engine.store().container(container.as_str()).await?;
        let key = hello.container_key.parse::<ApiKey>().ok();
        let key_hash = key.map(|key| key.hash());
        let is_valid = stored.is_some_and(|stored| Some(stored.key) == key_hash);
        Ok(is_valid && hello.container_id == container.as_str())
    }

    /// Serves the connection of a supervisor that has shown its key until it ends.
    pub async fn supervise(
        self,
        container: &ContainerId,
        hello: Supervise,
        stream: Box<dyn Stream>,
        rest: Vec<u8>,
    ) {
        self.resume_idle_timers(container, &hello).await;
        let (unattended, abandoned) = self.find_unattended(&hello.processes);
        let joinable: Vec<String> = hello
            .processes
            .iter()
            .filter(|report| report.exited.is_none())
            .map(|report| &report.process_id)
            .filter(|id| id.starts_with(NAMED_PREFIX))
            .cloned()
            .collect();
        let protocol = hello.protocol;
        let (link, serving) = SupervisorLink::open(container.clone(), hello, stream, rest);
        let link = Arc::new(link);
        tracing::debug!(%container, protocol, boot_id = link.boot_id(), "supervisor connected");
        self.state().set_link(link.clone());
        self.follow_unattended(&link, unattended);
        let maintenance = async {
            tokio::join!(
                self.kill_abandoned(&link, abandoned),
                self.hold_for_joinable(&link, joinable)
            );
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = serving => {}
            () = maintenance => {}
        }
        link.close();
        tracing::debug!(%container, "supervisor disconnected");
    }

    /// Hands a connection that carries bytes to the request for it.
    pub fn deliver_stream(
        self,
        container: &ContainerId,
        stream_id: &str,
        incoming: IncomingStream,
    ) {
        let pending = &self.state().pending_streams;
        pending.deliver(container, stream_id, incoming);
    }

    /// Kills commands that a dead server ran for itself: this one starts them again. A command that has
    /// exited is only forgotten, so that the processes it left running keep running, as usual.
    async fn kill_abandoned(self, link: &Arc<SupervisorLink>, commands: Vec<ProcessReport>) {
        for command in commands {
            let process = Process::new(self.state(), link.clone(), command.process_id);
            if command.exited.is_none() {
                process.kill().await;
            }
            if process.exited().await.is_ok() {
                process.forget().await;
            }
        }
    }

    /// Marks the container as in use while commands run in it that a caller may join.
    async fn hold_for_joinable(self, link: &SupervisorLink, process_ids: Vec<String>) {
        if process_ids.is_empty() {
            return;
        }
        let _in_use = self.mark_in_use(link.container());
        let all_exited = async {
            for id in process_ids {
                let _ = link.exited(&id).await;
            }
        };
        let _ = tokio::time::timeout(JOINABLE_TIMEOUT, all_exited).await;
    }
}
