//! The row of the table.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::Docker;
use crate::{
    DataDirNames, Enforcement, OpenedRuntime, Platform, ProbeFinding, Result, Runtime,
    RuntimeDriver, RuntimeSettings,
};

pub(crate) const DRIVER: RuntimeDriver = RuntimeDriver {
    name: "docker",
    about: "Docker or Podman; needs a running engine.",
    auto_on: &[Platform::Linux, Platform::MacOs],
    open,
    probe,
};

fn open(settings: &RuntimeSettings) -> BoxFuture<'_, Result<OpenedRuntime>> {
    async move {
        let docker = connect(settings).await?;
        let description = docker.description();
        Ok(OpenedRuntime::new(docker, description))
    }
    .boxed()
}

async fn connect(settings: &RuntimeSettings) -> Result<Docker> {
    let names = DataDirNames::new(&settings.data_dir);
    Docker::connect(names, &settings.docker).await
}

fn probe(settings: &RuntimeSettings) -> BoxFuture<'_, Vec<ProbeFinding>> {
    async move {
        let docker = match connect(settings).await {
            Ok(docker) => docker,
            Err(error) => {
                let text = format!("Docker and Podman: {error}");
                return vec![ProbeFinding::new(false, text)];
            }
        };
        let capabilities = docker.capabilities();
        let is_disk_limited = capabilities.disk_limit != Enforcement::NotEnforced;
        let notes = capabilities.notes.iter();
        let about_disk = notes
            .filter(|note| note.contains("disk_mb"))
            .map(|note| ProbeFinding::new(is_disk_limited, format!("Docker: {note}")));
        let answers = format!("{} answers", docker.description());
        [ProbeFinding::new(true, answers)]
            .into_iter()
            .chain(about_disk)
            .collect()
    }
    .boxed()
}
