//! Where containers are made: one small trait, specs and capabilities as data.
//!
//! A driver makes, starts, stops and removes containers and says which there are. It does not run
//! commands in them: the supervisor, PID 1 of every container, does; only where the supervisor could
//! not reach the server otherwise does a driver run the program that connects them. It decides nothing about
//! permission, projects or sessions.

mod apple;
mod capabilities;
mod choose;
#[cfg(feature = "contract")]
pub mod contract;
mod docker;
mod error;
mod home;
mod lines;
mod sandbox;
mod spec;

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite};

pub use apple::Apple;
pub use capabilities::{Capabilities, Enforcement, Networks};
pub use choose::{Chosen, Wanted, choose};
pub use docker::{Docker, DockerSettings};
pub use error::{Result, RuntimeError};
pub use home::{CONTAINER_LABEL, HOME_LABEL, Home, PROJECT_LABEL};
pub use sandbox::Sandbox;
pub use spec::{
    ContainerId, ContainerSpec, ImageSource, Init, Limits, Mount, Network, Program, State, Status,
};

/// Hears of the progress of long work, line by line.
pub type Progress<'a> = &'a (dyn Fn(&str) + Send + Sync);

/// Bytes in and out, of a program in a container.
pub trait Channel: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Channel for T {}

/// Something that makes containers.
#[async_trait]
pub trait Runtime: Debug + Send + Sync {
    fn capabilities(&self) -> &Capabilities;

    /// Makes a container, not yet running. One that is there under this id already, with whatever
    /// spec, is replaced; one that runs is left as it is.
    async fn create(&self, spec: &ContainerSpec) -> Result<()>;

    /// Starts a container; one that runs is left as it is.
    async fn start(&self, id: &ContainerId) -> Result<()>;

    /// Tells the container to end and, past `grace`, ends it with everything in it. One that does
    /// not run, or is not there, is left as it is.
    async fn stop(&self, id: &ContainerId, grace: Duration) -> Result<()>;

    /// Removes a container, running or not, and everything the driver made for it. One that is not
    /// there is no error.
    async fn remove(&self, id: &ContainerId) -> Result<()>;

    async fn inspect(&self, id: &ContainerId) -> Result<Option<Status>>;

    /// Every container that belongs to this data directory.
    async fn list(&self) -> Result<Vec<Status>>;

    /// The last lines that PID 1 and the runtime itself wrote.
    async fn logs(&self, id: &ContainerId, lines: usize) -> Result<String>;

    /// Runs a program in a container, by the runtime's own means, and connects to its input and
    /// output; the program ends when that is dropped. Only where no socket of the host can be
    /// mounted, to carry what would go through it.
    async fn channel(&self, id: &ContainerId, program: &Program) -> Result<Box<dyn Channel>>;

    /// Makes the image that containers of this source start from, or its equivalent; what it is
    /// called.
    async fn build_image(&self, source: &ImageSource, progress: Progress<'_>) -> Result<String>;
}
