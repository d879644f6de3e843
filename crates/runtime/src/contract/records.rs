//! What a runtime remembers about containers that have not been started.

use super::container::GRACE;
use super::{Fixture, TestContainer};
use crate::{ContainerId, RunState, Runtime, RuntimeError};

pub(super) async fn a_created_container_does_not_run_and_is_listed_with_its_project(
    runtime: &dyn Runtime,
    fixture: &Fixture,
) {
    let container = TestContainer::new(runtime, fixture);
    runtime.create(&container.spec).await.unwrap();
    let status = container.status().await.unwrap();
    assert_eq!(status.state, RunState::Created);
    assert_eq!(
        (&status.id, &*status.project),
        (&container.spec.id, "a-project")
    );
    assert_eq!(runtime.list().await.unwrap(), [status]);
    assert!(!container.server.has_connection(), "it runs");
    container.remove().await;
}

pub(super) async fn a_missing_container_can_be_inspected_stopped_and_removed(
    runtime: &dyn Runtime,
    _: &Fixture,
) {
    let id = ContainerId::new("no-such-container").unwrap();
    assert_eq!(runtime.inspect(&id).await.unwrap(), None);
    runtime.stop(&id, GRACE).await.unwrap();
    runtime.remove(&id).await.unwrap();
    for error in [
        runtime.start(&id).await.unwrap_err(),
        runtime.logs(&id, 10).await.unwrap_err(),
    ] {
        assert!(matches!(error, RuntimeError::NoContainer(_)), "{error:?}");
    }
}

pub(super) async fn creating_again_replaces_the_record(runtime: &dyn Runtime, fixture: &Fixture) {
    let mut container = TestContainer::new(runtime, fixture);
    runtime.create(&container.spec).await.unwrap();
    container.spec.project = "another-project".to_owned();
    runtime.create(&container.spec).await.unwrap();
    assert_eq!(container.status().await.unwrap().project, "another-project");
    assert_eq!(runtime.list().await.unwrap().len(), 1);
    container.remove().await;
}
