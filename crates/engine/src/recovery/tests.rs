//! Recovery on a real engine and store, with a runtime that fails.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use oubliette_model::{Scope, SessionId, WorkspaceId};
use oubliette_runtime::{
    Capabilities, Channel, ContainerId, ContainerSpec, ContainerStatus, Enforcement, ImageSource,
    Networks, Program, Progress, ProtectedPath, RunState, Runtime, RuntimeError,
};
use oubliette_store::sqlite::Sqlite;
use oubliette_store::{NewSession, Session, SessionMessage, SessionTreeLimits};
use parking_lot::Mutex;
use serde_json::json;
use tempfile::TempDir;
use uuid::Uuid;

use crate::{Actor, Call, Engine, EngineError, NewToken, RelayListeners, Settings, Stream};

const DEADLINE: Duration = Duration::from_secs(30);

/// Lists containers of a dead server. It cannot create any, and can be set to fail to list and to remove.
#[derive(Debug)]
struct FailingRuntime {
    capabilities: Capabilities,
    listed: Vec<ContainerId>,
    /// How many calls of `list` still fail.
    list_failures: AtomicUsize,
    /// The container that cannot be removed.
    stuck: ContainerId,
    is_stuck: AtomicBool,
    removed: Mutex<Vec<ContainerId>>,
}

fn failure() -> RuntimeError {
    RuntimeError::Failed("the runtime failed".to_owned())
}

fn container(name: &str) -> ContainerId {
    ContainerId::new(name).unwrap()
}

impl FailingRuntime {
    fn new(list_failures: usize) -> Arc<Self> {
        Arc::new(Self {
            capabilities: Capabilities {
                name: "sandbox",
                images: false,
                networks: Networks {
                    none: true,
                    host: true,
                    bridge: false,
                    policy: false,
                },
                memory_limit: Enforcement::NotEnforced,
                cpu_limit: Enforcement::NotEnforced,
                process_limit: Enforcement::NotEnforced,
                disk_limit: Enforcement::NotEnforced,
                host_sockets: true,
                notes: Vec::new(),
            },
            listed: ["first", "stuck", "third"].map(container).to_vec(),
            list_failures: AtomicUsize::new(list_failures),
            stuck: container("stuck"),
            is_stuck: AtomicBool::new(true),
            removed: Mutex::default(),
        })
    }

