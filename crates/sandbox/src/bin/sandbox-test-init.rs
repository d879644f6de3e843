//! The PID 1 and launcher of this crate's tests: runs the commands that it gets through a socket. It
//! reaps only its own children; orphans end with the sandbox.

#[cfg(target_os = "linux")]
mod serve {
    use std::fs::File;
    use std::io::{self, BufRead, BufReader, Read, Write};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::{Command, Stdio};
    use std::thread;

    use rustix::process::DumpableBehavior;
    use rustix::pty::OpenptFlags;
    use serde_json::{Value, json};

    pub(crate) fn run(socket: &str) -> io::Result<()> {
        rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
        if let Some(rules) = oubliette_sandbox::PortRules::inherited()? {
            rules.restrict_thread()?;
        }
        // An earlier run may have left one: the directory outlives the sandbox.
        let _ = std::fs::remove_file(socket);
        let listener = UnixListener::bind(socket)?;
        // The last step: tests that wait for the socket notice the change of its mode.
        rustix::fs::chmod(socket, rustix::fs::Mode::from_raw_mode(0o666))?;
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let Ok(copy) = connection.try_clone() else {
                    continue;
                };
                let spawned = thread::Builder::new().spawn(move || handle_request(&copy));
                // At the sandbox's limit of processes no thread can be started either.
                if spawned.is_err() {
                    let _ = handle_request(&connection);
                }
            }
        });
        wait_for_termination();
        Ok(())
    }

    /// PID 1 gets no signal that it does not wait for.
    fn wait_for_termination() {
        // SAFETY: `sigemptyset` initialises the set before its use, and it outlives the calls.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGTERM);
            libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            let mut received = 0;
            libc::sigwait(&raw const set, &raw mut received);
        }
    }

    fn handle_request(mut connection: &UnixStream) -> io::Result<()> {
        let mut line = String::new();
        BufReader::new(connection).read_line(&mut line)?;
        let request: Value = serde_json::from_str(&line)?;
        let reply = execute(&request).unwrap_or_else(|error| {
            // The program is missing or cannot be started.
            json!({ "refused": error.raw_os_error().unwrap_or_default() })
        });
        connection.write_all(reply.to_string().as_bytes())
    }

    fn execute(request: &Value) -> io::Result<Value> {
        let mut words: Vec<&str> = Vec::new();
        let terminal = match request["pty"].as_bool() {
            Some(true) => {
                // A new session, whose first terminal becomes its controlling one.
                words.extend(["setsid", "--ctty"]);
                Some(terminal()?)
            }
            _ => None,
        };
        let given = request["argv"].as_array().into_iter().flatten();
        words.extend(given.filter_map(Value::as_str));
        let mut command = Command::new(words.first().unwrap_or(&""));
        command.args(words.iter().skip(1)).current_dir("/");
        if let Some(id) = request["uid"].as_u64() {
            command.uid(id as u32).gid(id as u32);
        }
        match &terminal {
            Some((_, peer)) => {
                let end = || peer.try_clone().map(Stdio::from);
                command.stdin(end()?).stdout(end()?).stderr(end()?)
            }
            None => command
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::null()),
        };
        let mut child = command.spawn()?;
        // It would hold the terminal open.
        drop(command);
        let stdout = match (terminal, child.stdout.take()) {
            (Some((control, peer)), _) => {
                drop(peer);
                drain(File::from(control))
            }
            (None, Some(stdout)) => drain(stdout),
            (None, None) => String::new(),
        };
        let status = child.wait()?;
        let (code, signal) = (status.code(), status.signal());
        Ok(json!({ "code": code, "signal": signal, "stdout": stdout }))
    }

    /// Both sides of a terminal.
    fn terminal() -> io::Result<(OwnedFd, OwnedFd)> {
        use rustix::pty::{ioctl_tiocgptpeer, openpt, unlockpt};
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let control = openpt(flags)?;
        unlockpt(&control)?;
        let size = rustix::termios::Winsize {
            ws_row: 33,
            ws_col: 77,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        rustix::termios::tcsetwinsize(&control, size)?;
        let peer = ioctl_tiocgptpeer(&control, flags)?;
        Ok((control, peer))
    }

    /// Reads all output; a terminal ends with an error instead of end of file.
    fn drain(mut from: impl Read) -> String {
        let mut all = Vec::new();
        let mut chunk = [0; 8192];
        while let Ok(len) = from.read(&mut chunk) {
            if len == 0 {
                break;
            }
            all.extend_from_slice(&chunk[..len]);
        }
        String::from_utf8_lossy(&all).into_owned()
    }
}

fn main() -> std::process::ExitCode {
    if let Some(code) = oubliette_sandbox::launcher_main() {
        return code;
    }
    #[cfg(target_os = "linux")]
    {
        let socket = std::env::args().nth(1).unwrap_or_default();
        if let Err(error) = serve::run(&socket) {
            eprintln!("{error}");
            return std::process::ExitCode::FAILURE;
        }
    }
    std::process::ExitCode::SUCCESS
}
