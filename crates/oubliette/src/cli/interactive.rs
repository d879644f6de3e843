//! `container exec`: a command in a container, with or without an input and a terminal. Its output is passed on
//! as it arrives, byte for byte.
//!
//! Two calls run concurrently: one waits for output, one sends input. Both carry offsets, so that
//! either can be repeated after a lost connection.

use std::cell::{Cell, RefCell};
use std::io::Write;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use oubliette_engine::operations;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::Signal;
use serde_json::{Map, Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, mpsc};

use super::access::Access;
use super::arguments;
use super::client::Client;
use super::reconnecting::ReconnectingClient;
use crate::failure::Failure;
use crate::terminal::{output, printable};
use crate::tty::{self, RawMode};

pub(super) const INTERACTIVE: &str = "interactive";
const TTY: &str = "tty";
const EXEC_OPERATION: &str = "container_exec";
/// The maximum that the operation accepts.
const CALL_WAIT_SECONDS: f64 = 50.0;
/// Maximum input in one call. Each call is one round trip.
const MAX_CHUNK_BYTES: usize = 2 << 20;
/// Maximum input that is read ahead.
const MAX_PENDING_CHUNKS: usize = 4;
const SIGNAL_TIMEOUT: Duration = Duration::from_secs(2);
const CTRL_C: u8 = 3;
/// The exit code of a command that was interrupted.
const INTERRUPTED: u8 = 130;
/// That of a program whose output has no reader any more, for example because `head` has seen enough.
const READER_GONE: u8 = 141;
/// What `-it` runs without a command.
const DEFAULT_SHELL: &str = "command -v bash > /dev/null && exec bash; exec sh";

/// Options of the operation that make one call of it, whose result is printed when it returns.
const FOR_PROGRAMS: [&str; 7] = [
    "wait_seconds",
    "terminal",
    "offsets",
    "close_stdin",
    "signal",
    "encoding",
    "exec_id",
];
const TIMEOUT: &str = "timeout_seconds";

/// Whether the command is to be one call of the operation, with its limits of time and output.
pub(super) fn is_single_call(matches: &ArgMatches) -> bool {
    let is_given = |name: &&str| matches.value_source(name) == Some(ValueSource::CommandLine);
    output::is_json() || FOR_PROGRAMS.iter().any(is_given)
}

pub(super) fn add_flags(command: Command) -> Command {
    FOR_PROGRAMS
        .into_iter()
        .fold(command, |command, name| {
            command.mut_arg(name, |arg| arg.help_heading("Options for programs"))
        })
        .long_about(
            "Run a command in a project's container, print its output and exit with its exit code. \
             Starts the container if it is not running. The output is passed on as it arrives. The \
             command goes on if the server is restarted. Ctrl-C interrupts it; pressed again, it hangs up. \
             With --json or an option for programs, the result is printed when the command has ended, with at \
             most 1 MiB of each stream, and the command is killed after --timeout (50 seconds if absent).",
        )
        .mut_arg(TIMEOUT, |arg| {
            arg.long("timeout")
                .alias("timeout-seconds")
                .value_name("SECONDS")
                .help("Kill the command, with every process it started, after this time [default: no limit]")
        })
        .arg(
            Arg::new(INTERACTIVE)
                .short('i')
                .long(INTERACTIVE)
                .action(ArgAction::SetTrue)
                .conflicts_with_all(FOR_PROGRAMS)
                .conflicts_with_all(["stdin", "json"])
                .help("Pass the standard input to the command"),
        )
        .arg(
            Arg::new(TTY)
                .short('t')
                .long(TTY)
                .action(ArgAction::SetTrue)
                .requires(INTERACTIVE)
                .help("Give the command a terminal; needs -i. Without a command, starts a shell"),
        )
        .after_help(
            "Examples:\n  oubliette container exec hello 'uname -a; pwd'\n  oubliette container \
             exec -it hello\n  oubliette container exec -i hello -- tar x < files.tar",
        )
}