    async fn wait_until_removed(&self, names: &[&str]) {
        let wanted: HashSet<ContainerId> = names.iter().map(|name| container(name)).collect();
        let removal = async {
            while self.removed.lock().iter().cloned().collect::<HashSet<_>>() != wanted {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let removed = tokio::time::timeout(DEADLINE, removal).await;
        assert!(removed.is_ok(), "{:?}", self.removed.lock());
    }
}

#[async_trait]
impl Runtime for FailingRuntime {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn create(&self, _: &ContainerSpec) -> Result<(), RuntimeError> {
        Err(failure())
    }

    async fn start(&self, _: &ContainerId) -> Result<(), RuntimeError> {
        Err(failure())
    }

    async fn protect(&self, _: &ContainerId, _: &[ProtectedPath]) -> Result<(), RuntimeError> {
        Ok(())
    }

    async fn stop(&self, _: &ContainerId, _: Duration) -> Result<(), RuntimeError> {
        Ok(())
    }

    async fn remove(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        if *id == self.stuck && self.is_stuck.load(Ordering::SeqCst) {
            return Err(failure());
        }
        self.removed.lock().push(id.clone());
        Ok(())
    }

    async fn inspect(&self, _: &ContainerId) -> Result<Option<ContainerStatus>, RuntimeError> {
        Ok(None)
    }

    async fn list(&self) -> Result<Vec<ContainerStatus>, RuntimeError> {
        let left = self.list_failures.load(Ordering::SeqCst);
        if left > 0 {
            self.list_failures.store(left - 1, Ordering::SeqCst);
            return Err(failure());
        }
        let status = |id: &ContainerId| ContainerStatus {
            id: id.clone(),
            project: String::new(),
            state: RunState::Running,
            memory_events: None,
            can_take_server_port: false,
        };
        Ok(self.listed.iter().map(status).collect())
    }

    async fn logs(&self, _: &ContainerId, _: usize) -> Result<String, RuntimeError> {
        Ok(String::new())
    }

    async fn channel(
        &self,
        _: &ContainerId,
        _: &Program,
    ) -> Result<Box<dyn Channel>, RuntimeError> {
        Err(failure())
    }

    async fn build_image(&self, _: &ImageSource, _: Progress<'_>) -> Result<String, RuntimeError> {
        Err(failure())
    }

    async fn take_ownership(&self, _: &Path, _: &Path) -> Result<bool, RuntimeError> {
        Ok(false)
    }

    async fn remove_images(&self) -> Result<(), RuntimeError> {
        Ok(())
    }
}

/// A relay that no container connects to.
#[derive(Debug)]
struct UnusedRelay;

/// A relay that cannot listen.
#[derive(Debug)]
struct FaultyRelay;

#[async_trait]
impl RelayListeners for FaultyRelay {
    async fn open(&self, _: &ContainerId, _: Option<&Path>) -> std::io::Result<()> {
        Err(std::io::Error::other("no more sockets"))
    }

    fn admit(&self, _: &ContainerId, _: Box<dyn Stream>) {}

    fn close(&self, _: &ContainerId) {}
}

#[async_trait]
impl RelayListeners for UnusedRelay {
    async fn open(&self, _: &ContainerId, _: Option<&Path>) -> std::io::Result<()> {
        Ok(())
    }

    fn admit(&self, _: &ContainerId, _: Box<dyn Stream>) {}

    fn close(&self, _: &ContainerId) {}
}

async fn engine(home: &TempDir, runtime: Arc<FailingRuntime>) -> Engine {
    let store = Sqlite::open(&home.path().join("oubliette.db")).unwrap();
    let settings = Settings::defaults(home.path());
    let runtime: Arc<dyn Runtime> = runtime;
    Engine::start(Arc::new(store), settings, std::future::ready(Ok(runtime)))
        .await
        .unwrap()
}

/// Stores a session with a message as a server does that dies before the agent starts.
async fn add_unsettled_session(engine: &Engine) -> SessionId {
    let NewToken { token, key } =
        NewToken::generate("admin", Scope::Admin, engine.now(), None).unwrap();
    let store = engine.store();
    store.add_token(&token, key.hash(), None).await.unwrap();
    let actor = Actor {
        token_id: token.id,
        scope: Scope::Admin,
        session: None,
        unattached: false,
        address: None,
    };
    let parameters = json!({ "name": "one", "init_git": false });
    let arguments = parameters.as_object().cloned().unwrap();
    let created = engine
        .call(&actor, "project_create", arguments, Call::new())
        .await
        .unwrap();
    let project = created["project_id"].as_str().unwrap().parse().unwrap();
    let (id, now) = (SessionId::new(Uuid::new_v4()), engine.now());
    let new = NewSession {
        session: Session::new(id, project, WorkspaceId::default(), "demo", now),
        message: Some(SessionMessage {
            id: 0,
            text: "hello".to_owned(),
            attachments: Vec::new(),
            declaration: None,
            change_id: None,
            sender_scope: None,
            wait_id: None,
            created_at: now,
        }),
        join: None,
        call: None,
        run: None,
        events: Vec::new(),
        limits: SessionTreeLimits {
            depth: 3,
            sessions: 9,
            cost_usd: 1.0,
            spawns_per_minute: 9,
        },
    };
    store.spawn_session(&new, None).await.unwrap();
    id
}

#[tokio::test]
async fn a_container_that_cannot_be_removed_is_retried_and_stops_neither_others_nor_sessions() {
    let home = tempfile::tempdir().unwrap();
    let dead = engine(&home, FailingRuntime::new(0)).await;
    let session = add_unsettled_session(&dead).await;
    dead.stop().await;
    drop(dead);

    let runtime = FailingRuntime::new(1);
    let engine = engine(&home, runtime.clone()).await;
    let before = engine.store().session(session).await.unwrap().unwrap();
    assert!(!before.status.is_ended());
    engine
        .containers()
        .accept_connections(Arc::new(UnusedRelay));
    runtime.wait_until_removed(&["first", "third"]).await;
    assert_eq!(runtime.list_failures.load(Ordering::SeqCst), 0);
    let ended = engine
        .sessions()
        .wait_until(session, DEADLINE, |session| session.status.is_ended())
        .await
        .unwrap();
    let after = engine.store().session(session).await;
    assert!(ended, "it fails, because no container starts: {after:?}");

    runtime.is_stuck.store(false, Ordering::SeqCst);
    runtime
        .wait_until_removed(&["first", "stuck", "third"])
        .await;
    engine.stop().await;
}

#[tokio::test]
async fn a_turn_that_internal_errors_keep_from_starting_fails_after_some_tries() {
    let home = tempfile::tempdir().unwrap();
    let dead = engine(&home, FailingRuntime::new(0)).await;
    let session = add_unsettled_session(&dead).await;
    dead.stop().await;
    drop(dead);

    let engine = engine(&home, FailingRuntime::new(0)).await;
    engine
        .containers()
        .accept_connections(Arc::new(FaultyRelay));
    let ended = engine
        .sessions()
        .wait_until(session, DEADLINE, |session| session.status.is_ended())
        .await
        .unwrap();
    let after = engine.store().session(session).await.unwrap().unwrap();
    assert!(ended, "{after:?}");
    let error = after.error.unwrap_or_default();
    assert!(error.contains("could not start the turn"), "{error}");
    let waiting = engine.store().next_message(session).await.unwrap();
    assert!(waiting.is_none(), "{waiting:?}");
    engine.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_item_that_fails_is_retried_with_growing_pauses_after_the_others() {
    let home = tempfile::tempdir().unwrap();
    let engine = engine(&home, FailingRuntime::new(0)).await;
    static ATTEMPTS: Mutex<Vec<(u32, tokio::time::Instant)>> = Mutex::new(Vec::new());
    let repair = |_: Engine, item: u32| async move {
        let mut attempts = ATTEMPTS.lock();
        attempts.push((item, tokio::time::Instant::now()));
        let failures = attempts.iter().filter(|(other, _)| *other == 2).count();
        if item == 2 && failures < 4 {
            return Err(EngineError::Failed("not yet".to_owned()));
        }
        Ok(())
    };
    engine.repair_each("number", [1, 2, 3], repair).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let attempts = ATTEMPTS.lock().clone();
    let items: Vec<u32> = attempts.iter().map(|(item, _)| *item).collect();
    assert_eq!(items, [1, 2, 3, 2, 2, 2]);
    let pause = |from: usize, to: usize| attempts[to].1.duration_since(attempts[from].1).as_secs();
    assert_eq!((pause(1, 3), pause(3, 4), pause(4, 5)), (1, 1, 2));
    engine.stop().await;
}
