//! The tunnel to the gate, in a process of its own: it handles whatever programs of the container send, and the
//! supervisor must outlast that.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use oubliette_gate::PROXY_ADDRESS;
use oubliette_gate::tunnel::{SUBCOMMAND, TunnelSockets};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

const MIN_RESTART_INTERVAL: Duration = Duration::from_millis(100);
const MAX_RESTART_INTERVAL: Duration = Duration::from_secs(10);
/// A tunnel that ran for so long did not fail at its start.
const STABLE_TIME: Duration = Duration::from_secs(30);
/// Programs of the container can end it again and again: the log of the container must not grow with that.
const MAX_LOGGED_ENDS: u32 = 20;

/// Binds the sockets of the tunnel, starts it, and starts it again whenever it ends. Does not wait for it: connections that come
/// before wait.
pub(super) fn keep_running(socket: PathBuf, loopback_ports: &[u16]) {
    let (sockets, problems) = TunnelSockets::bind(loopback_ports);
    for problem in problems {
        // Without it some programs reach no other host, but everything else works.
        eprintln!("the tunnel to the gate cannot listen on {problem}");
    }
    tokio::task::spawn_local(async move {
        let mut interval = MIN_RESTART_INTERVAL;
        let mut ends = 0;
        loop {
            let started = Instant::now();
            let is_logged = ends < MAX_LOGGED_ENDS;
            let ended = run(&socket, &sockets, is_logged).await;
            if is_logged {
                let why = ended
                    .err()
                    .map_or(String::new(), |error| format!(": {error}"));
                eprintln!("the tunnel to the gate ended{why}; starting another");
            }
            ends = ends.saturating_add(1);
            if started.elapsed() >= STABLE_TIME {
                interval = MIN_RESTART_INTERVAL;
            }
            tokio::time::sleep(interval).await;
            interval = (interval * 2).min(MAX_RESTART_INTERVAL);
        }
    });
}

/// Runs the tunnel until it ends. The reaper takes its exit; that it ended is known from its output.
async fn run(socket: &Path, sockets: &TunnelSockets, is_logged: bool) -> io::Result<()> {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&reader, true)?;
    let mut output = pipe::Receiver::from_owned_fd(reader)?;
    let stderr = if is_logged {
        Stdio::inherit()
    } else {
        Stdio::null()
    };
    Command::new("/proc/self/exe")
        // The executable can be the server's, which acts as the client under this name.
        .arg0("oubliette-client")
        .arg(SUBCOMMAND)
        .arg(socket)
        // The supervisor's has the key of the container.
        .env_clear()
        .current_dir("/")
        .stdin(sockets.send()?)
        .stdout(writer)
        .stderr(stderr)
        .spawn()?;
    let mut received = Vec::new();
    while output.read_buf(&mut received).await? > 0 {
        received.clear();
    }
    Ok(())
}

/// What programs that know proxies are told, in the spellings that are in use.
pub(super) fn proxy_variables() -> BTreeMap<String, String> {
    let proxy = format!("http://{PROXY_ADDRESS}");
    let names = ["http_proxy", "https_proxy", "all_proxy"];
    let proxies = names.map(|name| (name, proxy.as_str()));
    let mut variables = BTreeMap::new();
    for (name, value) in proxies
        .into_iter()
        .chain([("no_proxy", "localhost,127.0.0.1,::1")])
    {
        variables.insert(name.to_owned(), value.to_owned());
        variables.insert(name.to_ascii_uppercase(), value.to_owned());
    }
    variables
}