/// Runs a command interactively and returns its exit code.
pub(super) async fn run(
    matches: &ArgMatches,
    access: &Access,
    mut given: Map<String, Value>,
) -> Result<(), Failure> {
    let terminal = matches.get_flag(TTY);
    let timeout = given.remove(TIMEOUT).and_then(|seconds| seconds.as_f64());
    let timeout = timeout.map(check_timeout).transpose()?;
    let input = match given.remove("stdin") {
        _ if terminal => Input::Terminal,
        _ if matches.get_flag(INTERACTIVE) => Input::Stdin,
        Some(Value::String(text)) => Input::Text(text),
        _ => Input::None,
    };
    if terminal && !tty::is_terminal() {
        return Err(Failure::new(
            "-t needs a terminal, and the standard input is not one; use -i alone",
        ));
    }
    if terminal {
        given
            .entry("command")
            .or_insert_with(|| Value::from(DEFAULT_SHELL));
        add_terminal_kind(&mut given);
    }
    let client = Client::connect(access).await?;
    let interruption = tokio::signal::ctrl_c();
    let exec = Exec { input, timeout };
    Box::pin(exchange(access, client, given, exec, interruption)).await
}

fn check_timeout(seconds: f64) -> Result<Duration, Failure> {
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|timeout| !timeout.is_zero())
        .ok_or_else(|| Failure::new(format!("--timeout is {seconds}; it must be more than 0")))
}

/// Runs a command on the terminal of this process and returns its exit code.
pub(super) async fn run_on_terminal(
    access: &Access,
    client: Client,
    mut given: Map<String, Value>,
) -> Result<(), Failure> {
    add_terminal_kind(&mut given);
    let exec = Exec {
        input: Input::Terminal,
        timeout: None,
    };
    Box::pin(exchange(
        access,
        client,
        given,
        exec,
        std::future::pending(),
    ))
    .await
}

/// Where the input of a command comes from.
enum Input {
    Terminal,
    Stdin,
    Text(String),
    /// It is closed from the beginning.
    None,
}

struct Exec {
    input: Input,
    timeout: Option<Duration>,
}

fn add_terminal_kind(given: &mut Map<String, Value>) {
    let variables = given.entry("env").or_insert_with(|| json!({}));
    if let (Some(variables), Ok(kind)) = (variables.as_object_mut(), std::env::var("TERM")) {
        variables.entry("TERM").or_insert(Value::from(kind));
    }
}

async fn exchange(
    access: &Access,
    client: Client,
    mut given: Map<String, Value>,
    Exec { input, timeout }: Exec,
    interruption: impl Future<Output = std::io::Result<()>>,
) -> Result<(), Failure> {
    let terminal = matches!(input, Input::Terminal);
    let client = ReconnectingClient::new(access, client);
    let mut common = Map::new();
    common.insert("project_id".to_owned(), json!(given.get("project_id")));
    common.insert("exec_id".to_owned(), json!(uuid::Uuid::new_v4()));
    common.insert("encoding".to_owned(), json!("base64"));
    given.extend(common.clone());
    given.insert("wait_seconds".to_owned(), json!(0));
    given.insert("offsets".to_owned(), json!({}));
    if let (true, Some(size)) = (terminal, size()) {
        given.insert("terminal".to_owned(), size);
    }
    if matches!(input, Input::None) {
        given.insert("close_stdin".to_owned(), json!(true));
    }
    let started = tokio::select! {
        started = client.call(EXEC_OPERATION, &given) => started?,
        // The container is still starting; the command may have been started meanwhile.
        Ok(()) = interruption => {
            let call = json!({ "signal": "hangup", "offsets": {}, "wait_seconds": 0 });
            if let Value::Object(call) = call {
                common.extend(call);
            }
            let hanging_up = client.call(EXEC_OPERATION, &common);
            let _ = tokio::time::timeout(SIGNAL_TIMEOUT, hanging_up).await;
            return Err(Failure::Exit(INTERRUPTED));
        }
    };
    if let Some(workspace) = started.get("workspace_id") {
        common.insert("workspace_id".to_owned(), workspace.clone());
    }
    let exec = InteractiveExec {
        client,
        common,
        terminal,
        input: RefCell::default(),
        input_ready: Notify::new(),
        input_taken: Notify::new(),
        stdin_closed: Cell::new(false),
        timed_out: Cell::new(false),
        is_unread: Cell::new(false),
    };
    if started.get("running") == Some(&Value::Bool(false)) {
        print_output(&started)?;
        return exit_result(&started);
    }
    if let Input::Text(text) = &input {
        exec.input.replace(text.clone().into_bytes());
        exec.stdin_closed.set(true);
        exec.input_ready.notify_one();
    }
    let raw = if terminal {
        RawMode::enter().map_err(|error| Failure::with_cause("cannot use the terminal", &error))?
    } else {
        None
    };
    let result = tokio::select! {
        result = exec.receive_output() => result,
        failure = exec.send_input() => Err(failure),
        failure = exec.read_stdin(), if matches!(input, Input::Terminal | Input::Stdin) => Err(failure),
        failure = exec.enforce_timeout(timeout) => Err(failure),
        failure = exec.handle_signals(raw.as_ref()) => Err(failure),
    };
    if exec.is_unread.get() {
        exec.send_signal("hangup").await;
    }
    let result = match timeout.filter(|_| exec.timed_out.get()) {
        Some(timeout) => Err(timed_out(timeout)),
        None => result,
    };
    if raw.is_some() && matches!(result, Err(Failure::Failed(_))) {
        // The command may have left the cursor in the middle of a line.
        eprint!("\r\n");
    }
    drop(raw);
    result
}

