//! Which runtimes the environment says must be there.

use crate::{Server, ServerOptions};

/// The runtimes to test with: those that `OUBLIETTE_TEST_RUNTIMES` names. What is not named is
/// skipped, and said; what is named and missing fails where it is used.
pub fn runtimes() -> Vec<String> {
    let named = std::env::var("OUBLIETTE_TEST_RUNTIMES").unwrap_or_default();
    let named: Vec<String> = named
        .split(',')
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect();
    for known in ["sandbox", "docker"] {
        if !named.iter().any(|name| name == known) {
            eprintln!("skipped: OUBLIETTE_TEST_RUNTIMES does not name {known}");
        }
    }
    named
}

/// A server that makes its containers with this runtime.
pub fn server_with(runtime: &str, config: &str) -> Server {
    let image = match runtime {
        // Built from nothing by tests/docker, because there may be no registry to take one from.
        "docker" => "[container_types.base]\nimage = \"oubliette-test\"\n",
        _ => "",
    };
    Server::start_with(ServerOptions {
        config: format!("runtime = \"{runtime}\"\n{config}{image}"),
        ..ServerOptions::default()
    })
}
