//! The connection to the engine: finds its socket, limits the time of calls and translates errors.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::errors::Error;
use bollard::models::{SystemInfo, SystemVersion};
use bollard::{API_DEFAULT_VERSION, Docker as Api};

use super::process_user::UserIds;
use super::{DRIVER, disk_quota};
use crate::{Capabilities, Enforcement, Networks, Result, RuntimeError};

/// This first request may start Podman; a socket without a server must not delay our start longer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// For calls that change nothing.
pub(super) const QUERY_TIMEOUT: Duration = Duration::from_secs(30);
/// Between two attempts where the engine offers no way to wait.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_millis(50);
const MAX_QUERY_RETRIES: usize = 100;
/// Longer than any timeout here, so that the library's own never expires first.
const CLIENT_TIMEOUT_SECONDS: u64 = 24 * 60 * 60;

/// The environment variables that say where the engine is.
#[derive(Debug, Default)]
pub(super) struct EngineEnv {
    /// The value of `DOCKER_HOST`.
    pub(super) docker_host: Option<OsString>,
    /// The value of `XDG_RUNTIME_DIR`.
    pub(super) runtime_directory: Option<OsString>,
}

impl EngineEnv {
    pub(super) fn from_process() -> Self {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        Self {
            docker_host: set("DOCKER_HOST"),
            runtime_directory: set("XDG_RUNTIME_DIR"),
        }
    }

    /// The sockets to try, in this order.
    fn sockets(&self) -> Result<Vec<PathBuf>> {
        if let Some(host) = &self.docker_host {
            let host = host.to_string_lossy();
            let socket = host.strip_prefix("unix://").map(PathBuf::from);
            let socket = socket.filter(|path| path.is_absolute()).ok_or_else(|| {
                RuntimeError::Unsupported(format!(
                    "DOCKER_HOST is `{host}`; only `unix:///path/to/socket` is supported, because \
                     containers mount files of this machine."
                ))
            })?;
            return Ok(vec![socket]);
        }
        let mut sockets = vec![PathBuf::from("/var/run/docker.sock")];
        if let Some(directory) = &self.runtime_directory {
            sockets.push(Path::new(directory).join("podman/podman.sock"));
        }
        sockets.push("/run/podman/podman.sock".into());
        Ok(sockets)
    }
}

/// An engine that answered, and its features.
#[derive(Debug)]
pub(super) struct EngineClient {
    pub(super) api: Api,
    socket: PathBuf,
    /// For example `Docker 20.10.24`.
    pub(super) version: String,
    /// How many processors containers can have.
    pub(super) cpus: f64,
    /// Whether SELinux is on: containers can then read mounts only with separation disabled.
    pub(super) selinux: bool,
    /// Whether the engine can limit the disk space of a container.
    pub(super) limits_disk: bool,
    pub(super) user_ids: UserIds,
}

impl EngineClient {
    /// Connects to the first socket on which an engine answers.
    pub(super) async fn find(env: &EngineEnv) -> Result<(Self, Capabilities)> {
        let mut errors = Vec::new();
        for socket in env.sockets()? {
            match Self::connect(&socket).await {
                Ok(found) => return Ok(found),
                Err(error) => errors.push(error.to_string()),
            }
        }
        Err(RuntimeError::Unavailable(errors.join(" ")))
    }

