//! Which runtime makes containers here.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use oubliette_engine::Engine;
use oubliette_runtime::{DockerSettings, Home, Runtime, RuntimeError, Sandbox, Wanted};

use crate::inside;

/// How soon, and how seldom in the end, a runtime is looked for again.
const SOON: Duration = Duration::from_secs(2);
const SELDOM: Duration = Duration::from_secs(60);

/// Looks again for a runtime where none was found: a container engine may be started later than
/// the server.
pub(crate) async fn keep_looking(
    engine: Engine,
    name: String,
    home: PathBuf,
    docker: DockerSettings,
) {
    if name.parse::<Wanted>().is_err() {
        return;
    }
    let mut pause = SOON;
    while !engine.containers().has_runtime() {
        tokio::time::sleep(pause).await;
        if engine.containers().lacks_runtime() {
            engine
                .containers()
                .set_runtime(choose_to_make(&name, &home, &docker).await);
            pause = (pause * 2).min(SELDOM);
        }
    }
}

/// The runtime of that name if containers can be made with it, which takes the program that runs in
/// them.
pub(crate) async fn choose_to_make(
    name: &str,
    home: &Path,
    docker: &DockerSettings,
) -> Result<Arc<dyn Runtime>, String> {
    inside::find()?;
    choose(name, home, docker).await
}

/// The runtime of that name, or the sentence why there is none.
pub(crate) async fn choose(
    name: &str,
    home: &Path,
    docker: &DockerSettings,
) -> Result<Arc<dyn Runtime>, String> {
    if name == "none" {
        return Err("containers are switched off (`runtime = \"none\"`)".to_owned());
    }
    let wanted: Wanted = name.parse()?;
    let sandbox = match wanted {
        Wanted::Auto | Wanted::Sandbox => open_sandbox(home).await,
        Wanted::Docker | Wanted::Apple => Err(RuntimeError::Unsupported(String::new())),
    };
    let chosen = oubliette_runtime::choose(wanted, &Home::new(home), docker, sandbox).await;
    let chosen = chosen.map_err(|error| error.to_string())?;
    tracing::info!(reason = chosen.reason, "runtime chosen");
    Ok(chosen.runtime)
}

async fn open_sandbox(home: &Path) -> Result<Arc<dyn Runtime>, RuntimeError> {
    let launcher = std::env::current_exe()?;
    let home = home.to_owned();
    tokio::task::spawn_blocking(move || Sandbox::open(&home, &launcher))
        .await
        .map_err(RuntimeError::fault)?
        .map(|sandbox| Arc::new(sandbox) as Arc<dyn Runtime>)
        .map_err(RuntimeError::Unsupported)
}
