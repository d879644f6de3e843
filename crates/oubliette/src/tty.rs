//! Raw mode of the terminal that the command line runs in.
//!
//! The original modes are restored on return, on error, on panic and on caught signals.

use std::sync::Once;

use parking_lot::Mutex;
use rustix::stdio::{stdin, stdout};
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};

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

pub(crate) fn is_terminal() -> bool {
    isatty(stdin())
}
