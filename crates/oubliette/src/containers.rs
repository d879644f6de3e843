//! Opens the runtime that the configuration names.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use oubliette_engine::Engine;
use oubliette_runtime::{
    DRIVERS, DockerSettings, Runtime, RuntimeChoice, RuntimeError, RuntimeSettings,
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
                .set_runtime(open_with_client(&name, &data_dir, &docker).await);
            interval = (interval * 2).min(MAX_RETRY_INTERVAL);
        }
    }
}

/// Opens the runtime if the client program is there, which every container runs.
pub(crate) async fn open_with_client(
    name: &str,
    data_dir: &Path,
    docker: &DockerSettings,
) -> Result<Arc<dyn Runtime>, String> {
    client_binary::find()?;
    open(name, data_dir, docker).await
}

/// Opens the runtime of that name; the error says why it cannot be used.
pub(crate) async fn open(
    name: &str,
    data_dir: &Path,
    docker: &DockerSettings,
) -> Result<Arc<dyn Runtime>, String> {
    let choice = RuntimeChoice::parse(name, DRIVERS)?;
    let chosen = async {
        let settings = settings(data_dir, docker)?;
        oubliette_runtime::choose(choice, DRIVERS, &settings).await
    };
    let chosen = chosen.await.map_err(|error| error.to_string())?;
    tracing::info!(reason = chosen.reason, "runtime chosen");
    Ok(chosen.runtime)
}

/// What the drivers of this data directory are opened with; this program is the sandbox's launcher.
pub(crate) fn settings(
    data_dir: &Path,
    docker: &DockerSettings,
) -> Result<RuntimeSettings, RuntimeError> {
    Ok(RuntimeSettings {
        data_dir: data_dir.to_owned(),
        launcher: std::env::current_exe()?,
        docker: docker.clone(),
    })
}
