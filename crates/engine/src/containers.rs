//! Containers: one per project or one per workspace, started when needed, and the commands that run in
//! them.
//!
//! The runtime creates and stops containers. Everything inside them happens through the supervisor,
//! PID 1, which connects to the server; its connection is a [`SupervisorLink`]. Whatever it sends is
//! untrusted input.

mod channel;
mod command;
mod disk;
pub(crate) mod exec;
mod git_config;
mod idle;
mod images;
mod interactive;
mod lifecycle;
mod locks;
pub(crate) mod logs;
pub(crate) mod memory;
mod named_command;
mod ownership;
pub(crate) mod process;
mod protect;
pub(crate) mod rebuild;
mod recover;
mod save_output;
mod scope;
mod spec;
pub(crate) mod start;
mod state;
pub(crate) mod stop;
mod streamed_command;
mod supervise;
mod supervisor_link;
mod unattended;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use oubliette_runtime::{ContainerId, Runtime, RuntimeError};
use tokio::io::{AsyncRead, AsyncWrite};

pub(crate) use command::CommandResult;
pub(crate) use disk::{DiskUsageView, DiskUse};
pub use process::IncomingStream;
pub(crate) use save_output::OutputLimits;
pub(crate) use scope::ContainerScope;
pub(crate) use spec::{ContainerPlan, mount};
pub(crate) use state::{ContainerState, InUseGuard, SUPERVISOR_RECONNECT_TIMEOUT};
pub(crate) use streamed_command::CommandInput;
pub use supervisor_link::SupervisorLink;

use crate::{Engine, EngineError, Result};
use process::Process;

/// Prefixes of process ids: commands without an `exec_id`, commands with one, and interactive commands.
const UNNAMED_PREFIX: &str = "exec ";
const NAMED_PREFIX: &str = "named ";
const INTERACTIVE_PREFIX: &str = "talk ";

/// A connection from a container.
pub trait Stream: AsyncRead + AsyncWrite + Send + Sync + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Sync + Unpin> Stream for T {}

/// Listens for the connections of containers. The server implements it, because the engine knows no
/// transport.
#[async_trait]
pub trait RelayListeners: std::fmt::Debug + Send + Sync {
    /// Listens for a container, on a socket in its own directory if it has one. A container that is
    /// listened for already stays as it is.
    async fn open(&self, container: &ContainerId, directory: Option<&Path>) -> std::io::Result<()>;

    /// Serves a connection that arrived through a channel. It is dropped if the container is not
    /// listened for or has too many connections.
    fn admit(&self, container: &ContainerId, connection: Box<dyn Stream>);

    fn close(&self, container: &ContainerId);
}

/// The runtime that creates containers, or the reason why there is none.
pub type AvailableRuntime = Result<Arc<dyn Runtime>, String>;

/// The verbs of containers. Cheap to copy.
#[derive(Debug, Clone, Copy)]
pub struct Containers<'a> {
    engine: &'a Engine,
}

impl<'a> Containers<'a> {
    pub(crate) fn new(engine: &'a Engine) -> Self {
        Self { engine }
    }

    fn state(self) -> &'a Arc<ContainerState> {
        self.engine.container_state()
    }

    /// Whether a runtime was chosen that can create containers.
    pub fn has_runtime(self) -> bool {
        self.state().is_runtime(AvailableRuntime::is_ok)
    }

    /// Whether a choice was made and found no runtime.
    pub fn lacks_runtime(self) -> bool {
        self.state().is_runtime(AvailableRuntime::is_err)
    }

    /// How many containers run, as far as their supervisors are connected.
    pub fn count_connected(self) -> usize {
        self.state().count_connected()
    }

    /// Sets the runtime where the first choice found none.
    pub fn set_runtime(self, choice: AvailableRuntime) {
        self.state().set_runtime(choice);
    }

    /// The runtime, once it is chosen.
    pub(crate) async fn runtime(self) -> Result<Arc<dyn Runtime>> {
        self.state().runtime().await
    }

    /// The limits of a project, by their parameters, that have no effect on this machine; none if there
    /// is no runtime yet.
    pub(crate) fn unenforced_limits(self) -> Vec<&'static str> {
        self.state().unenforced_limits()
    }

    /// Whether a container's supervisor is connected.
    pub(crate) fn is_connected(self, id: &ContainerId) -> bool {
        self.state().current_link(id).is_some()
    }

    /// Why the server stopped a container although it was in use, if it has not started again.
    pub(crate) fn stop_reason(self, id: &ContainerId) -> Option<String> {
        self.state().stop_reason(id)
    }

    /// Marks a container as in use until the guard is dropped.
    pub(crate) fn mark_in_use(self, id: &ContainerId) -> InUseGuard {
        self.state().mark_in_use(id)
    }

    /// The connection to the supervisor of a container that runs; None at once if it does not run.
    pub(crate) async fn link_if_running(
        self,
        id: &ContainerId,
        timeout: Duration,
    ) -> Option<Arc<SupervisorLink>> {
        self.state().link_if_running(id, timeout).await
    }

    /// A process that is to be started over a connection.
    pub(crate) fn process(self, link: Arc<SupervisorLink>, process_id: &str) -> Process {
        Process::new(self.state(), link, process_id)
    }

    /// A process that was started before; None if its container does not run or was started anew.
    pub(crate) async fn find_process(
        self,
        container: &ContainerId,
        boot_id: &str,
        process_id: &str,
        timeout: Duration,
    ) -> Option<Process> {
        let link = self.link_if_running(container, timeout).await?;
        (link.boot_id() == boot_id).then(|| self.process(link, process_id))
    }
}

fn container_ended() -> EngineError {
    EngineError::Failed(
        "the container ended while the command ran; its effects until then remain".to_owned(),
    )
}

fn container_unreachable() -> EngineError {
    EngineError::Failed(
        "the container does not answer; `container_logs` may show why; restart it with \
         `container_stop` and `container_start`"
            .to_owned(),
    )
}

impl From<RuntimeError> for EngineError {
    fn from(error: RuntimeError) -> Self {
        match error {
            RuntimeError::Fault(source) => Self::Fault(source),
            other => Self::Failed(other.to_string()),
        }
    }
}
