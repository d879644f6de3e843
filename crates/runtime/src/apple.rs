//! Containers of macOS' `container`, through its command line. Each is a small virtual machine.
//!
//! Sockets of the host cannot be mounted there, so supervisors are connected through `container
//! exec`.

mod cli;
mod commands;
mod driver;
mod listing;

use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;

use crate::capabilities::NO_POLICY_NOTE;
use crate::spec::Dockerfile;
use crate::{
    Capabilities, Channel, ContainerId, ContainerSpec, ContainerStatus, DataDirNames, Enforcement,
    ImageSource, Networks, Program, Progress, ProtectedPath, Result, RunState, Runtime,
    RuntimeError, protected_mounts,
};
use cli::Cli;

pub(crate) use driver::DRIVER;

/// For commands that change nothing.
const QUERY_TIMEOUT: Duration = Duration::from_secs(30);
/// A virtual machine starts in a second or two; the first one may download its kernel.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(120);
const BUILD_TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// The `container` command of macOS, whose services answered once.
#[derive(Debug)]
pub struct Apple {
    cli: Cli,
    version: String,
    capabilities: Capabilities,
    names: DataDirNames,
    cpus: u64,
}

impl Apple {
    pub async fn connect(names: DataDirNames) -> Result<Self> {
        if !cfg!(target_os = "macos") {
            return Err(RuntimeError::Unsupported(
                "The apple runtime needs macOS.".to_owned(),
            ));
        }
        Self::connect_with(Path::new("container"), names).await
    }

    /// Uses a `container` command at another path, for example a fake one.
    pub async fn connect_with(program: &Path, names: DataDirNames) -> Result<Self> {
        let cli = Cli::new(program);
        let version = cli.run_checked(&commands::version(), QUERY_TIMEOUT).await?;
        let status = cli.run(&commands::status(), QUERY_TIMEOUT, &|_| {}).await?;
        if !status.success {
            return Err(RuntimeError::Unavailable(
                "The services of `container` are not running; start them with `container system \
                 start`."
                    .to_owned(),
            ));
        }
        let cpus = std::thread::available_parallelism();
        Ok(Self {
            cli,
            version: version.trim().to_owned(),
            capabilities: capabilities(),
            names,
            cpus: cpus.map_or(1, |count| count.get() as u64),
        })
    }

    /// The version as the command prints it.
    pub fn description(&self) -> String {
        self.version.clone()
    }

    async fn has_image(&self, image: &str) -> Result<bool> {
        let inspect = commands::inspect_image(image);
        let output = self.cli.run(&inspect, QUERY_TIMEOUT, &|_| {}).await?;
        Ok(output.success)
    }

    /// Runs a command about a container; a failure counts only while the container exists. Returns
    /// whether the container existed.
    async fn run_if_exists(
        &self,
        id: &ContainerId,
        invocation: &commands::Invocation,
        timeout: Duration,
    ) -> Result<bool> {
        if self.inspect(id).await?.is_none() {
            return Ok(false);
        }
        match self.cli.run_checked(invocation, timeout).await {
            Ok(_) => Ok(true),
            Err(error) => match self.inspect(id).await? {
                Some(_) => Err(error),
                None => Ok(false),
            },
        }
    }
}

fn capabilities() -> Capabilities {
    Capabilities {
        name: DRIVER.name,
        images: true,
        networks: Networks {
            none: true,
            host: false,
            bridge: true,
            policy: false,
        },
        memory_limit: Enforcement::Enforced,
        cpu_limit: Enforcement::Enforced,
        process_limit: Enforcement::NotEnforced,
        disk_limit: Enforcement::NotEnforced,
        host_sockets: false,
        notes: vec![
            "Each container is a virtual machine with a kernel of its own; sockets of this \
             machine cannot be mounted."
                .to_owned(),
            NO_POLICY_NOTE.to_owned(),
            "A container's host name is always its name.".to_owned(),
            "`disk_mb` is measured, and stops containers that exceed it, but refuses no write."
                .to_owned(),
        ],
    }
}

