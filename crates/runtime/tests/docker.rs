//! The docker driver on a real engine, with an image made of one static program.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "these are tests")]

#[macro_use]
extern crate oubliette_test_harness;

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use oubliette_runtime::contract::{self, Ground, Room};
use oubliette_runtime::{Docker, DockerSettings, Home, ImageSource, Runtime, RuntimeError, State};
use oubliette_test_harness::{Suite, is_named, not_named};
use oubliette_wire::{Ended, User};
use tempfile::TempDir;

#[path = "docker/by_channel.rs"]
mod by_channel;

use by_channel::ByChannel;

/// An engine and an image to test with.
struct Setup {
    docker: Docker,
    ground: Ground,
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
        // The same data directory each time, though it does not exist: what a killed run left is
        // found, and images are built once.
        let home = Home::new(&Path::new(env!("CARGO_TARGET_TMPDIR")).join(test));
        let docker = Docker::connect(home, &DockerSettings::default())
            .await
            .unwrap();
        for left in docker.list().await.unwrap() {
            docker.remove(&left.id).await.unwrap();
        }
        let dockerfile = context(directory.path(), DOCKERFILE);
        let image = source("test", &dockerfile);
        docker.build_image(&image, &|_| {}).await.unwrap();
        let ground = Ground {
            image,
            client: contract::client(),
        };
        Self {
            docker,
            ground,
            directory,
        }
    }
}

/// A directory to build from: the Dockerfile's path.
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

#[test(needs(docker_channel), multi_thread, limit = 300)]
async fn docker_keeps_every_promise_where_no_socket_can_be_mounted() {
    let name = "docker_keeps_every_promise_where_no_socket_can_be_mounted";
    let setup = Setup::new(name).await;
    let carried = ByChannel::new(setup.docker);
    contract::check(&carried, &setup.ground).await;
}

#[test(needs(docker), multi_thread, limit = 300)]
async fn docker_keeps_every_promise_of_a_runtime() {
    let setup = Setup::new("docker_keeps_every_promise_of_a_runtime").await;
    contract::check(&setup.docker, &setup.ground).await;
}

#[test(needs(docker))]
async fn containers_of_another_data_directory_are_not_seen() {
    let setup = Setup::new("containers_of_another_data_directory_are_not_seen").await;
    let room = Room::new(&setup.docker, &setup.ground);
    setup.docker.create(&room.spec).await.unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let other = Docker::connect(Home::new(elsewhere.path()), &DockerSettings::default())
        .await
        .unwrap();
    assert_eq!(other.list().await.unwrap(), []);
    assert_eq!(other.inspect(&room.spec.id).await.unwrap(), None);
    other.remove(&room.spec.id).await.unwrap();
    assert_eq!(room.state().await, Some(State::Created));
    room.remove().await;
}

#[test(needs(docker))]
async fn an_image_that_is_not_there_is_named() {
    let setup = Setup::new("an_image_that_is_not_there_is_named").await;
    let mut room = Room::new(&setup.docker, &setup.ground);
    room.spec.image = source("never-built", Path::new("/x/Dockerfile"));
    let error = setup.docker.create(&room.spec).await.unwrap_err();
    let RuntimeError::NoImage(name) = error else {
        panic!("{error:?}");
    };
    assert!(name.ends_with("-never-built"), "{name}");
    assert_eq!(setup.docker.list().await.unwrap(), []);
}

#[test(needs(docker))]
async fn builds_tell_their_steps_in_plain_lines_and_fail_with_the_builders_words() {
    let setup =
        Setup::new("builds_tell_their_steps_in_plain_lines_and_fail_with_the_builders_words").await;
    // Never built before, so that it is run and not remembered.
    let fresh = setup.directory.path().display();
    let steps = format!("RUN printf '\\033[31mred\\033[0m and %s\\n' {fresh}\n");
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
    let expected = format!("red and {fresh}");
    assert!(lines.contains(&expected), "{lines:?}");
    assert!(!lines.concat().contains('\u{1b}'), "{lines:?}");

    for (steps, said) in [
        ("RUN exit 3\n", "exit 3"),
        ("FLY away\n", "FLY"),
        ("COPY missing /\n", "missing"),
    ] {
        let dockerfile = context(setup.directory.path(), &format!("{DOCKERFILE}{steps}"));
        let image = source("broken", &dockerfile);
        let error = setup.docker.build_image(&image, &|_| {}).await.unwrap_err();
        assert!(matches!(error, RuntimeError::Failed(_)), "{error:?}");
        assert!(error.to_string().contains(said), "{error}");
    }
}

