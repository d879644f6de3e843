//! Runtimes, which make containers: one small trait, its drivers, specs and capabilities as data.
//!
//! A driver creates, starts, stops, removes and lists containers. It does not run commands in them:
//! the supervisor, PID 1 of every container, does. Only where the supervisor cannot reach the server
//! through a mounted socket does a driver run the program that connects them. Drivers decide nothing
//! about permission, projects or sessions.

mod apple;
mod capabilities;
mod choose;
#[cfg(feature = "contract")]
pub mod contract;
mod docker;
mod drivers;
mod error;
mod names;
mod plain_lines;
mod protected_mounts;
mod sandbox;
mod spec;

use std::fmt::Debug;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite};

pub use apple::Apple;
pub use capabilities::{Capabilities, Enforcement, Networks};
pub use choose::{ChosenRuntime, RuntimeChoice, choose};
pub use docker::{Docker, DockerSettings};
pub use drivers::{
    DRIVERS, OpenedRuntime, Platform, ProbeFinding, ProbeKind, RuntimeDriver, RuntimeSettings, help,
};
pub use error::{Result, RuntimeError};
pub use names::{CONTAINER_LABEL, DATA_DIR_LABEL, DataDirNames, PROJECT_LABEL};
pub use oubliette_model::Network;
pub use sandbox::Sandbox;
pub use spec::{
    ContainerId, ContainerLimits, ContainerSpec, ContainerStatus, ImageSource, Init, Mount,
    Program, ProtectedPath, RunState,
};

/// Called with each line that long work prints.
pub type Progress<'a> = &'a (dyn Fn(&str) + Send + Sync);

/// The input and output of a program in a container.
pub trait Channel: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Channel for T {}

/// Makes containers.
#[async_trait]
pub trait Runtime: Debug + Send + Sync {
    fn capabilities(&self) -> &Capabilities;

    /// Creates a container without starting it. Replaces a container that has this id, unless it is
    /// running; a running one is left unchanged.
    async fn create(&self, spec: &ContainerSpec) -> Result<()>;

    /// Starts a container; a running one is left unchanged.
    async fn start(&self, id: &ContainerId) -> Result<()>;

    /// Protects paths of a running container as `protected` of its specification does. `Unsupported`
    /// where a running container cannot get new mounts; it gets them when it is created again.
    async fn protect(&self, id: &ContainerId, paths: &[ProtectedPath]) -> Result<()>;

    /// Asks the container to end and kills it, with every process in it, after `grace`. Does nothing
    /// if the container does not run or does not exist.
    async fn stop(&self, id: &ContainerId, grace: Duration) -> Result<()>;

    /// Removes a container, running or not, and everything the driver made for it. Removing a
    /// container that does not exist is not an error.
    async fn remove(&self, id: &ContainerId) -> Result<()>;

    async fn inspect(&self, id: &ContainerId) -> Result<Option<ContainerStatus>>;

    /// Every container that belongs to this data directory.
    async fn list(&self) -> Result<Vec<ContainerStatus>>;

    /// The last lines that PID 1 and the runtime itself wrote.
    async fn logs(&self, id: &ContainerId, lines: usize) -> Result<String>;

    /// Runs a program in a container with the runtime's own means and connects to its input and
    /// output; dropping the channel ends the program. Used only where no socket of the host can be
    /// mounted.
    async fn channel(&self, id: &ContainerId, program: &Program) -> Result<Box<dyn Channel>>;

    /// Builds or pulls the image that containers of this source start from, and returns its name.
    async fn build_image(&self, source: &ImageSource, progress: Progress<'_>) -> Result<String>;

    /// Gives everything in a directory to the server's user, where a container can have left files
    /// that this user may not remove. False if the runtime leaves no such files. `client` is the
    /// program that containers run.
    async fn take_ownership(&self, directory: &Path, client: &Path) -> Result<bool>;

    /// Removes every image that was built for this data directory, but none that was only pulled.
    /// No container may use them any more.
    async fn remove_images(&self) -> Result<()>;
}
