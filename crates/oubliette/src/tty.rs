//! The terminal that the command line runs in, handed over raw to somebody else for a while.
//!
//! However that ends, by a return, a failure, a panic or a signal that is caught, the terminal is as
//! it was.

use std::sync::{Mutex, Once, PoisonError};

use rustix::stdio::{stdin, stdout};
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};

/// What the terminal was like before.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// The standard input as a terminal that passes on every key, while this lives.
#[derive(Debug)]
pub(crate) struct Raw(());

impl Raw {
    /// None if the standard input is no terminal.
    pub(crate) fn enter() -> rustix::io::Result<Option<Self>> {
        if !isatty(stdin()) {
            return Ok(None);
        }
        let before = tcgetattr(stdin())?;
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        // A panic's message is printed before anything is dropped.
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let next = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                restore();
                next(panic);
            }));
        });
        let raw = Self(());
        raw.again()?;
        Ok(Some(raw))
    }

    /// Makes it raw once more, after somebody else had the terminal.
    pub(crate) fn again(&self) -> rustix::io::Result<()> {
        let mut modes = tcgetattr(stdin())?;
        modes.make_raw();
        // What was typed already counts.
        tcsetattr(stdin(), OptionalActions::Drain, &modes)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        restore();
    }
}

fn restore() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(before) = before {
        let _ = tcsetattr(stdin(), OptionalActions::Now, &before);
    }
}

/// Rows and columns of the terminal, if there is one.
pub(crate) fn size() -> Option<(u16, u16)> {
    let size = tcgetwinsize(stdin())
        .or_else(|_| tcgetwinsize(stdout()))
        .ok()?;
    // Some say nothing, and mean the usual.
    let or = |value: u16, usual: u16| if value == 0 { usual } else { value };
    Some((or(size.ws_row, 24), or(size.ws_col, 80)))
}

pub(crate) fn is_terminal() -> bool {
    isatty(stdin())
}
