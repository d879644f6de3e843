//! Containers of macOS' `container`: each a small virtual machine, driven through its command line.
//!
//! Sockets of the host cannot be mounted there, so what a supervisor says is carried by `container
//! exec`.

mod answers;
mod arguments;
mod cli;

use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;

use crate::{
    Capabilities, Channel, ContainerId, ContainerSpec, Enforcement, Home, ImageSource, Networks,
    Program, Progress, Result, Runtime, RuntimeError, State, Status,
};
use cli::Cli;

const LOOK: Duration = Duration::from_secs(30);
/// A virtual machine starts in a second or two; its first one may fetch what it boots.
const WORK: Duration = Duration::from_secs(120);
const WHOLE_BUILD: Duration = Duration::from_secs(60 * 60);

/// The `container` command of macOS, whose services have answered once.
#[derive(Debug)]
pub struct Apple {
    cli: Cli,
    version: String,
    capabilities: Capabilities,
    home: Home,
    cpus: u64,
}

impl Apple {
    pub async fn connect(home: Home) -> Result<Self> {
        if !cfg!(target_os = "macos") {
            return Err(RuntimeError::Unsupported(
                "The apple runtime is macOS' `container`, and this is not macOS.".to_owned(),
            ));
        }
        Self::connect_through(Path::new("container"), home).await
    }

    /// Uses a command line that is somewhere else, or stands in for it.
    pub async fn connect_through(program: &Path, home: Home) -> Result<Self> {
        let cli = Cli::new(program);
        let version = cli.must(&arguments::version(), LOOK).await?;
        let status = cli.run(&arguments::status(), LOOK, &|_| {}).await?;
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
            home,
            cpus: cpus.map_or(1, |count| count.get() as u64),
        })
    }

    /// Which version it is, in its own words.
    pub fn about(&self) -> String {
        self.version.clone()
    }

    async fn has_image(&self, image: &str) -> Result<bool> {
        let look = arguments::inspect_image(image);
        let found = self.cli.run(&look, LOOK, &|_| {}).await?;
        Ok(found.success)
    }

    /// Runs what must succeed unless the container is gone by now; whether it was there.
    async fn unless_gone(
        &self,
        id: &ContainerId,
        invocation: &arguments::Invocation,
        limit: Duration,
    ) -> Result<bool> {
        if self.inspect(id).await?.is_none() {
            return Ok(false);
        }
        match self.cli.must(invocation, limit).await {
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
        name: "apple",
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
        let image = self.home.image(&spec.image)?;
        let create = arguments::create(spec, &image, &self.home, self.cpus)?;
        match self.inspect(&spec.id).await? {
            Some(there) if there.state == State::Running => return Ok(()),
            Some(_) => {
                // Not by force: it may have been started since.
                let delete = arguments::delete(&self.home.container(&spec.id), false);
                self.unless_gone(&spec.id, &delete, WORK).await?;
            }
            None => {}
        }
        // It would look for the image in a registry, under a name that is only known here.
        if !self.has_image(&image).await? {
            return Err(RuntimeError::NoImage(image));
        }
        self.cli.must(&create, WORK).await?;
        Ok(())
    }

    async fn start(&self, id: &ContainerId) -> Result<()> {
        let start = arguments::start(&self.home.container(id));
        match self.unless_gone(id, &start, WORK).await? {
            true => Ok(()),
            false => Err(RuntimeError::NoContainer(id.to_string())),
        }
    }

    async fn stop(&self, id: &ContainerId, grace: Duration) -> Result<()> {
        let there = self.inspect(id).await?;
        if there.is_none_or(|there| there.state != State::Running) {
            return Ok(());
        }
        let stop = arguments::stop(&self.home.container(id), grace);
        self.unless_gone(id, &stop, WORK.saturating_add(grace))
            .await?;
        Ok(())
    }

    async fn remove(&self, id: &ContainerId) -> Result<()> {
        let delete = arguments::delete(&self.home.container(id), true);
        self.unless_gone(id, &delete, WORK).await?;
        Ok(())
    }

    /// By way of the listing: what `inspect` says of a container that is not there differs from
    /// version to version.
    async fn inspect(&self, id: &ContainerId) -> Result<Option<Status>> {
        let all = self.list().await?;
        Ok(all.into_iter().find(|status| status.id == *id))
    }

    async fn list(&self) -> Result<Vec<Status>> {
        let json = self.cli.must(&arguments::list(), LOOK).await?;
        answers::containers(&json, &self.home)
    }

    async fn logs(&self, id: &ContainerId, lines: usize) -> Result<String> {
        if self.inspect(id).await?.is_none() {
            return Err(RuntimeError::NoContainer(id.to_string()));
        }
        if lines == 0 {
            return Ok(String::new());
        }
        let logs = arguments::logs(&self.home.container(id), lines);
        self.cli.must(&logs, LOOK).await
    }

    async fn channel(&self, id: &ContainerId, program: &Program) -> Result<Box<dyn Channel>> {
        let exec = arguments::exec(&self.home.container(id), program);
        Ok(Box::new(self.cli.attach(&exec)?))
    }

    async fn build_image(&self, source: &ImageSource, progress: Progress<'_>) -> Result<String> {
        let image = self.home.image(source)?;
        let invocation = match &source.dockerfile {
            Some(path) if path.is_dir() => {
                arguments::build(&image, &path.join("Dockerfile"), &self.home)
            }
            Some(path) => arguments::build(&image, path, &self.home),
            None if self.has_image(&image).await? => return Ok(image),
            None => arguments::pull(&image),
        };
        let printed = self.cli.run(&invocation, WHOLE_BUILD, progress).await?;
        printed.checked()?;
        Ok(image)
    }
}
