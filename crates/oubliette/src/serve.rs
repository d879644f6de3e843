//! `oubliette serve`: build, announce, serve, drain.

use std::net::SocketAddr;
use std::sync::Arc;

use oubliette_engine::{Engine, NewToken};
use oubliette_model::Scope;
use oubliette_store::Store;
use oubliette_store::sqlite::Sqlite;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::containers;
use crate::failure::Failure;
use crate::home::{Hold, Home, Running};
use crate::logs;
use crate::terminal::say;

/// Start the server
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Where to listen, instead of `server.listen` (127.0.0.1:7433)
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    #[arg(long, value_name = "NAME", help = runtime_help())]
    runtime: Option<String>,
    /// How the log on stderr looks
    #[arg(long, value_enum, default_value = "text")]
    log: logs::Format,
}

fn runtime_help() -> String {
    format!(
        "Runtime that makes containers, instead of `runtime` (auto):\n{}",
        oubliette_runtime::help()
    )
}

/// Open files that are enough for thousands of callers and agents.
const FILES: u64 = 65_536;

pub(crate) fn run(home: &Home, options: &Options) -> Result<(), Failure> {
    logs::start(options.log);
    allow_files();
    let hold = home.hold()?;
    let mut config = Config::load(&home.config_file(), std::env::vars())?;
    config.server.listen = options.listen.unwrap_or(config.server.listen);
    config.runtime = options.runtime.clone().unwrap_or(config.runtime);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::of("cannot start", &error))?;
    let served = runtime.block_on(serve(home, &config));
    drop(hold);
    served
}

/// Every caller and every stream of an agent is an open file, and the usual limit is low. It may be raised
/// as far as the machine's owner lets it.
fn allow_files() {
    let now = getrlimit(Resource::Nofile);
    let most = now.maximum.map_or(FILES, |most| most.min(FILES));
    if now.current.is_some_and(|current| current < most) {
        let wanted = Rlimit {
            current: Some(most),
            ..now
        };
        if let Err(error) = setrlimit(Resource::Nofile, wanted) {
            tracing::warn!(%error, "few files can be open at once; `ulimit -n` changes that");
        }
    }
}

async fn serve(home: &Home, config: &Config) -> Result<(), Failure> {
    let shutdown = stop_signals()?;
    let opened = Opened {
        stays: true,
        ..Opened::open(home, config).await?
    };
    greet(home, &opened.url, opened.first);
    tracing::info!(url = %opened.url, data_dir = %home.path().display(), "ready");
    opened.serve(home.clone(), config.clone(), shutdown).await;
    tracing::info!("stopped");
    Ok(())
}

/// A server that listens and does not answer yet.
struct Opened {
    engine: Engine,
    listener: TcpListener,
    url: String,
    /// Whether it is the first on this data directory.
    first: bool,
    /// Whether schedules are looked after. A server that ends with another command would end what they
    /// begin.
    stays: bool,
}

