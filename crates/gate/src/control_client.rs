//! The server's side of the control socket: finds the gate of a data directory, or starts it.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use crate::control::{
    ControlReply, ControlRequest, Denial, GateStatus, MAX_CONTROL_LINE_BYTES, Registration,
};
use crate::lines::{LineReader, write_line};
use crate::process::{CONTROL_SOCKET_NAME, LOG_NAME, SUBCOMMAND, run_dir};
use crate::questions::{Answer, Question};
use crate::socket;

const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// For a gate to listen.
const START_TIMEOUT: Duration = Duration::from_secs(20);
const RETRY_INTERVAL: Duration = Duration::from_millis(2);
/// For a gate to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// How to start the gate of a data directory.
#[derive(Debug, Clone)]
pub struct GateCommand {
    /// The binary that has the gate as a subcommand.
    pub program: PathBuf,
    pub data_dir: PathBuf,
}

/// Where the gate's reports go, which may come at any time.
#[derive(Debug, Clone)]
pub struct GateReports {
    pub denials: mpsc::Sender<Denial>,
    /// The questions that are open; none until the gate has said so.
    pub questions: watch::Sender<Option<Vec<Question>>>,
}

impl GateReports {
    fn pass_on(&self, reply: ControlReply) -> Option<ControlReply> {
        match reply {
            ControlReply::Denied(denial) => {
                let _ = self.denials.try_send(denial);
                None
            }
            ControlReply::Questions(questions) => {
                self.questions.send_replace(Some(questions));
                None
            }
            other => Some(other),
        }
    }
}

/// A connection to the gate.
#[derive(Debug)]
pub struct ControlClient {
    replies: LineReader<OwnedReadHalf>,
    requests: OwnedWriteHalf,
    reports: GateReports,
}

/// The version of the running binary and its file, which differ after an upgrade.
pub fn own_build() -> String {
    static BUILD: LazyLock<String> = LazyLock::new(|| {
        let file = std::env::current_exe().and_then(std::fs::metadata);
        let file = file.map(|file| {
            let modified = file.modified().unwrap_or(std::time::UNIX_EPOCH);
            let modified = modified.duration_since(std::time::UNIX_EPOCH);
            format!("{}-{}", file.len(), modified.unwrap_or_default().as_nanos())
        });
        let version = env!("CARGO_PKG_VERSION");
        format!("{version} {}", file.unwrap_or_default())
    });
    BUILD.clone()
}

impl ControlClient {
    /// Connects to the gate that runs, if there is one. Denials and questions are reported after
    /// [`ControlClient::subscribe`].
    pub async fn connect(data_dir: &Path, reports: GateReports) -> io::Result<Self> {
        let stream = socket::connect(&run_dir(data_dir), CONTROL_SOCKET_NAME).await?;
        let (replies, requests) = stream.into_split();
        Ok(Self {
            replies: LineReader::new(replies, MAX_CONTROL_LINE_BYTES),
            requests,
            reports,
        })
    }

