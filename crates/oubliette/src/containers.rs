//! Which runtime makes containers here.

use std::path::Path;
use std::sync::Arc;

use oubliette_runtime::{DockerSettings, Home, Runtime, RuntimeError, Sandbox, Wanted};

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
