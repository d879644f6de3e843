//! Which runtimes the environment says must be there.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use serde_json::json;
use tempfile::TempDir;

use crate::{Server, ServerOptions};

/// The runtimes to test with: those that `OUBLIETTE_TEST_RUNTIMES` names. What is not named is
/// skipped, and said; what is named and missing fails where it is used. `docker-channel` is Docker
/// without a mounted socket, as it is where the engine has a machine of its own.
pub fn runtimes() -> Vec<String> {
    let named = std::env::var("OUBLIETTE_TEST_RUNTIMES").unwrap_or_default();
    let named: Vec<String> = named
        .split(',')
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect();
    for known in ["sandbox", "docker", "docker-channel"] {
        if !named.iter().any(|name| name == known) {
            eprintln!("skipped: OUBLIETTE_TEST_RUNTIMES does not name {known}");
        }
    }
    named
}

/// What the product calls a runtime to test with.
pub fn runtime_name(runtime: &str) -> &str {
    runtime.trim_end_matches("-channel")
}

/// A server that makes its containers with this runtime.
pub async fn server_with(runtime: &str, config: &str) -> Server {
    let server = Server::start_with(match runtime {
        "docker" => docker_options(config),
        "docker-channel" => docker_options(&format!("{config}[docker]\nchannel = true\n")),
        _ => ServerOptions {
            config: format!("runtime = \"{runtime}\"\n{config}"),
            ..ServerOptions::default()
        },
    });
    if runtime_name(runtime) == "docker" {
        let built = server
            .admin()
            .call("image_rebuild", json!({ "container_type": "base" }))
            .await;
        assert!(built.ok()["image"].is_string(), "{}", built.text);
    }
    server
}

/// How a server is started that has Docker make its containers, from an image yet to be built.
pub fn docker_options(config: &str) -> ServerOptions {
    let dockerfile = image().join("Dockerfile");
    let image = format!(
        "[container_types.base]\ndockerfile = \"{}\"\n",
        dockerfile.display()
    );
    ServerOptions {
        config: format!("runtime = \"docker\"\n{config}{image}"),
        ..ServerOptions::default()
    }
}

/// What a tiny image is built from, out of nothing: there may be no registry to take one from.
fn image() -> &'static Path {
    static CONTEXT: LazyLock<TempDir> = LazyLock::new(|| {
        let context = tempfile::tempdir().unwrap();
        let busybox = ["/bin/busybox", "/usr/bin/busybox"].map(PathBuf::from);
        let busybox = busybox
            .iter()
            .find(|path| path.exists())
            .expect("run tests/docker first");
        std::fs::copy(busybox, context.path().join("busybox")).unwrap();
        std::fs::write(
            context.path().join("Dockerfile"),
            "FROM scratch\nCOPY busybox /bin/busybox\nRUN [\"/bin/busybox\", \"--install\", \
             \"-s\", \"/bin\"]\nRUN mkdir -p /tmp /root /etc && chmod 1777 /tmp\n",
        )
        .unwrap();
        context
    });
    CONTEXT.path()
}

/// Runtimes whose containers have a socket of the host.
pub fn mounted() -> impl Iterator<Item = String> {
    runtimes()
        .into_iter()
        .filter(|runtime| !runtime.ends_with("-channel"))
}
