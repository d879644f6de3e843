//! The docker driver with a real engine, and an image that consists of one static program.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "these are tests")]

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use oubliette_runtime::contract::{self, Fixture, TestContainer};
use oubliette_runtime::{
    DataDirNames, Docker, DockerSettings, ImageSource, RunState, Runtime, RuntimeError,
};
use oubliette_wire::{ExitStatus, User};
use tempfile::TempDir;

#[path = "docker/channel_docker.rs"]
mod channel_docker;

use channel_docker::ChannelDocker;

/// An engine and an image to test with; none if the environment does not name the runtime.
struct Setup {
    docker: Docker,
    fixture: Fixture,
    directory: TempDir,
}

const DOCKERFILE: &str = "\
FROM scratch
COPY busybox /bin/busybox
RUN [\"/bin/busybox\", \"--install\", \"-s\", \"/bin\"]
RUN mkdir -p /tmp /workspace && chmod 1777 /tmp
";

impl Setup {
    async fn new(test: &str) -> Option<Self> {
        if !contract::is_requested("docker") && !contract::is_requested("docker-channel") {
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        // The same data directory in each run, so that containers of a killed run are removed and
        // images are built once. It need not exist.
        let names = DataDirNames::new(&Path::new(env!("CARGO_TARGET_TMPDIR")).join(test));
        let docker = Docker::connect(names, &DockerSettings::default())
            .await
            .unwrap();
        for left in docker.list().await.unwrap() {
            docker.remove(&left.id).await.unwrap();
        }
        let dockerfile = context(directory.path(), DOCKERFILE);
        let image = source("test", &dockerfile);
        docker.build_image(&image, &|_| {}).await.unwrap();
        let fixture = Fixture {
            image,
            client: contract::client(),
        };
        Some(Self {
            docker,
            fixture,
            directory,
        })
    }
}

/// Makes a directory to build from and returns the Dockerfile's path.
fn context(directory: &Path, dockerfile: &str) -> PathBuf {
    let context = directory.join("context");
    std::fs::create_dir_all(&context).unwrap();
    let busybox = Path::new("/bin/busybox");
    assert!(busybox.exists(), "no /bin/busybox; run tests/docker");
    std::fs::copy(busybox, context.join("busybox")).unwrap();
    std::fs::write(context.join("Dockerfile"), dockerfile).unwrap();
    context.join("Dockerfile")
}

fn source(name: &str, dockerfile: &Path) -> ImageSource {
    ImageSource {
        name: name.to_owned(),
        image: None,
        dockerfile: Some(dockerfile.to_owned()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn docker_passes_the_contract_where_no_socket_can_be_mounted() {
    if !contract::is_requested("docker-channel") {
        return;
    }
    let name = "docker_passes_the_contract_where_no_socket_can_be_mounted";
    let setup = Setup::new(name).await.unwrap();
    let docker = ChannelDocker::new(setup.docker);
    contract::check(&docker, &setup.fixture).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn docker_passes_the_contract() {
    let Some(setup) = Setup::new("docker_passes_the_contract").await else {
        return;
    };
    contract::check(&setup.docker, &setup.fixture).await;
}

#[tokio::test]
async fn containers_of_another_data_directory_are_not_seen() {
    let Some(setup) = Setup::new("containers_of_another_data_directory_are_not_seen").await else {
        return;
    };
    let container = TestContainer::new(&setup.docker, &setup.fixture);
    setup.docker.create(&container.spec).await.unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let other = Docker::connect(
        DataDirNames::new(elsewhere.path()),
        &DockerSettings::default(),
    )
    .await
    .unwrap();
    assert_eq!(other.list().await.unwrap(), []);
    assert_eq!(other.inspect(&container.spec.id).await.unwrap(), None);
    other.remove(&container.spec.id).await.unwrap();
    assert_eq!(container.state().await, Some(RunState::Created));
    container.remove().await;
}

#[tokio::test]
async fn the_error_names_a_missing_image() {
    let Some(setup) = Setup::new("the_error_names_a_missing_image").await else {
        return;
    };
    let mut container = TestContainer::new(&setup.docker, &setup.fixture);
    container.spec.image = source("never-built", Path::new("/x/Dockerfile"));
    let error = setup.docker.create(&container.spec).await.unwrap_err();
    let RuntimeError::NoImage(name) = error else {
        panic!("{error:?}");
    };
    assert!(name.ends_with("-never-built"), "{name}");
    assert_eq!(setup.docker.list().await.unwrap(), []);
}

#[tokio::test]
async fn builds_report_plain_lines_and_fail_with_the_builders_error() {
    let Some(setup) =
        Setup::new("builds_report_plain_lines_and_fail_with_the_builders_error").await
    else {
        return;
    };
    // Unique, so that the engine runs the step instead of using its cache.
    let unique = setup.directory.path().display();
    let steps = format!("RUN printf '\\033[31mred\\033[0m and %s\\n' {unique}\n");
    let dockerfile = context(setup.directory.path(), &format!("{DOCKERFILE}{steps}"));
    let lines = Mutex::new(Vec::new());
    let progress = |line: &str| lines.lock().unwrap().push(line.to_owned());
    let built = setup
        .docker
        .build_image(&source("steps", &dockerfile), &progress)
        .await
        .unwrap();
    assert!(built.ends_with("-steps"), "{built}");
    let lines = lines.into_inner().unwrap();
    let expected = format!("red and {unique}");
    assert!(lines.contains(&expected), "{lines:?}");
    assert!(!lines.concat().contains('\u{1b}'), "{lines:?}");

    for (steps, expected) in [
        ("RUN exit 3\n", "exit 3"),
        ("FLY away\n", "FLY"),
        ("COPY missing /\n", "missing"),
    ] {
        let dockerfile = context(setup.directory.path(), &format!("{DOCKERFILE}{steps}"));
        let image = source("broken", &dockerfile);
        let error = setup.docker.build_image(&image, &|_| {}).await.unwrap_err();
        assert!(matches!(error, RuntimeError::Failed(_)), "{error:?}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[tokio::test]
async fn an_image_without_a_dockerfile_exists_or_is_pulled() {
    let Some(setup) = Setup::new("an_image_without_a_dockerfile_exists_or_is_pulled").await else {
        return;
    };
    let built = setup.docker.build_image(&setup.fixture.image, &|_| {});
    let name = built.await.unwrap();
    let existing = ImageSource {
        name: "existing".to_owned(),
        image: Some(name.clone()),
        dockerfile: None,
    };
    assert_eq!(
        setup.docker.build_image(&existing, &|_| {}).await.unwrap(),
        name
    );
    // Nothing listens on the discard port, so the attempt fails without leaving the machine.
    let absent = ImageSource {
        image: Some("localhost:9/no/such:image".to_owned()),
        ..existing
    };
    let error = setup
        .docker
        .build_image(&absent, &|_| {})
        .await
        .unwrap_err();
    assert!(matches!(error, RuntimeError::Failed(_)), "{error:?}");
}

#[tokio::test]
async fn processes_run_as_the_requested_user() {
    let Some(setup) = Setup::new("processes_run_as_the_requested_user").await else {
        return;
    };
    let mut container = TestContainer::new(&setup.docker, &setup.fixture);
    let mut supervisor = container.create_and_start().await;
    let user = Some(User {
        uid: 1000,
        gid: 1000,
    });
    let script = "id -u; id -g; grep CapEff /proc/self/status; echo mine > file";
    let finished = supervisor.run_as(script, user).await;
    let expected = "1000\n1000\nCapEff:\t0000000000000000\n";
    assert_eq!(
        (&*finished.stdout, finished.ended),
        (expected, ExitStatus::Code(0))
    );
    use std::os::unix::fs::MetadataExt;
    let file = std::fs::metadata(container.workspace_path("file")).unwrap();
    assert_eq!((file.uid(), file.gid()), (1000, 1000));
    container.remove().await;
}

#[tokio::test]
async fn a_mount_of_a_missing_path_fails_and_does_not_create_it() {
    let Some(setup) = Setup::new("a_mount_of_a_missing_path_fails_and_does_not_create_it").await
    else {
        return;
    };
    let mut container = TestContainer::new(&setup.docker, &setup.fixture);
    let missing = setup.directory.path().join("missing");
    container.spec.mounts[0].host = missing.clone();
    let error = setup.docker.create(&container.spec).await.unwrap_err();
    assert!(error.to_string().contains("missing"), "{error}");
    assert!(!missing.exists());
    container.remove().await;
}

#[tokio::test]
async fn the_reason_of_a_failed_start_is_in_the_error_and_in_the_logs() {
    let Some(setup) =
        Setup::new("the_reason_of_a_failed_start_is_in_the_error_and_in_the_logs").await
    else {
        return;
    };
    let mut container = TestContainer::new(&setup.docker, &setup.fixture);
    let not_executable = container.workspace_path("not-executable");
    std::fs::write(&not_executable, "no program").unwrap();
    container.spec.init.binary = not_executable;
    setup.docker.create(&container.spec).await.unwrap();
    let error = setup.docker.start(&container.spec.id).await.unwrap_err();
    assert!(matches!(error, RuntimeError::Failed(_)), "{error:?}");
    assert!(error.to_string().contains("permission denied"), "{error}");
    // Podman does not keep the error.
    if setup.docker.description().starts_with("Docker") {
        let logs = setup.docker.logs(&container.spec.id, 10).await.unwrap();
        assert!(logs.contains("permission denied"), "{logs:?}");
    }
    container.remove().await;
}

#[tokio::test]
async fn commands_start_within_milliseconds() {
    let Some(setup) = Setup::new("commands_start_within_milliseconds").await else {
        return;
    };
    let mut container = TestContainer::new(&setup.docker, &setup.fixture);
    let creating_at = Instant::now();
    setup.docker.create(&container.spec).await.unwrap();
    let created = creating_at.elapsed();
    let mut supervisor = container.start().await;
    let started = creating_at.elapsed() - created;
    let mut runs: Vec<Duration> = Vec::new();
    for _ in 0..50 {
        let started_at = Instant::now();
        supervisor.run("exit 0").await;
        runs.push(started_at.elapsed());
    }
    runs.sort();
    let stopping_at = Instant::now();
    container.stop().await;
    let stopped = stopping_at.elapsed();
    eprintln!(
        "{}: create {created:?}, start to handshake {started:?}, command {:?} (p90 {:?}), stop {stopped:?}",
        setup.docker.description(),
        runs[25],
        runs[45]
    );
    // Far above what a command takes, far below an exec through the engine.
    assert!(runs[25] < Duration::from_millis(50), "{:?}", runs[25]);
    container.remove().await;
}
