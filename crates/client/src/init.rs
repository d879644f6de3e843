//! The supervisor: PID 1 of every container.
//!
//! One thread. It dials the server for ever; while no server is there, processes run on and their
//! output waits in spools, up to a bound past which they wait too.

mod carriage;
mod control;
mod process;
mod reaper;
mod spool;
mod streams;
mod table;
mod way;

use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use tokio::task::LocalSet;

use carriage::Carriage;
use control::Control;
use table::Table;
use way::Way;

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// What the supervisor is told when it is started; only through its environment.
#[derive(Debug)]
struct Settings {
    socket: PathBuf,
    spools: PathBuf,
    container_id: String,
    container_key: String,
    /// Whether no socket of the host is here, and the server comes by the runtime's own channel.
    carried: bool,
}

impl Settings {
    fn read() -> Option<Self> {
        let variable = |name| std::env::var(name).ok();
        let path =
            |name, usual: &str| PathBuf::from(variable(name).unwrap_or_else(|| usual.into()));
        Some(Self {
            socket: path("OUBLIETTE_SOCKET", "/mcp/relay.sock"),
            spools: path("OUBLIETTE_SPOOLS", "/tmp"),
            container_id: variable("OUBLIETTE_CONTAINER_ID")?,
            container_key: variable("OUBLIETTE_CONTAINER_KEY")?,
            carried: variable("OUBLIETTE_CARRIED").is_some_and(|value| value == "1"),
        })
    }
}

pub(crate) fn run() -> ExitCode {
    // Others in the container must not read the key out of this process.
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    // PID 1 is the parent of every orphan; where something else is PID 1, this makes us so.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let Some(settings) = Settings::read() else {
        eprintln!("OUBLIETTE_CONTAINER_ID and OUBLIETTE_CONTAINER_KEY are not set");
        return ExitCode::from(2);
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    match runtime {
        Ok(runtime) => LocalSet::new().block_on(&runtime, supervise(settings)),
        Err(error) => {
            eprintln!("cannot start: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn supervise(settings: Settings) -> ExitCode {
    let boot_id = uuid::Uuid::new_v4().to_string();
    let table = Rc::new(Table::new(&settings.spools, &boot_id));
    let reaping = match reaper::start(table.clone()) {
        Ok(reaping) => reaping,
        Err(error) => {
            eprintln!("cannot wait for signals: {error}");
            return ExitCode::FAILURE;
        }
    };
    let way = match settings.carried {
        false => Way::Socket(settings.socket.clone()),
        true => match Carriage::open_up(&settings.container_key, &settings.socket) {
            Ok(carriage) => Way::Carried(carriage),
            Err(error) => {
                eprintln!("cannot listen for the server: {error}");
                return ExitCode::FAILURE;
            }
        },
    };
    let dialling = async {
        let mut pause = FIRST_PAUSE;
        loop {
            if Control::serve(&settings, &way, &table).await.is_ok() {
                pause = FIRST_PAUSE;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    };
    tokio::select! {
        () = dialling => ExitCode::FAILURE,
        () = reaping => ExitCode::SUCCESS,
    }
}
