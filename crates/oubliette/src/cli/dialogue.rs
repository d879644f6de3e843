//! `container exec -i` and `-it`: a command that is talked to, a terminal for one.
//!
//! Two calls are always under way: one waits for output, one brings input. Both name offsets, so
//! that either can be repeated after the connection broke.

use std::cell::{Cell, RefCell};
use std::io::Write;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::{Arg, ArgAction, ArgMatches, Command};
use oubliette_engine::operations::Entry;
use rustix::process::Signal;
use serde_json::{Map, Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, mpsc};

use super::client::{Access, Client};
use super::line::Line;
use super::names;
use crate::failure::Failure;
use crate::tty::{self, Raw};

pub(super) const INTERACTIVE: &str = "interactive";
const TTY: &str = "tty";
const OPERATION: &str = "container_exec";
/// As long as a call may wait.
const WAIT: f64 = 50.0;
/// Most bytes of input in one call.
const CHUNK: usize = 64 << 10;
/// Chunks of input that were read and not sent yet.
const AHEAD: usize = 16;
/// How long sending a signal may take.
const SIGNAL: Duration = Duration::from_secs(2);
const CTRL_C: u8 = 3;
/// What `-it` runs if nothing is named.
const SHELL: &str = "command -v bash > /dev/null && exec bash; exec sh";

pub(super) fn flags(command: Command) -> Command {
    let alone = [
        "stdin",
        "timeout_seconds",
        "wait_seconds",
        "terminal",
        "offsets",
        "close_stdin",
        "signal",
        "encoding",
        "exec_id",
        "json",
    ];
    command
        .arg(
            Arg::new(INTERACTIVE)
                .short('i')
                .long(INTERACTIVE)
                .action(ArgAction::SetTrue)
                .conflicts_with_all(alone)
                .help("Pass on the standard input, and show output as it comes"),
        )
        .arg(
            Arg::new(TTY)
                .short('t')
                .long(TTY)
                .action(ArgAction::SetTrue)
                .requires(INTERACTIVE)
                .help("Give the command a terminal; with -i, and a shell if no command is named"),
        )
        .after_help(
            "Examples:\n  oubliette container exec hello 'uname -a; pwd'\n  oubliette container \
             exec -it hello\n  oubliette container exec -i hello -- tar x < files.tar",
        )
}

/// Talks to a command until it ends, and ends as it ended.
pub(super) async fn run(
    matches: &ArgMatches,
    access: &Access,
    entry: &'static Entry,
    mut given: Map<String, Value>,
) -> Result<(), Failure> {
    let terminal = matches.get_flag(TTY);
    if terminal && !tty::is_terminal() {
        return Err(Failure::new(
            "-t needs a terminal, and the standard input is none; use -i alone to pass it on",
        ));
    }
    if terminal {
        given.entry("command").or_insert_with(|| Value::from(SHELL));
        let variables = given.entry("env").or_insert_with(|| json!({}));
        if let (Some(variables), Ok(kind)) = (variables.as_object_mut(), std::env::var("TERM")) {
            variables.entry("TERM").or_insert(Value::from(kind));
        }
    }
    let client = Client::connect(access).await?;
    let mut given = names::resolve(entry, given, &client).await?;
    let line = Line::new(access, client);
    let mut same = Map::new();
    same.insert("project_id".to_owned(), json!(given.get("project_id")));
    same.insert("exec_id".to_owned(), json!(uuid::Uuid::new_v4()));
    same.insert("encoding".to_owned(), json!("base64"));
    given.extend(same.clone());
    given.insert("wait_seconds".to_owned(), json!(0));
    given.insert("offsets".to_owned(), json!({}));
    if let (true, Some(size)) = (terminal, size()) {
        given.insert("terminal".to_owned(), size);
    }
    let started = line.call(OPERATION, &given).await?;
    if let Some(workspace) = started.get("workspace_id") {
        same.insert("workspace_id".to_owned(), workspace.clone());
    }
    let talk = Talk {
        line,
        same,
        terminal,
        input: RefCell::default(),
        more: Notify::new(),
        room: Notify::new(),
        closed: Cell::new(false),
    };
    if started.get("running") == Some(&Value::Bool(false)) {
        show(&started)?;
        return ended(&started);
    }
    let raw = match terminal {
        true => Raw::enter().map_err(|error| Failure::of("the terminal cannot be used", &error))?,
        false => None,
    };
    let result = tokio::select! {
        result = talk.listen() => result,
        failure = talk.bring() => Err(failure),
        failure = talk.read() => Err(failure),
        failure = talk.heed(raw.as_ref()) => Err(failure),
    };
    if raw.is_some() && matches!(result, Err(Failure::Failed(_))) {
        // The cursor is wherever the command left it.
        eprint!("\r\n");
    }
    drop(raw);
    result
}