    /// Connects to the gate, which is started if none runs, and replaced if it is one of another build without
    /// open connections.
    pub async fn connect_or_start(command: &GateCommand, reports: GateReports) -> io::Result<Self> {
        let deadline = Instant::now() + START_TIMEOUT;
        let mut started_at: Option<Instant> = None;
        loop {
            if let Ok(mut client) = Self::connect(&command.data_dir, reports.clone()).await
                && let Ok(status) = client.status().await
            {
                let is_current = status.build == own_build() || started_at.is_some();
                let only_if_idle = true;
                if is_current || client.stop(only_if_idle).await.is_err() {
                    return Ok(client);
                }
                continue;
            }
            // One that was started waits for the lock of one that is ending.
            if started_at.is_none() {
                command.start()?;
                started_at = Some(Instant::now());
            }
            if Instant::now() > deadline {
                let log = run_dir(&command.data_dir).join(LOG_NAME);
                return Err(io::Error::other(format!(
                    "the gate, which connects containers to other hosts, does not start; see {}",
                    log.display()
                )));
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    pub async fn status(&mut self) -> io::Result<GateStatus> {
        match self.request(&ControlRequest::Status).await? {
            ControlReply::Status(status) => Ok(status),
            other => Err(unexpected(other)),
        }
    }

    pub async fn configure(&mut self, resolver: Option<SocketAddr>) -> io::Result<()> {
        self.expect_done(&ControlRequest::Configure { resolver })
            .await
    }

    /// Adds a container, or changes its rules. Open connections that they do not allow end.
    pub async fn set(&mut self, registration: Registration) -> io::Result<()> {
        self.expect_done(&ControlRequest::Set(registration)).await
    }

    pub async fn remove(&mut self, container: &str) -> io::Result<()> {
        let container = container.to_owned();
        self.expect_done(&ControlRequest::Remove { container })
            .await
    }

    /// Removes all containers but these.
    pub async fn keep(&mut self, containers: Vec<String>) -> io::Result<()> {
        self.expect_done(&ControlRequest::Keep { containers }).await
    }

    pub async fn subscribe(&mut self) -> io::Result<()> {
        self.expect_done(&ControlRequest::Subscribe).await?;
        match self.expect_done(&ControlRequest::SubscribeQuestions).await {
            // An earlier gate asks nothing.
            Err(error) if error.kind() == io::ErrorKind::Other => Ok(()),
            result => result,
        }
    }

    /// Answers a question; without effect if it is not open any more.
    pub async fn answer(&mut self, question: String, answer: Answer) -> io::Result<()> {
        self.expect_done(&ControlRequest::Answer { question, answer })
            .await
    }

    /// Ends the gate, with the connections that are open.
    pub async fn stop(&mut self, only_if_idle: bool) -> io::Result<()> {
        match self
            .expect_done(&ControlRequest::Stop { only_if_idle })
            .await
        {
            // It may end before its reply is written.
            Err(error) if is_closed(&error) => Ok(()),
            result => result,
        }
    }

    /// Passes reports on until the gate ends. Cancelling loses nothing.
    pub async fn wait_for_end(&mut self) {
        while let Ok(Some(reply)) = self.next_reply().await {
            self.reports.pass_on(reply);
        }
    }

    async fn next_reply(&mut self) -> io::Result<Option<ControlReply>> {
        loop {
            match self.replies.next().await {
                // Of a later gate: the rest of the stream is still in lines.
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {}
                result => return result,
            }
        }
    }

    async fn expect_done(&mut self, request: &ControlRequest) -> io::Result<()> {
        match self.request(request).await? {
            ControlReply::Done => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    async fn request(&mut self, request: &ControlRequest) -> io::Result<ControlReply> {
        let exchange = async {
            write_line(&mut self.requests, request).await?;
            loop {
                let reply = self.next_reply().await?;
                let reply = reply.ok_or(io::ErrorKind::UnexpectedEof)?;
                if let Some(reply) = self.reports.pass_on(reply) {
                    return Ok(reply);
                }
            }
        };
        timeout(REPLY_TIMEOUT, exchange)
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl GateCommand {
    /// Starts a process that does not end with this one.
    fn start(&self) -> io::Result<()> {
        let log = std::fs::File::create(run_dir(&self.data_dir).join(LOG_NAME))?;
        let child = Command::new(&self.program)
            .arg(SUBCOMMAND)
            .arg(&self.data_dir)
            // Nothing else of the server's environment: it may have keys.
            .env_clear()
            .envs(certificate_variables())
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()?;
        // Its exit is awaited, or it would stay a zombie of this process.
        std::thread::Builder::new()
            .name("gate-exit".to_owned())
            .spawn(move || {
                let mut child = child;
                let _ = child.wait();
            })?;
        Ok(())
    }
}

/// The variables that name the certificate authorities which this process trusts.
fn certificate_variables() -> impl Iterator<Item = (&'static str, std::ffi::OsString)> {
    let names = ["SSL_CERT_FILE", "SSL_CERT_DIR"];
    let set = |name: &'static str| Some((name, std::env::var_os(name)?));
    names.into_iter().filter_map(set)
}

/// Ends the gate of a data directory, if there is one, and waits for its end. Returns whether there was one.
pub async fn stop(data_dir: &Path) -> io::Result<bool> {
    let reports = GateReports {
        denials: mpsc::channel(1).0,
        questions: watch::Sender::new(None),
    };
    let Ok(mut client) = ControlClient::connect(data_dir, reports).await else {
        return Ok(false);
    };
    let pid = client.status().await.ok().map(|status| status.pid);
    let asked = client.stop(false).await;
    if asked.is_ok() && timeout(STOP_TIMEOUT, client.wait_for_end()).await.is_ok() {
        return Ok(true);
    }
    let pid = pid
        .and_then(|pid| i32::try_from(pid).ok())
        .and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // It still has the other end of the connection, so that the id is its own.
        kill_process(pid, Signal::KILL)?;
    }
    let ended = timeout(STOP_TIMEOUT, client.wait_for_end()).await;
    ended.map_err(|_| io::Error::other("the gate does not end"))?;
    Ok(true)
}

fn is_closed(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
    )
}

fn unexpected(reply: ControlReply) -> io::Error {
    match reply {
        ControlReply::Failed { reason } => io::Error::other(reason),
        _ => io::Error::other("the gate sent an unexpected reply"),
    }
}
