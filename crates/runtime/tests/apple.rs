//! The apple driver with a fake `container` command.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "these are tests")]

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use oubliette_runtime::{
    Apple, ContainerId, ContainerLimits, ContainerSpec, DataDirNames, ImageSource, Init, Network,
    Program, RunState, Runtime, RuntimeError,
};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// A fake command with its own state and record of calls.
struct FakeContainerCommand {
    directory: TempDir,
}

impl FakeContainerCommand {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/apple/container");
        let text = format!(
            "#!/bin/sh\nFAKE_STATE_DIR={} exec {} \"$@\"\n",
            directory.path().display(),
            script.display()
        );
        let program = directory.path().join("container");
        std::fs::write(&program, text).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        Self { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn set(&self, name: &str) {
        std::fs::write(self.path(name), "").unwrap();
    }

    async fn connect(&self) -> oubliette_runtime::Result<Apple> {
        let names = DataDirNames::new(Path::new("/a/data/directory"));
        Apple::connect_with(&self.path("container"), names).await
    }

    /// The calls since the last time, one line each.
    fn calls(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.path("calls")).unwrap_or_default();
        let _ = std::fs::remove_file(self.path("calls"));
        text.split("--\n")
            .filter(|call| !call.is_empty())
            .map(|call| call.lines().collect::<Vec<_>>().join(" "))
            .collect()
    }
}

fn spec() -> ContainerSpec {
    let key = ("OUBLIETTE_CONTAINER_KEY".to_owned(), "secret".to_owned());
    ContainerSpec {
        id: ContainerId::new("c1").unwrap(),
        project: "p1".to_owned(),
        image: image(),
        mounts: Vec::new(),
        protected: Vec::new(),
        hostname: "c1".to_owned(),
        network: Network::Bridge,
        limits: ContainerLimits::default(),
        users_of: None,
        init: Init {
            binary: "/opt/client".into(),
            inside: "/bin/oubliette-client".into(),
            args: vec!["init".to_owned()],
            env: BTreeMap::from([key]),
        },
    }
}

fn image() -> ImageSource {
    ImageSource {
        build_args: Default::default(),
        name: "dev".to_owned(),
        image: None,
        dockerfile: Some("/images/dev/Dockerfile".into()),
    }
}

#[tokio::test]
async fn on_other_systems_it_is_unsupported() {
    if cfg!(target_os = "macos") {
        return;
    }
    let error = Apple::connect(DataDirNames::new(Path::new("/h"))).await;
    assert!(matches!(error, Err(RuntimeError::Unsupported(_))));
}

#[tokio::test]
async fn stopped_services_and_a_missing_command_are_unavailable() {
    let fake = FakeContainerCommand::new();
    fake.set("down");
    let error = fake.connect().await.unwrap_err();
    assert!(matches!(error, RuntimeError::Unavailable(_)), "{error:?}");
    assert!(error.to_string().contains("container system start"));
    let names = DataDirNames::new(Path::new("/h"));
    let missing = Apple::connect_with(Path::new("/no/container"), names).await;
    assert!(matches!(missing, Err(RuntimeError::Unavailable(_))));
}

#[tokio::test]
async fn a_container_is_created_started_stopped_and_removed() {
    let fake = FakeContainerCommand::new();
    fake.set("image");
    let apple = fake.connect().await.unwrap();
    assert!(apple.description().contains("1.2.2"));
    let (spec, id) = (spec(), spec().id);

    apple.create(&spec).await.unwrap();
    let status = apple.inspect(&id).await.unwrap().unwrap();
    assert_eq!((status.state, &*status.project), (RunState::Created, "p1"));
    let create = fake.calls().into_iter().find(|c| c.starts_with("create"));
    let create = create.unwrap();
    assert!(create.ends_with("init key=secret"), "{create}");
    assert_eq!(create.matches("secret").count(), 1, "{create}");

    let name = create.split(' ').nth(2).unwrap().to_owned();
    apple.start(&id).await.unwrap();
    assert_eq!(state(&apple, &id).await, Some(RunState::Running));
    apple.create(&spec).await.unwrap();
    assert_eq!(state(&apple, &id).await, Some(RunState::Running));
    apple.stop(&id, STOP_TIMEOUT).await.unwrap();
    assert_eq!(state(&apple, &id).await, Some(RunState::Stopped));
    let stop = format!("stop --signal SIGTERM --time 3 {name} key=");
    assert!(fake.calls().contains(&stop));

    assert_eq!(apple.logs(&id, 5).await.unwrap(), "a line of PID 1\n");
    apple.create(&spec).await.unwrap();
    assert_eq!(state(&apple, &id).await, Some(RunState::Created));
    apple.remove(&id).await.unwrap();
    assert_eq!(apple.list().await.unwrap(), []);
    let delete = format!("delete --force {name} key=");
    assert!(fake.calls().contains(&delete));
}

