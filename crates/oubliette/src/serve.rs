//! `oubliette serve`: starts the engine, serves MCP over HTTP, and shuts down in order.

mod bind;

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::sync::Arc;

use oubliette_engine::{Engine, NewToken};
use oubliette_model::Scope;
use oubliette_runtime::{DRIVERS, RuntimeChoice};
use oubliette_server::Listeners;
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
use crate::home::{DirectoryLock, Home, ServerInfo};
use crate::logs;
use crate::terminal::print_line;

/// Start the server
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Address to listen on [default: `server.listen` of the configuration, 127.0.0.1:7433]
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    #[arg(long, value_name = "NAME", help = runtime_help())]
    runtime: Option<String>,
    /// Format of the log on stderr
    #[arg(long, value_enum, default_value = "text")]
    log: logs::Format,
}

fn runtime_help() -> String {
    format!(
        "Runtime that creates containers [default: `runtime` of the configuration, auto]:\n{}",
        oubliette_runtime::help()
    )
}

/// Enough for thousands of callers and agents.
const MAX_OPEN_FILES: u64 = 65_536;

pub(crate) fn run(home: &Home, options: &Options) -> Result<(), Failure> {
    logs::start(options.log);
    raise_open_file_limit();
    home.require_own()?;
    let lock = home.lock()?;
    let mut config = Config::load(&home.config_file(), std::env::vars())?;
    config.server.listen = options.listen.unwrap_or(config.server.listen);
    config.runtime = options.runtime.clone().unwrap_or(config.runtime);
    RuntimeChoice::parse(&config.runtime, DRIVERS).map_err(Failure::new)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::with_cause("cannot start", &error))?;
    let result = runtime.block_on(serve(home, &config));
    drop(lock);
    result
}

/// Raises the soft limit of open files: every caller and every stream of an agent is one, and the usual limit
/// is low.
fn raise_open_file_limit() {
    let now = getrlimit(Resource::Nofile);
    let target = now
        .maximum
        .map_or(MAX_OPEN_FILES, |target| target.min(MAX_OPEN_FILES));
    if now.current.is_some_and(|current| current < target) {
        let wanted = Rlimit {
            current: Some(target),
            ..now
        };
        if let Err(error) = setrlimit(Resource::Nofile, wanted) {
            tracing::warn!(%error, "cannot raise the limit of open files; raise it with `ulimit -n`");
        }
    }
}

async fn serve(home: &Home, config: &Config) -> Result<(), Failure> {
    let shutdown = stop_signals()?;
    let bound = BoundServer {
        runs_schedules: true,
        ..BoundServer::open(home, config).await?
    };
    print_greeting(home, &bound.url, bound.is_first_start);
    warn_of_shared_port(config.server.listen.port());
    tracing::info!(url = %bound.url, data_dir = %home.path().display(), "ready");
    bound.serve(home.clone(), config.clone(), shutdown).await;
    tracing::info!("stopped");
    Ok(())
}

/// A port that the kernel also gives to programs which ask for any free one can be given to a
/// container while no server runs.
fn warn_of_shared_port(port: u16) {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let range = range.unwrap_or_default();
    let mut ends = range.split_whitespace().map(str::parse::<u16>);
    if let (Some(Ok(first)), Some(Ok(last))) = (ends.next(), ends.next())
        && (first..=last).contains(&port)
    {
        tracing::warn!(
            port,
            first,
            last,
            "the kernel gives ports of this range to programs that ask for any port; listen on one \
             outside it, so that no container can get it while the server is away"
        );
    }
}

/// A server that has bound its address and does not accept connections yet.
struct BoundServer {
    engine: Engine,
    listeners: Listeners,
    port: u16,
    url: String,
    /// Whether this start created the admin token.
    is_first_start: bool,
    /// Whether schedules run. An embedded server would end the runs together with its command.
    runs_schedules: bool,
}

