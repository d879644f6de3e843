//! The docker driver with a real engine, and an image that consists of one static program.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "these are tests")]

#[macro_use]
extern crate oubliette_test_harness;

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use oubliette_runtime::contract::{self, Fixture, TestContainer};
use oubliette_runtime::{
    DataDirNames, Docker, DockerSettings, ImageSource, RunState, Runtime, RuntimeError,
};
use oubliette_test_harness::{Suite, is_named, not_named};
use oubliette_wire::{ExitStatus, User};
use tempfile::TempDir;

#[path = "docker/channel_docker.rs"]
mod channel_docker;

use channel_docker::ChannelDocker;

/// An engine and an image to test with.
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
    async fn new(test: &str) -> Self {
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
        Self {
            docker,
            fixture,
            directory,
        }
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
        build_args: Default::default(),
        name: name.to_owned(),
        image: None,
        dockerfile: Some(dockerfile.to_owned()),
    }
}

#[test(needs(docker_channel), multi_thread, limit = 300)]
async fn docker_passes_the_contract_where_no_socket_can_be_mounted() {
    let name = "docker_passes_the_contract_where_no_socket_can_be_mounted";
    let setup = Setup::new(name).await;
    let docker = ChannelDocker::new(setup.docker);
    contract::check(&docker, &setup.fixture).await;
}

#[test(needs(docker), multi_thread, limit = 300)]
async fn docker_passes_the_contract() {
    let setup = Setup::new("docker_passes_the_contract").await;
    contract::check(&setup.docker, &setup.fixture).await;
}

#[test(needs(docker))]
async fn containers_of_another_data_directory_are_not_seen() {
    let setup = Setup::new("containers_of_another_data_directory_are_not_seen").await;
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

#[test(needs(docker))]
async fn the_error_names_a_missing_image() {
    let setup = Setup::new("the_error_names_a_missing_image").await;
    let mut container = TestContainer::new(&setup.docker, &setup.fixture);
    container.spec.image = source("never-built", Path::new("/x/Dockerfile"));
    let error = setup.docker.create(&container.spec).await.unwrap_err();
    let RuntimeError::NoImage(name) = error else {
        panic!("{error:?}");
    };
    assert!(name.ends_with("-never-built"), "{name}");
    assert_eq!(setup.docker.list().await.unwrap(), []);
}

#[test(needs(docker))]
async fn builds_report_plain_lines_and_fail_with_the_builders_error() {
    let setup = Setup::new("builds_report_plain_lines_and_fail_with_the_builders_error").await;
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

#[test(needs(docker))]
async fn an_image_without_a_dockerfile_exists_or_is_pulled() {
    let setup = Setup::new("an_image_without_a_dockerfile_exists_or_is_pulled").await;
    let built = setup.docker.build_image(&setup.fixture.image, &|_| {});
    let name = built.await.unwrap();
    let existing = ImageSource {
        build_args: Default::default(),
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
        build_args: Default::default(),
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

#[test(needs(docker))]
async fn processes_run_as_the_requested_user() {
    let setup = Setup::new("processes_run_as_the_requested_user").await;
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

#[test(needs(docker))]
async fn a_mount_of_a_missing_path_fails_and_does_not_create_it() {
    let setup = Setup::new("a_mount_of_a_missing_path_fails_and_does_not_create_it").await;
    let mut container = TestContainer::new(&setup.docker, &setup.fixture);
    let missing = setup.directory.path().join("missing");
    container.spec.mounts[0].host = missing.clone();
    let error = setup.docker.create(&container.spec).await.unwrap_err();
    assert!(error.to_string().contains("missing"), "{error}");
    assert!(!missing.exists());
    container.remove().await;
}

#[test(needs(docker))]
async fn the_reason_of_a_failed_start_is_in_the_error_and_in_the_logs() {
    let setup = Setup::new("the_reason_of_a_failed_start_is_in_the_error_and_in_the_logs").await;
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

const RUNTIMES_VARIABLE: &str = "OUBLIETTE_TEST_RUNTIMES";
const KNOWN_RUNTIMES: [&str; 4] = ["sandbox", "docker", "docker-channel", "apple"];

fn missing(runtime: &str) -> Option<String> {
    let remedy = format!("run tests/docker, then set {RUNTIMES_VARIABLE}=sandbox,{runtime}");
    (is_named(RUNTIMES_VARIABLE, &KNOWN_RUNTIMES, runtime) != Some(true))
        .then(|| not_named(RUNTIMES_VARIABLE, runtime, &remedy))
}

fn main() -> std::process::ExitCode {
    oubliette_test_harness::main(&Suite {
        missing,
        prepare: Vec::new,
    })
}