async fn state(apple: &Apple, id: &ContainerId) -> Option<RunState> {
    let status = apple.inspect(id).await.unwrap();
    status.map(|status| status.state)
}

#[tokio::test]
async fn a_missing_container_can_be_inspected_stopped_and_removed() {
    let fake = FakeContainerCommand::new();
    let apple = fake.connect().await.unwrap();
    let id = spec().id;
    assert_eq!(apple.inspect(&id).await.unwrap(), None);
    apple.stop(&id, STOP_TIMEOUT).await.unwrap();
    apple.remove(&id).await.unwrap();
    for error in [
        apple.start(&id).await.unwrap_err(),
        apple.logs(&id, 5).await.unwrap_err(),
    ] {
        assert!(matches!(error, RuntimeError::NoContainer(_)), "{error:?}");
    }
    // Only queries: a wrong name must never reach a command that ends something.
    assert!(fake.calls().iter().all(|call| {
        ["list", "system", "--version"]
            .iter()
            .any(|word| call.starts_with(word))
    }));
}

#[tokio::test]
async fn a_build_reports_its_lines_and_errors_name_missing_images() {
    let fake = FakeContainerCommand::new();
    let apple = fake.connect().await.unwrap();
    let error = apple.create(&spec()).await.unwrap_err();
    assert!(matches!(error, RuntimeError::NoImage(_)), "{error:?}");

    fake.set("broken");
    let error = apple.build_image(&image(), &|_| {}).await.unwrap_err();
    assert!(error.to_string().contains("build failed"), "{error}");

    std::fs::remove_file(fake.path("broken")).unwrap();
    let lines = Mutex::new(Vec::new());
    let progress = |line: &str| lines.lock().unwrap().push(line.to_owned());
    let name = apple.build_image(&image(), &progress).await.unwrap();
    assert!(name.starts_with("oubliette-") && name.ends_with("-dev"));
    let mut lines = lines.into_inner().unwrap();
    lines.sort();
    let expected = ["#1 [1/2] FROM debian", "Successfully built"];
    assert_eq!(lines, expected);
    apple.create(&spec()).await.unwrap();

    std::fs::write(fake.path("image"), format!("{name}:latest\n")).unwrap();
    apple.remove_images().await.unwrap();
    let deleted = format!("image delete {name}:latest");
    let calls = fake.calls();
    let deletions: Vec<&String> = calls
        .iter()
        .filter(|call| call.starts_with("image delete"))
        .collect();
    assert_eq!(deletions.len(), 1, "{calls:?}");
    assert!(deletions[0].starts_with(&deleted), "{deletions:?}");
    fake.set("image");

    let named = ImageSource {
        build_args: Default::default(),
        image: Some("debian:12".to_owned()),
        dockerfile: None,
        ..image()
    };
    assert_eq!(
        apple.build_image(&named, &|_| {}).await.unwrap(),
        "debian:12"
    );
    std::fs::remove_file(fake.path("image")).unwrap();
    let error = apple.build_image(&named, &|_| {}).await.unwrap_err();
    assert!(error.to_string().contains("failed to resolve"), "{error}");
}

#[tokio::test]
async fn dropping_a_channel_ends_its_program() {
    let fake = FakeContainerCommand::new();
    fake.set("image");
    let apple = fake.connect().await.unwrap();
    let id = spec().id;
    apple.create(&spec()).await.unwrap();
    apple.start(&id).await.unwrap();
    let program = Program {
        argv: ["/bin/sh", "-c", "echo $$; exec cat"]
            .map(str::to_owned)
            .to_vec(),
        unset_env: vec!["SECRET".to_owned()],
    };
    let channel = apple.channel(&id, &program).await.unwrap();
    let mut channel = BufReader::new(channel);
    let mut pid = String::new();
    channel.read_line(&mut pid).await.unwrap();
    channel.write_all(b"there and back\n").await.unwrap();
    let mut back = String::new();
    channel.read_line(&mut back).await.unwrap();
    assert_eq!(back, "there and back\n");
    let calls = fake.calls();
    let exec = calls.iter().find(|call| call.starts_with("exec")).unwrap();
    assert!(exec.contains("--env SECRET= "), "{exec}");
    drop(channel);
    let process = Path::new("/proc").join(pid.trim());
    let ended = async {
        while std::fs::read_to_string(process.join("stat")).is_ok_and(|stat| !stat.contains(") Z"))
        {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), ended)
        .await
        .expect("the program still runs");
}