/// The size of the terminal, as the operation takes it.
fn size() -> Option<Value> {
    tty::size().map(|(rows, columns)| json!({ "rows": rows, "columns": columns }))
}

fn show(result: &Map<String, Value>) -> Result<(), Failure> {
    let bytes = |name: &str| {
        let text = result.get(name).and_then(Value::as_str).unwrap_or_default();
        STANDARD.decode(text).unwrap_or_default()
    };
    let write = |mut out: Box<dyn Write>, bytes: Vec<u8>| out.write_all(&bytes).and(out.flush());
    let shown = write(Box::new(std::io::stdout().lock()), bytes("stdout"));
    shown.map_err(|error| Failure::of("the output cannot be written", &error))?;
    let _ = write(Box::new(std::io::stderr().lock()), bytes("stderr"));
    Ok(())
}

fn ended(result: &Map<String, Value>) -> Result<(), Failure> {
    match result.get("exit_code").and_then(Value::as_i64) {
        Some(0) => Ok(()),
        code => Err(Failure::Exit(
            code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1),
        )),
    }
}

/// A command that is talked to.
struct Talk<'a> {
    line: Line<'a>,
    /// What every call says.
    same: Map<String, Value>,
    terminal: bool,
    /// What was read and not sent yet.
    input: RefCell<Vec<u8>>,
    more: Notify,
    room: Notify,
    /// No more input will be read.
    closed: Cell<bool>,
}

