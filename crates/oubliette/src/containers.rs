//! Opens the runtime that the configuration names.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use oubliette_engine::Engine;
use oubliette_runtime::{
    DRIVERS, DockerSettings, Platform, Runtime, RuntimeChoice, RuntimeDriver, RuntimeError,
    RuntimeSettings,
};

use crate::client_binary;

const FIRST_RETRY_INTERVAL: Duration = Duration::from_secs(2);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// Tries again to open a runtime where none was found: a container engine may be started later than
/// the server.
pub(crate) async fn retry_until_found(
    engine: Engine,
    name: String,
    data_dir: PathBuf,
    docker: DockerSettings,
    server_ports: Vec<u16>,
) {
    if matches!(
        RuntimeChoice::parse(&name, DRIVERS),
        Err(_) | Ok(RuntimeChoice::None)
    ) {
        return;
    }
    let mut interval = FIRST_RETRY_INTERVAL;
    while !engine.containers().has_runtime() {
        tokio::time::sleep(interval).await;
        if engine.containers().lacks_runtime() {
            engine
                .containers()
                .set_runtime(open_with_client(&name, &data_dir, &docker, &server_ports).await);
            interval = (interval * 2).min(MAX_RETRY_INTERVAL);
        }
    }
}

/// Opens the runtime if the client program is there, which every container runs.
pub(crate) async fn open_with_client(
    name: &str,
    data_dir: &Path,
    docker: &DockerSettings,
    server_ports: &[u16],
) -> Result<Arc<dyn Runtime>, String> {
    client_binary::find()?;
    let runtime = open(name, data_dir, docker, server_ports).await?;
    let unenforced = runtime.capabilities().unenforced_limits();
    if !unenforced.is_empty() {
        tracing::warn!(
            limits = unenforced.join(", "),
            "these limits of projects have no effect on this machine; `oubliette doctor` says why"
        );
    }
    Ok(runtime)
}

/// Opens the runtime of that name; the error says why it cannot be used.
pub(crate) async fn open(
    name: &str,
    data_dir: &Path,
    docker: &DockerSettings,
    server_ports: &[u16],
) -> Result<Arc<dyn Runtime>, String> {
    let choice = RuntimeChoice::parse(name, DRIVERS)?;
    let chosen = async {
        let mut settings = settings(data_dir, docker)?;
        settings.server_ports.extend(server_ports);
        oubliette_runtime::choose(choice, DRIVERS, &settings).await
    };
    let chosen = chosen.await.map_err(|error| error.to_string())?;
    tracing::info!(reason = chosen.reason, "runtime chosen");
    Ok(chosen.runtime)
}

/// Opens every runtime that may have containers, to stop them; and why one cannot be opened, if so. Without a
/// name, every runtime of this machine may have some.
pub(crate) async fn open_to_stop(
    name: Option<&str>,
    data_dir: &Path,
    docker: &DockerSettings,
) -> (Vec<Arc<dyn Runtime>>, Option<String>) {
    let here = Platform::current();
    let drivers: Vec<&RuntimeDriver> = match name.map(|name| RuntimeChoice::parse(name, DRIVERS)) {
        Some(Ok(RuntimeChoice::Driver(driver))) => vec![driver],
        Some(Ok(RuntimeChoice::None)) => Vec::new(),
        // What `auto` chose before may not work any more.
        Some(Ok(RuntimeChoice::Auto) | Err(_)) | None => DRIVERS
            .iter()
            .filter(|driver| driver.auto_on.contains(&here))
            .collect(),
    };
    let settings = match settings(data_dir, docker) {
        Ok(settings) => RuntimeSettings {
            stop_only: true,
            ..settings
        },
        Err(error) => return (Vec::new(), Some(error.to_string())),
    };
    let (mut opened, mut refusal) = (Vec::new(), None);
    for driver in drivers {
        match (driver.open)(&settings).await {
            Ok(runtime) => opened.push(runtime.runtime),
            Err(error) => refusal = Some(error.to_string()),
        }
    }
    (opened, refusal)
}

/// What the drivers of this data directory are opened with; this program is the sandbox's launcher.
pub(crate) fn settings(
    data_dir: &Path,
    docker: &DockerSettings,
) -> Result<RuntimeSettings, RuntimeError> {
    Ok(RuntimeSettings {
        data_dir: data_dir.to_owned(),
        launcher: std::env::current_exe()?,
        server_ports: Vec::new(),
        stop_only: false,
        docker: docker.clone(),
    })
}
