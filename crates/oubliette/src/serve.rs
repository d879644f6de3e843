//! `oubliette serve`: starts the engine, serves MCP over HTTP, and shuts down in order.

mod bind;
mod idle;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use oubliette_engine::{Engine, NewToken};
use oubliette_model::Scope;
use oubliette_runtime::{DRIVERS, RuntimeChoice};
use oubliette_server::Listeners;
use oubliette_store::Store;
use oubliette_store::sqlite::Sqlite;
use parking_lot::Mutex;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::background::{LogFile, Report, Starter};
use crate::config::Config;
use crate::containers;
use crate::executor::block_on;
use crate::failure::Failure;
use crate::home::{DirectoryLock, Home, ServerInfo, ServerMode};
use crate::logs;
use crate::setup;
use crate::terminal::{output, print_line};
use crate::up;

/// Start the server
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Start it in the background, with its log in `server.log` of the data directory
    #[arg(long)]
    detach: bool,
    /// How long a server runs that a command has started, which waits for its report.
    #[arg(long, value_enum, hide = true)]
    background: Option<ServerMode>,
    /// Address to listen on [default: `server.listen` of the configuration, 127.0.0.1:7433]
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    #[arg(long, value_name = "NAME", help = runtime_help())]
    runtime: Option<String>,
    /// Format of the log on stderr
    #[arg(long, value_enum, default_value = "text")]
    log: logs::Format,
}

impl Options {
    /// The options for a server in the background.
    fn to_arguments(&self) -> Vec<OsString> {
        let mut arguments = Vec::new();
        if let Some(address) = self.listen {
            arguments.extend(["--listen".to_owned(), address.to_string()]);
        }
        if let Some(runtime) = &self.runtime {
            arguments.extend(["--runtime".to_owned(), runtime.clone()]);
        }
        if matches!(self.log, logs::Format::Json) {
            arguments.extend(["--log".to_owned(), "json".to_owned()]);
        }
        arguments.into_iter().map(OsString::from).collect()
    }
}

fn runtime_help() -> String {
    format!(
        "Runtime that creates containers [default: `runtime` of the configuration, auto]:\n{}",
        oubliette_runtime::help()
    )
}

/// Enough for thousands of callers and agents.
const MAX_OPEN_FILES: u64 = 65_536;
/// How long a server in the background waits for the one that has the lock: to be ready, or to end.
const OTHER_SERVER_TIMEOUT: Duration = Duration::from_secs(60);
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// The reason of turns that `oubliette down` has ended.
const STOPPED_BY_DOWN: &str =
    "stopped by `oubliette down`, which ended the container; a message resumes the session";

pub(crate) fn run(home: &Home, options: &Options) -> Result<(), Failure> {
    if options.detach {
        return up::detach(home, &options.to_arguments());
    }
    match options.background {
        Some(mode) => run_in_background(home, options, mode),
        None => {
            logs::start(options.log, None);
            home.require_own()?;
            let lock = home.lock()?;
            run_locked(home, options, &lock, Start::Foreground)
        }
    }
}

/// Who waits for the server to be ready, and how long it runs then.
enum Start {
    Foreground,
    Background {
        mode: ServerMode,
        starter: Arc<Mutex<Option<Starter>>>,
    },
}

impl Start {
    fn mode(&self) -> ServerMode {
        match self {
            Self::Foreground => ServerMode::Foreground,
            Self::Background { mode, .. } => *mode,
        }
    }
}

/// Runs a server that another process has started and waits for.
fn run_in_background(home: &Home, options: &Options, mode: ServerMode) -> Result<(), Failure> {
    let starter = Starter::detach();
    let starter = starter.map_err(|error| Failure::with_cause("cannot detach", &error))?;
    let lock = match lock_or_find_server(home) {
        Ok(LockOutcome::Acquired(lock)) => lock,
        Ok(LockOutcome::HeldBy(pid)) => {
            starter.report(&Ok(Report {
                pid,
                was_running: true,
                no_url_reason: None,
            }));
            return Ok(());
        }
        Err(failure) => {
            starter.report(&Err(failure));
            return Err(Failure::Exit(1));
        }
    };
    // A server works also where no log can be written.
    let log = LogFile::open(&home.log_file()).ok();
    if let Some(log) = &log {
        let _ = log.replace_stderr();
    }
    logs::start(options.log, log);
    let starter = Arc::new(Mutex::new(Some(starter)));
    let start = Start::Background {
        mode,
        starter: starter.clone(),
    };
    let result = run_locked(home, options, &lock, start);
    // Here only a server that was not ready has one.
    let starter = starter.lock().take();
    match (result, starter) {
        (Err(failure), Some(starter)) => {
            // Into the log.
            failure.print();
            starter.report(&Err(failure));
            Err(Failure::Exit(1))
        }
        (result, _) => result,
    }
}

