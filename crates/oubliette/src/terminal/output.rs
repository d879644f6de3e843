//! How the user wants output: as JSON, without notes, without colours. Set once, from the command line.

use std::io::IsTerminal;
use std::sync::OnceLock;

static CHOICES: OnceLock<Choices> = OnceLock::new();

/// What the global options say.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Choices {
    pub(crate) json: bool,
    pub(crate) quiet: bool,
    pub(crate) no_color: bool,
}

impl Choices {
    /// Makes them those of this process; later calls have no effect.
    pub(crate) fn set(self) {
        let _ = CHOICES.set(self);
    }

    fn get() -> Self {
        CHOICES.get().copied().unwrap_or_default()
    }
}

/// Whether results are printed as JSON.
pub(crate) fn is_json() -> bool {
    Choices::get().json
}

/// Whether only results and errors are printed.
pub(crate) fn is_quiet() -> bool {
    Choices::get().quiet
}

/// Whether colours may be written to the standard error.
pub(crate) fn has_color() -> bool {
    is_color_allowed() && std::io::stderr().is_terminal()
}

/// Whether neither `--no-color`, `NO_COLOR` nor the terminal forbids colours.
pub(crate) fn is_color_allowed() -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    !Choices::get().no_color
        && !is_set("NO_COLOR")
        && std::env::var_os("TERM").is_none_or(|kind| kind != "dumb")
}

/// `eprintln!` for what is said beside the result; nothing with `--quiet`.
macro_rules! note {
    ($($text:tt)*) => {
        if !$crate::terminal::output::is_quiet() {
            eprintln!($($text)*);
        }
    };
}
pub(crate) use note;