impl BoundServer {
    async fn open(home: &Home, config: &Config) -> Result<Self, Failure> {
        let address = config.server.listen;
        let store: Arc<dyn Store> = Arc::new(Sqlite::open(&home.database())?);
        let is_first_start = ensure_admin(home, &*store).await?;
        // Before any container is started: containers are told which port they may not bind.
        let network = bind::network(address).await?;
        let bound = network.first().map(TcpListener::local_addr);
        let address = bound.and_then(Result::ok).unwrap_or(address);
        let (name, directory) = (config.runtime.clone(), home.path().to_owned());
        let (docker, port) = (config.docker.clone(), address.port());
        let runtime =
            async move { containers::open_with_client(&name, &directory, &docker, port).await };
        let engine = Engine::start(store, config.settings(home.path()), runtime)
            .await
            .map_err(|error| Failure::with_cause("the engine could not start", &error))?;
        let local = home.socket().and_then(|socket| socket.bind());
        let local = local.map_err(|error| {
            let directory = home.path().display();
            Failure::with_cause(format!("cannot make the socket in {directory}"), &error)
        })?;
        let url = format!("http://{address}/mcp");
        home.write_server_info(&ServerInfo {
            url: url.clone(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        })?;
        Ok(Self {
            engine,
            listeners: Listeners {
                network,
                local: Some(local),
            },
            port,
            url,
            is_first_start,
            runs_schedules: false,
        })
    }

    /// Serves until `shutdown`, and leaves containers and agents running.
    async fn serve(self, home: Home, config: Config, shutdown: CancellationToken) {
        let engine = self.engine;
        let closing = CancellationToken::new();
        let relay = Arc::new(oubliette_server::RelayServer::new(engine.clone()));
        engine.containers().accept_connections(relay.clone());
        if self.runs_schedules {
            engine.schedules().start();
        }
        let (name, directory) = (config.runtime.clone(), home.path().to_owned());
        let docker = config.docker.clone();
        let runtime_retry =
            containers::retry_until_found(engine.clone(), name, directory, docker, self.port);
        tokio::spawn(closing.clone().run_until_cancelled_owned(runtime_retry));
        let app = oubliette_server::app(&engine, &config.server, &config.mcp);
        oubliette_server::serve(self.listeners, app, &config.server, shutdown).await;
        home.remove_server_info();
        closing.cancel();
        relay.shut_down().await;
        engine.stop().await;
    }
}

/// A server that runs inside another command and ends with it.
#[derive(Debug)]
pub(crate) struct EmbeddedServer {
    engine: Engine,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
    _lock: DirectoryLock,
}

impl EmbeddedServer {
    pub(crate) async fn start(home: &Home) -> Result<Self, Failure> {
        home.require_own()?;
        let lock = home.lock()?;
        let mut config = Config::load(&home.config_file(), std::env::vars())?;
        // Any free port, so that `oubliette serve` can still bind the default one.
        config.server.listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let bound = BoundServer::open(home, &config).await?;
        let (engine, shutdown) = (bound.engine.clone(), CancellationToken::new());
        let task = tokio::spawn(bound.serve(home.clone(), config, shutdown.clone()));
        Ok(Self {
            engine,
            shutdown,
            task,
            _lock: lock,
        })
    }

    /// Stops the server and its containers, which no server would supervise afterwards.
    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        let _ = self.task.await;
        if let Err(error) = self.engine.containers().stop_all().await {
            eprintln!(
                "some containers are still running; stop them with `oubliette down`: {error}"
            );
        }
    }
}

/// SIGTERM and SIGINT shut the server down; a second one exits at once.
fn stop_signals() -> Result<CancellationToken, Failure> {
    let wait =
        |kind| signal(kind).map_err(|error| Failure::with_cause("cannot wait for signals", &error));
    let (mut terminate, mut interrupt) = (
        wait(SignalKind::terminate())?,
        wait(SignalKind::interrupt())?,
    );
    let shutdown = CancellationToken::new();
    let requested = shutdown.clone();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if requested.is_cancelled() {
                std::process::exit(1);
            }
            tracing::info!(
                "stopping; containers and agents keep running; send the signal again to exit at once"
            );
            requested.cancel();
        }
    });
    Ok(shutdown)
}

/// Creates an admin token if there is no valid one; whether it did.
async fn ensure_admin(home: &Home, store: &dyn Store) -> Result<bool, Failure> {
    let now = jiff::Timestamp::now();
    if store.has_admin_token(now).await? {
        return Ok(false);
    }
    let new_token = NewToken::generate("admin", Scope::Admin, now, None)
        .map_err(|error| Failure::with_cause("cannot create the admin token", &error))?;
    // The file is written first: if this start is killed now, the next one uses the key in it.
    let key = match home.admin_key() {
        Some(key) if store.token_by_hash(key.hash()).await?.is_none() => key,
        _ => {
            home.write_admin_key(&new_token.key)?;
            new_token.key
        }
    };
    store.add_token(&new_token.token, key.hash(), None).await?;
    Ok(true)
}

fn print_greeting(home: &Home, url: &str, is_first_start: bool) {
    print_line(&format!(
        "Oubliette {} is ready: {url}",
        env!("CARGO_PKG_VERSION")
    ));
    let file = home.admin_token_file();
    let command = home.command();
    if !is_first_start {
        print_line(&format!(
            "Connect an MCP client with `{command} mcp setup claude` (or codex, opencode, droid, gemini, \
             cursor, vscode). The admin token is in {}.",
            file.display()
        ));
        return;
    }
    // Other output goes to files and logs, which more people can read than the key is for.
    let shown = home.admin_key().filter(|_| std::io::stdout().is_terminal());
    let (token, header) = match &shown {
        Some(key) => (
            format!(
                ", also stored in {}:\n\n    {}",
                file.display(),
                key.reveal()
            ),
            format!("Authorization: Bearer {}", key.reveal()),
        ),
        None => (
            format!(" is in {}", file.display()),
            "Authorization: Bearer KEY".to_owned(),
        ),
    };
    print_line(&format!(
        "\nThis is the first start. The admin token{token}\n\n\
         Connect an MCP client (claude, codex, opencode, droid, gemini, cursor or vscode):\n\n    \
         {command} mcp setup claude\n\n\
         or any other client with the URL above and the header\n\n    {header}\n\n\
         Create a project from another terminal:\n\n    {command} project create hello\n"
    ));
}