/// Whether this process serves the directory, of several that are started at once.
enum LockOutcome {
    Acquired(DirectoryLock),
    /// Another process serves it.
    HeldBy(u32),
}

/// Locks the directory, or waits until the process that has the lock serves it.
fn lock_or_find_server(home: &Home) -> Result<LockOutcome, Failure> {
    home.require_own()?;
    let deadline = Instant::now() + OTHER_SERVER_TIMEOUT;
    loop {
        if let Some(lock) = home.try_lock()? {
            return Ok(LockOutcome::Acquired(lock));
        }
        if let Some(running) = block_on(home.running_server())? {
            return Ok(LockOutcome::HeldBy(running.pid));
        }
        if Instant::now() > deadline {
            let lock = home.lock()?;
            return Ok(LockOutcome::Acquired(lock));
        }
        std::thread::sleep(LOCK_RETRY_INTERVAL);
    }
}

fn run_locked(
    home: &Home,
    options: &Options,
    _lock: &DirectoryLock,
    start: Start,
) -> Result<(), Failure> {
    raise_open_file_limit();
    let mut config = Config::load(&home.config_file(), std::env::vars())?;
    let configured_port = config.server.listen.port();
    config.server.listen = options.listen.unwrap_or(config.server.listen);
    config.runtime = options.runtime.clone().unwrap_or(config.runtime);
    RuntimeChoice::parse(&config.runtime, DRIVERS).map_err(Failure::new)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::with_cause("cannot start", &error))?;
    runtime.block_on(serve(home, &config, configured_port, start))
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

async fn serve(
    home: &Home,
    config: &Config,
    configured_port: u16,
    start: Start,
) -> Result<(), Failure> {
    let stop = stop_signals(&start)?;
    let bound = BoundServer::open(home, config, configured_port, start.mode()).await?;
    for port in &bound.ports {
        warn_of_shared_port(*port);
    }
    let url = bound.url.as_deref().unwrap_or_default();
    tracing::info!(url, data_dir = %home.path().display(), "ready");
    match &start {
        Start::Foreground => print_greeting(home, url, bound.is_first_start),
        Start::Background { starter, .. } => {
            let report = Report {
                pid: std::process::id(),
                was_running: false,
                no_url_reason: bound.no_url_reason.clone(),
            };
            if let Some(starter) = starter.lock().take() {
                starter.report(&Ok(report));
            }
        }
    }
    let containers = bound.serve(home.clone(), config.clone(), stop).await;
    tracing::info!("stopped");
    if matches!(start, Start::Foreground) {
        print_what_runs_on(home, containers);
    }
    Ok(())
}

/// Says what a stopped server leaves running.
fn print_what_runs_on(home: &Home, containers: usize) {
    let containers = match containers {
        0 => return,
        1 => "One container keeps running, with its agents and commands",
        _ => "Containers keep running, with their agents and commands",
    };
    let command = home.command();
    eprintln!(
        "{containers}; the next server continues with them. `{command} up` starts one in the background, `{command} \
         down` stops everything."
    );
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
    /// The ports that no container may bind: the server's, and the configured one.
    ports: Vec<u16>,
    /// None if it listens only on its socket.
    url: Option<String>,
    no_url_reason: Option<String>,
    /// Whether this start created the admin token.
    is_first_start: bool,
    mode: ServerMode,
}

