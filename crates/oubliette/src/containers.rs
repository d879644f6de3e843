//! Which runtime makes containers here.

use std::path::Path;
use std::sync::Arc;

use oubliette_runtime::Runtime;

/// The runtime of that name, or the sentence why there is none.
pub(crate) async fn choose(name: &str, _home: &Path) -> Result<Arc<dyn Runtime>, String> {
    Err(format!(
        "no runtime `{name}` is built into this program, so containers cannot be made"
    ))
}