#[test(needs(docker))]
async fn an_image_without_a_dockerfile_is_there_or_fetched() {
    let setup = Setup::new("an_image_without_a_dockerfile_is_there_or_fetched").await;
    let built = setup.docker.build_image(&setup.ground.image, &|_| {});
    let name = built.await.unwrap();
    let there = ImageSource {
        name: "there".to_owned(),
        image: Some(name.clone()),
        dockerfile: None,
    };
    assert_eq!(
        setup.docker.build_image(&there, &|_| {}).await.unwrap(),
        name
    );
    // Nothing listens on the discard port, so the attempt fails without leaving the machine.
    let absent = ImageSource {
        image: Some("localhost:9/no/such:image".to_owned()),
        ..there
    };
    let error = setup
        .docker
        .build_image(&absent, &|_| {})
        .await
        .unwrap_err();
    assert!(matches!(error, RuntimeError::Failed(_)), "{error:?}");
}

#[test(needs(docker))]
async fn processes_run_as_the_user_that_is_asked_for() {
    let setup = Setup::new("processes_run_as_the_user_that_is_asked_for").await;
    let mut room = Room::new(&setup.docker, &setup.ground);
    let mut supervisor = room.up().await;
    let user = Some(User {
        uid: 1000,
        gid: 1000,
    });
    let script = "id -u; id -g; grep CapEff /proc/self/status; echo mine > file";
    let finished = supervisor.run_as(script, user).await;
    let expected = "1000\n1000\nCapEff:\t0000000000000000\n";
    assert_eq!(
        (&*finished.stdout, finished.ended),
        (expected, Ended::Code(0))
    );
    use std::os::unix::fs::MetadataExt;
    let file = std::fs::metadata(room.workspace("file")).unwrap();
    assert_eq!((file.uid(), file.gid()), (1000, 1000));
    room.remove().await;
}

#[test(needs(docker))]
async fn a_path_that_is_missing_on_the_host_fails_and_is_not_made() {
    let setup = Setup::new("a_path_that_is_missing_on_the_host_fails_and_is_not_made").await;
    let mut room = Room::new(&setup.docker, &setup.ground);
    let missing = setup.directory.path().join("missing");
    room.spec.mounts[0].host = missing.clone();
    let error = setup.docker.create(&room.spec).await.unwrap_err();
    assert!(error.to_string().contains("missing"), "{error}");
    assert!(!missing.exists());
    room.remove().await;
}

#[test(needs(docker))]
async fn why_a_container_does_not_start_is_said_and_in_its_logs() {
    let setup = Setup::new("why_a_container_does_not_start_is_said_and_in_its_logs").await;
    let mut room = Room::new(&setup.docker, &setup.ground);
    let plain = room.workspace("plain");
    std::fs::write(&plain, "no program").unwrap();
    room.spec.init.binary = plain;
    setup.docker.create(&room.spec).await.unwrap();
    let error = setup.docker.start(&room.spec.id).await.unwrap_err();
    assert!(matches!(error, RuntimeError::Failed(_)), "{error:?}");
    assert!(error.to_string().contains("permission denied"), "{error}");
    // Podman does not remember.
    if setup.docker.about().starts_with("Docker") {
        let logs = setup.docker.logs(&room.spec.id, 10).await.unwrap();
        assert!(logs.contains("permission denied"), "{logs:?}");
    }
    room.remove().await;
}

const VARIABLE: &str = "OUBLIETTE_TEST_RUNTIMES";
const KNOWN: [&str; 4] = ["sandbox", "docker", "docker-channel", "apple"];

fn missing(runtime: &str) -> Option<String> {
    let remedy = format!("run tests/docker, then set {VARIABLE}=sandbox,{runtime}");
    (is_named(VARIABLE, &KNOWN, runtime) != Some(true))
        .then(|| not_named(VARIABLE, runtime, &remedy))
}

fn main() -> std::process::ExitCode {
    oubliette_test_harness::main(&Suite {
        missing,
        prepare: Vec::new,
    })
}