impl Talk<'_> {
    fn call(&self, what: Value) -> Map<String, Value> {
        let mut call = self.same.clone();
        if let Value::Object(what) = what {
            call.extend(what);
        }
        call
    }

    /// Shows what the command says, to its end.
    async fn listen(&self) -> Result<(), Failure> {
        // A terminal has one output.
        let mut offsets = match self.terminal {
            true => json!({ "stdout": 0 }),
            false => json!({ "stdout": 0, "stderr": 0 }),
        };
        loop {
            let call = self.call(json!({ "offsets": offsets, "wait_seconds": WAIT }));
            let result = self.line.call(OPERATION, &call).await?;
            let shown = result.clone();
            // Whoever reads our output may take its time; input must not wait for that.
            tokio::task::spawn_blocking(move || show(&shown))
                .await
                .map_err(|error| Failure::of("the output cannot be written", &error))??;
            if result.get("running") != Some(&Value::Bool(true)) {
                return ended(&result);
            }
            offsets = result.get("offsets").cloned().unwrap_or(offsets);
        }
    }

    /// Sends what was read.
    async fn bring(&self) -> Failure {
        let mut offset = 0u64;
        loop {
            let more = self.more.notified();
            let (bytes, last) = {
                let input = self.input.borrow();
                let bytes = input[..input.len().min(CHUNK)].to_vec();
                let last = self.closed.get() && bytes.len() == input.len();
                (bytes, last)
            };
            if bytes.is_empty() && !last {
                more.await;
                continue;
            }
            let call = self.call(json!({
                "stdin": STANDARD.encode(&bytes),
                "offsets": { "stdin": offset },
                "close_stdin": last && !self.terminal,
                "wait_seconds": WAIT,
            }));
            let result = match self.line.call(OPERATION, &call).await {
                Ok(result) => result,
                Err(failure) => return failure,
            };
            let taken = result
                .get("offsets")
                .and_then(|at| at.get("stdin")?.as_u64());
            let taken = taken.unwrap_or(offset).saturating_sub(offset);
            offset += taken;
            let taken = usize::try_from(taken).unwrap_or(usize::MAX);
            let left = self.take(taken);
            self.room.notify_one();
            if last && left == 0 {
                // Its end is heard, not sent.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Lets go of input that has arrived; how much is left.
    fn take(&self, taken: usize) -> usize {
        let mut input = self.input.borrow_mut();
        let taken = taken.min(input.len());
        input.drain(..taken);
        input.len()
    }

    /// Sends a signal, if that is possible.
    async fn send(&self, signal: &str) {
        let call = json!({ "signal": signal, "offsets": {}, "wait_seconds": 0 });
        let call = self.call(call);
        let _ = tokio::time::timeout(SIGNAL, self.line.call(OPERATION, &call)).await;
    }

    /// Reads the standard input. Returns only if the person wants no more.
    async fn read(&self) -> Failure {
        let (sender, mut chunks) = mpsc::channel::<Vec<u8>>(AHEAD);
        // A thread of its own, which nobody waits for: a read cannot be taken back, and setting the
        // terminal to not wait would do that to everybody who shares it.
        std::thread::spawn(move || {
            let mut chunk = vec![0; CHUNK];
            loop {
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
            if self.line.is_lost() && self.terminal && chunk.contains(&CTRL_C) {
                return Failure::new(
                    "given up; the command goes on for ten minutes, then it is ended",
                );
            }
            self.input.borrow_mut().extend(chunk);
            self.more.notify_one();
            // What a person types is always read, or Ctrl-C would not be seen.
            while self.input.borrow().len() > AHEAD * CHUNK && !self.terminal {
                self.room.notified().await;
            }
            self.input.borrow_mut().truncate(2 * AHEAD * CHUNK);
        }
        if self.terminal {
            self.send("hangup").await;
            return Failure::new("the terminal has gone, and the command with it");
        }
        self.closed.set(true);
        self.more.notify_one();
        std::future::pending().await
    }

    /// Heeds signals: the terminal's size changed, or somebody wants us to end.
    async fn heed(&self, raw: Option<&Raw>) -> Failure {
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
            Ok(mut went_on),
            Ok(mut interrupt),
            Ok(mut terminate),
            Ok(mut hang_up),
        ] = all.map(|one| signal(kind(one)))
        else {
            return Failure::new("signals cannot be waited for");
        };
        let mut interrupted = false;
        loop {
            let end = tokio::select! {
                _ = size_changed.recv() => None,
                _ = went_on.recv() => {
                    if let Some(raw) = raw {
                        let _ = raw.again();
                    }
                    None
                }
                _ = interrupt.recv() => Some(Signal::INT),
                _ = terminate.recv() => Some(Signal::TERM),
                _ = hang_up.recv() => Some(Signal::HUP),
            };
            match end {
                // The first goes to the command, which may have its own mind about it.
                Some(Signal::INT) if !interrupted => {
                    interrupted = true;
                    self.send("interrupt").await;
                }
                Some(signal) => {
                    self.send("hangup").await;
                    let code = 128 + signal.as_raw();
                    return Failure::Exit(u8::try_from(code).unwrap_or(1));
                }
                None if !self.terminal => {}
                None => {
                    let call = json!({ "terminal": size(), "offsets": {}, "wait_seconds": 0 });
                    if let Err(failure) = self.line.call(OPERATION, &self.call(call)).await {
                        return failure;
                    }
                }
            }
        }
    }
}