fn timed_out(timeout: Duration) -> Failure {
    Failure::new(format!(
        "the command was killed at its timeout of {} s; raise it with --timeout, or leave it out",
        timeout.as_secs_f64()
    ))
}

/// Waits until the standard input can be read; false if the pipe was closed before.
fn wait_for_input(ended: &std::io::PipeReader) -> bool {
    let stdin = rustix::stdio::stdin();
    let mut waited = [
        PollFd::new(&stdin, PollFlags::IN),
        PollFd::new(ended, PollFlags::IN),
    ];
    loop {
        match poll(&mut waited, None) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return waited[1].revents().is_empty(),
            Err(_) => return false,
        }
    }
}

/// The terminal's size as a parameter of the operation.
fn size() -> Option<Value> {
    tty::size().map(|(rows, columns)| json!({ "rows": rows, "columns": columns }))
}

fn print_output(result: &Map<String, Value>) -> Result<(), Failure> {
    print_streams(["stdout", "stderr"].map(|name| result.get(name).cloned()))
}

/// Prints the standard output and the standard error of a command.
fn print_streams([stdout, stderr]: [Option<Value>; 2]) -> Result<(), Failure> {
    let bytes = |text: Option<Value>| match text {
        Some(Value::String(text)) => STANDARD.decode(text).unwrap_or_default(),
        _ => Vec::new(),
    };
    let write = |mut out: Box<dyn Write>, bytes: Vec<u8>| out.write_all(&bytes).and(out.flush());
    let shown = write(Box::new(std::io::stdout().lock()), bytes(stdout));
    shown.map_err(|error| match error.kind() {
        std::io::ErrorKind::BrokenPipe => Failure::Exit(READER_GONE),
        _ => Failure::with_cause("cannot write the output", &error),
    })?;
    let _ = write(Box::new(std::io::stderr().lock()), bytes(stderr));
    Ok(())
}

fn exit_result(result: &Map<String, Value>) -> Result<(), Failure> {
    if let Some(reached) = result.get("limit_reached").and_then(Value::as_str) {
        let operation = operations::find(EXEC_OPERATION);
        let reached = operation.map_or(reached.to_owned(), |entry| {
            arguments::in_command_words(entry, reached)
        });
        eprintln!("({})", printable(&reached));
    }
    match result.get("exit_code").and_then(Value::as_i64) {
        Some(0) => Ok(()),
        code => Err(Failure::Exit(
            code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1),
        )),
    }
}