    async fn connect(socket: &Path) -> Result<(Self, Capabilities)> {
        let connecting = async {
            let api = Api::connect_with_unix(
                &socket.to_string_lossy(),
                CLIENT_TIMEOUT_SECONDS,
                API_DEFAULT_VERSION,
            )?
            .negotiate_version()
            .await?;
            let (version, info) = (api.version().await?, api.info().await?);
            Ok((api, version, info))
        };
        let (api, version, info) = with_timeout(CONNECT_TIMEOUT, connecting)
            .await
            .map_err(|error| to_runtime_error(socket, error))?;
        let engine = Self {
            api,
            socket: socket.to_owned(),
            version: describe(&version),
            cpus: info
                .ncpu
                .map_or(1.0, |count| f64::from(u32::try_from(count).unwrap_or(1))),
            selinux: has_security_option(&info, "selinux"),
            limits_disk: disk_quota::is_supported(&info),
            user_ids: UserIds::of_process(has_security_option(&info, "rootless")),
        };
        let capabilities = engine.capabilities(&info);
        Ok((engine, capabilities))
    }

    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Calls the engine without changing anything. Podman has transitional states that Docker does
    /// not know, which make its whole reply unreadable; the call is repeated until they are over.
    pub(super) async fn query<T, F>(&self, call: impl Fn() -> F + Send) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>> + Send,
    {
        let mut attempts = 0;
        loop {
            match with_timeout(QUERY_TIMEOUT, call()).await {
                Err(Error::JsonDataError { message, .. })
                    if message.contains("unknown variant") && attempts < MAX_QUERY_RETRIES =>
                {
                    attempts += 1;
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
                outcome => return outcome,
            }
        }
    }

    pub(super) fn to_runtime_error(&self, error: Error) -> RuntimeError {
        to_runtime_error(&self.socket, error)
    }

    fn capabilities(&self, info: &SystemInfo) -> Capabilities {
        let enforced = |supported: Option<bool>| match supported {
            Some(true) => Enforcement::Enforced,
            _ => Enforcement::NotEnforced,
        };
        // In a virtual machine the engine sees our files through a filesystem without sockets.
        let system = info.operating_system.as_deref().unwrap_or_default();
        let same_kernel = cfg!(target_os = "linux") && !system.contains("Docker Desktop");
        let mut notes = Vec::new();
        if has_security_option(info, "rootless") {
            notes.push(
                "The engine runs without root: root in a container is the user who runs the engine, \
                 and agents run as that."
                    .to_owned(),
            );
        } else {
            notes.push(
                "Agents and commands run as an ordinary user, who owns their files.".to_owned(),
            );
        }
        if self.selinux {
            notes.push(
                "SELinux is on: its separation is disabled for containers, because they share \
                 files and a socket with the server."
                    .to_owned(),
            );
        }
        notes.push(disk_quota::describe(info));
        if !same_kernel {
            notes.push(
                "The engine runs in a virtual machine: sockets of this machine cannot be mounted."
                    .to_owned(),
            );
        }
        Capabilities {
            name: DRIVER.name,
            images: true,
            networks: Networks {
                none: true,
                host: false,
                bridge: true,
                policy: same_kernel,
            },
            memory_limit: enforced(info.memory_limit),
            cpu_limit: enforced(info.cpu_cfs_quota),
            process_limit: enforced(info.pids_limit),
            disk_limit: if self.limits_disk {
                Enforcement::Partly
            } else {
                Enforcement::NotEnforced
            },
            host_sockets: same_kernel,
            notes,
        }
    }
}

/// The HTTP status of the engine's error, if it answered.
pub(super) fn status_code(error: &Error) -> Option<u16> {
    match error {
        Error::DockerResponseServerError { status_code, .. } => Some(*status_code),
        _ => None,
    }
}

fn has_security_option(info: &SystemInfo, option: &str) -> bool {
    let options = info.security_options.as_deref().unwrap_or_default();
    options.iter().any(|found| {
        found
            .split(',')
            .any(|part| part == format!("name={option}"))
    })
}

fn describe(version: &SystemVersion) -> String {
    let podman = version
        .components
        .iter()
        .flatten()
        .any(|part| part.name.starts_with("Podman"));
    let name = if podman { "Podman" } else { "Docker" };
    let number = version.version.as_deref();
    format!("{name} {}", number.unwrap_or("of unknown version"))
}

pub(super) async fn with_timeout<T>(
    timeout: Duration,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    // Boxed: the library's futures are large.
    tokio::time::timeout(timeout, Box::pin(call))
        .await
        .unwrap_or(Err(Error::RequestTimeoutError))
}

fn to_runtime_error(socket: &Path, error: Error) -> RuntimeError {
    let unavailable = |what: &str| {
        RuntimeError::Unavailable(format!(
            "The container engine at {} {what}",
            socket.display()
        ))
    };
    match error {
        Error::DockerResponseServerError { message, .. } => RuntimeError::Failed(message),
        Error::DockerStreamError { error } => RuntimeError::Failed(error),
        Error::SocketNotFoundError(_) => unavailable("does not exist."),
        Error::RequestTimeoutError => unavailable("did not answer in time."),
        Error::IOError { .. }
        | Error::HyperResponseError { .. }
        | Error::HyperLegacyError { .. } => match root_cause_kind(&error) {
            Some(std::io::ErrorKind::PermissionDenied) => {
                unavailable("refuses this user; usually members of the group `docker` may use it.")
            }
            _ => unavailable("does not answer; is it running?"),
        },
        other => RuntimeError::fault(other),
    }
}

/// The kind of the operating system's error at the end of the chain.
fn root_cause_kind(error: &(dyn std::error::Error + 'static)) -> Option<std::io::ErrorKind> {
    let mut next = Some(error);
    let mut kind = None;
    while let Some(error) = next {
        if let Some(io) = error.downcast_ref::<std::io::Error>() {
            kind = Some(io.kind());
        }
        next = error.source();
    }
    kind
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn env_with_host(host: &str) -> EngineEnv {
        EngineEnv {
            docker_host: Some(host.into()),
            runtime_directory: None,
        }
    }

    #[test]
    fn sockets_are_tried_in_order_and_a_named_one_alone() {
        let without_host = EngineEnv {
            docker_host: None,
            runtime_directory: Some("/run/user/7".into()),
        };
        let expected = [
            "/var/run/docker.sock",
            "/run/user/7/podman/podman.sock",
            "/run/podman/podman.sock",
        ];
        assert_eq!(without_host.sockets().unwrap(), expected.map(PathBuf::from));
        let named = env_with_host("unix:///x/y.sock").sockets().unwrap();
        assert_eq!(named, [PathBuf::from("/x/y.sock")]);
    }

    #[tokio::test]
    async fn engines_on_other_machines_are_refused() {
        for host in ["tcp://10.0.0.1:2375", "ssh://somewhere", "unix://relative"] {
            let error = EngineClient::find(&env_with_host(host)).await.unwrap_err();
            assert!(matches!(error, RuntimeError::Unsupported(_)), "{host}");
            assert!(error.to_string().contains(host), "{error}");
        }
    }

    #[tokio::test]
    async fn a_missing_socket_and_one_without_a_server_are_unavailable() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("engine.sock");
        let host = format!("unix://{}", socket.display());
        let missing = EngineClient::find(&env_with_host(&host)).await.unwrap_err();
        assert!(matches!(missing, RuntimeError::Unavailable(_)));
        assert!(missing.to_string().contains("does not exist"), "{missing}");
        drop(UnixListener::bind(&socket).unwrap());
        let refused = EngineClient::find(&env_with_host(&host)).await.unwrap_err();
        assert!(matches!(refused, RuntimeError::Unavailable(_)));
        assert!(refused.to_string().contains("is it running"), "{refused}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_engine_that_accepts_and_does_not_answer_times_out() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("engine.sock");
        let _listener = UnixListener::bind(&socket).unwrap();
        let host = format!("unix://{}", socket.display());
        let silent = EngineClient::find(&env_with_host(&host)).await.unwrap_err();
        assert!(silent.to_string().contains("in time"), "{silent}");
    }
}
