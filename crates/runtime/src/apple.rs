//! Containers of macOS' `container`: each a small virtual machine, driven through its command line.
//!
//! Sockets of the host cannot be mounted there, so what a supervisor says is carried by `container
//! exec`.

mod cli;
mod commands;
mod driver;
mod listing;

use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;

use crate::{
    Capabilities, Channel, ContainerId, ContainerSpec, ContainerState, ContainerStatus,
    DataDirNames, Enforcement, ImageSource, Networks, Program, Progress, Result, Runtime,
    RuntimeError,
};
use cli::Cli;

pub(crate) use driver::DRIVER;

const QUERY_TIMEOUT: Duration = Duration::from_secs(30);
/// A virtual machine starts in a second or two; its first one may fetch what it boots.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(120);
const BUILD_TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// The `container` command of macOS, whose services have answered once.
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
                "The apple runtime is macOS' `container`, and this is not macOS.".to_owned(),
            ));
        }
        Self::connect_with(Path::new("container"), names).await
    }

    /// Uses a command line that is somewhere else, or stands in for it.
    pub async fn connect_with(program: &Path, names: DataDirNames) -> Result<Self> {
        let cli = Cli::new(program);
        let version = cli.run_checked(&commands::version(), QUERY_TIMEOUT).await?;
        let status = cli.run(&commands::status(), QUERY_TIMEOUT, &|_| {}).await?;
        if !status.success {
            return Err(RuntimeError::Unavailable(
                "The services of `container` do not run; `container system start` starts them."
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

    /// Which version it is, in its own words.
    pub fn description(&self) -> String {
        self.version.clone()
    }

    async fn has_image(&self, image: &str) -> Result<bool> {
        let look = commands::inspect_image(image);
        let found = self.cli.run(&look, QUERY_TIMEOUT, &|_| {}).await?;
        Ok(found.success)
    }

    /// Runs what must succeed unless the container is gone by now; whether it was there.
    async fn run_if_exists(
        &self,
        id: &ContainerId,
        invocation: &commands::Invocation,
        limit: Duration,
    ) -> Result<bool> {
        if self.inspect(id).await?.is_none() {
            return Ok(false);
        }
        match self.cli.run_checked(invocation, limit).await {
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
            "A container's host name is its name, whatever is asked for.".to_owned(),
            "`disk_mb` is measured and reported, not enforced.".to_owned(),
        ],
    }
}

#[async_trait]
impl Runtime for Apple {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn create(&self, spec: &ContainerSpec) -> Result<()> {
        let image = self.names.image_name(&spec.image)?;
        let create = commands::create(spec, &image, &self.names, self.cpus)?;
        match self.inspect(&spec.id).await? {
            Some(there) if there.state == ContainerState::Running => return Ok(()),
            Some(_) => {
                // Not by force: it may have been started since.
                let delete = commands::delete(&self.names.container_name(&spec.id), false);
                self.run_if_exists(&spec.id, &delete, CHANGE_TIMEOUT)
                    .await?;
            }
            None => {}
        }
        // It would look for the image in a registry, under a name that is only known here.
        if !self.has_image(&image).await? {
            return Err(RuntimeError::NoImage(image));
        }
        self.cli.run_checked(&create, CHANGE_TIMEOUT).await?;
        Ok(())
    }

    async fn start(&self, id: &ContainerId) -> Result<()> {
        let start = commands::start(&self.names.container_name(id));
        match self.run_if_exists(id, &start, CHANGE_TIMEOUT).await? {
            true => Ok(()),
            false => Err(RuntimeError::NoContainer(id.to_string())),
        }
    }

    async fn stop(&self, id: &ContainerId, grace: Duration) -> Result<()> {
        let there = self.inspect(id).await?;
        if there.is_none_or(|there| there.state != ContainerState::Running) {
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

    /// By way of the listing: what `inspect` says of a container that is not there differs from
    /// version to version.
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
        let invocation = match &source.dockerfile {
            Some(path) if path.is_dir() => {
                commands::build(&image, &path.join("Dockerfile"), &self.names)
            }
            Some(path) => commands::build(&image, path, &self.names),
            None if self.has_image(&image).await? => return Ok(image),
            None => commands::pull(&image),
        };
        let output = self.cli.run(&invocation, BUILD_TIMEOUT, progress).await?;
        output.into_stdout()?;
        Ok(image)
    }

    async fn remove_images(&self) -> Result<()> {
        let names = self
            .cli
            .run_checked(&commands::list_images(), QUERY_TIMEOUT)
            .await?;
        let ours = self.names.image_prefix();
        for name in names.lines().filter(|name| name.starts_with(&ours)) {
            self.cli
                .run_checked(&commands::delete_image(name), CHANGE_TIMEOUT)
                .await?;
        }
        Ok(())
    }
}
