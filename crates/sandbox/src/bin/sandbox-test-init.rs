//! The PID 1 and launcher of this crate's tests: runs the commands that come over a socket.

#[cfg(target_os = "linux")]
mod serve {
    use std::collections::HashMap;
    use std::fs::File;
    use std::io::{self, BufRead, BufReader, Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::sync::{Arc, Condvar, Mutex, PoisonError};
    use std::thread;

    use oubliette_sandbox::process::{
        Exit, ProcessSpec, Streams, TerminalSize, User, protect_self, spawn, wait_any,
        wait_for_termination,
    };
    use serde_json::{Value, json};

    type Exits = Arc<(Mutex<HashMap<i32, Exit>>, Condvar)>;

    pub(crate) fn run(socket: &str) -> io::Result<()> {
        protect_self()?;
        // Left by a run before; the directory outlives the sandbox.
        let _ = std::fs::remove_file(socket);
        let listener = UnixListener::bind(socket)?;
        rustix::fs::chmod(socket, rustix::fs::Mode::from_raw_mode(0o666))?;
        let exits = Exits::default();
        thread::spawn({
            let exits = exits.clone();
            move || collect(&exits)
        });
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let exits = exits.clone();
                let Ok(copy) = connection.try_clone() else {
                    continue;
                };
                let answering = thread::Builder::new().spawn({
                    let exits = exits.clone();
                    move || answer(copy, &exits)
                });
                // With every process of the sandbox in use there is no thread either.
                if answering.is_err() {
                    let _ = answer(connection, &exits);
                }
            }
        });
        wait_for_termination();
        Ok(())
    }

    fn collect(exits: &Exits) {
        loop {
            match wait_any() {
                Some(exited) => {
                    let (map, changed) = &**exits;
                    let mut map = map.lock().unwrap_or_else(PoisonError::into_inner);
                    map.insert(exited.pid, exited.exit);
                    changed.notify_all();
                }
                // No child at the moment.
                None => thread::sleep(std::time::Duration::from_millis(1)),
            }
        }
    }

    fn wait_for(pid: i32, exits: &Exits) -> Exit {
        let (map, changed) = &**exits;
        let mut map = map.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(exit) = map.remove(&pid) {
                return exit;
            }
            map = changed.wait(map).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn answer(connection: UnixStream, exits: &Exits) -> io::Result<()> {
        let mut line = String::new();
        BufReader::new(&connection).read_line(&mut line)?;
        let request: Value = serde_json::from_str(&line)?;
        let result = execute(&request, exits);
        let answer = result.unwrap_or_else(|error| json!({ "error": error.to_string() }));
        (&connection).write_all(answer.to_string().as_bytes())
    }

    fn execute(request: &Value, exits: &Exits) -> Result<Value, Box<dyn std::error::Error>> {
        let strings = |value: &Value| -> Vec<String> {
            let items = value.as_array().into_iter().flatten();
            items
                .filter_map(|item| item.as_str().map(str::to_owned))
                .collect()
        };
        let user = request["uid"].as_u64().map(|uid| User {
            uid: uid as u32,
            gid: uid as u32,
            groups: vec![],
        });
        let spec = ProcessSpec {
            argv: strings(&request["argv"]),
            env: std::env::vars().collect(),
            cwd: request["cwd"].as_str().unwrap_or("/").into(),
            user,
            pty: request["pty"]
                .as_bool()
                .unwrap_or(false)
                .then_some(TerminalSize {
                    rows: 33,
                    columns: 77,
                }),
            session_leader: true,
        };
        let spawned = match spawn(&spec) {
            Ok(spawned) => spawned,
            Err(error) => {
                let errno = error.source.raw_os_error();
                return Ok(json!({ "step": format!("{:?}", error.step), "errno": errno }));
            }
        };
        let (stdout, stderr) = match spawned.streams {
            Streams::Pipes {
                stdin,
                stdout,
                stderr,
            } => {
                let mut stdin = File::from(stdin);
                // A program that does not read its input is no failure.
                let _ = stdin.write_all(request["stdin"].as_str().unwrap_or("").as_bytes());
                drop(stdin);
                let errors = thread::Builder::new().spawn(move || drain(File::from(stderr)));
                let stdout = drain(File::from(stdout));
                let stderr = errors.map(|errors| errors.join().unwrap_or_default());
                (stdout, stderr.unwrap_or_default())
            }
            Streams::Terminal(control) => (drain(File::from(control)), String::new()),
        };
        let (code, signal) = match wait_for(spawned.pid, exits) {
            Exit::Code(code) => (Some(code), None),
            Exit::Signal(signal) => (None, Some(signal)),
        };
        Ok(json!({ "code": code, "signal": signal, "stdout": stdout, "stderr": stderr }))
    }

    /// All output; a terminal ends with an error where a pipe just ends.
    fn drain(mut from: File) -> String {
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