/// A running interactive command.
struct InteractiveExec<'a> {
    client: ReconnectingClient<'a>,
    /// The parameters of every call.
    common: Map<String, Value>,
    terminal: bool,
    /// Input that was read and not sent yet.
    input: RefCell<Vec<u8>>,
    input_ready: Notify,
    input_taken: Notify,
    /// Whether the standard input has ended.
    stdin_closed: Cell<bool>,
    timed_out: Cell<bool>,
    /// Whether the output cannot be printed any more.
    is_unread: Cell<bool>,
}

impl InteractiveExec<'_> {
    fn call_params(&self, specific: Value) -> Map<String, Value> {
        let mut params = self.common.clone();
        if let Value::Object(specific) = specific {
            params.extend(specific);
        }
        params
    }

    /// Prints the command's output until it exits.
    async fn receive_output(&self) -> Result<(), Failure> {
        // A terminal has one output stream.
        let mut offsets = if self.terminal {
            json!({ "stdout": 0 })
        } else {
            json!({ "stdout": 0, "stderr": 0 })
        };
        let mut printing = tokio::task::spawn_blocking(|| Ok(()));
        loop {
            let call =
                self.call_params(json!({ "offsets": offsets, "wait_seconds": CALL_WAIT_SECONDS }));
            // While the output of the last call is printed.
            let mut result = self.client.call(EXEC_OPERATION, &call).await?;
            let failed = |error| Failure::with_cause("cannot write the output", &error);
            let printed = printing.await.map_err(failed)?;
            printed.inspect_err(|_| self.is_unread.set(true))?;
            let shown = ["stdout", "stderr"].map(|name| result.remove(name));
            // The reader of our output may be slow; input must not wait for it.
            printing = tokio::task::spawn_blocking(move || print_streams(shown));
            if result.get("running") != Some(&Value::Bool(true)) {
                printing.await.map_err(failed)??;
                return exit_result(&result);
            }
            offsets = result.get("offsets").cloned().unwrap_or(offsets);
        }
    }

    /// Sends the input that was read.
    async fn send_input(&self) -> Failure {
        let mut offset = 0u64;
        loop {
            let more = self.input_ready.notified();
            let (bytes, last) = {
                let input = self.input.borrow();
                let bytes = input[..input.len().min(MAX_CHUNK_BYTES)].to_vec();
                let last = self.stdin_closed.get() && bytes.len() == input.len();
                (bytes, last)
            };
            if bytes.is_empty() && !last {
                more.await;
                continue;
            }
            let call = self.call_params(json!({
                "stdin": STANDARD.encode(&bytes),
                "offsets": { "stdin": offset },
                "close_stdin": last && !self.terminal,
                "wait_seconds": CALL_WAIT_SECONDS,
            }));
            let result = match self.client.call(EXEC_OPERATION, &call).await {
                Ok(result) => result,
                Err(failure) => return failure,
            };
            let taken = result
                .get("offsets")
                .and_then(|at| at.get("stdin")?.as_u64());
            let taken = taken.unwrap_or(offset).saturating_sub(offset);
            offset += taken;
            let taken = usize::try_from(taken).unwrap_or(usize::MAX);
            let left = self.discard_input(taken);
            self.input_taken.notify_one();
            if last && left == 0 {
                // `receive_output` sees the end of the command.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Discards input that the server has received; returns how much is left.
    fn discard_input(&self, taken: usize) -> usize {
        let mut input = self.input.borrow_mut();
        let taken = taken.min(input.len());
        input.drain(..taken);
        input.len()
    }

    /// Sends a signal to the command; failures are ignored.
    async fn send_signal(&self, signal: &str) {
        let call = self.call_params(json!({ "signal": signal, "offsets": {}, "wait_seconds": 0 }));
        let _ = tokio::time::timeout(SIGNAL_TIMEOUT, self.client.call(EXEC_OPERATION, &call)).await;
    }

    /// Kills the command at its timeout.
    async fn enforce_timeout(&self, timeout: Option<Duration>) -> Failure {
        let Some(timeout) = timeout else {
            return std::future::pending().await;
        };
        tokio::time::sleep(timeout).await;
        self.timed_out.set(true);
        self.send_signal("kill").await;
        // `receive_output` prints the rest of the output and sees the end of the command.
        tokio::time::sleep(SIGNAL_TIMEOUT).await;
        timed_out(timeout)
    }

    /// Reads the standard input. Returns only if the user gives up or the terminal is closed.
    async fn read_stdin(&self) -> Failure {
        let (sender, mut chunks) = mpsc::channel::<Vec<u8>>(MAX_PENDING_CHUNKS);
        // Closed when this function ends, which ends the thread: keys that are typed later are for
        // another reader.
        let (ended, _open) = match std::io::pipe() {
            Ok(pipe) => pipe,
            Err(error) => return Failure::with_cause("cannot read the input", &error),
        };
        // A detached thread: O_NONBLOCK would affect every process that shares the terminal.
        std::thread::spawn(move || {
            let mut chunk = vec![0; MAX_CHUNK_BYTES];
            loop {
                if !wait_for_input(&ended) {
                    return;
                }
                match rustix::io::read(rustix::stdio::stdin(), &mut chunk[..]) {
                    Err(rustix::io::Errno::INTR) => {}
                    Ok(read) if read > 0 => {
                        if sender.blocking_send(chunk[..read].to_vec()).is_err() {
                            return;
                        }
                    }
                    _ => return,
                }
            }
        });
        while let Some(chunk) = chunks.recv().await {
            if self.client.is_disconnected() && self.terminal && chunk.contains(&CTRL_C) {
                return Failure::new(
                    "given up; the command keeps running for ten minutes, then the server kills it",
                );
            }
            self.input.borrow_mut().extend(chunk);
            self.input_ready.notify_one();
            // A terminal is always read, or Ctrl-C would not be seen.
            while self.input.borrow().len() > MAX_PENDING_CHUNKS * MAX_CHUNK_BYTES && !self.terminal
            {
                self.input_taken.notified().await;
            }
            self.input
                .borrow_mut()
                .truncate(2 * MAX_PENDING_CHUNKS * MAX_CHUNK_BYTES);
        }
        if self.terminal {
            self.send_signal("hangup").await;
            return Failure::new("the terminal was closed; a hangup was sent to the command");
        }
        self.stdin_closed.set(true);
        self.input_ready.notify_one();
        std::future::pending().await
    }

    /// Handles signals: changes of the terminal's size, and requests to end.
    async fn handle_signals(&self, raw: Option<&RawMode>) -> Failure {
        let kind = |signal: Signal| SignalKind::from_raw(signal.as_raw());
        let all = [
            Signal::WINCH,
            Signal::CONT,
            Signal::INT,
            Signal::TERM,
            Signal::HUP,
        ];
        let [
            Ok(mut size_changed),
            Ok(mut continued),
            Ok(mut interrupt),
            Ok(mut terminate),
            Ok(mut hangup),
        ] = all.map(|number| signal(kind(number)))
        else {
            return Failure::new("cannot wait for signals");
        };
        let mut interrupted = false;
        loop {
            let end = tokio::select! {
                _ = size_changed.recv() => None,
                _ = continued.recv() => {
                    if let Some(raw) = raw {
                        let _ = raw.reapply();
                    }
                    None
                }
                _ = interrupt.recv() => Some(Signal::INT),
                _ = terminate.recv() => Some(Signal::TERM),
                _ = hangup.recv() => Some(Signal::HUP),
            };
            match end {
                // The first goes to the command, which may handle it.
                Some(Signal::INT) if !interrupted => {
                    interrupted = true;
                    self.send_signal("interrupt").await;
                }
                Some(signal) => {
                    self.send_signal("hangup").await;
                    let code = 128 + signal.as_raw();
                    return Failure::Exit(u8::try_from(code).unwrap_or(1));
                }
                None if !self.terminal => {}
                None => {
                    let call = json!({ "terminal": size(), "offsets": {}, "wait_seconds": 0 });
                    if let Err(failure) = self
                        .client
                        .call(EXEC_OPERATION, &self.call_params(call))
                        .await
                    {
                        return failure;
                    }
                }
            }
        }
    }
}
