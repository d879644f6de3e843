//! The tunnel to the gate, in a process of its own: it handles whatever programs of the container send, and the
//! supervisor must outlast that.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use oubliette_gate::PROXY_ADDRESS;
use oubliette_gate::tunnel::{READY_LINE, SUBCOMMAND};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;

/// For the tunnel to be ready, before processes are started without it.
const START_TIMEOUT: Duration = Duration::from_secs(5);
const RESTART_INTERVAL: Duration = Duration::from_millis(200);

/// Starts the tunnel, and starts it again whenever it ends. Returns when programs can use it.
pub(super) async fn keep_running(socket: PathBuf) {
    let (sender, ready) = oneshot::channel();
    tokio::task::spawn_local(async move {
        let mut sender = Some(sender);
        loop {
            if let Err(error) = run(&socket, &mut sender).await {
                eprintln!("the tunnel to the gate ended: {error}");
            }
            tokio::time::sleep(RESTART_INTERVAL).await;
        }
    });
    // Without it, programs reach no other host, but everything else works.
    let _ = tokio::time::timeout(START_TIMEOUT, ready).await;
}

/// Runs the tunnel until it ends. The reaper takes its exit; that it ended is known from its output.
async fn run(socket: &Path, ready: &mut Option<oneshot::Sender<()>>) -> io::Result<()> {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&reader, true)?;
    let mut output = pipe::Receiver::from_owned_fd(reader)?;
    Command::new("/proc/self/exe")
        // The executable can be the server's, which acts as the client under this name.
        .arg0("oubliette-client")
        .arg(SUBCOMMAND)
        .arg(socket)
        // The supervisor's has the key of the container.
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(writer)
        .spawn()?;
    let mut received = Vec::new();
    while output.read_buf(&mut received).await? > 0 {
        if received.starts_with(READY_LINE)
            && let Some(ready) = ready.take()
        {
            let _ = ready.send(());
        }
        received.truncate(READY_LINE.len());
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