impl BoundServer {
    async fn open(
        home: &Home,
        config: &Config,
        configured_port: u16,
        mode: ServerMode,
    ) -> Result<Self, Failure> {
        let address = config.server.listen;
        let store: Arc<dyn Store> = Arc::new(Sqlite::open(&home.database())?);
        let is_first_start = ensure_admin(home, &*store).await?;
        // Before any container is started: containers are told which port they may not bind.
        let (network, no_url_reason) = match mode {
            ServerMode::UntilIdle => bind::network_if_free(address, home).await?,
            _ => (bind::network(address, home).await?, None),
        };
        let bound = network.first().map(TcpListener::local_addr);
        let bound = bound.and_then(Result::ok);
        let mut ports = vec![bound.unwrap_or(address).port(), configured_port];
        ports.retain(|port| *port != 0);
        ports.sort_unstable();
        ports.dedup();
        let (name, directory) = (config.runtime.clone(), home.path().to_owned());
        let (docker, refused) = (config.docker.clone(), ports.clone());
        let runtime =
            async move { containers::open_with_client(&name, &directory, &docker, &refused).await };
        let engine = Engine::start(store, config.settings(home.path()), runtime)
            .await
            .map_err(|error| Failure::with_cause("the engine could not start", &error))?;
        let local = home.socket().and_then(|socket| socket.bind());
        let local = local.map_err(|error| {
            let directory = home.path().display();
            Failure::with_cause(format!("cannot make the socket in {directory}"), &error)
        })?;
        let url = bound.map(|address| format!("http://{address}/mcp"));
        home.write_server_info(&ServerInfo {
            url: url.clone(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: Some(jiff::Timestamp::now()),
            mode,
            no_url_reason: no_url_reason.clone(),
            ends_turns: true,
        })?;
        Ok(Self {
            engine,
            listeners: Listeners {
                network,
                local: Some(local),
            },
            ports,
            url,
            no_url_reason,
            is_first_start,
            mode,
        })
    }

    /// Serves until `shutdown`, and leaves containers and agents running; how many containers that are.
    async fn serve(self, home: Home, config: Config, stop: StopSignals) -> usize {
        let engine = self.engine;
        let closing = CancellationToken::new();
        let StopSignals {
            shutdown,
            end_turns,
        } = stop;
        let (ending, stopping) = (engine.clone(), shutdown.clone());
        tokio::spawn(closing.clone().run_until_cancelled_owned(async move {
            end_turns.cancelled().await;
            ending.sessions().end_turns(STOPPED_BY_DOWN).await;
            stopping.cancel();
        }));
        let relay = Arc::new(oubliette_server::RelayServer::new(engine.clone()));
        engine.containers().accept_connections(relay.clone());
        engine.schedules().start();
        let (name, directory) = (config.runtime.clone(), home.path().to_owned());
        let docker = config.docker.clone();
        let runtime_retry =
            containers::retry_until_found(engine.clone(), name, directory, docker, self.ports);
        tokio::spawn(closing.clone().run_until_cancelled_owned(runtime_retry));
        let app = oubliette_server::app(&engine, &config.server, &config.mcp);
        let idle_time = Duration::from_secs(config.autostart.idle_seconds);
        if self.mode == ServerMode::UntilIdle && !idle_time.is_zero() {
            let (shutdown, connections) = (shutdown.clone(), app.connection_counts().clone());
            let (engine, home) = (engine.clone(), home.clone());
            tokio::spawn(closing.clone().run_until_cancelled_owned(async move {
                idle::wait(&engine, &connections, &home, idle_time).await;
                tracing::info!(
                    "nothing is at work; ending, the next command starts a server again"
                );
                shutdown.cancel();
            }));
        }
        oubliette_server::serve(self.listeners, app, &config.server, shutdown).await;
        home.remove_server_info();
        closing.cancel();
        let containers = engine.containers().count_connected();
        relay.shut_down().await;
        engine.stop().await;
        containers
    }
}

/// What signals ask for.
struct StopSignals {
    shutdown: CancellationToken,
    /// That the turns of agents are ended, and the server is shut down then: their containers will be stopped.
    end_turns: CancellationToken,
}

/// SIGTERM and SIGINT shut the server down; a second one exits at once. SIGUSR1 is what `oubliette down` sends.
fn stop_signals(start: &Start) -> Result<StopSignals, Failure> {
    let wait =
        |kind| signal(kind).map_err(|error| Failure::with_cause("cannot wait for signals", &error));
    let (mut terminate, mut interrupt) = (
        wait(SignalKind::terminate())?,
        wait(SignalKind::interrupt())?,
    );
    let mut down = wait(SignalKind::user_defined1())?;
    let (shutdown, end_turns) = (CancellationToken::new(), CancellationToken::new());
    let (requested, ending) = (shutdown.clone(), end_turns.clone());
    let is_at_terminal = matches!(start, Start::Foreground) && std::io::stderr().is_terminal();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                _ = down.recv() => {
                    ending.cancel();
                    tracing::info!("ending the turns of agents, and stopping");
                    continue;
                }
            }
            if requested.is_cancelled() {
                std::process::exit(1);
            }
            requested.cancel();
            tracing::info!(
                "stopping; containers and agents keep running; {} to exit at once",
                if is_at_terminal {
                    "press Ctrl-C again"
                } else {
                    "send the signal again"
                }
            );
        }
    });
    Ok(StopSignals {
        shutdown,
        end_turns,
    })
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
    if output::is_json() {
        // One line, so that a program can wait for it.
        let ready = json!({
            "url": url, "pid": std::process::id(), "version": env!("CARGO_PKG_VERSION"),
            "data_dir": home.path(), "admin_token_file": home.admin_token_file(),
        });
        print_line(&ready.to_string());
        return;
    }
    print_line(&format!(
        "Oubliette {} is ready: {url}",
        env!("CARGO_PKG_VERSION")
    ));
    let file = home.admin_token_file();
    let command = home.command();
    let clients = setup::names().collect::<Vec<_>>().join(", ");
    if !is_first_start {
        print_line(&format!(
            "Connect an MCP client with `{command} mcp setup NAME` ({clients}). The admin token is in {}.",
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
         Connect an MCP client ({clients}):\n\n    \
         {command} mcp setup claude\n\n\
         or any other client with the URL above and the header\n\n    {header}\n\n\
         Create a project from another terminal:\n\n    {command} project create hello\n"
    ));
}
