//! `carry`: connects the runtime's channel, which is its input and output, with the supervisor.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

pub(crate) const ROLE: &str = "carry";

/// A name without a file: nothing in the container can take it away from who has it.
const NAME: &str = "oubliette-carry";
/// A supervisor that was just started listens within this time.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(10);
const CHUNK: usize = 64 << 10;

fn address() -> io::Result<SocketAddr> {
    // Tests have several supervisors in one network.
    let name = std::env::var("OUBLIETTE_CARRY").unwrap_or_else(|_| NAME.to_owned());
    SocketAddr::from_abstract_name(name)
}

/// Where the supervisor waits.
pub(crate) fn listen() -> io::Result<tokio::net::UnixListener> {
    let listener = UnixListener::bind_addr(&address()?)?;
    listener.set_nonblocking(true)?;
    tokio::net::UnixListener::from_std(listener)
}

pub(crate) fn run() -> ExitCode {
    let stream = match connect() {
        Ok(stream) => stream,
        Err(error) => {
            eprintln!("the supervisor does not answer: {error}");
            return ExitCode::FAILURE;
        }
    };
    // Not the buffered ones of the library: every byte is somebody's turn.
    let file = |fd: io::Result<OwnedFd>| fd.map(File::from);
    let (Ok(socket), Ok(input), Ok(output)) = (
        stream.try_clone(),
        file(io::stdin().as_fd().try_clone_to_owned()),
        file(io::stdout().as_fd().try_clone_to_owned()),
    ) else {
        return ExitCode::FAILURE;
    };
    std::thread::spawn(move || {
        let _ = pump(input, &socket);
        // The server has gone; the supervisor hears of it, and so does the other half of this.
        let _ = socket.shutdown(std::net::Shutdown::Both);
    });
    let _ = pump(&stream, output);
    ExitCode::SUCCESS
}

fn connect() -> io::Result<UnixStream> {
    let (address, begun) = (address()?, Instant::now());
    loop {
        match UnixStream::connect_addr(&address) {
            Err(_) if begun.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
            outcome => return outcome,
        }
    }
}

fn pump(mut from: impl Read, mut to: impl Write) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    loop {
        let read = match from.read(&mut chunk) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        if read == 0 {
            return Ok(());
        }
        to.write_all(&chunk[..read])?;
    }
}
