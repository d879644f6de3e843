//! The supervisor: PID 1 of every container.
//!
//! One thread, and others that only start processes. It connects to the server again whenever the connection is lost. Without a server,
//! processes keep running and their output waits in spools; a process whose spool is full is blocked.

mod control;
mod default_user;
mod mux_listener;
mod process;
mod process_table;
mod process_tag;
mod reaper;
mod server_transport;
mod spawner;
mod spool;
mod streams;
mod tunnel;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use oubliette_sandbox::PortRules;
use oubliette_wire::{EGRESS_SOCKET_VARIABLE, LOOPBACK_PORTS_VARIABLE, RELAY_SOCKET_PATH};
use tokio::task::LocalSet;

use control::Control;
use mux_listener::MuxListener;
use process_table::ProcessTable;
use server_transport::ServerTransport;
use spawner::Spawner;

const MIN_RECONNECT_DELAY: Duration = Duration::from_millis(20);
const MAX_RECONNECT_DELAY: Duration = Duration::from_secs(2);

/// The supervisor's settings, from its environment.
#[derive(Debug)]
struct Settings {
    socket: PathBuf,
    spool_directory: PathBuf,
    container_id: String,
    container_key: String,
    /// Whether no socket of the host is mounted, and the server connects over the runtime's channel.
    uses_mux: bool,
    /// The socket of the gate, if other hosts are reached through it.
    gate_socket: Option<PathBuf>,
    /// The ports of loopback that lead to the server's machine.
    loopback_ports: Vec<u16>,
}

impl Settings {
    fn from_env() -> Option<Self> {
        let variable = |name| std::env::var(name).ok();
        let path =
            |name, default: &str| PathBuf::from(variable(name).unwrap_or_else(|| default.into()));
        Some(Self {
            socket: path("OUBLIETTE_SOCKET", RELAY_SOCKET_PATH),
            spool_directory: path("OUBLIETTE_SPOOLS", "/tmp"),
            container_id: variable("OUBLIETTE_CONTAINER_ID")?,
            container_key: variable("OUBLIETTE_CONTAINER_KEY")?,
            uses_mux: variable("OUBLIETTE_CARRIED").is_some_and(|value| value == "1"),
            gate_socket: variable(EGRESS_SOCKET_VARIABLE).map(PathBuf::from),
            loopback_ports: variable(LOOPBACK_PORTS_VARIABLE)
                .unwrap_or_default()
                .split(',')
                .filter_map(|port| port.parse().ok())
                .collect(),
        })
    }
}

pub(crate) fn run() -> ExitCode {
    // Other processes of the container must not read the key from this one's memory.
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    // PID 1 is the parent of every orphan; where another process is PID 1, this one becomes it.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let Some(settings) = Settings::from_env() else {
        eprintln!("OUBLIETTE_CONTAINER_ID and OUBLIETTE_CONTAINER_KEY are not set");
        return ExitCode::from(2);
    };
    // First of all: the first agent waits for its thread.
    let spawner = match PortRules::inherited() {
        Ok(rules) => Spawner::new(rules),
        Err(error) => {
            eprintln!("cannot use the rules for ports: {error}");
            return ExitCode::FAILURE;
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    match runtime {
        Ok(runtime) => LocalSet::new().block_on(&runtime, supervise(settings, spawner)),
        Err(error) => {
            eprintln!("cannot start: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn supervise(settings: Settings, spawner: Spawner) -> ExitCode {
    let boot_id = uuid::Uuid::new_v4().to_string();
    let user = default_user::prepare();
    let environment = match &settings.gate_socket {
        Some(_) => tunnel::proxy_variables(),
        None => BTreeMap::new(),
    };
    let table = ProcessTable::new(
        &settings.spool_directory,
        &boot_id,
        user,
        environment,
        spawner,
    );
    let table = Rc::new(table);
    let reaping = match reaper::start(table.clone()) {
        Ok(reaping) => reaping,
        Err(error) => {
            eprintln!("cannot wait for signals: {error}");
            return ExitCode::FAILURE;
        }
    };
    if let Some(socket) = &settings.gate_socket {
        // Before the server is told that commands can run: the first one may need it.
        tunnel::keep_running(socket.clone(), &settings.loopback_ports);
    }
    let transport = if settings.uses_mux {
        match MuxListener::start(&settings.container_key, &settings.socket) {
            Ok(listener) => ServerTransport::Mux(listener),
            Err(error) => {
                eprintln!("cannot listen for the server: {error}");
                return ExitCode::FAILURE;
            }
        }
    } else {
        ServerTransport::Socket(settings.socket.clone())
    };
    let serving = async {
        let mut delay = MIN_RECONNECT_DELAY;
        loop {
            if Control::serve(&settings, &transport, &table).await.is_ok() {
                delay = MIN_RECONNECT_DELAY;
            }
            tokio::time::sleep(delay).await;
            delay = (delay * 2).min(MAX_RECONNECT_DELAY);
        }
    };
    tokio::select! {
        () = serving => ExitCode::FAILURE,
        () = reaping => ExitCode::SUCCESS,
    }
}