#[async_trait]
impl Runtime for Apple {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn create(&self, spec: &ContainerSpec) -> Result<()> {
        let user = rustix::process::geteuid().as_raw();
        let mut owned = spec.mounts.iter().filter_map(|mount| mount.owner);
        if owned.any(|(uid, _)| uid != user) {
            return Err(RuntimeError::Unsupported(
                "Files in a directory of another user would not stay that user's; run the server as its \
                 owner, or let the agent work on a copy."
                    .to_owned(),
            ));
        }
        let spec = &protected_mounts::resolve(spec)?;
        let image = self.names.image_name(&spec.image)?;
        let create = commands::create(spec, &image, &self.names, self.cpus)?;
        match self.inspect(&spec.id).await? {
            Some(existing) if existing.state == RunState::Running => return Ok(()),
            Some(_) => {
                // Without force: it may have been started since.
                let delete = commands::delete(&self.names.container_name(&spec.id), false);
                self.run_if_exists(&spec.id, &delete, CHANGE_TIMEOUT)
                    .await?;
            }
            None => {}
        }
        // `container create` would look for a missing image in a registry, which does not know it.
        if !self.has_image(&image).await? {
            return Err(RuntimeError::NoImage(image));
        }
        self.cli.run_checked(&create, CHANGE_TIMEOUT).await?;
        Ok(())
    }

    async fn start(&self, id: &ContainerId) -> Result<()> {
        let start = commands::start(&self.names.container_name(id));
        if self.run_if_exists(id, &start, CHANGE_TIMEOUT).await? {
            Ok(())
        } else {
            Err(RuntimeError::NoContainer(id.to_string()))
        }
    }

    async fn protect(&self, _: &ContainerId, _: &[ProtectedPath]) -> Result<()> {
        Err(RuntimeError::Unsupported(
            "a running container gets no new mounts".to_owned(),
        ))
    }

    async fn stop(&self, id: &ContainerId, grace: Duration) -> Result<()> {
        let status = self.inspect(id).await?;
        if status.is_none_or(|status| status.state != RunState::Running) {
            return Ok(());
        }
        let stop = commands::stop(&self.names.container_name(id), grace);
        self.run_if_exists(id, &stop, CHANGE_TIMEOUT.saturating_add(grace))
            .await?;
        Ok(())
    }

    async fn remove(&self, id: &ContainerId) -> Result<()> {
        let delete = commands::delete(&self.names.container_name(id), true);
        self.run_if_exists(id, &delete, CHANGE_TIMEOUT).await?;
        Ok(())
    }

    /// Reads the listing: the reply of `container inspect` for a missing container differs between
    /// versions.
    async fn inspect(&self, id: &ContainerId) -> Result<Option<ContainerStatus>> {
        let all = self.list().await?;
        Ok(all.into_iter().find(|status| status.id == *id))
    }

    async fn list(&self) -> Result<Vec<ContainerStatus>> {
        let json = self
            .cli
            .run_checked(&commands::list(), QUERY_TIMEOUT)
            .await?;
        listing::parse(&json, &self.names)
    }

    async fn logs(&self, id: &ContainerId, lines: usize) -> Result<String> {
        if self.inspect(id).await?.is_none() {
            return Err(RuntimeError::NoContainer(id.to_string()));
        }
        if lines == 0 {
            return Ok(String::new());
        }
        let logs = commands::logs(&self.names.container_name(id), lines);
        self.cli.run_checked(&logs, QUERY_TIMEOUT).await
    }

    async fn channel(&self, id: &ContainerId, program: &Program) -> Result<Box<dyn Channel>> {
        let exec = commands::exec(&self.names.container_name(id), program);
        Ok(Box::new(self.cli.attach(&exec)?))
    }

    async fn build_image(&self, source: &ImageSource, progress: Progress<'_>) -> Result<String> {
        let image = self.names.image_name(source)?;
        let scratch = tempfile::tempdir()?;
        let path = match source.dockerfile() {
            Some(Dockerfile::Path(path)) if path.is_dir() => Some(path.join("Dockerfile")),
            Some(Dockerfile::Path(path)) => Some(path.to_owned()),
            Some(Dockerfile::BuiltIn(text)) => {
                let path = scratch.path().join("Dockerfile");
                std::fs::write(&path, text)?;
                Some(path)
            }
            None => None,
        };
        let invocation = match path {
            Some(path) => commands::build(&image, &path, &source.build_args, &self.names),
            None if self.has_image(&image).await? => return Ok(image),
            None => commands::pull(&image),
        };
        let output = self.cli.run(&invocation, BUILD_TIMEOUT, progress).await?;
        output.into_stdout()?;
        Ok(image)
    }

    async fn take_ownership(&self, _: &Path, _: &Path) -> Result<bool> {
        Ok(false)
    }

    async fn remove_images(&self) -> Result<()> {
        let names = self
            .cli
            .run_checked(&commands::list_images(), QUERY_TIMEOUT)
            .await?;
        let prefix = self.names.image_prefix();
        for name in names.lines().filter(|name| name.starts_with(&prefix)) {
            self.cli
                .run_checked(&commands::delete_image(name), CHANGE_TIMEOUT)
                .await?;
        }
        Ok(())
    }
}
