//! `carry`: connects its standard input and output, which are the runtime's channel, with the
//! supervisor's [`MuxListener`](crate::init).

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

pub(crate) const SUBCOMMAND: &str = "carry";

/// An abstract socket has no file that another process of the container could replace.
const SOCKET_NAME: &str = "oubliette-carry";
/// A supervisor that was just started listens within this time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_RETRY_INTERVAL: Duration = Duration::from_millis(10);
const BUFFER_BYTES: usize = 64 << 10;

fn address() -> io::Result<SocketAddr> {
    // Tests run several supervisors in one network namespace.
    let name = std::env::var("OUBLIETTE_CARRY").unwrap_or_else(|_| SOCKET_NAME.to_owned());
    SocketAddr::from_abstract_name(name)
}

/// Listens on the supervisor's side.
pub(crate) fn listen() -> io::Result<tokio::net::UnixListener> {
    let listener = UnixListener::bind_addr(&address()?)?;
    listener.set_nonblocking(true)?;
    tokio::net::UnixListener::from_std(listener)
}

pub(crate) fn run() -> ExitCode {
    let stream = match connect() {
        Ok(stream) => stream,
        Err(error) => {
            eprintln!("cannot connect to the supervisor: {error}");
            return ExitCode::FAILURE;
        }
    };
    // Not the library's buffered streams: every byte must be passed on at once.
    let file = |fd: io::Result<OwnedFd>| fd.map(File::from);
    let (Ok(socket), Ok(input), Ok(output)) = (
        stream.try_clone(),
        file(io::stdin().as_fd().try_clone_to_owned()),
        file(io::stdout().as_fd().try_clone_to_owned()),
    ) else {
        return ExitCode::FAILURE;
    };
    std::thread::spawn(move || {
        let _ = copy(input, &socket);
        // The server has gone: this ends the supervisor's session and the other copy.
        let _ = socket.shutdown(std::net::Shutdown::Both);
    });
    let _ = copy(&stream, output);
    ExitCode::SUCCESS
}

fn connect() -> io::Result<UnixStream> {
    let address = address()?;
    let started = Instant::now();
    loop {
        match UnixStream::connect_addr(&address) {
            Err(_) if started.elapsed() < CONNECT_TIMEOUT => {
                std::thread::sleep(CONNECT_RETRY_INTERVAL);
            }
            outcome => return outcome,
        }
    }
}

fn copy(mut from: impl Read, mut to: impl Write) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let read = match from.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        if read == 0 {
            return Ok(());
        }
        to.write_all(&buffer[..read])?;
    }
}
