//! Modes of the terminal that the command line runs in, lines that are typed there, and questions on it.
//!
//! The original modes are restored on return, on error, on panic and on caught signals.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::stdio::{stdin, stdout};
use rustix::termios::{
    InputModes, LocalModes, OptionalActions, QueueSelector, SpecialCodeIndex, Termios, isatty,
    tcflush, tcgetattr, tcgetwinsize, tcsetattr,
};
use tokio::sync::oneshot;

use crate::failure::Failure;

/// More than any key or token.
const MAX_LINE_BYTES: usize = 64 << 10;
/// The exit code of a command that Ctrl-C ended.
const INTERRUPTED: u8 = 130;
/// Keys as a terminal in raw mode sends them.
const INTERRUPT: u8 = 3;
const END_OF_INPUT: u8 = 4;
const BACKSPACE: u8 = 8;
const ERASE_LINE: u8 = 21;
const ERASE: u8 = 127;

/// The terminal's modes before raw mode.
static ORIGINAL_MODES: Mutex<Option<Termios>> = Mutex::new(None);

/// Keeps the standard input in raw mode until dropped.
#[derive(Debug)]
pub(crate) struct RawMode(());

impl RawMode {
    /// None if the standard input is not a terminal.
    pub(crate) fn enter() -> rustix::io::Result<Option<Self>> {
        if !isatty(stdin()) {
            return Ok(None);
        }
        let before = tcgetattr(stdin())?;
        *ORIGINAL_MODES.lock() = Some(before);
        restore_on_panic();
        let raw = Self(());
        raw.reapply()?;
        Ok(Some(raw))
    }

    /// Sets raw mode again, after another process used the terminal.
    pub(crate) fn reapply(&self) -> rustix::io::Result<()> {
        let mut modes = tcgetattr(stdin())?;
        modes.make_raw();
        // Drain keeps what was typed already.
        tcsetattr(stdin(), OptionalActions::Drain, &modes)
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        restore();
    }
}

/// The panic message is printed before anything is dropped.
fn restore_on_panic() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let next = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            next(panic);
        }));
    });
}

fn restore() {
    let before = ORIGINAL_MODES.lock().take();
    if let Some(before) = before {
        let _ = tcsetattr(stdin(), OptionalActions::Now, &before);
    }
}

/// Keeps the standard input from being shown and from being collected into lines, until dropped. Ctrl-C still
/// interrupts, Ctrl-D is the signal QUIT, and what is typed waits for the next reader.
#[derive(Debug)]
pub(crate) struct QuietInput {
    before: Termios,
}

impl QuietInput {
    /// None if the standard input is not a terminal.
    pub(crate) fn enter() -> Option<Self> {
        let before = tcgetattr(stdin()).ok()?;
        let mut modes = before.clone();
        modes.local_modes -= LocalModes::ECHO | LocalModes::ICANON;
        // Enter stays what the editor takes for it, also after Alt.
        modes.input_modes -= InputModes::ICRNL;
        modes.special_codes[SpecialCodeIndex::VQUIT] = END_OF_INPUT;
        tcsetattr(stdin(), OptionalActions::Drain, &modes).ok()?;
        Some(Self { before })
    }
}

impl Drop for QuietInput {
    fn drop(&mut self) {
        let _ = tcsetattr(stdin(), OptionalActions::Drain, &self.before);
    }
}

/// Sets the modes of the terminal back to what they are now, when dropped: another thread may have changed
/// them and may be blocked.
#[derive(Debug)]
pub(crate) struct ModesGuard(());

impl ModesGuard {
    pub(crate) fn new() -> Self {
        *ORIGINAL_MODES.lock() = tcgetattr(stdin()).ok();
        restore_on_panic();
        Self(())
    }
}

impl Drop for ModesGuard {
    fn drop(&mut self) {
        restore();
    }
}

/// Forgets what was typed and is not read yet.
pub(crate) fn forget_typed() {
    let _ = tcflush(stdin(), QueueSelector::IFlush);
}

