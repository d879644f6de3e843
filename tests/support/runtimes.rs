//! Servers with each of the runtimes that tests use.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use serde_json::json;

use crate::{Server, ServerOptions, docker};

pub(crate) const IMAGE_VARIABLE: &str = "OUBLIETTE_TEST_IMAGE";

/// The product's name of a runtime of the tests. `docker-channel` is Docker without a mounted socket,
/// as it is where the engine runs in a virtual machine.
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

/// The same with git in its containers: Docker's small image has none.
pub async fn server_with_git(runtime: &str, config: &str) -> Server {
    if runtime_name(runtime) != "docker" {
        return server_with(runtime, config).await;
    }
    let channel = match runtime {
        "docker-channel" => "[docker]\nchannel = true\n",
        _ => "",
    };
    Server::start_with(ServerOptions {
        config: format!(
            "runtime = \"docker\"\n{config}{channel}[container_types.base]\nimage = \"{}\"\n",
            docker::userland()
        ),
        ..ServerOptions::default()
    })
}

/// How a server is started that has Docker make its containers, from an image yet to be built.
pub fn docker_options(config: &str) -> ServerOptions {
    let dockerfile = image_context().join("Dockerfile");
    let image = format!(
        "[container_types.base]\ndockerfile = \"{}\"\n",
        dockerfile.display()
    );
    ServerOptions {
        config: format!("runtime = \"docker\"\n{config}{image}"),
        ..ServerOptions::default()
    }
}

/// The build context of a small image that needs no registry. The process that starts the tests
/// makes it for all of them.
pub(crate) fn image_context() -> &'static Path {
    static CONTEXT: LazyLock<PathBuf> = LazyLock::new(|| {
        if let Some(made) = std::env::var_os(IMAGE_VARIABLE) {
            return made.into();
        }
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
        context.keep()
    });
    &CONTEXT
}
