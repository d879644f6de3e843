//! Raw mode of the terminal that the command line runs in, and questions on it.
//!
//! The original modes are restored on return, on error, on panic and on caught signals.

use std::sync::Once;

use parking_lot::Mutex;
use rustix::stdio::{stdin, stdout};
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};

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
        // The panic message is printed before anything is dropped.
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let next = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                restore();
                next(panic);
            }));
        });
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

fn restore() {
    let before = ORIGINAL_MODES.lock().take();
    if let Some(before) = before {
        let _ = tcsetattr(stdin(), OptionalActions::Now, &before);
    }
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