/// One line that the user is going to type. Nothing is read any more when it is dropped.
#[derive(Debug)]
pub(crate) struct TypedLine {
    line: oneshot::Receiver<Option<String>>,
    is_dropped: Arc<AtomicBool>,
}

impl TypedLine {
    pub(crate) fn read() -> Self {
        let (sender, line) = oneshot::channel();
        let is_dropped = Arc::new(AtomicBool::new(false));
        let stops = is_dropped.clone();
        std::thread::spawn(move || {
            let _ = sender.send(read_typed(&stops));
        });
        Self { line, is_dropped }
    }

    /// The line; none at the end of the input. Cancel-safe.
    pub(crate) async fn wait(&mut self) -> Option<String> {
        (&mut self.line).await.ok().flatten()
    }
}

impl Drop for TypedLine {
    fn drop(&mut self) {
        self.is_dropped.store(true, Ordering::SeqCst);
    }
}

/// Waits for a line in short steps, so that it does not take one that is meant for another reader.
fn read_typed(stops: &AtomicBool) -> Option<String> {
    let step = Timespec {
        tv_sec: 0,
        tv_nsec: 50_000_000,
    };
    while !stops.load(Ordering::SeqCst) {
        let input = stdin();
        let mut waiting = [PollFd::new(&input, PollFlags::IN)];
        match poll(&mut waiting, Some(&step)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) if stops.load(Ordering::SeqCst) => return None,
            Ok(_) => {}
            Err(_) => return None,
        }
        // A terminal gives one line at a time.
        let mut line = vec![0; MAX_LINE_BYTES];
        return match rustix::io::read(stdin(), &mut line) {
            Ok(0) | Err(_) => None,
            Ok(read) => Some(String::from_utf8_lossy(&line[..read]).into_owned()),
        };
    }
    None
}

/// Rows and columns of the terminal, if there is one.
pub(crate) fn size() -> Option<(u16, u16)> {
    let size = tcgetwinsize(stdin())
        .or_else(|_| tcgetwinsize(stdout()))
        .ok()?;
    // Some terminals report 0 for the default size.
    let or_default = |value: u16, default: u16| if value == 0 { default } else { value };
    Some((or_default(size.ws_row, 24), or_default(size.ws_col, 80)))
}

/// Asks for a line on the terminal without showing what is typed.
pub(crate) fn read_secret(question: &str) -> Result<String, Failure> {
    let failed = |error: rustix::io::Errno| Failure::with_cause("cannot use the terminal", &error);
    // Before the question: keys are typed as soon as it is seen.
    let raw = RawMode::enter().map_err(failed)?;
    eprint!("{question}");
    let line = read_line();
    eprint!("\r\n");
    drop(raw);
    line.map_err(failed)?.ok_or(Failure::Exit(INTERRUPTED))
}

/// Reads keys until the end of a line; none if it was interrupted.
fn read_line() -> rustix::io::Result<Option<String>> {
    let mut line = Vec::new();
    loop {
        let mut key = [0];
        let key = match rustix::io::read(stdin(), &mut key) {
            Err(rustix::io::Errno::INTR) => continue,
            Ok(0) => END_OF_INPUT,
            Ok(_) => key[0],
            Err(error) => return Err(error),
        };
        match key {
            INTERRUPT => return Ok(None),
            END_OF_INPUT if line.is_empty() => return Ok(None),
            END_OF_INPUT | b'\r' | b'\n' => {
                return Ok(Some(String::from_utf8_lossy(&line).into_owned()));
            }
            ERASE | BACKSPACE => drop(line.pop()),
            ERASE_LINE => line.clear(),
            key if key < b' ' => {}
            key if line.len() < MAX_LINE_BYTES => line.push(key),
            _ => {}
        }
    }
}

pub(crate) fn is_terminal() -> bool {
    isatty(stdin())
}
