//! Colours, where they are wanted.

use std::io::IsTerminal;

use super::output;

/// Marks text with colours, or leaves it as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Style {
    has_colours: bool,
}

impl Style {
    #[cfg(test)]
    pub(crate) const PLAIN: Self = Self { has_colours: false };

    #[cfg(test)]
    pub(crate) const COLOURED: Self = Self { has_colours: true };

    pub(crate) fn of_stdout() -> Self {
        Self::of(&std::io::stdout())
    }

    pub(crate) fn of_stderr() -> Self {
        Self::of(&std::io::stderr())
    }

    /// Colours are for terminals that have them, unless the user wants none.
    fn of(stream: &impl IsTerminal) -> Self {
        Self {
            has_colours: stream.is_terminal() && output::is_color_allowed(),
        }
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.marked("1", text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.marked("2", text)
    }

    pub(crate) fn red(self, text: &str) -> String {
        self.marked("31", text)
    }

    pub(crate) fn green(self, text: &str) -> String {
        self.marked("32", text)
    }

    pub(crate) fn yellow(self, text: &str) -> String {
        self.marked("33", text)
    }

    pub(crate) fn cyan(self, text: &str) -> String {
        self.marked("36", text)
    }

    fn marked(self, code: &str, text: &str) -> String {
        if self.has_colours && !text.is_empty() {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}
