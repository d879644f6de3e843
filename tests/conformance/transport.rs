//! The product's transport, with its authentication and its sessions, before the fixture.

use std::net::SocketAddr;
use std::sync::Arc;

use jiff::Timestamp;
use oubliette_engine::{Engine, NewToken, Settings};
use oubliette_model::Scope;
use oubliette_server::ServerSettings;
use oubliette_store::Store;
use oubliette_store::sqlite::Sqlite;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::fixture::{Fixture, Shared};

/// A server in this process. It ends when it is dropped.
pub(crate) struct Transport {
    pub(crate) address: SocketAddr,
    pub(crate) key: String,
    _end: DropGuard,
    _home: TempDir,
}

impl Transport {
    pub(crate) async fn start() -> Self {
        let home = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> =
            Arc::new(Sqlite::open(&home.path().join("oubliette.db")).unwrap());
        let minted = NewToken::generate("suite", Scope::Admin, Timestamp::now(), None).unwrap();
        let hash = minted.key.hash();
        store.add_token(&minted.token, hash, None).await.unwrap();
        let engine = Engine::start(
            store,
            Settings::defaults(home.path()),
            std::future::ready(Err("none".to_owned())),
        )
        .await
        .unwrap();

        let shared = Shared::default();
        let server = ServerSettings::default();
        let app = oubliette_server::app_with(&engine, &server, move || Fixture::new(&shared));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let end = CancellationToken::new();
        let shutdown = end.clone();
        tokio::spawn(
            async move { oubliette_server::serve(listener, app, &server, shutdown).await },
        );
        Self {
            address,
            key: minted.key.reveal().to_owned(),
            _end: end.drop_guard(),
            _home: home,
        }
    }
}
