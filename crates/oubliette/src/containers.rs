//! Which runtime makes containers here.

use std::path::Path;
use std::sync::Arc;

use oubliette_runtime::{Runtime, Sandbox};

/// The runtime of that name, or the sentence why there is none.
pub(crate) async fn choose(name: &str, home: &Path) -> Result<Arc<dyn Runtime>, String> {
    match name {
        "none" => Err("containers are switched off (`runtime = \"none\"`)".to_owned()),
        "auto" | "sandbox" => {
            let launcher = std::env::current_exe().map_err(|error| error.to_string())?;
            let home = home.to_owned();
            let opened = tokio::task::spawn_blocking(move || Sandbox::open(&home, &launcher));
            let sandbox = opened.await.map_err(|error| error.to_string())??;
            tracing::info!(
                runtime = "sandbox",
                "containers are made by the embedded sandbox"
            );
            Ok(Arc::new(sandbox))
        }
        other => Err(format!(
            "there is no runtime `{other}`; use auto, sandbox or none"
        )),
    }
}
