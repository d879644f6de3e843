//! What processes in a container can see, reach and change.

use oubliette_wire::ExitStatus;

use super::{Fixture, TestContainer};
use crate::{Mount, Network, Runtime, RuntimeError};

pub(super) async fn processes_have_few_privileges_and_see_only_each_other(
    runtime: &dyn Runtime,
    fixture: &Fixture,
) {
    let mut container = TestContainer::new(runtime, fixture);
    let mut supervisor = container.create_and_start().await;
    let status = supervisor.run("cat /proc/self/status").await.stdout;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.expect(name).trim()
    };
    assert_eq!(field("NoNewPrivs:"), "1");
    let allowed = oubliette_sandbox::container_capability_mask();
    for name in ["CapEff:", "CapPrm:", "CapBnd:"] {
        let held = u64::from_str_radix(field(name), 16).unwrap();
        assert_eq!(held & !allowed, 0, "{name} {held:x}");
    }
    // Only the supervisor, the shell and its commands: the host's processes are not visible.
    let listing = supervisor
        .run("echo $PPID; ls -d /proc/[0-9]* | wc -l")
        .await;
    let numbers: Vec<u32> = listing
        .stdout
        .lines()
        .map(|line| line.trim().parse().unwrap())
        .collect();
    assert_eq!(numbers[0], 1, "the supervisor is not PID 1");
    assert!(numbers[1] <= 5, "{} processes are visible", numbers[1]);
    let key = supervisor.run("cat /proc/1/environ").await;
    assert!(
        !key.stdout.contains("key of the suite"),
        "the container's key can be read"
    );
    container.remove().await;
}

pub(super) async fn without_a_network_there_is_only_loopback(
    runtime: &dyn Runtime,
    fixture: &Fixture,
) {
    if !runtime.capabilities().networks.none {
        return;
    }
    let mut container = TestContainer::new(runtime, fixture);
    container.spec.network = Network::None;
    let mut supervisor = container.create_and_start().await;
    let devices = supervisor.run("tail -n +3 /proc/net/dev").await.stdout;
    let names: Vec<&str> = devices
        .lines()
        .filter_map(|line| Some(line.split_once(':')?.0.trim()))
        .collect();
    assert_eq!(names, ["lo"]);
    container.remove().await;
}

pub(super) async fn a_network_that_is_not_offered_is_refused(
    runtime: &dyn Runtime,
    fixture: &Fixture,
) {
    let offered = runtime.capabilities().networks;
    for (network, offered) in [
        (Network::None, offered.none),
        (Network::Host, offered.host),
        (Network::Bridge, offered.bridge),
        (Network::Policy, offered.policy),
    ] {
        let mut container = TestContainer::new(runtime, fixture);
        container.spec.network = network;
        if offered {
            let mut supervisor = container.create_and_start().await;
            assert_eq!(supervisor.run("echo well").await.stdout, "well\n");
        } else {
            let error = runtime.create(&container.spec).await.unwrap_err();
            assert!(matches!(error, RuntimeError::Unsupported(_)), "{error:?}");
        }
        container.remove().await;
    }
}

pub(super) async fn read_only_mounts_cannot_be_written(runtime: &dyn Runtime, fixture: &Fixture) {
    let mut container = TestContainer::new(runtime, fixture);
    let host = container.workspace_path("shared");
    std::fs::create_dir(&host).unwrap();
    std::fs::write(host.join("file"), "as it was\n").unwrap();
    container.spec.mounts.push(Mount {
        host: host.clone(),
        inside: "/shared".into(),
        read_only: true,
        owner: None,
    });
    let mut supervisor = container.create_and_start().await;
    assert_eq!(
        supervisor.run("cat /shared/file").await.stdout,
        "as it was\n"
    );
    let client = container.spec.init.inside.display();
    for script in [
        "echo x >> /shared/file".to_owned(),
        "echo x > /shared/new".to_owned(),
        "rm /shared/file".to_owned(),
        // Opened for writing but not changed: it is the host's own program.
        format!(": >> {client}"),
        format!("rm {client}"),
    ] {
        let finished = supervisor.run(&script).await;
        assert_ne!(finished.ended, ExitStatus::Code(0), "{script}");
    }
    let file = std::fs::read_to_string(host.join("file"));
    assert_eq!(file.unwrap(), "as it was\n");
    container.remove().await;
}

pub(super) async fn the_workspace_is_shared_both_ways(runtime: &dyn Runtime, fixture: &Fixture) {
    let mut container = TestContainer::new(runtime, fixture);
    std::fs::write(container.workspace_path("from-host"), "host\n").unwrap();
    let mut supervisor = container.create_and_start().await;
    let script = "cat from-host; echo more >> from-host; mkdir -p a/b; echo inside > a/b/file";
    let finished = supervisor.run(script).await;
    assert_eq!(
        (&*finished.stdout, &*finished.stderr, finished.ended),
        ("host\n", "", ExitStatus::Code(0))
    );
    let read = |name| std::fs::read_to_string(container.workspace_path(name)).unwrap();
    assert_eq!(read("from-host"), "host\nmore\n");
    assert_eq!(read("a/b/file"), "inside\n");
    // The server can change and delete files that the container made.
    std::fs::write(container.workspace_path("a/b/file"), "changed\n").unwrap();
    assert_eq!(supervisor.run("cat a/b/file").await.stdout, "changed\n");
    std::fs::remove_dir_all(container.workspace_path("a")).unwrap();
    assert_eq!(supervisor.run("ls").await.stdout, "from-host\n");
    container.remove().await;
}