impl Opened {
    async fn open(home: &Home, config: &Config) -> Result<Self, Failure> {
        let address = config.server.listen;
        let store: Arc<dyn Store> = Arc::new(Sqlite::open(&home.database())?);
        let first = ensure_admin(home, &*store).await?;
        let (name, directory) = (config.runtime.clone(), home.path().to_owned());
        let docker = config.docker.clone();
        let runtime = async move { containers::open_with_client(&name, &directory, &docker).await };
        let engine = Engine::start(store, config.settings(home.path()), runtime)
            .await
            .map_err(|error| Failure::of("the engine could not start", &error))?;
        let listener = TcpListener::bind(address).await.map_err(|error| {
            Failure::of(
                format!("cannot listen on {address}; choose another with --listen"),
                &error,
            )
        })?;
        let address = listener
            .local_addr()
            .map_err(|error| Failure::of("cannot listen", &error))?;
        let url = format!("http://{address}/mcp");
        home.announce(&Running {
            url: url.clone(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        })?;
        Ok(Self {
            engine,
            listener,
            url,
            first,
            stays: false,
        })
    }

    /// Serves until `shutdown`, and leaves containers and agents running.
    async fn serve(self, home: Home, config: Config, shutdown: CancellationToken) {
        let engine = self.engine;
        let closing = CancellationToken::new();
        let relay = Arc::new(oubliette_server::RelayServer::new(engine.clone()));
        engine.containers().accept_connections(relay.clone());
        if self.stays {
            engine.schedules().start();
        }
        let (name, directory) = (config.runtime.clone(), home.path().to_owned());
        let docker = config.docker.clone();
        let looking = containers::retry_until_found(engine.clone(), name, directory, docker);
        tokio::spawn(closing.clone().run_until_cancelled_owned(looking));
        let app = oubliette_server::app(&engine, &config.server, &config.mcp);
        oubliette_server::serve(self.listener, app, &config.server, shutdown).await;
        home.withdraw();
        closing.cancel();
        relay.shut_down().await;
        engine.stop().await;
    }
}

/// A server inside another command, for as long as that runs.
#[derive(Debug)]
pub(crate) struct Server {
    engine: Engine,
    shutdown: CancellationToken,
    serving: JoinHandle<()>,
    _hold: Hold,
}

impl Server {
    pub(crate) async fn start(home: &Home) -> Result<Self, Failure> {
        let hold = home.hold()?;
        let mut config = Config::load(&home.config_file(), std::env::vars())?;
        // Any free port: a server that comes later finds the usual one free.
        config.server.listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let opened = Opened::open(home, &config).await?;
        let (engine, shutdown) = (opened.engine.clone(), CancellationToken::new());
        let serving = tokio::spawn(opened.serve(home.clone(), config, shutdown.clone()));
        Ok(Self {
            engine,
            shutdown,
            serving,
            _hold: hold,
        })
    }

    /// Ends it, and its containers: nobody is there to look after them.
    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        let _ = self.serving.await;
        if let Err(error) = self.engine.containers().stop_all().await {
            eprintln!("some containers still run; `oubliette down` ends them: {error}");
        }
    }
}

/// SIGTERM and SIGINT stop the server; a second one stops it at once.
fn stop_signals() -> Result<CancellationToken, Failure> {
    let wait = |kind| signal(kind).map_err(|error| Failure::of("cannot wait for signals", &error));
    let (mut terminate, mut interrupt) = (
        wait(SignalKind::terminate())?,
        wait(SignalKind::interrupt())?,
    );
    let shutdown = CancellationToken::new();
    let told = shutdown.clone();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if told.is_cancelled() {
                std::process::exit(1);
            }
            tracing::info!("stopping; once more stops at once");
            told.cancel();
        }
    });
    Ok(shutdown)
}

/// Sees that somebody can administer the server; whether a key was made for that.
async fn ensure_admin(home: &Home, store: &dyn Store) -> Result<bool, Failure> {
    let now = jiff::Timestamp::now();
    if store.has_admin_token(now).await? {
        return Ok(false);
    }
    let minted = NewToken::generate("admin", Scope::Admin, now, None)
        .map_err(|error| Failure::of("cannot make the admin token", &error))?;
    // The file comes first: a start that dies in between finds the key there and uses it.
    let key = match home.admin_key() {
        Some(key) if store.token_by_hash(key.hash()).await?.is_none() => key,
        _ => {
            home.write_admin_key(&minted.key)?;
            minted.key
        }
    };
    store.add_token(&minted.token, key.hash(), None).await?;
    Ok(true)
}

fn greet(home: &Home, url: &str, first: bool) {
    say(&format!(
        "Oubliette {} is ready: {url}",
        env!("CARGO_PKG_VERSION")
    ));
    if !first {
        return;
    }
    let token = home
        .admin_key()
        .map(|key| key.reveal().to_owned())
        .unwrap_or_default();
    say(&format!(
        "\nThis is the first start. The admin token, also in {}:\n\n    {token}\n\n\
         Connect an MCP client (claude, codex, opencode, droid, gemini, cursor or vscode):\n\n    \
         oubliette mcp setup claude\n\n\
         or any other with the address above and the header\n\n    \
         Authorization: Bearer {token}\n\n\
         Make a project from another terminal:\n\n    oubliette project create hello\n",
        home.admin_token_file().display()
    ));
}
